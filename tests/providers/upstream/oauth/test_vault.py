"""A login is stored where only its owner can read it."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from callyard.providers.upstream.oauth import vault as vaults
from callyard.providers.upstream.oauth.vault import LoginError, StoredLogin, Token, Vault, stored_url

KEPT = StoredLogin(url="https://shop.example/mcp", token=Token(access_token="precious"))  # noqa: S106 - the word


class FakeKeyring(ModuleType):
    """A keyring in memory, which can be locked or be none at all."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.priority = 5.0
        self.is_locked = False
        self.held: dict[tuple[str, str], str] = {}

    def get_keyring(self) -> SimpleNamespace:
        return SimpleNamespace(priority=self.priority)

    def _check(self) -> None:
        if self.is_locked:
            raise RuntimeError

    def get_password(self, service: str, user: str) -> str | None:
        self._check()
        return self.held.get((service, user))

    def set_password(self, service: str, user: str, text: str) -> None:
        self._check()
        self.held[service, user] = text

    def delete_password(self, service: str, user: str) -> None:
        self._check()
        del self.held[service, user]


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    """Return an empty one."""
    return Vault(tmp_path / "shop", KEPT.url)


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> FakeKeyring:
    """Return the keyring of the system."""
    fake = FakeKeyring()
    monkeypatch.setitem(sys.modules, "keyring", fake)
    return fake


def test_without_a_keyring_the_login_is_in_a_private_file(vault: Vault, tmp_path: Path) -> None:
    assert (vault.stamp, vault.read()) == (None, None)

    vault.write(KEPT)

    path = tmp_path / "shop" / "tokens.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert vault.read() == KEPT
    path.chmod(0o644)
    assert vault.read() is None

    vault.forget()
    assert not path.exists()


def test_a_login_is_not_used_for_another_url(vault: Vault, tmp_path: Path) -> None:
    vault.write(KEPT)

    assert Vault(tmp_path / "shop", "https://evil.example/mcp").read() is None


def test_the_stored_url_can_be_read(vault: Vault, tmp_path: Path) -> None:
    assert stored_url(tmp_path / "shop") is None

    vault.write(KEPT)

    assert stored_url(tmp_path / "shop") == KEPT.url


def test_every_write_changes_the_stamp(vault: Vault) -> None:
    vault.write(KEPT)
    before = vault.stamp
    vault.write(KEPT)

    assert vault.stamp != before


def test_where_there_is_a_keyring_the_file_holds_no_secret(vault: Vault, keyring: FakeKeyring, tmp_path: Path) -> None:
    vault.write(KEPT)

    assert "precious" not in (tmp_path / "shop" / "tokens.json").read_text()
    assert vault.read() == KEPT

    vault.forget()
    assert (keyring.held, vault.read()) == ({}, None)


def test_a_login_missing_from_the_keyring_is_none(vault: Vault, keyring: FakeKeyring) -> None:
    vault.write(KEPT)
    keyring.held.clear()

    assert vault.read() is None
    vault.forget()
    assert vault.stamp is None


def test_a_keyring_that_does_not_open_is_an_error(vault: Vault, keyring: FakeKeyring) -> None:
    vault.write(KEPT)
    keyring.is_locked = True
    with pytest.raises(LoginError, match="does not open: RuntimeError"):
        vault.read()

    keyring.priority = 0
    with pytest.raises(LoginError, match="not available now"):
        vault.read()


def test_a_keyring_that_refuses_writes_is_replaced_by_the_file(
    vault: Vault, keyring: FakeKeyring, tmp_path: Path
) -> None:
    keyring.is_locked = True

    vault.write(KEPT)

    assert "precious" in (tmp_path / "shop" / "tokens.json").read_text()
    assert vault.read() == KEPT


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    vault = Vault(tmp_path / "file" / "shop", KEPT.url)

    with pytest.raises(LoginError, match="cannot be stored"):
        vault.write(KEPT)
    (tmp_path / "shop" / "tokens.json").mkdir(parents=True)
    with pytest.raises(LoginError, match="cannot be removed"):
        Vault(tmp_path / "shop", KEPT.url).forget()


async def test_a_lock_needs_a_writable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(LoginError, match="cannot be stored"):
        async with Vault(tmp_path / "file" / "shop", KEPT.url).locked():
            raise AssertionError


async def test_a_lock_is_waited_for_until_its_timeout(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    async def second() -> None:
        async with vault.locked():
            order.append("second")

    async with vault.locked():
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)  # a turn of the loop, in which it begins to wait
        monkeypatch.setattr(vaults, "_LOCK_TIMEOUT_S", 0.01)
        with pytest.raises(LoginError, match="locked") as caught:
            async with vault.locked():
                raise AssertionError
        order.append("first")
    await waiting

    assert order == ["first", "second"]
    assert caught.value.is_transient


def test_the_files_are_private_under_any_umask(vault: Vault, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        vault.write(KEPT)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "shop").stat().st_mode) == 0o700


_STEPS = {
    "write": "vault.write(stored)",
    "read": "assert vault.read() == stored",
    "forget": "vault.forget(); assert vault.read() is None",
}


def run_with_keyring(step: str, folder: Path) -> None:
    """Take a step in a process of its own, which has a real keyring: one in a file of the folder."""
    program = f"""
import sys
from pathlib import Path
from callyard.providers.upstream.oauth.vault import StoredLogin, Token, Vault
stored = StoredLogin(url={KEPT.url!r}, token=Token(access_token="precious"))
vault = Vault(Path(sys.argv[1]) / "shop", stored.url)
{_STEPS[step]}
"""
    backend = {"PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring", "XDG_DATA_HOME": str(folder / "home")}
    subprocess.run([sys.executable, "-c", program, str(folder)], env={**os.environ, **backend}, check=True)  # noqa: S603 - our own program


def test_a_real_keyring_shares_a_login_between_processes(tmp_path: Path) -> None:
    run_with_keyring("write", tmp_path)
    note = (tmp_path / "shop" / "tokens.json").read_text()
    [held] = (tmp_path / "home").rglob("*.cfg")
    assert json.loads(note) == {"kept_in": "keyring", "user": str(tmp_path / "shop")}
    assert "callyard" in held.read_text()

    run_with_keyring("read", tmp_path)
    run_with_keyring("forget", tmp_path)

    assert not (tmp_path / "shop" / "tokens.json").exists()
    assert "shop" not in held.read_text()
