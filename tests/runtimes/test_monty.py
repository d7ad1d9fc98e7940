"""Monty: its limits, its failures, and when it is chosen; `test_monty_programs.py` compares its programs with CPython."""

import ast
import asyncio
from typing import Any

import msgspec
import pytest
from backends import answer, opened, resident_bytes

from callyard import ToolError, Yard
from callyard.runtimes.monty import Monty
from callyard.runtimes.monty_programs import translate
from callyard.runtimes.runtime import CallFailedError, GuestCall, Hooks, RunLimits, RuntimeMissingError
from callyard.runtimes.settings import RuntimeSettings


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("1 / 0", "exception"),
        ("while True:\n    x = 1", "timeout"),
        ("await call_tool('slow')", "timeout"),
        ("for n in range(9):\n    await call_tool('echo')", "calls"),
        ("while True:\n    print('x' * 1000)", "output"),
        ("'x' * 3000000", "value_size"),
        ("x = []\nwhile True:\n    x.append('y' * 100000)", "memory"),
        ("1e308 * 10", "value"),
    ],
)
async def test_a_program_without_a_value_says_why(code: str, kind: str) -> None:
    async with opened("monty") as runtime:
        limits = RunLimits(seconds=1.5, calls=5, output_bytes=100_000, memory_bytes=64 << 20)
        result = await runtime.run(code, None, limits, answer)
        assert result.failure is not None
        assert result.failure.kind == kind
        assert (await runtime.run("1 + 1", None, RunLimits(), answer)).value == 2


async def test_a_failed_tool_keeps_its_error_and_line() -> None:
    async def fail(_call: GuestCall) -> object:
        raise CallFailedError({"code": "rate_limited", "message": "Not now."})

    async with opened("monty") as runtime:
        failure = (await runtime.run("x = 1\nawait tools.yard.echo(n=x)", None, RunLimits(), fail)).failure
    assert failure is not None
    assert failure.tool_error == {"code": "rate_limited", "message": "Not now."}
    assert (failure.type, failure.line) == ("ToolError", 2)
    assert failure.traceback.splitlines()[1:] == [
        '  File "<program>", line 2, in <module>',
        "    await tools.yard.echo(n=x)",
        "ToolError: rate_limited: Not now.",
    ]


async def test_a_cancelled_run_cancels_its_calls() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(_call: GuestCall) -> object:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with opened("monty") as runtime:
        task = asyncio.create_task(runtime.run("await call_tool('x')", None, RunLimits(), slow, run_id="mine"))
        await started.wait()
        assert runtime.cancel("mine")
        result = await task
        await asyncio.wait_for(cancelled.wait(), 5)
        assert not runtime.cancel("mine")
    assert result.failure is not None
    assert result.failure.kind == "cancelled"


@pytest.mark.parametrize("allowed", [0, 1])
async def test_no_call_beyond_the_limit_reaches_the_host(allowed: int) -> None:
    made: list[str] = []

    async def note(call: GuestCall) -> object:
        made.append(call.name)
        return None

    code = "import asyncio\nawait asyncio.gather(call_tool('a'), call_tool('b'), call_tool('c'))"
    async with opened("monty") as runtime:
        result = await runtime.run(code, None, RunLimits(calls=allowed), note)
    assert result.failure is not None
    assert result.failure.kind == "calls"
    assert len(made) <= allowed


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("'x' * 100_000_000", "value_size"),
        ("a = ['x' * 1000] * 1000\n[a] * 100", "value_size"),
        ("await call_tool('echo', {'x': 'y' * 100_000_000})", "exception"),
        ("await call_tool('echo', {'x': [0] * 1_000_000})", "exception"),
        ("await call_tool('x' * 1_000_000)", "exception"),
        ("import asyncio\na = 'y' * 5_000_000\nawait asyncio.gather(" + "call_tool('echo', {'x': a}), " * 200 + ")", "exception"),
    ],
)
async def test_a_large_value_or_argument_costs_the_host_little_memory(code: str, kind: str) -> None:
    assert translate(code) is not None
    async with opened("monty") as runtime:
        most = before = resident_bytes()
        run = asyncio.create_task(runtime.run(code, None, RunLimits(seconds=10), answer))
        while not run.done():
            await asyncio.wait([run], timeout=0.005)
            most = max(most, resident_bytes())
        failure = run.result().failure
    assert failure is not None
    assert failure.kind == kind
    assert most - before < 50 * 1024 * 1024


async def test_too_large_a_result_of_a_tool_is_refused() -> None:
    async with opened("monty") as runtime:
        failure = (await runtime.run("await call_tool('big')", None, RunLimits(reply_bytes=1000), answer)).failure
    assert failure is not None
    assert failure.tool_error is not None
    assert failure.tool_error["code"] == "too_large"


async def test_a_failure_shows_the_line_as_it_was_written() -> None:
    async with opened("monty") as runtime:
        failure = (await runtime.run("x = 1\nawait call_tool('echo', {'a': 1 / 0})", None, RunLimits(), answer)).failure
    assert failure is not None
    assert (failure.line, failure.column, failure.source) == (2, 31, "await call_tool('echo', {'a': 1 / 0})")


async def test_the_wait_for_a_worker_is_not_part_of_the_time() -> None:
    code = "x = 0\nwhile x < 300000:\n    x += 1\nx"
    async with opened("monty") as runtime:
        results = await asyncio.gather(*(runtime.run(code, None, RunLimits(seconds=20), answer) for _ in range(8)))
    assert {result.value for result in results} == {300000}
    assert all(result.seconds > 0 for result in results)


async def test_output_is_kept_and_reported() -> None:
    seen: list[tuple[str, str]] = []
    async with opened("monty") as runtime:
        hooks = Hooks(output=lambda stream, text: seen.append((stream, text)))
        result = await runtime.run("print('a')\nprint('b')", None, RunLimits(), answer, hooks=hooks)
    assert result.stdout == "a\nb\n"
    assert "".join(text for _, text in seen) == "a\nb\n"


async def test_a_flood_of_short_lines_is_reported_in_few_pieces() -> None:
    seen: list[str] = []
    async with opened("monty") as runtime:
        hooks = Hooks(output=lambda _stream, text: seen.append(text))
        result = await runtime.run("while True: print(1)", None, RunLimits(seconds=1), answer, hooks=hooks)
    assert result.failure is not None
    assert "".join(seen).startswith("1\n1\n")
    assert len(seen) < 2000  # all output that is allowed, in pieces of 8 KB, makes 1,024


async def test_each_piece_of_output_counts() -> None:
    code = "for n in range(100):\n    print(n)\n    await call_tool('echo')"
    async with opened("monty") as runtime:
        result = await runtime.run(code, None, RunLimits(output_bytes=1000), answer)
    assert result.failure is not None
    assert result.failure.kind == "output"


async def test_a_program_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse

    def noted(code: str) -> ast.Module:
        parsed.append(code)
        return parse(code)

    monkeypatch.setattr("callyard.runtimes.monty_programs.ast.parse", noted)
    settings = RuntimeSettings(enabled=True, profile="dev", monty=True, allow_unsafe=True)
    async with Yard("shop", tools=[add], runtime=settings, allow_eval=True) as yard:
        await yard.call("execute_code", {"code": "await tools.shop.add(a=41)"})
    assert parsed.count("await tools.shop.add(a=41)") == 1


async def add(a: int) -> int:
    """Add one."""
    return a + 1


async def test_the_syntax_of_a_program_decides_where_it_runs() -> None:
    async with opened("monty"):
        pass
    settings = RuntimeSettings(enabled=True, profile="dev", monty=True, allow_unsafe=True)
    async with Yard("shop", tools=[add], runtime=settings, allow_eval=True) as yard:

        async def run(code: str, **arguments: Any) -> Any:
            return (await yard.call("execute_code", {"code": code, **arguments})).data

        small = await run("await tools.shop.add(a=1)")
        large = await run("import os\nawait tools.shop.add(a=1)")
        kept = await run("1", session_id="mine")
    assert [data["runtime"]["backend"] for data in (small, large, kept)] == ["monty", "subprocess", "subprocess"]
    assert (small["value"], large["value"]) == (2, 2)


async def test_monty_that_is_switched_on_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydantic_monty", None)
    from callyard.runtimes.selection import Runtimes  # noqa: PLC0415 - only this test needs it

    async with Runtimes(RuntimeSettings(enabled=True, profile="dev", monty=True, allow_unsafe=True)).open() as runtimes:
        with pytest.raises(ToolError) as caught:
            await runtimes.for_program("1 + 1")
    assert caught.value.code == "runtime_unavailable"
    assert msgspec.json.encode(caught.value.details)


async def test_a_package_whose_program_is_gone_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("pydantic_monty", reason="monty: pydantic-monty is not installed")

    def make(**_options: object) -> None:
        raise FileNotFoundError("no program")

    monkeypatch.setattr(package, "AsyncMonty", make)
    with pytest.raises(RuntimeMissingError):
        await Monty().open()
