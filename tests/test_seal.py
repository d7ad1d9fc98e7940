from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard.seal import Seal, SealError, own_seal

SEAL = Seal(b"secret")
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(st.characters(exclude_categories=["Cs"]))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(JSON, st.text(st.characters(exclude_categories=["Cs"])))
def test_what_was_sealed_comes_back(content: Any, purpose: str) -> None:
    token = SEAL.close(purpose, content)

    assert SEAL.open(purpose, token) == content
    assert token.isascii()
    assert "=" not in token


@given(st.text(max_size=80))
def test_no_text_but_a_token_can_be_opened(text: str) -> None:
    with pytest.raises(SealError):
        SEAL.open("p", text)


@given(JSON, st.integers(0, 1000), st.integers(1, 255))
def test_a_token_that_was_changed_cannot_be_opened(content: Any, place: int, change: int) -> None:
    token = SEAL.close("p", content)
    place %= len(token)
    changed = token[:place] + chr((ord(token[place]) + change) % 256) + token[place + 1 :]

    assert changed != token
    with pytest.raises(SealError):
        SEAL.open("p", changed)


@pytest.mark.parametrize("change", ["{}=", "{}==", " {}", "{}\n", "{}A", "{}AAAA", "\u00e4{}"])
def test_a_token_can_be_written_in_one_way_only(change: str) -> None:
    with pytest.raises(SealError):
        SEAL.open("p", change.format(SEAL.close("p", [1, 2])))


def test_a_token_is_good_for_one_purpose_and_one_secret() -> None:
    token = SEAL.close("p", 1)

    for seal, purpose in ((SEAL, "q"), (Seal(b"other"), "p"), (Seal(b""), "p")):
        with pytest.raises(SealError):
            seal.open(purpose, token)
    assert Seal(b"secret").open("p", token) == 1


def test_the_secret_of_the_environment_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLYARD_SECRET", "a secret")
    assert own_seal().open("p", own_seal().close("p", 1)) == 1


@pytest.mark.parametrize("given_secret", ["", None])
def test_without_a_secret_every_process_has_its_own(monkeypatch: pytest.MonkeyPatch, given_secret: str | None) -> None:
    monkeypatch.delenv("TOOLYARD_SECRET", raising=False)
    if given_secret is not None:
        monkeypatch.setenv("TOOLYARD_SECRET", given_secret)
    with pytest.raises(SealError):
        own_seal().open("p", own_seal().close("p", 1))
