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
from callyard.dispatch.questions import Question
from callyard.jobs.job import (
    JOBS,
    LEASE_S,
    RESULTS,
    TASKS,
    Job,
    JobOrder,
    JobResult,
    JobStatus,
    cancelled,
    interrupted,
    log_line,
    tidy,
)
from callyard.model.elicitation import ClientRequest, require_support
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.state.store import Lease, StoreUnavailableError

if TYPE_CHECKING:
    from callyard.jobs.service import Jobs

__all__ = ["QueuedJob", "RunningJob"]

_LOG_LINES: Final = 20
_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


class QueuedJob:
    """A job that a worker will run, so that its run in this process ends. It satisfies `StoredRun`."""

    is_elsewhere = True
    confirmation: Mapping[str, Any] | None = None

    def __init__(self, channel: Channel, inside: tuple[str, ...]) -> None:
        self.channel = channel
        self.inside = inside

    async def claim(self) -> None:
        """Do nothing: the worker claims it."""

    def keep_partial(self, partial: Callable[[], bytes]) -> None:
        """Do nothing: the worker has the results."""

    async def end_with(self, envelope: Envelope) -> None:
        """Do nothing: the worker stores the answer."""

    async def end_cancelled(self) -> None:
        """Do nothing: whoever cancels the job tells its worker."""


class RunningJob:
    """One job in this process: the run that is stored. It satisfies `StoredRun`."""

    is_elsewhere = False
    task: "asyncio.Task[Any]"

    def __init__(self, jobs: "Jobs", job: Job, order: JobOrder, *, lease: Lease, saved: bytes) -> None:
        self._jobs = jobs
        self.job = job
        self.order = order
        self.inside = order.inside
        self.confirmation: Mapping[str, Any] | None = order.confirmation
        self.channel = Channel(
            name=order.channel,
            progress=self._note_progress,
            log=self._note_log,
            ask=self._ask,
            capabilities=frozenset(order.capabilities),
            trace=order.trace,
            trace_id=order.trace_id,
            job_id=job.id,
            result_characters=order.result_characters,
            asks_before_destroy=order.asks_before_destroy,
        )
        self.settled = asyncio.Event()
        """Set while the job has ended or asks something."""
        self._lease = lease
        self._saved = saved
        """What the store holds of the job: somebody else writes it only after our lease ended."""
        self._unsure: bytes | None = None
        """What the store may hold instead, because nobody knows whether the last write happened."""
        self._lock = asyncio.Lock()
        self._has_begun = True
        self._is_resumed = False
        self._is_lost = False
        self.is_given_back = False
        """Whether another process shall run it, because this one ends."""
        self._questions: dict[str, tuple[ClientRequest, asyncio.Future[Any]]] = {}
        self._asked: set[str] = set()
        self._numbers = count(2)
        self._partial: Callable[[], bytes] | None = None

    def keep_partial(self, partial: Callable[[], bytes]) -> None:
        """Take a function that returns the results so far as JSON."""
        self._partial = partial

    def with_partial(self) -> Job:
        """Return the state of the job with the results so far."""
        if self._partial is None:
            return self.job
        return msgspec.structs.replace(self.job, partial=msgspec.json.decode(self._partial()))

    async def run_again(self, profile: Profile | None) -> None:
        """Run the job again, as a new run, after the process that ran it has ended."""
        self._has_begun = True
        try:
            if self.job.cancel_requested or self._jobs.is_closing:  # before it began
                raise asyncio.CancelledError  # noqa: TRY301 - as if it came a moment later
            order = self.order
            request = CallRequest(order.name, order.arguments, order.caller.caller(profile))
            options = InvokeOptions(refs_resolved=order.refs_resolved, job=self)
            envelope = await self._jobs.dispatcher.dispatch(request, channel=self.channel, options=options)
        except asyncio.CancelledError:
            await self.end_cancelled()
        else:
            await self.end_with(envelope)

    async def end_with(self, envelope: Envelope) -> None:
        """Store the answer of the run."""
        failed = envelope.error is not None and envelope.error.code == "internal_error"
        if not self._is_lost:
            await self._end("failed" if failed else "completed", envelope)

    async def end_cancelled(self) -> None:
        """Store how the run ended whose task was cancelled: by somebody, or because the server ends."""
        if self._is_lost:
            return
        if self.job.cancel_requested:
            await self._end("cancelled", cancelled(self.job))
        elif self._jobs.outlives_process and self.order.may_run_again(self.job):
            with suppress(StoreUnavailableError):  # then another process runs it again after the lease, not at once
                await self.save(status="working", asks={})
                await self._jobs.store.release(self._lease)
                self.is_given_back = True
                await self._jobs.give_back(self.job.id)
        else:
            await self._end("interrupted", interrupted(self.with_partial(), "The server ended while the job ran."))

    async def _end(self, status: JobStatus, envelope: Envelope) -> None:
        """End the job; while the store fails, try again until the yard closes.

        Nobody sees the end before it is stored.
        """
        while not await self.end(status, envelope) and not self._jobs.is_closing:  # noqa: ASYNC110 - see below
            await asyncio.sleep(_RETRY_S)  # the store gives no sign when it works again

    async def end(self, status: JobStatus, envelope: Envelope) -> bool:
        """Store the answer, then the end of the job that makes it count; return False if the store fails."""
        store, result_key = self._jobs.store, self.job.result_key or uuid4().hex
        try:
            if not self.job.ended:
                await store.put(RESULTS + result_key, encode(JobResult.of(envelope)), ttl=self.job.ttl)
                if not await self.save(status=status, asks={}, updated_at=time.time(), result_key=result_key):
                    await self._log_lost()
                    await store.delete(RESULTS + result_key)
                    return True
                self.settled.set()
            await store.publish(JOBS + self.job.id, b"")
            await tidy(store, self.job, self.order.owner)
            await store.release(self._lease)
        except StoreUnavailableError as error:
            _log.warning("job_not_stored id=%s reason=%s", self.job.id, error.reason)
            return False
        return True

    async def take(self, *, unfit_since: float = 0.0) -> bool:
        """Write the token of our lease into the job; return False if another process changed it meanwhile."""
        self._is_resumed, self._has_begun = self.job.lease > 0, False
        return await self.save(lease=self._lease.token, status="working", asks={}, unfit_since=unfit_since)

    async def claim(self) -> None:
        """Note that the handler starts now, before it does.

        Raises:
            ToolError: It cannot be noted, so the handler must not start.
        """
        try:
            self._is_lost = not await self.save(durable=not self.order.safe, claimed=True)
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=False) from None
        if self._is_lost:
            await self._log_lost()
            raise ToolError("cancelled", "Another process has taken over the job.", blame="yard", may_have_run=False)

    async def _log_lost(self) -> None:
        """Log that the job is no longer ours: another process has it, or it is gone."""
        with suppress(StoreUnavailableError):
            if await self._jobs.store.get(JOBS + self.job.id) is None:
                _log.error("store_wiped id=%s tool=%s", self.job.id, self.job.tool)
                return
        _log.warning("job_lost id=%s tool=%s", self.job.id, self.job.tool)

    async def cancel(self) -> None:
        """Cancel the job, and note that, so that no other process runs it again."""
        if not self.job.ended and not self.job.cancel_requested:
            self.job = msgspec.structs.replace(self.job, cancel_requested=True)
            self.stop()
            with suppress(StoreUnavailableError):  # logged by the store; the job ends nevertheless
                await self.save()

    def stop(self) -> None:
        """Cancel the task; one that has not begun yet ends as soon as it does."""
        if self._has_begun and not self.job.ended:
            self.task.cancel()

    async def renew(self) -> None:
        """Hold the lease for longer; a job that another process has taken is stopped.

        A lease ends while the store cannot be written, or while the machine sleeps. It is taken again if nobody else
        has it.
        """
        store = self._jobs.store
        if await store.renew(self._lease, ttl=LEASE_S) or self.job.ended:
            return
        lease = await store.acquire(self._lease.key, ttl=LEASE_S)
        if lease is not None and await self.save(lease=lease.token):
            self._lease = lease
            return
        self._is_lost = True
        await self._log_lost()
        self.stop()
        if lease is not None:
            await store.release(lease)

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Deliver answers to questions; unknown keys are ignored."""
        answered = False
        for key, (_, future) in self._questions.items():
            if key in responses and not future.done():
                future.set_result(responses[key])
                answered = True
        if answered:
            await self._save_questions()

    async def _ask(self, asks: Mapping[str, ClientRequest], question: Question) -> Mapping[str, Any]:
        """Wait as `input_required` until the client sends the answers."""
        capabilities = self.order.capabilities
        require_support(asks, capabilities)
        question.expire_after(self.job.ttl)
        if TASKS not in capabilities:
            message = (
                "The job has a question, and its client does not declare the extension for tasks, so it cannot answer."
            )
            hint = "Call the tool directly, not in the background."
            raise ToolError("not_supported", message, hint=hint, capabilities=[TASKS])
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
        # Another process may have asked the same before.
        name = f"{key}-{self._lease.token}" if self._is_resumed else key
        while name in self._asked:
            name = f"{key}-{self._lease.token}-{next(self._numbers)}"
        self._asked.add(name)
        return name

    async def _save_questions(self) -> None:
        if self.job.ended:  # a task that the handler left behind
            return
        asks = {name: ask for name, (ask, future) in self._questions.items() if not future.done()}
        status = "input_required" if asks else "working"
        self.job = msgspec.structs.replace(self.job, asks=asks, status=status, updated_at=time.time())
        (self.settled.set if asks else self.settled.clear)()
        with suppress(StoreUnavailableError):  # logged by the store; other processes see it later
            if await self.save() and asks:
                await self._jobs.store.publish(JOBS + self.job.id, b"")

    async def save(self, *, durable: bool = False, **changes: Any) -> bool:
        """Store the state of the job with some changes; return False if another process has taken the job.

        The state is read under the lock: a claim must not be undone by progress that was noted before it. The end of a
        job is always `durable`.
        """
        async with self._lock:
            job = msgspec.structs.replace(self.with_partial(), **changes)
            data = encode(msgspec.structs.replace(job, partial=None) if job.ended else job)
            ttl = job.ttl if job.ended else None  # a job that has not ended does not expire
            is_new = data != self._saved or self._unsure is not None
            if is_new and not await self._replace(data, ttl=ttl, durable=durable or job.ended):
                return False
            self.job = msgspec.structs.replace(self.job, **changes)
            return True

    async def _replace(self, data: bytes, *, ttl: float | None, durable: bool) -> bool:
        """Store a new state instead of ours; return False if another process has taken the job."""
        store, key = self._jobs.store, JOBS + self.job.id
        if self._unsure is not None and await store.get(key) == self._unsure:  # it has our token, so we wrote it
            self._saved = self._unsure
        try:
            done = await store.compare_and_set(key, self._saved, data, ttl=ttl, durable=durable)
        except StoreUnavailableError as error:
            self._unsure = data if error.may_have_run else self._unsure
            raise
        self._unsure = None
        self._saved = data if done else self._saved
        return done

    def _note_progress(self, progress: Progress) -> None:
        self.job = msgspec.structs.replace(self.job, progress=msgspec.to_builtins(progress), updated_at=time.time())

    def _note_log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        line = log_line(level, text, facts)
        self.job = msgspec.structs.replace(self.job, log=(*self.job.log, line)[-_LOG_LINES:], updated_at=time.time())
