"""A call: one admitted run of one tool, in flight, and the shapes that everything on its path has.

It does not know how calls are admitted or answered; what it needs of that is the `Funnel` it is handed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from toolyard._internal.logfmt import facts_of, is_word, quoted
from toolyard.dispatch.progress import NOOP, Noop, Progress, SendProgress, call_safely, on_loop
from toolyard.dispatch.sessions import Session, Sessions
from toolyard.model.elicitation import ClientRequest, content_of, telling_whether_it_ran, unanswerable
from toolyard.model.envelope import Envelope
from toolyard.model.errors import Blame, CodeName, ToolError
from toolyard.model.profile import Profile
from toolyard.model.spec import NOTHING, Kind, ToolSpec

__all__ = [
    "ANYONE",
    "DEFAULT_OPTIONS",
    "LIBRARY",
    "REFS_RESOLVED",
    "Arguments",
    "Call",
    "CallRequest",
    "Caller",
    "Channel",
    "EnvelopeCoroutine",
    "Funnel",
    "Handler",
    "InvokeOptions",
    "Limiter",
    "Middleware",
    "Policy",
    "Release",
    "ambient",
    "current_call",
]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling; the scope is one conversation of that identity, and without a profile the yard's own holds."""

    identity: str = "local"
    scope: str = ""
    claims: dict[str, Any] = {}
    profile: Profile | None = None
    client: str = ""

    def __post_init__(self) -> None:
        if self.profile is not None and not isinstance(cast("object", self.profile), Profile):
            raise TypeError("The profile of a caller must be a 'Profile'.")

    def __repr__(self) -> str:
        """Return who it is, without what is claimed of him."""
        return f"<Caller '{self.identity}' '{self.scope}'>"

    @property
    def owner(self) -> str:
        """Return what the caller's sessions and results are kept under."""
        return f"{len(self.identity)}:{self.identity}:{self.scope}"


ANYONE: Final = Caller()


class Channel(msgspec.Struct, frozen=True, kw_only=True):  # a struct, because one is made for nearly every call
    """The way a call came in, and what it can do while the call runs."""

    name: str = "library"
    line: str = ""
    """Which client it is, where callers of one identity and one name may be several."""
    front: int = 0
    """The number of the server context that the call belongs to; 0 is none."""
    progress: SendProgress | None = None
    log: Callable[[str, str, Mapping[str, object]], None] | None = None
    ask: Callable[[Mapping[str, ClientRequest], bool], Awaitable[Mapping[str, Any]]] | None = None
    """Puts asks, each under its key, to the client; whether it is a declared question and nothing happened yet; returns MCP's results."""
    capabilities: frozenset[str] = frozenset()
    """What the client says it can be asked."""
    stateless: bool = False
    """Whether nothing is kept of a client that begins with a handshake, so that it cannot be asked, whatever it said then."""
    hang_up: Callable[[], None] | None = None
    """Lets go of the connection before the answer, which the client then comes back for."""
    headers: Mapping[str, str] = {}
    """The request headers that handlers may see."""
    forwarded: Mapping[str, str] = {}
    """Those that some upstream wants to have passed on, which may be credentials."""
    meta: Mapping[str, Any] = {}
    """What the client said beside the arguments, without what the protocol reserves for itself."""
    trace: Mapping[str, str] = {}
    """The trace that the call is part of: `traceparent`, `tracestate` and `baggage`, as they came."""
    trace_id: str | None = None
    result_characters: int | None = None
    """How long a whole answer may be that this way in takes, if not one with as much data as the yard's limit says."""

    def __repr__(self) -> str:
        """Return which way in it is, without what came along."""
        return f"<Door '{self.name}'>"

    def inside(self, progress: SendProgress | None = None) -> "Channel":
        """Return the way in of calls from inside of one that came this way; their notes go nowhere else than to `progress`."""
        return self if self.progress is progress else msgspec.structs.replace(self, progress=progress)


LIBRARY: Final = Channel()


_EMPTY: Final[Any] = MappingProxyType({})
"""Shared, because a default of `{}` would be made anew for each call."""


class CallRequest(msgspec.Struct, frozen=True, gc=False):  # nothing in a request refers to it, so no cycle needs the collector
    """A call as data, before it runs. It can be stored, sent elsewhere and run again."""

    name: str
    """The tool, the prompt, or the URI of the resource."""
    arguments: Any = None
    """JSON: as data, or as text in a `msgspec.Raw`."""
    caller: Caller = ANYONE
    kind: Kind = "tool"
    channel: str = "library"
    """The name of the channel that the call came in by."""
    session_id: str | None = None
    parent_id: str | None = None
    trace: dict[str, str] | None = None
    """`traceparent`, `tracestate` and `baggage`."""


class InvokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a call from inside a call is run, where that differs from any other."""

    seconds: float = 0.0
    """It may take no longer, whatever its tool says; 0 is as long as that."""
    refs_resolved: bool = False
    """Whether references to stored results are filled in already, so that what looks like one is data, and its size is not the caller's."""
    checked: dict[str, Any] | None = None
    """The arguments as they came out of a check, so that the same check need not look at them again."""
    checked_by: object = None
    """The tool whose check that was: by the time of the call the name may be another's."""
    coerced: tuple[str, ...] = ()
    """What was put right before they passed it."""


DEFAULT_OPTIONS: Final = InvokeOptions()
REFS_RESOLVED: Final = InvokeOptions(refs_resolved=True)

T = TypeVar("T")
EnvelopeCoroutine = Coroutine[Any, Any, Envelope]
Arguments = dict[str, Any]
Handler = Callable[["Call"], Awaitable[object]]
Middleware = Callable[[Handler], Handler]
Policy = Callable[["Call"], Awaitable[Envelope | None]]
"""A policy: return nothing to allow, an envelope to answer instead of running, raise to deny."""
Release = Callable[[], None]
Limiter = Callable[["Call"], Awaitable[Release]]
"""Waits until the call may run, and returns what to call when it has ended."""
_log = logging.getLogger("toolyard.tool")
ambient: Final[ContextVar["Call"]] = ContextVar("toolyard.call")
"""Set by the dispatcher alone; everything else reads it with `current_call`."""


class Funnel(Protocol):
    """What a call needs of the dispatcher that runs it."""

    @property
    def sessions(self) -> Sessions:
        """Return the live sessions."""
        ...

    @property
    def state(self) -> Any:
        """Return what the yard's lifespan yielded."""
        ...

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that calls run on."""
        ...

    def extra_thread(self) -> AbstractContextManager[None]:
        """Let another thread be made while this one waits."""
        ...

    def dispatch(self, request: CallRequest, *, channel: Channel, parent: "Call", options: InvokeOptions) -> EnvelopeCoroutine:
        """Answer one call from inside another."""
        ...

    def wait_outside(self, call: "Call", answer: Awaitable[T]) -> Awaitable[T]:
        """Wait for somebody outside, while no deadline runs and others may have the call's turns."""
        ...

    def send_progress(self, call: "Call", progress: Progress, *, own: bool) -> None:
        """Send progress of a call to its client, throttled."""
        ...

    def in_thread(self, call: "Call", function: Callable[[], object]) -> Awaitable[object]:
        """Run something that blocks in a worker thread."""
        ...


class Call(msgspec.Struct, eq=False):
    """One admitted run of one request, as its handler sees it. Its run state is in `run`."""

    id: str
    request: CallRequest
    profile: Profile
    channel: Channel
    funnel: Funnel
    parent: "Call | None" = None
    options: InvokeOptions = DEFAULT_OPTIONS
    spec: ToolSpec = NOTHING
    arguments: Arguments = _EMPTY
    """The arguments after check and repair."""
    confirmation: Mapping[str, Any] = _EMPTY
    """What a person answered to the confirmation that the tool declares."""
    session: Session | None = None
    coerced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    may_have_run: bool = False
    """Whether a side effect is possible. Set before the handler runs; a handler that knows better may reset it."""
    is_proxy: bool = False
    """Whether the handler only makes one other call, so that both can start again together."""
    memo: Any = None
    """State of a handler that must not do its work twice when a middleware calls it again."""
    at_fault: Blame = "yard"
    """Who is to blame for an unexpected exception at this point."""
    stopped: CodeName | None = None
    """The code that the call was stopped with, if it was."""
    finished: bool = False
    paused_s: float = 0.0
    """How long the deadline stood still because a person or client was asked."""

    def __repr__(self) -> str:
        """Return the id and the tool, never the arguments."""
        return f"<Call {self.id} of '{self.tool}'>"

    @property
    def name(self) -> str:
        """Return the name that was called: of a tool or prompt, or a URI."""
        return self.request.name

    @property
    def caller(self) -> Caller:
        """Return who is calling."""
        return self.request.caller

    @property
    def seconds(self) -> float:
        """Return the timeout set by the caller of a nested call; 0 uses the tool's own."""
        return self.options.seconds

    @property
    def depth(self) -> int:
        """Return how many calls this one is nested in."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def tool(self) -> str:
        """Return the tool's name, or what may be repeated of a name that is none."""
        if self.spec is not NOTHING:
            return self.spec.name
        return str(self.name) if is_word(str(self.name)) else "?"

    @property
    def cancelled(self) -> bool:
        """Return whether nobody waits for the result any more; for handlers that cannot be interrupted."""
        return self.stopped is not None

    @property
    def state(self) -> Any:
        """Return what the yard's lifespan yielded."""
        return self.funnel.state

    def invoke(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: SendProgress | None = None,
        options: InvokeOptions = DEFAULT_OPTIONS,
    ) -> EnvelopeCoroutine:
        """Call another tool from inside this one, through the whole funnel; its notes go nowhere else than to `progress`."""
        request = CallRequest(name, arguments, self.request.caller)
        return self.funnel.dispatch(request, channel=self.channel.inside(progress), parent=self, options=options)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something async, such as `invoke` or `ask`, from a handler that runs in a thread.

        Raises:
            RuntimeError: The handler is async: it can await.
        """
        if on_loop(self.funnel.loop):
            work.close()
            raise RuntimeError("An async handler must await instead of calling 'wait'.")
        with self.funnel.extra_thread():
            return asyncio.run_coroutine_threadsafe(work, self.funnel.loop).result()

    def start_session(self, *, kind: str = "", session_id: str | None = None) -> Session:
        """Start a session of this caller, which this call then belongs to."""
        if self.finished:
            raise ToolError("state_error", "The call is over, so it can start no session.")
        sessions = self.funnel.sessions
        session = sessions.start(self.caller.owner, kind=kind, session_id=session_id)
        if self.session is not None:
            sessions.leave(self.session, None)
        self.session = session
        sessions.enter(session)
        return session

    async def end_session(self, session_id: str | None = None) -> bool:
        """End one of this caller's sessions, by default the one this call belongs to."""
        mine = self.session.id if self.session is not None and session_id is None else session_id
        return mine in self.funnel.sessions.ids(self.caller.owner) and await self.funnel.sessions.end(str(mine))

    def progress(self, done: float, total: float | None = None, text: str = "", *, own: bool = False) -> Noop:
        """Say how far the call has come; may be awaited, and works from a thread, too. `own` is for notes the yard makes itself."""
        if self.channel.progress is not None:
            self._on_loop(lambda: self.funnel.send_progress(self, Progress(done, total, text), own=own))
        return NOOP

    def log(self, level: str, text: str, **facts: object) -> Noop:
        """Say something to whoever watches the call; may be awaited, and works from a thread, too."""
        send = self.channel.log
        if send is None:
            number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
            _log.log(number, "said tool=%s id=%s text=%s%s", self.tool, self.id, quoted(text), facts_of(facts))
        else:
            self._on_loop(lambda: send(level, text, facts))
        return NOOP

    async def ask(self, schema: Mapping[str, Any], text: str, *, key: str = "answer") -> dict[str, Any]:
        """Ask the person behind the caller for what the schema describes; meanwhile the deadline stands still.

        Raises:
            ToolError: `not_supported` where nobody can be asked, `approval_denied` or `cancelled` if there is no answer.
        """
        ask = ClientRequest.person(text, schema)
        with telling_whether_it_ran(running=self.may_have_run):
            return content_of(ask, (await self.ask_all({key: ask}))[key])

    async def ask_all(self, asks: Mapping[str, ClientRequest], *, declared: bool = False) -> Mapping[str, Any]:
        """Put several asks to the client at once and return its results as they came, under the same keys.

        Raises:
            ToolError: `not_supported` where the client cannot be asked.
        """
        if self.channel.ask is None:
            raise unanswerable(asks, self.channel.capabilities, stateless=self.channel.stateless)
        with telling_whether_it_ran(running=self.may_have_run):
            return await self.funnel.wait_outside(self, self.channel.ask(asks, declared))

    def can_ask(self, capability: str = "elicitation") -> bool:
        """Return whether the client can be asked this: `elicitation` for a person, `sampling` for its model, `roots`."""
        return self.channel.ask is not None and capability in self.channel.capabilities

    def hang_up(self) -> None:
        """Let go of the client's connection before a long wait, where it can come back for the answer."""
        if self.channel.hang_up is not None:
            self.channel.hang_up()

    def _on_loop(self, send: Callable[[], None]) -> None:
        if on_loop(self.funnel.loop):
            call_safely(send)
        else:
            self.funnel.loop.call_soon_threadsafe(call_safely, send)


def current_call() -> Call:
    """Return the call that this code runs for.

    Raises:
        LookupError: It runs for none.
    """
    return ambient.get()
