"""Callyard over stdio with ready-made tools: a spec, a check and a handler each, without a signature to read."""

import inspect
from collections.abc import Callable
from typing import Any

from contract import functions, parse

import callyard
from callyard import Call, Operation, Profile, Surface, Tool, ToolSpec, Yard
from callyard.dispatch.tool import check_by_schema

_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def ready(function: Callable[..., Any]) -> Tool:
    taken = {
        name: {"type": _TYPES[kind]} for name, kind in inspect.get_annotations(function).items() if name != "return"
    }
    schema = {"type": "object", "properties": taken, "required": list(taken), "additionalProperties": False}
    spec = ToolSpec(
        name=function.__name__, description=function.__doc__ or "", input_schema=schema, operation=Operation.QUERY
    )

    async def handle(call: Call) -> object:
        result = function(**call.arguments)
        return await result if inspect.isawaitable(result) else result

    return Tool(spec=spec, handler=handle, check=check_by_schema(schema))


def main() -> None:
    tools = [ready(function) for function in functions(parse().tools)]
    yard = Yard("bench", tools=tools, profile=Profile(name="everything", surface=Surface.DIRECT))
    callyard.serve(yard, transport="stdio")


if __name__ == "__main__":
    main()
