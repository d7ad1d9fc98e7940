"""The system pack: what an agent may ask about the yard it is in.

It tells of the caller's own sessions and of nobody else's, and never repeats what a call was given or answered.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from typing_extensions import TypedDict

from toolyard.dispatch.call import Call
from toolyard.dispatch.outcome import Record, Sink
from toolyard.dispatch.sessions import Session, Sessions
from toolyard.providers import Publish
from toolyard.providers.functions import Functions, tool

__all__ = ["Subject", "System"]

_REMEMBERED: Final = 1000


class Subject(Protocol):
    """What the pack needs to know of a yard."""

    @property
    def name(self) -> str:
        """Return the yard's name."""
        ...

    @property
    def version(self) -> str:
        """Return the version of what the yard serves."""
        ...

    @property
    def sessions(self) -> Sessions:
        """Return the live sessions."""
        ...

    @property
    def abandoned_threads(self) -> int:
        """Return how many threads run on past their deadlines."""
        ...

    @property
    def calls_in_flight(self) -> int:
        """Return how many calls are running."""
        ...

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return every setting with its value and where it came from."""
        ...

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Send records to the sink, too; return what stops that."""
        ...


class Pong(TypedDict):
    """What `ping` answers."""

    status: str
    timestamp: str
    server: str


class SessionFacts(TypedDict):
    """One session, as its owner may see it."""

    session_id: str
    kind: str
    age_s: float
    idle_s: float
    busy: int
    last_error: str | None


class System:
    """Publishes the tools about the yard itself."""

    name = "system"

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._started = datetime.now(UTC)
        self._began = time.monotonic()
        self._last_errors: dict[tuple[str, str], dict[str, str]] = {}

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the tools, and note the last failure while open."""
        stop = self._subject.add_sink(self._note)
        try:
            publish(Functions(self.name, [self]).tools())
            yield
        finally:
            stop()

    @tool(operation="query", tags=("system",))
    async def ping(self) -> Pong:
        """Answer, to show that the yard is there."""
        return {"status": "pong", "timestamp": _written(datetime.now(UTC)), "server": self._subject.name}

    @tool(operation="query", tags=("system",))
    async def get_server_info(self, *, include_uptime: bool = False) -> dict[str, Any]:
        """Tell the name and version of the yard.

        Args:
            include_uptime: Whether to tell for how long it has been running.
        """
        facts: dict[str, Any] = {"name": self._subject.name, "version": self._subject.version}
        return {**facts, "uptime_s": self._uptime()} if include_uptime else facts

    @tool(operation="query", tags=("system",))
    async def get_session_count(self, call: Call) -> int:
        """Count your live sessions."""
        return len(self._subject.sessions.ids(call.caller.owner))

    @tool(operation="query", tags=("system",))
    async def list_sessions(self, call: Call) -> list[SessionFacts]:
        """List your live sessions, oldest first."""
        return [self._facts(session) for session in self._subject.sessions.of(call.caller.owner)]

    @tool(operation="query", tags=("system",), session="required")
    async def describe_session(self, session: Session) -> SessionFacts:
        """Describe one of your live sessions."""
        return self._facts(session)

    @tool(operation="query", tags=("system",))
    async def get_settings(self) -> dict[str, dict[str, Any]]:
        """Tell the settings in effect and where each came from; secrets are never shown.

        'code' is what the yard was given; what it was given that is no different from the default counts as 'default'.
        """
        return self._subject.settings()

    @tool(operation="query", tags=("system",))
    async def status(self, call: Call) -> dict[str, Any]:
        """Tell since when the yard runs, how busy it is, and what of yours failed last, in each session, too."""
        return {
            "started": _written(self._started),
            "uptime_s": self._uptime(),
            "calls_in_flight": self._subject.calls_in_flight,
            "abandoned_threads": self._subject.abandoned_threads,
            "last_error": self._last_errors.get((call.caller.identity, call.caller.scope)),
            "sessions": {session.id: session.last_code for session in self._subject.sessions.of(call.caller.owner)},
        }

    def _note(self, record: Record) -> None:
        if record.code is None:
            return
        who = (record.identity, record.scope)
        self._last_errors.pop(who, None)
        self._last_errors[who] = {"code": record.code, "at": _written(datetime.now(UTC))}
        if len(self._last_errors) > _REMEMBERED:
            del self._last_errors[next(iter(self._last_errors))]

    def _uptime(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def _facts(self, session: Session) -> SessionFacts:
        now = self._subject.sessions.now()
        return {
            "session_id": session.id,
            "kind": session.kind,
            "age_s": round(now - session.started, 3),
            "idle_s": round(now - session.last_used, 3),
            "busy": session.busy,
            "last_error": session.last_code,
        }


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
