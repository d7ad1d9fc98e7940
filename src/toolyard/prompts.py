"""A prompt: a spec, and the query that makes its messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import msgspec

from toolyard.call import Handler
from toolyard.content import Block, Message, ResourceLink, Text
from toolyard.limits import Limits
from toolyard.schema import Schema
from toolyard.spec import PromptSpec, PublishError
from toolyard.spec_checks import check_prompt_spec
from toolyard.tools import Check, Complete, Tool, query_of, texts_of
from toolyard.wire.blocks import to_mcp

__all__ = ["Prompt", "check_prompt", "messages_of"]


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
