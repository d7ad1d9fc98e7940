"""A run: a call in flight as the dispatcher sees it, with its task, its interruptions and what it must give back.

Handlers never see it: they are given its `Call`. A run is dispatched once and has one task from start to end. That task
may outlive the request that started it: then somebody waits for the run's replies.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.arguments import BoundArguments
from callyard.dispatch.call import (
    DEFAULT_OPTIONS,
    Call,
    CallRequest,
    Channel,
    EnvelopeCoroutine,
    Handler,
    InvokeOptions,
    Release,
)
from callyard.dispatch.progress import Progress, ProgressThrottle, call_safely
from callyard.dispatch.questions import Question, QuestionKind
from callyard.dispatch.tracing import CallSpan
from callyard.model.elicitation import ClientRequest, unsupported_by_client
from callyard.model.envelope import Envelope
from callyard.model.errors import Blame, CodeName

if TYPE_CHECKING:
    from callyard.dispatch.dispatcher import Dispatcher  # it makes the runs
    from callyard.dispatch.replies import Replies
    from callyard.dispatch.tool import Tool  # its handlers take calls

__all__ = ["Precheck", "Run", "RunStore", "StoredRun", "is_first", "names_around", "outermost", "run_of"]

T = TypeVar("T")
Precheck = Callable[[Call], Awaitable[None]]
"""Checks a call just before its handler, because middleware runs in between; raises a `ToolError` to refuse it."""
_log = logging.getLogger("callyard.tool")


class StoredRun(Protocol):
    """What a run needs of the job that it is stored as."""

    is_elsewhere: bool
    """Whether another process runs it, so that the handler must not start here."""
    inside: tuple[str, ...]
    """The tools whose calls started it."""
    confirmation: Mapping[str, Any] | None
    """What a person answered to the declared confirmation, if it was asked already."""
    channel: Channel
    """Where its progress, log lines and questions go."""

    async def claim(self) -> None:
        """Note that the handler starts now, before it does."""
        ...

    def keep_partial(self, partial: Callable[[], bytes]) -> None:
        """Take a function that returns the results so far as JSON, for the case that the process ends."""
        ...

    async def end_with(self, envelope: Envelope) -> None:
        """Store the answer of the run."""
        ...

    async def end_cancelled(self) -> None:
        """Store how the run ended whose task was cancelled."""
        ...


class RunStore(Protocol):
    """Stores runs as jobs."""

    def becomes_job(self, run: "Run") -> bool:
        """Return whether a run is stored before its handler starts, because its caller or its tool says so."""
        ...

    def require_job(self, run: "Run") -> None:
        """Raise a `ToolError` if the tool of a run that is not stored must be a job."""
        ...

    async def store_run(self, run: "Run", approval_id: str) -> tuple[StoredRun, dict[str, Any]]:
        """Store a run; return the job and the data of its first answer.

        Raises:
            ToolError: `overloaded` if it cannot be stored, or too many jobs run.
        """
        ...


async def _no_handler(call: Call) -> object:
    raise LookupError(call.name)


class Run(msgspec.Struct, eq=False):
    """One call in flight."""

    id: str
    call: Call
    """What the handler gets. A finished run lets go of it: a cycle would stay until the next collection."""
    funnel: "Dispatcher"
    name: str = ""
    parent: "Run | None" = None
    askers: "tuple[Dispatcher, ...]" = ()
    """The yards that ask before `destroy` in this call: it came in by a channel that says so, or inside such a call."""
    asks_before_destroy: bool = False
    """Whether its own yard is one of them: then a person must approve the call if its tool destroys something."""
    options: InvokeOptions = DEFAULT_OPTIONS
    tool: "Tool | None" = None
    """The tool, once it is found."""
    handler: Handler = _no_handler
    prechecks: tuple[Precheck, ...] = ()
    text: bytes = b"{}"
    """The arguments as JSON, repaired, with references to stored results resolved."""
    bound: BoundArguments | None = None
    """The arguments as they are judged and approved, once they are."""
    started: float = 0.0
    """When the call came in, in seconds of `time.perf_counter`."""
    elapsed_s: float = 0.0
    """How long it took; set when it has ended."""
    queued_s: float = 0.0
    """How long the call waited for policies and limiters."""
    paused_s: float = 0.0
    """How long the deadline stood still because a person or client was asked."""
    is_admitted: bool = True
    """False if a policy or limiter refused the call, or it ended while it waited for them."""
    is_proxy: bool = False
    """Whether the handler only makes one other call, so that both can start again together."""
    count_inner: Callable[[], None] | None = None
    """Counts a call that this one makes because its caller said so, such as a program; raises beyond a limit."""
    memo: Any = None
    """State of a handler that must not do its work twice when a middleware calls it again."""
    at_fault: Blame = "yard"
    """Who is to blame for an unexpected exception at this point."""
    elsewhere: "Callable[[], Awaitable[Envelope]] | None" = None
    """Runs the call in the process that has its session, in place of the handler here."""
    is_recorded: bool = False
    """Whether another process has recorded it."""
    stopped: CodeName | None = None
    stopped_by: Blame | None = None
    finished: bool = False
    inner_session_id: str | None = None
    """The session that the envelope of another yard names."""
    children: "set[Run] | None" = None
    """Calls that this one started in other tasks."""
    releases: tuple[Release, ...] = ()
    deadline: "dict[Run, float] | None" = None
    """The table of timers that the handler's deadline is in, unless a pause moved it to another."""
    task: "asyncio.Task[Any] | None" = None
    replies: "Replies | None" = None
    """Who waits for it, if it has a task of its own."""
    outlives_as: str = ""
    """The status of its first answer, if it may go on as a job when its request cannot wait any longer."""
    job: StoredRun | None = None
    inside: tuple[str, ...] = ()
    """The tools whose calls it was nested in before it was stored, also by way of jobs."""
    partial: Callable[[], bytes] | None = None
    progress_throttle: ProgressThrottle | None = None
    span: CallSpan | None = None
    """The span of the call, where its yard is traced."""
    _cancelling: int = 0
    """Cancellations of the task by others, from before the call."""
    _cancellations: int = 0

    def __post_init__(self) -> None:
        self.call._run = self  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the one place that joins them

    def take(self, tool: "Tool") -> None:
        """Take note of the tool that was found."""
        self.tool, self.handler, self.name = tool, tool.handler, tool.spec.name
        if not tool.wraps:  # what it calls inside is its own affair
            self.count_inner = None
        self.call.spec = tool.spec

    def bind(self) -> BoundArguments:
        """Return the arguments as JSON, as they are judged and approved; the handler's are parsed from it anew.

        Raises:
            ToolError: `permission_denied` if they cannot be bound.
        """
        if self.bound is None:
            assert self.tool is not None  # noqa: S101 - only calls whose tool was found are judged
            self.use(self.tool.bind(self.text))
        assert self.bound is not None  # noqa: S101 - set above
        return self.bound

    def use(self, bound: BoundArguments) -> None:
        """Run with these arguments."""
        self.call.arguments = bound.arguments()
        self.bound, self.text = bound, bound.text

    @property
    def is_elsewhere(self) -> bool:
        """Return whether it goes on as a job in another process."""
        return self.job is not None and self.job.is_elsewhere

    @property
    def depth(self) -> int:
        """Return how many calls this one is nested in."""
        return 0 if self.parent is None else self.parent.depth + 1

    @property
    def server(self) -> int:
        """Return the number of the server context whose client waits for it; 0 is none."""
        if self.replies is not None:
            return self.replies.server
        return self.call.channel.server

    def dispatch(
        self, request: CallRequest, *, channel: Channel, options: InvokeOptions = DEFAULT_OPTIONS
    ) -> EnvelopeCoroutine:
        """Answer a call that is nested in this one."""
        return self.funnel.dispatch(request, channel=channel, parent=self, options=options)

    async def ask(self, asks: Mapping[str, ClientRequest], *, declared: bool = False) -> Mapping[str, Any]:
        """Ask the client, and return its raw results.

        Raises:
            ToolError: `not_supported` if the client cannot be asked, `overloaded` if too many questions are open.
        """
        channel = self.call.channel
        ask = channel.ask
        if ask is None:
            raise unsupported_by_client(asks, channel.capabilities, stateless=channel.stateless)
        question = self.question("elicitation", asks=asks, declared=declared)
        return await self.wait_for(question, lambda: ask(asks, question))

    def question(self, kind: QuestionKind, **fields: Any) -> Question:
        """Return a question of this run, which is not open yet."""
        call = self.call
        return Question(
            id=self.funnel.questions.new_id(),
            kind=kind,
            owner=call.caller.owner,
            call_id=self.id,
            tool=call.tool,
            size=len(self.text) + call.channel.size,
            **fields,
        )

    async def wait_for(self, question: Question, answer: Callable[[], Awaitable[T]]) -> T:
        """Wait for an answer from outside: meanwhile deadlines stand still, and places are free for others.

        Raises:
            ToolError: `overloaded` if too many questions are open.
        """
        began = time.perf_counter()
        try:
            with self.funnel.questions.open(question):
                return await self.funnel.admission.wait_outside(self, answer())
        finally:
            if self.span is not None:
                self.span.note_wait(question.kind, time.perf_counter() - began)

    def survivor(self) -> "Run | None":
        """Return the run that can go on without its request: this one, or one around it."""
        run: Run | None = self
        while run is not None and not (run.outlives_as or run.job):
            run = run.parent
        return run

    async def go_on_as_job(self, approval_id: str = "") -> None:
        """Store the run as a job, and answer the request that waits for it.

        Raises:
            ToolError: `overloaded` if it cannot be stored, or too many jobs run.
        """
        if self.job is None and self.replies is not None:
            await self.replies.go_on_as_job(self, approval_id)

    def become(self, job: StoredRun) -> None:
        """Take note of the job that stores the run: from now on no call around it is above it."""
        self.inside = names_around(self)
        if self.parent is not None and self.parent.children:
            self.parent.children.discard(self)
        self.parent = None
        self.job = job
        if self.span is not None and job.channel.job_id:  # otherwise a worker runs it, in a span of its own
            self.span = self.span.become_job(self.name, job.channel.job_id)
        if self.partial is not None:
            job.keep_partial(self.partial)

    def keep_partial(self, partial: Callable[[], bytes]) -> None:
        """Take a function that returns the results so far as JSON, for a job whose process ends."""
        self.partial = partial
        if self.job is not None:
            self.job.keep_partial(partial)

    def begin(self, task: "asyncio.Task[Any]") -> None:
        """Note the task, and let a parent in another task cancel this run when it ends."""
        self.task = task
        self._cancelling = task.cancelling()
        parent = self.parent
        if parent is not None and parent.task is not task:
            if parent.children is None:
                parent.children = set()
            parent.children.add(self)

    def stop(self, code: CodeName, *, blame: Blame | None = None) -> None:
        """Cancel the handler; the call is answered with this code, and this blame if it differs from the code's."""
        if self.finished or self.stopped is not None:
            return
        self.stopped = code
        self.stopped_by = blame
        self.call.cancelled = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the handler once more, if it is running."""
        if self.task is not None:
            self._cancellations += 1
            self.task.cancel()

    def uncancel(self, task: "asyncio.Task[Any]") -> bool:
        """Take back this run's own cancellations of the task, and return whether others remain."""
        while self._cancellations:
            self._cancellations -= 1
            task.uncancel()
        return task.cancelling() > self._cancelling

    def release(self) -> None:
        """Give back what the limiters hold, the last one first, even if some fail."""
        releases, self.releases = self.releases, ()
        for release in reversed(releases):
            try:
                release()
            except Exception:  # noqa: BLE001 - a release may raise anything, and must not keep the others
                log_exception(_log, "release_failed tool=%s id=%s", self.name, self.id)

    def end(self) -> None:
        """Deliver the last progress, and cancel the calls that it started and did not wait for."""
        self.finished, self.task, self.memo = True, None, None
        if self.progress_throttle is not None:
            self.progress_throttle.close()
        if self.parent is not None and self.parent.children:
            self.parent.children.discard(self)
        for child in tuple(self.children) if self.children else ():
            child.stop("cancelled")

    def send_progress(self, progress: Progress, *, own: bool) -> None:
        """Send progress to the client, throttled; `own` is progress that the yard reports itself."""
        if self.finished or self.call.channel.progress is None:
            return
        if self.progress_throttle is None:
            send = self.call.channel.progress
            loop = self.funnel.loop
            self.progress_throttle = ProgressThrottle(lambda progress: call_safely(lambda: send(progress)), loop)
        self.progress_throttle.add(progress, own=own)


def run_of(call: Call) -> Run:
    """Return the run behind a call; for code of the yard, never for handlers."""
    return call._run  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the one place that reads it


def outermost(run: Run) -> Run:
    """Return the run that came from outside, which a run is nested in."""
    while run.parent is not None:
        run = run.parent
    return run


def names_around(run: Run) -> tuple[str, ...]:
    """Return the tools whose calls a run is nested in, also by way of jobs."""
    names: list[str] = []
    while run.parent is not None:
        run = run.parent
        names.append(run.name)
    return (*names, *run.inside)


def is_first(run: Run) -> bool:
    """Return whether nothing ran before this call, so that the client may send its request again."""
    return run.parent is None or (run.parent.is_proxy and is_first(run.parent))
