"""What the tests of conversations share: a client that speaks the protocol by hand, in the same process."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from callyard import Yard
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, Caller
from callyard.server import stream
from callyard.server.session import MAX_IN_FLIGHT
from callyard.testing import FakeSink
from callyard.transports.memory import Memory

MODERN = "2026-07-28"
TIMEOUT = 60.0
PREFIX = "io.modelcontextprotocol/"


class Peer:
    """A client that says what it is told to, and hears what comes, in order."""

    def __init__(
        self, memory: Memory, yard: Yard, sink: FakeSink, *, era: str, capabilities: Mapping[str, Any]
    ) -> None:
        self.memory = memory
        self.yard = yard
        self.sink = sink
        self.notices: list[dict[str, Any]] = []
        """The notifications that came before an answer that was waited for."""
        self._era = era
        self._capabilities = dict(capabilities)
        self._number = 0

    @property
    def meta(self) -> dict[str, Any]:
        """Return what every request of this client's era brings along."""
        if self._era != MODERN:
            return {}
        return {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": self._capabilities}

    def say(self, message: Any) -> None:
        """Hand in a message, as bytes or as what is to be written as JSON."""
        self.memory.send(message if isinstance(message, bytes) else json.dumps(message).encode())

    def request(
        self,
        request_id: object,
        method: str,
        params: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return a request as this client writes it."""
        said = {**(params or {})}
        if self.meta or meta:
            said["_meta"] = {**self.meta, **(meta or {})}
        return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": said}

    def call(self, request_id: object, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Call a tool, without waiting for the answer."""
        token = more.pop("progress", None)
        meta: dict[str, Any] = {} if token is None else {"progressToken": token}
        self.say(self.request(request_id, "tools/call", {"name": name, "arguments": arguments or {}, **more}, meta))

    def note(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Say something that wants no answer."""
        self.say({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params or {}})

    def cancel(self, request_id: object) -> None:
        """Say that nobody waits for a request any more."""
        self.note("cancelled", {"requestId": request_id})

    async def hear(self) -> Any:
        """Return the next message, whatever it is."""
        return json.loads(await asyncio.wait_for(self.memory.received.get(), TIMEOUT))

    async def answer(self) -> dict[str, Any]:
        """Return the next answer; what is told before it is kept."""
        while "method" in (message := await self.hear()) and "id" not in message:
            self.notices.append(message)
        return message

    async def ask(
        self, method: str, params: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Put a request and return its answer, whole."""
        self._number += 1
        self.say(self.request(f"q{self._number}", method, params, meta))
        answer = await self.answer()
        assert answer["id"] == f"q{self._number}"
        return answer

    async def envelope(self) -> dict[str, Any]:
        """Return the envelope in the next answer."""
        answer = await self.answer()
        return json.loads(answer["result"]["content"][0]["text"])

    async def shake_hands(self) -> dict[str, Any]:
        """Begin as a client of the older era does."""
        params = {
            "protocolVersion": self._era,
            "capabilities": self._capabilities,
            "clientInfo": {"name": "peer", "version": "1"},
        }
        answer = await self.ask("initialize", params)
        self.note("initialized")
        return answer["result"]

    def left(self) -> list[dict[str, Any]]:
        """Return what came and nobody heard."""
        return [json.loads(self.memory.received.get_nowait()) for _ in range(self.memory.received.qsize())]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let others run until something is so."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)  # a turn of the loop, not a wait


Meet = Callable[..., AbstractAsyncContextManager[Peer]]


@asynccontextmanager
async def _meet(
    yard: Yard | None = None,
    *,
    era: str = MODERN,
    capabilities: Mapping[str, Any] | None = None,
    caller: Caller = ANYONE,
    settings: Mapping[str, Any] | None = None,
    in_flight: int = MAX_IN_FLIGHT,
    **given: Any,
) -> AsyncGenerator[Peer]:
    sink = FakeSink()
    yard = Yard("met", sinks=[sink], **given) if yard is None else yard
    memory = Memory(Serving(**(settings or {})), caller=caller)
    async with yard, AsyncExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream, "MAX_IN_FLIGHT", in_flight)
            await stack.enter_async_context(memory.open(yard))
        peer = Peer(
            memory, yard, sink, era=era, capabilities={"elicitation": {}} if capabilities is None else capabilities
        )
        if era != MODERN:
            await peer.shake_hands()
        yield peer


@pytest.fixture
def meet() -> Meet:
    """Return what opens a yard and a client of it."""
    return _meet
