"""The jobs in a store, for any process that can read it: shows them, waits for them, and leaves messages for them."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

import msgspec

from callyard.dispatch.sessions import SHARED_OWNER
from callyard.jobs.job import JOBS, MESSAGES, RESULTS, Job, JobResult, list_prefix
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import not_found
from callyard.state.store import Store

__all__ = ["StoredJobs"]

_LOOK_S: Final = 1.0
"""How often a job of another process is looked at, because messages may get lost."""
_MESSAGE_S: Final = 3600.0


class StoredJobs:
    """The jobs in a store. Their owner is an identity; None stands for an operator, who sees all of them."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def known(self, job_id: str) -> Job | None:
        """Return a job, if there is one of this id."""
        data = await self.store.get(JOBS + job_id)
        return None if data is None else msgspec.json.decode(data, type=Job)

    async def get(self, job_id: str, identity: str | None) -> Job:
        """Return a job of an identity.

        Raises:
            ToolError: `not_found` if there is none, or it belongs to somebody else.
        """
        job = await self.known(job_id)
        if job is None or (identity is not None and job.owner != identity):
            raise not_found("job", job_id, reason="unknown_job", may_have_run=False)
        return job

    async def result(self, job: Job) -> Envelope | None:
        """Return the answer of a job that has ended."""
        data = await self.store.get(RESULTS + job.result_key) if job.ended else None
        return None if data is None else msgspec.json.decode(data, type=JobResult).to_envelope()

    async def wait(self, job_id: str, identity: str | None, *, seconds: float | None) -> Job:
        """Return a job once it has ended or asks something, or after so many seconds."""
        job = await self.get(job_id, identity)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait_settled(job)
        return await self.get(job_id, identity)

    async def wait_settled(self, job: Job) -> None:
        """Wait until a job has ended or asks something."""
        async with self.store.subscribe(JOBS + job.id) as messages:
            while not job.ended and job.status != "input_required":
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await anext(messages)
                job = await self.get(job.id, None)

    async def cancel(self, job_id: str, identity: str | None) -> Job:
        """Cancel a job, if it has not ended; return it as it was."""
        job = await self.get(job_id, identity)
        if not job.ended:
            await self._send(job_id, {"cancel": True})
        return job

    async def answer(self, job_id: str, identity: str | None, responses: Mapping[str, Any]) -> None:
        """Deliver answers of the client to questions of a job; answers to unknown questions are ignored."""
        if not (await self.get(job_id, identity)).ended:
            await self._send(job_id, {"answers": dict(responses)})

    async def of(self, owner: str, *, limit: int) -> list[Job]:
        """Return the newest jobs of an identity and scope; none where callers cannot be told apart."""
        if owner == SHARED_OWNER:
            return []
        entries = await self.store.keys(list_prefix(owner), limit=limit)
        return await self._known_of([entry.rpartition("/")[2] for entry in entries])

    async def all(self, *, limit: int) -> list[Job]:
        """Return jobs of all callers, the newest first."""
        entries = await self.store.keys(JOBS, limit=limit)
        return await self._known_of([entry.removeprefix(JOBS) for entry in entries])

    async def _known_of(self, job_ids: Sequence[str]) -> list[Job]:
        """Return those of several jobs that are there."""
        found = await self.store.get_many([JOBS + job_id for job_id in job_ids])
        return [msgspec.json.decode(data, type=Job) for data in found if data is not None]

    async def _send(self, job_id: str, message: dict[str, Any]) -> None:
        """Leave a message for the process that runs a job."""
        await self.store.put(f"{MESSAGES}{job_id}/{uuid4().hex}", encode(message), ttl=_MESSAGE_S)
        if self.store.is_shared:
            await self.store.publish(MESSAGES, job_id.encode())
