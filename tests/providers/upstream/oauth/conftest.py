"""Fixtures for signing in: an authorization server, and a person who signs in there."""

import sys
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from authority import Authority, SignIn, browse, serving_authority

from callyard.providers.upstream.oauth.signin import sign_in
from callyard.providers.upstream.oauth.vault import StoredLogin
from callyard.providers.upstream.settings import Login, UpstreamSettings


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the keyring of the machine out of the tests."""
    monkeypatch.setitem(sys.modules, "keyring", None)


@pytest.fixture
def authority() -> Generator[Authority]:
    """Return a server that requires a login."""
    with serving_authority() as served:
        yield served


@pytest.fixture
async def log_in(authority: Authority) -> AsyncGenerator[SignIn]:
    """Return a function that signs a person in, who follows every redirect."""
    threads: list[Any] = []

    async def sign(
        stored: StoredLogin | None = None, *, url: str | None = None, seconds: float = 10, **login: Any
    ) -> StoredLogin:
        settings = UpstreamSettings(url=url or authority.url, login=Login(**login))
        return await sign_in(
            "shop", settings, stored, show=lambda address: threads.append(browse(address)), seconds=seconds
        )

    yield sign
    for thread in threads:
        thread.join()
