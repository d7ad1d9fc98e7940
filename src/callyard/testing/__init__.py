"""Helpers for tests of tools: a client in the same process, and fakes of a clock, a sink and a provider.

Its files:

- `model_apis`: the APIs of models as data: how Anthropic's and OpenAI's write a conversation, a reply and the events
  of a stream
- `models`: servers on loopback with the APIs of Anthropic and OpenAI, for tests without a key
- `stores`: the test suite that every store passes, Callyard's own and yours
"""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any

from callyard.dispatch.call import ANYONE, Caller, Channel
from callyard.dispatch.outcome import Record
from callyard.dispatch.progress import Progress
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope
from callyard.model.spec import ToolSpec
from callyard.providers import Publish
from callyard.providers.functions import Functions
from callyard.yard import Yard

__all__ = ["Client", "FakeClock", "FakeProvider", "FakeSink", "connect"]


class FakeClock:
    """A clock that changes only by `advance`."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._now += seconds


class FakeSink:
    """Collects every record."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __call__(self, record: Record) -> None:
        """Collect a record."""
        self.records.append(record)

    @property
    def codes(self) -> list[str | None]:
        """Return the codes of the calls in order; None for a success."""
        return [record.code for record in self.records]


class FakeProvider:
    """A provider whose tools, resources and prompts a test can change while it is open."""

    def __init__(
        self,
        name: str,
        tools: Iterable[object] = (),
        *,
        resources: Iterable[object] = (),
        prompts: Iterable[object] = (),
    ) -> None:
        self.name = name
        self.is_open = False
        self.subscribed: AbstractSet[str] = frozenset()
        """URIs of its resources that clients are subscribed to."""
        self._functions = Functions(name, tools, resources=resources, prompts=prompts)
        self._publish: Publish | None = None

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the current tools, resources and prompts."""
        self._publish = publish
        self.is_open = True
        self._publish_all(publish)
        stop = publish.watch_subscriptions(self._subscribe)
        try:
            yield
        finally:
            stop()
            self.is_open = False
            self._publish = None

    def change(
        self, tools: Iterable[object] = (), *, resources: Iterable[object] = (), prompts: Iterable[object] = ()
    ) -> None:
        """Publish these instead: functions, or ready tools, resources and prompts."""
        self._functions = Functions(self.name, tools, resources=resources, prompts=prompts)
        if self._publish is not None:
            self._publish_all(self._publish)

    def update(self, uri: str) -> None:
        """Notify subscribers that the content of a resource changed."""
        if self._publish is not None:
            self._publish.updated(uri)

    def _subscribe(self, uris: AbstractSet[str]) -> None:
        self.subscribed = uris

    def _publish_all(self, publish: Publish) -> None:
        functions = self._functions
        publish(functions.tools(), resources=functions.resources(), prompts=functions.prompts())


class Client:
    """A caller in the same process that collects progress, log lines and questions."""

    def __init__(self, yard: Yard, *, caller: Caller = ANYONE, answers: Sequence[dict[str, Any]] = ()) -> None:
        self.yard = yard
        self.caller = caller
        self.notes: list[Progress] = []
        self.lines: list[tuple[str, str, dict[str, object]]] = []
        self.questions: list[str] = []
        self._answers = list(answers)
        self._channel = Channel(
            name="test",
            progress=self.notes.append,
            log=lambda level, text, facts: self.lines.append((level, text, dict(facts))),
            ask=self._answer if answers else None,
        )

    async def call(self, name: str, /, **arguments: Any) -> Envelope:
        """Call a tool."""
        return await self.yard.call(name, arguments, caller=self.caller, channel=self._channel)

    async def read(self, uri: str) -> Envelope:
        """Read a resource."""
        return await self.yard.read(uri, caller=self.caller, channel=self._channel)

    async def prompt(self, name: str, /, **arguments: Any) -> Envelope:
        """Get a prompt."""
        return await self.yard.prompt(name, arguments, caller=self.caller, channel=self._channel)

    def list(self) -> Sequence[ToolSpec]:
        """Return the tools that the caller's profile lists."""
        return self.yard.list(self.caller.profile)

    async def _answer(self, asks: Mapping[str, ClientRequest], _: object) -> dict[str, Any]:
        self.questions.extend(ask.params.get("message", ask.method) for ask in asks.values())
        return {key: {"action": "accept", "content": self._answers.pop(0)} for key in asks}


@asynccontextmanager
async def connect(
    yard: Yard, *, caller: Caller = ANYONE, answers: Sequence[dict[str, Any]] = ()
) -> AsyncGenerator[Client]:
    """Open a yard and connect to it; `answers` are the replies to its tools' questions, in order."""
    async with yard:
        yield Client(yard, caller=caller, answers=answers)
