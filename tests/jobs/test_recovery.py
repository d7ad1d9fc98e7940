"""What other processes make of jobs, and what becomes of jobs while the store fails."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_tools import FORM, TASK_CLIENT, add, crashing, ended, hung, started, waiting

from callyard import Call, Caller, Limits, Profile, Yard, tool
from callyard.jobs import service
from callyard.providers.functions import Functions
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError
from callyard.testing import FakeClock


@pytest.mark.parametrize("options", [{"operation": "query"}, {"operation": "command", "idempotent": True}])
async def test_another_process_resumes_a_job_that_can_run_twice(tmp_path: Path, options: dict[str, Any]) -> None:
    ran: list[str] = []
    work, path = waiting(ran, **options), tmp_path / "store.sqlite3"
    async with crashing(Yard(tools=[work], store=SqliteStore(path))) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], job["result"]["data"], len(ran)) == ("completed", "done", 2)


@pytest.mark.parametrize("operation", ["command", "destroy"])
async def test_another_process_reports_what_may_have_run_as_interrupted(tmp_path: Path, operation: str) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation=operation), tmp_path / "store.sqlite3"
    async with crashing(Yard(tools=[work], store=SqliteStore(path))) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    error = job["result"]["error"]
    assert (job["status"], error["code"], error["details"]["reason"]) == ("interrupted", "cancelled", "interrupted")
    assert (error["may_have_run"], error["retryable"], error["blame"]) == (True, False, "yard")
    assert len(ran) == 1


async def test_a_closed_server_leaves_what_can_run_twice_to_the_next_one(tmp_path: Path) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="query"), tmp_path / "store.sqlite3"
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], len(ran)) == ("completed", 2)


async def test_a_closed_server_interrupts_what_cannot_run_twice(tmp_path: Path) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="command"), tmp_path / "store.sqlite3"
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], job["result"]["error"]["may_have_run"], len(ran)) == ("interrupted", True, 1)


async def test_two_servers_on_one_file_never_judge_each_others_jobs(tmp_path: Path) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="query"), tmp_path / "store.sqlite3"
    async with (
        Yard(tools=[work], store=SqliteStore(path)) as first,
        Yard(tools=[work], store=SqliteStore(path)) as second,
    ):
        job_id = await hung(first, ran)
        await second.jobs._scan()  # pyright: ignore[reportPrivateUsage] - it comes every ten seconds
        seen = (await second.call("get_job", {"job_id": job_id})).data
        cancelled = (await second.call("cancel_job", {"job_id": job_id})).data
        job = await ended(second, job_id)

    assert seen["status"] == "working"
    assert cancelled["status"] in {"working", "cancelled"}
    assert (job["status"], len(ran)) == ("cancelled", 1)


async def test_a_question_of_a_job_is_answered_through_another_process(tmp_path: Path) -> None:
    @tool
    async def greet(call: Call) -> str:
        """Ask."""
        return (await call.ask(FORM, "Who?", key="who"))["name"]

    path = tmp_path / "store.sqlite3"
    async with (
        Yard(tools=[greet], store=SqliteStore(path)) as first,
        Yard(tools=[greet], store=SqliteStore(path)) as second,
    ):
        job_id = await started(first, "greet", channel=TASK_CLIENT)
        asked = await ended(second, job_id)
        await second.jobs.answer(job_id, "local", {"who": {"action": "accept", "content": {"name": "Ada"}}})
        await first.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - waiting for it ends at its question
        job = await ended(second, job_id)

    assert list(asked["questions"]) == ["who"]
    assert job["result"]["data"] == "Ada"


@pytest.mark.parametrize("change", ["gone", "schema", "operation", "profile"])
async def test_a_job_whose_tool_is_gone_or_changed_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(service, "_TOOL_WAIT_S", 0.0)
    ran: list[str] = []

    @tool(operation="query", name="work")
    async def with_argument(a: int = 1) -> int:
        """Work, with an argument."""
        return a

    @tool(operation="command", name="work")
    async def with_effect() -> None:
        """Work, with an effect."""

    tools = {
        "gone": [add],
        "schema": [with_argument],
        "operation": [with_effect],
        "profile": [waiting(ran, operation="query")],
    }[change]
    path, narrow = tmp_path / "store.sqlite3", Profile(name="narrow")
    caller = Caller(profile=narrow) if change == "profile" else Caller()
    async with crashing(
        Yard(tools=[waiting(ran, operation="query")], profiles=[narrow], store=SqliteStore(path))
    ) as yard:
        job_id = await hung(yard, ran, caller=caller)
    async with Yard(tools=tools, store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    reason = "tool_gone" if change in {"gone", "profile"} else "tool_changed"
    assert (job["status"], job["result"]["error"]["details"]["reason"], len(ran)) == ("interrupted", reason, 1)


async def test_a_job_with_a_session_is_not_resumed_without_it(tmp_path: Path) -> None:
    ran: list[str] = []

    @tool(operation="query", session="required")
    async def work(call: Call) -> str:
        """Work in a session."""
        ran.append(call.id)
        await asyncio.Event().wait()
        return "done"

    @tool
    async def begin(call: Call) -> str:
        """Begin a session."""
        return call.start_session().id

    path = tmp_path / "store.sqlite3"
    async with crashing(Yard(tools=[work, begin], store=SqliteStore(path))) as yard:
        session = (await yard.call("begin")).data
        answer = await yard.call("run_tool", {"tool_id": "work", "args": {"session_id": session}, "background": True})
        while not ran:  # noqa: ASYNC110 - a turn of the loop each
            await asyncio.sleep(0)
    async with Yard(tools=[work, begin], store=SqliteStore(path)) as yard:
        job = await ended(yard, answer.data["job_id"])

    assert (job["status"], job["result"]["error"]["details"]["reason"]) == ("interrupted", "session_gone")


async def test_a_job_that_the_server_interrupts_when_it_closes_says_so(tmp_path: Path) -> None:
    ran: list[str] = []
    path = tmp_path / "store.sqlite3"
    async with Yard(tools=[waiting(ran, operation="command")], store=SqliteStore(path)) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[add], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], job["result"]["error"]["may_have_run"]) == ("interrupted", True)


async def test_a_job_that_can_run_twice_goes_on_in_the_next_process_at_once(tmp_path: Path) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="query"), tmp_path / "store.sqlite3"
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], len(ran)) == ("completed", 2)


async def test_a_handler_does_not_start_in_a_process_whose_lease_ended_before(tmp_path: Path) -> None:
    ran: list[str] = []
    go, waits = asyncio.Event(), asyncio.Event()

    async def hold(call: Call) -> Callable[[], None]:
        if call.channel.job_id:
            waits.set()
            await go.wait()
        return lambda: None

    @tool(operation="command")
    async def work() -> str:
        """Work."""
        ran.append("work")
        return "done"

    clock, path = FakeClock(), tmp_path / "store.sqlite3"
    stores = [SqliteStore(path, lease_clock=clock) for _ in range(2)]
    async with (
        Yard(tools=[work], store=stores[0], limiters=[hold]) as first,
        Yard(tools=[work], store=stores[1]) as second,
    ):
        job_id = await started(first, "work")
        await waits.wait()
        task = first.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - the end of a job that nobody sees
        clock.advance(60)
        await second.jobs._scan()  # pyright: ignore[reportPrivateUsage] - it comes every ten seconds
        job = await ended(second, job_id)
        go.set()
        await task
        seen = (await first.call("get_job", {"job_id": job_id})).data

    assert (ran, job["status"], seen["status"], seen["result"]["data"]) == (["work"], "completed", "completed", "done")


async def test_a_job_that_the_next_process_cannot_find_yet_waits_for_its_tool(tmp_path: Path) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="query"), tmp_path / "store.sqlite3"
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job_id = await hung(yard, ran)
    async with Yard(tools=[add], store=SqliteStore(path)) as yard:
        await yard.jobs._scan()  # pyright: ignore[reportPrivateUsage] - it comes every ten seconds
        before = await yard.jobs.get(job_id, None)
        await yard.providers.add(Functions("late", [work]))
        await yard.jobs._scan()  # pyright: ignore[reportPrivateUsage] - the same
        job = await ended(yard, job_id)

    assert (before.status, job["status"]) == ("working", "completed")


# Bad days of the store


class Failing(MemoryStore):
    """A store that fails while it is told to."""

    fails = False

    def _check(self) -> None:
        if self.fails:
            raise StoreUnavailableError("no room", reason="full")

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        self._check()
        await super().put(key, value, ttl=ttl)

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
    ) -> bool:
        self._check()
        return await super().compare_and_set(key, expected, value, ttl=ttl, durable=durable)


async def test_without_the_store_no_job_is_started_and_other_calls_go_on() -> None:
    store = Failing()
    async with Yard(tools=[add], store=store) as yard:
        store.fails = True
        refused = await yard.call("run_tool", {"tool_id": "add", "args": {"a": 1}, "background": True})
        direct = await yard.call("add", {"a": 1})
        store.fails = False

    assert refused.error is not None
    assert (refused.error.code, refused.error.details["reason"], refused.error.may_have_run) == (
        "overloaded",
        "store_unavailable",
        False,
    )
    assert refused.error.details["retry_after_ms"] > 0
    assert direct.data == 2


async def test_the_claim_of_an_unsafe_job_and_the_end_of_each_wait_for_copies_of_the_store() -> None:
    noted: list[tuple[str, str, bool]] = []

    class Copied(MemoryStore):
        """A store that notes which jobs are written durably."""

        async def compare_and_set(
            self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
        ) -> bool:
            if durable:
                job = msgspec.json.decode(value)
                noted.append((job["tool"], job.get("status", "working"), job.get("claimed", False)))
            return await super().compare_and_set(key, expected, value, ttl=ttl)

    @tool(operation="query")
    async def look() -> None:
        """Look."""

    @tool(operation="command")
    async def change() -> None:
        """Change something."""

    async with Yard(tools=[look, change], store=Copied()) as yard:
        for name in ("look", "change"):
            await ended(yard, await started(yard, name))

    ends = [("look", "completed", True), ("change", "working", True), ("change", "completed", True)]
    assert noted == ends


async def test_a_handler_does_not_start_unless_that_can_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.jobs.run._RETRY_S", 0.001)
    store = Failing()

    async def hold(call: Call) -> Callable[[], None]:
        store.fails = bool(call.channel.job_id)
        return lambda: setattr(store, "fails", False)

    @tool
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async with Yard(tools=[never], store=store, limiters=[hold]) as yard:
        job = await ended(yard, await started(yard, "never"))

    error = job["result"]["error"]
    assert (error["code"], error["details"]["reason"], error["may_have_run"]) == (
        "overloaded",
        "store_unavailable",
        False,
    )


async def test_a_job_works_until_its_result_is_stored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("callyard.jobs.run._RETRY_S", 0.001)
    store = Failing()

    @tool
    async def work() -> str:
        """Work while the disk fills up."""
        store.fails = True
        return "done"

    async with Yard(tools=[work], store=store) as yard:
        job_id = await started(yard, "work")
        while "job_not_stored" not in caplog.text:  # noqa: ASYNC110 - a turn of the loop each
            await asyncio.sleep(0)
        seen = (await yard.call("get_job", {"job_id": job_id})).data
        store.fails = False
        job = await ended(yard, job_id)

    assert (seen["status"], "result" in seen) == ("working", False)
    assert (job["status"], job["result"]["data"]) == ("completed", "done")


async def test_a_job_that_was_refused_because_of_the_store_never_runs(tmp_path: Path) -> None:
    class Half(SqliteStore):
        """A store that writes several values one by one, and whose disk is full after a few."""

        left = 0

        async def put_many(self, values: Mapping[str, bytes], *, ttl: float | None = None) -> None:
            for key, value in values.items():
                self.left -= 1
                if not self.left:
                    raise StoreUnavailableError("no room", reason="full")
                await super().put_many({key: value}, ttl=ttl)

    @tool(operation="query")
    async def never() -> None:
        """Never run."""
        raise AssertionError

    path = tmp_path / "store.sqlite3"
    store = Half(path)
    async with Yard(tools=[never], store=store) as yard:
        for store.left in (1, 2, 3, 4):
            answer = await yard.call("run_tool", {"tool_id": "never", "background": True})
            assert answer.error is not None
            assert answer.error.details["reason"] == "store_unavailable"
    async with Yard(tools=[never], store=SqliteStore(path)) as yard:
        await yard.jobs._scan()  # pyright: ignore[reportPrivateUsage] - it comes every ten seconds
        jobs = (await yard.call("list_jobs")).data["jobs"]

    assert jobs == []


async def test_progress_does_not_undo_a_claim_that_is_being_stored() -> None:
    class Slow(MemoryStore):
        """A store that takes its time to change a value."""

        async def compare_and_set(
            self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
        ) -> bool:
            await asyncio.sleep(0)
            return await super().compare_and_set(key, expected, value, ttl=ttl, durable=durable)

    ran: list[str] = []
    store = Slow()
    async with Yard(tools=[waiting(ran, operation="command")], store=store) as yard:
        job_id = await started(yard, "work")
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - it comes every second
        while not ran:
            await asyncio.gather(running.save(), asyncio.sleep(0))
        await running.save()
        stored = await store.get(f"job/{job_id}")

    assert stored is not None
    assert msgspec.json.decode(stored)["claimed"]


async def test_a_job_that_lost_its_lease_is_stopped_and_writes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    store = SqliteStore(tmp_path / "store.sqlite3")
    async with Yard(tools=[waiting(ran, operation="command")], store=store) as yard:
        job_id = await hung(yard, ran)
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - a lost lease is not in the interface
        await store.release(running._lease)  # pyright: ignore[reportPrivateUsage] - the same
        assert await store.acquire(f"job/{job_id}", ttl=60)  # another process
        await running.renew()
        await asyncio.wait([running.task])
        stored = (await yard.jobs.get(job_id, None)).status

    assert stored == "working"
    assert "job_lost" in caplog.text


async def test_a_job_takes_a_lease_again_that_ended_while_the_store_failed(tmp_path: Path) -> None:
    ran: list[str] = []
    clock = FakeClock()
    store = SqliteStore(tmp_path / "store.sqlite3", lease_clock=clock)
    async with Yard(tools=[waiting(ran, operation="command")], store=store) as yard:
        job_id = await hung(yard, ran)
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - it comes every few seconds
        clock.advance(60)
        await running.renew()
        other = await store.acquire(f"job/{job_id}", ttl=60)
        await running.renew()
        status = (await yard.jobs.get(job_id, None)).status

    assert (other, status, len(ran)) == (None, "working", 1)


async def test_a_process_that_slept_does_not_overwrite_what_another_one_reported(tmp_path: Path) -> None:
    go = asyncio.Event()
    ran: list[str] = []

    @tool(operation="command")
    async def work() -> str:
        """Work for long."""
        ran.append("work")
        await go.wait()
        return "done"

    clock, path = FakeClock(), tmp_path / "store.sqlite3"
    stores = [SqliteStore(path, lease_clock=clock) for _ in range(2)]
    async with Yard(tools=[work], store=stores[0]) as first, Yard(tools=[work], store=stores[1]) as second:
        job_id = await hung(first, ran)
        task = first.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - the end of a job that nobody sees
        clock.advance(60)
        await second.jobs._scan()  # pyright: ignore[reportPrivateUsage] - it comes every ten seconds
        go.set()
        await task
        seen = [(await yard.call("get_job", {"job_id": job_id})).data for yard in (first, second)]

    assert [job["status"] for job in seen] == ["interrupted"] * 2
    assert [job["result"]["error"]["may_have_run"] for job in seen] == [True] * 2


async def test_a_job_outlives_a_clock_that_jumps_forward(tmp_path: Path) -> None:
    go = asyncio.Event()
    ran: list[str] = []

    @tool(operation="command")
    async def work() -> str:
        """Work for long."""
        ran.append("work")
        await go.wait()
        return "done"

    clock = FakeClock()
    async with Yard(
        tools=[work], store=SqliteStore(tmp_path / "store.sqlite3", clock=clock), limits=Limits(job_ttl=60)
    ) as yard:
        job_id = await hung(yard, ran)
        task = yard.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - it tidies up after its end
        clock.advance(100_000)
        go.set()
        job = await ended(yard, job_id)
        await task
        await asyncio.sleep(0)  # a turn of the loop, in which the yard forgets it
        clock.advance(100)
        gone = await yard.call("get_job", {"job_id": job_id})
        listed = (await yard.call("list_jobs")).data["jobs"]
        left = await yard.store.keys("job")

    assert (job["status"], job["result"]["data"]) == ("completed", "done")
    assert gone.error is not None
    assert (gone.error.code, gone.error.details["reason"], listed, left) == ("not_found", "unknown_job", [], [])


async def test_an_entry_that_cannot_be_read_does_not_keep_others_from_being_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="query"), tmp_path / "store.sqlite3"
    async with crashing(Yard(tools=[work], store=SqliteStore(path))) as yard:
        for key in ("job_running/j_0", "job/j_0", "job_order/j_0"):
            await yard.store.put(key, b"{}")
        await yard.store.put("job_running/j_1", b"")
        job_id = await hung(yard, ran)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], "job_unreadable" in caplog.text) == ("completed", True)


async def test_a_job_that_ended_just_before_its_process_is_tidied_up(tmp_path: Path) -> None:
    path, may_end = tmp_path / "store.sqlite3", asyncio.Event()

    @tool(name="add", operation="query")
    async def add_later(a: int) -> int:
        """Add one, once the order was read."""
        await may_end.wait()
        return a + 1

    async with Yard(tools=[add_later], store=SqliteStore(path)) as yard:
        job_id = await started(yard, "add", {"a": 1})
        order = await yard.store.get(f"job_order/{job_id}")
        may_end.set()
        await ended(yard, job_id)
    assert order is not None
    store = SqliteStore(path)
    await store.put(f"job_order/{job_id}", order)
    await store.put(f"job_running/{job_id}", b"")
    async with Yard(tools=[add], store=store) as yard:
        await yard.jobs._scan()  # pyright: ignore[reportPrivateUsage] - it comes every ten seconds
        left = [await store.get(f"{kind}/{job_id}") for kind in ("job_order", "job_running")]
        job = await ended(yard, job_id)

    assert (left, job["result"]["data"]) == ([None, None], 2)


async def test_a_cancelled_job_is_not_resumed(tmp_path: Path) -> None:
    ran: list[str] = []
    work, path = waiting(ran, operation="query"), tmp_path / "store.sqlite3"
    async with crashing(Yard(tools=[work], store=SqliteStore(path))) as yard:
        job_id = await hung(yard, ran)
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - the same
        running.stop = lambda: None  # its handler takes its time
        await yard.jobs.cancel(job_id, None)
        running.stop = type(running).stop.__get__(running)
    async with Yard(tools=[work], store=SqliteStore(path)) as yard:
        job = await ended(yard, job_id)

    assert (job["status"], len(ran)) == ("cancelled", 1)
