"""A call: one admitted run of one tool, in flight, and the shapes that everything on its path has.

It does not know how calls are admitted or answered; what it needs of that is the `Funnel` it is handed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar, cast

import msgspec

from toolyard._internal.logfmt import is_identifier, log_fields, log_value
from toolyard.dispatch.progress import NOOP, Noop, Progress, ProgressThrottle, SendProgress, call_safely, on_loop
from toolyard.dispatch.sessions import Session, Sessions
from toolyard.model.elicitation import ClientRequest, content_of, telling_whether_it_ran, unanswerable
from toolyard.model.envelope import Envelope
from toolyard.model.errors import Blame, CodeName, ToolError
from toolyard.model.profile import Profile
from toolyard.model.spec import NOTHING, ToolSpec

__all__ = [
    "ANYONE",
    "DEFAULT_OPTIONS",
    "LIBRARY",
    "REFS_RESOLVED",
    "Arguments",
    "Call",
    "Caller",
    "Channel",
    "EnvelopeCoroutine",
    "Funnel",
    "Handler",
    "InvokeOptions",
    "Limit",
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
    """Which of the fronts that serve clients it belongs to, by number; without one it is 0."""
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
Limit = Callable[["Call"], Awaitable[Release]]
"""Waits until the call may run; what it returns is called once it no longer does."""
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

    def lent(self) -> AbstractContextManager[None]:
        """Let another thread be made while this one waits."""
        ...

    def dispatch(
        self, name: str, arguments: object, *, caller: Caller, channel: Channel, parent: "Call", options: InvokeOptions
    ) -> EnvelopeCoroutine:
        """Answer one call from inside another."""
        ...

    def wait_aside(self, call: "Call", answer: Awaitable[T]) -> Awaitable[T]:
        """Wait for somebody outside, while no deadline runs and others may have the call's turns."""
        ...

    def in_thread(self, call: "Call", function: Callable[[], object]) -> Awaitable[object]:
        """Run something that blocks in a worker thread."""
        ...


async def _do_nothing(call: "Call") -> object:
    raise LookupError(call.name)


class Call(msgspec.Struct, eq=False):
    """One run of one tool: what it was given, for whom, and what it can do meanwhile."""

    id: str
    name: str
    caller: Caller
    profile: Profile
    channel: Channel
    funnel: Funnel
    started: float  # seconds of 'time.perf_counter'
    paused_s: float = 0.0  # seconds that it waited for somebody outside
    seconds: float = 0.0  # that it may take, whatever its tool says; 0 is as long as that
    parent: "Call | None" = None
    depth: int = 0
    refs_resolved: bool = False  # whether what looks like a reference to a stored result is data, for handlers that see to those themselves
    spec: ToolSpec = NOTHING
    handler: Handler = _do_nothing
    arguments: Arguments = {}
    confirmation: dict[str, Any] = {}  # to the question that the tool declares
    session: Session | None = None
    inner_session_id: str | None = None  # the session that an envelope of another yard names
    coerced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    may_have_run: bool = False  # whether something may have happened: once the handler was entered, unless that one knows better
    is_proxy: bool = False  # whether it does nothing but make one other call, so that both may begin anew where the other may
    finished: bool = False
    memo: Any = None  # what a handler keeps that must not do its work twice, whatever wraps it
    stopped: CodeName | None = None
    stopped_by: Blame | None = None
    at_fault: Blame = "yard"
    """Who is to blame for what nobody foresaw at this point."""
    children: "set[Call] | None" = None
    leftovers: int = 0  # threads of this call that run on after its answer
    releases: tuple[Release, ...] = ()
    """What gives back the turns that the call holds."""
    _notes: ProgressThrottle | None = None
    _task: "asyncio.Task[Any] | None" = None
    _cancelling: int = 0
    _interruptions: int = 0

    def __repr__(self) -> str:
        """Return what may be shown of a call: never what it was given."""
        return f"<Call {self.id} of '{self.tool}'>"

    @property
    def tool(self) -> str:
        """Return the tool's name, or what may be repeated of a name that is none."""
        if self.spec is not NOTHING:
            return self.spec.name
        return str(self.name) if is_identifier(str(self.name)) else "?"

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
        return self.funnel.dispatch(
            name, arguments, caller=self.caller, channel=self.channel.inside(progress), parent=self, options=options
        )

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something async, such as `invoke` or `ask`, from a handler that runs in a thread.

        Raises:
            RuntimeError: The handler is async: it can await.
        """
        if on_loop(self.funnel.loop):
            work.close()
            raise RuntimeError("An async handler must await instead of calling 'wait'.")
        with self.funnel.lent():
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
            self._on_loop(lambda: self._note(Progress(done, total, text), own=own))
        return NOOP

    def log(self, level: str, text: str, **facts: object) -> Noop:
        """Say something to whoever watches the call; may be awaited, and works from a thread, too."""
        send = self.channel.log
        if send is None:
            number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
            _log.log(number, "said tool=%s id=%s text=%s%s", self.tool, self.id, log_value(text), log_fields(facts))
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
            return await self.funnel.wait_aside(self, self.channel.ask(asks, declared))

    def can_ask(self, capability: str = "elicitation") -> bool:
        """Return whether the client can be asked this: `elicitation` for a person, `sampling` for its model, `roots`."""
        return self.channel.ask is not None and capability in self.channel.capabilities

    def hang_up(self) -> None:
        """Let go of the client's connection before a long wait, where it can come back for the answer."""
        if self.channel.hang_up is not None:
            self.channel.hang_up()

    def stop(self, code: CodeName, *, blame: Blame | None = None) -> None:
        """Interrupt the handler; the call is answered with this code, and with this one to blame if it is not who the code says."""
        if self.finished or self.stopped is not None:
            return
        self.stopped = code
        self.stopped_by = blame
        self.interrupt()

    def interrupt(self) -> None:
        """Interrupt the handler once more, if it is running."""
        if self._task is not None:
            self._interruptions += 1
            self._task.cancel()

    def run_in(self, task: "asyncio.Task[Any]") -> None:
        """Note the task that the call runs in from now on; the call that this one came from is told, unless it waits in the same."""
        self._task = task
        if cancelling := task.cancelling():
            self._cancelling = cancelling
        parent = self.parent
        if parent is not None and parent._task is not task:  # noqa: SLF001 - one of its own kind
            if parent.children is None:
                parent.children = {self}
            else:
                parent.children.add(self)

    def take_back(self, task: "asyncio.Task[Any]") -> bool:
        """Take this call's own interruptions of the task back, and return whether somebody else's remain."""
        while self._interruptions:
            self._interruptions -= 1
            task.uncancel()
        return task.cancelling() > self._cancelling

    def give_back(self) -> None:
        """Give back the turns, the last one taken first, even if some fail."""
        for release in reversed(self.releases):
            try:
                release()
            except Exception:  # noqa: BLE001 - a release may raise anything, and must not keep the others
                _log.exception("release_failed tool=%s id=%s", self.tool, self.id)

    def finish(self) -> None:
        """Deliver the last note and interrupt what the call started and did not wait for."""
        self.finished = True
        self._task = self.memo = None  # what a handler keeps may know the call, and neither would go before somebody collects both
        if self._notes is not None:
            self._notes.close()
        if self.parent is not None and self.parent.children:
            self.parent.children.discard(self)
        if self.children:
            for child in tuple(self.children):
                child.stop("cancelled")

    def _note(self, note: Progress, *, own: bool) -> None:
        if self.finished or self.channel.progress is None:
            return
        if self._notes is None:
            send = self.channel.progress
            self._notes = ProgressThrottle(lambda note: call_safely(lambda: send(note)), self.funnel.loop)
        self._notes.add(note, own=own)

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
