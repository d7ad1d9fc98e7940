"""Schemas in short: a JSON Schema as people write a type, and the arguments it asks for.

It only reads; what fits a schema is known elsewhere.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

from toolyard.envelope import encode
from toolyard.schema import Schema, resolve

__all__ = ["Argument", "arguments_of", "type_text"]

_DEPTH: Final = 4
_CHOICES: Final = 12
_PROPERTIES: Final = 8
_RULES: Final = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "pattern {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


class Argument(NamedTuple):
    """One argument of a tool, in words; the default is JSON, or nothing if there is none."""

    name: str
    type: str
    required: bool
    default: str | None
    rules: str
    description: str

    def signature(self) -> str:
        """Return the argument as a signature has it."""
        if self.required:
            return f"{self.name}: {self.type}"
        return f"{self.name}?: {self.type}" if self.default is None else f"{self.name}: {self.type} = {self.default}"


def arguments_of(schema: Schema) -> list[Argument]:
    """Return the arguments that an input schema asks for, in its order."""
    required = schema.get("required", ())
    return [_argument(name, inner, schema, required=name in required) for name, inner in schema.get("properties", {}).items()]


def type_text(schema: object, root: Schema, depth: int = _DEPTH) -> str:
    """Return a schema as people write a type, such as `integer | null` or `{name: string}[]`."""
    node = resolve(root, schema)
    if not isinstance(node, dict) or not node:
        return "never" if node is False else "any"
    facts = cast("dict[str, Any]", node)
    if "const" in facts or "enum" in facts:
        return _union(_json(value) for value in (facts["enum"] if "enum" in facts else [facts["const"]]))
    choices = facts.get("anyOf") or facts.get("oneOf")
    if choices:
        return _union(type_text(choice, root, depth - 1) for choice in choices) if depth else "any"
    parts = facts.get("allOf")
    if parts:
        return " & ".join(dict.fromkeys(type_text(part, root, depth - 1) for part in parts)) if depth else "any"
    kinds = facts.get("type", "object" if "properties" in facts else "any")
    return _union(_one(kind, facts, root, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _argument(name: str, schema: object, root: Schema, *, required: bool) -> Argument:
    facts = {**_facts(resolve(root, schema)), **_facts(schema)}  # beside a reference there may be a default
    default = _json(facts["default"]) if "default" in facts else None
    rules = ", ".join(text.format(facts[keyword]) for keyword, text in _RULES.items() if keyword in facts)
    return Argument(name, type_text(schema, root), required, default, rules, str(facts.get("description", "")))


def _facts(schema: object) -> dict[str, Any]:
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def _one(kind: str, facts: dict[str, Any], root: Schema, depth: int) -> str:
    if kind == "array":
        return _array(facts, root, depth)
    if kind == "object":
        return _object(facts, root, depth)
    return f"{kind} ({facts['format']})" if kind == "string" and "format" in facts else kind


def _array(facts: dict[str, Any], root: Schema, depth: int) -> str:
    if not depth:
        return "array"
    if "prefixItems" in facts:
        return f"[{', '.join(type_text(item, root, depth - 1) for item in facts['prefixItems'])}]"
    item = type_text(facts.get("items", {}), root, depth - 1)
    return f"({item})[]" if " " in item and not item.startswith("{") else f"{item}[]"


def _object(facts: dict[str, Any], root: Schema, depth: int) -> str:
    properties = cast("dict[str, Any]", facts.get("properties", {}))
    if not depth or len(properties) > _PROPERTIES:
        return "object"
    if properties:
        required = facts.get("required", ())
        shown = [f"{name}{'' if name in required else '?'}: {type_text(inner, root, depth - 1)}" for name, inner in properties.items()]
        return f"{{{', '.join(shown)}}}"
    more = facts.get("additionalProperties")
    return f"{{…: {type_text(cast('object', more), root, depth - 1)}}}" if isinstance(more, dict) and more else "object"


def _union(choices: Iterable[str]) -> str:
    known = list(dict.fromkeys(choices))
    return " | ".join(known[:_CHOICES]) + (" | …" if len(known) > _CHOICES else "")


def _json(value: object) -> str:
    return encode(value).decode()
