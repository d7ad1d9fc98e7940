"""`execute_code`: programs that call tools, each call through the whole funnel."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from backends import descendants, require

from callyard import ToolError, Yard, tool
from callyard.dispatch.call import SHARED, Call, Caller, Channel
from callyard.dispatch.outcome import Record
from callyard.dispatch.progress import Progress
from callyard.model.envelope import Envelope
from callyard.model.profile import Profile, Toolset
from callyard.runtimes.runtime import RunLimits, RuntimeSettings

SANDBOX = RuntimeSettings(enabled=True, backend="bubblewrap")


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def bubblewrap() -> None:
    await require("bubblewrap")


async def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="destroy")
def wipe() -> str:
    """Delete everything."""
    return "wiped"


@tool(name="class")
def keyword(value: int) -> int:
    """Return the value."""
    return value


async def fail() -> None:
    """Fail."""
    raise ToolError("rate_limited", "Not now.", retry_after_ms=7)


async def slow() -> None:
    """Take a minute."""
    await asyncio.sleep(60)


async def large() -> list[int]:
    """Return many numbers."""
    return list(range(30_000))


@asynccontextmanager
async def yard_of(*tools: object, **options: Any) -> AsyncGenerator[Yard]:
    async with Yard("shop", tools=tools or (add, wipe, keyword, fail, slow, large), runtime=SANDBOX, **options) as yard:
        yield yard


async def run(yard: Yard, code: str, **arguments: Any) -> Envelope:
    return await yard.call("execute_code", {"code": code, **arguments})


async def test_it_is_not_there_unless_the_runtime_is_enabled() -> None:
    async with Yard(tools=[add]) as yard:
        answer = await yard.call("execute_code", {"code": "1"})
    assert answer.error is not None
    assert answer.error.code == "tool_not_found"


async def test_a_program_calls_tools_and_answers_with_its_value_and_the_calls() -> None:
    async with yard_of() as yard:
        answer = await run(yard, "print('hi')\nsum([await tools.shop.add(a=n) for n in range(4)])")
    assert answer.success
    assert (answer.data["value"], answer.data["stdout"]) == (14, "hi\n")
    assert [(call["tool"], call["code"], call["count"]) for call in answer.data["calls"]] == [("add", "ok", 4)]
    assert answer.data["runtime"]["backend"] == "bubblewrap"
    assert "memory" in answer.data["runtime"]["enforced"]


async def test_every_inner_call_is_recorded_with_the_program_as_its_parent() -> None:
    records: list[Record] = []
    async with yard_of(sinks=[records.append]) as yard:
        await run(yard, "await call_tool('add', {'a': 1})\nawait run_chain([{'tool_id': 'add', 'args': {'a': 1}}])")
    outer = records[-1]
    assert outer.tool == "execute_code"
    assert [(record.tool, record.depth) for record in records[:-1]] == [("add", 1), ("add", 2), ("run_chain", 1)]
    assert records[0].parent_id == outer.call_id


@pytest.mark.parametrize(
    "code",
    [
        "await tools.shop.wipe()",
        "await call_tool('wipe')",
        "await call_tool('run_tool', {'tool_id': 'wipe'})",
        "await run_chain([{'tool_id': 'wipe'}])",
        "await call_tool('call_tool', {'tool_id': 'run_tool', 'args': {'tool_id': 'wipe'}})",
    ],
)
async def test_a_policy_judges_each_inner_call(code: str) -> None:
    ran: list[str] = []

    async def deny(call: Call) -> None:
        if call.spec.name == "wipe":
            raise ToolError("permission_denied", "No.")

    @tool(operation="destroy", name="wipe")
    def wipe_noted() -> str:
        """Delete everything."""
        ran.append("wiped")
        return "wiped"

    async with yard_of(wipe_noted, policies=[deny]) as yard:
        answer = await run(yard, code)
    assert answer.error is not None
    assert answer.error.code == "code_error"
    assert ran == []


async def test_a_profile_hides_tools_from_programs() -> None:
    hidden = Profile(name="few", toolsets=(Toolset(name="few", deny=("wipe",)),))
    async with yard_of() as yard:
        code = "try:\n    await tools.shop.wipe()\nexcept ToolError as error:\n    result = error.code"
        answer = await yard.call("execute_code", {"code": code}, caller=Caller(profile=hidden))
    assert answer.data["value"] == "tool_not_found"


async def test_a_failure_of_a_tool_is_raised_with_all_its_facts() -> None:
    code = (
        "try:\n    await tools.shop.fail()\n"
        "except ToolError as e:\n    result = [e.code, e.message, e.retryable, e.details]"
    )
    async with yard_of() as yard:
        answer = await run(yard, code)
    assert answer.data["value"] == ["rate_limited", "Not now.", True, {"retry_after_ms": 7}]


@pytest.mark.parametrize(
    ("arguments", "code", "details"),
    [
        ({"code": "  \n"}, "invalid_input", {}),
        ({"code": "1", "language": "ruby"}, "invalid_input", {}),
        ({"code": "1", "timeout_ms": 60_001}, "invalid_input", {}),
        ({"code": "1", "max_tool_calls": 1001}, "invalid_input", {}),
        ({"code": "#" * 1_000_000}, "too_large", {}),
        ({"code": "1", "session_id": "a b"}, "invalid_input", {}),
        ({"code": "x =\n"}, "code_error", {"line": 1, "type": "SyntaxError"}),
        (
            {"code": "x = 1\n1 / 0"},
            "code_error",
            {"line": 2, "column": 1, "source": "1 / 0", "type": "ZeroDivisionError"},
        ),
        ({"code": "{1}"}, "code_error", {}),
        ({"code": "tools.shop.add(a=1)"}, "code_error", {}),
        ({"code": "x = tools.shop.add(a=1)\nx + 1"}, "code_error", {"line": 2}),
        ({"code": "x = 1\ny = tools.shop.add(a=1)\n5"}, "code_error", {"line": 2, "source": "y = tools.shop.add(a=1)"}),
        ({"code": "import asyncio\nasyncio.create_task(tools.shop.add(a=1))\n1"}, "code_error", {"line": 2}),
        ({"code": "await tools.shop.class(value=1)"}, "code_error", {"line": 1, "type": "SyntaxError"}),
        ({"code": "import numpy"}, "code_error", {"type": "ModuleNotFoundError"}),
        ({"code": "import asyncio\nasync def main(): pass\nasyncio.run(main())"}, "code_error", {"line": 3}),
        ({"code": "while True: pass", "timeout_ms": 300}, "limit_exceeded", {"limit": "timeout_ms", "bound": 300}),
        ({"code": "await tools.shop.slow()", "timeout_ms": 300}, "limit_exceeded", {"limit": "timeout_ms"}),
        (
            {"code": "for n in range(9): await tools.shop.add(a=n)", "max_tool_calls": 3},
            "limit_exceeded",
            {"limit": "max_tool_calls"},
        ),
        ({"code": "x = []\nwhile True: x.append('y' * 10**6)"}, "limit_exceeded", {"limit": "memory"}),
        ({"code": "'x' * 3_000_000"}, "limit_exceeded", {"limit": "value"}),
        ({"code": "import os\nos._exit(1)"}, "code_error", {}),
        ({"code": "await call_tool('execute_code', {'code': '1'})"}, "code_error", {}),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_each_mistake_has_its_code_and_a_hint(
    arguments: dict[str, Any], code: str, details: dict[str, Any]
) -> None:
    async with yard_of() as yard:
        answer = await yard.call("execute_code", arguments)
    assert answer.error is not None
    assert answer.error.code == code
    assert answer.error.hint
    assert {key: answer.error.details.get(key) for key in details} == details


@pytest.mark.parametrize(
    "code",
    [
        "await run_chain(STEPS)",
        "await call_tool('run_tool', {'tool_id': 'run_chain', 'args': {'steps': STEPS}})",
        "await run_chain([{'tool_id': 'run_chain', 'args': {'steps': STEPS}}])",
        "[await call_tool('run_tool', {'tool_id': 'count', 'args': {}}) for _ in range(20)]",
    ],
)
async def test_the_calls_that_chains_make_for_a_program_count(code: str) -> None:
    ran: list[int] = []

    @tool(operation="query")
    def count() -> int:
        """Count."""
        ran.append(1)
        return len(ran)

    async with yard_of(count) as yard:
        answer = await run(yard, f"STEPS = [{{'tool_id': 'count'}}] * 20\n{code}", max_tool_calls=5)
    assert answer.error is not None
    assert answer.error.code in ("code_error", "limit_exceeded")
    assert "max_tool_calls" in str(answer.error.details)
    assert 3 <= len(ran) <= 5


async def test_the_calls_that_a_tool_makes_inside_are_its_own_affair() -> None:
    @tool(operation="query")
    async def thrice(call: Call) -> int:
        """Add three times."""
        return sum([(await call.invoke("add", {"a": 1})).data for _ in range(3)])

    async with yard_of(add, thrice) as yard:
        answer = await run(yard, "await tools.shop.thrice()", max_tool_calls=1)
    assert answer.success


@pytest.mark.parametrize(("code", "failure"), [("1 / 0", "code_error"), ("'x' * 3_000_000", "limit_exceeded")])
async def test_a_failure_says_which_runtime_ran_and_which_limits_held(code: str, failure: str) -> None:
    async with yard_of() as yard:
        answer = await run(yard, code)
    assert answer.error is not None
    assert answer.error.code == failure
    assert answer.data["runtime"]["backend"] == "bubblewrap"
    assert "memory" in answer.data["runtime"]["enforced"]


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("await tools.shop.class(value=1)", "class_"),
        ("await tools.shop.ad(a=1)", "tools.shop.add"),
        ("tools.shop.add(a=1)\n1", "await"),
        ("import numpy", "standard library"),
        ("return 5", "last expression"),
        ("await tools.shop.add(b='x')", "'a'"),
    ],
)
async def test_the_hint_names_what_mends_a_common_mistake(code: str, hint: str) -> None:
    async with yard_of() as yard:
        answer = await run(yard, code)
    assert answer.error is not None
    assert hint in answer.error.hint


async def test_a_program_with_a_forgotten_call_still_tells_its_value_and_what_ran() -> None:
    async with yard_of() as yard:
        answer = await run(yard, "tools.shop.add(a=1)\nawait tools.shop.add(a=3)")
    assert answer.error is not None
    assert answer.error.may_have_run
    assert (answer.data["value"], answer.data["calls"][0]["count"]) == (5, 1)


async def test_a_call_that_is_cancelled_before_it_begins_is_not_forgotten() -> None:
    code = (
        "import asyncio\ntask = asyncio.create_task(tools.shop.add(a=1))\ntask.cancel()\nawait asyncio.wait([task])\n7"
    )
    async with yard_of() as yard:
        answer = await run(yard, code)
    assert answer.data["value"] == 7, answer.error


async def test_names_that_are_no_identifiers_have_another_spelling() -> None:
    async with yard_of() as yard:
        answer = await run(yard, "await tools.shop.class_(value=5)")
    assert answer.data["value"] == 5


async def test_a_large_value_becomes_a_handle_and_a_handle_can_be_an_input() -> None:
    async with yard_of() as yard:
        answer = await run(yard, "await tools.shop.large()")
        assert answer.data["status"] == "stored"
        again = await run(yard, "inputs['all']['value'][-1]", inputs={"all": {"$ref": answer.data["handle"]}})
    assert again.data["value"] == 29_999


async def test_programs_of_a_session_of_one_caller_share_variables_until_it_ends() -> None:
    async with yard_of() as yard:
        await run(yard, "x = 20", session_id="mine")
        kept = await run(yard, "x + 1", session_id="mine")
        stranger = await yard.call("execute_code", {"code": "x", "session_id": "mine"}, caller=Caller(identity="other"))
        own = await yard.call(
            "execute_code", {"code": "x = 3\nx", "session_id": "mine"}, caller=Caller(identity="other")
        )
        by_id = await run(yard, "x + 2", session_id=kept.meta.session_id)
        await yard.sessions.end(kept.meta.session_id or "")
        ended = await run(yard, "x", session_id="mine")
        shared = await yard.call("execute_code", {"code": "x = 3", "session_id": "mine"}, caller=SHARED)
    assert (kept.data["value"], own.data["value"], by_id.data["value"]) == (21, 3, 22)
    assert stranger.error is not None
    assert stranger.error.details["type"] == "NameError"
    assert shared.error is not None
    assert shared.error.code == "not_supported"
    assert ended.error is not None
    assert ended.error.details["type"] == "NameError"


async def test_a_session_that_lost_its_guest_says_so() -> None:
    async with yard_of() as yard:
        answer = await run(yard, "while True: pass", session_id="mine", timeout_ms=300)
    assert answer.error is not None
    assert answer.error.details["session_lost"] is True


@pytest.mark.parametrize(
    "code", ["call_tool('add')\n2", "x = 'a' * 10**9", "1 / 0"], ids=["unawaited", "memory", "exception"]
)
async def test_a_session_that_keeps_its_variables_is_not_called_lost(code: str) -> None:
    async with yard_of() as yard:
        await run(yard, "kept = 41", session_id="mine")
        answer = await run(yard, code, session_id="mine")
        kept = await run(yard, "kept", session_id="mine")
    assert answer.error is not None
    assert "session_lost" not in answer.error.details
    assert kept.data["value"] == 41


async def test_a_caller_has_eight_sessions_and_one_more_ends_the_longest_idle_one() -> None:
    alice, bob = Caller(identity="alice"), Caller(identity="bob")

    async def in_session(yard: Yard, name: str, code: str, caller: Caller = alice) -> Envelope:
        return await yard.call("execute_code", {"code": code, "session_id": name}, caller=caller)

    async with yard_of() as yard:
        for n in range(8):
            await in_session(yard, f"s{n}", f"x = {n}")
        await in_session(yard, "s0", "x")
        assert (await in_session(yard, "s8", "x = 8")).success
        others = [await in_session(yard, f"s{n}", "x") for n in (0, 2, 8)]
        assert len(yard.sessions.ids(alice.owner)) == 8
        ended = await in_session(yard, "s1", "x")
        stranger = await in_session(yard, "s1", "5", bob)
    assert [answer.data["value"] for answer in others] == [0, 2, 8]
    assert ended.error is not None
    assert ended.error.details["type"] == "NameError"
    assert stranger.data["value"] == 5


async def test_a_caller_whose_sessions_are_all_in_use_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.metatools.code._SESSIONS_EACH", 1)
    started, release = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        """Wait."""
        started.set()
        await release.wait()

    async with yard_of(wait) as yard:
        busy = asyncio.create_task(run(yard, "await tools.shop.wait()\n1", session_id="a"))
        await started.wait()
        refused = await run(yard, "1", session_id="b")
        release.set()
        assert (await busy).success
        assert (await run(yard, "1", session_id="b")).success
    assert refused.error is not None
    assert (refused.error.code, refused.error.retryable) == ("overloaded", True)


async def test_a_session_that_gets_no_guest_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.runtimes.guest_runtime._SESSIONS", 1)
    alice, bob = Caller(identity="alice"), Caller(identity="bob")
    async with yard_of() as yard:
        await yard.call("execute_code", {"code": "1", "session_id": "mine"}, caller=alice)
        refused = await yard.call("execute_code", {"code": "1", "session_id": "mine"}, caller=bob)
        assert yard.sessions.ids(bob.owner) == []
    assert refused.error is not None
    assert (refused.error.code, refused.error.retryable) == ("overloaded", True)


async def test_without_a_runtime_no_session_is_started(caplog: pytest.LogCaptureFixture) -> None:
    async with Yard("shop", runtime=RuntimeSettings(enabled=True, order=("wasm",))) as yard:
        refused = await run(yard, "1", session_id="mine")
        assert yard.sessions.ids(Caller().owner) == []
    assert refused.error is not None
    assert refused.error.code == "runtime_unavailable"
    assert "cleanup_failed" not in caplog.text


async def test_processor_time_that_is_used_up_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(**given: Any) -> RunLimits:
        return RunLimits(**given, cpu_seconds=1)

    monkeypatch.setattr("callyard.metatools.code.RunLimits", limits)
    settings = RuntimeSettings(enabled=True, profile="dev", allow_unsafe=True)
    async with Yard("shop", tools=[add], runtime=settings, allow_eval=True) as yard:
        answer = await run(yard, "while True: pass")
    assert answer.error is not None
    assert (answer.error.code, answer.error.details) == ("limit_exceeded", {"limit": "cpu", "bound": 1})


async def test_cancelling_the_call_cancels_its_inner_calls() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        """Wait."""
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with yard_of(wait) as yard:
        task = asyncio.create_task(run(yard, "await tools.shop.wait()"))
        await started.wait()
        outer = next(call.id for call in yard.dispatcher.in_flight.values() if call.spec.name == "execute_code")
        yard.dispatcher.cancel(outer)
        answer = await task
    assert answer.error is not None
    assert answer.error.code == "cancelled"
    assert ended.is_set()


async def test_the_clock_of_a_program_stands_still_while_a_person_is_asked() -> None:
    async def ask(_asks: Any, _first: object) -> dict[str, Any]:
        await asyncio.sleep(1.5)
        return {"answer": {"action": "accept", "content": {"ok": True}}}

    async def confirm(call: Call) -> bool:
        """Ask the person."""
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        return (await call.ask(schema, "Sure?"))["ok"]

    async with yard_of(confirm) as yard:
        channel = Channel(ask=ask, capabilities=frozenset({"elicitation"}))
        await run(yard, "1")  # the runtime is selected before the clock matters
        answer = await yard.call(
            "execute_code", {"code": "await tools.shop.confirm()", "timeout_ms": 1000}, channel=channel
        )
    assert answer.success, answer.error
    assert answer.data["value"] is True
    assert answer.data["duration_ms"] < 1000


async def test_progress_of_the_program_reaches_the_client() -> None:
    seen: list[Progress] = []
    async with yard_of() as yard:
        channel = Channel(progress=seen.append)
        answer = await yard.call("execute_code", {"code": "progress(1, 2, 'half')"}, channel=channel)
    assert answer.success
    assert (seen[-1].done, seen[-1].total, seen[-1].text) == (1, 2, "half")


async def test_output_reaches_a_client_that_takes_log_lines() -> None:
    seen: list[tuple[str, str]] = []
    async with yard_of() as yard:
        channel = Channel(log=lambda level, text, _facts: seen.append((level, text)))
        await yard.call("execute_code", {"code": "print('one')"}, channel=channel)
    assert ("info", "one\n") in seen


async def test_a_hundred_programs_at_once_take_turns() -> None:
    running, most = 0, 0

    async def enter() -> None:
        """Note how many programs run."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with yard_of(enter) as yard:
        answers = await asyncio.gather(
            *(run(yard, f"await tools.shop.enter()\n{n}", timeout_ms=20_000) for n in range(100))
        )
    assert [answer.data["value"] for answer in answers] == list(range(100))
    assert most <= SANDBOX.concurrency


async def test_a_stub_shows_a_tool_as_a_function() -> None:
    async with yard_of() as yard:
        one = await yard.call("describe_tool", {"tool_id": "add", "detail_level": "stub"})
        several = await yard.call("search_tools", {"query": "add numbers", "detail": "stub"})
    assert one.data["stub"] == '# tools.shop\nasync def add(*, a: int, b: int = 2) -> int:\n    """Add two numbers."""'
    assert one.data["stub"] in [hit["stub"] for hit in several.data["hits"]]


async def test_the_dev_profile_needs_the_eval_flag() -> None:
    dev = RuntimeSettings(enabled=True, profile="dev", allow_unsafe=True)
    async with Yard(tools=[add], runtime=dev) as yard:
        gated = await run(yard, "1")
    async with Yard(tools=[add], runtime=dev, allow_eval=True) as yard:
        answer = await run(yard, "1")
    assert gated.error is not None
    assert gated.error.code == "tool_not_found"
    assert answer.data["value"] == 1
    assert answer.data["runtime"]["sandboxed"] is False
    assert "memory" in answer.data["runtime"]["not_enforced"]


async def started(yard: Yard, code: str) -> str:
    """Start a program in the background and return the id of its job."""
    answer = await yard.call("run_tool", {"tool_id": "execute_code", "args": {"code": code}, "background": True})
    assert answer.data["status"] == "working", answer
    return answer.data["job_id"]


async def ended(yard: Yard, job_id: str) -> dict[str, Any]:
    return (await yard.call("wait_job", {"job_id": job_id})).data


async def test_a_program_can_run_in_the_background() -> None:
    async with yard_of() as yard:
        job_id = await started(yard, "progress(1, 2, 'half')\nawait tools.shop.add(a=1)")
        job = await ended(yard, job_id)
    assert (job["status"], job["tool_id"]) == ("completed", "execute_code")
    assert job["result"]["data"]["value"] == 3
    assert job["progress"] == {"done": 1, "total": 2, "text": "half"}


async def test_a_mistake_of_a_program_in_the_background_is_its_result() -> None:
    async with yard_of() as yard:
        job = await ended(yard, await started(yard, "x = 1\n1 / 0"))
    assert (job["status"], job["result"]["error"]["code"]) == ("completed", "code_error")
    assert job["result"]["error"]["details"]["line"] == 2


async def test_cancelling_the_job_of_a_program_kills_its_guest_and_its_calls() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()
    programs: set[int] = set()

    async def wait() -> None:
        """Wait."""
        programs.update(guests() - before)
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with yard_of(wait) as yard:
        await run(yard, "1")
        before = guests()
        job_id = await started(yard, "await tools.shop.wait()")
        await begun.wait()
        assert programs
        job = (await yard.call("cancel_job", {"job_id": job_id})).data
        await stopped.wait()
        async with asyncio.timeout(60):
            while programs & guests():  # noqa: ASYNC110 - the system tells of no process that is no child of ours
                await asyncio.sleep(0.01)
    assert job["status"] == "cancelled"


async def test_cancelling_a_chain_kills_the_guest_of_its_program_and_its_calls() -> None:
    begun, stopped, calls = asyncio.Event(), asyncio.Event(), 0

    async def wait() -> None:
        """Wait."""
        nonlocal calls
        calls += 1
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    steps = [{"tool_id": "execute_code", "args": {"code": "await tools.shop.wait()"}}, {"tool_id": "wait"}]
    async with yard_of(wait) as yard:
        await run(yard, "1")
        before = guests()
        task = asyncio.create_task(yard.call("run_chain", {"steps": steps}))
        await begun.wait()
        programs = guests() - before
        assert programs
        yard.dispatcher.cancel(
            next(call.id for call in yard.dispatcher.in_flight.values() if call.spec.name == "run_chain")
        )
        answer = await task
        async with asyncio.timeout(60):
            while programs & guests():  # noqa: ASYNC110 - the system tells of no process that is no child of ours
                await asyncio.sleep(0.01)
    assert answer.error is not None
    assert answer.error.code == "cancelled"
    assert stopped.is_set()
    assert calls == 1


def guests() -> set[int]:
    """Return the processes of the guests of this process: they all are below its bubblewrap."""
    return descendants(os.getpid())


async def test_a_program_can_be_a_step_of_a_chain() -> None:
    steps = [
        {"tool_id": "add", "args": {"a": 1}},
        {
            "tool_id": "execute_code",
            "args": {"code": "(await tools.shop.add(a=inputs['n'])) * 10", "inputs": {"n": {"$from": 0}}},
        },
    ]
    async with yard_of() as yard:
        answer = await yard.call("run_chain", {"steps": steps})
        wrong = await yard.call(
            "run_chain", {"steps": [*steps, {"tool_id": "execute_code", "args": {"code": "1 / 0"}}]}
        )
    assert answer.success, answer.error
    assert answer.data["results"][1]["data"]["value"] == 50
    assert wrong.error is not None
    assert (wrong.error.code, wrong.error.details["cause_code"]) == ("chain_step_failed", "code_error")


async def test_a_tool_that_always_is_a_job_is_one_in_a_program_too() -> None:
    @tool(job="always", aliases=("export_all",))
    async def export() -> str:
        """Export everything."""
        return "exported"

    wait = "(await call_tool('wait_job', {'job_id': job['job_id']}))['result']['data']"
    async with yard_of(export) as yard:
        answers = [
            await run(yard, f"job = await {call}\n[job['status'], {wait}]")
            for call in ("tools.shop.export()", "call_tool('export_all')")
        ]
    assert [answer.data["value"] for answer in answers] == [["working", "exported"]] * 2


async def test_a_program_cannot_run_another_one_as_a_job_either() -> None:
    inner = {"tool_id": "execute_code", "args": {"code": "await tools.shop.add(a=1)"}}
    starts = [
        {"tool_id": "execute_code", "args": inner["args"], "background": True},
        {"tool_id": "run_chain", "args": {"steps": [inner]}, "background": True},
    ]
    code = "jobs = [await call_tool('run_tool', start) for start in inputs['starts']]\n"
    code += "[(await call_tool('wait_job', {'job_id': job['job_id']}))['result']['error']['message'] for job in jobs]"
    records: list[Record] = []
    async with yard_of(sinks=[records.append]) as yard:
        answer = await run(yard, code, inputs={"starts": starts})
    assert answer.success, answer.error
    assert all("cannot run another program" in message for message in answer.data["value"])
    assert "add" not in {record.tool for record in records}


async def test_a_program_gets_the_id_of_a_job_that_it_starts() -> None:
    code = "job = await call_tool('run_tool', {'tool_id': 'add', 'args': {'a': 5}, 'background': True})\n"
    code += "[job['status'], (await call_tool('wait_job', {'job_id': job['job_id']}))['result']['data']]"
    async with yard_of() as yard:
        answer = await run(yard, code)
    assert answer.success, answer.error
    assert answer.data["value"] == ["working", 7]
