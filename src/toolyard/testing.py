"""What a user tests tools with, and what our own tests are written with."""

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any

from toolyard.dispatch.call import ANYONE, Caller, Channel
from toolyard.dispatch.outcome import Record
from toolyard.dispatch.progress import Progress
from toolyard.model.elicitation import ClientRequest
from toolyard.model.envelope import Envelope
from toolyard.model.spec import ToolSpec
from toolyard.providers import Publish
from toolyard.providers.functions import Functions
from toolyard.yard import Yard

__all__ = ["Client", "FakeClock", "FakeProvider", "FakeSink", "connect"]


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock."""
        self._now += seconds


class FakeSink:
    """Remembers every record."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def __call__(self, record: Record) -> None:
        """Remember a record."""
        self.records.append(record)

    @property
    def codes(self) -> list[str | None]:
        """Return how the calls ended, in order."""
        return [record.code for record in self.records]


class FakeProvider:
    """Publishes the tools, resources and prompts it is told to, whenever it is told to."""

    def __init__(
        self, name: str, tools: Iterable[object] = (), *, resources: Iterable[object] = (), prompts: Iterable[object] = ()
    ) -> None:
        self.name = name
        self.is_open = False
        self.subscribed: AbstractSet[str] = frozenset()
        """The resources that somebody is subscribed to now."""
        self._functions = Functions(name, tools, resources=resources, prompts=prompts)
        self._publish: Publish | None = None

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish what there is so far."""
        self._publish = publish
        self.is_open = True
        self._show(publish)
        stop = publish.watch_subscriptions(self._follow)
        try:
            yield
        finally:
            stop()
            self.is_open = False
            self._publish = None

    def change(self, tools: Iterable[object] = (), *, resources: Iterable[object] = (), prompts: Iterable[object] = ()) -> None:
        """Publish these instead, functions or what they would become."""
        self._functions = Functions(self.name, tools, resources=resources, prompts=prompts)
        if self._publish is not None:
            self._show(self._publish)

    def update(self, uri: str) -> None:
        """Say that the content of a resource changed."""
        if self._publish is not None:
            self._publish.updated(uri)

    def _follow(self, uris: AbstractSet[str]) -> None:
        self.subscribed = uris

    def _show(self, publish: Publish) -> None:
        functions = self._functions
        publish(functions.tools(), resources=functions.resources(), prompts=functions.prompts())


class Client:
    """A caller in the same process, with everything it was told on the way."""

    def __init__(self, yard: Yard, *, caller: Caller = ANYONE, answers: Sequence[dict[str, Any]] = ()) -> None:
        self.yard = yard
        self.caller = caller
        self.notes: list[Progress] = []
        self.lines: list[tuple[str, str, dict[str, object]]] = []
        self.questions: list[str] = []
        self._answers = list(answers)
        self._door = Channel(
            name="test",
            progress=self.notes.append,
            log=lambda level, text, facts: self.lines.append((level, text, dict(facts))),
            ask=self._answer if answers else None,
        )

    async def call(self, name: str, /, **arguments: Any) -> Envelope:
        """Call a tool."""
        return await self.yard.call(name, arguments, caller=self.caller, channel=self._door)

    async def read(self, uri: str) -> Envelope:
        """Read a resource."""
        return await self.yard.read(uri, caller=self.caller, channel=self._door)

    async def prompt(self, name: str, /, **arguments: Any) -> Envelope:
        """Ask for a prompt."""
        return await self.yard.prompt(name, arguments, caller=self.caller, channel=self._door)

    def list(self) -> Sequence[ToolSpec]:
        """Return what the caller's profile lists."""
        return self.yard.list(self.caller.profile)

    async def _answer(self, asks: Mapping[str, ClientRequest], _: object) -> dict[str, Any]:
        self.questions.extend(ask.params.get("message", ask.method) for ask in asks.values())
        return {key: {"action": "accept", "content": self._answers.pop(0)} for key in asks}


@asynccontextmanager
async def connect(yard: Yard, *, caller: Caller = ANYONE, answers: Sequence[dict[str, Any]] = ()) -> AsyncGenerator[Client]:
    """Open a yard and connect to it; the answers are given to the questions its tools ask."""
    async with yard:
        yield Client(yard, caller=caller, answers=answers)
