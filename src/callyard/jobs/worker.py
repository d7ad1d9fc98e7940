"""A worker: runs the jobs that the queue delivers to this process, and gives them back when it ends."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final
from uuid import uuid4

import msgspec

from callyard._internal.logfmt import log_exception
from callyard._internal.tasks import background_task
from callyard.jobs.job import JOBS, LEASE_S, RENEW_S, WORKERS
from callyard.jobs.service import Jobs
from callyard.model.limits import CLEANUP_S
from callyard.state.store import Lease, StoreUnavailableError

__all__ = ["JobWorker"]

_LOOK_S: Final = 0.25
"""How often a worker tries to take a job whose lease has not ended yet."""
_LATER_S: Final = 2.0
"""When a job is delivered again that does not fit this worker, or that cannot be read now."""
_log = logging.getLogger(__name__)


class JobWorker:
    """Runs jobs of servers in the open yard of this process."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def run(self, *, drain_s: float) -> None:
        """Run the jobs of the queue until this is cancelled; then give back those that another worker may run.

        Those that may not run again have so many seconds to end.

        Raises:
            StoreUnavailableError: The store has no queue.
        """
        queue = await self._jobs.connect_queue()
        delivery = asyncio.create_task(queue.run(self._work_on))
        async with background_task(self._announce()):
            try:
                await asyncio.shield(delivery)
            finally:
                self._jobs.is_closing = True
                delivery.cancel()
                await self._stop_jobs(delivery, drain_s=drain_s)

    async def _stop_jobs(self, delivery: "asyncio.Task[None]", *, drain_s: float) -> None:
        running = tuple(self._jobs.running.values())
        lasting = [job for job in running if not job.order.may_run_again(job.job)]
        for job in running:
            if job not in lasting:
                job.stop()
        if lasting:
            await asyncio.wait([job.task for job in lasting], timeout=drain_s)
        for job in lasting:
            job.stop()
        await asyncio.wait([delivery, *(job.task for job in running)], timeout=CLEANUP_S)

    async def _announce(self) -> None:
        """Tell servers that this worker lives."""
        key = f"{WORKERS}{uuid4().hex}"
        try:
            while True:
                with suppress(StoreUnavailableError):
                    await self._jobs.store.put(key, b"", ttl=LEASE_S)
                await asyncio.sleep(RENEW_S)
        finally:
            with suppress(StoreUnavailableError):
                await self._jobs.store.delete(key)

    async def _work_on(self, job_id: str) -> float | None:
        """Run the job of a delivery; return in how many seconds it must be delivered again, if at all."""
        try:
            lease = await self._wait_for_lease(job_id)
            taken = "settled" if lease is None else await self._jobs.take_over(job_id, lease)
            if lease is not None and taken != "runs":
                await self._jobs.store.release(lease)
        except StoreUnavailableError:
            return _LATER_S
        except msgspec.MsgspecError:
            log_exception(_log, "job_unreadable id=%s", job_id)
            return None  # a process with a newer version finds it with its next sweep
        running = self._jobs.running.get(job_id)
        if running is None or taken != "runs":
            return _LATER_S if taken == "later" else None
        try:
            await asyncio.wait({running.task})
        except asyncio.CancelledError:
            if not self._jobs.is_closing:  # somebody cancelled the job; else only this process ends
                await running.cancel()
                await asyncio.wait({running.task})
            raise
        return 0.0 if running.is_given_back else None

    async def _wait_for_lease(self, job_id: str) -> Lease | None:
        """Take the lease of a job; that of a dead process ends soon, and that of another one is renewed."""
        until = time.monotonic() + LEASE_S + RENEW_S
        while (lease := await self._jobs.store.acquire(JOBS + job_id, ttl=LEASE_S)) is None:
            if time.monotonic() >= until or self._jobs.is_closing:
                return None
            await asyncio.sleep(_LOOK_S)
        return lease
