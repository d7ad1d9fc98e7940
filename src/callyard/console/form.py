"""Forms from JSON Schema: the fields that a person fills in to call a tool or to answer a question.

Schemas come from anywhere, so a form is bounded: a field that cannot be shown becomes JSON, and fields beyond a number are left out.
It is data only; templates show it, and 'run.js' turns the filled form into JSON.
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
_INPUT_TYPES: Final = {"date": "date", "email": "email", "uri": "url", "password": "password", "time": "time"}


class Choice(NamedTuple):
    """One value of a choice."""

    value: str
    """As JSON."""
    label: str


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a form, with fields of its own if it is an object or a list."""

    name: str
    kind: Kind
    type: str
    """Its type as signatures write it."""
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
    return _Reader(schema).form()


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
        raise ToolError("invalid_input", f"The answer is no JSON: {error}", may_have_run=False) from None


class _Reader:
    """Reads one schema into fields, up to a number of fields and of characters."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._fields_left = _FIELDS
        self._characters_left = _TEXT_CHARACTERS

    def form(self) -> Form:
        found = read_parameters(self._root)
        fields = self._fields_of(self._root, depth=0)
        return Form(fields=fields, left_out=len(found.properties.keys() | found.required.keys()) - len(fields), is_partial=found.is_partial)

    def _fields_of(self, node: Schema, depth: int) -> tuple[Field, ...]:
        """Return the fields of an object, those that are required first."""
        found = read_parameters(self._root, node)
        names = [*found.required, *(name for name in found.properties if name not in found.required)]
        fields: list[Field] = []
        for name in names:
            if self._fields_left <= 0:
                break
            nodes = found.properties.get(name, [{}])
            fields.append(self._field(name, nodes[0] if len(nodes) == 1 else {"anyOf": nodes}, depth, is_required=name in found.required))
        return tuple(fields)

    def _field(self, name: str, node: object, depth: int, *, is_required: bool = False) -> Field:
        self._fields_left -= 1
        outer = _mapping(resolve(self._root, node))
        schema, is_nullable = self._without_null(outer)
        known: dict[str, Any] = {
            "name": name,
            "type": TypeNames(self._root).of(node),
            "title": self._text(_own_text(outer, node, "title"), _CHOICE_CHARACTERS),
            "description": self._text(_own_text(outer, node, "description") or _text_of(schema.get("description")), _DESCRIPTION),
            "is_required": is_required,
            "is_nullable": is_nullable,
            "default": self._default(outer),
        }
        return Field(**{**known, **self._control(schema, depth)})

    def _control(self, schema: Schema, depth: int) -> dict[str, Any]:
        """Return the kind of a field, and what belongs to that kind."""
        choices = self._choices(schema)
        if choices is not None:
            return choices
        kind = schema.get("type", "object" if "properties" in schema else None)
        if kind in ("boolean", "integer", "number", "string"):
            return _scalar(schema, cast("str", kind))
        if kind == "array":
            return self._list(schema, depth)
        if kind == "object" and depth < _DEPTH and (fields := self._fields_of(schema, depth + 1)):
            return {"kind": "object", "fields": fields}
        return {"kind": "json", "takes_text": self._takes_text(schema)}

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
        shown = pairs[:_CHOICES]
        choices = tuple(Choice(_json(value), self._text(label, _CHOICE_CHARACTERS) or _json(value)) for value, label in shown)
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
            return {**_mapping(resolve(self._root, parts[0])), **{key: schema[key] for key in schema if key != "allOf"}}, False
        return schema, False

    def _takes_text(self, schema: Schema) -> bool:
        """Return whether a text is among the values that a schema allows."""
        kinds = schema.get("type")
        branches = [*_list_of(schema.get("anyOf")), *_list_of(schema.get("oneOf"))][:_BRANCHES]
        if branches:
            return any(_mapping(resolve(self._root, branch)).get("type") == "string" for branch in branches)
        return kinds is None or "string" in _list_of(kinds)

    def _default(self, schema: Schema) -> str:
        text = _json(schema["default"]) if "default" in schema else ""
        return text if len(text) <= _DEFAULT else ""

    def _text(self, text: str, most: int) -> str:
        """Return a text, cut where it is too long; the schema below the form has all of it."""
        most = min(most, max(self._characters_left, 0))
        shown = text if len(text) <= most else f"{text[:most]}…" if most else ""
        self._characters_left -= len(shown)
        return shown


def _scalar(schema: Schema, kind: str) -> dict[str, Any]:
    if kind == "boolean":
        return {"kind": "switch"}
    return _text(schema) if kind == "string" else _number(schema, is_integer=kind == "integer")


def _number(schema: Schema, *, is_integer: bool) -> dict[str, Any]:
    low, high = _figure(schema.get("minimum")), _figure(schema.get("maximum"))
    above, below = _figure(schema.get("exclusiveMinimum")), _figure(schema.get("exclusiveMaximum"))
    words = [f"at least {low}" if low else "", f"more than {above}" if above else "", f"at most {high}" if high else ""]
    words = [f"{low} to {high}"] if low and high else words
    every = _figure(schema.get("multipleOf"))
    hint = ", ".join(word for word in [*words, f"less than {below}" if below else "", f"a multiple of {every}" if every else ""] if word)
    return {"kind": "number", "minimum": low, "maximum": high, "step": "1" if is_integer else "any", "hint": hint}


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
    return f"at least {low} {unit}" if low else f"at most {high} {unit}" if high else ""


def _values_of(schema: Schema, root: Schema) -> list[tuple[Any, str]]:
    """Return the values that a schema lists, each with its label: of an enum, a constant, or alternatives that are constants."""
    if "const" in schema:
        return [(schema["const"], _text_of(schema.get("title")) or _label(schema["const"]))]
    values = _list_of(schema.get("enum"))
    if values:
        names = _list_of(schema.get("enumNames"))  # titles as older versions of MCP have them
        return [(value, _text_of(name) or _label(value)) for value, name in zip_longest(values, names[: len(values)])]
    branches = [_mapping(resolve(root, branch)) for branch in _list_of(schema.get("anyOf")) or _list_of(schema.get("oneOf"))]
    if branches and all("const" in branch for branch in branches):
        return [(branch["const"], _text_of(branch.get("title")) or _label(branch["const"])) for branch in branches]
    return []


def _label(value: object) -> str:
    return value if isinstance(value, str) and value else _json(value)


def _figure(value: object) -> str:
    """Return a number as text; empty for anything else."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def _own_text(schema: Schema, node: object, key: str) -> str:
    """Return a text of a field: what stands beside a reference comes before what it refers to."""
    return _text_of(_mapping(node).get(key)) or _text_of(schema.get(key))


def _text_of(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _mapping(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
