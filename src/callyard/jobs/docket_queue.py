"""The queue of jobs in Redis, by pydocket: nothing of what it reads there is ever unpickled.

pydocket pickles arguments, results and strikes. Here tasks have no arguments and no results, strikes are not read, and
messages are decoded without pickle. One that is not the id of a job is set aside, because it would stop each worker.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, cast
from urllib.parse import quote, urlencode

import docket.worker
from docket import CurrentExecution, Docket, Execution, Worker
from docket.dependencies import AdmissionBlocked
from docket.execution import TaskFunction
from docket.strikelist import StrikeList
from redis.exceptions import RedisError

from callyard._internal.logfmt import log_value
from callyard.jobs.queue import Work
from callyard.state.redis_link import ANSWER_S, unavailable
from callyard.state.redis_url import RedisUrl

__all__ = ["DocketQueue", "docket_url"]

_TASK: Final = "callyard_job"
_ID: Final = re.compile(rb"j_[0-9a-f]{36}")
_GENERATION: Final = re.compile(rb"[0-9]{1,15}")
_KEPT: Final = 100
"""How many messages that cannot be read are kept for people to look at."""
_SLOTS: Final = 50
"""How many jobs a worker runs at one time; with 100, connections run out."""
_INTERVAL: Final = timedelta(milliseconds=20)
"""How often a worker with full slots looks for free ones: with the default of 250 ms, a slot runs 4 jobs a second."""
_REDELIVERY: Final = timedelta(seconds=10)
"""When a job is delivered again whose worker is gone; then it waits for the lease of that worker."""
_AT_ONCE: Final = 20
"""How many jobs are enqueued at one time: beyond 100, the driver refuses to open more connections."""
_RECONNECT: Final = timedelta(seconds=1)
_log = logging.getLogger(__name__)


class _Jobs(Docket):
    """A docket of jobs, which reads no strikes and stores no results."""

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        await self._stack.__aenter__()
        self.strike_list = StrikeList()
        await self._stack.enter_async_context(self._redis)
        return self


class _Task(Execution):
    """A task that is only its key."""

    @classmethod
    def of(cls, docket: Docket, key: str, *, function: TaskFunction | None = None, **facts: Any) -> Self:
        """Return a task that is due now, by default that of a job."""
        what: dict[str, Any] = {"function": function or docket.tasks[_TASK], "args": (), "kwargs": {}, "attempt": 1}
        return cls(docket, key=key, when=datetime.now(UTC), **what, **facts)

    def as_message(self) -> dict[bytes, bytes]:
        """Return the message, without pickles."""
        return {
            b"key": self.key.encode(),
            b"when": self.when.isoformat().encode(),
            b"function": self.function_name.encode(),
            b"args": b"",
            b"kwargs": b"",
            b"attempt": b"1",
            b"generation": b"%d" % self.generation,
        }

    @classmethod
    async def from_message(  # noqa: PLR0917 - pydocket's own
        cls,
        docket: Docket,
        message: dict[bytes, bytes],
        redelivered: bool = False,  # noqa: FBT001, FBT002 - the same
        fallback_task: TaskFunction | None = None,
        message_id: bytes | None = None,
        sync: bool = True,  # noqa: FBT001, FBT002 - the same
    ) -> Execution:
        """Return the task of a message; that of another program's docket is read as ever."""
        if not isinstance(docket, _Jobs):
            how: dict[str, Any] = {"fallback_task": fallback_task, "message_id": message_id, "sync": sync}
            return await Execution.from_message(docket, message, redelivered, **how)
        facts: dict[str, Any] = {"redelivered": redelivered, "message_id": message_id}
        key = _key_of(message)
        if key is not None:
            facts |= {"generation": int(message[b"generation"]), "function_name": _TASK}
            return cls.of(docket, key, **facts)
        name = (message_id or b"").decode()
        async with docket.redis() as redis:
            await redis.xadd(docket.key("set_aside"), cast("dict[Any, Any]", message), maxlen=_KEPT)
        _log.warning("job_message_set_aside id=%s", log_value(name))
        return cls.of(docket, f"set_aside:{name}", function=_set_aside, **facts)


docket.worker.Execution = _Task  # pyright: ignore[reportPrivateImportUsage] - with this its workers read messages


def _key_of(message: Mapping[bytes, bytes]) -> str | None:
    """Return the id of a message, or None if it is no task of ours."""
    key, generation = message.get(b"key", b""), message.get(b"generation", b"")
    if message.get(b"function") != _TASK.encode() or not _GENERATION.fullmatch(generation) or not _ID.fullmatch(key):
        return None
    return key.decode()


async def _set_aside() -> None:
    """Run in place of a message that cannot be read, which so leaves the queue."""


async def _not_here() -> None:
    """Stand for the job where tasks are only added."""
    raise RuntimeError("A process that only adds tasks was given one to run.")


@asynccontextmanager
async def _noted() -> AsyncGenerator[None]:
    """Raise failures of Redis as those of the store; pydocket would wait for an answer without end."""
    try:
        async with asyncio.timeout(ANSWER_S):
            yield
    except (RedisError, OSError) as error:
        raise unavailable(error) from None


class DocketQueue:
    """The queue of one process."""

    def __init__(self, jobs: Docket) -> None:
        self._docket = jobs
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: RedisUrl) -> AsyncGenerator[Self]:
        """Connect to a Redis, with the keys below its prefix."""
        async with AsyncExitStack() as stack:
            async with _noted():
                jobs = _Jobs(f"{url.prefix}:jobs", docket_url(url), execution_ttl=timedelta(0))
                await stack.enter_async_context(jobs)
            jobs.register(_not_here, [_TASK])
            yield cls(jobs)

    async def enqueue(self, job_id: str) -> None:
        """Deliver a job to a worker, unless it is queued or runs already."""
        async with self._turns, _noted():
            task = _Task.of(self._docket, job_id, function_name=_TASK)
            await task.schedule()

    async def cancel(self, job_id: str) -> None:
        """Take a job out of the queue; if a worker runs it, cancel the coroutine there."""
        async with _noted():
            await self._docket.cancel(job_id)

    async def run(self, work: Work) -> None:
        """Run jobs until this is cancelled, and then wait until those that run have ended."""

        async def run_job(execution: Execution = CurrentExecution()) -> None:  # noqa: B008 - how pydocket passes it
            again_s = await work(execution.key)
            if again_s is not None:
                raise AdmissionBlocked(execution, retry_delay=timedelta(seconds=again_s))

        self._docket.register(run_job, [_TASK])
        worker = Worker(
            self._docket,
            name=f"{socket.gethostname()}#{os.getpid()}#{os.urandom(4).hex()}",
            concurrency=_SLOTS,
            redelivery_timeout=_REDELIVERY,
            reconnection_delay=_RECONNECT,
            minimum_check_interval=_INTERVAL,
            schedule_automatic_tasks=False,
        )
        async with worker:
            await worker.run_forever()


def docket_url(url: RedisUrl) -> str:
    """Return the URL as pydocket reads it; of a cluster it takes one host."""
    kind = "" if url.kind == "server" else f"+{url.kind}"
    user = "" if url.username is None else quote(url.username, safe="")
    password = "" if url.password is None else f":{quote(url.password, safe='')}"
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in url.hosts]
    given = {"sentinel_username": url.sentinel_username, "sentinel_password": url.sentinel_password}
    options = {name: str(value) for name, value in (*url.ssl.items(), *given.items()) if value is not None}
    place = "" if url.kind == "cluster" else f"/{url.db}"
    if url.kind == "sentinel":
        place = f"/{quote(url.service, safe='')}{place}"
    where = ",".join(hosts[:1] if url.kind == "cluster" else hosts)
    login = f"{user}{password}@" if user or password else ""
    return f"redis{'s' * url.tls}{kind}://{login}{where}{place}?{urlencode(options)}"
