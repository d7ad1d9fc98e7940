"""A tool: a spec that can check its arguments and run.

It is plain data and functions; nothing here registers itself, and no transport or provider is known.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Self, cast

import msgspec

from toolyard.dispatch.call import Arguments, Handler
from toolyard.model.coercion import IntegerConverter, Repair, find_repairs
from toolyard.model.envelope import encode
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.schema import EXTRA, MAX_ISSUES, ROOT, Issue, Schema, SchemaValidator, fits_simple_schema, is_simple_schema
from toolyard.model.spec import Kind, Operation, PromptSpec, PublishError, ResourceSpec, ToolSpec, check_spec

__all__ = [
    "Check",
    "Checked",
    "Complete",
    "InvalidArgumentsError",
    "Tool",
    "check_by_schema",
    "check_tool",
    "plain_of",
    "query_of",
    "texts_of",
    "written",
]

Check = Callable[[bytes], Arguments]
"""Takes arguments as JSON text, returns what the handler gets, or raises `InvalidArgumentsError`."""

Complete = Callable[[str, dict[str, str]], Sequence[str] | Awaitable[Sequence[str]]]
"""Takes what is written of an argument so far and the arguments that are settled; returns what it may become."""

_NO_WORD: Final = re.compile(r"[^A-Za-z0-9_-]+")
_EXPECTED_BYTES: Final = 1500
_NAMED_FIELDS: Final = 5
_COERCED: Final = 50


class InvalidArgumentsError(Exception):
    """Arguments do not fit; it carries every issue."""

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__()
        self.issues = issues


class Checked(NamedTuple):
    """Arguments that fit, and the fields that had to be put right first."""

    arguments: Arguments
    coerced: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A spec, a check of the arguments, and a handler."""

    spec: ToolSpec
    handler: Handler
    check: Check
    fits_output: Callable[[object], bool] | None = None
    may_return_none: bool = False
    wraps: bool = False
    """Whether among its arguments are those of other tools, where it sees to references to stored results itself."""
    is_simple: bool = field(init=False)
    """Whether nothing but a policy stands between its arguments being right and its handler, as with nearly every tool."""

    def __post_init__(self) -> None:
        spec = self.spec
        asks = spec.eval is not None or spec.session != "none" or spec.serial or spec.confirmation is not None
        object.__setattr__(self, "is_simple", not asks and spec.deprecated is None)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names that find it, its own first."""
        return self.spec.known_as

    def under(self, source: str) -> Self:
        """Return the tool under the source that publishes it."""
        if self.spec.source == source:
            return self
        return replace(self, spec=msgspec.structs.replace(self.spec, source=source))

    def mend(self, text: bytes, issues: list[Issue], *, repair: bool, elsewhere: Sequence[str] = ()) -> Checked:
        """Return arguments that did not fit, put right by the one repair that does; elsewhere somebody learns which ones there are.

        Raises:
            ToolError: `invalid_input`, with everything that is wrong.
        """
        try:
            mended = self._mend(msgspec.json.decode(text)) if repair else None
        except msgspec.DecodeError:  # a number that none can be, which the issues tell of
            mended = None
        if mended is None:
            raise self._refuse(issues, elsewhere)
        return mended

    def reading(self, arguments: object) -> Repair | None:
        """Return the reading of arguments that do not fit by which they do, if there is exactly one that changes no more than it must."""
        fitting = [reading for reading in find_repairs(self.spec.input_schema, arguments) if self.fits(reading.value)]
        least = [one for one in fitting if all(set(one.changed) <= set(other.changed) for other in fitting)]
        return least[0]._replace(changed=least[0].changed[:_COERCED]) if len(least) == 1 else None

    def _mend(self, arguments: object) -> Checked | None:
        reading = self.reading(arguments)
        return None if reading is None else Checked(self.check(encode(reading.value)), reading.changed)

    def fits(self, arguments: object) -> bool:
        """Return whether arguments are right as they are."""
        try:
            self.check(encode(arguments))
        except (InvalidArgumentsError, TypeError):
            return False
        return True

    def _refuse(self, issues: list[Issue], elsewhere: Sequence[str]) -> ToolError:
        fields = [f"'{issue.field}'" for issue in issues]
        shown = ", ".join(fields[:_NAMED_FIELDS]) + (" and more" if len(fields) > _NAMED_FIELDS else "")
        number = f"{len(issues)} things" if len(issues) < MAX_ISSUES else f"At least {MAX_ISSUES} things"
        return ToolError(
            "invalid_input",
            issues[0].message if len(issues) == 1 else f"{number} are wrong with the arguments: {shown}.",
            hint=f"Correct {shown} and call again.",
            next_actions=self._next_actions(issues[0], elsewhere),
            issues=[_shorten(issue) for issue in issues],
        )

    def _next_actions(self, issue: Issue, elsewhere: Sequence[str]) -> Sequence[str]:
        """Return how to go on: with the argument that is wrong, or was meant; else by looking up which ones there are."""
        name, field = self.spec.name, issue.field
        if field == ROOT:
            return [f"{name}(…)"]
        known = [one for one in self.spec.input_schema.get("properties", {}) if field == one or field.startswith(f"{one}.")]
        argument = known[0] if known else issue.did_you_mean if issue.code == EXTRA else field.partition(".")[0]
        if argument is None:
            return elsewhere or [f"{name}(…)"]
        return [f"{name}({argument}=…)"]


def plain_of(text: bytes) -> Any:
    """Return arguments that are JSON as plain data.

    Raises:
        ToolError: `invalid_input` if they hold a number that none can be, or are no JSON at all.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ToolError("invalid_input", "The arguments are no JSON, or hold a number that is too large.", issues=[]) from None


def written(arguments: object, most: int) -> bytes:
    """Return arguments as JSON of at most so many bytes, which those that came over a wire are already.

    Raises:
        ToolError: `invalid_input` if they cannot be, `too_large` if they are too long.
    """
    if arguments is None:
        return b"{}"
    try:
        text = bytes(arguments) if type(arguments) is msgspec.Raw else encode(arguments)
    except TypeError:
        hint = "Give texts of whole characters, numbers, true, false, null, and lists and objects of these."
        raise ToolError("invalid_input", "The arguments cannot be written as JSON.", hint=hint, issues=[]) from None
    if len(text) > most:
        raise ToolError("too_large", f"The arguments have {len(text)} bytes; at most {most} are taken.", bytes=len(text), limit=most)
    return text


def check_by_schema(schema: Schema) -> Check:
    """Return the check that a JSON Schema says, with the defaults of its properties filled in and its integers as such."""
    validator = SchemaValidator(schema)
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    integers = IntegerConverter(schema)
    defaults: Arguments = {
        name: cast("dict[str, Any]", inner)["default"]
        for name, inner in properties.items()
        if isinstance(inner, dict) and "default" in inner
    }

    def check(text: bytes) -> Arguments:
        arguments = plain_of(text)
        if not validator.fits(arguments):
            raise InvalidArgumentsError(validator.issues(arguments))
        return integers.convert({**deepcopy(defaults), **arguments})

    return check


def query_of(kind: Kind, spec: ResourceSpec | PromptSpec, handler: Handler, *, schema: Schema, check: Check | None = None) -> Tool:
    """Return what reads a resource or makes a prompt, as the funnel runs it; a name that is no word is made one."""
    query = ToolSpec(
        kind=kind,
        name=_NO_WORD.sub("_", spec.name),
        description=spec.description or spec.name,
        input_schema=dict(schema),
        operation=Operation.QUERY,
        source=spec.source,
        tags=spec.tags,
    )
    return Tool(spec=query, handler=handler, check=check or check_by_schema(schema))


def texts_of(names: Sequence[str], *, required: Sequence[str]) -> Schema:
    """Return the schema of arguments that are texts, as those of resources and prompts are on every wire."""
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def check_tool(tool: Tool, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a tool that can be wrong before its first call.

    Raises:
        PublishError: Something is.
    """
    check_spec(tool.spec, limits, foreign=foreign)
    if not foreign:
        _check_defaults(tool.spec)
    for number, example in enumerate(tool.spec.examples, start=1):
        try:
            tool.check(encode(example.arguments))
        except InvalidArgumentsError as error:
            raise PublishError(f"Tool '{tool.spec.name}' has an example {number} that does not fit: {error.issues[0].message}") from None


def _check_defaults(spec: ToolSpec) -> None:
    validator = SchemaValidator({**spec.input_schema, "required": []})
    plain = is_simple_schema(spec.input_schema)
    for name, inner in spec.input_schema.get("properties", {}).items():
        if isinstance(inner, dict) and "default" in inner:
            default = cast("dict[str, Any]", inner)["default"]
            if plain and fits_simple_schema(cast("dict[str, Any]", inner), default):
                continue
            issues = validator.issues({name: default})
            if any(issue.field.split(".")[0] == name for issue in issues):
                raise PublishError(f"Tool '{spec.name}' has a default for '{name}' that does not fit its schema.")


def _shorten(issue: Issue) -> Issue:
    """Return the issue with a large part of the schema cut down to its type."""
    if issue.expected is None or len(encode(issue.expected)) <= _EXPECTED_BYTES:
        return issue
    return msgspec.structs.replace(issue, expected=_outline(cast("dict[str, Any]", issue.expected)))


def _outline(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the types that a schema allows, or nothing if it does not say."""
    if "type" in schema:
        return {"type": schema["type"]}
    branches = [_outline(branch) for key in ("anyOf", "oneOf") for branch in schema.get(key, ())]
    return {"anyOf": branches} if branches and all(branches) else None
