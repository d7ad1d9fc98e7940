"""Monty and CPython run the same programs with the same outcome; other programs are left to CPython before anything runs."""

import asyncio
import warnings
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from backends import opened

from callyard.runtimes.monty_programs import translate
from callyard.runtimes.runtime import CallFailedError, GuestCall, RunLimits, Runtime

Outcome = tuple[Any, ...]
INPUTS: Final = {
    "n": 3,
    "xs": [3, 1, 2],
    "f": 2.5,
    "u": "\u00e9\u0130\u1e9e \u2028x",
    "big": 12345678901234567890123,
    "rows": [{"id": 1, "state": "late"}, {"id": 2, "state": "sent"}],
}


def read_programs(word: str) -> list[str]:
    lines = Path(__file__).with_name("programs.txt").read_text().splitlines()
    return [line.partition(" ")[2].replace("~", "\n") for line in lines if line.startswith(word)]


RUN: Final = read_programs("RUN")
LEAVE: Final = [*read_programs("LEAVE"), "x = 1\r\nx", "x = " + "[" * 150 + "]" * 150]


async def run(runtime: Runtime, code: str) -> Outcome:
    """Return the value, the output, the calls and the failure of a program; the words of exceptions change with each Python."""
    calls: list[Any] = []

    async def answer(call: GuestCall) -> object:
        calls.append([call.name, call.is_path, msgspec.json.decode(call.arguments)])
        if call.name in ("fail", "y.fail"):
            raise CallFailedError({"code": "not_found", "message": "There is none."})
        return (1, {2: 3}) if call.name == "tuple" else msgspec.json.decode(call.arguments)

    result = await runtime.run(code, INPUTS, RunLimits(seconds=10), answer)
    failure = result.failure and (result.failure.kind, result.failure.type, result.failure.line, result.failure.source)
    return msgspec.json.encode(result.value), result.stdout, sorted(calls, key=str), failure


async def run_all(backend: str) -> dict[str, Outcome]:
    async with opened(backend) as runtime:
        return {code: await run(runtime, code) for code in RUN}


@pytest.fixture(scope="module")
def outcomes() -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Run all programs in Monty and in the CPython of a sandbox."""
    return asyncio.run(run_all("monty")), asyncio.run(run_all("bubblewrap"))


@pytest.mark.parametrize("code", RUN)
def test_a_program_has_the_same_outcome_in_monty_and_in_cpython(code: str, outcomes: tuple[dict[str, Outcome], dict[str, Outcome]]) -> None:
    assert translate(code) is not None
    monty, cpython = outcomes
    assert monty[code] == cpython[code]


@pytest.mark.parametrize("code", LEAVE)
def test_a_program_whose_outcome_may_differ_is_left_to_cpython(code: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # some of them are odd on purpose
        assert translate(code) is None
