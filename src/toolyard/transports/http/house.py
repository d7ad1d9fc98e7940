"""The house: what all connections of one server share, and how they come to an end together."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from toolyard.serving import Serving

if TYPE_CHECKING:
    from toolyard.transports.http.connection import Connection

__all__ = ["House"]

_TURNS: Final = 5
_BODIES: Final = 64
_TICK: Final = 0.01
_BODY_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 75.0
_UNREAD_SECONDS: Final = 30.0


class House:
    """The application, the settings and the connections of one server."""

    def __init__(self, app: Any, serving: Serving, *, is_secure: bool) -> None:
        self.app = app
        self.serving = serving
        self.scheme = "https" if is_secure else "http"
        self.is_closing = False
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.receiving = 0
        """Bytes of bodies that are not whole yet, or wait to be worked on."""
        self.room = serving.message_bytes * _BODIES
        self.unread_seconds = _UNREAD_SECONDS
        self.head_seconds = serving.header_seconds or _IDLE_SECONDS

    def seconds_for(self, state: str) -> float:
        """Return how long a connection may be in a state: sending a head or a body, or idle."""
        if state == "head":
            return self.head_seconds
        return _BODY_SECONDS if state == "body" else _IDLE_SECONDS

    def make_room(self) -> None:
        """End the connection that holds most of what is not worked on yet, so that it does not keep the others out."""
        max(self.connections, key=lambda connection: connection.held).refuse_body()

    async def settle(self, seconds: float) -> None:
        """Let answers be written, for so long, and then answer in the place of calls that do not end."""
        self.is_closing = True
        for connection in tuple(self.connections):
            connection.close_when_done()
        deadline = self.loop.time() + seconds
        while any(map(_is_owed, self.connections)) and self.loop.time() < deadline:  # noqa: ASYNC110 - nobody tells when the last is done
            await asyncio.sleep(_TICK)  # once, at the end
        for connection in tuple(self.connections):
            cycle = connection.cycle
            if cycle is not None and (answer := self.app.answer_unended(cycle)) is not None:
                cycle.give_up(answer)

    async def close(self) -> None:
        """End every connection, once what is written has gone out."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # turns of the loop, in which it goes out
        for connection in tuple(self.connections):
            connection.abort()
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # so that they hear of it, and whoever came in the last moment, too


def _is_owed(connection: "Connection") -> bool:
    """Return whether a client waits for the answer to a message; other streams end when the application does."""
    return connection.cycle is not None and connection.cycle.method == "POST"
