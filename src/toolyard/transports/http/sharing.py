"""Sharing with web pages: what a browser must be told before it lets a page of another origin see an answer.

Whether a page may use the server at all is the gate's business; this only says so in the browser's words.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from toolyard.transports.http.asgi import Send

__all__ = ["PREFLIGHT", "Shared", "share"]

Pairs = tuple[tuple[bytes, bytes], ...]

PREFLIGHT: Final[Pairs] = (
    (b"access-control-allow-methods", b"POST, GET, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED: Final = (b"access-control-expose-headers", b"mcp-session-id, www-authenticate")


class Shared:
    """A way to the client that adds the headers for its page to every answer."""

    def __init__(self, send: Send, origin: bytes) -> None:
        self._send: Any = send
        self._pairs: Pairs = ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)
        if hasattr(send, "whole"):
            self.whole = self._whole

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer."""
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event["headers"], *self._pairs]}
        await self._send(event)

    @property
    def task(self) -> Any:
        """Return the task that works on the request, where the server says it."""
        return self._send.task

    @property
    def on_gone(self) -> Callable[[], object] | None:
        """Return what is called when the client goes away; there is nothing such with another server."""
        return self._send.on_gone

    @on_gone.setter
    def on_gone(self, told: Callable[[], object] | None) -> None:
        self._send.on_gone = told

    def _whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._send.whole(status, body, (*headers, *self._pairs))


def share(send: Send, origin: bytes | None) -> Send:
    """Return the way to the client, which tells its page, if it has one, that it may look."""
    return send if origin is None else Shared(send, origin)
