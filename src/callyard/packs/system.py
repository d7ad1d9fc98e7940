"""The system pack: tools that describe the yard to an agent.

They show the caller's own sessions only, and never the arguments or results of calls.
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final, NotRequired, Protocol
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from callyard.dispatch.call import Call, Caller, current_call
from callyard.dispatch.outcome import Record, Sink
from callyard.dispatch.sessions import Session
from callyard.model.errors import ToolError
from callyard.model.names import closest_name
from callyard.packs.documents import DOCS, MANIFEST, manifest, page_names, read_page
from callyard.packs.pack_set import PackFacts, PackSet, YardParts
from callyard.providers import Publish
from callyard.providers.functions import Functions, resource, tool

__all__ = ["GateView", "System", "YardView"]

_MAX_LAST_ERRORS: Final = 1000


def _complete_page(text: str, _: dict[str, str]) -> list[str]:
    return [name for name in page_names() if name.startswith(text)]


class GateView(Protocol):
    """The part of the gate that the pack uses."""

    def is_operator(self, caller: Caller) -> bool:
        """Return whether a caller may decide about the calls of others."""
        ...


class YardView(YardParts, Protocol):
    """The part of a yard that the pack uses."""

    @property
    def name(self) -> str:
        """Return the yard's name."""
        ...

    @property
    def version(self) -> str:
        """Return the version of what the yard serves."""
        ...

    @property
    def address(self) -> str | None:
        """Return where clients reach the yard, while it is served."""
        ...

    @property
    def abandoned_threads(self) -> int:
        """Return how many threads still run after their deadlines."""
        ...

    @property
    def calls_in_flight(self) -> int:
        """Return how many calls are running."""
        ...

    packs: PackSet
    examine: Callable[[], Awaitable[Any]] | None
    """Checks the served yard."""

    @property
    def gate(self) -> GateView | None:
        """Return what knows the operators."""
        ...

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return every setting with its value and where it came from."""
        ...

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Send records to one more sink; return a function that stops that."""
        ...


class Pong(TypedDict):
    """The answer of `ping`."""

    status: str
    timestamp: str
    server: str


class ServerInfo(TypedDict):
    """The answer of `get_server_info`."""

    name: str
    version: str
    transport: str
    """The name of the channel that the call came in by."""
    address: str | None
    port: int | None
    uptime_s: NotRequired[float]


class SessionFacts(TypedDict):
    """One session, as its owner sees it."""

    session_id: str
    kind: str
    age_s: float
    idle_s: float
    busy: int
    last_error: str | None


class System:
    """Publishes the tools about the yard itself."""

    name = "system"

    def __init__(self, yard: YardView) -> None:
        self._yard = yard
        self._started = datetime.now(UTC)
        self._started_at = time.monotonic()
        self._last_errors: dict[tuple[str, str], dict[str, str]] = {}

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the tools, and record last errors while open."""
        stop = self._yard.add_sink(self._record_error)
        try:
            publish(Functions(self.name, [self]).tools(), resources=Functions(self.name, resources=[self]).resources())
            yield
        finally:
            stop()

    @tool(operation="query", tags=("system",))
    async def ping(self) -> Pong:
        """Check that the yard answers."""
        return {"status": "pong", "timestamp": _format(datetime.now(UTC)), "server": self._yard.name}

    @tool(operation="query", tags=("system",))
    async def get_server_info(self, *, include_uptime: bool = False) -> ServerInfo:
        """Show the name and version of the yard, the transport of this call, and the yard's address and port.

        Args:
            include_uptime: Whether to show how long it has been running.
        """
        address = self._yard.address
        port = urlsplit(address).port if address is not None and "://" in address else None
        info = ServerInfo(
            name=self._yard.name,
            version=self._yard.version,
            transport=current_call().channel.name,
            address=address,
            port=port,
        )
        return {**info, "uptime_s": self._uptime()} if include_uptime else info

    @tool(operation="query", tags=("system",))
    async def get_session_count(self, call: Call) -> int:
        """Count your live sessions in this process. Stateless clients without credentials see none."""
        return len(self._yard.sessions.ids(call.caller.owner))

    @tool(operation="query", tags=("system",))
    async def list_sessions(self, call: Call) -> list[SessionFacts]:
        """List your live sessions in this process, oldest first. Stateless clients without credentials see none."""
        return [self._facts(session) for session in self._yard.sessions.of(call.caller.owner)]

    @tool(operation="query", tags=("system",))
    async def list_packs(self, call: Call) -> list[PackFacts]:
        """List the packs that you have tools of: version, tools with their state, and what they need."""
        return self._yard.packs.describe(self._yard, call.profile)

    @tool(operation="query", tags=("system",), timeout=60)
    async def diagnose(self, call: Call) -> list[dict[str, Any]]:
        """Check the server as 'callyard doctor' does, and show each fault with how to mend it; for operators only."""
        gate, examine = self._yard.gate, self._yard.examine
        if gate is None or not gate.is_operator(call.caller):
            raise ToolError("permission_denied", "Only operators may diagnose the server.")
        if examine is None:
            raise ToolError("not_supported", "This yard is not served, so run 'callyard doctor' instead.")
        findings: list[dict[str, Any]] = await examine()
        return findings

    @tool(operation="query", tags=("system",), session="required")
    async def describe_session(self, session: Session) -> SessionFacts:
        """Describe one of your live sessions."""
        return self._facts(session)

    @tool(operation="query", tags=("system",))
    async def get_settings(self) -> dict[str, dict[str, Any]]:
        """Show the settings in effect and where each came from; secrets are never shown.

        'code' is a value that the program passed to the yard; one that equals the default counts as 'default'.
        """
        return self._yard.settings()

    @tool(operation="query", tags=("system",))
    async def status(self, call: Call) -> dict[str, Any]:
        """Show since when the yard runs, how busy it is, and your last error, overall and in each session."""
        return {
            "started": _format(self._started),
            "uptime_s": self._uptime(),
            "calls_in_flight": self._yard.calls_in_flight,
            "abandoned_threads": self._yard.abandoned_threads,
            "last_error": self._last_errors.get((call.caller.identity, call.caller.scope)),
            "sessions": {session.id: session.last_code for session in self._yard.sessions.of(call.caller.owner)},
        }

    @resource(
        DOCS,
        name="callyard_docs",
        mime_type="text/markdown",
        tags=("system",),
        complete={"page": _complete_page},
    )
    def read_docs(self, page: str) -> str:
        """Read a guide to Callyard; the page 'index' lists them."""
        text = read_page(page)
        if text is None:
            message = f"There is no page '{page}'. The page 'index' lists them."
            similar = closest_name(page, page_names())
            raise ToolError("not_found", message, reason="unknown_page", similar=[similar] if similar else [])
        return text

    @resource(MANIFEST, name="callyard_manifest", mime_type="application/json", tags=("system",))
    def read_manifest(self, call: Call) -> dict[str, Any]:
        """Read what you have here: how many tools of each source, and one line for each tool, resource and prompt."""
        return manifest(self._yard.name, self._yard.version, self._yard.registry, call.profile)

    def _record_error(self, record: Record) -> None:
        if record.code is None:
            return
        caller = (record.identity, record.scope)
        self._last_errors.pop(caller, None)  # so that it becomes the newest, and the oldest goes first
        self._last_errors[caller] = {"code": record.code, "at": _format(datetime.now(UTC))}
        if len(self._last_errors) > _MAX_LAST_ERRORS:
            del self._last_errors[next(iter(self._last_errors))]

    def _uptime(self) -> float:
        return round(time.monotonic() - self._started_at, 3)

    def _facts(self, session: Session) -> SessionFacts:
        now = self._yard.sessions.now()
        return {
            "session_id": session.id,
            "kind": session.kind,
            "age_s": round(now - session.started, 3),
            "idle_s": round(now - session.last_used, 3),
            "busy": session.busy,
            "last_error": session.last_code,
        }


def _format(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")
