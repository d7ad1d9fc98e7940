"""A link whose other end is a script: the answer to each method, and messages sent by tests."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from callyard.providers.upstream.link import Link, LinkError, Listener
from callyard.wire.messages import (
    METHOD_NOT_FOUND,
    Fault,
    Id,
    encode_fault,
    encode_notification,
    encode_request,
    encode_result,
)

Script = Mapping[str, Any]
"""By method: a result, a `Fault`, a `LinkError`, None for no answer, or a function from the params to one of these."""

HANDSHAKE: Script = {
    "server/discover": Fault(METHOD_NOT_FOUND, "There is no such method."),
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}, "completions": {}},
        "serverInfo": {"name": "scripted", "version": "1"},
        "instructions": "Be kind.",
    },
}
MODERN: Script = {
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "completions": {}},
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1"}},
    },
}


async def until(done: Callable[[], object]) -> None:
    """Run other tasks until the condition is true."""
    async with asyncio.timeout(60):
        for _ in count():
            if done():
                return
            await asyncio.sleep(0)  # a turn of the loop, not a wait


class ScriptedLink(Link):
    """Answers by its script, and records what was sent."""

    def __init__(self, script: Script, *, cannot_open: LinkError | None = None) -> None:
        self.script = dict(script)
        self.sent: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.dropped: list[Id] = []
        self.is_open = False
        self.listens = False
        self.arrived = asyncio.Event()
        self.listener: Listener
        self._cannot_open = cannot_open

    async def open(self, listener: Listener) -> None:
        """Open, or raise the configured error."""
        if self._cannot_open is not None:
            raise self._cannot_open
        self.listener = listener
        self.is_open = True

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Record a message, and answer it in the next turn of the loop."""
        decoded: dict[str, Any] = msgspec.json.decode(message)
        self.sent.append(decoded)
        self.headers.append(headers)
        self.arrived.set()
        if request_id is not None:
            asyncio.get_running_loop().call_soon(self._answer, request_id, decoded)

    def _answer(self, request_id: Id, message: dict[str, Any]) -> None:
        answer: Any = self.script.get(message["method"], Fault(METHOD_NOT_FOUND, "There is no such method."))
        if callable(answer):
            answer = answer(message.get("params", {}))
        if isinstance(answer, LinkError):
            self.listener.lose(request_id, answer)
        elif isinstance(answer, Fault):
            self.listener.receive(encode_fault(request_id, answer), request_id)
        elif answer is not None:
            self.listener.receive(encode_result(request_id, msgspec.json.encode(answer)), request_id)

    def notify(self, method: str, params: Any = None, *, about: Id | None = None) -> None:
        """Send a notification to the listener."""
        self.listener.receive(encode_notification(method, params), about)

    def ask(self, request_id: Id, method: str, params: Any = None, *, about: Id | None = None) -> None:
        """Send a request to the listener."""
        self.listener.receive(encode_request(request_id, method, params), about)

    def requests(self, method: str) -> list[dict[str, Any]]:
        """Return the sent messages of one method."""
        return [message for message in self.sent if message.get("method") == method]

    async def until(self, done: Callable[[], object]) -> None:
        """Wait until sent messages make the condition true."""
        async with asyncio.timeout(60):
            while not done():
                self.arrived.clear()
                await self.arrived.wait()

    def drop(self, request_id: Id) -> None:
        """Record a dropped request."""
        self.dropped.append(request_id)

    def listen(self) -> None:
        """Record that the stream was opened."""
        self.listens = True

    async def close(self) -> None:
        """Close."""
        self.is_open = False
