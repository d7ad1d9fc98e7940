"""A link whose other end is a script: what it answers to each method, and what it says unasked."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from toolyard.providers.upstream.link import LinkError, Listener
from toolyard.wire.messages import METHOD_NOT_FOUND, Fault, Id, encode_fault, encode_notification, encode_request, encode_result

Script = Mapping[str, Any]
"""By method: a result, a `Fault`, a `LinkError`, nothing for silence, or what makes one of these from the params."""

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
    """Go on with everything else until something is so."""
    async with asyncio.timeout(20):
        for _ in count():
            if done():
                return
            await asyncio.sleep(0)  # a turn of the loop, not a wait


class ScriptedLink:
    """Answers as its script says, and remembers what was sent."""

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
        """Be open, or fail as told."""
        if self._cannot_open is not None:
            raise self._cannot_open
        self.listener = listener
        self.is_open = True

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Remember a message, and answer it soon."""
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

    def say(self, method: str, params: Any = None, *, about: Id | None = None) -> None:
        """Say something unasked."""
        self.listener.receive(encode_notification(method, params), about)

    def ask(self, request_id: Id, method: str, params: Any = None, *, about: Id | None = None) -> None:
        """Ask something."""
        self.listener.receive(encode_request(request_id, method, params), about)

    def requests(self, method: str) -> list[dict[str, Any]]:
        """Return what was sent of one method."""
        return [message for message in self.sent if message.get("method") == method]

    async def until(self, done: Callable[[], object]) -> None:
        """Wait until something that was sent makes this true."""
        async with asyncio.timeout(5):
            while not done():
                self.arrived.clear()
                await self.arrived.wait()

    def drop(self, request_id: Id) -> None:
        """Remember what nobody waits for any more."""
        self.dropped.append(request_id)

    def listen(self) -> None:
        """Remember that it is listened to."""
        self.listens = True

    async def close(self) -> None:
        """Be closed."""
        self.is_open = False
