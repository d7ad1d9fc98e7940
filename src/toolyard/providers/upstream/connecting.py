"""Connecting: from the settings of an upstream to a peer that was greeted, or to what stood in the way."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolyard.providers.upstream.greeting import Era, Greeting, SilentError, greet
from toolyard.providers.upstream.link import Link, LinkError
from toolyard.providers.upstream.peer import Behalf, Peer
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import Id
from toolyard.wire.requests import Requests

__all__ = ["Connection", "Ended", "Heard", "connect"]

Heard = Callable[[str, msgspec.Raw], None]
Ended = Callable[[Peer, LinkError], None]


class Connection(msgspec.Struct, frozen=True, eq=False):
    """A peer that was greeted."""

    peer: Peer
    requests: Requests
    greeting: Greeting

    async def request(
        self, method: str, params: Mapping[str, Any], *, name: str | None, behalf: Behalf, request_id: Id | None = None
    ) -> msgspec.Raw:
        """Send a request and return its result, which stays JSON."""
        return await self.peer.request(self.requests, method, params, name=name, behalf=behalf, request_id=request_id)


async def connect(
    name: str, settings: UpstreamSettings, make_link: Callable[[], Link], *, known: str | None, heard: Heard, ended: Ended
) -> Connection:
    """Return a connection; `known` is the version that was spoken last time.

    Raises:
        LinkError: There is none.
    """

    async def attempt(era: Era) -> Connection:
        link = make_link()
        peer = Peer(name, link, http=settings.carrier != "stdio", note=heard, ended=lambda error: ended(peer, error))
        try:
            async with asyncio.timeout(settings.connect_seconds):
                await link.open(peer)
                greeting = await greet(peer, link, era, known=known)
        except TimeoutError:
            await asyncio.shield(peer.close())
            said = f"'{name}' did not greet within {settings.connect_seconds:g} seconds."
            raise LinkError("unavailable", said) from None
        except BaseException:
            await asyncio.shield(peer.close())
            raise
        assert peer.requests is not None  # noqa: S101 - the greeting settled it
        return Connection(peer, peer.requests, greeting)

    try:
        return await attempt(settings.era)
    except SilentError:
        return await attempt("2025")
