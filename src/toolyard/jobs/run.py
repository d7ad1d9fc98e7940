"""One job while it runs in this process: its lease, its channel, its questions and its end."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolyard.dispatch.call import CallRequest, Channel, InvokeOptions
from toolyard.dispatch.outcome import store_unavailable
from toolyard.dispatch.progress import Progress
from toolyard.jobs import keys
from toolyard.jobs.job import ENDED, Job, JobOrder, JobResult, JobStatus, LogLine, cancelled, interrupted
from toolyard.model.elicitation import ClientRequest, unsupported_by_client
from toolyard.model.envelope import Envelope, encode
from toolyard.model.errors import ToolError
from toolyard.state.store import Lease, StoreUnavailableError

if TYPE_CHECKING:
    from toolyard.jobs.service import Jobs

__all__ = ["LEASE_S", "TASKS", "RunningJob"]

LEASE_S: Final = 15.0
TASKS: Final = "tasks"
"""The capability of clients that declare MCP's extension for tasks."""
_LOG_LINES: Final = 20
_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


class RunningJob:
    """One job in this process. It satisfies `JobRun`."""

    task: "asyncio.Task[None]"

    def __init__(self, jobs: "Jobs", job: Job, order: JobOrder, *, lease: Lease, saved: bytes, is_admitted: bool) -> None:
        self._jobs = jobs
        self.job = job
        self.order = order
        self.is_admitted = is_admitted
        self.result: JobResult | None = None
        """The answer, as soon as there is one, even if it cannot be stored yet."""
        self.settled = asyncio.Event()
        """Set while the job has ended or asks something."""
        self._lease = lease
        self._saved = saved
        """What the store holds of the job: somebody else writes it only after our lease ended."""
        self._lock = asyncio.Lock()
        self._has_begun = False
        self._is_cancelled = False
        self._is_lost = False
        self._questions: dict[str, tuple[ClientRequest, asyncio.Future[Any]]] = {}

    @property
    def confirmation(self) -> Mapping[str, Any] | None:
        """Return what a person answered to the declared confirmation."""
        return self.order.confirmation

    async def execute(self, request: CallRequest) -> None:
        """Run the job and store its answer."""
        try:
            self._has_begun = True
            if self._is_cancelled or self._jobs.is_closing:  # before it began
                raise asyncio.CancelledError  # noqa: TRY301 - as if it came a moment later
            options = InvokeOptions(refs_resolved=True, job=self)
            envelope = await self._jobs.dispatcher.dispatch(request, channel=self._channel(), options=options)
            failed = envelope.error is not None and envelope.error.code == "internal_error"
            status: JobStatus = "failed" if failed else "completed"
        except asyncio.CancelledError:
            if self._is_lost:
                return
            if self._is_cancelled:
                status, envelope = "cancelled", cancelled(self.job)
            elif self._jobs.outlives_process and self.order.safe and not self.order.has_session:
                await self._jobs.store.release(self._lease)  # the next process runs it again, at once
                return
            else:
                status, envelope = "interrupted", interrupted(self.job, "The server ended while the job ran.")
        await self.end(status, envelope)

    async def end(self, status: JobStatus, envelope: Envelope) -> None:
        """Store the answer and the end of the job; while the store fails, try again until the yard closes."""
        self.result = JobResult.of(envelope)
        self.job = msgspec.structs.replace(self.job, status=status, asks={}, updated_at=time.time())
        self.settled.set()
        while not await self._store_end(self.result) and not self._jobs.is_closing:  # noqa: ASYNC110 - see below
            await asyncio.sleep(_RETRY_S)  # the store gives no sign when it works again

    async def _store_end(self, result: JobResult) -> bool:
        """Store the answer and the end of the job; return False if the store fails."""
        store = self._jobs.store
        try:
            await store.put(keys.result(self.job.id), encode(result), ttl=self.job.ttl)
            if await self._save(self.job):
                await store.delete(keys.running(self.job.id))
                await store.release(self._lease)
        except StoreUnavailableError as error:
            _log.warning("job_not_stored id=%s reason=%s", self.job.id, error.reason)
            return False
        return True

    async def claim(self) -> None:
        """Note that the handler starts now, before it does.

        Raises:
            ToolError: It cannot be noted, so the handler must not start.
        """
        try:
            if not await self._save(msgspec.structs.replace(self.job, claimed=True)):
                raise ToolError("cancelled", "Another process has taken over the job.", blame="yard", may_have_run=False)
        except StoreUnavailableError:
            raise store_unavailable(may_have_run=False) from None

    def cancel(self) -> None:
        """Cancel the job."""
        if self.job.status not in ENDED and not self._is_cancelled:
            self._is_cancelled = True
            self.stop()

    def stop(self) -> None:
        """Cancel the task; one that has not begun yet ends as soon as it does, because it would not see its cancellation."""
        if self._has_begun:
            self.task.cancel()

    async def renew(self) -> None:
        """Hold the lease for longer; a job that lost it is stopped, because another process may judge it now."""
        if await self._jobs.store.renew(self._lease, ttl=LEASE_S) or self.job.status in ENDED:
            return
        _log.warning("job_lost id=%s tool=%s", self.job.id, self.job.tool)
        self._is_lost = True
        self.stop()

    async def save_progress(self) -> None:
        """Store progress and log lines, if there are new ones."""
        if self.job.status not in ENDED and encode(self.job) != self._saved:
            await self._save(self.job)

    async def answer(self, responses: Mapping[str, Any]) -> None:
        """Deliver answers to questions; unknown keys are ignored."""
        for key, response in responses.items():
            _, future = self._questions.get(key, (None, None))
            if future is not None and not future.done():
                future.set_result(response)
        if responses:
            await self._save_questions()

    def _channel(self) -> Channel:
        order = self.order
        return Channel(
            name=order.channel,
            progress=self._note_progress,
            log=self._note_log,
            ask=self._ask,
            capabilities=frozenset(order.capabilities),
            trace=order.trace,
            job_id=self.job.id,
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
        numbered = {f"{key}-{len(self._questions) + number}" if key in self._questions else key: key for number, key in enumerate(asks)}
        futures = {name: loop.create_future() for name in numbered}
        self._questions |= {name: (asks[key], futures[name]) for name, key in numbered.items()}
        await self._save_questions()
        try:
            async with asyncio.timeout(self.job.ttl or None):
                return {key: await futures[name] for name, key in numbered.items()}
        except TimeoutError:
            raise ToolError("cancelled", "Nobody answered the questions of the job.", reason="dismissed") from None
        finally:
            for name in numbered:
                del self._questions[name]
            await self._save_questions()

    async def _save_questions(self) -> None:
        asks = {name: ask for name, (ask, future) in self._questions.items() if not future.done()}
        self.job = msgspec.structs.replace(self.job, asks=asks, status="input_required" if asks else "working", updated_at=time.time())
        (self.settled.set if asks else self.settled.clear)()
        try:
            await self._save(self.job)
        except StoreUnavailableError as error:  # other processes see it later
            _log.warning("job_not_stored id=%s reason=%s", self.job.id, error.reason)

    async def _save(self, job: Job) -> bool:
        """Store the state of the job; return False if another process has written it, because our lease ended."""
        async with self._lock:
            data = encode(job)
            if not await self._jobs.store.compare_and_set(keys.job(job.id), self._saved, data, ttl=job.ttl):
                return False
            self._saved = data
            if job.claimed and not self.job.claimed:
                self.job = msgspec.structs.replace(self.job, claimed=True)
            if job.status != "working":
                await self._jobs.store.publish(keys.topic(job.id), b"")
            return True

    def _note_progress(self, progress: Progress) -> None:
        self.job = msgspec.structs.replace(self.job, progress=msgspec.to_builtins(progress), updated_at=time.time())

    def _note_log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        line = LogLine(level, text, msgspec.json.decode(encode(dict(facts))))
        self.job = msgspec.structs.replace(self.job, log=(*self.job.log, line)[-_LOG_LINES:], updated_at=time.time())
