"""Jobs that workers run, on a real Redis; servers and workers are yards of this process with stores of their own."""

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from job_tools import FORM, TASK_CLIENT, ended, started
from redis_programs import NEEDS_REDIS, Program, cluster_of, one_server, watched_by_sentinel

from callyard import Call, Limits, RateSettings, Rule, Session, Yard, tool
from callyard.jobs import service
from callyard.jobs.job import JOBS, WORKERS, new_job_id, open_entry
from callyard.jobs.queue import open_queue
from callyard.jobs.stored import StoredJobs
from callyard.jobs.worker import JobWorker
from callyard.state.memory import MemoryStore
from callyard.state.redis import RedisStore
from callyard.state.redis_url import parse_redis_url
from callyard.state.store import StoreUnavailableError

pytestmark = NEEDS_REDIS
NUMBERS = count()
STREAM = "{}:jobs:stream"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with one_server(tmp_path_factory.mktemp("redis")) as program:
        yield program


@pytest.fixture
def prefix() -> str:
    return f"work{next(NUMBERS)}"


@pytest.fixture
def url(redis: Program, prefix: str) -> str:
    return f"{redis.url}?prefix={prefix}"


class Runs:
    """Tools that note where they ran, and wait until they may end."""

    def __init__(self) -> None:
        self.where: list[str] = []
        self.go = asyncio.Event()
        self.started = asyncio.Event()

    def tool(self, where: str, **options: Any) -> Callable[..., Any]:
        settings: dict[str, Any] = {"operation": "query", **options}

        @tool(**settings)
        async def work(call: Call, *, waits: bool = False) -> str:
            """Work."""
            self.where.append(where)
            self.started.set()
            await call.progress(1, 2, "half")
            if waits:
                await self.go.wait()
            return where

        return work


@pytest.fixture
def runs() -> Runs:
    return Runs()


@asynccontextmanager
async def worker(url: str, *tools: Any, drain_s: float = 0.0, **settings: Any) -> AsyncGenerator[Yard]:
    """Run a worker until the context ends, as SIGTERM ends it."""
    async with Yard(tools=tools, store=RedisStore(url), **settings) as yard:
        task = asyncio.create_task(JobWorker(yard.jobs).run(drain_s=drain_s))
        while not task.done() and not await yard.store.keys(WORKERS, limit=1):  # noqa: ASYNC110 - the store gives no sign
            await asyncio.sleep(0.01)
        try:
            yield yard
        finally:
            task.cancel()
            await asyncio.wait({task})


async def note_a_worker(url: str) -> None:
    """Let servers that open from now on believe that there is a worker."""
    store = RedisStore(url)
    await store.put(f"{WORKERS}1", b"")
    await store.close()


def server(url: str, *tools: Any, **settings: Any) -> Yard:
    return Yard(tools=tools, store=RedisStore(url), **settings)


def keys(redis: Program, prefix: str) -> set[str]:
    """Return what is left of jobs and tasks that have not ended."""
    found = (key.decode().removeprefix(prefix) for key in redis.ask("KEYS", f"{prefix}:*"))
    return {key for key in found if ":runs:" in key or "job_running" in key or "job_open" in key or "job_order" in key}


async def test_a_worker_runs_the_jobs_of_a_server(redis: Program, url: str, prefix: str, runs: Runs) -> None:
    async with worker(url, runs.tool("worker")), server(url, runs.tool("server")) as yard:
        job = await ended(yard, await started(yard, "work"))

    assert (job["status"], job["result"]["data"], job["progress"]["total"]) == ("completed", "worker", 2)
    assert (runs.where, keys(redis, prefix)) == (["worker"], set())
    assert redis.ask("XLEN", STREAM.format(prefix)) == 0


async def test_without_a_worker_a_server_runs_its_jobs(url: str, runs: Runs) -> None:
    async with server(url, runs.tool("server")) as yard:
        job = await ended(yard, await started(yard, "work"))

    assert (job["status"], runs.where) == ("completed", ["server"])


async def test_a_server_without_the_packages_of_the_queue_runs_its_jobs(
    url: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "callyard.jobs.docket_queue", None)
    await note_a_worker(url)
    async with server(url, runs.tool("server")) as yard:
        job = await ended(yard, await started(yard, "work"))

    assert (job["status"], runs.where) == ("completed", ["server"])
    assert any("job_queue_unavailable reason=not_installed" in line for line in caplog.messages)


async def test_work_that_is_bound_to_the_process_stays_there(url: str, runs: Runs) -> None:
    @tool(operation="command")
    async def begin(call: Call) -> str:
        """Start a session."""
        return call.start_session().id

    @tool(operation="query", session="required")
    async def inside(session: Session) -> str:
        """Use a session."""
        runs.where.append("session")
        return session.id

    local = runs.tool("local", local=True)
    tools = (local, begin, inside)
    async with worker(url, *tools), server(url, *tools) as yard:
        session = (await yard.call("begin")).data
        await ended(yard, await started(yard, "work"))
        await ended(yard, await started(yard, "inside", {"session_id": session}))
        steps = [{"tool_id": "inside", "args": {"session_id": session}}]
        chain = await ended(yard, await started(yard, "run_chain", {"steps": steps}))

    assert chain["result"]["success"], chain
    assert runs.where == ["local", "session", "session"]


async def test_an_approved_call_stays_in_its_process(url: str, runs: Runs) -> None:
    rules = [Rule(tools=("work",), decision="ask")]
    approved = server(url, runs.tool("server", operation="destroy"), rules=rules)
    async with worker(url, runs.tool("worker", operation="destroy"), rules=rules), approved as yard:
        call = asyncio.create_task(yard.call("run_tool", {"tool_id": "work", "args": {}, "background": True}))
        assert yard.gate is not None
        while not (pending := await yard.gate.approvals.pending()):  # noqa: ASYNC110 - the store gives no sign
            await asyncio.sleep(0.01)
        await yard.gate.approvals.decide(pending[0].id, "approve", by="ada")
        job = await ended(yard, (await call).data["job_id"])

    assert (job["status"], runs.where) == ("completed", ["server"])


async def test_an_identity_has_a_limited_number_of_jobs_at_workers(url: str, runs: Runs) -> None:
    await note_a_worker(url)
    async with server(url, runs.tool("server"), limits=Limits(jobs=2)) as yard:
        for _ in range(2):
            await started(yard, "work")
        refused = await yard.call("run_tool", {"tool_id": "work", "args": {}, "background": True})

    assert refused.error is not None
    assert (refused.error.code, runs.where) == ("overloaded", [])


async def test_rates_count_a_job_where_it_runs(url: str, runs: Runs) -> None:
    settings: dict[str, Any] = {"rates": RateSettings(tools={"work": 0.6}, burst=1)}
    async with worker(url, runs.tool("worker"), **settings), server(url, runs.tool("server"), **settings) as yard:
        jobs = [await ended(yard, await started(yard, "work")) for _ in range(2)]

    assert [job["result"]["success"] for job in jobs] == [True, False]
    assert jobs[1]["result"]["error"]["code"] == "rate_limited"


async def test_cancelling_reaches_a_worker(url: str, runs: Runs) -> None:
    async with worker(url, runs.tool("worker")), server(url, runs.tool("server")) as yard:
        job_id = await started(yard, "work", {"waits": True})
        await runs.started.wait()
        await yard.call("cancel_job", {"job_id": job_id})
        job = await ended(yard, job_id)

    assert (job["status"], job["result"]["error"]["may_have_run"]) == ("cancelled", True)


async def test_cancelling_in_the_store_alone_reaches_a_worker(url: str, runs: Runs) -> None:
    async with worker(url, runs.tool("worker")), server(url, runs.tool("server")) as yard:
        job_id = await started(yard, "work", {"waits": True})
        await runs.started.wait()
        await StoredJobs(yard.store).cancel(job_id, None)  # as 'callyard jobs cancel' does
        job = await ended(yard, job_id)

    assert job["status"] == "cancelled"


async def test_a_queued_job_is_cancelled_at_once_and_never_runs(url: str, runs: Runs) -> None:
    await note_a_worker(url)
    async with server(url, runs.tool("server")) as yard:
        job_id = await started(yard, "work")
        await yard.call("cancel_job", {"job_id": job_id})
        job = await ended(yard, job_id)
        await yard.store.delete(f"{WORKERS}1")
        async with worker(url, runs.tool("worker")):
            await ended(yard, await started(yard, "work"))

    assert (job["status"], job["result"]["error"]["may_have_run"]) == ("cancelled", False)
    assert runs.where == ["worker"]


async def test_a_question_of_a_job_at_a_worker_is_answered(url: str) -> None:
    @tool(operation="command")
    async def name(call: Call) -> Any:
        """Ask for a name."""
        return await call.ask(FORM, "Who?")

    async with worker(url, name), server(url, name) as yard:
        job_id = await started(yard, "name", channel=TASK_CLIENT)
        job = await yard.jobs.wait(job_id, None, seconds=60)
        assert job.status == "input_required"
        key = next(iter(job.asks))
        await yard.jobs.answer(job_id, None, {key: {"action": "accept", "content": {"name": "ada"}}})
        while "result" not in (answered := await ended(yard, job_id)):  # until the worker has read the answer
            pass

    assert (job.status, answered["result"]["data"]) == ("input_required", {"name": "ada"})


@pytest.mark.parametrize(("tools", "reason"), [(False, "tool_gone"), (True, "tool_changed")])
async def test_a_worker_leaves_a_job_alone_that_does_not_fit(
    url: str, runs: Runs, *, tools: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.jobs.worker._LATER_S", 0.1)
    other = [runs.tool("other", operation="command")] if tools else []
    async with worker(url, *other) as unfit, server(url, runs.tool("server")) as yard:
        job_id = await started(yard, "work")
        while not (await yard.jobs.get(job_id, None)).unfit_since:  # noqa: ASYNC110 - the store gives no sign
            await asyncio.sleep(0.01)
        async with worker(url, runs.tool("fits")):
            fitting = await ended(yard, job_id)
        unfit.jobs.tool_wait = 0.0
        job = await ended(yard, await started(yard, "work"))

    assert (fitting["status"], runs.where) == ("completed", ["fits"])
    assert (job["status"], job["result"]["error"]["details"]["reason"]) == ("interrupted", reason)
    assert job["result"]["error"]["may_have_run"] is False


async def test_a_worker_that_ends_gives_its_jobs_back(url: str, runs: Runs) -> None:
    async with server(url, runs.tool("server")) as yard:
        async with worker(url, runs.tool("first")):
            job_id = await started(yard, "work", {"waits": True})
            await runs.started.wait()
        runs.go.set()
        async with worker(url, runs.tool("second")):
            job = await ended(yard, job_id)

    assert (job["status"], job["result"]["data"], runs.where) == ("completed", "second", ["first", "second"])


async def test_a_worker_that_ends_lets_jobs_end_that_may_not_run_again(url: str, runs: Runs) -> None:
    tools = runs.tool("worker", operation="command")
    async with server(url, tools) as yard:
        async with worker(url, tools, drain_s=60):
            job_id = await started(yard, "work", {"waits": True})
            await runs.started.wait()
            asyncio.get_running_loop().call_later(0.1, runs.go.set)  # while the worker closes
        done = await ended(yard, job_id)
        runs.go.clear()
        runs.started.clear()
        async with worker(url, tools):
            job_id = await started(yard, "work", {"waits": True})
            await runs.started.wait()
        stopped = await ended(yard, job_id)

    assert (done["status"], stopped["status"]) == ("completed", "interrupted")
    assert stopped["result"]["error"]["may_have_run"] is True


async def test_a_server_that_closes_gives_its_own_jobs_to_workers(url: str, runs: Runs) -> None:
    async with server(url, runs.tool("first")) as yard:
        job_id = await started(yard, "work", {"waits": True})
        await runs.started.wait()
        async with worker(url, runs.tool("worker")):
            assert await yard.jobs.connect_queue()
            await yard.__aexit__(None, None, None)
            runs.go.set()
            async with server(url, runs.tool("second")) as other:
                job = await ended(other, job_id)

    assert (job["status"], runs.where) == ("completed", ["first", "worker"])


async def test_a_sweep_enqueues_jobs_without_a_task(redis: Program, url: str, prefix: str, runs: Runs) -> None:
    await note_a_worker(url)
    async with server(url, runs.tool("server")) as yard:
        job_id = await started(yard, "work")
        for key in redis.ask("KEYS", f"{prefix}:jobs:*"):
            redis.ask("DEL", key)
        for key in redis.ask("KEYS", f"{prefix}:*lease:job_sweep"):
            redis.ask("DEL", key)
        async with worker(url, runs.tool("worker")):
            job = await ended(yard, job_id)

    assert (job["status"], runs.where) == ("completed", ["worker"])


async def test_a_job_that_cannot_be_enqueued_is_started_nevertheless(
    redis: Program, url: str, prefix: str, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    await note_a_worker(url)
    async with server(url, runs.tool("server")) as yard:
        redis.ask("SET", STREAM.format(prefix), "no stream")
        job_id = await started(yard, "work")
        redis.ask("DEL", STREAM.format(prefix))
        for key in redis.ask("KEYS", f"{prefix}:*lease:job_sweep"):
            redis.ask("DEL", key)
        async with worker(url, runs.tool("worker")):
            job = await ended(yard, job_id)

    assert job["status"] == "completed"
    assert any("job_not_enqueued" in line for line in caplog.messages)


async def test_a_job_whose_caller_goes_away_before_its_first_answer_is_cancelled(
    url: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await note_a_worker(url)
    async with server(url, runs.tool("server")) as yard:
        queue = await yard.jobs.connect_queue()
        enqueue, reached = queue.enqueue, asyncio.Event()

        async def slow(job_id: str) -> None:
            reached.set()
            await asyncio.sleep(0.05)  # the moment in which the caller goes away
            await enqueue(job_id)

        monkeypatch.setattr(queue, "enqueue", slow)
        call = asyncio.create_task(yard.call("run_tool", {"tool_id": "work", "args": {}, "background": True}))
        await reached.wait()
        call.cancel()
        await asyncio.wait({call})
        monkeypatch.undo()
        jobs = await yard.jobs.all(limit=9)
        async with worker(url, runs.tool("worker")):
            for job in jobs:
                await yard.jobs.give_back(job.id)
            found = [(await ended(yard, job.id))["status"] for job in jobs]

    assert (found, runs.where) == (["cancelled"], [])


async def test_a_wiped_job_stops_where_it_runs_and_is_not_found(
    redis: Program, url: str, runs: Runs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = parse_redis_url(url).prefix
    monkeypatch.setattr(service, "RENEW_S", 0.1)
    async with worker(url, runs.tool("worker")) as yard, server(url, runs.tool("server")) as other:
        job_id = await started(other, "work", {"waits": True})
        await runs.started.wait()
        for key in redis.ask("KEYS", f"{prefix}:*"):
            redis.ask("DEL", key)
        while yard.jobs.running:  # noqa: ASYNC110 - a turn of the loop each
            await asyncio.sleep(0.01)
        answers = [await one.call("get_job", {"job_id": job_id}) for one in (yard, other)]

    assert [None if answer.error is None else answer.error.code for answer in answers] == ["not_found"] * 2
    assert any(f"store_wiped id={job_id} tool=work" in line for line in caplog.messages)


class _Planted:
    """What runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


async def test_planted_pickles_run_nowhere_and_stop_no_worker(
    redis: Program, url: str, runs: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = parse_redis_url(url).prefix
    planted = {name: pickle.dumps(_Planted(tmp_path / name)) for name in ("args", "kwargs", "strike", "run")}
    pickle.loads(pickle.dumps(_Planted(tmp_path / "control")))  # noqa: S301 - it would work
    job = {"key": new_job_id(), "when": "2026-01-01T00:00:00+00:00", "function": "callyard_job", "attempt": "1"}
    job |= {"generation": "0"}
    strike = {"direction": "strike", "function": "callyard_job", "operator": "==", "value": planted["strike"]}
    async with server(url, runs.tool("server")) as yard, worker(url, runs.tool("worker")) as working:
        await ended(yard, await started(yard, "work"))  # both have read what there is
        for message in (
            {**job, "args": planted["args"], "kwargs": planted["kwargs"]},
            {**job, "function": "sleep", "args": planted["args"], "kwargs": planted["kwargs"]},
            {**job, "key": "x", "args": planted["args"], "kwargs": planted["kwargs"]},
            {"args": planted["args"]},
            {**job, "generation": "many"},
        ):
            redis.ask("XADD", STREAM.format(prefix), "*", *(item for pair in message.items() for item in pair))
        redis.ask("XADD", f"{prefix}:jobs:strikes", "*", *(item for pair in strike.items() for item in pair))
        job_id = await started(yard, "work", {"waits": True})
        await runs.started.wait()
        redis.ask("HSET", f"{prefix}:jobs:runs:{job_id}", "args", planted["run"], "kwargs", planted["run"])
        runs.go.set()
        last = await ended(yard, job_id)
        while redis.ask("XLEN", STREAM.format(prefix)):  # noqa: ASYNC110 - until the worker has acknowledged all
            await asyncio.sleep(0.01)
        queues = [await one.jobs.connect_queue() for one in (yard, working)]

    async with server(url, runs.tool("server")) as yard, worker(url, runs.tool("worker")):  # those that start later
        later = await ended(yard, await started(yard, "work"))

    assert len(queues) == 2
    assert (last["status"], later["status"]) == ("completed", "completed")
    assert os.listdir(tmp_path) == ["control"]  # noqa: PTH208 - a coroutine
    assert redis.ask("XLEN", f"{prefix}:jobs:set_aside") == 4
    assert sum("job_message_set_aside" in line for line in caplog.messages) == 4


async def test_another_programs_docket_reads_its_messages_as_ever(redis: Program) -> None:
    from docket import Docket, Worker  # noqa: PLC0415 - an optional package

    seen: list[int] = []

    async def theirs(number: int) -> None:
        seen.append(number)

    assert open_queue(RedisStore(redis.url))  # loads ours
    async with Docket("theirs", redis.url) as docket, Worker(docket) as other:
        await docket.add(theirs)(7)
        await other.run_until_finished()

    assert seen == [7]


async def test_a_job_of_a_newer_version_is_left_alone(
    redis: Program, url: str, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker(url, runs.tool("worker")), server(url, runs.tool("server")) as yard:
        queue, job_id = await yard.jobs.connect_queue(), new_job_id()
        await yard.store.put(JOBS + job_id, b'{"from": "the future"}')
        await queue.enqueue(job_id)
        while not any("job_unreadable" in line for line in caplog.messages):  # noqa: ASYNC110 - until it is logged
            await asyncio.sleep(0.01)
        await queue.enqueue(new_job_id())  # one that is not there
        job = await ended(yard, await started(yard, "work"))
        assert await yard.store.get(JOBS + job_id) is not None

    assert (job["status"], redis.ask("PING")) == ("completed", True)


async def test_a_delivered_job_that_another_process_runs_is_not_run(
    url: str, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.jobs.worker.LEASE_S", 0.1)
    monkeypatch.setattr("callyard.jobs.worker.RENEW_S", 0.1)
    async with server(url, runs.tool("server", local=True)) as yard, worker(url, runs.tool("worker", local=True)):
        job_id = await started(yard, "work", {"waits": True})
        await runs.started.wait()
        queue = await yard.jobs.connect_queue()
        await queue.enqueue(job_id)
        await queue.cancel(new_job_id())
        await asyncio.sleep(0.5)  # the worker gives up in this time
        runs.go.set()
        job = await ended(yard, job_id)

    assert (job["status"], runs.where) == ("completed", ["server"])


async def is_done(yard: Yard, job_id: str) -> bool:
    answer = await yard.call("get_job", {"job_id": job_id})
    return answer.success and answer.data["status"] == "completed"


async def test_a_worker_goes_on_after_redis_was_away(tmp_path: Path, runs: Runs) -> None:
    with one_server(tmp_path, "--appendonly", "yes") as mine:
        async with worker(mine.url, runs.tool("worker")), server(mine.url, runs.tool("server")) as yard:
            job_id = await started(yard, "work", {"waits": True})
            await runs.started.wait()
            await asyncio.to_thread(mine.kill)
            runs.go.set()
            await asyncio.to_thread(mine.start_again)
            while not await is_done(yard, job_id):  # noqa: ASYNC110 - until Redis is back
                await asyncio.sleep(0.1)
            job = await ended(yard, await started(yard, "work"))

    assert job["status"] == "completed"


async def test_many_jobs_are_enqueued_at_once(url: str, runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    limits = Limits(jobs=1000)
    async with worker(url, runs.tool("worker")), server(url, runs.tool("server"), limits=limits) as yard:
        job_ids = await asyncio.gather(*(started(yard, "work") for _ in range(250)))
        statuses = {(await ended(yard, job_id))["status"] for job_id in job_ids}

    assert (statuses, runs.where) == ({"completed"}, ["worker"] * 250)
    assert not any("job_not_enqueued" in line for line in caplog.messages)


async def test_only_a_shared_store_has_a_queue() -> None:
    with pytest.raises(StoreUnavailableError) as raised:
        open_queue(MemoryStore())

    assert raised.value.reason == "not_shared"
    assert open_entry("ada", "").startswith("job_open/")


async def test_the_queue_works_on_a_cluster_and_behind_sentinels(tmp_path: Path, runs: Runs) -> None:
    with cluster_of(tmp_path / "cluster") as nodes:
        await _one_job(f"redis+cluster://127.0.0.1:{nodes[0].port}", runs)
    with watched_by_sentinel(tmp_path / "watched") as (_, _, sentinel):
        await _one_job(f"redis+sentinel://127.0.0.1:{sentinel.port}/mine", runs)

    assert runs.where == ["worker", "worker"]


async def _one_job(url: str, runs: Runs) -> None:
    async with worker(url, runs.tool("worker")), server(url, runs.tool("server")) as yard:
        assert (await ended(yard, await started(yard, "work")))["status"] == "completed"


def test_urls_become_those_of_pydocket() -> None:
    from callyard.jobs.docket_queue import docket_url  # noqa: PLC0415 - an optional package

    urls = {
        "redis://h:1/2?prefix=p": "redis://h:1/2?",
        "rediss://u%40:p%3A@[::1]:1?ssl_ca_certs=/a": "rediss://u%40:p%3A@[::1]:1/0?ssl_ca_certs=%2Fa",
        "redis+cluster://:p@a:1,b:2": "redis+cluster://:p@a:1?",
        "redis+sentinel://a:1,b:2/m/3?sentinel_username=s&sentinel_password=t": (
            "redis+sentinel://a:1,b:2/m/3?sentinel_username=s&sentinel_password=t"
        ),
    }
    assert {url: docket_url(parse_redis_url(url)) for url in urls} == urls
