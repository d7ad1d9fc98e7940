"""Jobs in one process: started, followed, answered, cancelled; and what another process makes of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolyard import Call, Caller, Image, Limits, Profile, ToolError, Yard, tool
from toolyard.dispatch.call import Channel
from toolyard.jobs import service
from toolyard.jobs.run import TASKS
from toolyard.state.memory import MemoryStore
from toolyard.state.sqlite import SqliteStore
from toolyard.state.store import Store, StoreUnavailableError

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


async def test_a_handler_does_not_start_unless_that_can_be_noted() -> None:
    store = Failing()
    begun = asyncio.Event()

    async def hold(call: Call) -> Callable[[], None]:
        if call.channel.job_id:
            begun.set()
            store.fails = True
        return lambda: None

    @tool
    async def never() -> None:
        """Never run."""
        raise AssertionError

    async with Yard(tools=[never], store=store, limiters=[hold], metatools=["run_tool"]) as yard:
        answer = await yard.call("run_tool", {"tool_id": "never", "background": True})
        await begun.wait()
        while (await yard.jobs.get(answer.data["job_id"], None)).status == "working":  # noqa: ASYNC110 - a turn of the loop each
            await asyncio.sleep(0)
        result = await yard.jobs.result(await yard.jobs.get(answer.data["job_id"], None))
        store.fails = False

    assert result is not None
    assert result.error is not None
    assert (result.error.code, result.error.may_have_run) == ("overloaded", False)


async def test_the_result_of_a_job_is_kept_until_the_store_takes_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("toolyard.jobs.run._RETRY_S", 0.001)
    store = Failing()

    @tool
    async def work() -> str:
        """Work while the disk fills up."""
        store.fails = True
        return "done"

    async with Yard(tools=[work], store=store) as yard:
        job_id = await started(yard, "work")
        seen = await ended(yard, job_id)
        store.fails = False
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - what is not stored yet is seen nowhere else
        await running.task
        stored = await store.get(f"job_result/{job_id}")

    assert seen["result"]["data"] == "done"
    assert stored is not None
    assert "job_not_stored" in caplog.text


async def test_a_job_that_lost_its_lease_is_stopped_and_writes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    store = SqliteStore(tmp_path / "store.sqlite3")
    async with Yard(tools=[waiting(ran, operation="command")], store=store) as yard:
        job_id = await hung(yard, ran)
        running = yard.jobs._running[job_id]  # pyright: ignore[reportPrivateUsage] - a lost lease is not in the interface
        await store.release(running._lease)  # pyright: ignore[reportPrivateUsage] - the same
        await running.renew()
        await asyncio.wait([running.task])
        stored = (await yard.jobs.get(job_id, None)).status

    assert stored == "working"
    assert "job_lost" in caplog.text
