"""Specs: a tool as data, before anything can run.

What a tool promises is here; how it keeps the promise is in `tools`.
"""

import re
from enum import StrEnum
from typing import Any, Final, Literal, cast

import msgspec

from toolyard.asks import Question
from toolyard.envelope import encode
from toolyard.errors import CODES, COMMON_CODES, CodeName
from toolyard.limits import Limits
from toolyard.schema import SchemaError, check_schema

__all__ = ["NOTHING", "Annotations", "EvalRule", "Example", "Operation", "PublishError", "Reason", "ToolSpec", "check_spec"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_FOREIGN_NAME: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_EXAMPLES: Final = 5


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

    def __post_init__(self) -> None:
        if self.operation in _OPERATIONS:  # written as a plain string
            msgspec.structs.force_setattr(self, "operation", Operation(self.operation))
        for name in ("tags", "aliases"):
            given = getattr(self, name)
            if isinstance(given, str):  # one name, which is not to be taken letter by letter
                msgspec.structs.force_setattr(self, name, (given,))

    @property
    def summary(self) -> str:
        """Return the first line of the description."""
        return self.description.split("\n", 1)[0]

    @property
    def safe(self) -> bool:
        """Return whether running the tool twice does no harm."""
        return self.idempotent or self.operation is Operation.QUERY

    def codes(self) -> list[CodeName]:
        """Return the codes outside the common set that the tool may answer with."""
        codes = {reason.code for reason in self.reasons.values()}
        if self.session != "none":
            codes.add("not_running")
        if self.operation is Operation.EVAL:
            codes.add("eval_blocked")
        return [code for code in CODES if code in codes - COMMON_CODES]

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


NOTHING: Final = ToolSpec(name="?", description="?", input_schema={}, operation=Operation.QUERY)
"""The spec of a call until its tool is found: it does nothing, and so only asks."""


def check_spec(spec: ToolSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a spec that can be wrong before the first call.

    Raises:
        PublishError: Something is.
    """
    if spec.operation not in _OPERATIONS:
        known = ", ".join(f"'{operation}'" for operation in Operation)
        raise PublishError(f"Tool '{spec.name}' has the operation '{spec.operation}', which is none of {known}.")
    _check_schemas(spec, limits, foreign=foreign)
    _check_types(spec)
    _check_names(spec, limits, foreign=foreign)
    if not spec.description.strip():
        raise PublishError(f"Tool '{spec.name}' has no description.")
    _check_eval(spec)
    if len(spec.examples) > _EXAMPLES:
        raise PublishError(f"Tool '{spec.name}' has {len(spec.examples)} examples; at most {_EXAMPLES} are shown.")
    if spec.timeout is not None and not 0 <= spec.timeout < float("inf"):
        raise PublishError(f"Tool '{spec.name}' has the timeout {spec.timeout}, which is no number of seconds.")


def _check_types(spec: ToolSpec) -> None:
    """Check every field against its type, which building a spec in Python does not."""
    try:
        msgspec.json.decode(encode(spec), type=ToolSpec)
    except msgspec.ValidationError as error:
        raise PublishError(f"Tool '{spec.name}' has a wrong spec: {str(error).rstrip('.')}.") from error


def _check_names(spec: ToolSpec, limits: Limits, *, foreign: bool) -> None:
    pattern = _FOREIGN_NAME if foreign else _NAME
    for name in (spec.name, *spec.aliases):
        if not pattern.match(name):
            raise PublishError(f"Tool '{name}' must be named with small letters, digits and '_', a letter first.")
        if len(name) > limits.name_characters:
            raise PublishError(f"Tool '{name}' has a name of {len(name)} characters; at most {limits.name_characters} are published.")


def _check_schemas(spec: ToolSpec, limits: Limits, *, foreign: bool) -> None:
    if not isinstance(cast("object", spec.input_schema), dict):
        raise PublishError(f"Tool '{spec.name}' has an input schema that is no object.")
    named = (("input", spec.input_schema), ("output", spec.output_schema))
    for which, schema in named:
        if schema is None:
            continue
        try:
            check_schema(schema, max_bytes=limits.schema_bytes, max_depth=limits.schema_depth)
        except SchemaError as error:
            raise PublishError(f"Tool '{spec.name}' has a wrong {which} schema: {error}.") from error
    if spec.input_schema.get("type") != "object":
        raise PublishError(f"Tool '{spec.name}' has an input schema that is not of type 'object'.")
    if not foreign and spec.input_schema.get("additionalProperties") is not False:
        raise PublishError(f"Tool '{spec.name}' has an input schema that does not say 'additionalProperties: false'.")
    try:
        encode(spec)
    except TypeError as error:
        raise PublishError(f"Tool '{spec.name}' cannot be written as JSON: {error}") from error


def _check_eval(spec: ToolSpec) -> None:
    if spec.operation is not Operation.EVAL:
        if spec.eval is not None:
            raise PublishError(f"Tool '{spec.name}' has an eval rule, so its operation must be 'eval'.")
        return
    if spec.eval is None:
        raise PublishError(f"Tool '{spec.name}' has the operation 'eval' and must name the argument that holds the code.")
    if not spec.requires_eval:
        raise PublishError(f"Tool '{spec.name}' has the operation 'eval', so it must require the flag for it.")
    guarded = spec.input_schema.get("properties", {}).get(spec.eval.argument)
    if guarded is None or guarded.get("type") != "string":
        raise PublishError(f"Tool '{spec.name}' has no argument '{spec.eval.argument}' of type 'string' to guard.")
