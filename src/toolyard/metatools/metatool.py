"""Making a metatool: from a few words and two schemas to a tool like any other, without a signature to read."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from toolyard._internal.signed_tokens import Signer
from toolyard.dispatch.call import Handler
from toolyard.dispatch.dispatcher import Dispatcher
from toolyard.dispatch.registry import Registry
from toolyard.dispatch.tool import Check, Tool, check_by_schema
from toolyard.model.limits import Limits
from toolyard.model.profile import METATOOLS, UNLISTED
from toolyard.model.spec import Annotations, Example, Metatool, Operation, Reason, ToolSpec, with_codes
from toolyard.search.settings import SearchSettings

__all__ = ["TEXT", "Subject", "fields", "make", "outcome"]


TEXT: Final[dict[str, Any]] = {"type": "string"}
_WRAPS: Final = Annotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
"""What is said of a tool that runs another, which may do anything."""


def fields(required: str = "", **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of strict arguments; what is required is named in one text."""
    schema: dict[str, Any] = {"type": "object", "properties": {name: dict(inner) for name, inner in properties.items()}}
    return {**schema, **({"required": required.split()} if required else {}), "additionalProperties": False}


def outcome(required: str = "", **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of what a metatool answers."""
    return fields(required, **properties)


def make(
    name: str,
    description: str,
    handler: Handler,
    *,
    takes: dict[str, Any],
    answers: dict[str, Any],
    listed: bool = False,
    finds: bool = False,
    wraps: bool = False,
    alias_of: str = "",
    alias: str = "",
    check: Check | None = None,
    examples: tuple[Example, ...] = (),
    tags: tuple[str, ...] = (),
    reasons: Mapping[str, Reason] = MappingProxyType({}),
) -> Tool:
    """Return a metatool; one that wraps others does what they do, and leaves their deadlines to them."""
    spec = ToolSpec(
        name=name,
        description=description,
        input_schema=takes,
        output_schema=answers,
        operation=Operation.COMMAND if wraps else Operation.QUERY,
        annotations=_WRAPS if wraps else None,
        timeout=0 if wraps else None,
        source=METATOOLS,
        tags=tags if listed else (*tags, UNLISTED),
        metatool=Metatool("find" if finds else "call" if wraps else "other", alias_of, alias),
        examples=examples,
        reasons=dict(reasons),
    )
    return Tool(spec=with_codes(spec), handler=handler, check=check or check_by_schema(takes), may_return_none=wraps, wraps=wraps)


class Subject(Protocol):
    """A yard, as its metatools see it."""

    @property
    def registry(self) -> Registry:
        """Return the names of its tools."""
        ...

    @property
    def limits(self) -> Limits:
        """Return the numbers it keeps to."""
        ...

    @property
    def search(self) -> SearchSettings:
        """Return how its tools are found."""
        ...

    @property
    def signer(self) -> Signer:
        """Return what its cursors are sealed with."""
        ...

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the funnel that every call passes."""
        ...
