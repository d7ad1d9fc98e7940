"""One job while it runs in this process: its lease, its channel, its questions and its end."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec

from callyard.dispatch.call import CallRequest, Channel, InvokeOptions
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.progress import Progress
from callyard.jobs import keys
from callyard.jobs.job import LEASE_S, TASKS, Job, JobOrder, JobResult, JobStatus, LogLine, cancelled, interrupted
from callyard.jobs.stored import tidy
from callyard.model.elicitation import ClientRequest, unsupported_by_client
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.state.store import Lease, StoreUnavailableError

if TYPE_CHECKING:
    from callyard.jobs.service import Jobs

__all__ = ["RunningJob"]

_LOG_LINES: Final = 20
_LOG_CHARACTERS: Final = 1000
_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


class RunningJob:
    """One job in this process. It satisfies `JobRun`."""

    task: "asyncio.Task[None]"
    is_attached = False

    def __init__(self, jobs: "Jobs", job: Job, order: JobOrder, *, lease: Lease, saved: bytes, is_admitted: bool) -> None:
        self._jobs = jobs
        self.job = job
        self.order = order
        self.is_admitted = is_admitted
        self.settled = asyncio.Event()
        """Set while the job has ended or asks something."""
        self._lease = lease
        self._saved = saved
        """What the store holds of the job: somebody else writes it only after our lease ended."""
        self._lock = asyncio.Lock()
        self._has_begun = False
        self._is_lost = False
        self._questions: dict[str, tuple[ClientRequest, asyncio.Future[Any]]] = {}
        self._asked: set[str] = set()
        self._numbers = count(2)
        self._partial: Callable[[], bytes] | None = None

    @property
    def inside(self) -> tuple[str, ...]:
        """Return the tools whose calls started it."""
        return self.order.inside

    @property
    def confirmation(self) -> Mapping[str, Any] | None:
        """Return what a person answered to the declared confirmation."""
        return self.order.confirmation

    def keep_partial(self, partial: Callable[[], bytes]) -> None:
        """Take a function that returns the results so far as JSON."""
        self._partial = partial

    def with_partial(self) -> Job:
        """Return the state of the job with the results so far."""
        return self.job if self._partial is None else msgspec.structs.replace(self.job, partial=msgspec.json.decode(self._partial()))

    async def park(self, approval_id: str) -> None:
        """Do nothing: its caller was answered already, so it just goes on waiting."""

    async def execute(self, request: CallRequest) -> None:
        """Run the job and store its answer."""
        try:
            self._has_begun = True
            if self.job.cancel_requested or self._jobs.is_closing:  # before it began
                raise asyncio.CancelledError  # noqa: TRY301 - as if it came a moment later
            envelope = await self._jobs.dispatcher.dispatch(request, channel=self._channel(), options=self._options())
            failed = envelope.error is not None and envelope.error.code == "internal_error"
            status: JobStatus = "failed" if failed else "completed"
        except asyncio.CancelledError:
            if self._is_lost:
                return
            if self.job.cancel_requested:
                status, envelope = "cancelled", cancelled(self.job)
            elif self._jobs.outlives_process and self.order.may_run_again(self.job):
                await self._give_back()
                return
            else:
                status, envelope = "interrupted", interrupted(self.with_partial(), "The server ended while the job ran.")
        if not self._is_lost:
            await self._end(status, envelope)

    async def _end(self, status: JobStatus, envelope: Envelope) -> None:
        """End the job; while the store fails, try again until the yard closes. Nobody sees the end before it is stored."""
        while not await self.end(status, envelope) and not self._jobs.is_closing:  # noqa: ASYNC110 - see below
            await asyncio.sleep(_RETRY_S)  # the store gives no sign when it works again

    async def end(self, status: JobStatus, envelope: Envelope) -> bool:
        """Store the answer, then the end of the job that makes it count; return False if the store fails."""
        store, result_key = self._jobs.store, self.job.result_key or uuid4().hex
        try:
            if not self.job.ended:
                await store.put(keys.result(result_key), encode(JobResult.of(envelope)), ttl=self.job.ttl)
                if not await self._save(status=status, asks={}, updated_at=time.time(), result_key=result_key):
                    _log.warning("job_lost id=%s tool=%s", self.job.id, self.job.tool)
                    await store.delete(keys.result(result_key))
                    return True
                self.settled.set()
            await store.publish(keys.topic(self.job.id), b"")
            await tidy(store, self.job, self.order.owner)
            await store.release(self._lease)
        except StoreUnavailableError as error:
            _log.warning("job_not_stored id=%s reason=%s", self.job.id, error.reason)
            return False
        return True

    async def _give_back(self) -> None:
        """Let the next process run the job again at once, unless another one has it already."""
        with suppress(StoreUnavailableError):  # then after the lease
            await self._save(status="working", asks={})
            await self._jobs.store.release(self._lease)

    async def take(self) -> bool:
        """Write the token of our lease into the job; return False if another process changed it meanwhile."""
        return await self._save(lease=self._lease.token, status="working", asks={})

    async def claim(self) -> None:
        """Note that the handler starts now, before it does.

        Raises:
            ToolError: It cannot be noted, so the handler must not start.
        """
        try:
            self._is_lost = not await self._save(claimed=True)
        except StoreUnavailableError:
            raise store_unavailable(may_have_run=False) from None
        if self._is_lost:
            _log.warning("job_lost id=%s tool=%s", self.job.id, self.job.tool)
            raise ToolError("cancelled", "Another process has taken over the job.", blame="yard", may_have_run=False)

    async def cancel(self) -> None:
        """Cancel the job, and note that, so that no other process runs it again."""
        if not self.job.ended and not self.job.cancel_requested:
            self.job = msgspec.structs.replace(self.job, cancel_requested=True)
            self.stop()
            with suppress(StoreUnavailableError):  # logged by the store; the job ends nevertheless
                await self._save()

    def stop(self) -> None:
        """Cancel the task; one that has not begun yet ends as soon as it does, because it would not see its cancellation."""
        if self._has_begun and not self.job.ended:
            self.task.cancel()

    async def renew(self) -> None:
        """Hold the lease for longer; a job that another process has taken is stopped.

        A lease ends while the store cannot be written, or while the machine sleeps. It is taken again if nobody else has it.
        """
        store = self._jobs.store
        if await store.renew(self._lease, ttl=LEASE_S) or self.job.ended:
            return
        lease = await store.acquire(self._lease.key, ttl=LEASE_S)
        if lease is not None and await self._save(lease=lease.token):
            self._lease = lease
            return
        _log.warning("job_lost id=%s tool=%s", self.job.id, self.job.tool)
        self._is_lost = True
        self.stop()

    async def save_progress(self) -> None:
        """Store progress and log lines, if there are new ones."""
        await self._save()

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Deliver answers to questions; unknown keys are ignored."""
        waiting = {key: future for key, (_, future) in self._questions.items() if key in responses and not future.done()}
        for key, future in waiting.items():
            future.set_result(responses[key])
        if waiting:
            await self._save_questions()

    def _options(self) -> InvokeOptions:
        return InvokeOptions(refs_resolved=self.order.refs_resolved, job=self)

    def _channel(self) -> Channel:
        order = self.order
        return Channel(
            name=order.channel,
            progress=self._note_progress,
            log=self._note_log,
            ask=self._ask,
            capabilities=frozenset(order.capabilities),
            trace=order.trace,
            trace_id=order.trace_id,
            job_id=self.job.id,
            result_characters=order.result_characters,
        )

    async def _ask(self, asks: Mapping[str, ClientRequest], declared: bool) -> Mapping[str, Any]:  # noqa: ARG002, FBT001 - the type is `AskClient`
        """Wait as `input_required` until the client sends the answers."""
        capabilities = self.order.capabilities
        if any(ask.missing_capability(capabilities) is not None for ask in asks.values()):
            raise unsupported_by_client(asks, capabilities)
        if TASKS not in capabilities:
            message = "The job has a question, and its client does not declare the extension for tasks, so it cannot answer."
            raise ToolError("not_supported", message, hint="Call the tool directly, not in the background.", capabilities=[TASKS])
        loop = asyncio.get_running_loop()
        names = {self._unused_name(key): key for key in asks}
        futures = {name: loop.create_future() for name in names}
        self._questions |= {name: (asks[key], futures[name]) for name, key in names.items()}
        await self._save_questions()
        try:
            async with asyncio.timeout(self.job.ttl or None):
                return {key: await futures[name] for name, key in names.items()}
        except TimeoutError:
            raise ToolError("cancelled", "Nobody answered the questions of the job.", reason="dismissed") from None
        finally:
            for name in names:
                del self._questions[name]
            await self._save_questions()

    def _unused_name(self, key: str) -> str:
        """Return a name for a question that this job never had, because clients answer each name once."""
        name = key if self.is_admitted else f"{key}-{self._lease.token}"  # another process may have asked the same before
        while name in self._asked:
            name = f"{key}-{self._lease.token}-{next(self._numbers)}"
        self._asked.add(name)
        return name

    async def _save_questions(self) -> None:
        if self.job.ended:  # a task that the handler left behind
            return
        asks = {name: ask for name, (ask, future) in self._questions.items() if not future.done()}
        self.job = msgspec.structs.replace(self.job, asks=asks, status="input_required" if asks else "working", updated_at=time.time())
        (self.settled.set if asks else self.settled.clear)()
        with suppress(StoreUnavailableError):  # logged by the store; other processes see it later
            if await self._save() and asks:
                await self._jobs.store.publish(keys.topic(self.job.id), b"")

    async def _save(self, **changes: Any) -> bool:
        """Store the state of the job with some changes; return False if another process has written it, because our lease ended.

        The state is read under the lock: a claim must not be undone by progress that was noted before it.
        """
        async with self._lock:
            job = msgspec.structs.replace(self.with_partial(), **changes)
            data = encode(msgspec.structs.replace(job, partial=None) if job.ended else job)
            if data != self._saved:
                ttl = job.ttl if job.ended else None  # a job that has not ended does not expire
                if not await self._jobs.store.compare_and_set(keys.job(job.id), self._saved, data, ttl=ttl):
                    return False
                self._saved = data
            self.job = msgspec.structs.replace(self.job, **changes)
            return True

    def _note_progress(self, progress: Progress) -> None:
        self.job = msgspec.structs.replace(self.job, progress=msgspec.to_builtins(progress), updated_at=time.time())

    def _note_log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        text = text if len(text) <= _LOG_CHARACTERS else f"{text[:_LOG_CHARACTERS]}…"  # a program may print megabytes
        line = LogLine(level, text, msgspec.json.decode(encode(dict(facts))))
        self.job = msgspec.structs.replace(self.job, log=(*self.job.log, line)[-_LOG_LINES:], updated_at=time.time())
