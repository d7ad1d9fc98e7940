"""Arguments beside those that are still to come: what can be said of them before the others are there."""

from collections.abc import Collection, Sequence
from typing import Any, Final, cast

import msgspec

from toolyard.call import Arguments
from toolyard.envelope import encode_plain
from toolyard.errors import ToolError
from toolyard.plain_schema import plainly_fits
from toolyard.schema import Issue, Schema, inlined, unexpected
from toolyard.tools import InvalidArgumentsError, Tool, check_by_schema

__all__ = ["issues_beside", "issues_left"]

_NOTHING: Final[Schema] = {}


def issues_beside(args: Arguments, tool: Tool, later: Collection[str | int], *, repair: bool) -> Sequence[Issue]:
    """Return what nothing can put right that comes later: arguments that are missing, not known, or wrong in themselves."""
    schema = tool.spec.input_schema
    known: Schema = schema.get("properties", _NOTHING)
    required: Sequence[str] = schema.get("required", ())
    for name, value in args.items():
        if name not in later:
            inner = known.get(name)
            if type(inner) is not dict or not plainly_fits(cast("dict[str, Any]", inner), value):
                break
    else:
        if all(map(args.__contains__, required)) and all(map(known.__contains__, later)):
            return ()  # as a rule
    issues = [Issue(name, "missing", f"'{name}' is required.", inlined(schema, known.get(name))) for name in required if name not in args]
    if schema.get("additionalProperties") is False:
        issues += [unexpected((name,), list(known)) for name in args if name not in known]
    settled = {name: value for name, value in args.items() if name not in later and name in known}
    return [*issues, *issues_left(settled, _optional(tool), repair=repair)]


def issues_left(args: Arguments, tool: Tool, *, repair: bool) -> Sequence[Issue]:
    """Return what is wrong with arguments even if all is put right that can be."""
    text = encode_plain(args)
    try:
        tool.check(text)
    except InvalidArgumentsError as error:
        try:
            tool.mend(text, error.issues, repair=repair)
        except ToolError:
            return error.issues
    return ()


def _optional(tool: Tool) -> Tool:
    """Return a tool that needs none of its arguments, so that some can be judged without the others."""
    schema: Schema = {**tool.spec.input_schema, "required": []}
    return Tool(spec=msgspec.structs.replace(tool.spec, input_schema=schema), handler=tool.handler, check=check_by_schema(schema))
