import base64
import hashlib
import hmac
import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm
from table_tests import every_row

from callyard.testing import FakeClock
from callyard.transports.auth import (
    AnyOf,
    ApiKey,
    ApiKeys,
    Authenticator,
    IssuerUnreachableError,
    Refusal,
    Tokens,
    digest_of,
    new_key,
)
from callyard.transports.auth.authenticator import Admitted
from callyard.transports.auth.jwks import KeySet
from callyard.transports.auth.tokens import ClaimRules, TokenCache

if TYPE_CHECKING:
    from tests.transports.auth.conftest import FakeIssuer


Make = Callable[..., Tokens]
NOW = 1_000_000.0


async def refusal_of(tokens: Tokens, authorization: str | None) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await tokens.admit(authorization, None)
    return refused.value


@pytest.mark.parametrize(("kind", "alg"), [("RSA", "RS256"), ("RSA", "PS512"), ("EC", "ES256"), ("OKP", "EdDSA")])
async def test_a_token_of_the_issuer_is_admitted(
    issuer: "FakeIssuer", make_tokens: Make, public_jwk: Any, kind: str, alg: str
) -> None:
    issuer.publish(public_jwk(kind, "k"))

    admitted = await make_tokens().admit(issuer.bearer(kind=kind, kid="k", alg=alg, team="blue"), None)

    assert (admitted.identity, admitted.claims["team"], admitted.profile) == ("ada", "blue", None)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": NOW - 31}, "expired"),
    "without an end": ({"exp": None}, "lacks"),
    "with an end that is no time": ({"exp": "soon"}, "'exp'"),
    "with an end beyond all numbers": ({"exp": 10**400}, "'exp'"),
    "with an end that is true": ({"exp": True}, "'exp'"),
    "not valid yet": ({"nbf": NOW + 31}, "not valid yet"),
    "issued in the future": ({"iat": NOW + 31}, "not valid yet"),
    "for another audience": ({"aud": "elsewhere"}, "audience"),
    "for other audiences": ({"aud": ["elsewhere", "nowhere"]}, "audience"),
    "for no audience": ({"aud": None}, "lacks"),
    "of another issuer": ({"iss": "https://elsewhere.example"}, "another issuer"),
    "of no issuer": ({"iss": None}, "lacks"),
    "for nobody": ({"sub": None}, "'sub'"),
    "for an empty name": ({"sub": ""}, "'sub'"),
    "for a name with a line break": ({"sub": "a\nb"}, "'sub'"),
    "for the owner of a key": ({"sub": "key:ci"}, "reserved"),
    "for the local user": ({"sub": "local"}, "reserved"),
    "for a user of the machine": ({"sub": "user:root"}, "reserved"),
    "for a user in other letters": ({"sub": " \uff35ser:root"}, "reserved"),
    "for the webhook in capitals": ({"sub": "Webhook"}, "reserved"),
    "for the person at a client": ({"sub": "client:ada"}, "reserved"),
    "for the webhook": ({"sub": "webhook"}, "reserved"),
}


@every_row(("claims", "word"), WRONG.values(), ids=WRONG)
async def test_a_token_with_a_wrong_claim_is_refused(
    issuer: "FakeIssuer", make_tokens: Make, claims: dict[str, Any], word: str
) -> None:
    refusal = await refusal_of(make_tokens(), issuer.bearer(**claims))

    assert (refusal.status, refusal.error) == (401, "invalid_token")
    assert word in refusal.message
    assert "elsewhere" not in refusal.message


@every_row(
    "claims", [{"exp": NOW - 29}, {"nbf": NOW + 29}, {"iat": NOW + 29}, {"aud": ["elsewhere", "yard"]}, {"jti": 7}]
)
async def test_clocks_may_differ_a_little_and_audiences_be_many(
    issuer: "FakeIssuer", make_tokens: Make, claims: dict[str, Any]
) -> None:
    assert (await make_tokens().admit(issuer.bearer(**claims), None)).identity == "ada"


async def test_one_of_several_audiences_is_enough(issuer: "FakeIssuer", clock: FakeClock) -> None:
    tokens = Tokens(issuer.url, ["yard", "https://yard.example"], jwks=issuer.jwks, clock=clock, wall=clock)

    assert (await tokens.admit(issuer.bearer(aud="https://yard.example"), None)).identity == "ada"


def _part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _unsigned(head: dict[str, int]) -> str:
    return f"{_part(head)}.e30.e30"


async def test_a_token_that_nobody_signed_is_refused(issuer: "FakeIssuer", make_tokens: Make) -> None:
    claims = {"iss": issuer.url, "aud": "yard", "sub": "eve", "exp": NOW + 60}
    for algorithm in ("none", "None", "", None, ["RS256"], 1):
        token = f"{_part({'alg': algorithm, 'kid': 'one'})}.{_part(claims)}."
        assert "algorithm" in (await refusal_of(make_tokens(), f"Bearer {token}")).message


async def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(
    issuer: "FakeIssuer", make_tokens: Make, private_key: Any
) -> None:
    public = private_key("RSA", "one").public_key()
    secrets = [public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), issuer.answers["/keys"][1]]
    for secret in secrets:
        claims = {"iss": issuer.url, "aud": "yard", "sub": "eve", "exp": NOW + 60}
        said = f"{_part({'alg': 'HS256', 'kid': 'one'})}.{_part(claims)}"
        mark = base64.urlsafe_b64encode(hmac.digest(secret, said.encode(), hashlib.sha256)).rstrip(b"=").decode()
        refusal = await refusal_of(make_tokens(), f"Bearer {said}.{mark}")
        assert (refusal.error, "algorithm" in refusal.message) == ("invalid_token", True)


async def test_a_token_signed_by_somebody_else_is_refused(issuer: "FakeIssuer", make_tokens: Make) -> None:
    forged = issuer.bearer(kid="other", header={"kid": "one"})

    assert "not signed" in (await refusal_of(make_tokens(), forged)).message


async def test_a_token_is_refused_once_a_letter_of_it_changed(issuer: "FakeIssuer", make_tokens: Make) -> None:
    head, body, mark = issuer.sign().split(".")
    tokens = make_tokens()
    other = _part({**json.loads(base64.urlsafe_b64decode(body + "==")), "sub": "eve"})

    assert (await refusal_of(tokens, f"Bearer {head}.{other}.{mark}")).error == "invalid_token"


async def test_an_algorithm_that_was_not_chosen_is_refused(issuer: "FakeIssuer", make_tokens: Make) -> None:
    assert "algorithm" in (await refusal_of(make_tokens(algorithms=["ES256"]), issuer.bearer())).message


@given(st.text(max_size=200) | st.just("a.b.c") | st.dictionaries(st.text(), st.integers()).map(_unsigned))
async def test_anything_else_is_refused_and_not_repeated(text: str) -> None:
    tokens = Tokens("https://issuer.example", "yard", jwks="https://issuer.example/keys")

    with pytest.raises(Refusal) as refused:
        await tokens.admit(f"Bearer {text}", None)

    assert refused.value.message in {
        "The token is not a signed JWT.",
        "The token is signed with an algorithm that is not allowed.",
        "The header 'Authorization' must be 'Bearer' and one word.",
    }


async def test_a_token_that_is_too_long_is_not_even_read(make_tokens: Make) -> None:
    assert "too long" in (await refusal_of(make_tokens(), "Bearer " + "a" * 20_000)).message


async def test_signed_words_that_are_no_claims_are_refused(make_tokens: Make, private_key: Any) -> None:
    token = jwt.PyJWS().encode(b"[1]", private_key("RSA", "one"), "RS256", headers={"kid": "one"})

    assert (await refusal_of(make_tokens(), f"Bearer {token}")).message == "The token is not a signed JWT."


@pytest.mark.parametrize("header", [None, "Basic eDp5"])
async def test_a_request_without_a_token_gets_a_challenge_with_scopes(make_tokens: Make, header: str | None) -> None:
    refusal = await refusal_of(make_tokens(scopes=["tools:read"]), header)

    assert (refusal.status, refusal.error) == (401, "")
    assert refusal.challenge(None) == 'Bearer realm="callyard", scope="tools:read"'


@every_row("claims", [{}, {"scope": "a"}, {"scope": "ab"}, {"scp": ["a"]}, {"scope": 7}, {"scp": {"a": 1, "b": 2}}])
async def test_a_token_without_a_needed_scope_is_not_enough(
    issuer: "FakeIssuer", make_tokens: Make, claims: dict[str, Any]
) -> None:
    refusal = await refusal_of(make_tokens(scopes=["a", "b"]), issuer.bearer(**claims))

    assert (refusal.status, refusal.error) == (403, "insufficient_scope")
    assert 'error="insufficient_scope"' in refusal.challenge(None)
    assert 'scope="a b"' in refusal.challenge(None)


@every_row(
    "claims",
    [{"scope": "b c a"}, {"scp": ["a", "b"]}, {"scp": "a b"}, {"scope": ["b", "a", 1]}, {"scope": "a", "scp": ["b"]}],
)
async def test_scopes_are_found_wherever_issuers_write_them(
    issuer: "FakeIssuer", make_tokens: Make, claims: dict[str, Any]
) -> None:
    assert (await make_tokens(scopes=["a", "b"]).admit(issuer.bearer(**claims), None)).identity == "ada"


@every_row(
    ("options", "claims", "profile"),
    [
        ({"profiles": {"admin": "all", "read": "some"}}, {"scope": "read admin"}, "all"),
        ({"profiles": {"admin": "all", "read": "some"}}, {"scope": "read"}, "some"),
        ({"profiles": {"admin": "all", "*": "some"}}, {}, "some"),
        ({"profile_claim": "role", "profiles": {"boss": "all"}}, {"role": "boss"}, "all"),
        ({"profile_claim": "role", "profiles": {"boss": "all", "*": "some"}}, {"role": "the boss"}, "some"),
        ({"profile_claim": "groups", "profiles": {"boss": "all"}}, {"groups": ["staff", "boss", 7]}, "all"),
    ],
)
async def test_scopes_or_a_claim_choose_the_profile(
    issuer: "FakeIssuer", make_tokens: Make, options: dict[str, Any], claims: dict[str, Any], profile: str
) -> None:
    assert (await make_tokens(**options).admit(issuer.bearer(**claims), None)).profile == profile


@every_row("claims", [{}, {"role": 7}, {"role": "bos"}, {"scope": "boss"}])
async def test_a_token_of_no_profile_is_refused(
    issuer: "FakeIssuer", make_tokens: Make, claims: dict[str, Any]
) -> None:
    refusal = await refusal_of(make_tokens(profile_claim="role", profiles={"boss": "all"}), issuer.bearer(**claims))

    assert (refusal.status, refusal.error) == (403, "insufficient_scope")


async def test_another_claim_can_name_the_caller(issuer: "FakeIssuer", make_tokens: Make) -> None:
    admitted = await make_tokens(identity_claim="client_id").admit(issuer.bearer(client_id="robot", sub=None), None)

    assert admitted.identity == "robot"


async def test_a_token_that_was_checked_is_remembered_until_it_ends(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock
) -> None:
    tokens = make_tokens()
    header = issuer.bearer(exp=NOW + 100)

    first = await tokens.admit(header, None)
    clock.advance(129)
    assert await tokens.admit(header, None) is first
    clock.advance(1)

    assert "expired" in (await refusal_of(tokens, header)).message


async def test_a_token_is_checked_again_after_five_minutes(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock
) -> None:
    tokens = make_tokens()
    header = issuer.bearer()

    first = await tokens.admit(header, None)
    clock.advance(299)
    assert await tokens.admit(header, None) is first
    clock.advance(1)

    assert await tokens.admit(header, None) is not first


def test_remembered_tokens_are_bounded_and_a_clock_put_back_forgets_them() -> None:
    cache = TokenCache(size=2)
    for token in ("a", "b", "c"):
        cache.add(token, Admitted(identity=token), now=10, end=20)

    assert len(cache) == 2
    assert cache.find("a", 11) is None
    assert cache.find("c", 11) == Admitted(identity="c")
    assert cache.find("c", 9) is None
    assert cache.find("b", 20) is None
    assert len(cache) == 0


def test_the_document_of_the_resource_names_its_issuer() -> None:
    plain = Tokens("https://issuer.example/", "yard")
    scoped = Tokens("https://issuer.example/", "yard", scopes=["read"])

    assert plain.protected_resource("https://yard.example/mcp") == {
        "resource": "https://yard.example/mcp",
        "authorization_servers": ["https://issuer.example/"],
        "bearer_methods_supported": ["header"],
    }
    assert (scoped.protected_resource("https://yard.example/mcp") or {})["scopes_supported"] == ["read"]


@every_row(
    ("change", "word"),
    [
        ({"issuer": "http://issuer.example"}, "https"),
        ({"issuer": "issuer"}, "https"),
        ({"issuer": "https://ada:secret@issuer.example"}, "password"),
        ({"issuer": "https://issuer.example/?a=secret"}, "path"),
        ({"issuer": "https://issuer.example:secret/"}, "address"),
        ({"jwks": "http://issuer.example/keys"}, "https"),
        ({"jwks": "file:///keys"}, "https"),
        ({"jwks": {"keys": []}}, "jwks"),
        ({"jwks": {"secret": 1}}, "keys"),
        ({"audience": ""}, "audience"),
        ({"audience": []}, "audience"),
        ({"algorithms": ["HS256"]}, "HS256"),
        ({"algorithms": ["RS256", "none"]}, "none"),
        ({"scopes": ["two words"]}, "scope"),
        ({"scopes": ['"']}, "scope"),
        ({"leeway": -1}, "leeway"),
        ({"leeway": 301}, "leeway"),
        ({"profile_claim": "role"}, "profiles"),
    ],
)
def test_settings_that_are_not_safe_are_refused_without_repeating_secrets(change: dict[str, Any], word: str) -> None:
    options: dict[str, Any] = {
        "issuer": "https://issuer.example",
        "audience": "yard",
        "jwks": "https://issuer.example/keys?v=1",
        **change,
    }
    issuer, audience = options.pop("issuer"), options.pop("audience")

    with pytest.raises(ValueError, match=word) as refused:
        Tokens(issuer, audience, **options)

    assert "secret" not in str(refused.value)


def test_an_expectation_needs_nothing() -> None:
    assert ClaimRules().admit({"sub": "ada", "exp": NOW + 1}, NOW).identity == "ada"


def test_keys_that_cannot_check_a_signature_are_passed_over(public_jwk: Any, private_key: Any) -> None:
    good = public_jwk("RSA", "one")
    useless: list[Any] = [
        7,
        {},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "one"},
        {**good, "use": "enc"},
        {**good, "use": []},
        {**good, "key_ops": ["encrypt"]},
        {**good, "key_ops": "verify"},
        {**good, "alg": "RSA-OAEP"},
        RSAAlgorithm.to_jwk(private_key("RSA", "one"), as_dict=True) | {"key_ops": ["sign", "verify"]},
        {**good, "n": 7},
        {**good, "n": "!"},
        public_jwk("RSA", "weak", 1024),
        {**public_jwk("EC", "k"), "crv": "P-384"},
        {**public_jwk("EC", "k"), "x": "AA"},
    ]

    assert len(KeySet({"keys": useless}, ["RS256", "ES256", "ES384"])) == 0
    assert (
        len(KeySet({"keys": [{**good, "use": "sig", "key_ops": ["verify"], "alg": "RS256"}]}, ["RS256", "PS256"])) == 1
    )


@pytest.mark.parametrize(
    ("missing", "is_hinted"), [("jwt", True), ("cryptography.hazmat", True), ("urllib.request", False)]
)
def test_tokens_say_which_extra_they_need_where_it_is_missing(missing: str, *, is_hinted: bool) -> None:
    code = f"""
import sys
sys.modules["{missing}"] = None
from callyard.transports.auth import Tokens
try:
    Tokens("https://issuer.example", "yard")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code

    assert done.stdout
    assert ("pip install 'callyard[oauth]'" in done.stdout) == is_hinted


def test_a_yard_with_api_keys_alone_loads_no_packages_for_tokens() -> None:
    code = "import sys, callyard.transports.auth; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code

    assert not {"jwt", "cryptography", "urllib.request", "http.client"} & set(done.stdout.split())


KEY = new_key()
KEYS = ApiKeys([ApiKey("ci", digest_of(KEY))])


async def refusal_of_any_of(authenticator: Authenticator, authorization: str | None, api_key: str | None) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await authenticator.admit(authorization, api_key)
    return refused.value


async def test_a_key_or_a_token_lets_in(issuer: "FakeIssuer", make_tokens: Make) -> None:
    authenticator = AnyOf([make_tokens(), KEYS])

    assert (await authenticator.admit(f"Bearer {KEY}", None)).identity == "key:ci"
    assert (await authenticator.admit(None, KEY)).identity == "key:ci"
    assert issuer.asked == []
    assert (await authenticator.admit(issuer.bearer(), None)).identity == "ada"
    assert (await authenticator.admit(issuer.bearer(), "wrong")).identity == "ada"


async def test_the_refusal_of_the_tokens_is_answered_when_both_refuse(issuer: "FakeIssuer", make_tokens: Make) -> None:
    authenticator = AnyOf([make_tokens(scopes=["read"]), KEYS])

    expired = await refusal_of_any_of(authenticator, issuer.bearer(exp=1), None)
    scarce = await refusal_of_any_of(authenticator, issuer.bearer(), None)
    nothing = await refusal_of_any_of(authenticator, None, None)

    assert "expired" in expired.message
    assert (scarce.status, scarce.error) == (403, "insufficient_scope")
    assert (nothing.error, nothing.scopes) == ("", ("read",))


async def test_a_wrong_key_is_called_wrong_where_no_token_came(make_tokens: Make) -> None:
    refusal = await refusal_of_any_of(AnyOf([KEYS, make_tokens(scopes=["read"])]), None, "wrong")

    assert (refusal.status, refusal.error, refusal.scopes) == (401, "invalid_token", ("read",))
    assert "API key" in refusal.message


async def test_a_key_is_admitted_while_the_issuer_is_down(issuer: "FakeIssuer", make_tokens: Make) -> None:
    issuer.stop()
    authenticator = AnyOf([make_tokens(), KEYS])

    assert (await authenticator.admit(None, KEY)).identity == "key:ci"
    assert (await refusal_of_any_of(authenticator, "Bearer cy_wrong", None)).error == "invalid_token"
    with pytest.raises(IssuerUnreachableError):
        await authenticator.admit(issuer.bearer(), None)


def test_the_document_is_that_of_the_tokens(make_tokens: Make) -> None:
    tokens = make_tokens()

    assert AnyOf([KEYS, tokens]).protected_resource("https://yard.example") == tokens.protected_resource(
        "https://yard.example"
    )
    assert AnyOf([KEYS]).protected_resource("https://yard.example") is None


def test_no_guard_and_two_issuers_are_refused(make_tokens: Make) -> None:
    with pytest.raises(ValueError, match="authenticators"):
        AnyOf([])
    with pytest.raises(ValueError, match="issuer"):
        AnyOf([make_tokens(), make_tokens()])
