"""Completions: what the value of a variable or an argument may become, while somebody is still writing it.

They run under a deadline and in a thread if they block, and leave no record: there is one for every key that is pressed.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Final, cast

from toolyard.call import Call
from toolyard.errors import ToolError
from toolyard.failures import defect, stopped
from toolyard.prompts import Prompt
from toolyard.resources import Resource
from toolyard.tools import Complete

__all__ = ["suggest"]

_MOST: Final = 1000


async def suggest(call: Call, of: Resource | Prompt, argument: str, value: str, *, settled: Mapping[str, str], seconds: float) -> list[str]:
    """Return what a value may become, within bounds.

    Raises:
        ToolError: There is no such argument, or what completes it failed.
    """
    call.spec = of.query.spec
    if argument not in of.query.spec.input_schema.get("properties", {}):
        message = f"'{of.spec.name}' has no argument '{argument}'."
        raise ToolError("not_found", message, reason="unknown_argument", may_have_run=False, argument=argument)
    complete = of.complete.get(argument)
    if complete is None:
        return []
    call.at_fault = "tool"
    deadline = asyncio.timeout(seconds or None)
    try:
        async with deadline:
            return await _ask(call, complete, value, settled)
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - what completes a value may raise anything
        failure = stopped(call, seconds) if deadline.expired() else defect(error, call)
        failure.details["call_id"] = call.id  # no record tells of it, but the log may
        raise failure from None


async def _ask(call: Call, complete: Complete, value: str, settled: Mapping[str, str]) -> list[str]:
    asked = partial(complete, value, dict(settled))
    found = asked() if inspect.iscoroutinefunction(complete) else await call.funnel.in_thread(call, asked)
    if inspect.isawaitable(found):
        found = await cast("Awaitable[object]", found)
    values = [str(one) for one in cast("Sequence[object]", found)][:_MOST]
    "".join(values).encode()  # half a character could not be answered, and is this one's failure
    return values
