"""Toolyard, measured: calls in the same process, growth with the number of tools, and publishing."""

import random
from itertools import cycle
from typing import Final

from servers.toolyard_inproc import toolyard
from tools import ARGUMENTS, BASE, add, some
from worker import Bench, has_three, work

from toolyard import Yard
from toolyard.monitor import Ring

_QUERY: Final = {"query": "x"}
_SEED: Final = 7
_CALLED: Final = 1000


async def _calls(bench: Bench, _: int) -> None:
    await toolyard(bench)


async def _bare(bench: Bench, _: int) -> None:
    await bench("await add(1, 2)", lambda: add(**ARGUMENTS), has_three)


async def _growth(bench: Bench, tools: int) -> None:
    functions = some(tools)
    names = [function.__name__ for function in functions[len(BASE) :]]
    called = random.Random(_SEED).sample(names, min(len(names), _CALLED))  # noqa: S311 - an order, not a secret
    turns = cycle(called)
    async with Yard(tools=functions, sinks=[Ring()]) as yard:
        for name in called:  # the first call of a tool makes what the others use
            await yard.call(name, _QUERY)
        await bench("the same tool", lambda: yard.call("add", ARGUMENTS), lambda answer: answer.data == 3)
        await bench("another tool each time", lambda: yard.call(next(turns), _QUERY), lambda answer: answer.success)
        await bench("a name that is none", lambda: yard.call("tool_none", _QUERY), lambda answer: not answer.success)


async def _publish(bench: Bench, tools: int) -> None:
    async def publish() -> None:
        async with Yard(tools=some(tools)):
            pass

    await bench("Yard(tools=…), opened and closed", publish)


if __name__ == "__main__":
    work({"calls": _calls, "bare": _bare, "growth": _growth, "publish": _publish})
