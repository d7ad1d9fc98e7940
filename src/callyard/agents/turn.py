"""One turn of an agent: what its runtime gets and does, its task, its events and its time limit.

A runtime knows its SDK, and gets everything else with the `TurnRequest`: the tools, the store and the ways to ask a
person. It knows no HTTP.

The events are kept while the turn runs and for some minutes after it, so that a client that lost its connection reads
on.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec

from callyard.agents.events import Decision, Done, Error, StreamEvent, encode_stream_event
from callyard.agents.history import TurnRecord
from callyard.agents.sessions import AgentSession
from callyard.inject.plain import Conversation
from callyard.state.store import Store

__all__ = ["AgentRuntime", "Turn", "TurnRequest"]

_MAX_BYTES: Final = 8 * 1024 * 1024
_EVENT_BYTES: Final = 200
"""What an event takes besides its text."""
_KEPT_SHARE: Final = 0.9
"""The share that is kept when there are too many, because dropping moves the rest."""
_GAP: Final = Error(
    code="too_large", message="Events are missing here: more came than are kept for a client that does not read."
)


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One message to an agent, and what its turn may use."""

    content: str
    conversation: Conversation
    """The yard's tools, for the session's caller and scope."""
    permit: Callable[..., Awaitable[Decision]]
    """Asks whether a tool call may run, as the permission mode says: `Person.permit`."""
    ask: Callable[..., Awaitable[Decision]]
    """Asks the person to fill in a form: `Person.ask`."""
    remember: Callable[[str], Awaitable[None]]
    """Stores the id by which the SDK finds the conversation again."""
    store: Store
    """Where a runtime keeps the conversation, if its SDK keeps none."""
    store_key: str
    resume: str = ""
    """The id of the SDK's conversation; empty for a new one."""
    permission_mode: str = "default"
    model: str | None = None
    cwd: str | None = None
    servers: Mapping[str, Any] = {}
    """MCP servers of the host, besides the yard."""
    hold_s: float = 0.0
    """How long a tool call may wait for a person."""


class AgentRuntime(Protocol):
    """Runs turns with one agent SDK."""

    @property
    def name(self) -> str:
        """Return the name of the runtime."""
        ...

    @property
    def has_folder(self) -> bool:
        """Return whether its agents work in a folder."""
        ...

    def check_servers(self, names: Iterable[str]) -> None:
        """Check that the host can add MCP servers of these names.

        Raises:
            ValueError: It cannot.
        """

    def check(self) -> None:
        """Check that the SDK is there.

        Raises:
            ImportError: It is not installed.
        """

    async def forget(self, sdk_session_id: str) -> None:
        """Delete what the SDK keeps of a conversation."""

    def run(self, request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        """Run one turn, and yield what happens; closing the generator ends the turn and its processes.

        Raises:
            ToolError: The turn failed, with the code and the sentence for the person.
        """
        ...


class Turn:
    """One turn; any number of clients can read its events, each from any place."""

    def __init__(self, *, seconds: float) -> None:
        self.session: AgentSession | None = None
        self.stopped_by: str = ""
        """Why it was cancelled: 'client', 'shutdown', 'deleted' or 'lost'; empty if it was not."""
        self.record: TurnRecord | None = None
        """What the history keeps of it."""
        self._events: list[StreamEvent] = []
        self._bytes = 0
        self._ended = asyncio.Event()
        self._dropped = 0
        """How many of the first events are not kept any longer."""
        self._readers: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self._waits = 0
        self._left = seconds
        self._started = time.monotonic()

    @property
    def number(self) -> int:
        """Return which turn of its session it is."""
        return 0 if self.session is None else self.session.turns

    @property
    def is_over(self) -> bool:
        """Return whether the last event is there."""
        return bool(self._events) and isinstance(self._events[-1], Done)

    @property
    def elapsed_ms(self) -> int:
        """Return how long it has run."""
        return round((time.monotonic() - self._started) * 1000)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the turn in a task of its own, which no client's connection ends.

        `work` must call `check_cancelled` first, because a turn can be cancelled before its task begins.
        """

        async def run() -> None:
            self._task = task  # from here on it can be cancelled: a task that never begins releases nothing
            await work

        task = asyncio.get_running_loop().create_task(run())
        task.add_done_callback(lambda _: self.end())

    def cancel(self, why: str) -> None:
        """Cancel the turn, unless it is over; its last events say so."""
        if not self.is_over and not self.stopped_by:
            self.stopped_by = why
            if self._task is not None:
                self._task.cancel()

    def check_cancelled(self) -> None:
        """Check that the turn was not cancelled before it began.

        Raises:
            CancelledError: It was.
        """
        if self.stopped_by:
            raise asyncio.CancelledError

    async def wait(self) -> None:
        """Wait until the turn has ended and released everything."""
        await self._ended.wait()

    def end(self) -> None:
        """End the turn, if it did not start or has no last event."""
        self.emit(Done(status="cancelled"))
        self._ended.set()

    def emit(self, event: StreamEvent) -> None:
        """Add an event."""
        if self.is_over:
            return
        self._events.append(event)
        if self.record is not None:
            self.record.add(event)
        self._bytes += _size_of(event)
        if self._bytes > _MAX_BYTES:
            self._drop_first()
        for reader in self._readers:
            reader.set()

    def _drop_first(self) -> None:
        """Drop the first events, and never the last one."""
        count = 0
        while self._bytes > _MAX_BYTES * _KEPT_SHARE and count < len(self._events) - 1:
            self._bytes -= _size_of(self._events[count])
            count += 1
        del self._events[:count]
        self._dropped += count

    @contextmanager
    def reader(self) -> Generator[asyncio.Event]:
        """Provide an event that is set when there is something new."""
        wake = asyncio.Event()
        self._readers.add(wake)
        try:
            yield wake
        finally:
            self._readers.discard(wake)

    def after(self, number: int) -> list[tuple[int, StreamEvent]]:
        """Return the events after a number, with their own numbers, which begin at 1."""
        start = max(number - self._dropped, 0)
        events = list(enumerate(self._events[start:], self._dropped + start + 1))
        return [(self._dropped, _GAP), *events] if number < self._dropped else events

    async def events(self) -> AsyncGenerator[StreamEvent]:
        """Yield every event until the last."""
        number = 0
        with self.reader() as wake:
            while True:
                wake.clear()
                is_last = self.is_over  # before the events, because more may come while the reader is busy with these
                for place, event in self.after(number):
                    number = place
                    yield event
                if is_last:
                    return
                await wake.wait()

    @contextmanager
    def limited(self, timeout: asyncio.Timeout) -> Generator[None]:
        """Let a timeout be stopped while a person is asked."""
        self._timeout = timeout if self._seconds else None
        try:
            yield
        finally:
            self._timeout = None

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Stop the clock of the turn while a person is asked."""
        now = asyncio.get_running_loop().time
        if self._waits == 0 and self._timeout is not None and not self._timeout.expired():
            self._left = max((self._timeout.when() or now()) - now(), 0.001)
            self._timeout.reschedule(None)
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            if self._waits == 0 and self._timeout is not None and not self._timeout.expired():
                self._timeout.reschedule(now() + self._left)


def _size_of(event: StreamEvent) -> int:
    return len(encode_stream_event(event)) + _EVENT_BYTES
