"""Inside a step: the call that it makes by another metatool, of which nearly everything can be told before it is made."""

from collections.abc import Callable, Collection, Sequence
from typing import cast

import msgspec

from toolyard.call import Arguments
from toolyard.envelope import encode_plain
from toolyard.errors import ToolError
from toolyard.metatools.beside import issues_beside, issues_left
from toolyard.metatools.running import WRAPPERS, unwrapped
from toolyard.metatools.steps import Step
from toolyard.results import REFERENCE, Filling
from toolyard.schema import Issue
from toolyard.tools import Tool

__all__ = ["issues_of_call", "misled", "steps_in"]


async def issues_of_call(
    args: Arguments, tool: Tool, later: Collection[str | int], *, fill: Callable[[], Filling] | None, repair: bool
) -> Sequence[Issue]:
    """Return what is wrong with the arguments of a call, of which some may come later, even if all is put right that can be.

    Raises:
        ToolError: A reference to a stored result leads nowhere.
    """
    if fill is not None and REFERENCE in encode_plain(args):
        args = await fill().fill_in(args, tool.spec.input_schema)
    if later:
        return () if repair and not WRAPPERS.isdisjoint(args) else issues_beside(args, tool, later, repair=repair)
    args, _ = unwrapped(args, tool, repair=repair)
    return issues_left(args, tool, repair=repair)


def misled(error: ToolError) -> Sequence[Issue]:
    """Return what is wrong with references to stored results.

    Raises:
        ToolError: It is something else.
    """
    if error.code != "invalid_input":
        raise error
    return [Issue(one["field"], one["code"], one["message"]) for one in cast("list[dict[str, str]]", error.details["issues"])]


def steps_in(args: Arguments) -> Sequence[Step]:
    """Return the steps of a chain that are given as arguments, or none if they are none, which whoever takes them says."""
    try:
        return msgspec.convert(args.get("steps"), list[Step])
    except msgspec.ValidationError:
        return ()
