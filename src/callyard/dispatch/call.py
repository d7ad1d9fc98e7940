"""A call as its handler sees it, and what surrounds it: who calls, by which channel, as which request.

How the call is admitted, run and answered is in its `Run`, which handlers do not see.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, overload

import msgspec

from callyard._internal.logfmt import is_tool_name, log_fields, log_value
from callyard._internal.mask import mask_text, mask_values
from callyard.dispatch.arguments import BoundArguments
from callyard.dispatch.progress import NOOP, Noop, Progress, SendProgress, call_safely, on_loop
from callyard.dispatch.questions import Question
from callyard.dispatch.sessions import Session
from callyard.model.elicitation import (
    ClientRequest,
    check_accepted,
    form_content,
    form_of,
    instance_of,
    set_may_have_run,
)
from callyard.model.envelope import Envelope, encode, encode_sorted
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.model.spec import UNKNOWN_TOOL, Kind, ToolSpec

if TYPE_CHECKING:
    from callyard.dispatch.run import Run, StoredRun  # a run has a call

__all__ = [
    "ANYONE",
    "CLIENT_SHARE",
    "DEFAULT_OPTIONS",
    "LIBRARY",
    "REFS_RESOLVED",
    "SHARED",
    "TIMEOUT_MS",
    "Arguments",
    "AskClient",
    "Call",
    "CallRequest",
    "Caller",
    "Channel",
    "EnvelopeCoroutine",
    "Handler",
    "InvokeOptions",
    "Limiter",
    "Middleware",
    "Policy",
    "Release",
    "ambient",
    "current_call",
    "stated_options",
]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling. The scope is one conversation of the identity; without a profile the yard's own applies."""

    identity: str = "local"
    scope: str = ""
    claims: dict[str, Any] = {}
    profile: Profile | None = None
    client: str = ""

    def __post_init__(self) -> None:
        if self.profile is not None and not isinstance(cast("object", self.profile), Profile):
            raise TypeError("The profile of a caller must be a 'Profile'.")

    def __repr__(self) -> str:
        """Return identity and scope, without the claims."""
        return f"<Caller '{self.identity}' '{self.scope}'>"

    @property
    def owner(self) -> str:
        """Return the key of the caller's sessions and stored results."""
        return f"{len(self.identity)}:{self.identity}:{self.scope}"


ANYONE: Final = Caller()
SHARED: Final = Caller(scope="*")
"""Callers that nothing tells apart: they have no credentials, no session and no connection of their own."""

AskClient = Callable[[Mapping[str, ClientRequest], Question], Awaitable[Mapping[str, Any]]]
"""Sends requests to the client and returns its results by key: shows a question, and brings the answers."""


class Channel(msgspec.Struct, frozen=True, kw_only=True):  # a struct, because one is made for nearly every call
    """How a call came in, and what can be sent back while it runs."""

    name: str = "library"
    connection_id: str = ""
    """The connection, where several clients share one identity and name."""
    server: int = 0
    """The number of the server context that the call belongs to; 0 is none."""
    progress: SendProgress | None = None
    log: Callable[[str, str, Mapping[str, object]], None] | None = None
    ask: AskClient | None = None
    capabilities: frozenset[str] = frozenset()
    """The client requests that the client supports."""
    has_permitted: Callable[["Call"], bool] | None = None
    """Returns whether the person permitted this very call before it was made; for a host that asks first."""
    page_done: Callable[[str], None] | None = None
    """Tells the client that the page of an elicitation by URL is done, by the id of the elicitation."""
    stateless: bool = False
    """Whether the server keeps no session for a handshake-era client, so that it cannot be asked."""
    hang_up: Callable[[], None] | None = None
    """Closes the connection before the answer, which the client then polls for."""
    headers: Mapping[str, str] = {}
    """The request headers that handlers may see."""
    forwarded: Mapping[str, str] = {}
    """The request headers that upstreams have forwarded; they may be credentials."""
    meta: Mapping[str, Any] = {}
    """The request's `_meta`, without the keys that MCP reserves."""
    trace: Mapping[str, str] = {}
    """`traceparent`, `tracestate` and `baggage`, as they came."""
    trace_id: str | None = None
    job_id: str = ""
    """The job that the call runs in; its request is over, and the credentials of its request are gone."""
    asks_before_destroy: bool = False
    """Whether a person must approve tools of the operation `destroy`, in this call and everything inside it."""
    result_characters: int | None = None
    """The longest answer that the client accepts, where it states one."""

    def __repr__(self) -> str:
        """Return the name, without headers and metadata."""
        return f"<Channel '{self.name}'>"

    @property
    def size(self) -> int:
        """Return how many bytes of the request are kept with it."""
        return len(encode(self.meta)) if self.meta else 0

    def inside(self, progress: SendProgress | None = None) -> "Channel":
        """Return the channel of nested calls, whose progress goes to `progress` alone."""
        return self if self.progress is progress else msgspec.structs.replace(self, progress=progress)


LIBRARY: Final = Channel()


class CallRequest(msgspec.Struct, frozen=True, gc=False):
    """A call as data, before it runs. It can be stored, sent elsewhere and run again."""

    name: str
    """The tool, the prompt, or the URI of the resource."""
    arguments: Any = None
    """JSON: as data, or as text in a `msgspec.Raw`."""
    caller: Caller = ANYONE
    kind: Kind = "tool"

    def fingerprint(self) -> str:
        """Return a hash of the kind, the name, the arguments in any order, and the owner of the call."""
        arguments = self.arguments
        try:
            data = encode_sorted(msgspec.json.decode(arguments) if isinstance(arguments, msgspec.Raw) else arguments)
        except msgspec.DecodeError:  # the call itself refuses what is no JSON
            data = bytes(arguments)
        parts = [self.kind.encode(), self.name.encode(), data, self.caller.owner.encode()]
        return sha256(b"\0".join(parts)).hexdigest()[:24]


class InvokeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a nested call differs from one that comes from outside."""

    seconds: float = 0.0
    """Timeout in seconds set by the caller; 0 uses the tool's own."""
    refs_resolved: bool = False
    """Whether references to stored results are resolved already, so that what looks like one is data."""
    checked: dict[str, Any] | None = None
    """The arguments after a check, so that they are not checked again."""
    checked_by: object = None
    """The tool whose check that was: by the time of the call the name may belong to another tool."""
    text: bytes = b"{}"
    """The same as JSON, before the check."""
    bound: BoundArguments | None = None
    """The same as they were judged, if they were."""
    approval: object = None
    """The approval that was obtained for the call before it is made."""
    coerced: tuple[str, ...] = ()
    """The arguments that were repaired."""
    background: bool = False
    """Whether the call becomes a job, whatever its tool says."""
    job: "StoredRun | None" = None
    """The job that the call runs again, after the process that ran it has ended."""
    priority: Literal["", "interactive", "background"] = ""
    """The priority in the queue; by default what the request or the tool says."""


DEFAULT_OPTIONS: Final = InvokeOptions()
REFS_RESOLVED: Final = InvokeOptions(refs_resolved=True)
TIMEOUT_MS: Final = "callyard/timeout_ms"
"""The key of `_meta` with the milliseconds that the client of a call waits for its answer."""
CLIENT_SHARE: Final = 0.9
"""The share of a client's time limit that a call may take; the rest is for the way there and back."""
_LONGEST_MS: Final = 7 * 86_400_000


def stated_options(meta: Mapping[str, Any]) -> InvokeOptions:
    """Return the options that a request states in its `_meta`."""
    milliseconds: object = meta.get(TIMEOUT_MS)
    if isinstance(milliseconds, int | float) and milliseconds is not True and 0 < milliseconds < _LONGEST_MS:
        return InvokeOptions(seconds=milliseconds / 1000 * CLIENT_SHARE)
    return DEFAULT_OPTIONS


T = TypeVar("T")
EnvelopeCoroutine = Coroutine[Any, Any, Envelope]
Arguments = dict[str, Any]
_log = logging.getLogger("callyard.tool")
ambient: Final[ContextVar["Call"]] = ContextVar("callyard.call")
"""Set by the dispatcher; everything else reads it with `current_call`."""


class Call(msgspec.Struct, eq=False):
    """One call, as its handler, policies and middleware see it."""

    id: str
    request: CallRequest
    profile: Profile
    channel: Channel
    spec: ToolSpec = UNKNOWN_TOOL
    arguments: Arguments = {}
    """The arguments after check and repair."""
    confirmation: Mapping[str, Any] = {}
    """What a person answered to the confirmation that the tool declares."""
    session: Session | None = None
    coerced: tuple[str, ...] = ()
    """The arguments that were repaired."""
    warnings: tuple[str, ...] = ()
    next_page: dict[str, Any] | None = None
    """The arguments of a call for the next page, if a handler answers with one of several."""
    may_have_run: bool = False
    """Whether a side effect is possible. Set before the handler runs; a handler that knows better may reset it."""
    cancelled: bool = False
    """Whether the call was stopped; for handlers in threads, which cannot be cancelled."""
    _run: "Run" = cast("Run", None)

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
    def parent(self) -> "Call | None":
        """Return the call that this one is nested in."""
        parent = self._run.parent
        return None if parent is None or parent.finished else parent.call

    @property
    def depth(self) -> int:
        """Return how many calls this one is nested in."""
        return self._run.depth

    @property
    def tool(self) -> str:
        """Return the tool's name, or '?' for a name that is not safe to log."""
        if self.spec is not UNKNOWN_TOOL:
            return self.spec.name
        return str(self.name) if is_tool_name(str(self.name)) else "?"

    @property
    def state(self) -> Any:
        """Return what the yard's lifespan yielded."""
        return self._run.funnel.state

    def invoke(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: SendProgress | None = None,
        options: InvokeOptions = DEFAULT_OPTIONS,
    ) -> EnvelopeCoroutine:
        """Call another tool from inside this one, through the whole funnel; its progress goes to `progress` alone."""
        request = CallRequest(name, arguments, self.request.caller)
        return self._run.dispatch(request, channel=self.channel.inside(progress), options=options)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, such as `invoke` or `ask`, from a handler that runs in a thread.

        Raises:
            RuntimeError: The handler is async, so it must await instead.
        """
        funnel = self._run.funnel
        if on_loop(funnel.loop):
            work.close()
            raise RuntimeError("An async handler must await instead of calling 'wait'.")
        with funnel.threads.extra_thread():
            return asyncio.run_coroutine_threadsafe(work, funnel.loop).result()

    def start_session(self, *, kind: str = "", session_id: str | None = None, outlives_client: bool = False) -> Session:
        """Start a session of this caller and make it the session of this call.

        It ends with an MCP session or connection that is its owner, unless `outlives_client`.
        """
        if self._run.finished:
            raise ToolError("state_error", "The call is over, so it can start no session.")
        sessions = self._run.funnel.sessions
        session = sessions.start(
            self.caller.owner,
            kind=kind,
            session_id=session_id,
            outlives_client=outlives_client,
            source=self.spec.source,
        )
        if self.session is not None:
            sessions.leave(self.session, None)
        self.session = session
        sessions.enter(session)
        return session

    async def end_session(self, session_id: str | None = None) -> bool:
        """End a session of this caller, by default the one of this call."""
        sessions = self._run.funnel.sessions
        mine = self.session.id if self.session is not None and session_id is None else session_id
        return sessions.has(str(mine), self.caller.owner) and await sessions.end(str(mine))

    async def store(self, result: object) -> str:
        """Store a result of any size for a while and return its handle, which only this caller can use.

        Raises:
            ToolError: `too_large` if it is too long to store.
            TypeError: It cannot be written as JSON.
        """
        return await self._run.funnel.results.keep(encode(result), self.caller.owner)

    async def stored(self, handle: str) -> Any:
        """Return the stored result of a handle of this caller.

        Raises:
            ToolError: `not_found` if there is none, or no longer.
        """
        return await self._run.funnel.results.read(handle, self.caller.owner)

    def progress(self, done: float, total: float | None = None, text: str = "", *, own: bool = False) -> Noop:
        """Send progress to the client, throttled.

        Thread-safe; may be awaited. `own` marks progress that the yard reports itself.
        """
        if self.channel.progress is not None:
            run = self._run
            self._on_loop(lambda: run.send_progress(Progress(done, total, text), own=own))
        return NOOP

    def log(self, level: str, text: str, **facts: object) -> Noop:
        """Send a log line to the client, or to the log where the client takes none. Thread-safe; may be awaited."""
        send = self.channel.log
        if send is None:
            number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
            shown = log_fields(mask_values({name: str(fact) for name, fact in facts.items()}))
            _log.log(number, "said tool=%s id=%s text=%s%s", self.tool, self.id, log_value(mask_text(text)), shown)
        else:
            self._on_loop(lambda: send(level, text, facts))
        return NOOP

    @overload
    async def ask(self, schema: Mapping[str, Any], text: str, *, key: str = "answer") -> dict[str, Any]: ...

    @overload
    async def ask(self, schema: type[T], text: str, *, key: str = "answer") -> T: ...

    async def ask(self, schema: Mapping[str, Any] | type[T], text: str, *, key: str = "answer") -> dict[str, Any] | T:
        """Ask the person behind the client to fill in a form; meanwhile the deadline stands still.

        The form is a JSON Schema, or a type such as a dataclass, of which an instance is returned.

        Raises:
            ToolError: `not_supported` if nobody can be asked, `approval_denied` or `cancelled` if there is no answer.
        """
        form = schema if isinstance(schema, Mapping) else form_of(schema)
        ask = ClientRequest.person(text, form)
        with set_may_have_run(running=self.may_have_run):
            content = form_content(ask, (await self.ask_all({key: ask}))[key])
            return content if isinstance(schema, Mapping) else instance_of(schema, content)

    async def ask_url(self, url: str, text: str) -> None:
        """Ask the person to open a page, and return when they agreed; the tool itself knows when the page is done.

        Raises:
            ToolError: `state_error` with the address in `what_to_do` if the client cannot show pages,
                `approval_denied` or `cancelled` if the person does not agree.
        """
        ask = ClientRequest.page(url, text)
        with set_may_have_run(running=self.may_have_run):
            check_accepted((await self.ask_all({"page": ask}))["page"])

    async def ask_all(self, asks: Mapping[str, ClientRequest], *, declared: bool = False) -> Mapping[str, Any]:
        """Send several requests to the client at once and return its raw results, under the same keys.

        Raises:
            ToolError: `not_supported` if the client lacks the capability.
        """
        with set_may_have_run(running=self.may_have_run):
            return await self._run.ask(asks, declared=declared)

    def can_ask(self, capability: str = "elicitation") -> bool:
        """Return whether the client has a capability: `elicitation`, `elicitation.url`, `sampling` or `roots`."""
        return self.channel.ask is not None and capability in self.channel.capabilities

    def hang_up(self) -> None:
        """Close the client's connection before a long wait, where the client can poll for the answer."""
        if self.channel.hang_up is not None:
            self.channel.hang_up()

    def _on_loop(self, send: Callable[[], None]) -> None:
        loop = self._run.funnel.loop
        if on_loop(loop):
            call_safely(send)
        else:
            loop.call_soon_threadsafe(call_safely, send)


Handler = Callable[[Call], Awaitable[object]]
Middleware = Callable[[Handler], Handler]
Policy = Callable[[Call], Awaitable[Envelope | None]]
"""Returns `None` to allow, an envelope to answer in place of the tool, or raises to deny."""
Release = Callable[[], None]
Limiter = Callable[[Call], Awaitable[Release]]
"""Waits until the call may run, and returns what to call when it has ended.

A call that waits for a person releases meanwhile. It then comes again: to the method `resume` of a limiter that has
one.
"""


def current_call() -> Call:
    """Return the call that the current code runs in.

    Raises:
        LookupError: It runs in none.
    """
    return ambient.get()
