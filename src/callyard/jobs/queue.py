"""The queue that brings jobs to workers: each task is the id of a job, without arguments and without a result.

What a job is, who runs it and how it ends is in the store alone. So a task that is lost, delivered twice or forged
changes nothing.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from callyard._internal.lazy import load
from callyard.state.redis import RedisStore
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["JobQueue", "Work", "open_queue"]

Work = Callable[[str], Awaitable[float | None]]
"""Runs the job of an id; returns in how many seconds it must be delivered again, or None if it need not be."""
_NOT_INSTALLED: Final = "Jobs for workers need packages that are not installed: run pip install 'callyard[worker]'."
_NOT_SHARED: Final = "Workers need a store that servers share: set 'store' to the URL of a Redis."


class JobQueue(Protocol):
    """Delivers ids of jobs to workers, each at least once."""

    async def enqueue(self, job_id: str) -> None:
        """Deliver a job to a worker, unless it is queued or runs already.

        Raises:
            StoreUnavailableError: It may not be in the queue.
        """
        ...

    async def cancel(self, job_id: str) -> None:
        """Take a job out of the queue; if a worker runs it, cancel the coroutine there."""
        ...

    async def run(self, work: Work) -> None:
        """Run jobs until this is cancelled, and then wait until those that run have ended."""
        ...


def open_queue(store: Store) -> AbstractAsyncContextManager[JobQueue]:
    """Return a context with the queue beside a store.

    Raises:
        StoreUnavailableError: The store has no queue, or its packages are not installed.
    """
    if not isinstance(store, RedisStore):
        raise StoreUnavailableError(_NOT_SHARED, reason="not_shared")
    try:
        module = load("callyard.jobs.docket_queue")  # takes 0.5 s, and most servers have no workers
    except ModuleNotFoundError:
        raise StoreUnavailableError(_NOT_INSTALLED, reason="not_installed") from None
    return module.DocketQueue.open(store.url)
