"""The jobs of one yard: starts, shows and cancels jobs, and settles those of dead processes.

A job belongs to the process that holds its lease. Another process resumes it, or reports it as interrupted, only after the lease
ended. It knows no protocol and no metatool.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.admission import is_first
from callyard.dispatch.call import Call, names_around
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.registry import Registry
from callyard.jobs import keys
from callyard.jobs.job import (
    LEASE_S,
    TASKS,
    Job,
    JobCaller,
    JobOrder,
    JobStatus,
    cancelled,
    interrupted,
    new_job_id,
    resume_hash,
    started_data,
)
from callyard.jobs.stored import StoredJobs, all_keys, tidy
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.profile import Profile
from callyard.model.spec import ToolSpec
from callyard.state.memory import MemoryStore
from callyard.state.store import Lease, Store, StoreUnavailableError

if TYPE_CHECKING:
    from callyard.jobs.attached import AttachedJob  # most yards run no job, and start sooner without
    from callyard.jobs.run import RunningJob

__all__ = ["Jobs"]

_RENEW_S: Final = 5.0
_TICK_S: Final = 1.0
_SCAN_S: Final = 10.0
_TOOL_WAIT_S: Final = 60.0
"""How long after the start a job waits for a tool that is not there yet: upstreams may connect late."""
_MAX_JOBS: Final = 1000
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
        self._attached: set[RunningJob] = set()
        """Jobs whose callers still wait."""
        self._starting = Counter[str]()
        """Jobs that are being stored, by identity."""
        self._wake = asyncio.Event()
        self._opened_at = 0.0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Start and settle jobs while the context is open; on leaving, interrupt those that run."""
        self._opened_at = time.monotonic()
        self.dispatcher.admission.start_job = self.start
        maintenance = asyncio.create_task(self._maintain())
        try:
            yield
        finally:
            self.is_closing = True
            maintenance.cancel()
            running = [*self._running.values(), *self._attached]
            for job in running:
                job.stop()
            _, left = await asyncio.wait([maintenance, *(job.task for job in running)], timeout=self.limits.cleanup or None)
            if left:
                _log.warning("jobs_left_behind count=%d", len(left))

    async def start(self, call: Call) -> Envelope | None:
        """Start a job in place of an admitted call and return its first answer, or return None if the call runs at once.

        Raises:
            ToolError: The client cannot take a job, the call needs credentials of its request, or too many jobs run.
        """
        if not call.options.background and not _becomes_job(call):
            return None
        self._check(call)
        order = self._order(call)
        self._starting[call.caller.identity] += 1
        try:
            job = await self._create(order, call.caller.profile)
        except StoreUnavailableError:
            raise store_unavailable(may_have_run=False) from None
        finally:
            self._starting -= Counter([call.caller.identity])
        return Envelope.ok(started_data(job))

    def can_attach(self, call: Call) -> bool:
        """Return whether a call may become a job by `attach`: nothing ran before it, and it is in no job already."""
        return call.options.job is None and not call.channel.job_id and is_first(call)

    def attach(self, call: Call) -> "AttachedJob":
        """Return an attached job for a call; its `run` takes the place of the handler."""
        from callyard.jobs.attached import AttachedJob  # noqa: PLC0415 - most yards run no job, and start sooner without

        attached = AttachedJob(self, self._order(call), call)
        self._attached.add(attached)
        return attached

    async def adopt(self, attached: "AttachedJob", call: Call) -> tuple[Lease, Job, bytes]:
        """Store an attached job, which runs on as any other; return its lease, and its state as stored.

        Raises:
            ToolError: `overloaded` if too many jobs run.
        """
        self._check(call)
        stored = await self._put(attached.with_partial(), attached.order)
        self._attached.discard(attached)
        self._running[stored[1].id] = attached
        self._wake.set()
        return stored

    def _order(self, call: Call) -> JobOrder:
        wraps = self._registry.find(call.spec.name, call.profile).wraps
        return JobOrder(
            name=call.spec.name,
            arguments=_arguments_of(call),
            caller=JobCaller.of(call.caller),
            definition=resume_hash(call.spec),
            safe=call.spec.safe,
            refs_resolved=not wraps or call.options.refs_resolved,
            inside=names_around(call),
            has_session=call.session is not None,
            confirmation=None if call.spec.confirmation is None else dict(call.confirmation),
            channel=call.channel.name,
            capabilities=tuple(sorted(call.channel.capabilities)),
            trace=dict(call.channel.trace),
            trace_id=call.channel.trace_id,
            result_characters=call.channel.result_characters,
        )

    def _check(self, call: Call) -> None:
        """Check that a call can become a job."""
        if self._needs_credentials(call.spec.source):
            message = f"'{call.spec.name}' passes on credentials of the request, which a job must not keep."
            raise ToolError("not_supported", message, hint="Call it directly, not in the background.", may_have_run=False)
        if self.is_closing:
            raise ToolError("overloaded", "The yard is closing.")
        identity = call.caller.identity
        own = sum(job.job.owner == identity for job in self._running.values()) + self._starting[identity]
        if own >= self.limits.jobs or len(self._running) + self._starting.total() >= _MAX_JOBS:
            raise ToolError("overloaded", "Too many jobs run already.", hint="Wait until some have ended.", retry_after_ms=1000)

    async def _create(self, order: JobOrder, profile: Profile | None) -> Job:
        """Store a new job, which this process holds, and start it."""
        from callyard.jobs.run import RunningJob  # noqa: PLC0415 - most yards run no job, and start sooner without

        owner, now = order.caller.identity, time.time()
        job = Job(id=new_job_id(), tool=order.name, owner=owner, created_at=now, updated_at=now, ttl=self.limits.job_ttl, lease=0)
        lease, job, saved = await self._put(job, order)
        self._launch(RunningJob(self, job, order, lease=lease, saved=saved, is_admitted=True), profile)
        return job

    async def _put(self, job: Job, order: JobOrder) -> tuple[Lease, Job, bytes]:
        """Store a new job under a new lease; return the lease, and the job as stored.

        Its state is stored last: without it, the other entries are nothing that a process would run.
        """
        job_id, store = job.id, self.store
        lease = await store.acquire(keys.lease(job_id), ttl=LEASE_S)
        assert lease is not None  # noqa: S101 - nobody else knows the id
        job = msgspec.structs.replace(job, lease=lease.token)
        saved = encode(job)
        try:
            await store.put(keys.order(job_id), encode(order))
            await store.put(keys.list_entry(order.owner, job), b"")
            await store.put(keys.running(job_id), b"")
            await store.put(keys.job(job_id), saved)
        except BaseException:  # also a client that goes away: a job that nobody was told of does not run
            with suppress(StoreUnavailableError):
                await store.delete(keys.job(job_id))
                await tidy(store, job, order.owner)
            raise
        return lease, job, saved

    def _launch(self, running: "RunningJob", profile: Profile | None) -> None:
        self._running[running.job.id] = running
        request = running.order.request(profile)
        # A new context, so that nothing of the request that started the job is visible in it.
        running.task = asyncio.get_running_loop().create_task(running.execute(request), context=Context())
        running.task.add_done_callback(partial(self.leave, running))
        self._wake.set()

    def leave(self, running: "RunningJob", task: "asyncio.Task[None]") -> None:
        """Forget a job whose task has ended."""
        self._running.pop(running.job.id, None)
        self._attached.discard(running)
        running.settled.set()  # also for those who wait for a job that another process has taken
        if not task.cancelled() and (error := task.exception()) is not None:
            log_exception(_log, "job_failed id=%s tool=%s", running.job.id, running.job.tool, error=error)

    async def known(self, job_id: str) -> Job | None:
        """Return a job, the newest state of which may not be stored yet."""
        running = self._running.get(job_id)
        return running.job if running is not None else await super().known(job_id)

    async def cancel(self, job_id: str, identity: str | None) -> Job:
        """Cancel a job, if it has not ended; return it as it was."""
        running = self._running.get(job_id)
        if running is None:
            return await super().cancel(job_id, identity)
        job = await self.get(job_id, identity)
        await running.cancel()
        return job

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
        """Renew leases, save progress, deliver messages of other processes, and settle abandoned jobs, as long as the yard is open."""
        renewed = scanned = -math.inf
        while True:
            now = time.monotonic()
            renews, scans = now - renewed >= _RENEW_S, self.outlives_process and now - scanned >= _SCAN_S
            with suppress(StoreUnavailableError):  # logged by the store
                for running in tuple(self._running.values()):
                    if renews:
                        await running.renew()
                    await running.save_progress()
                renewed = now if renews else renewed
                if self.outlives_process and self._running:
                    await self._read_messages()
                if scans:
                    await self._scan()
                    scanned = now
            await self._sleep()

    async def _sleep(self) -> None:
        """Sleep for a moment; without a job until one starts, or until the next scan."""
        if not self._running:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_SCAN_S if self.outlives_process else None):
                    await self._wake.wait()
        await asyncio.sleep(_TICK_S)

    async def _read_messages(self) -> None:
        """Handle the messages of other processes to the jobs that run here."""
        async for key in all_keys(self.store, keys.messages()):
            running = self._running.get(key.split("/")[1])
            if running is None:
                continue
            message = await self._take_message(key)
            if message.get("cancel"):
                await running.cancel()
            await running.answer(message.get("answers", {}))

    async def _scan(self) -> None:
        """Settle the jobs whose process is gone."""
        async for key in all_keys(self.store, keys.running()):
            job_id = key.removeprefix(keys.running())
            lease = None if job_id in self._running else await self.store.acquire(keys.lease(job_id), ttl=LEASE_S)
            if lease is None:
                continue
            try:
                if not await self._take_over(job_id, lease):
                    await self.store.release(lease)
            except msgspec.MsgspecError:  # such as of a newer version, which can read it
                log_exception(_log, "job_unreadable id=%s", job_id)

    async def _take_over(self, job_id: str, lease: Lease) -> bool:
        """Resume or settle a job that nobody runs; return whether it runs here now."""
        saved, ordered = await self.store.get(keys.job(job_id)), await self.store.get(keys.order(job_id))
        job = None if saved is None else msgspec.json.decode(saved, type=Job)
        order = None if ordered is None else msgspec.json.decode(ordered, type=JobOrder)
        if saved is None or job is None or order is None:
            await self.store.delete(keys.running(job_id))
            return False
        if job.ended:  # its process ended just before it could tidy up
            await tidy(self.store, job, order.owner)
            return False
        from callyard.jobs.run import RunningJob  # noqa: PLC0415 - most yards run no job, and start sooner without

        verdict = await self._verdict(job, order)
        running = RunningJob(self, job, order, lease=lease, saved=saved, is_admitted=False)
        if verdict is None or not await running.take():
            return False
        if isinstance(verdict, Profile):
            _log.info("job_resumed id=%s tool=%s", job_id, job.tool)
            self._launch(running, None if order.caller.profile is None else verdict)
            return True
        status, envelope = verdict
        _log.warning("job_settled id=%s tool=%s status=%s may_have_run=%s", job_id, job.tool, status, job.claimed)
        await running.end(status, envelope)
        return False

    async def _verdict(self, job: Job, order: JobOrder) -> tuple[JobStatus, Envelope] | Profile | None:
        """Return how a job ends that its process left, or the profile to resume it with, or None to decide later."""
        if job.cancel_requested or await self._was_cancelled(job.id):
            return "cancelled", cancelled(job)
        if order.has_session:
            return "interrupted", interrupted(job, "The server ended, and with it the session of the job.", reason="session_gone")
        left = "interrupted", interrupted(job, "The server ended while the job ran.")
        if not order.may_run_again(job):
            return left
        profile, spec = self._find(order)
        if profile is not None and spec is not None and resume_hash(spec) == order.definition:
            return profile if spec.safe or not job.claimed else left
        if spec is None and time.monotonic() - self._opened_at < _TOOL_WAIT_S:
            return None
        what, reason = ("without", "tool_gone") if spec is None else ("with another definition of", "tool_changed")
        return "interrupted", interrupted(job, f"The server was started anew {what} '{job.tool}'.", reason=reason)

    async def _was_cancelled(self, job_id: str) -> bool:
        """Return whether somebody cancelled a job that no process ran."""
        messages = [await self._take_message(key) for key in await self.store.keys(keys.messages(job_id))]
        return any(message.get("cancel") for message in messages)

    async def _take_message(self, key: str) -> dict[str, Any]:
        """Return a message and delete it."""
        message = msgspec.json.decode(await self.store.get(key) or b"{}")
        await self.store.delete(key)
        return message

    def _find(self, order: JobOrder) -> tuple[Profile | None, ToolSpec | None]:
        """Return the profile and the tool of a job, as far as they are still there."""
        try:
            profile = self.dispatcher.profile if order.caller.profile is None else self._find_profile(order.caller.profile)
            return profile, self._registry.find(order.name, profile).spec
        except (KeyError, ToolError):
            return None, None


def _arguments_of(call: Any) -> msgspec.Raw:
    """Return the arguments as they came, with references resolved, and with the session that the call found."""
    if call.session is None or call.arguments.get("session_id"):
        return msgspec.Raw(call.text)
    return msgspec.Raw(encode({**msgspec.json.decode(call.text), "session_id": call.session.id}))


def _becomes_job(call: Call) -> bool:
    """Return whether a call becomes a job because its tool says so; inside other calls and jobs it is an ordinary call.

    Raises:
        ToolError: `not_supported` if the tool requires MCP's tasks and the client does not declare them.
    """
    mode = call.spec.job
    if mode is None or call.channel.job_id or not is_first(call):
        return False
    if TASKS in call.channel.capabilities or mode == "always":
        return True
    if mode == "optional":
        return False
    message = f"'{call.spec.name}' runs only as a task, and this client does not declare the extension for tasks."
    hint = f"Start it with run_tool(tool_id='{call.spec.name}', background=true)."
    raise ToolError("not_supported", message, hint=hint, may_have_run=False, capabilities=[TASKS])
