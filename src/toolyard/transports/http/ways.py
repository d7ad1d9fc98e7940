"""Ways to the client that change what is sent on them, and are for the rest like the one they lead to."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from toolyard.transports.http.asgi import JSON, Send
from toolyard.transports.http.response import STREAM
from toolyard.wire.events import encode_event

__all__ = ["Streamed", "Way"]

_GOOD: Final = 200

Pair = tuple[bytes, bytes]


class Way:
    """A way to the client through another."""

    def __init__(self, send: Send) -> None:
        self._send: Any = send
        if hasattr(send, "whole"):
            self.whole = self._whole

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer."""
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

    def _whole(self, status: int, body: bytes, headers: Iterable[Pair]) -> None:
        self._send.whole(status, body, headers)


class Streamed(Way):
    """The way to a client that takes nothing but streams: a good answer in one piece becomes a stream of one event."""

    _held: Any = None

    async def __call__(self, event: Any) -> None:
        """Send the next part of an answer; a head that says it is JSON waits for its body."""
        if event["type"] == "http.response.start" and event["status"] == _GOOD and JSON in event["headers"]:
            self._held = event
            return
        if self._held is not None:
            started, self._held = self._held, None
            headers = [pair for pair in _as_stream(started["headers"]) if pair[0] != b"content-length"]
            await self._send({**started, "headers": headers})
            event = {**event, "body": encode_event(event["body"])}
        await super().__call__(event)

    def _whole(self, status: int, body: bytes, headers: Iterable[Pair]) -> None:
        pairs = tuple(headers)
        if status == _GOOD and JSON in pairs:
            self._send.whole(status, encode_event(body), _as_stream(pairs))
        else:
            super()._whole(status, body, pairs)


def _as_stream(headers: Iterable[Pair]) -> list[Pair]:
    return [*STREAM, *(pair for pair in headers if pair != JSON)]
