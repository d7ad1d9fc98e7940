"""The same behaviour on every backend."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from backends import BACKENDS, answer, opened

from callyard.runtimes.guest_runtime import GuestRuntime
from callyard.runtimes.runtime import CallFailedError, GuestCall, Hooks, RunLimits, RunResult

LIMITS = RunLimits(seconds=20)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BACKENDS)
async def runtime(request: pytest.FixtureRequest) -> AsyncGenerator[GuestRuntime]:
    async with opened(request.param) as runtime:
        yield runtime


async def run(runtime: GuestRuntime, code: str, inputs: Any = None, **limits: Any) -> RunResult:
    return await runtime.run(code, inputs, msgspec.structs.replace(LIMITS, **limits), answer)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("result = [1, 'ä😀', None, {'a': 1.5}]", [1, "ä😀", None, {"a": 1.5}]),
        ("result = 1\n2", 2),
        ("x = 1", None),
        ("", None),
        ("import asyncio\nawait asyncio.sleep(0.01)\n'slept'", "slept"),
        ("(await tools.yard.echo(x=1))['x']", 1),
        ("await call_tool('echo', {'x': 1}, y=2)", {"x": 1, "y": 2}),
        ("import json, re, math, datetime, statistics, itertools\nstatistics.mean([1, 2, 3])", 2),
        ("def f():\n    yield from range(3)\nlist(f())", [0, 1, 2]),
        ("match {'a': 1}:\n    case {'a': x}: result = x", 1),
        ("raise SystemExit\n1", None),
    ],
)
async def test_the_last_expression_or_result_is_the_value(runtime: GuestRuntime, code: str, value: object) -> None:
    result = await run(runtime, code)
    assert (result.value, result.failure) == (value, None)


async def test_a_program_sees_its_inputs(runtime: GuestRuntime) -> None:
    assert (await run(runtime, "inputs['rows'][1] * 2", {"rows": [1, 21]})).value == 42


async def test_calls_run_side_by_side(runtime: GuestRuntime) -> None:
    running, most = 0, 0

    async def count(call: GuestCall) -> object:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return msgspec.json.decode(call.arguments)

    code = "import asyncio\n[a['n'] for a in await asyncio.gather(*[tools.yard.echo(n=n) for n in range(30)])]"
    result = await runtime.run(code, None, LIMITS, count)
    assert result.value == list(range(30))
    assert result.calls == 30
    assert 1 < most <= LIMITS.in_flight


async def test_output_is_streamed_while_the_program_runs(runtime: GuestRuntime) -> None:
    seen: list[tuple[str, str]] = []
    first = asyncio.Event()

    async def release(_call: GuestCall) -> object:
        await asyncio.wait_for(first.wait(), 60)
        return list(seen)

    def output(stream: str, text: str) -> None:
        seen.append((stream, text))
        first.set()

    code = "import sys\nprint('first')\nearly = await call_tool('seen')\nprint('second', file=sys.stderr)\nearly"
    result = await runtime.run(code, None, LIMITS, release, hooks=Hooks(output=output))
    assert result.value == [["out", "first\n"]]
    assert (result.stdout, result.stderr) == ("first\n", "second\n")


async def test_long_output_keeps_its_head_and_tail(runtime: GuestRuntime) -> None:
    result = await run(runtime, "for n in range(20000): print(n)", kept_characters=100)
    assert result.failure is None
    assert result.stdout.startswith("0\n1\n")
    assert result.stdout.endswith("19998\n19999\n")
    assert len(result.stdout) < 200


async def test_a_failed_call_is_raised_with_its_code(runtime: GuestRuntime) -> None:
    code = (
        "try:\n    await tools.yard.missing()\n"
        "except ToolError as e:\n    result = [e.code, e.details['similar'], e.retryable]"
    )
    assert (await run(runtime, code)).value == ["tool_not_found", ["echo"], False]


async def test_an_uncaught_tool_error_keeps_its_code_and_place(runtime: GuestRuntime) -> None:
    failure = (await run(runtime, "x = 1\nawait call_tool('missing')")).failure
    assert failure is not None
    assert failure.tool_error is not None
    assert (failure.kind, failure.tool_error["code"], failure.line) == ("exception", "tool_not_found", 2)


async def test_an_error_has_its_place_and_a_traceback_of_the_program_alone(runtime: GuestRuntime) -> None:
    failure = (await run(runtime, "import json\ndef f():\n    return json.loads('{')\nf()")).failure
    assert failure is not None
    assert (failure.kind, failure.type, failure.line, failure.column, failure.source) == (
        *("exception", "JSONDecodeError", 3, 12),
        "    return json.loads('{')",
    )
    assert "<program>" in failure.traceback
    assert "decoder.py" not in failure.traceback
    assert "driver" not in failure.traceback


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("def f(:", "syntax"),
        ("{1, 2}", "value"),
        ("float('nan')", "value"),
        ("call_tool('echo')", "value"),
        ("'x' * 3_000_000", "value_size"),
        ("1 / 0", "exception"),
        ("while True: pass", "timeout"),
        ("import asyncio\nawait asyncio.sleep(60)", "timeout"),
        ("for n in range(10**9): print('x' * 1000)", "output"),
        ("for n in range(9): await call_tool('echo')", "calls"),
        ("import os\nos._exit(3)", "crashed"),
    ],
)
async def test_a_program_without_a_value_says_why(runtime: GuestRuntime, code: str, kind: str) -> None:
    result = await run(runtime, code, seconds=1 if kind == "timeout" else 20, calls=5, output_bytes=100_000)
    assert result.failure is not None
    assert result.failure.kind == kind
    assert (await run(runtime, "'next'")).value == "next"


async def test_a_cancelled_run_kills_the_guest_and_its_calls(runtime: GuestRuntime) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(_call: GuestCall) -> object:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(runtime.run("await call_tool('slow')", None, LIMITS, slow))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
    assert (await run(runtime, "1")).value == 1


async def test_a_run_is_cancelled_by_its_id(runtime: GuestRuntime) -> None:
    started = asyncio.Event()

    async def slow(_call: GuestCall) -> object:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(runtime.run("await call_tool('slow')", None, LIMITS, slow, run_id="mine"))
    await started.wait()
    assert runtime.cancel("mine")
    result = await task
    assert result.failure is not None
    assert result.failure.kind == "cancelled"
    assert not runtime.cancel("mine")


async def test_a_call_that_the_program_gives_up_is_cancelled(runtime: GuestRuntime) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(call: GuestCall) -> object:
        if call.name != "slow":
            return cancelled.is_set() or not started.is_set()  # a slow machine may start it too late
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    give_up = "try:\n    await asyncio.wait_for(call_tool('slow'), 0.05)\nexcept TimeoutError:\n    pass"
    code = f"import asyncio\n{give_up}\nawait call_tool('check')"
    assert (await runtime.run(code, None, LIMITS, slow)).value is True


async def test_time_that_is_paused_does_not_count(runtime: GuestRuntime) -> None:
    paused = 0.0

    async def approval(_call: GuestCall) -> object:
        nonlocal paused
        began, before = time.monotonic(), paused
        while time.monotonic() - began < 1.5:
            await asyncio.sleep(0.05)
            paused = before + time.monotonic() - began
        return "approved"

    limits = msgspec.structs.replace(LIMITS, seconds=1.0)
    result = await runtime.run("await call_tool('ask')", None, limits, approval, hooks=Hooks(paused=lambda: paused))
    assert result.value == "approved"
    assert result.seconds < 1.0


async def test_progress_reaches_the_host(runtime: GuestRuntime) -> None:
    seen: list[tuple[float, float | None, str]] = []
    hooks = Hooks(progress=lambda done, total, text: seen.append((done, total, text)))
    await runtime.run("progress(1, 2, 'half')\nawait progress(2, 2)", None, LIMITS, answer, hooks=hooks)
    assert seen == [(1, 2, "half"), (2, 2, "")]


async def test_a_session_keeps_variables_and_another_does_not_see_them(runtime: GuestRuntime) -> None:
    async def in_session(code: str, session: str) -> RunResult:
        return await runtime.run(code, None, LIMITS, answer, session=session)

    assert (await in_session("x = 41", "kept")).failure is None
    failed = await in_session("raise MemoryError", "kept")
    assert (failed.failure is not None, failed.is_lost) == (True, False)
    assert (await in_session("x + 1", "kept")).value == 42
    other = await in_session("x", "other")
    assert other.failure is not None
    assert other.failure.type == "NameError"
    await runtime.end_session("kept")
    ended = await in_session("x", "kept")
    assert ended.failure is not None


async def test_a_program_whose_session_is_ended_is_cancelled(runtime: GuestRuntime) -> None:
    started = asyncio.Event()

    async def slow(_call: GuestCall) -> object:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(runtime.run("await call_tool('slow')", None, LIMITS, slow, session="ends"))
    await started.wait()
    await runtime.end_session("ends")
    result = await task
    assert result.failure is not None
    assert (result.failure.kind, result.is_lost) == ("cancelled", True)


async def test_a_frozen_guest_computes_nothing_until_it_goes_on(runtime: GuestRuntime) -> None:
    calls = 0
    called = asyncio.Event()

    async def tick(_call: GuestCall) -> object:
        nonlocal calls
        calls += 1
        called.set()
        return None

    async def next_call() -> None:
        called.clear()
        await asyncio.wait_for(called.wait(), 60)

    task = asyncio.create_task(
        runtime.run(
            "while True: await call_tool('tick')",
            None,
            msgspec.structs.replace(LIMITS, calls=10**6),
            tick,
            run_id="frozen",
        )
    )
    await next_call()
    assert await runtime.freeze("frozen")
    await asyncio.sleep(0.1)  # what it sent before is read
    before = calls
    await asyncio.sleep(0.3)
    assert calls == before
    await runtime.thaw("frozen")
    await next_call()
    assert await runtime.freeze("frozen")
    assert runtime.cancel("frozen")
    result = await task
    assert result.failure is not None
    assert result.failure.kind == "cancelled"
    assert not await runtime.freeze("frozen")
    assert (await run(runtime, "1")).value == 1


async def test_a_session_whose_guest_died_starts_anew(runtime: GuestRuntime) -> None:
    assert (await runtime.run("x = 1", None, LIMITS, answer, session="died")).failure is None
    stopped = await runtime.run(
        "while True: pass", None, msgspec.structs.replace(LIMITS, seconds=0.5), answer, session="died"
    )
    assert stopped.failure is not None
    assert stopped.is_lost
    anew = await runtime.run("x", None, LIMITS, answer, session="died")
    assert anew.failure is not None
    assert anew.failure.type == "NameError"


async def test_a_call_of_an_ended_run_is_refused(runtime: GuestRuntime) -> None:
    calls: list[str] = []

    async def note(call: GuestCall) -> object:
        calls.append(call.name)
        return None

    first = (
        "import gc\nold = [thing for thing in gc.get_objects() if type(thing).__name__ == 'Driver'][0]\n"
        "old_id = old.run_id"
    )
    await runtime.run(first, None, LIMITS, note, session="ended")
    late = "try:\n    await call_tool('late')\nexcept ToolError as error:\n    result = error.code"
    second = f"new_id, old.run_id = old.run_id, old_id\n{late}\nold.run_id = new_id"
    assert (await runtime.run(second, None, LIMITS, note, session="ended")).value == "state_error"
    assert calls == []


async def test_large_arguments_and_answers_go_both_ways(runtime: GuestRuntime) -> None:
    code = (
        "import asyncio\nanswers = await asyncio.gather(*[call_tool('echo', {'n': n, 'x': 'y' * 200_000}) for n "
        "in range(30)])\n"
        "[sum(len(a['x']) for a in answers), [a['n'] for a in answers] == list(range(30))]"
    )
    assert (await run(runtime, code)).value == [6_000_000, True]


async def test_too_large_a_result_of_a_tool_is_refused(runtime: GuestRuntime) -> None:
    code = "try:\n    await call_tool('big')\nexcept ToolError as error:\n    result = error.code"
    assert (await run(runtime, code, reply_bytes=1000)).value == "too_large"


async def test_a_long_program_runs(runtime: GuestRuntime) -> None:
    assert (await run(runtime, "x = '" + "y" * 900_000 + "'\nlen(x)")).value == 900_000


async def test_programs_run_side_by_side(runtime: GuestRuntime) -> None:
    results = await asyncio.gather(*(run(runtime, f"await call_tool('echo', {{'x': {n}}})") for n in range(6)))
    assert [result.value for result in results] == [{"x": n} for n in range(6)]


async def test_a_tool_that_fails_unexpectedly_does_not_end_the_host(runtime: GuestRuntime) -> None:
    async def fail(_call: GuestCall) -> object:
        raise CallFailedError({"code": "internal_error", "message": "x"})

    failure = (await runtime.run("await call_tool('x')", None, LIMITS, fail)).failure
    assert failure is not None
    assert failure.tool_error == {"code": "internal_error", "message": "x"}
