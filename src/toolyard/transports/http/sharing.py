"""Sharing with web pages: what a browser must be told before it lets a page of another origin see an answer.

Whether a page may use the server at all is the gate's business; this only says so in the browser's words.
"""

from collections.abc import Iterable
from typing import Any, Final

from toolyard.transports.http.asgi import Send
from toolyard.transports.http.ways import Way

__all__ = ["PREFLIGHT", "Shared", "share"]

Pairs = tuple[tuple[bytes, bytes], ...]

PREFLIGHT: Final[Pairs] = (
    (b"access-control-allow-methods", b"POST, GET, DELETE"),
    (b"access-control-allow-headers", b"*, authorization"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED: Final = (b"access-control-expose-headers", b"mcp-session-id, www-authenticate")


class Shared(Way):
    """A way to the client that adds the headers for its page to every answer."""

    def __init__(self, send: Send, origin: bytes) -> None:
        super().__init__(send)
        self._pairs: Pairs = ((b"access-control-allow-origin", origin), (b"vary", b"origin"), _EXPOSED)

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer."""
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event["headers"], *self._pairs]}
        await super().__call__(event)

    def _whole(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
        super()._whole(status, body, (*headers, *self._pairs))


def share(send: Send, origin: bytes | None) -> Send:
    """Return the way to the client, which tells its page, if it has one, that it may look."""
    return send if origin is None else Shared(send, origin)
