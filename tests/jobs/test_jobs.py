"""Jobs in one process: started, followed, answered, cancelled; and what another process makes of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolyard import Call, Caller, Image, Limits, Profile, ToolError, Yard, tool
from toolyard.dispatch.call import Channel
from toolyard.jobs import service
from toolyard.jobs.run import TASKS
from toolyard.state.memory import MemoryStore
from toolyard.state.sqlite import SqliteStore
from toolyard.state.store import Store, StoreUnavailableError
from toolyard.testing import FakeClock

TASK_CLIENT = Channel(name="test", capabilities=frozenset({TASKS, "elicitation"}))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.sqlite3")


@tool(operation="command")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def started(yard: Yard, name: str, arguments: dict[str, Any] | None = None, **how: Any) -> str:
    """Start a tool in the background and return the id of its job."""
    answer = await yard.call("run_tool", {"tool_id": name, "args": arguments or {}, "background": True}, **how)
    assert answer.data["status"] == "working", answer
    return answer.data["job_id"]


async def ended(yard: Yard, job_id: str, **how: Any) -> dict[str, Any]:
    """Wait for a job and return it."""
    return (await yard.call("wait_job", {"job_id": job_id}, **how)).data


async def test_any_tool_can_be_started_in_the_background(store: Store) -> None:
    async with Yard(tools=[add], store=store) as yard:
        job = await ended(yard, await started(yard, "add", {"a": "2"}))

    assert (job["status"], job["tool_id"]) == ("completed", "add")
    assert job["result"]["data"] == 3
    assert job["result"]["_meta"]["coerced"] == ["a"]


async def test_wrong_arguments_are_refused_before_a_job_is_started() -> None:
    async with Yard(tools=[add]) as yard:
        answer = await yard.call("run_tool", {"tool_id": "add", "args": {"a": "x"}, "background": True})
        jobs = await yard.call("list_jobs")

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    assert jobs.data == {"jobs": []}


async def test_a_failure_is_the_result_of_a_completed_job(store: Store) -> None:
    @tool
    async def fail() -> None:
        """Fail."""
        raise ToolError("state_error", "Not now.", reason="busy")

    async with Yard(tools=[fail], store=store) as yard:
        job = await ended(yard, await started(yard, "fail"))

    assert (job["status"], job["result"]["error"]["code"]) == ("completed", "state_error")


async def test_a_defect_is_a_failed_job(store: Store) -> None:
    @tool
    async def crash() -> None:
        """Crash."""
        raise LookupError

    async with Yard(tools=[crash], store=store) as yard:
        job = await ended(yard, await started(yard, "crash"))

    assert (job["status"], job["result"]["error"]["code"]) == ("failed", "internal_error")


async def test_progress_and_log_lines_can_be_read_while_a_job_runs(store: Store) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    @tool
    async def work(call: Call) -> str:
        """Work."""
        await call.progress(1, 2, "half")
        call.log("warning", "slow", disk="full")
        begun.set()
        await go.wait()
        return "done"

    async with Yard(tools=[work], store=store) as yard:
        job_id = await started(yard, "work")
        await begun.wait()
        seen = (await yard.call("get_job", {"job_id": job_id})).data
        go.set()
        assert (await ended(yard, job_id))["result"]["data"] == "done"

    assert seen["status"] == "working"
    assert seen["progress"] == {"done": 1, "total": 2, "text": "half"}
    assert seen["log"] == [{"level": "warning", "text": "slow", "facts": {"disk": "full"}}]
    assert seen["poll_after_ms"] > 0
    assert "result" not in seen


async def test_a_long_result_becomes_a_handle_of_the_caller(store: Store) -> None:
    @tool
    async def much() -> str:
        """Say much."""
        return "x" * 60_000

    async with Yard(tools=[much], store=store) as yard:
        job = await ended(yard, await started(yard, "much"))
        handle = job["result"]["data"]["handle"]
        part = await yard.call("read_result", {"handle": handle, "limit": 10})

    assert part.success


async def test_blocks_come_with_the_result(store: Store) -> None:
    @tool
    async def draw() -> Image:
        """Draw."""
        return Image(b"\x89PNG\r\n\x1a\n", "image/png")

    async with Yard(tools=[draw], store=store) as yard:
        job_id = await started(yard, "draw")
        answer = await yard.call("wait_job", {"job_id": job_id})

    assert answer.data["result"]["success"]
    assert [type(block).__name__ for block in answer.content] == ["UpstreamBlock"]


async def test_a_cancelled_job_ends_and_its_handler_is_cancelled(store: Store) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Yard(tools=[wait], store=store) as yard:
        job_id = await started(yard, "wait")
        await begun.wait()
        job = (await yard.call("cancel_job", {"job_id": job_id})).data
        again = (await yard.call("cancel_job", {"job_id": job_id})).data
        await stopped.wait()

    assert (job["status"], again["status"]) == ("cancelled", "cancelled")
    assert job["result"]["error"]["code"] == "cancelled"
    assert job["result"]["error"]["may_have_run"]


async def test_a_job_that_is_cancelled_before_it_begins_does_not_run(store: Store) -> None:
    @tool
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async with Yard(tools=[never], store=store) as yard:
        job_id = await started(yard, "never")
        job = (await yard.call("cancel_job", {"job_id": job_id})).data

    assert (job["status"], job["result"]["error"]["may_have_run"]) == ("cancelled", False)


@pytest.mark.parametrize(
    ("mode", "channel", "outcome"),
    [
        ("always", Channel(), "job"),
        ("always", TASK_CLIENT, "job"),
        ("optional", Channel(), "data"),
        ("optional", TASK_CLIENT, "job"),
        ("required", Channel(), "not_supported"),
        ("required", TASK_CLIENT, "job"),
    ],
)
async def test_a_tool_says_when_its_calls_become_jobs(mode: Any, channel: Channel, outcome: str) -> None:
    @tool(job=mode)
    async def work() -> str:
        """Work."""
        return "data"

    async with Yard(tools=[work]) as yard:
        for name, arguments in (("work", {}), ("run_tool", {"tool_id": "work"})):
            answer = await yard.call(name, arguments, channel=channel)
            found = answer.error.code if answer.error else "job" if isinstance(answer.data, dict) else answer.data
            assert found == outcome
        in_background = await yard.call("run_tool", {"tool_id": "work", "background": True}, channel=channel)
        assert in_background.data["status"] == "working"


async def test_inside_a_chain_or_a_job_a_job_tool_is_an_ordinary_call(store: Store) -> None:
    @tool(job="always")
    async def inner() -> int:
        """Answer."""
        return 5

    @tool
    async def outer(call: Call) -> object:
        """Call the other."""
        return (await call.invoke("inner")).data

    async with Yard(tools=[inner, outer], store=store) as yard:
        chain = await yard.call("run_chain", {"steps": [{"tool_id": "inner"}]}, channel=TASK_CLIENT)
        job = await ended(yard, await started(yard, "outer", channel=TASK_CLIENT))

    assert chain.data["final"] == 5
    assert job["result"]["data"] == 5


async def test_a_chain_can_run_in_the_background(store: Store) -> None:
    async with Yard(tools=[add], store=store) as yard:
        steps = [{"tool_id": "add", "args": {"a": 1}}, {"tool_id": "add", "args": {"a": 5}}]
        job = await ended(yard, await started(yard, "run_chain", {"steps": steps}))

    assert job["result"]["data"]["final"] == 6


async def test_a_job_that_asks_waits_as_input_required_until_all_is_answered(store: Store) -> None:
    @tool
    async def greet(call: Call) -> str:
        """Ask two people at once."""
        first, second = await asyncio.gather(call.ask(FORM, "Who?", key="who"), call.ask(FORM, "Whom?", key="who"))
        return f"{first['name']} and {second['name']}"

    async with Yard(tools=[greet], store=store) as yard:
        job_id = await started(yard, "greet", channel=TASK_CLIENT)
        asked = await ended(yard, job_id)
        first, second = asked["questions"]
        await yard.jobs.answer(job_id, "local", {first: {"action": "accept", "content": {"name": "Ada"}}, "unknown": {}})
        still = await yard.jobs.get(job_id, "local")
        await yard.jobs.answer(job_id, "local", {second: {"action": "accept", "content": {"name": "Bob"}}})
        job = await ended(yard, job_id)

    assert (asked["status"], still.status, list(still.asks)) == ("input_required", "input_required", [second])
    assert job["result"]["data"] == "Ada and Bob"


async def test_a_job_of_a_client_that_cannot_answer_tasks_cannot_ask() -> None:
    @tool
    async def greet(call: Call) -> str:
        """Ask."""
        return str(await call.ask(FORM, "Who?"))

    async with Yard(tools=[greet]) as yard:
        channel = Channel(name="test", capabilities=frozenset({"elicitation"}))
        job = await ended(yard, await started(yard, "greet", channel=channel))

    assert job["result"]["error"]["code"] == "not_supported"


async def test_a_job_belongs_to_an_identity_and_is_listed_in_its_scope(store: Store) -> None:
    here, there = Caller(identity="ada", scope="1"), Caller(identity="ada", scope="2")
    stranger = Caller(identity="bob", scope="1")
    async with Yard(tools=[add], store=store) as yard:
        job_id = await started(yard, "add", {"a": 1}, caller=here)
        await ended(yard, job_id, caller=there)
        lists = [(await yard.call("list_jobs", caller=caller)).data["jobs"] for caller in (here, there, stranger)]
        codes = [(await yard.call(name, {"job_id": job_id}, caller=stranger)).error for name in ("get_job", "wait_job", "cancel_job")]

    assert [[job["job_id"] for job in jobs] for jobs in lists] == [[job_id], [], []]
    assert [error.code for error in codes if error is not None] == ["not_found"] * 3


async def test_one_identity_cannot_start_jobs_without_end() -> None:
    go = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        await go.wait()

    async with Yard(tools=[wait], limits=Limits(jobs=2)) as yard:
        for _ in range(2):
            await started(yard, "wait")
        refused = await yard.call("run_tool", {"tool_id": "wait", "background": True})
        other = await yard.call("run_tool", {"tool_id": "wait", "background": True}, caller=Caller(identity="bob"))
        go.set()

    assert refused.error is not None
    assert refused.error.code == "overloaded"
    assert other.success


async def test_a_job_sees_nothing_of_the_request_that_started_it() -> None:
    seen: list[Channel] = []

    @tool
    async def look(call: Call) -> None:
        """Look at the channel."""
        seen.append(call.channel)

    secret = Channel(name="http", headers={"authorization": "secret"}, forwarded={"authorization": "secret"}, meta={"key": "secret"})
    async with Yard(tools=[look]) as yard:
        await ended(yard, await started(yard, "look", channel=secret))

    assert (seen[0].name, seen[0].headers, seen[0].forwarded, seen[0].meta) == ("http", {}, {}, {})


# Another process


@asynccontextmanager
async def crashing(yard: Yard) -> AsyncGenerator[Yard]:
    """Open a yard, and on leaving let it stop like a process that is killed: nothing more is written."""
    async with yard:
        yield yard
        for running in yard.jobs._running.values():  # pyright: ignore[reportPrivateUsage] - a kill is not in the interface
            running._is_lost = True  # pyright: ignore[reportPrivateUsage] - the same
            await yard.store.release(running._lease)  # pyright: ignore[reportPrivateUsage] - as if its time had passed


def waiting(ran: list[str], **options: Any) -> Callable[..., Any]:
    """Return a tool that hangs in its first run."""

    @tool(**options)
    async def work(call: Call) -> str:
        """Work."""
        ran.append(call.id)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "done"

    return work


async def hung(yard: Yard, ran: list[str], **how: Any) -> str:
    job_id = await started(yard, "work", **how)
    while not ran:  # noqa: ASYNC110 - a turn of the loop each
        await asyncio.sleep(0)
    return job_id


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
    async with Yard(tools=[work], store=SqliteStore(path)) as first, Yard(tools=[work], store=SqliteStore(path)) as second:
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
    async with Yard(tools=[greet], store=SqliteStore(path)) as first, Yard(tools=[greet], store=SqliteStore(path)) as second:
        job_id = await started(first, "greet", channel=TASK_CLIENT)
        asked = await ended(second, job_id)
        await second.jobs.answer(job_id, "local", {"who": {"action": "accept", "content": {"name": "Ada"}}})
        await first.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - waiting for it ends at its question
        job = await ended(second, job_id)

    assert list(asked["questions"]) == ["who"]
    assert job["result"]["data"] == "Ada"


@pytest.mark.parametrize("change", ["gone", "schema", "operation", "profile"])
async def test_a_job_whose_tool_is_gone_or_changed_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(service, "_TOOL_WAIT_S", 0.0)
    ran: list[str] = []

    @tool(operation="query", name="work")
    async def with_argument(a: int = 1) -> int:
        """Work, with an argument."""
        return a

    @tool(operation="command", name="work")
    async def with_effect() -> None:
        """Work, with an effect."""

    tools = {"gone": [add], "schema": [with_argument], "operation": [with_effect], "profile": [waiting(ran, operation="query")]}[change]
    path, narrow = tmp_path / "store.sqlite3", Profile(name="narrow")
    caller = Caller(profile=narrow) if change == "profile" else Caller()
    async with crashing(Yard(tools=[waiting(ran, operation="query")], profiles=[narrow], store=SqliteStore(path))) as yard:
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

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None) -> bool:
        self._check()
        return await super().compare_and_set(key, expected, value, ttl=ttl)


async def test_without_the_store_no_job_is_started_and_other_calls_go_on() -> None:
    store = Failing()
    async with Yard(tools=[add], store=store) as yard:
        store.fails = True
        refused = await yard.call("run_tool", {"tool_id": "add", "args": {"a": 1}, "background": True})
        direct = await yard.call("add", {"a": 1})
        store.fails = False

    assert refused.error is not None
    assert (refused.error.code, refused.error.details["reason"], refused.error.may_have_run) == ("overloaded", "store_unavailable", False)
    assert refused.error.details["retry_after_ms"] > 0
    assert direct.data == 2


async def test_a_handler_does_not_start_unless_that_can_be_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolyard.jobs.run._RETRY_S", 0.001)
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
    assert (error["code"], error["details"]["reason"], error["may_have_run"]) == ("overloaded", "store_unavailable", False)


async def test_a_job_works_until_its_result_is_stored(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("toolyard.jobs.run._RETRY_S", 0.001)
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
        """A store whose disk is full after a few writes."""

        left = 0

        async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
            self.left -= 1
            if not self.left:
                raise StoreUnavailableError("no room", reason="full")
            await super().put(key, value, ttl=ttl)

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

        async def compare_and_set(self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None) -> bool:
            await asyncio.sleep(0)
            return await super().compare_and_set(key, expected, value, ttl=ttl)

    ran: list[str] = []
    store = Slow()
    async with Yard(tools=[waiting(ran, operation="command")], store=store) as yard:
        job_id = await started(yard, "work")
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - it comes every second
        while not ran:
            await asyncio.gather(running.save_progress(), asyncio.sleep(0))
        await running.save_progress()
        stored = await store.get(f"job/{job_id}")

    assert stored is not None
    assert msgspec.json.decode(stored)["claimed"]


async def test_a_job_that_lost_its_lease_is_stopped_and_writes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    async with Yard(tools=[work], store=SqliteStore(tmp_path / "store.sqlite3", clock=clock), limits=Limits(job_ttl=60)) as yard:
        job_id = await hung(yard, ran)
        task = yard.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - it tidies up after its end
        clock.advance(100_000)
        go.set()
        job = await ended(yard, job_id)
        await task
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
    path = tmp_path / "store.sqlite3"
    async with Yard(tools=[add], store=SqliteStore(path)) as yard:
        job_id = await started(yard, "add", {"a": 1})
        order = await yard.store.get(f"job_order/{job_id}")
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


# What a job has that a call has not


async def test_a_job_has_its_own_timeout() -> None:
    @tool
    async def wait() -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    @tool
    async def work() -> str:
        """Work a little longer than a call may."""
        await asyncio.sleep(0.05)
        return "done"

    async with Yard(tools=[wait, work], limits=Limits(timeout=0.01, job_timeout=0.3)) as yard:
        direct = await yard.call("work")
        jobs = [await yard.jobs.wait(await started(yard, name), None, seconds=20) for name in ("wait", "work")]
        results = [await yard.jobs.result(job) for job in jobs]

    assert direct.error is not None
    assert direct.error.code == "timeout"
    assert [job.status for job in jobs] == ["completed", "completed"]
    assert [result and (result.error and result.error.code, result.data) for result in results] == [("timeout", None), (None, "done")]


async def test_a_chain_in_the_background_resolves_references() -> None:
    @tool(operation="query")
    async def much() -> str:
        """Say much."""
        return "x" * 60_000

    @tool(operation="query")
    async def length(text: str) -> int:
        """Count characters."""
        return len(text)

    async with Yard(tools=[much, length]) as yard:
        handle = (await yard.call("much")).data["handle"]
        args = {"text": {"$ref": handle}}
        direct = await ended(yard, await started(yard, "length", args))
        chain = await ended(yard, await started(yard, "run_chain", {"steps": [{"tool_id": "length", "args": args}]}))

    assert (direct["result"]["data"], chain["result"]["data"]["final"]) == (60_000, 60_000)


async def test_a_job_keeps_the_session_that_its_call_found() -> None:
    @tool(operation="query", session="required")
    async def look(call: Call) -> str:
        """Look into the session."""
        assert call.session is not None
        return call.session.id

    @tool
    async def begin(call: Call) -> str:
        """Begin a session."""
        return call.start_session().id

    async with Yard(tools=[look, begin]) as yard:
        session = (await yard.call("begin")).data
        job_id = await started(yard, "look")
        await yard.call("begin")
        job = await ended(yard, job_id)

    assert job["result"]["data"] == session


async def test_each_question_of_a_job_has_a_name_of_its_own() -> None:
    @tool
    async def greet(call: Call) -> list[str]:
        """Ask again and again."""
        return [(await call.ask(FORM, "Who?", key="who"))["name"] for _ in range(3)]

    names: list[str] = []
    async with Yard(tools=[greet]) as yard:
        job_id = await started(yard, "greet", channel=TASK_CLIENT)
        while (job := await ended(yard, job_id))["status"] == "input_required":
            names += job["questions"]
            answers = {name: {"action": "accept", "content": {"name": name}} for name in job["questions"]}
            await yard.jobs.answer(job_id, "local", answers)
            await yard.jobs.answer(job_id, "local", answers)  # too late

    assert len(set(names)) == 3
    assert job["result"]["data"] == names


async def test_answers_to_a_job_that_has_ended_change_nothing(store: Store) -> None:
    async with Yard(tools=[add], store=store) as yard:
        job_id = await started(yard, "add", {"a": 1})
        await ended(yard, job_id)
        await yard.jobs.answer(job_id, "local", {"who": {"action": "accept"}})
        job = await ended(yard, job_id)

    assert job["status"] == "completed"


async def test_a_question_that_nobody_answers_ends_with_the_time_that_jobs_are_kept() -> None:
    @tool
    async def greet(call: Call) -> str:
        """Ask."""
        return str(await call.ask(FORM, "Who?"))

    async with Yard(tools=[greet], limits=Limits(job_ttl=0.05)) as yard:
        job_id = await started(yard, "greet", channel=TASK_CLIENT)
        await ended(yard, job_id)
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - waiting for it ends at its question
        await running.task
        job = await ended(yard, job_id)

    assert (job["status"], job["result"]["error"]["details"]["reason"]) == ("completed", "dismissed")


async def test_many_calls_at_once_start_no_more_jobs_than_one_identity_may_have(tmp_path: Path) -> None:
    go = asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        await go.wait()

    async with Yard(tools=[wait], limits=Limits(jobs=2), store=SqliteStore(tmp_path / "store.sqlite3")) as yard:
        answers = await asyncio.gather(*(yard.call("run_tool", {"tool_id": "wait", "background": True}) for _ in range(5)))
        go.set()

    assert sorted(answer.success for answer in answers) == [False, False, False, True, True]


async def test_a_yard_that_closes_does_not_wait_for_ever_for_a_job(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    go = asyncio.Event()

    @tool
    async def work() -> None:
        """Ignore that it is cancelled."""
        ran.append("work")
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    async with Yard(tools=[work], limits=Limits(cleanup=0.01)) as yard:
        job_id = await hung(yard, ran)
        task = yard.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - to end it in this test
    go.set()
    await asyncio.wait([task])

    assert "jobs_left_behind" in caplog.text


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


async def test_the_answer_of_a_job_that_was_started_is_not_wrapped() -> None:
    async with Yard(tools=[add]) as yard:
        answer = await yard.call("run_tool", {"tool_id": "add", "args": {"a": 1}, "background": True, "include": ["tool"]})

    assert answer.data["status"] == "working"
