"""The jobs of one yard: starts, shows, cancels and settles them, or has workers run them.

A job belongs to the process that holds its lease. Another process resumes it, or reports it as interrupted, only after
the lease ended. With a shared store, a queue brings jobs to workers. It knows no protocol and no metatool.
"""

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, Literal

import msgspec

from callyard._internal.logfmt import log_exception
from callyard._internal.tasks import background_task
from callyard.dispatch.call import Call
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.registry import Registry
from callyard.dispatch.run import Run, is_first, names_around
from callyard.jobs.job import (
    JOBS,
    LEASE_S,
    MESSAGES,
    ORDERS,
    POLL_MS,
    RENEW_S,
    RUNNING,
    TASKS,
    WORKERS,
    Job,
    JobCaller,
    JobOrder,
    JobStatus,
    cancelled,
    interrupted,
    list_entry,
    log_line,
    new_job_id,
    open_entry,
    resume_hash,
    started_data,
    tidy,
)
from callyard.jobs.queue import JobQueue, open_queue
from callyard.jobs.run import QueuedJob, RunningJob
from callyard.jobs.stored import StoredJobs
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.model.limits import CLEANUP_S, Limits
from callyard.model.profile import Profile
from callyard.model.spec import ToolSpec
from callyard.state.memory import MemoryStore
from callyard.state.store import Lease, Store, StoreUnavailableError

__all__ = ["Jobs"]

_TICK_S: Final = 1.0
_SCAN_S: Final = 10.0
_TOOL_WAIT_S: Final = 60.0
"""How long a job waits for its tool: upstreams may connect late, and another worker may have it."""
_SWEEP: Final = "job_sweep"
"""The lease of the one process that looks for jobs which nobody runs."""
_SEEN_S: Final = 2.0
"""How long a server believes that a worker lives."""
Taken = Literal["runs", "settled", "later"]
"""What became of a job that nobody ran: it runs here now, it needs nothing more, or another process may fit better."""
_MAX_JOBS: Final = 1000
_WHAT_TO_DO: Final = (
    "Do not run it again. Tell the person that it waits for approval, and follow it with get_job or wait_job."
)
_log = logging.getLogger(__name__)


class Jobs(StoredJobs):
    """The jobs of one open yard."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        registry: Registry,
        *,
        limits: Limits,
        find_profile: Callable[[str], Profile],
        needs_credentials: Callable[[str], bool],
    ) -> None:
        super().__init__(store)
        self.dispatcher = dispatcher
        self.limits = limits
        self.is_closing = False
        self.outlives_process = not isinstance(store, MemoryStore)
        """Whether another process could resume a job."""
        self._registry = registry
        self._find_profile = find_profile
        self._needs_credentials = needs_credentials
        self._running: dict[str, RunningJob] = {}
        self._starting = Counter[str]()
        self._wake = asyncio.Event()
        self._opened_at = 0.0
        self.tool_wait = _TOOL_WAIT_S
        """How many seconds a job waits for a process that has its tool with the same definition."""
        self._stack = AsyncExitStack()
        self._queue: JobQueue | None = None
        self._queue_lock = asyncio.Lock()
        self._workers_seen_at = -math.inf

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Start and settle jobs while the context is open; on leaving, interrupt those that run."""
        self._opened_at = time.monotonic()
        self.dispatcher.jobs = self
        maintenance = asyncio.create_task(self._maintain())
        if self.store.is_shared:
            await self._stack.enter_async_context(background_task(self._listen()))
        try:
            yield
        finally:
            self.is_closing = True
            maintenance.cancel()
            running = tuple(self._running.values())
            for job in running:
                job.stop()
            _, left = await asyncio.wait([maintenance, *(job.task for job in running)], timeout=CLEANUP_S)
            if left:
                _log.warning("jobs_left_behind count=%d", len(left))
            await self._stack.aclose()

    async def connect_queue(self) -> JobQueue:
        """Return the queue beside the store, which stays open as long as the jobs.

        Raises:
            StoreUnavailableError: The store has none, or its packages are not installed.
        """
        async with self._queue_lock:
            if self._queue is None:
                opened = await asyncio.to_thread(open_queue, self.store)  # loads packages for a second
                self._queue = await self._stack.enter_async_context(opened)
            return self._queue

    async def _queue_of_workers(self) -> JobQueue | None:
        """Return the queue if there are workers, so that somebody reads it."""
        if not self.store.is_shared:
            return None
        if time.monotonic() - self._workers_seen_at >= _SEEN_S:
            if not await self.store.keys(WORKERS, limit=1):
                return None
            self._workers_seen_at = time.monotonic()
        try:
            return await self.connect_queue()
        except StoreUnavailableError as error:
            _log.warning("job_queue_unavailable reason=%s", error.reason)
            return None

    def becomes_job(self, run: Run) -> bool:
        """Return whether a run is stored before its handler starts, because its caller or its tool says so.

        Inside other calls and jobs, a tool that is a job by its own word is an ordinary call.
        """
        if run.job is not None:
            return False
        if run.options.background:
            return True
        mode, channel = run.call.spec.job, run.call.channel
        if mode is None or channel.job_id or not is_first(run):
            return False
        return TASKS in channel.capabilities or mode == "always"

    def require_job(self, run: Run) -> None:
        """Refuse a run that cannot become a job, of a tool that must.

        Raises:
            ToolError: `not_supported`.
        """
        call = run.call
        if call.spec.job == "optional" or call.channel.job_id or not is_first(run):
            return
        message = f"'{call.spec.name}' runs only as a task, and this client does not declare the extension for tasks."
        hint = f"Start it with run_tool(tool_id='{call.spec.name}', background=true)."
        raise ToolError("not_supported", message, hint=hint, may_have_run=False, capabilities=[TASKS])

    async def store_run(self, run: Run, approval_id: str) -> tuple[RunningJob | QueuedJob, dict[str, Any]]:
        """Store a run, which goes on as a job, here or at a worker; return it, and the data of its first answer.

        Raises:
            ToolError: The run needs credentials of its request, the store cannot be used, or too many jobs run.
        """
        self._check(run.call)
        order, identity = self._order(run), run.call.caller.identity
        self._starting[identity] += 1
        try:
            # What a person approved for this run is spent here.
            stays = order.stays or order.has_session or approval_id or run.prechecks
            queue = None if stays else await self._queue_of_workers()
            if queue is not None:
                return await self._enqueue(run, order, queue)
            lease, job, saved = await self._put(self._new_job(run, order, is_running=bool(approval_id)), order)
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=False) from None
        finally:
            self._starting -= Counter([identity])
        running = RunningJob(self, job, order, lease=lease, saved=saved)
        if not approval_id:
            run.call.channel = running.channel  # nothing ran yet that could have the channel of the request
        if run.replies is not None:
            self._follow(running, run.replies.task)
        wait = self._registry.suggest_wait(job.id, run.call.profile)
        return running, _first_answer(job, run.outlives_as, approval_id, wait=wait)

    async def give_back(self, job_id: str) -> None:
        """Bring a job to another process at once, if there are workers; else the next sweep finds it."""
        if self._queue is not None:
            await self._queue.enqueue(job_id)

    async def _enqueue(self, run: Run, order: JobOrder, queue: JobQueue) -> tuple[QueuedJob, dict[str, Any]]:
        """Store a job that a worker will run; if it cannot be enqueued now, the next sweep does that."""
        job = self._new_job(run, order, is_running=False)
        entries = await self.store.keys(open_entry(job.owner, ""), limit=self.limits.jobs)
        if len(entries) >= self.limits.jobs:
            raise _too_many()
        await self._write(job, order)
        try:
            await queue.enqueue(job.id)
        except StoreUnavailableError as error:
            _log.warning("job_not_enqueued id=%s reason=%s", job.id, error.reason)
        except asyncio.CancelledError:  # a client that goes away: nobody was told of the job
            with suppress(StoreUnavailableError):
                await self._send(job.id, {"cancel": True})
            raise
        wait = self._registry.suggest_wait(job.id, run.call.profile)
        return QueuedJob(run.call.channel, order.inside), _first_answer(job, run.outlives_as, "", wait=wait)

    def _new_job(self, run: Run, order: JobOrder, *, is_running: bool) -> Job:
        now, replies = time.time(), run.replies
        progress = None if replies is None else replies.last_progress
        return Job(
            id=new_job_id(),
            tool=order.name,
            owner=order.caller.identity,
            created_at=now,
            updated_at=now,
            ttl=self.limits.job_ttl,
            lease=0,
            claimed=is_running,
            progress=None if progress is None else msgspec.to_builtins(progress),
            log=() if replies is None else tuple(log_line(*note) for note in replies.log_notes),
            partial=None if run.partial is None else msgspec.json.decode(run.partial()),
        )

    def _order(self, run: Run) -> JobOrder:
        call = run.call
        wraps = self._registry.find(call.spec.name, call.profile).wraps
        text = run.text  # the arguments as they came, with references resolved
        if call.session is not None and not call.arguments.get("session_id"):
            text = encode({**msgspec.json.decode(text), "session_id": call.session.id})
        return JobOrder(
            name=call.spec.name,
            arguments=msgspec.Raw(text),
            caller=JobCaller.of(call.caller),
            definition=resume_hash(call.spec),
            safe=call.spec.safe,
            refs_resolved=not wraps or run.options.refs_resolved,
            inside=names_around(run),
            has_session=call.session is not None,
            # What it calls inside may need a session that lives here.
            stays=self.store.is_shared and (call.spec.local or (wraps and b'"session_id"' in text)),
            confirmation=None if call.spec.confirmation is None else dict(call.confirmation),
            channel=call.channel.name,
            capabilities=tuple(sorted(call.channel.capabilities)),
            trace=dict(call.channel.trace) if run.span is None else {**call.channel.trace, **run.span.carrier()},
            trace_id=call.channel.trace_id if run.span is None else run.span.trace_id,
            result_characters=call.channel.result_characters,
            asks_before_destroy=run.asks_before_destroy,
        )

    def _check(self, call: Call) -> None:
        if self._needs_credentials(call.spec.source):
            message = f"'{call.spec.name}' passes on credentials of the request, which a job must not keep."
            hint = "Call it directly, not in the background."
            raise ToolError("not_supported", message, hint=hint, may_have_run=False)
        if self.is_closing:
            raise ToolError("overloaded", "The yard is closing.")
        identity = call.caller.identity
        own = sum(job.job.owner == identity for job in self._running.values()) + self._starting[identity]
        if own >= self.limits.jobs or len(self._running) + self._starting.total() >= _MAX_JOBS:
            raise _too_many()

    async def _put(self, job: Job, order: JobOrder) -> tuple[Lease, Job, bytes]:
        """Store a new job under a new lease; return the lease, and the job as stored."""
        lease = await self.store.acquire(JOBS + job.id, ttl=LEASE_S)
        assert lease is not None  # noqa: S101 - nobody else knows the id
        job = msgspec.structs.replace(job, lease=lease.token)
        return lease, job, await self._write(job, order)

    async def _write(self, job: Job, order: JobOrder) -> bytes:
        """Store a new job; return its state as stored.

        It is stored last: without it, the other entries are nothing that a process would run.
        """
        saved, store = encode(job), self.store
        entries = {ORDERS + job.id: encode(order), list_entry(order.owner, job): b"", RUNNING + job.id: b""}
        if store.is_shared:
            entries[open_entry(job.owner, job.id)] = b""
        try:
            await store.put_many({**entries, JOBS + job.id: saved})
        except BaseException:  # also a client that goes away: a job that nobody was told of does not run
            with suppress(StoreUnavailableError):
                await store.delete(JOBS + job.id)
                await tidy(store, job, order.owner)
            raise
        return saved

    def _follow(self, running: RunningJob, task: "asyncio.Task[Any]") -> None:
        running.task = task
        self._running[running.job.id] = running
        task.add_done_callback(partial(self._leave, running))
        self._wake.set()

    def _leave(self, running: RunningJob, task: "asyncio.Task[Any]") -> None:
        self._running.pop(running.job.id, None)
        running.settled.set()  # also for those who wait for a job that another process has taken
        if not task.cancelled() and (error := task.exception()) is not None:
            log_exception(_log, "job_failed id=%s tool=%s", running.job.id, running.job.tool, error=error)

    @property
    def running(self) -> Mapping[str, RunningJob]:
        """Return the jobs that run in this process, by id."""
        return self._running

    async def known(self, job_id: str) -> Job | None:
        """Return a job, the newest state of which may not be stored yet."""
        running = self._running.get(job_id)
        return running.job if running is not None else await super().known(job_id)

    async def _known_of(self, job_ids: Sequence[str]) -> list[Job]:
        found = {job.id: job for job in await super()._known_of([one for one in job_ids if one not in self._running])}
        found |= {job_id: self._running[job_id].job for job_id in job_ids if job_id in self._running}
        return [found[job_id] for job_id in job_ids if job_id in found]

    async def cancel(self, job_id: str, identity: str | None) -> Job:
        """Cancel a job, if it has not ended; return it as it was."""
        running = self._running.get(job_id)
        if running is None:
            job = await super().cancel(job_id, identity)
            if self.store.is_shared and not job.ended:
                await self._settle_queued(job_id)
            return job
        job = await self.get(job_id, identity)
        await running.cancel()
        return job

    async def _settle_queued(self, job_id: str) -> None:
        """End a cancelled job that waits for a worker; one that runs is told by its message."""
        if self._queue is not None:
            await self._queue.cancel(job_id)
        lease = await self.store.acquire(JOBS + job_id, ttl=LEASE_S)
        if lease is not None and await self.take_over(job_id, lease) != "runs":
            await self.store.release(lease)

    async def answer(self, job_id: str, identity: str | None, responses: Mapping[str, Any]) -> None:
        """Deliver answers of the client to questions of a job; answers to unknown questions are ignored."""
        running = self._running.get(job_id)
        if running is None:
            await super().answer(job_id, identity, responses)
            return
        await self.get(job_id, identity)
        await running.answer(responses)

    async def wait_settled(self, job: Job) -> None:
        """Wait until a job has ended or asks something."""
        running = self._running.get(job.id)
        await (running.settled.wait() if running is not None else super().wait_settled(job))

    async def _maintain(self) -> None:
        """Renew leases, save progress, deliver messages of other processes, and settle abandoned jobs."""
        renewed = scanned = -math.inf
        while True:
            now = time.monotonic()
            renews, scans = now - renewed >= RENEW_S, self.outlives_process and now - scanned >= _SCAN_S
            with suppress(StoreUnavailableError):  # logged by the store
                for running in tuple(self._running.values()):
                    if renews:
                        await running.renew()
                    await running.save()
                renewed = now if renews else renewed
                if self.store.is_shared:
                    await self._read_mail(tuple(self._running) if renews else ())
                elif self.outlives_process and self._running:
                    await self._read_all_mail()
                if scans:
                    await self._scan()
                    scanned = now
            if not self._running:  # until a job starts, or until the next scan
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SCAN_S if self.outlives_process else None):
                        await self._wake.wait()
            await asyncio.sleep(_TICK_S)

    async def _listen(self) -> None:
        """Read the messages for jobs as soon as they are there; those of lost wake-ups are read with the next lease."""
        while True:
            with suppress(StoreUnavailableError):
                async with self.store.subscribe(MESSAGES) as messages:
                    async for message in messages:
                        await self._read_mail([message.decode()] if message else tuple(self._running))
            await asyncio.sleep(_TICK_S)

    async def _read_mail(self, job_ids: Sequence[str]) -> None:
        """Deliver the messages for those of several jobs that run here."""
        for job_id in job_ids:
            if job_id in self._running:
                for key in await self.store.keys(f"{MESSAGES}{job_id}/"):
                    await self._deliver(key)

    async def _read_all_mail(self) -> None:
        async for key in _all_keys(self.store, MESSAGES):
            await self._deliver(key)

    async def _deliver(self, key: str) -> None:
        running = self._running.get(key.split("/")[1])
        if running is not None:
            message = await self._take_message(key)
            if message.get("cancel"):
                await running.cancel()
            await running.answer(message.get("answers", {}))

    async def unfinished(self, *, limit: int) -> list[Job]:
        """Return jobs of all callers that have not ended, the oldest ones."""
        keys = deque([key async for key in _all_keys(self.store, RUNNING)], maxlen=limit)
        jobs = await self._known_of([key.removeprefix(RUNNING) for key in keys])
        return [job for job in jobs if not job.ended]

    async def _scan(self) -> None:
        """Find jobs that nobody runs: bring them to workers, or settle them here.

        Of the processes on a shared store, one does that at a time.
        """
        queue = await self._queue_of_workers()  # which also loads its packages before the first job needs it
        if self.store.is_shared and await self.store.acquire(_SWEEP, ttl=_SCAN_S) is None:
            return
        async for key in _all_keys(self.store, RUNNING):
            job_id = key.removeprefix(RUNNING)
            lease = None if job_id in self._running else await self.store.acquire(JOBS + job_id, ttl=LEASE_S)
            if lease is None:
                continue
            try:
                if queue is not None:
                    await queue.enqueue(job_id)
                if queue is not None or await self.take_over(job_id, lease) != "runs":
                    await self.store.release(lease)
            except msgspec.MsgspecError:  # such as of a newer version, which can read it
                log_exception(_log, "job_unreadable id=%s", job_id)

    async def take_over(self, job_id: str, lease: Lease) -> Taken:
        """Resume or settle a job that nobody runs, under its lease, which only a job that runs keeps."""
        saved, ordered = await self.store.get_many([JOBS + job_id, ORDERS + job_id])
        job = None if saved is None else msgspec.json.decode(saved, type=Job)
        order = None if ordered is None else msgspec.json.decode(ordered, type=JobOrder)
        if saved is None or job is None or order is None:
            await self.store.delete(RUNNING + job_id)
            return "settled"
        if job.ended:  # its process ended just before it could tidy up
            await tidy(self.store, job, order.owner)
            return "settled"
        verdict = None if self.is_closing else await self._verdict(job, order)
        running = RunningJob(self, job, order, lease=lease, saved=saved)
        if verdict is None:
            if self.store.is_shared and not job.unfit_since and not self.is_closing:
                await running.take(unfit_since=time.time())
            return "later"
        if not await running.take():
            return "settled"
        if isinstance(verdict, Profile):
            if job.lease:
                _log.info("job_resumed id=%s tool=%s", job_id, job.tool)
            profile = None if order.caller.profile is None else verdict
            self._follow(running, asyncio.create_task(running.run_again(profile), context=Context()))
            return "runs"
        status, envelope = verdict
        _log.warning("job_settled id=%s tool=%s status=%s may_have_run=%s", job_id, job.tool, status, job.claimed)
        await running.end(status, envelope)
        return "settled"

    async def _verdict(self, job: Job, order: JobOrder) -> tuple[JobStatus, Envelope] | Profile | None:
        """Return how a job ends that its process left, or the profile to resume it with, or None to decide later."""
        if job.cancel_requested or await self._was_cancelled(job.id):
            return "cancelled", cancelled(job)
        if order.has_session:
            why = "The server ended, and with it the session of the job."
            return "interrupted", interrupted(job, why, reason="session_gone")
        left = "interrupted", interrupted(job, "The server ended while the job ran.")
        if not order.may_run_again(job):
            return left
        profile, spec = self._find(order)
        if profile is not None and spec is not None and resume_hash(spec) == order.definition:
            return profile if spec.safe or not job.claimed else left
        if self._may_fit_later(job, has_tool=spec is not None):
            return None
        what, reason = ("without", "tool_gone") if spec is None else ("with another definition of", "tool_changed")
        return "interrupted", interrupted(job, f"The server was started anew {what} '{job.tool}'.", reason=reason)

    def _may_fit_later(self, job: Job, *, has_tool: bool) -> bool:
        """Return whether to wait for the tool of a job: for other workers, or here for upstreams that connect late."""
        if self.store.is_shared:
            return not job.unfit_since or time.time() - job.unfit_since < self.tool_wait
        return not has_tool and time.monotonic() - self._opened_at < self.tool_wait

    async def _was_cancelled(self, job_id: str) -> bool:
        """Return whether somebody cancelled a job that no process ran."""
        messages = [await self._take_message(key) for key in await self.store.keys(f"{MESSAGES}{job_id}/")]
        return any(message.get("cancel") for message in messages)

    async def _take_message(self, key: str) -> dict[str, Any]:
        message = msgspec.json.decode(await self.store.get(key) or b"{}")
        await self.store.delete(key)
        return message

    def _find(self, order: JobOrder) -> tuple[Profile | None, ToolSpec | None]:
        """Return the profile and the tool of a job, as far as they are still there."""
        name = order.caller.profile
        try:
            profile = self.dispatcher.profile if name is None else self._find_profile(name)
            return profile, self._registry.find(order.name, profile).spec
        except (KeyError, ToolError):
            return None, None


async def _all_keys(store: Store, prefix: str) -> AsyncGenerator[str]:
    """Yield every key with a prefix, page by page."""
    page = await store.keys(prefix)
    while page:
        for key in page:
            yield key
        page = await store.keys(prefix, after=page[-1])


def _too_many() -> ToolError:
    hint = "Wait until some have ended."
    return ToolError("overloaded", "Too many jobs run already.", hint=hint, retry_after_ms=1000)


def _first_answer(job: Job, status: str, approval_id: str, *, wait: str) -> dict[str, Any]:
    if not approval_id:
        return started_data(job, wait)
    data = {"status": status, "approval_id": approval_id, "job_id": job.id}
    return {**data, "poll_after_ms": POLL_MS, "what_to_do": _WHAT_TO_DO}
