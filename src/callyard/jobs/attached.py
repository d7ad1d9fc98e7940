"""Attached jobs: calls that run as a job from the start, because they may wait for a person longer than their caller can.

While the caller waits, the job is not stored, and progress, log lines and questions go to the caller. When the job is parked, the
caller gets a first answer, and the job goes on like any other. The job never starts again because of the wait.
"""

import asyncio
import time
from collections.abc import Mapping
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard.dispatch.call import Call, CallRequest, Channel, InvokeOptions
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.progress import Progress
from callyard.jobs.job import POLL_MS, Job, JobOrder, JobStatus, new_job_id
from callyard.jobs.run import RunningJob
from callyard.model.elicitation import APPROVAL_REQUIRED, ClientRequest
from callyard.model.envelope import Envelope
from callyard.state.store import Lease, StoreUnavailableError

if TYPE_CHECKING:
    from callyard.jobs.service import Jobs

__all__ = ["AttachedJob"]

_NO_LEASE: Final = Lease("", 0)
_WHAT_TO_DO: Final = "Do not run it again. Tell the person that it waits for approval, and follow it with get_job or wait_job."


class AttachedJob(RunningJob):
    """One call that runs as a job and can go on after its caller was answered."""

    is_attached = True

    def __init__(self, jobs: "Jobs", order: JobOrder, call: Call) -> None:
        now = time.time()
        job = Job(
            id=new_job_id(),
            tool=order.name,
            owner=order.caller.identity,
            created_at=now,
            updated_at=now,
            ttl=jobs.limits.job_ttl,
            lease=0,
            claimed=True,
        )
        super().__init__(jobs, job, order, lease=_NO_LEASE, saved=b"", is_admitted=True)
        self._waiting_call: Call | None = call
        """The call that waits for the answer; None once it was answered."""
        self._forwarded = dict(call.channel.forwarded)
        self._envelope: Envelope | None = None
        self._parked: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._parking = asyncio.Lock()

    async def run(self, call: Call, *, status: str = APPROVAL_REQUIRED) -> Envelope:
        """Run the call; return its answer, or that it waits for an approval. Cancelling this cancels a call that is not parked."""
        request = CallRequest(self.order.name, self.order.arguments, call.caller)
        self.task = asyncio.get_running_loop().create_task(self.execute(request), context=copy_context())
        self.task.add_done_callback(self._leave)
        holder: Any = call  # a run, as every call is
        holder.delegated = True
        while holder is not None:  # the job waits for places of its own, and its callers only wait for it
            holder.release()
            holder = holder.parent
        try:
            await asyncio.wait({self.task, self._parked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not self._parked.done():
                self._waiting_call = None
                self.task.cancel()
                await asyncio.wait({self.task})
            raise
        if not self._parked.done():
            assert self._envelope is not None  # noqa: S101 - the task ends with one
            return self._envelope
        data = {"status": status, "approval_id": self._parked.result(), "job_id": self.job.id}
        answer = Envelope.ok({**data, "poll_after_ms": POLL_MS, "what_to_do": _WHAT_TO_DO})
        answer.held = True
        return answer

    async def park(self, approval_id: str) -> None:
        """Store the job and let its caller be answered; the credentials of the caller's request are dropped.

        Raises:
            ToolError: `overloaded` if it cannot be stored, or too many jobs run.
        """
        async with self._parking:
            waiting = self._waiting_call
            if waiting is None or self._parked.done():
                return
            self._note_log("info", f"It waits for the approval '{approval_id}'.", {})
            try:
                self._lease, self.job, self._saved = await self._jobs.adopt(self, waiting)
            except StoreUnavailableError:
                raise store_unavailable(may_have_run=False) from None
            self._waiting_call = None
            self._forwarded.clear()
            self._parked.set_result(approval_id)

    async def claim(self) -> None:
        """Do nothing: it counts as started from the beginning."""

    async def _end(self, status: JobStatus, envelope: Envelope) -> None:
        self._envelope = envelope
        if self._parked.done():
            await super()._end(status, envelope)

    async def _save(self, **changes: Any) -> bool:
        if self._parked.done():
            return await super()._save(**changes)
        self.job = msgspec.structs.replace(self.job, **changes)
        return True

    def _leave(self, _: "asyncio.Task[None]") -> None:
        self._jobs.leave(self, self.task)

    def _options(self) -> InvokeOptions:
        seconds = 0.0 if self._waiting_call is None else self._waiting_call.seconds
        return msgspec.structs.replace(super()._options(), seconds=seconds)

    def _channel(self) -> Channel:
        waiting = self._waiting_call
        assert waiting is not None  # noqa: S101 - it starts before it is parked
        return msgspec.structs.replace(
            waiting.channel,
            server=0,
            progress=self._note_progress,
            log=self._note_log,
            ask=None if waiting.channel.ask is None else self._ask,
            forwarded=self._forwarded,
            hang_up=None,
        )

    async def _ask(self, asks: Mapping[str, ClientRequest], declared: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the type is `AskClient`
        if self._waiting_call is not None:
            return await self._waiting_call.ask_all(asks, declared=declared)
        return await super()._ask(asks, declared)

    def _note_progress(self, progress: Progress) -> None:
        if self._waiting_call is not None:
            self._waiting_call.progress(progress.done, progress.total, progress.text)
        super()._note_progress(progress)

    def _note_log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        if self._waiting_call is not None and self._waiting_call.channel.log is not None:
            self._waiting_call.log(level, text, **facts)
        super()._note_log(level, text, facts)
