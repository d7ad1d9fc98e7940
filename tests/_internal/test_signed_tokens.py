import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard._internal.signed_tokens import SignatureError, Signer, default_signer

SIGNER = Signer(lambda: b"secret")
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(JSON, st.text(st.characters(exclude_categories=["Cs"])))
def test_a_signed_content_is_verified_unchanged(content: Any, purpose: str) -> None:
    token = SIGNER.sign(purpose, content)

    assert SIGNER.verify(purpose, token) == content
    assert token.isascii()
    assert "=" not in token


@given(st.text(max_size=80))
def test_other_text_is_not_verified(text: str) -> None:
    with pytest.raises(SignatureError):
        SIGNER.verify("p", text)


@given(JSON, st.integers(0, 1000), st.integers(1, 255))
def test_a_changed_token_is_not_verified(content: Any, place: int, change: int) -> None:
    token = SIGNER.sign("p", content)
    place %= len(token)
    changed = token[:place] + chr((ord(token[place]) + change) % 256) + token[place + 1 :]

    assert changed != token
    with pytest.raises(SignatureError):
        SIGNER.verify("p", changed)


@every_row("change", ["{}=", "{}==", " {}", "{}\n", "{}A", "{}AAAA", "\u00e4{}"])
def test_a_token_has_one_encoding_only(change: str) -> None:
    with pytest.raises(SignatureError):
        SIGNER.verify("p", change.format(SIGNER.sign("p", [1, 2])))


def test_a_token_is_good_for_one_purpose_and_one_secret() -> None:
    token = SIGNER.sign("p", 1)

    for signer, purpose in ((SIGNER, "q"), (Signer(lambda: b"other"), "p"), (Signer(lambda: b""), "p")):
        with pytest.raises(SignatureError):
            signer.verify(purpose, token)
    assert Signer(lambda: b"secret").verify("p", token) == 1


def test_the_secret_of_the_environment_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    assert default_signer().verify("p", default_signer().sign("p", 1)) == 1


@pytest.mark.parametrize("given_secret", ["", None])
def test_without_a_variable_the_secret_of_the_state_directory_is_shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given_secret: str | None
) -> None:
    monkeypatch.delenv("CALLYARD_SECRET", raising=False)
    if given_secret is not None:
        monkeypatch.setenv("CALLYARD_SECRET", given_secret)
    here, elsewhere = str(tmp_path / "here"), str(tmp_path / "elsewhere")
    token = default_signer(here).sign("p", 1)

    assert default_signer(here).verify("p", token) == 1
    assert stat.S_IMODE((tmp_path / "here" / "secret").stat().st_mode) == 0o600
    with pytest.raises(SignatureError):
        default_signer(elsewhere).verify("p", token)


def test_the_secret_is_read_when_it_is_first_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CALLYARD_SECRET", raising=False)
    signer = default_signer(str(tmp_path / "state"))
    assert list(tmp_path.iterdir()) == []

    signer.prepare()
    token = signer.sign("p", 1)
    (tmp_path / "state" / "secret").unlink()

    assert signer.verify("p", token) == 1


def test_where_no_secret_can_be_stored_the_process_makes_one_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CALLYARD_SECRET", raising=False)
    (tmp_path / "file").write_text("in the way")
    place = str(tmp_path / "file" / "state")

    assert default_signer(place).verify("p", default_signer(place).sign("p", 1)) == 1
    assert [record.getMessage().split()[0] for record in caplog.records] == ["secret_unkept"]
    assert default_signer(str(tmp_path / "state")).sign("p", 1) != default_signer(place).sign("p", 1)


def _shorten(path: Path) -> None:
    path.write_bytes(b"short")


def _show(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.parametrize("spoil", [_shorten, _show])
def test_an_unsafe_secret_file_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.delenv("CALLYARD_SECRET", raising=False)
    token = default_signer(str(tmp_path)).sign("p", 1)
    spoil(tmp_path / "secret")

    with pytest.raises(SignatureError):
        default_signer(str(tmp_path)).verify("p", token)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["secret_unkept"]


def test_a_user_without_a_home_gets_a_secret_of_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("CALLYARD_SECRET", "CALLYARD_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", _has_no_home)

    assert default_signer().verify("p", default_signer().sign("p", 1)) == 1
    assert len(caplog.records) == 1


def _has_no_home(_: Path) -> Path:
    raise RuntimeError("Could not determine home directory.")
