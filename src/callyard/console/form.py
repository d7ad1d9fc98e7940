"""Forms from JSON Schema: the fields that a person fills in to call a tool or to answer a question.

Schemas come from anywhere, so a form is bounded: a field that cannot be shown becomes JSON, and fields beyond a number
are left out. It is data only; templates show it, and 'run.js' turns the filled form into JSON.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from callyard.model.errors import ToolError
from callyard.model.schema import Schema, resolve
from callyard.model.signature import TypeNames, read_parameters

__all__ = ["Choice", "Field", "Form", "defaults_of", "make_form", "read_answer"]

Kind = Literal["text", "number", "switch", "choice", "choices", "object", "list", "json"]
_DEPTH: Final = 3
"""How deep objects and lists have fields of their own."""
_FIELDS: Final = 80
_BRANCHES: Final = 20
_CHOICES: Final = 100
_CHECKBOXES: Final = 12
_CHOICE_CHARACTERS: Final = 80
_TEXT_CHARACTERS: Final = 20_000
"""The most characters of all descriptions and choices together: a page stays small whatever the schema says."""
_DESCRIPTION: Final = 800
_DEFAULT: Final = 80
_PATTERN: Final = 100
_BOUNDS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "multipleOf": "a multiple of",
}
_INPUT_TYPES: Final = {"date": "date", "email": "email", "uri": "url", "password": "password", "time": "time"}


class Choice(NamedTuple):
    """One value of a choice."""

    value: str
    label: str


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a form, with fields of its own if it is an object or a list."""

    name: str
    kind: Kind
    type: str
    title: str = ""
    description: str = ""
    hint: str = ""
    """What values must keep to, in words."""
    is_required: bool = False
    is_nullable: bool = False
    takes_text: bool = False
    """Whether a text that is no JSON is meant as it is."""
    input_type: str = ""
    """The type of the input element, for texts on one line."""
    default: str = ""
    """As JSON; empty if there is none."""
    minimum: str = ""
    maximum: str = ""
    step: str = "any"
    choices: tuple[Choice, ...] = ()
    fields: tuple["Field", ...] = ()
    item: "Field | None" = None


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an object, the required ones first."""

    fields: tuple[Field, ...] = ()
    left_out: int = 0
    """How many fields only JSON can fill in, because the form would be too long."""
    is_partial: bool = False
    """Whether there may be fields that depend on others, which only JSON can fill in."""


def make_form(schema: Schema) -> Form:
    """Return the form of an input schema, or of the schema of a question."""
    found = read_parameters(schema)
    fields = _Reader(schema).fields_of(schema, depth=0)
    left_out = len(found.properties.keys() | found.required.keys()) - len(fields)
    return Form(fields=fields, left_out=left_out, is_partial=found.is_partial)


def defaults_of(schema: Schema) -> str:
    """Return the defaults in the schema of a question as JSON: what its form is filled in with at first."""
    fields = {name: _mapping(field) for name, field in _mapping(schema.get("properties")).items()}
    return _json({name: field["default"] for name, field in fields.items() if "default" in field})


def read_answer(text: str) -> Any:
    """Return what a person filled in, which a form sends as JSON.

    Raises:
        ToolError: `invalid_input` if it is no JSON.
    """
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ToolError("invalid_input", f"The answer is no JSON: {error}") from None


class _Reader:
    """Reads one schema into fields, up to a number of fields and of characters."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._fields_left = _FIELDS
        self._characters_left = _TEXT_CHARACTERS

    def fields_of(self, node: Schema, depth: int) -> tuple[Field, ...]:
        """Return the fields of an object, the required ones first."""
        found = read_parameters(self._root, node)
        names = [*found.required, *(name for name in found.properties if name not in found.required)]
        fields: list[Field] = []
        for name in names:
            if self._fields_left <= 0:
                break
            nodes = found.properties.get(name, [{}])
            node = nodes[0] if len(nodes) == 1 else {"anyOf": nodes}
            fields.append(self._field(name, node, depth, is_required=name in found.required))
        return tuple(fields)

    def _field(self, name: str, node: object, depth: int, *, is_required: bool = False) -> Field:
        self._fields_left -= 1
        outer = _mapping(resolve(self._root, node))
        schema, is_nullable = self._without_null(outer)
        beside = _mapping(node)  # what stands beside a reference comes before what it refers to
        default = _json(outer["default"]) if "default" in outer else ""
        return Field(
            name=name,
            type=TypeNames(self._root).of(node),
            title=self._text(_first_text("title", beside, outer), _CHOICE_CHARACTERS),
            description=self._text(_first_text("description", beside, outer, schema), _DESCRIPTION),
            is_required=is_required,
            is_nullable=is_nullable,
            default=default if len(default) <= _DEFAULT else "",
            **self._control(schema, depth),
        )

    def _control(self, schema: Schema, depth: int) -> dict[str, Any]:
        """Return the kind of a field, and what belongs to that kind."""
        choices = self._choices(schema)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if choices is not None:
            return choices
        if kind == "string":
            return _text(schema)
        if kind in ("integer", "number"):
            return _number(schema, is_integer=kind == "integer")
        if kind == "array":
            return self._list(schema, depth)
        if kind == "object" and depth < _DEPTH and (fields := self.fields_of(schema, depth + 1)):
            return {"kind": "object", "fields": fields}
        return {"kind": "switch"} if kind == "boolean" else {"kind": "json", "takes_text": self._takes_text(schema)}

    def _list(self, schema: Schema, depth: int) -> dict[str, Any]:
        items = schema.get("items")
        hint = _range(schema, "minItems", "maxItems", "items")
        if depth >= _DEPTH or not isinstance(items, Mapping) or not items or schema.get("prefixItems"):
            return {"kind": "json", "hint": hint}
        item = self._field("", cast("object", items), depth + 1, is_required=True)
        if item.kind == "choice" and len(item.choices) <= _CHECKBOXES and not item.is_nullable:
            return {"kind": "choices", "choices": item.choices, "hint": hint}
        return {"kind": "list", "item": item, "hint": hint}

    def _choices(self, schema: Schema) -> dict[str, Any] | None:
        """Return a field that chooses among values, or None if the schema lists none."""
        pairs = _values_of(schema, self._root)
        if not pairs:
            return None
        shown = [(_json(value), self._text(label, _CHOICE_CHARACTERS)) for value, label in pairs[:_CHOICES]]
        choices = tuple(Choice(value, label or value) for value, label in shown)
        if len(shown) == len(pairs):
            return {"kind": "choice", "choices": choices}
        are_texts = all(isinstance(value, str) for value, _ in pairs)
        hint = f"one of {len(pairs):,} values; the first {len(shown)} are suggested"
        return {"kind": "text", "choices": choices, "hint": hint} if are_texts else {"kind": "json", "hint": hint}

    def _without_null(self, schema: Schema) -> tuple[Schema, bool]:
        """Return a schema without the null that it allows, and whether it allows one."""
        types = schema.get("type")
        if isinstance(types, list):
            kinds = [kind for kind in cast("list[object]", types) if kind != "null"]
            return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}, "null" in types
        for key in ("anyOf", "oneOf"):
            branches = _list_of(schema.get(key))[:_BRANCHES]
            others = [branch for branch in branches if _mapping(resolve(self._root, branch)).get("type") != "null"]
            if len(others) == 1:
                rest = {name: value for name, value in schema.items() if name != key}
                return {**rest, **_mapping(resolve(self._root, others[0]))}, len(branches) > 1
            if others:
                return {**schema, key: others}, len(others) < len(branches)
        parts = _list_of(schema.get("allOf"))
        if len(parts) == 1 and "type" not in schema:
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            return {**_mapping(resolve(self._root, parts[0])), **rest}, False
        return schema, False

    def _takes_text(self, schema: Schema) -> bool:
        """Return whether a text is among the values that a schema allows."""
        branches = [*_list_of(schema.get("anyOf")), *_list_of(schema.get("oneOf"))][:_BRANCHES]
        if branches:
            return any(_mapping(resolve(self._root, branch)).get("type") == "string" for branch in branches)
        return "string" in _list_of(schema.get("type", ["string"]))

    def _text(self, text: str, most: int) -> str:
        """Return a text, cut where it is too long; the schema below the form has all of it."""
        most = min(most, max(self._characters_left, 0))
        shown = text[:most]
        if 0 < most < len(text):
            shown += "…"
        self._characters_left -= len(shown)
        return shown


def _number(schema: Schema, *, is_integer: bool) -> dict[str, Any]:
    found = {key: _figure(schema.get(key)) for key in _BOUNDS}
    low, high = found["minimum"], found["maximum"]
    hints = [f"{low} to {high}"] if low and high else []
    said = ("minimum", "exclusiveMinimum", "maximum") if hints else ()
    hints += [f"{word} {found[key]}" for key, word in _BOUNDS.items() if found[key] and key not in said]
    step = "1" if is_integer else "any"
    return {"kind": "number", "minimum": low, "maximum": high, "step": step, "hint": ", ".join(hints)}


def _text(schema: Schema) -> dict[str, Any]:
    pattern = _text_of(schema.get("pattern"))
    written = _text_of(schema.get("format"))
    hints = [
        _range(schema, "minLength", "maxLength", "characters"),
        f"matches {pattern}" if 0 < len(pattern) <= _PATTERN else "",
        written if written not in _INPUT_TYPES else "",
    ]
    kind = "password" if schema.get("writeOnly") is True else _INPUT_TYPES.get(written, "")
    return {"kind": "text", "input_type": kind, "hint": ", ".join(hint for hint in hints if hint)}


def _range(schema: Schema, low_key: str, high_key: str, unit: str) -> str:
    low, high = _figure(schema.get(low_key)), _figure(schema.get(high_key))
    low = "" if low == "0" else low
    if low and high:
        return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
    if low:
        return f"at least {low} {unit}"
    return f"at most {high} {unit}" if high else ""


def _values_of(schema: Schema, root: Schema) -> list[tuple[Any, str]]:
    """Return the values that a schema lists, each with its label.

    They come from an enum, a constant, or alternatives that are constants.
    """
    values = _list_of(schema.get("enum"))
    if values and "const" not in schema:
        names = _list_of(schema.get("enumNames"))  # titles as older versions of MCP have them
        return [(value, _text_of(name) or _label(value)) for value, name in zip_longest(values, names[: len(values)])]
    listed = _list_of(schema.get("anyOf")) or _list_of(schema.get("oneOf"))
    branches = [schema] if "const" in schema else [_mapping(resolve(root, branch)) for branch in listed]
    if all("const" in branch for branch in branches):
        return [(branch["const"], _text_of(branch.get("title")) or _label(branch["const"])) for branch in branches]
    return []


def _label(value: object) -> str:
    return value if isinstance(value, str) and value else _json(value)


def _figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _first_text(key: str, *schemas: Schema) -> str:
    return next((text for schema in schemas if (text := _text_of(schema.get(key)))), "")


def _text_of(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _mapping(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
