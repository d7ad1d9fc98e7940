import hmac
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.transports.auth import Admitted, ApiKey, ApiKeys, Refusal, digest_of, new_key


def test_a_new_key_is_long_random_and_marked() -> None:
    first, second = new_key(), new_key()

    assert first != second
    assert first.startswith("cy_")
    assert len(first) == 3 + 43


def test_only_a_digest_is_kept_of_a_key() -> None:
    assert digest_of("cy_a") == "sha256:" + sha256(b"cy_a").hexdigest()


@every_row(
    "headers",
    [
        ("Bearer KEY", None),
        ("bearer KEY", None),
        (None, "KEY"),
        (None, " KEY "),
        ("Basic eDp5", "KEY"),
        ("Bearer KEY", ""),
    ],
)
async def test_a_key_is_admitted_in_either_header(headers: tuple[str | None, str | None]) -> None:
    key = new_key()
    authenticator = ApiKeys([ApiKey("other", digest_of(new_key())), ApiKey("ci", digest_of(key), "readers")])
    authorization, api_key = (header and header.replace("KEY", key) for header in headers)

    assert await authenticator.admit(authorization, api_key) == Admitted(
        identity="key:ci", claims={}, profile="readers"
    )


@pytest.mark.parametrize("headers", [(None, None), ("", ""), ("Basic eDp5", None)])
async def test_a_request_without_a_key_is_401(headers: tuple[str | None, str | None]) -> None:
    with pytest.raises(Refusal) as refused:
        await ApiKeys([ApiKey("ci", digest_of("a"))]).admit(*headers)

    assert (refused.value.status, refused.value.error) == (401, "")


@given(st.text(min_size=1).filter(lambda text: text.strip() not in {"", "a"}))
async def test_no_other_text_is_a_key_and_none_is_repeated(text: str) -> None:
    authenticator = ApiKeys([ApiKey("ci", digest_of("a"))])

    for headers in ((None, text), (f"Bearer {text}", None)):
        with pytest.raises(Refusal) as refused:
            await authenticator.admit(*headers)
        assert refused.value.status == 401
        assert refused.value.message in {
            "The API key is not known.",
            "The header 'Authorization' must be 'Bearer' and one word.",
        }


async def test_every_key_is_compared_even_after_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    real = hmac.compare_digest

    def compare(known: str, given: str) -> bool:
        compared.append(known)
        return real(known, given)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = [ApiKey(name, digest_of(name)) for name in ("a", "b", "c")]

    await ApiKeys(keys).admit(None, "a")

    assert compared == [key.digest for key in keys]


async def test_two_keys_of_one_name_are_one_caller() -> None:
    authenticator = ApiKeys([ApiKey("ci", digest_of("old")), ApiKey("ci", digest_of("new"))])

    assert await authenticator.admit(None, "old") == await authenticator.admit(None, "new")


@every_row(
    "digest", ["", "cy_plain", "sha256:abc", "sha512:" + "a" * 64, "sha256:" + "A" * 64, "sha256:" + "a" * 64 + "\n"]
)
def test_a_digest_that_is_none_is_refused_without_repeating_it(digest: str) -> None:
    with pytest.raises(ValueError, match="'ci'") as refused:
        ApiKey("ci", digest)

    assert not digest or digest not in str(refused.value)


@pytest.mark.parametrize("name", ["", "two words", "a\nb"])
def test_the_name_of_a_key_is_one_plain_word(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        ApiKey(name, digest_of("a"))


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [ApiKey("a", digest_of("a")), ApiKey("b", digest_of("a"))],
        [ApiKey("a", digest_of("a"), "readers"), ApiKey("a", digest_of("b"), "writers")],
    ],
    ids=["none", "one digest twice", "one name with two profiles"],
)
def test_keys_that_make_no_sense_together_are_refused(keys: list[ApiKey]) -> None:
    with pytest.raises(ValueError, match="API keys"):
        ApiKeys(keys)


def test_keys_have_no_issuer_to_point_to() -> None:
    assert ApiKeys([ApiKey("a", digest_of("a"))]).protected_resource("https://yard.example/mcp") is None
