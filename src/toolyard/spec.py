"""Specs: a tool, a resource or a prompt as data, before anything can run.

What a tool promises is here; how it keeps the promise is in `tools`.
"""

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from toolyard.asks import Question
from toolyard.errors import CODES, COMMON_CODES, CodeName
from toolyard.logline import is_word

__all__ = [
    "NOTHING",
    "Annotations",
    "AnySpec",
    "EvalRule",
    "Example",
    "Kind",
    "Operation",
    "PromptArgument",
    "PromptSpec",
    "PublishError",
    "Reason",
    "ResourceSpec",
    "ToolSpec",
    "unknown",
    "with_codes",
]

Kind = Literal["tool", "resource", "prompt"]
"""What can be published."""


class PublishError(ValueError):
    """A tool cannot be published; the sentence names it and what is wrong."""


class Operation(StrEnum):
    """What kind of thing a tool does."""

    QUERY = "query"
    COMMAND = "command"
    DESTROY = "destroy"
    EVAL = "eval"


_OPERATIONS: Final = frozenset(Operation)


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """One good call of a tool."""

    arguments: dict[str, Any]
    title: str = ""
    result: Any = None


class Reason(msgspec.Struct, frozen=True):
    """A failure of a tool's own: the code it comes with and the keys its details carry."""

    code: CodeName = "state_error"
    details: tuple[str, ...] = ()


class EvalRule(msgspec.Struct, frozen=True):
    """Which argument of an eval tool is the payload, in what language, and under which rules.

    `host` is for what runs in this process or in the application a tool drives; `sandbox` for a runtime that brings its own rules.
    """

    argument: str
    language: str = "python"
    rules: Literal["host", "sandbox"] = "host"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "language", self.language.lower())


class Annotations(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What clients are told about a tool's effects; always explicit."""

    read_only_hint: bool
    destructive_hint: bool
    idempotent_hint: bool
    open_world_hint: bool


def _make_tuples(spec: msgspec.Struct, *fields: str) -> None:
    """Read one name where several may stand as a tuple of it, so that it is not taken letter by letter."""
    for field in fields:
        given = getattr(spec, field)
        if isinstance(given, str):
            msgspec.structs.force_setattr(spec, field, (given,))


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as data."""

    name: str
    description: str
    input_schema: dict[str, Any]
    operation: Operation
    title: str | None = None
    output_schema: dict[str, Any] | None = None
    operation_assumed: bool = False
    eval: EvalRule | None = None
    requires_eval: bool = False
    session: Literal["none", "optional", "required"] = "none"
    source: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    reasons: dict[str, Reason] = {}
    question: Question | None = None
    timeout: float | None = None
    timeout_hint: str | None = None
    serial: bool = False
    priority: Literal["interactive", "background"] = "interactive"
    idempotent: bool = False
    aliases: tuple[str, ...] = ()
    deprecated: str | None = None
    shape: Literal["envelope", "plain"] = "envelope"
    annotations: Annotations | None = None
    extra: dict[str, Any] = {}
    """What lists show of it besides, in the words of MCP, such as icons."""
    kind: Kind = "tool"
    """What is called: the query that reads a resource or makes a prompt has a spec, too, and is never listed as a tool."""

    def __post_init__(self) -> None:
        if type(self.operation) is str and self.operation in _OPERATIONS:  # written as a plain string
            msgspec.structs.force_setattr(self, "operation", Operation(self.operation))
        _make_tuples(self, "tags", "aliases")

    @property
    def known_as(self) -> tuple[str, ...]:
        """Return what the rules of a profile may call it."""
        return (self.name, *self.aliases)

    @property
    def summary(self) -> str:
        """Return the first line of the description."""
        return self.description.split("\n", 1)[0]

    @property
    def safe(self) -> bool:
        """Return whether running the tool twice does no harm."""
        return self.idempotent or self.operation is Operation.QUERY

    def codes(self) -> list[CodeName]:
        """Return the codes that the tool says it may answer with."""
        codes = {reason.code for reason in self.reasons.values()}
        if self.session != "none":
            codes.add("not_running")
        if self.operation is Operation.EVAL:
            codes.add("eval_blocked")
        return [code for code in CODES if code in codes]

    def hints(self) -> Annotations:
        """Return the annotations: those given, or what follows from the operation."""
        if self.annotations is not None:
            return self.annotations
        query = self.operation is Operation.QUERY
        return Annotations(
            read_only_hint=query,
            destructive_hint=self.operation in {Operation.DESTROY, Operation.EVAL},
            idempotent_hint=self.safe,
            open_world_hint=False,
        )


class ResourceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource as data; with variables in its URI it is a template, which stands for many."""

    uri: str
    name: str
    title: str | None = None
    description: str = ""
    mime_type: str | None = None
    size: int | None = None
    source: str = ""
    tags: tuple[str, ...] = ()
    annotations: dict[str, Any] | None = None
    """Whom it is for and how much it matters, in the words of MCP."""
    extra: dict[str, Any] = {}
    """What lists show of it besides, in the words of MCP."""

    def __post_init__(self) -> None:
        _make_tuples(self, "tags")

    @property
    def is_template(self) -> bool:
        """Return whether its URI has variables."""
        return "{" in self.uri

    @property
    def known_as(self) -> tuple[str, ...]:
        """Return what the rules of a profile may call it."""
        return (self.name, self.uri)


class PromptArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a prompt wants to know; on a wire it is a text."""

    name: str
    description: str = ""
    required: bool = False
    title: str | None = None


class PromptSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt as data."""

    name: str
    title: str | None = None
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()
    source: str = ""
    tags: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    """What lists show of it besides, in the words of MCP."""

    def __post_init__(self) -> None:
        _make_tuples(self, "tags")

    @property
    def known_as(self) -> tuple[str, ...]:
        """Return what the rules of a profile may call it."""
        return (self.name,)


AnySpec = ToolSpec | ResourceSpec | PromptSpec

NOTHING: Final = ToolSpec(name="?", description="?", input_schema={}, operation=Operation.QUERY)
"""The spec of a call until its tool is found: it does nothing, and so only asks."""


def unknown(kind: Kind, name: str) -> ToolSpec:
    """Return the spec of a call until what it calls is found, which says of the name what may be repeated."""
    return msgspec.structs.replace(NOTHING, kind=kind, name=name if is_word(str(name)) else "?")


def with_codes(spec: ToolSpec) -> ToolSpec:
    """Return the spec with its description ended by the codes that an agent would not expect."""
    codes = [code for code in spec.codes() if code not in COMMON_CODES]
    return msgspec.structs.replace(spec, description=f"{spec.description}\n\nMay answer with: {', '.join(codes)}.") if codes else spec
