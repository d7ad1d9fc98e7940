from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from toolyard.transports.auth import AnyOf, ApiKey, ApiKeys, Guard, IssuerUnreachableError, Refusal, Tokens, digest_of, new_key

if TYPE_CHECKING:
    from tests.transports.auth.conftest import FakeIssuer

KEY = new_key()
KEYS = ApiKeys([ApiKey("ci", digest_of(KEY))])
Make = Callable[..., Tokens]


async def refusal_of(guard: Guard, authorization: str | None, api_key: str | None) -> Refusal:
    with pytest.raises(Refusal) as refused:
        await guard.admit(authorization, api_key)
    return refused.value


async def test_a_key_or_a_token_lets_in(issuer: "FakeIssuer", make_tokens: Make) -> None:
    guard = AnyOf([make_tokens(), KEYS])

    assert (await guard.admit(f"Bearer {KEY}", None)).identity == "key:ci"
    assert (await guard.admit(None, KEY)).identity == "key:ci"
    assert issuer.asked == []
    assert (await guard.admit(issuer.bearer(), None)).identity == "ada"
    assert (await guard.admit(issuer.bearer(), "wrong")).identity == "ada"


async def test_the_refusal_of_the_tokens_is_told_when_both_refuse(issuer: "FakeIssuer", make_tokens: Make) -> None:
    guard = AnyOf([make_tokens(scopes=["read"]), KEYS])

    expired = await refusal_of(guard, issuer.bearer(exp=1), None)
    scarce = await refusal_of(guard, issuer.bearer(), None)
    nothing = await refusal_of(guard, None, None)

    assert "expired" in expired.message
    assert (scarce.status, scarce.error) == (403, "insufficient_scope")
    assert (nothing.error, nothing.scopes) == ("", ("read",))


async def test_a_wrong_key_is_called_wrong_where_no_token_came(make_tokens: Make) -> None:
    refusal = await refusal_of(AnyOf([KEYS, make_tokens(scopes=["read"])]), None, "wrong")

    assert (refusal.status, refusal.error, refusal.scopes) == (401, "invalid_token", ("read",))
    assert "API key" in refusal.message


async def test_a_key_is_admitted_while_the_issuer_is_down(issuer: "FakeIssuer", make_tokens: Make) -> None:
    issuer.stop()
    guard = AnyOf([make_tokens(), KEYS])

    assert (await guard.admit(None, KEY)).identity == "key:ci"
    assert (await refusal_of(guard, "Bearer ty_wrong", None)).error == "invalid_token"
    with pytest.raises(IssuerUnreachableError):
        await guard.admit(issuer.bearer(), None)


def test_the_document_is_that_of_the_tokens(make_tokens: Make) -> None:
    tokens = make_tokens()

    assert AnyOf([KEYS, tokens]).protected_resource("https://yard.example") == tokens.protected_resource("https://yard.example")
    assert AnyOf([KEYS]).protected_resource("https://yard.example") is None


def test_no_guard_and_two_issuers_are_refused(make_tokens: Make) -> None:
    with pytest.raises(ValueError, match="guards"):
        AnyOf([])
    with pytest.raises(ValueError, match="issuer"):
        AnyOf([make_tokens(), make_tokens()])
