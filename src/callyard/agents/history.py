"""The history of agent sessions: what was said and done in each turn, written to the store while it happens.

So it is there after a restart, also after a kill, which loses the last moment at most. It knows no SDK and no HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Final, Literal

import msgspec

from callyard._internal.tasks import background_task
from callyard.agents.events import (
    Done,
    Error,
    Status,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
    encode_stream_event,
)
from callyard.agents.sessions import AgentSession
from callyard.state.store import Store, StoreUnavailableError, owner_key

__all__ = ["AgentMessage", "AgentMessages", "Message", "TurnRecord", "UserMessage", "keeping"]

_WRITE_S: Final = 0.5
"""How often a turn is written while it runs: a kill loses no more."""
_ALIVE_S: Final = 5.0
"""How often a turn that does nothing is written, which shows others that its process runs it."""
_DEAD_S: Final = 15.0
"""A turn that was not written for so long has lost its process, as its session has lost the lease by then."""
_MAX_BYTES: Final = 1024 * 1024
_KEPT_SHARE: Final = 0.9
_MAX_TURNS: Final = 500
"""How many turns of a session are kept."""
_PAGE: Final = 100
_PAGE_BYTES: Final = 4 * 1024 * 1024
_PIECE: Final = 20_000
"""How many characters of a text are joined in one event: to add to a long text copies it."""
_GAP: Final = Error(code="too_large", message="Events are missing here: more came than are kept of one turn.")
_log = logging.getLogger(__name__)


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """A message of a person."""

    turn: int
    created_at: float
    """Seconds since the epoch."""
    text: str


class AgentMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="agent"):
    """What the agent wrote and did in the same turn."""

    turn: int
    created_at: float
    status: Literal["running", "interrupted", "completed", "failed", "cancelled"]
    """`interrupted` is a turn whose server was killed."""
    text: str
    """All that the agent itself wrote."""
    events: list[StreamEvent]
    """As in the stream, with pieces of texts joined, all arguments of a call in one event, and without progress."""


Message = UserMessage | AgentMessage


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One turn as it is in the store."""

    number: int
    content: str
    created_at: float
    saved_at: float
    status: Literal["", "completed", "failed", "cancelled"] = ""
    """How it ended; empty until then."""
    events: list[StreamEvent]

    def messages(self, *, is_running: bool) -> list[Message]:
        """Return the message of the person, and that of the agent."""
        unfinished: Any = "running" if is_running else "interrupted"
        texts = [event.text for event in self.events if isinstance(event, TextDelta) and not event.parent_id]
        common: dict[str, Any] = {"turn": self.number, "created_at": self.created_at}
        said = AgentMessage(**common, status=self.status or unfinished, text="".join(texts), events=self.events)
        return [UserMessage(**common, text=self.content), said]


class TurnRecord:
    """What one turn leaves in the history, from its message on."""

    def __init__(self, messages: "AgentMessages", session: AgentSession, content: str) -> None:
        self._messages = messages
        self._session = session
        self._content = content
        self.number = session.turns
        self._created_at = round(time.time(), 3)
        self._status: Status | Literal[""] = ""
        self._events: list[StreamEvent] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._news = asyncio.Event()

    def add(self, event: StreamEvent) -> None:
        """Take an event of the stream; what says nothing that others do not say is left out."""
        if isinstance(event, Done):
            self._status = event.status
        elif isinstance(event, ToolCallDelta | ToolProgress):
            return
        size = len(encode_stream_event(event))
        last = self._events[-1] if self._events else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta) and _continues(event, last):
            self._events[-1] = msgspec.structs.replace(last, text=last.text + event.text)
            self._sizes[-1] += size
        else:
            self._events.append(event)
            self._sizes.append(size)
        self._bytes += size
        if self._bytes > _MAX_BYTES:
            self._drop_first()
        self._news.set()

    def view(self) -> list[Message]:
        """Return the messages of the turn so far."""
        return self._stored().messages(is_running=True)

    async def keep(self) -> None:
        """Write what is new, until cancelled; a store that is away must not end the turn."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_ALIVE_S):
                    await self._news.wait()
            await self.save()
            await asyncio.sleep(_WRITE_S)

    async def save(self) -> None:
        """Write the turn; a store that is away loses a part of the history, and nothing else."""
        self._news.clear()
        try:
            await self._messages.put(self._session, self.number, msgspec.json.encode(self._stored(), enc_hook=str))
        except StoreUnavailableError as error:
            _log.warning("turn_not_kept session=%s turn=%d reason=%s", self._session.id, self.number, error.reason)

    def _stored(self) -> _Stored:
        return _Stored(
            number=self.number,
            content=self._content,
            created_at=self._created_at,
            saved_at=time.time(),
            status=self._status,
            events=list(self._events),
        )

    def _drop_first(self) -> None:
        """Drop the first events, and never the last one."""
        while self._bytes > _MAX_BYTES * _KEPT_SHARE and len(self._events) > 1:
            self._bytes -= self._sizes.pop(0)
            del self._events[0]
        self._events.insert(0, _GAP)
        self._sizes.insert(0, 0)


def keeping(record: TurnRecord | None) -> AbstractAsyncContextManager[None]:
    """Write a record again and again while the context is open."""
    return nullcontext() if record is None else background_task(record.keep())


class AgentMessages:
    """The messages of all sessions in a store."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def begin(self, session: AgentSession, content: str) -> TurnRecord:
        """Keep the message of a person, and return the record of its turn."""
        record = TurnRecord(self, session, content)
        await record.save()
        await self._delete(session, record.number - _MAX_TURNS)
        return record

    async def put(self, session: AgentSession, number: int, data: bytes) -> None:
        """Store a turn."""
        await self._store.put(_key(session, number), data)

    async def of(
        self, session: AgentSession, *, before: int | None = None, running: TurnRecord | None = None
    ) -> list[Message]:
        """Return the last messages of a session in order, or those of the turns before a number.

        `running` is the record of the last turn in this process, of which the store may not have all yet.
        """
        end = _key(session, session.turns + 1 if before is None else before)
        found: list[list[Message]] = []
        room = _PAGE_BYTES
        for key in reversed([key for key in await self._store.keys(_folder(session)) if key < end][-_PAGE:]):
            data = await self._store.get(key)
            if data is None:
                continue
            room -= len(data)
            if room < 0 and found:
                break
            stored = msgspec.json.decode(data, type=_Stored)
            if running is not None and running.number == stored.number:
                found.append(running.view())
            else:
                found.append(stored.messages(is_running=self._clock() - stored.saved_at < _DEAD_S))
        return [message for turn in reversed(found) for message in turn]

    async def forget(self, session: AgentSession) -> None:
        """Delete the messages of a session."""
        while keys := await self._store.keys(_folder(session)):
            for key in keys:
                await self._store.delete(key)

    async def _delete(self, session: AgentSession, number: int) -> None:
        if number > 0:
            await self._store.delete(_key(session, number))


def _continues(event: TextDelta, last: TextDelta) -> bool:
    """Return whether a text is joined with the one before."""
    return last.parent_id == event.parent_id and len(last.text) < _PIECE


def _folder(session: AgentSession) -> str:
    return f"agent_history/{owner_key(session.identity)}/{session.id}/"


def _key(session: AgentSession, number: int) -> str:
    return f"{_folder(session)}{number:08}"
