import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.transports.auth import Admitted, ApiKey, ApiKeys, Refusal, check_exposure, digest_of
from callyard.transports.auth.authenticator import bearer_of


def test_a_challenge_without_credentials_names_no_error() -> None:
    assert Refusal("Come back with a key.").challenge(None) == 'Bearer realm="callyard"'


def test_a_challenge_says_what_was_wrong_and_where_to_read_on() -> None:
    refusal = Refusal("The token has expired.", error="invalid_token", scopes=["read", "write"])

    assert refusal.challenge("https://yard.example/.well-known/oauth-protected-resource/mcp") == (
        'Bearer realm="callyard", error="invalid_token", error_description="The token has expired.", '
        'scope="read write", '
        'resource_metadata="https://yard.example/.well-known/oauth-protected-resource/mcp"'
    )


@given(st.text())
def test_a_challenge_stays_one_header_whatever_the_address_holds(address: str) -> None:
    value = Refusal("No.", error="invalid_token").challenge(address.encode("utf-8", "replace").decode())

    assert re.fullmatch(r'Bearer (\w+="[ !#-\[\]-~]*"(, )?)+', value)


@every_row(
    ("header", "found"),
    [
        (None, None),
        ("", None),
        ("Basic YTpi", None),
        ("Bearer abc", "abc"),
        ("bearer   abc ", "abc"),
        ("BEARER abc", "abc"),
        ("Bearerabc", None),
    ],
)
def test_credentials_are_what_follows_bearer(header: str | None, found: str | None) -> None:
    assert bearer_of(header) == found


@every_row("header", ["Bearer", "Bearer ", "Bearer a b", "Bearer a\tb"])
def test_bearer_without_one_word_is_an_invalid_request(header: str) -> None:
    with pytest.raises(Refusal) as refused:
        bearer_of(header)

    assert (refused.value.status, refused.value.error) == (401, "invalid_request")


def test_the_repr_of_an_admitted_caller_has_no_claims() -> None:
    assert "secret" not in repr(Admitted(identity="ada", claims={"email": "secret"}))


LOCAL = ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1", None]
OPEN = ["0.0.0.0", "::", "", "192.168.1.4", "example.org", "localhost.example.org", "127.1", "::ffff:10.0.0.1"]  # noqa: S104 - that they are refused


@every_row("host", LOCAL)
def test_a_host_of_this_machine_needs_no_guard(host: str | None) -> None:
    check_exposure(host, None)


@every_row("host", OPEN)
def test_a_host_that_others_reach_is_not_served_without_a_guard(host: str) -> None:
    with pytest.raises(ValueError, match="auth") as refused:
        check_exposure(host, None)

    for word in ("[auth]", "api_keys", "callyard key NAME", "issuer", "audience"):
        assert word in str(refused.value)


@every_row("host", OPEN)
def test_a_host_with_a_guard_is_served(host: str) -> None:
    check_exposure(host, ApiKeys([ApiKey("ci", digest_of("a"))]))
