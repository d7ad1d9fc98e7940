"""Jobs in one process: started, followed, answered, cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_tools import FORM, TASK_CLIENT, add, ended, hung, started
from table_tests import every_row

from callyard import Call, Caller, Image, Limits, ToolError, Yard, tool
from callyard.dispatch.call import Channel
from callyard.jobs.job import JobResult
from callyard.model.content import Text
from callyard.model.envelope import Envelope, UpstreamResult, encode
from callyard.state.sqlite import SqliteStore
from callyard.state.store import Store


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


@every_row(
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
        await yard.jobs.answer(
            job_id, "local", {first: {"action": "accept", "content": {"name": "Ada"}}, "unknown": {}}
        )
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
        codes = [
            (await yard.call(name, {"job_id": job_id}, caller=stranger)).error
            for name in ("get_job", "wait_job", "cancel_job")
        ]

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

    secret = Channel(
        name="http", headers={"authorization": "secret"}, forwarded={"authorization": "secret"}, meta={"key": "secret"}
    )
    async with Yard(tools=[look]) as yard:
        await ended(yard, await started(yard, "look", channel=secret))

    assert (seen[0].name, seen[0].headers, seen[0].forwarded, seen[0].meta) == ("http", {}, {}, {})


async def test_a_job_has_its_own_timeout() -> None:
    go = asyncio.Event()

    @tool
    async def work() -> str:
        """Work for long."""
        await go.wait()
        return "done"

    async with Yard(tools=[work], limits=Limits(timeout=0.01, job_timeout=0)) as yard:
        direct = await yard.call("work")
        job_id = await started(yard, "work")
        go.set()
        done = await yard.jobs.result(await yard.jobs.wait(job_id, None, seconds=20))
    go.clear()
    async with Yard(tools=[work], limits=Limits(timeout=0, job_timeout=0.01)) as yard:
        late = (await ended(yard, await started(yard, "work")))["result"]["error"]

    assert direct.error is not None
    assert (direct.error.code, late["code"]) == ("timeout", "timeout")
    assert done is not None
    assert done.data == "done"


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
        answers = await asyncio.gather(
            *(yard.call("run_tool", {"tool_id": "wait", "background": True}) for _ in range(5))
        )
        go.set()

    assert sorted(answer.success for answer in answers) == [False, False, False, True, True]


async def test_a_yard_that_closes_does_not_wait_for_ever_for_a_job(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.jobs.service.CLEANUP_S", 0.01)
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

    async with Yard(tools=[work]) as yard:
        job_id = await hung(yard, ran)
        task = yard.jobs._running[job_id].task  # pyright: ignore[reportPrivateUsage] - to end it in this test
    go.set()
    await asyncio.wait([task])

    assert "jobs_left_behind" in caplog.text


async def test_the_answer_of_a_job_that_was_started_is_not_wrapped() -> None:
    async with Yard(tools=[add]) as yard:
        answer = await yard.call(
            "run_tool", {"tool_id": "add", "args": {"a": 1}, "background": True, "include": ["tool"]}
        )

    assert answer.data["status"] == "working"


async def test_no_job_starts_while_the_yard_closes() -> None:
    async with Yard(tools=[add]) as yard:
        yard.jobs.is_closing = True
        answer = await yard.call("run_tool", {"tool_id": "add", "args": {"a": 1}, "background": True})

    assert answer.error is not None
    assert answer.error.code == "overloaded"


def test_the_result_of_an_upstream_is_kept_as_it_came() -> None:
    envelope = Envelope.ok({"a": 1}, content=[Text("one")])
    envelope.passthrough = UpstreamResult({"a": 1}, b'{"content":[]}', 2, (), {"k": 1}, b'{"content":[1]}')
    envelope.has_plain_shape = True
    kept = msgspec.json.decode(encode(JobResult.of(envelope)), type=JobResult).to_envelope()

    assert kept.passthrough is not None
    assert (kept.passthrough.result, kept.passthrough.meta, kept.passthrough.handshake_result) == (
        b'{"content":[]}',
        {"k": 1},
        b'{"content":[1]}',
    )
    assert (kept.data, [block.text for block in kept.content if isinstance(block, Text)], kept.has_plain_shape) == (
        {"a": 1},
        ["one"],
        True,
    )
