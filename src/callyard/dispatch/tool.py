"""A tool: a spec, a check of its arguments and a handler; and the arguments as JSON, checked and repaired.

It knows no registry, transport or provider.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any, Final, Self, cast

import msgspec

from callyard._internal.converted import has_more
from callyard.dispatch.arguments import Bind, BoundArguments, bind_by_schema
from callyard.dispatch.call import Arguments, Handler
from callyard.model.coercion import IntegerConverter, Repair, find_repairs
from callyard.model.envelope import encode, encode_unchecked
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.schema import EXTRA, MAX_ISSUES, ROOT, Issue, Schema, SchemaValidator
from callyard.model.simple_schema import fits_simple_schema, is_simple_schema
from callyard.model.spec import PublishError, ToolSpec, check_spec

__all__ = [
    "Check",
    "Complete",
    "InvalidArgumentsError",
    "Tool",
    "check_by_schema",
    "check_tool",
    "decode_arguments",
    "encode_arguments",
]

Check = Callable[[bytes], Arguments]
"""Takes arguments as JSON text; returns the handler's arguments or raises `InvalidArgumentsError`."""

Complete = Callable[[str, dict[str, str]], Sequence[str] | Awaitable[Sequence[str]]]
"""Takes the beginning of an argument and the other arguments; returns possible values."""

_MAX_EXPECTED_BYTES: Final = 1500
_MAX_NAMED_FIELDS: Final = 5
_MAX_COERCED: Final = 50
_QUICK_BYTES: Final = 256 * 1024
_MAX_VALUES: Final = 500_000
"""Most values of arguments: making and checking them blocks other calls for up to a third of a second."""
_STRING: Final = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_decode_parts: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class InvalidArgumentsError(Exception):
    """The arguments do not fit the schema; `issues` says why."""

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__()
        self.issues = issues


class RepairedArguments(msgspec.Struct, frozen=True):
    """Arguments that fit after a repair, and the fields that it changed."""

    arguments: Arguments
    text: bytes
    coerced: tuple[str, ...]


class Tool(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A spec, a check of the arguments, and a handler. To change a tool, publish another."""

    spec: ToolSpec
    handler: Handler
    check: Check
    fits_output: Callable[[object], bool] | None = None
    may_return_none: bool = False
    binder: Bind | None = None
    """Binds arguments to the JSON that is judged and approved; by default as the schema describes them."""
    marks_secrets: bool = True
    """Whether its schema may mark arguments as secrets, which approvals then do not show."""
    wraps: bool = False
    """Whether its arguments contain those of other tools, so that it resolves references to results itself."""
    outlives_as: str = ""
    """The status of its first answer, if a call goes on as a job when it must wait longer than its request can."""

    @property
    def is_simple(self) -> bool:
        """Return whether a call needs no step but a policy between the check and the handler."""
        spec = self.spec
        is_own = spec.serial or spec.session != "none" or spec.eval is not None
        return not is_own and spec.confirmation is None and spec.job is None and spec.deprecated is None

    @classmethod
    def of(cls, spec: ToolSpec, handler: Handler, *, may_return_none: bool = False) -> Self:
        """Return a tool that is checked by the JSON Schemas of its spec: arguments, and the result if it has one."""
        return cls(
            spec=spec,
            handler=handler,
            check=check_by_schema(spec.input_schema),
            fits_output=None if spec.output_schema is None else SchemaValidator(spec.output_schema).fits,
            may_return_none=may_return_none,
        )

    @property
    def keys(self) -> tuple[str, ...]:
        """Return its current and former names, the current one first."""
        return (self.spec.name, *self.spec.aliases)

    def with_source(self, source: str) -> Self:
        """Return a copy that belongs to the source."""
        if self.spec.source == source:
            return self
        return msgspec.structs.replace(self, spec=msgspec.structs.replace(self.spec, source=source))

    def bind(self, text: bytes) -> BoundArguments:
        """Return arguments that fit as they are judged and approved.

        Raises:
            ToolError: `permission_denied` if that cannot be done.
        """
        return (self.binder or bind_by_schema(self.spec.input_schema, self.check))(text)

    def repair(
        self, text: bytes, issues: list[Issue], *, enabled: bool, suggestions: Sequence[str] = ()
    ) -> RepairedArguments:
        """Return arguments that did not fit, after the only repair that makes them fit.

        `suggestions` are the next actions of a failure that names no argument of the tool.

        Raises:
            ToolError: `invalid_input`, with every issue.
        """
        reading = None
        # A large value with as many issues has too many values.
        if enabled and (len(text) <= _QUICK_BYTES or len(issues) < MAX_ISSUES):
            with suppress(msgspec.DecodeError):  # a number out of range, which the issues name
                reading = self.find_reading(msgspec.json.decode(text)) if _is_quickly_decoded(text) else None
        if reading is None:
            raise self._invalid_input(issues, suggestions)
        repaired = encode(reading.value)
        return RepairedArguments(self.check(repaired), repaired, reading.changed)

    def find_reading(self, arguments: object) -> Repair | None:
        """Return the smallest repair that makes arguments fit, or None if there is none or no single smallest one."""
        fitting = [reading for reading in find_repairs(self.spec.input_schema, arguments) if self.fits(reading.value)]
        least = [reading for reading in fitting if all(set(reading.changed) <= set(other.changed) for other in fitting)]
        return msgspec.structs.replace(least[0], changed=least[0].changed[:_MAX_COERCED]) if len(least) == 1 else None

    def fits(self, arguments: object) -> bool:
        """Return whether arguments fit without a repair."""
        try:
            self.check(encode(arguments))
        except (InvalidArgumentsError, TypeError):
            return False
        return True

    def _invalid_input(self, issues: list[Issue], suggestions: Sequence[str]) -> ToolError:
        fields = [f"'{issue.field}'" for issue in issues]
        shown = ", ".join(fields[:_MAX_NAMED_FIELDS]) + (" and more" if len(fields) > _MAX_NAMED_FIELDS else "")
        number = f"{len(issues)} things" if len(issues) < MAX_ISSUES else f"At least {MAX_ISSUES} things"
        return ToolError(
            "invalid_input",
            issues[0].message if len(issues) == 1 else f"{number} are wrong with the arguments: {shown}.",
            hint=f"Correct {shown} and call again.",
            next_actions=self._next_actions(issues[0], suggestions),
            issues=[_shorten(issue) for issue in issues],
        )

    def _next_actions(self, issue: Issue, suggestions: Sequence[str]) -> Sequence[str]:
        """Return a call with the argument that is wrong or was probably meant, else the suggestions."""
        name, field = self.spec.name, issue.field
        if field == ROOT:
            return [f"{name}(…)"]
        names = self.spec.input_schema.get("properties", {})
        probable = issue.did_you_mean if issue.code == EXTRA else field.partition(".")[0]
        argument = next((key for key in names if field == key or field.startswith(f"{key}.")), probable)
        if argument is None:
            return suggestions or [f"{name}(…)"]
        return [f"{name}({argument}=…)"]


def decode_arguments(text: bytes) -> Any:
    """Return arguments as data.

    Raises:
        ToolError: `invalid_input` if they are not JSON or hold a number out of range.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        message = "The arguments are no JSON, or hold a number that is too large."
        raise ToolError("invalid_input", message, issues=[]) from None


def _is_quickly_decoded(text: bytes) -> bool:
    """Return whether arguments are small enough to be decoded once more without delaying other callers.

    Raises:
        msgspec.DecodeError: They are no JSON object.
    """
    if len(text) <= _QUICK_BYTES:
        return True
    parts = _decode_parts(text).values()
    return all(len(part) <= _QUICK_BYTES or bytes(part[:1]) == b'"' for part in map(memoryview, parts))


def encode_arguments(arguments: object, max_bytes: int) -> bytes:
    """Return arguments as JSON; those in a `msgspec.Raw` are JSON already.

    Raises:
        ToolError: `invalid_input` if they cannot be JSON, `too_large` if they are too long.
    """
    if arguments is None:
        return b"{}"
    try:
        text = bytes(arguments) if type(arguments) is msgspec.Raw else encode_unchecked(arguments)
    except Exception:  # noqa: BLE001 - a property or serialiser of an argument may raise anything
        hint = "Give texts of whole characters, numbers, true, false, null, and lists and objects of these."
        raise ToolError("invalid_input", "The arguments cannot be written as JSON.", hint=hint, issues=[]) from None
    size = len(text)
    if size > max_bytes:
        message = f"The arguments have {size} bytes; at most {max_bytes} are taken."
        raise ToolError("too_large", message, bytes=size, limit=max_bytes)
    if size > _MAX_VALUES and has_more(text, b",", _MAX_VALUES):
        _check_values(text)
    return text


def _check_values(text: bytes) -> None:
    values = re.sub(_STRING, b"", text).count(b",")  # those in texts separate nothing
    if values > _MAX_VALUES:
        message = f"The arguments have more than {_MAX_VALUES} values."
        hint = "Give them in several calls, or as one text."
        raise ToolError("too_large", message, hint=hint, values=values, limit=_MAX_VALUES)


def check_by_schema(schema: Schema) -> Check:
    """Return a check by JSON Schema, which also fills in defaults and turns numbers such as 5.0 into integers."""
    validator = SchemaValidator(schema)
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    defaults: Arguments = {
        name: cast("dict[str, Any]", inner)["default"]
        for name, inner in properties.items()
        if isinstance(inner, dict) and "default" in inner
    }

    @cache
    def integers() -> "IntegerConverter":
        return IntegerConverter(schema)

    def check(text: bytes) -> Arguments:
        arguments = decode_arguments(text)
        if not validator.fits(arguments):
            raise InvalidArgumentsError(validator.issues(arguments))
        return integers().convert({**deepcopy(defaults), **arguments})

    return check


def check_tool(tool: Tool, limits: Limits, *, foreign: bool = False) -> None:
    """Check the spec, the defaults and the examples of a tool.

    Raises:
        PublishError: Something is wrong.
    """
    check_spec(tool.spec, limits, foreign=foreign)
    if not foreign:
        _check_defaults(tool.spec)
    for number, example in enumerate(tool.spec.examples, start=1):
        try:
            tool.check(encode(example.arguments))
        except InvalidArgumentsError as error:
            message = f"Tool '{tool.spec.name}' has an example {number} that does not fit: {error.issues[0].message}"
            raise PublishError(message) from None


def _check_defaults(spec: ToolSpec) -> None:
    validator = SchemaValidator({**spec.input_schema, "required": []})
    plain = is_simple_schema(spec.input_schema)  # its defaults are checked without loading the validator
    for name, inner in spec.input_schema.get("properties", {}).items():
        if isinstance(inner, dict) and "default" in inner:
            default = cast("dict[str, Any]", inner)["default"]
            if plain and fits_simple_schema(cast("dict[str, Any]", inner), default):
                continue
            issues = validator.issues({name: default})
            if any(issue.field.split(".")[0] == name for issue in issues):
                raise PublishError(f"Tool '{spec.name}' has a default for '{name}' that does not fit its schema.")


def _shorten(issue: Issue) -> Issue:
    """Return the issue with a large part of the schema reduced to its type."""
    if issue.expected is None or len(encode(issue.expected)) <= _MAX_EXPECTED_BYTES:
        return issue
    return msgspec.structs.replace(issue, expected=_outline(cast("dict[str, Any]", issue.expected)))


def _outline(schema: dict[str, Any]) -> dict[str, Any] | None:
    if "type" in schema:
        return {"type": schema["type"]}
    branches = [_outline(branch) for key in ("anyOf", "oneOf") for branch in schema.get(key, ())]
    return {"anyOf": branches} if branches and all(branches) else None
