"""Programs whose calls need the approval of a person: the guest waits, and the run becomes a job."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from backends import CACHE, descendants, find_wasm, require

from callyard import Call, Caller, Limits, Operation, RateSettings, RuntimeSettings, SqliteStore, Yard, tool
from callyard.dispatch.call import Channel, Handler
from callyard.dispatch.outcome import Record
from callyard.model.envelope import Envelope
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Rule

ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
QUICK = Limits(approval_hold_s=0.05)
PATIENT = Limits(approval_hold_s=60)
SANDBOX = RuntimeSettings(enabled=True, backend="bubblewrap")
PROGRAM = """
await tools.shop.note(text='before')
try:
    result = await tools.shop.wipe(name='a')
except ToolError as error:
    result = [error.code, error.details['reason']]
noted = await tools.shop.note(text='after')
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def bubblewrap() -> None:
    await require("bubblewrap")


class Shop:
    """A yard with a tool that needs approval, and what its tools did."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self._options: dict[str, Any] = {"rules": [ASK], "runtime": SANDBOX, "limits": QUICK, **options}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Yard]:
        @tool(operation="destroy")
        async def wipe(name: str) -> str:
            """Delete something."""
            self.ran.append(f"wiped {name}")
            return f"wiped {name}"

        @tool
        async def note(text: str) -> str:
            """Note a text."""
            self.ran.append(text)
            return text

        async with Yard("shop", tools=[wipe, note], **self._options) as yard:
            yield yard


async def run(yard: Yard, code: str = PROGRAM, **arguments: Any) -> Envelope:
    return await yard.call("execute_code", {"code": code, **arguments})


async def decide(yard: Yard, decision: Any, approval_id: str | None = None) -> str:
    """Decide about an approval, by default the next one, as an operator."""
    approvals = Approvals(yard.store)
    approval_id = approval_id or (await approvals.watch(set())).id
    await approvals.decide(approval_id, decision, by="user:test")
    return approval_id


async def result_of(yard: Yard, job_id: str) -> dict[str, Any]:
    return (await yard.call("wait_job", {"job_id": job_id})).data


async def test_a_program_goes_on_with_the_real_result_if_somebody_approves_during_the_hold() -> None:
    shop = Shop(limits=PATIENT)
    async with shop.open() as yard:
        call = asyncio.create_task(run(yard))
        await decide(yard, "approve")
        answer = await call
    assert answer.success, answer.error
    assert answer.data["value"] == "wiped a"
    assert shop.ran == ["before", "wiped a", "after"]


@pytest.mark.parametrize(
    ("decision", "value", "ran"),
    [
        ("approve", "wiped a", ["before", "wiped a", "after"]),
        ("deny", ["approval_denied", "denied"], ["before", "after"]),
    ],
)
async def test_a_program_that_is_held_becomes_a_job_that_goes_on_after_the_decision(
    decision: str, value: object, ran: list[str]
) -> None:
    shop = Shop()
    async with shop.open() as yard:
        answer = await run(yard)
        assert answer.data["status"] == "working", answer
        assert answer.data["what_to_do"]
        held = (await yard.call("get_job", {"job_id": answer.data["job_id"]})).data
        assert (held["status"], held["tool_id"], shop.ran) == ("working", "execute_code", ["before"])
        await decide(yard, decision, answer.data["approval_id"])
        job = await result_of(yard, answer.data["job_id"])
    assert job["status"] == "completed"
    assert job["result"]["data"]["value"] == value
    assert shop.ran == ran


SETTINGS = {
    "subprocess": RuntimeSettings(enabled=True, profile="dev", allow_unsafe=True),
    "container": RuntimeSettings(enabled=True, backend="container"),
    "wasm": RuntimeSettings(enabled=True, backend="wasm", wasm_path=find_wasm()),
}


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_guest_of_every_backend_waits_longer_than_its_program_may_run(name: str) -> None:
    await require(name)
    shop = Shop(runtime=SETTINGS[name], state_dir=str(CACHE), allow_eval=True)
    async with shop.open() as yard:
        await run(yard, "1")  # the runtime is selected before the clock matters
        answer = await run(yard, "x = await tools.shop.wipe(name='a')\nx", timeout_ms=1500)
        assert answer.success, answer.error
        await asyncio.sleep(1.7)  # longer than the program may run
        await decide(yard, "approve", answer.data["approval_id"])
        job = await result_of(yard, answer.data["job_id"])
    assert job["result"]["success"], job
    assert (job["result"]["data"]["value"], job["result"]["data"]["runtime"]["backend"]) == ("wiped a", name)


@pytest.mark.parametrize("name", ["bubblewrap", "subprocess", "container", "wasm"])
async def test_a_program_neither_computes_nor_calls_while_one_of_its_calls_waits(name: str) -> None:
    await require(name)
    code = (
        "import asyncio\ntask = asyncio.create_task(tools.shop.wipe(name='a'))\n"
        "while True: await tools.shop.note(text='x')"
    )
    shop = Shop(runtime=SETTINGS.get(name, SANDBOX), state_dir=str(CACHE), allow_eval=True)
    async with shop.open() as yard:
        await run(yard, "1")  # the runtime is selected before the clock matters
        answer = await run(yard, code, timeout_ms=1000)
        assert answer.success, answer.error
        await asyncio.sleep(0.2)  # until its guest is frozen, and the calls before that have ended
        before = len(shop.ran)
        await asyncio.sleep(1.2)  # longer than the program may run
        assert len(shop.ran) == before
        await decide(yard, "deny", answer.data["approval_id"])
        job = await result_of(yard, answer.data["job_id"])
    assert job["result"]["error"]["code"] == "limit_exceeded", job
    assert len(shop.ran) > before


async def test_an_approved_program_that_waits_for_its_place_does_not_run_out_of_time() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        """Wait."""
        started.set()
        await release.wait()

    @tool(operation="destroy")
    async def wipe(name: str) -> str:
        """Delete something."""
        return name

    settings = RuntimeSettings(enabled=True, backend="bubblewrap", concurrency=1)
    async with Yard("shop", tools=[wait, wipe], rules=[ASK], limits=QUICK, runtime=settings) as yard:
        await run(yard, "1")
        held = await run(yard, "await tools.shop.wipe(name='a')", timeout_ms=500)
        other = asyncio.create_task(run(yard, "await tools.shop.wait()"))
        await started.wait()
        await decide(yard, "approve", held.data["approval_id"])
        await asyncio.sleep(0.7)  # longer than the program may run
        release.set()
        job = await result_of(yard, held.data["job_id"])
        assert (await other).success
    assert job["result"]["success"], job
    assert job["result"]["data"]["value"] == "a"


async def test_an_approval_that_expires_is_denied_in_the_program() -> None:
    shop = Shop(limits=Limits(approval_hold_s=0.05, approval_ttl_s=0.3))
    async with shop.open() as yard:
        answer = await run(yard)
        job = await result_of(yard, answer.data["job_id"])
    assert job["result"]["data"]["value"] == ["approval_denied", "expired"]
    assert shop.ran == ["before", "after"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("run_tool", {"tool_id": "execute_code", "args": {"code": PROGRAM}}),
        ("run_tool", {"tool_id": "execute_code", "args": {"code": PROGRAM}, "background": True}),
        ("run_chain", {"steps": [{"tool_id": "execute_code", "args": {"code": PROGRAM}}]}),
        ("execute_code", {"code": "result = (await run_chain([{'tool_id': 'wipe', 'args': {'name': 'a'}}]))['final']"}),
        ("execute_code", {"code": "await call_tool('run_tool', {'tool_id': 'wipe', 'args': {'name': 'a'}})"}),
    ],
    ids=["by run_tool", "in the background", "in a chain", "around a chain", "around run_tool"],
)
async def test_a_program_waits_wherever_it_runs(name: str, arguments: dict[str, Any]) -> None:
    shop = Shop()
    async with shop.open() as yard:
        answer = await yard.call(name, arguments)
        assert answer.success, answer.error
        approval_id = await decide(yard, "approve")
        job = await result_of(yard, answer.data["job_id"])
    assert answer.data.get("approval_id", approval_id) == approval_id
    result = job["result"]["data"]
    value = result["results"][0]["data"]["value"] if name == "run_chain" else result["value"]
    assert value == "wiped a"
    assert shop.ran.count("wiped a") == 1


async def test_the_clock_stands_still_while_a_person_decides() -> None:
    shop = Shop(limits=PATIENT)
    async with shop.open() as yard:
        await run(yard, "1")
        call = asyncio.create_task(run(yard, timeout_ms=1000))
        await Approvals(yard.store).watch(set())
        await asyncio.sleep(1.2)  # longer than the program may run
        await decide(yard, "approve")
        answer = await call
    assert answer.success, answer.error
    assert answer.data["duration_ms"] < 1000


async def test_the_time_limit_still_holds_after_the_decision() -> None:
    shop = Shop()
    async with shop.open() as yard:
        answer = await run(yard, "await tools.shop.wipe(name='a')\nwhile True: pass", timeout_ms=500)
        await decide(yard, "approve", answer.data["approval_id"])
        job = await result_of(yard, answer.data["job_id"])
    error = job["result"]["error"]
    assert (error["code"], error["details"]["limit"]) == ("limit_exceeded", "timeout_ms")
    assert job["result"]["data"]["calls"][0]["tool"] == "wipe"


def guests() -> set[int]:
    return descendants(os.getpid())


async def gone(processes: set[int]) -> None:
    async with asyncio.timeout(60):
        while processes & guests():  # noqa: ASYNC110 - the system tells of no process that is no child of ours
            await asyncio.sleep(0.01)


async def test_cancelling_the_job_of_a_waiting_program_kills_its_guest() -> None:
    shop = Shop()
    async with shop.open() as yard:
        await run(yard, "1")
        before = guests()
        answer = await run(yard)
        waiting = guests() - before
        assert waiting
        await yard.call("cancel_job", {"job_id": answer.data["job_id"]})
        await gone(waiting)
        await decide(yard, "approve", answer.data["approval_id"])
        job = await result_of(yard, answer.data["job_id"])
    assert job["status"] == "cancelled"
    assert shop.ran == ["before"]


async def test_a_caller_that_goes_away_during_the_hold_takes_its_program_along() -> None:
    shop = Shop(limits=PATIENT)
    async with shop.open() as yard:
        await run(yard, "1")
        before = guests()
        call = asyncio.create_task(run(yard))
        await Approvals(yard.store).watch(set())
        waiting = guests() - before
        call.cancel()
        await asyncio.wait({call})
        await gone(waiting)
        await decide(yard, "approve")
        assert yard.calls_in_flight == 0
    assert shop.ran == ["before"]


async def test_a_program_that_is_stopped_says_which_calls_it_made() -> None:
    shop = Shop(limits=PATIENT)
    async with shop.open() as yard:
        call = asyncio.create_task(run(yard))
        await Approvals(yard.store).watch(set())
        outer = next(call.id for call in yard.dispatcher.in_flight.values() if call.spec.name == "execute_code")
        yard.dispatcher.cancel(outer)
        answer = await call
    assert answer.error is not None
    assert answer.error.code == "cancelled"
    assert [call["tool"] for call in answer.data["calls"]] == ["note"]


async def test_a_waiting_program_is_interrupted_when_the_yard_ends_and_never_runs_again(tmp_path: Path) -> None:
    shop = Shop()
    shop._options["store"] = SqliteStore(tmp_path / "store")  # pyright: ignore[reportPrivateUsage] - a yard closes its store
    async with shop.open() as yard:
        answer = await run(yard)
    shop._options["store"] = SqliteStore(tmp_path / "store")  # pyright: ignore[reportPrivateUsage] - as above
    async with shop.open() as yard:
        await decide(yard, "approve", answer.data["approval_id"])
        job = await result_of(yard, answer.data["job_id"])
    assert job["status"] == "interrupted"
    assert job["result"]["error"]["may_have_run"]
    assert [call["tool"] for call in job["result"]["data"]["calls"]] == ["note"]
    assert shop.ran == ["before"]


async def test_a_waiting_program_leaves_its_place_to_others_and_takes_one_again() -> None:
    shop = Shop(runtime=RuntimeSettings(enabled=True, backend="bubblewrap", concurrency=1))
    async with shop.open() as yard:
        held = [await run(yard), await run(yard, "await tools.shop.wipe(name='b')")]
        other = await asyncio.wait_for(run(yard, "1 + 1"), 60)
        for answer in held:
            await decide(yard, "approve", answer.data["approval_id"])
        jobs = [await result_of(yard, answer.data["job_id"]) for answer in held]
        last = await asyncio.wait_for(run(yard, "2 + 2"), 60)
    assert (other.data["value"], last.data["value"]) == (2, 4)
    assert [job["result"]["data"]["value"] for job in jobs] == ["wiped a", "wiped b"]


async def test_a_program_that_drops_a_call_that_waits_has_no_second_place() -> None:
    drop = (
        "import asyncio\ntry:\n    await asyncio.wait_for(tools.shop.wipe(name='{}'), 0.05)\n"
        "except (TimeoutError, ToolError):\n    pass\n"
    )
    most, running = 0, 0

    @tool
    async def enter() -> None:
        """Note how many programs run."""
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    @tool(operation="destroy")
    async def wipe(name: str) -> str:
        """Delete something."""
        return name

    settings = RuntimeSettings(enabled=True, backend="bubblewrap", concurrency=1)
    async with Yard("shop", tools=[enter, wipe], rules=[ASK], limits=PATIENT, runtime=settings) as yard:
        programs = [asyncio.create_task(run(yard, f"{drop.format(n)}await tools.shop.enter()\n{n}")) for n in range(4)]
        decided = set[str]()
        while len(decided) < 4:  # a program that waits is frozen, so it gives up after the decision
            await Approvals(yard.store).watch(decided)
        for approval in decided:
            await decide(yard, "deny", approval)
        answers = await asyncio.gather(*programs)
    assert [answer.data["value"] for answer in answers] == [0, 1, 2, 3]
    assert most == 1


async def test_only_so_many_programs_of_a_caller_wait_and_others_are_not_affected() -> None:
    shop = Shop()
    async with shop.open() as yard:
        held = await asyncio.gather(
            *(run(yard, f"await tools.shop.note(text='x')\nawait tools.shop.wipe(name='{n}')") for n in range(9))
        )
        refused = [answer.error for answer in held if answer.error is not None]
        other = await yard.call("execute_code", {"code": PROGRAM}, caller=Caller(identity="other"))
        plain = await run(yard, "1 + 1")
    assert [error.code for error in refused] == ["overloaded"]
    assert refused[0].may_have_run
    assert sum(answer.success and answer.data["status"] == "working" for answer in held) == 8
    assert other.data["status"] == "working"
    assert plain.data["value"] == 2


async def test_a_program_of_a_session_that_waits_makes_others_of_the_session_fail_at_once() -> None:
    shop = Shop()
    async with shop.open() as yard:
        held = await run(yard, f"x = 5\n{PROGRAM}", session_id="mine")
        busy = await run(yard, "x", session_id="mine")
        free = await run(yard, "1", session_id="other")
        await decide(yard, "approve", held.data["approval_id"])
        job = await result_of(yard, held.data["job_id"])
        after = await run(yard, "x", session_id="mine")
    assert busy.error is not None
    assert (busy.error.code, busy.error.details["reason"]) == ("state_error", "session_busy")
    assert free.data["value"] == 1
    assert job["result"]["data"]["value"] == "wiped a"
    assert after.data["value"] == 5


async def test_the_output_of_a_waiting_program_is_in_its_job_in_short() -> None:
    async with Shop().open() as yard:
        answer = await run(yard, "print('x' * 500_000)\nawait tools.shop.wipe(name='a')")
        job = (await yard.call("get_job", {"job_id": answer.data["job_id"]})).data
    assert "xxx" in job["log"][0]["text"]
    assert sum(len(line["text"]) for line in job["log"]) < 30_000


async def test_programs_of_a_session_take_turns() -> None:
    async with Shop().open() as yard:
        await run(yard, "x = 0", session_id="mine")
        await asyncio.gather(*(run(yard, "x += 1", session_id="mine") for _ in range(5)))
        answer = await run(yard, "x", session_id="mine")
    assert answer.data["value"] == 5


async def test_middleware_that_retries_runs_no_program_twice() -> None:
    def retry(handler: Handler) -> Handler:
        async def again(call: Call) -> object:
            try:
                return await handler(call)
            except Exception:  # noqa: BLE001 - whatever it was
                return await handler(call)

        return again

    for rules in ([], [ASK]):
        shop = Shop(middleware=[retry], rules=rules)
        async with shop.open() as yard:
            answer = await run(yard, "await tools.shop.note(text='once')\n1 / 0")
        assert answer.error is not None
        assert answer.error.code == "code_error"
        assert shop.ran == ["once"]


async def test_a_program_that_may_ask_counts_once_for_rates() -> None:
    shop = Shop(rates=RateSettings(per_caller=1, burst=2))
    async with shop.open() as yard:
        answers = [await run(yard, "1") for _ in range(2)]
    assert [answer.success for answer in answers] == [True, True]


async def test_a_yard_in_which_no_rule_asks_makes_no_second_call_of_a_program() -> None:
    records: list[Record] = []
    async with Shop(rules=[Rule(decision="allow")], sinks=[records.append]).open() as yard:
        await run(yard, "1")
    assert [record.tool for record in records] == ["execute_code"]


async def test_a_person_at_the_client_decides_about_a_call_of_a_program() -> None:
    async def ask(asks: Any, _first: object) -> dict[str, Any]:
        return {key: {"action": "accept", "content": {}} for key in asks}

    shop = Shop(limits=PATIENT)
    async with shop.open() as yard:
        channel = Channel(ask=ask, capabilities=frozenset({"elicitation"}))
        answer = await yard.call("execute_code", {"code": PROGRAM}, channel=channel)
    assert answer.data["value"] == "wiped a"
    assert shop.ran == ["before", "wiped a", "after"]


async def test_a_policy_that_holds_a_call_by_itself_is_an_error_in_the_program() -> None:
    async def hold(call: Call) -> Envelope | None:
        return Envelope.ok({"status": "approval_required", "approval_id": "ap_1"}) if call.spec.name == "wipe" else None

    shop = Shop(rules=[], policies=[hold])
    async with shop.open() as yard:
        answer = await run(yard)
    assert answer.data["value"] == ["state_error", "approval_required"]
    assert shop.ran == ["before", "after"]
