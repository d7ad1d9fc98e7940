"""What the tests of signing in share: a server to sign in at, and a way to do so."""

import sys
from collections.abc import AsyncGenerator, Generator
from typing import Any

import pytest
from authority import Authority, SignIn, browse, serving_authority

from toolyard.providers.upstream.oauth.metadata import StoredLogin
from toolyard.providers.upstream.oauth.signin import sign_in
from toolyard.providers.upstream.settings import Login, UpstreamSettings


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing get into the keyring of whoever runs the tests."""
    monkeypatch.setitem(sys.modules, "keyring", None)


@pytest.fixture
def authority() -> Generator[Authority]:
    """Return a server that wants a login."""
    with serving_authority() as served:
        yield served


@pytest.fixture
async def signed(authority: Authority) -> AsyncGenerator[SignIn]:
    """Return how somebody signs in there who does whatever the page says."""
    threads: list[Any] = []

    async def sign(kept: StoredLogin | None = None, *, url: str | None = None, seconds: float = 10, **login: Any) -> StoredLogin:
        settings = UpstreamSettings(url=url or authority.url, login=Login(**login))
        return await sign_in("shop", settings, kept, show=lambda address: threads.append(browse(address)), seconds=seconds)

    yield sign
    for thread in threads:
        thread.join()
