"""A resource: a spec, and the query that reads it.

A template is a resource, too: the variables of its URI are the arguments of the query.
"""

import asyncio
import inspect
from base64 import b64encode
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Self, cast

import msgspec

from toolyard.dispatch.call import Call, Handler
from toolyard.dispatch.outcome import defect_from, stopped_by
from toolyard.dispatch.run import Run
from toolyard.dispatch.tool import Check, Complete, Tool, query_of, texts_of
from toolyard.model.content import Block, Embedded, Message, ResourceLink, Text, block_from_bytes, to_mcp
from toolyard.model.envelope import encode
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.schema import Schema
from toolyard.model.spec import PromptSpec, PublishError, ResourceSpec, check_prompt_spec, check_resource_spec
from toolyard.model.uri_template import variables_of

__all__ = ["Prompt", "Resource", "check_prompt", "check_resource", "contents_of", "messages_of", "suggest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A spec, the query that makes its messages, and what completes its arguments."""

    spec: PromptSpec
    query: Tool
    complete: Mapping[str, Complete] = field(default_factory=dict[str, Complete])

    @classmethod
    def of(
        cls,
        spec: PromptSpec,
        handler: Handler,
        *,
        schema: Schema | None = None,
        check: Check | None = None,
        complete: Mapping[str, Complete] | None = None,
    ) -> Self:
        """Return a prompt; without a schema its arguments are texts."""
        if schema is None:
            required = [argument.name for argument in spec.arguments if argument.required]
            schema = texts_of([argument.name for argument in spec.arguments], required=required)
        query = query_of("prompt", spec, handler, schema=schema, check=check)
        return cls(spec=spec, query=query, complete=complete or {})

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what finds it: its name."""
        return (self.spec.name,)

    def under(self, source: str) -> Self:
        """Return the prompt under the source that publishes it."""
        if self.spec.source == source:
            return self
        return replace(self, spec=msgspec.structs.replace(self.spec, source=source), query=self.query.under(source))


def check_prompt(prompt: Prompt, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a prompt that can be wrong before it is asked for.

    Raises:
        PublishError: Something is.
    """
    check_prompt_spec(prompt.spec, limits, foreign=foreign)
    known = {argument.name for argument in prompt.spec.arguments}
    for name in prompt.complete:
        if name not in known:
            raise PublishError(f"Prompt '{prompt.spec.name}' completes '{name}', which is none of its arguments.")


def messages_of(spec: PromptSpec, result: object) -> dict[str, Any]:
    """Return the messages in the words of MCP; what has no role is said by the user.

    Raises:
        TypeError: It is no message.
    """
    several = cast("list[object]", result) if isinstance(result, list | tuple) else [result]
    return {"description": spec.description, "messages": [_message(one) for one in several]}


def _message(one: object) -> dict[str, Any]:
    if isinstance(one, str | Block | Text | ResourceLink):
        one = Message("user", one)
    if not isinstance(one, Message):
        raise TypeError(f"Something of type '{type(one).__name__}' is no message.")
    return {"role": one.role, "content": to_mcp(one.content)}


_BYTES: Final = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A spec, the query that reads it, and what completes its variables."""

    spec: ResourceSpec
    query: Tool
    complete: Mapping[str, Complete] = field(default_factory=dict[str, Complete])

    @classmethod
    def of(
        cls,
        spec: ResourceSpec,
        handler: Handler,
        *,
        schema: Schema | None = None,
        check: Check | None = None,
        complete: Mapping[str, Complete] | None = None,
    ) -> Self:
        """Return a resource whose handler finds the URI in `call.name`; without a schema the variables are texts."""
        if schema is None:
            names = variables_of(spec.uri)
            schema = texts_of(names, required=names)
        query = query_of("resource", spec, handler, schema=schema, check=check)
        return cls(spec=spec, query=query, complete=complete or {})

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what finds it: its URI."""
        return (self.spec.uri,)

    def under(self, source: str) -> Self:
        """Return the resource under the source that publishes it."""
        if self.spec.source == source:
            return self
        return replace(self, spec=msgspec.structs.replace(self.spec, source=source), query=self.query.under(source))


def check_resource(resource: Resource, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a resource that can be wrong before it is read.

    Raises:
        PublishError: Something is.
    """
    spec = resource.spec
    check_resource_spec(spec, limits, foreign=foreign)
    for name in resource.complete:
        if name not in variables_of(spec.uri):
            raise PublishError(f"Resource '{spec.name}' completes '{name}', which is no variable of '{spec.uri}'.")


def contents_of(spec: ResourceSpec, uri: str, result: object) -> dict[str, Any]:
    """Return what was read in the words of MCP; only a list of blocks is several contents, any other is JSON.

    Raises:
        TypeError: It cannot be written.
    """
    parts: Sequence[object] = cast("Sequence[object]", result) if isinstance(result, list | tuple) else ()
    if not parts or not all(isinstance(part, Block | Text) for part in parts):
        parts = (cast("object", result),)
    return {"contents": [_content(spec, uri, part) for part in parts]}


def _content(spec: ResourceSpec, uri: str, part: object) -> dict[str, Any]:
    if isinstance(part, Embedded):
        return part.to_mcp()
    if isinstance(part, Block):
        return _blob(uri, part.mime_type, part.data)
    if isinstance(part, _BYTES):
        data = bytes(cast("bytes", part))
        return _blob(uri, spec.mime_type or block_from_bytes(data).mime_type, data)
    if isinstance(part, str | Text):
        return {"uri": uri, "mimeType": spec.mime_type or "text/plain", "text": part if isinstance(part, str) else part.text}
    return {"uri": uri, "mimeType": spec.mime_type or "application/json", "text": encode(part).decode()}


def _blob(uri: str, mime_type: str, data: bytes) -> dict[str, Any]:
    return {"uri": uri, "mimeType": mime_type, "blob": b64encode(data).decode()}


_MOST: Final = 1000


async def suggest(call: Run, of: Resource | Prompt, argument: str, value: str, *, settled: Mapping[str, str], seconds: float) -> list[str]:
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
        failure = stopped_by(call, seconds) if deadline.expired() else defect_from(error, call)
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
