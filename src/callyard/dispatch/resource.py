"""Resources and prompts: a spec, the tool that reads or renders it, and its completions.

A resource template is a resource whose URI variables are the arguments of that tool.
"""

import asyncio
import inspect
import re
from base64 import b64encode
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar, cast

import msgspec

from callyard.dispatch.call import Handler, ambient
from callyard.dispatch.outcome import defect_from, stopped_by
from callyard.dispatch.run import Run
from callyard.dispatch.tool import Check, Complete, Tool, check_by_schema
from callyard.model.content import Block, Embedded, Message, ResourceLink, Text, block_from_bytes, to_mcp
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.schema import Schema
from callyard.model.spec import (
    Operation,
    PromptSpec,
    PublishError,
    ResourceSpec,
    ToolSpec,
    check_prompt_spec,
    check_resource_spec,
)
from callyard.model.uri_template import variables_of

__all__ = ["Prompt", "Resource", "check_prompt", "check_resource", "complete_argument", "contents_of", "messages_of"]

S = TypeVar("S", ResourceSpec, PromptSpec)
_BYTES: Final = (bytes, bytearray, memoryview)
_NOT_IN_NAMES: Final = r"[^A-Za-z0-9_-]+"
_MAX_COMPLETIONS: Final = 1000


class _Readable(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """The common part of resources and prompts."""

    spec: S
    query: Tool
    """The tool that reads the resource or renders the prompt."""
    complete: Mapping[str, Complete] = msgspec.field(default_factory=dict[str, Complete])

    @classmethod
    def of(
        cls,
        spec: S,
        handler: Handler,
        *,
        schema: Schema | None = None,
        check: Check | None = None,
        complete: Mapping[str, Complete] | None = None,
    ) -> Self:
        """Return it with this handler, which gets a URI as `call.name`; without a schema its arguments are strings."""
        schema = _string_arguments(spec) if schema is None else schema
        query = ToolSpec(
            kind="prompt" if isinstance(spec, PromptSpec) else "resource",
            name=re.sub(_NOT_IN_NAMES, "_", spec.name),
            description=spec.description or spec.name,
            input_schema=dict(schema),
            operation=Operation.QUERY,
            source=spec.source,
            tags=spec.tags,
        )
        return cls(
            spec=spec,
            query=Tool(spec=query, handler=handler, check=check or check_by_schema(schema)),
            complete=complete or {},
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the key that finds it: the URI of a resource, the name of a prompt."""
        return (self.spec.name if isinstance(self.spec, PromptSpec) else self.spec.uri,)

    def with_source(self, source: str) -> Self:
        """Return a copy that belongs to the source."""
        if self.spec.source == source:
            return self
        spec = msgspec.structs.replace(self.spec, source=source)
        return msgspec.structs.replace(self, spec=spec, query=self.query.with_source(source))


class Prompt(_Readable[PromptSpec], frozen=True, kw_only=True):
    """A spec, the tool that renders its messages, and completions of its arguments."""


class Resource(_Readable[ResourceSpec], frozen=True, kw_only=True):
    """A spec, the tool that reads it, and completions of its variables."""


def _string_arguments(spec: ResourceSpec | PromptSpec) -> Schema:
    """Return the schema of arguments that are strings; MCP passes no others to resources and prompts."""
    if isinstance(spec, PromptSpec):
        required = {argument.name: argument.required for argument in spec.arguments}
    else:
        required = dict.fromkeys(variables_of(spec.uri), True)
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in required},
        "required": [name for name, is_required in required.items() if is_required],
        "additionalProperties": False,
    }


def check_prompt(prompt: Prompt, limits: Limits, *, foreign: bool = False) -> None:
    """Check the spec of a prompt and that its completions name arguments.

    Raises:
        PublishError: Something is wrong.
    """
    check_prompt_spec(prompt.spec, limits, foreign=foreign)
    names = {argument.name for argument in prompt.spec.arguments}
    for name in prompt.complete:
        if name not in names:
            raise PublishError(f"Prompt '{prompt.spec.name}' completes '{name}', which is none of its arguments.")


def check_resource(resource: Resource, limits: Limits, *, foreign: bool = False) -> None:
    """Check the spec of a resource and that its completions name variables.

    Raises:
        PublishError: Something is wrong.
    """
    spec = resource.spec
    check_resource_spec(spec, limits, foreign=foreign)
    for name in resource.complete:
        if name not in variables_of(spec.uri):
            raise PublishError(f"Resource '{spec.name}' completes '{name}', which is no variable of '{spec.uri}'.")


def messages_of(spec: PromptSpec, result: object) -> dict[str, Any]:
    """Return the result of MCP's `prompts/get`; content without a role is the user's.

    Raises:
        TypeError: A part of the result is no message.
    """
    parts = cast("list[object]", result) if isinstance(result, list | tuple) else [result]
    return {"description": spec.description, "messages": [_message(part) for part in parts]}


def _message(part: object) -> dict[str, Any]:
    if isinstance(part, str | Block | Text | ResourceLink):
        part = Message("user", part)
    if not isinstance(part, Message):
        raise TypeError(f"Something of type '{type(part).__name__}' is no message.")
    return {"role": part.role, "content": to_mcp(part.content)}


def contents_of(spec: ResourceSpec, uri: str, result: object) -> dict[str, Any]:
    """Return the result of MCP's `resources/read`; only a list of blocks is several contents, any other list is JSON.

    Raises:
        TypeError: The result cannot be written as JSON.
    """
    parts: Sequence[object] = cast("Sequence[object]", result) if isinstance(result, list | tuple) else ()
    if not parts or not all(isinstance(part, Block | Text) for part in parts):
        parts = (cast("object", result),)
    contents = [_content(spec, uri, part) for part in parts]
    meta = spec.extra.get("_meta")
    return {"contents": [{**content, "_meta": meta} for content in contents] if meta else contents}


def _content(spec: ResourceSpec, uri: str, part: object) -> dict[str, Any]:
    if isinstance(part, Embedded):
        return part.to_mcp()
    if isinstance(part, Block):
        return _blob(uri, part.mime_type, part.data)
    if isinstance(part, _BYTES):
        data = bytes(cast("bytes", part))
        return _blob(uri, spec.mime_type or block_from_bytes(data).mime_type, data)
    text, mime_type = part.text if isinstance(part, Text) else part, "text/plain"
    if not isinstance(text, str):
        text, mime_type = encode(text).decode(), "application/json"
    return {"uri": uri, "mimeType": spec.mime_type or mime_type, "text": text}


def _blob(uri: str, mime_type: str, data: bytes) -> dict[str, Any]:
    return {"uri": uri, "mimeType": mime_type, "blob": b64encode(data).decode()}


async def complete_argument(
    run: Run, target: Resource | Prompt, argument: str, value: str, *, context: Mapping[str, str], seconds: float
) -> list[str]:
    """Return possible values of an argument that begins with `value`; `context` holds the other arguments.

    Raises:
        ToolError: There is no such argument, or its completion failed.
    """
    if argument not in target.query.spec.input_schema.get("properties", {}):
        message = f"'{target.spec.name}' has no argument '{argument}'."
        raise ToolError("not_found", message, reason="unknown_argument", may_have_run=False, argument=argument)
    function = target.complete.get(argument)
    if function is None:
        return []
    run.at_fault = "tool"
    deadline = asyncio.timeout(seconds or None)
    token = ambient.set(run.call)  # a mounted yard judges by the caller
    try:
        async with deadline:
            return await _complete(run, function, value, context)
    except ToolError:
        raise
    except Exception as error:  # noqa: BLE001 - a completion may raise anything
        failure = stopped_by(run, seconds) if deadline.expired() else defect_from(error, run)
        failure.details["call_id"] = run.id  # a completion has no record, so this is the only link to the log
        raise failure from None
    finally:
        ambient.reset(token)


async def _complete(run: Run, function: Complete, value: str, context: Mapping[str, str]) -> list[str]:
    work = partial(function, value, dict(context))
    result = work() if inspect.iscoroutinefunction(function) else await run.funnel.threads.run(run.call, work)
    if inspect.isawaitable(result):
        result = await cast("Awaitable[object]", result)
    values = [str(item) for item in cast("Sequence[object]", result)][:_MAX_COMPLETIONS]
    "".join(values).encode()  # a lone surrogate cannot be answered: it must fail here, where the tool is blamed
    return values
