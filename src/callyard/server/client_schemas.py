"""Schemas that fit the client: what clients and their models refuse is rewritten in what they list, and nowhere else.

One schema that a model's API refuses ends the whole request, with the tools of all servers. So each rule here is one
that somebody met, with its source. Calls are checked against the original, which `describe_tool` shows.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.model.schema import Schema, follow_reference, resolve

__all__ = ["PROVIDERS_OF_CLIENTS", "RULES", "Provider", "Rule", "fitted", "providers_for"]

Provider = Literal["anthropic", "openai", "gemini", "copilot"]
Step = Callable[[dict[str, Any]], dict[str, Any]]

PROVIDERS_OF_CLIENTS: Final[tuple[tuple[str, tuple[Provider, ...]], ...]] = (
    ("claude", ("anthropic",)),
    ("codex", ("openai",)),
    ("gemini-cli", ("gemini",)),
    ("github-copilot", ("copilot", "openai", "anthropic", "gemini")),
    ("visual studio code", ("copilot", "openai", "anthropic", "gemini")),
    ("visual-studio-code", ("copilot", "openai", "anthropic", "gemini")),
    ("cursor", ("openai", "anthropic", "gemini")),
)
"""What the name of a client begins with, and whose rules it is under: some let people choose among models."""
_COMBINATORS: Final = ("anyOf", "oneOf", "allOf")
_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NULL: Final = {"type": "null"}
_GEMINI_KEYS: Final = frozenset(
    {
        *("type", "format", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf"),
        *("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "default"),
        *("minimum", "maximum"),
    }
)
_GEMINI_FORMATS: Final = {
    "string": ("enum", "date-time"),
    "number": ("float", "double"),
    "integer": ("int32", "int64"),
}
_ONLY_OF: Final = {
    "object": ("properties", "required", "minProperties", "maxProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern"),
}
"""Fields that are refused beside another type."""
_KINDS: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number"}
_DEPTH: Final = 64
_NODES: Final = 2000


class Rule(msgspec.Struct, frozen=True):
    """One thing that a provider refuses, where that is known from, and what is shown instead."""

    name: str
    provider: Provider
    source: str
    date: str
    fit: Step


def fitted(schema: Schema, providers: tuple[Provider, ...]) -> Schema:
    """Return an input schema as clients under the rules of these providers accept it; the same one if it is fine."""
    if not isinstance(schema, dict):
        return schema
    changed = schema
    for fit in dict.fromkeys(rule.fit for rule in RULES if rule.provider in providers):
        changed = fit(changed)
    return changed if changed != schema else schema


def providers_for(client: str) -> tuple[Provider, ...]:
    """Return whose rules a client is under, by the name that it states; none for an unknown client."""
    name = client.lower()
    return next((providers for start, providers in PROVIDERS_OF_CLIENTS if name.startswith(start)), ())


def _flat_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Fold combinators at the root into one object: all of their properties, required where every branch does."""
    if schema.keys().isdisjoint(_COMBINATORS):
        return schema
    root = {key: value for key, value in schema.items() if key not in _COMBINATORS}
    properties, required = dict(as_object(root.get("properties"))), _names(root.get("required"))
    for word in _COMBINATORS:
        branches = [_flat_root(as_object(resolve(schema, one))) for one in _objects(schema.get(word))]
        for branch in branches:
            for name, part in as_object(branch.get("properties")).items():
                properties[name] = _either(properties[name], part) if name in properties else part
        needs = [_names(branch.get("required")) for branch in branches]
        if needs:
            every = {name for names in needs for name in names}
            required |= every if word == "allOf" else {name for name in every if all(name in names for names in needs)}
    root |= {"type": "object", "properties": properties}
    listed = sorted(name for name in required if name in properties)
    return {**root, "required": listed} if listed else {key: root[key] for key in root if key != "required"}


def _names(value: object) -> set[str]:
    return {name for name in as_list(value) if isinstance(name, str)}


def _objects(value: object) -> list[dict[str, Any]]:
    return [as_object(part) for part in as_list(value) if as_object(part)]


def _either(one: Any, other: Any) -> Any:
    """Return a schema of what fits one of two."""
    if one == other or not as_object(one) or not as_object(other):
        return one
    known = _objects(as_object(one).get("anyOf")) if as_object(one).keys() == {"anyOf"} else [as_object(one)]
    return {"anyOf": known if other in known else [*known, other]}


def _object_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Give the root the type 'object' and properties, and leave out 'enum' and 'not' there."""
    if schema.get("type") == "object" and "properties" in schema and schema.keys().isdisjoint(("enum", "not")):
        return schema
    root = {key: value for key, value in schema.items() if key not in {"enum", "not"}}
    return {**root, "type": "object", "properties": as_object(root.get("properties"))}


def _known_keys(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out properties whose names are refused, and name them in the description."""
    properties = as_object(schema.get("properties"))
    hidden = [key for key in properties if not _KEY.fullmatch(key)]
    if not hidden:
        return schema
    shown = {key: value for key, value in properties.items() if key not in hidden}
    required = [key for key in as_list(schema.get("required")) if key not in hidden]
    note = f"Also takes {', '.join(map(repr, sorted(hidden)))}, which 'describe_tool' shows."
    text = f"{schema.get('description', '')} {note}".strip()
    changed = {key: value for key, value in schema.items() if key != "required"}
    return {**changed, "properties": shown, "description": text} | ({"required": required} if required else {})


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    """Give every array without 'items' some that allow everything."""

    def give(node: dict[str, Any]) -> dict[str, Any]:
        kinds = node.get("type")
        is_array = kinds == "array" or "array" in as_list(kinds)
        return {**node, "items": {}} if is_array and not isinstance(node.get("items"), dict) else node

    return _each(schema, give)


def _each(node: dict[str, Any], change: Step, depth: int = 0) -> dict[str, Any]:
    """Return a schema with a change made to it and to the subschemas in it, the outermost first."""
    if depth > _DEPTH:
        return node
    changed = dict(change(node))

    def inner(part: object) -> Any:
        return part if isinstance(part, bool) else _each(as_object(part), change, depth + 1)

    for key, value in changed.items():
        if key in {"properties", "$defs", "definitions", "patternProperties"}:
            changed[key] = {name: inner(part) for name, part in as_object(value).items()}
        elif key in {"items", "additionalProperties", "not", "if", "then", "else", "contains"}:
            changed[key] = inner(value)
        elif key in {*_COMBINATORS, "prefixItems"}:
            changed[key] = [inner(part) for part in as_list(value)]
    return changed


def _gemini(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the subset that Gemini's API has: no references, one type, few keywords."""
    flat = _flat_root(schema)
    return _GeminiSchema(flat).shown(flat, kind="object")


class _GeminiSchema:
    """Rewrites the nodes of one schema, up to a number of them; a recursive reference becomes its type."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _NODES
        self._depth = 0

    def shown(self, node: Mapping[str, Any], open_: frozenset[str] = frozenset(), *, kind: str = "") -> dict[str, Any]:
        """Return one node; one that says nothing about its type is a text, because a type must be there."""
        self._left -= 1
        if self._left < 0 or self._depth >= _DEPTH:
            return {"type": kind or "string"}
        self._depth += 1
        try:
            return self._shown(node, open_, kind)
        finally:
            self._depth -= 1

    def _shown(self, node: Mapping[str, Any], open_: frozenset[str], kind: str) -> dict[str, Any]:
        merged, open_ = self._merged(node, open_)
        branches = [branch for branch in _objects(merged.get("anyOf")) if branch != _NULL]
        if "type" not in merged and len(branches) == 1 and not kind:
            return self.shown({**branches[0], **{key: merged[key] for key in merged if key != "anyOf"}}, open_)
        if "type" not in merged and branches and not kind:
            return _texts(merged) | {"anyOf": [self.shown(branch, open_) for branch in branches]}
        kind = kind or _one_type(merged)
        kept = {key: value for key, value in merged.items() if key in _GEMINI_KEYS and key != "anyOf"} | {"type": kind}
        if kept.get("format") not in _GEMINI_FORMATS.get(kind, ()):
            kept.pop("format", None)
        if kind != "string" or not all(isinstance(value, str) and value for value in as_list(kept.get("enum"))):
            kept.pop("enum", None)
        foreign = {name for other, names in _ONLY_OF.items() if other != kind for name in names}
        kept = {name: value for name, value in kept.items() if name not in foreign}
        if kind == "array":
            kept["items"] = self.shown(as_object(merged.get("items")), open_)
        return self._object(kept, open_) if kind == "object" else kept

    def _object(self, node: dict[str, Any], open_: frozenset[str]) -> dict[str, Any]:
        parts = as_object(node.get("properties"))
        properties = {name: self.shown(as_object(part), open_) for name, part in parts.items()}
        required = [name for name in as_list(node.get("required")) if name in properties]
        rest = {key: value for key, value in node.items() if key != "required"}
        return {**rest, "properties": properties} | ({"required": required} if required else {})

    def _merged(self, node: Mapping[str, Any], open_: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
        """Return a node without reference, with 'allOf' merged, 'oneOf' as 'anyOf', 'const' as 'enum', and one type."""
        node, open_ = self._followed(node, open_)
        merged = {key: value for key, value in node.items() if key not in {"allOf", "oneOf", "const"}}
        for part in _objects(node.get("allOf")):
            other, open_ = self._merged(part, open_)
            _add(merged, other)
        if "oneOf" in node and "anyOf" not in merged:
            merged["anyOf"] = node["oneOf"]
        if "const" in node:
            merged.setdefault("enum", [node["const"]])
        kinds = [kind for kind in as_list(merged.get("type")) if kind != "null"]
        if len(kinds) > 1:
            rest = {key: value for key, value in merged.items() if key not in {"type", "anyOf", "description", "title"}}
            return _texts(merged) | {"anyOf": [{**rest, "type": kind} for kind in kinds]}, open_
        return (merged | {"type": kinds[0]} if kinds else merged), open_

    def _followed(self, node: Mapping[str, Any], open_: frozenset[str]) -> tuple[Mapping[str, Any], frozenset[str]]:
        beside = {key: value for key, value in node.items() if key != "$ref"}
        while isinstance(reference := node.get("$ref"), str):
            node = as_object(follow_reference(self._root, reference))
            if reference in open_:
                kind = node.get("type")
                return ({"type": kind} if isinstance(kind, str) else {}) | _texts(beside), open_
            open_ |= {reference}
        return {**node, **beside}, open_


def _add(merged: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Add what another node says to a node, which keeps what it says itself."""
    for key, value in other.items():
        if key == "properties":
            merged[key] = {**as_object(value), **as_object(merged.get(key))}
        elif key == "required":
            merged[key] = [*dict.fromkeys([*as_list(merged.get(key)), *as_list(value)])]
        else:
            merged.setdefault(key, value)


def _one_type(node: Mapping[str, Any]) -> str:
    kind = node.get("type")
    if isinstance(kind, str) and kind != "null":
        return kind
    if "properties" in node:
        return "object"
    if "items" in node:
        return "array"
    values = as_list(node.get("enum")) or [node.get("default")]
    first: object = values[0]
    return next((name for kind, name in _KINDS.items() if isinstance(first, kind)), "string")


def _texts(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: node[key] for key in ("title", "description") if key in node}


_ROOT: Final = "no 'anyOf', 'oneOf' or 'allOf' at the root"
_ITEMS_MISSING: Final = "arrays have 'items'"
_ISSUES: Final = "https://github.com/"

RULES: Final[tuple[Rule, ...]] = (
    Rule(_ROOT, "anthropic", f"{_ISSUES}anomalyco/opencode/issues/46628", "2026-09-01", _flat_root),
    Rule(
        "names of properties: A-Z a-z 0-9 _ . -, at most 64 characters",
        "anthropic",
        f"{_ISSUES}anthropics/claude-code/issues/79418",
        "2026-08-17",
        _known_keys,
    ),
    Rule(_ROOT, "openai", f"{_ISSUES}HKUDS/nanobot/pull/2287", "2026-03-20", _flat_root),
    Rule(
        "an object with 'properties' at the root, without 'enum' and 'not'",
        "openai",
        f"{_ISSUES}wakehacker/wake-ai/pull/16",
        "2026-03-19",
        _object_root,
    ),
    Rule(_ITEMS_MISSING, "openai", f"{_ISSUES}ruvnet/ruflo/issues/1294", "2026-03-05", _items),
    Rule(
        "an object with 'properties' at the root",
        "copilot",
        f"{_ISSUES}github/copilot-cli/issues/1825",
        "2026-03-04",
        _object_root,
    ),
    Rule(_ITEMS_MISSING, "copilot", f"{_ISSUES}microsoft/vscode/issues/246119", "2025-04-08", _items),
    Rule("one type, no union", "gemini", f"{_ISSUES}github/copilot-cli/issues/4623", "2026-09-08", _gemini),
    Rule("no '$ref'", "gemini", f"{_ISSUES}google-gemini/gemini-cli/issues/13326", "2025-11-18", _gemini),
    Rule("few formats", "gemini", f"{_ISSUES}google-gemini/gemini-cli/issues/2237", "2025-06-27", _gemini),
    Rule("every node has a type", "gemini", f"{_ISSUES}directus/mcp/issues/8", "2025-06-27", _gemini),
    Rule("'enum' only of texts", "gemini", f"{_ISSUES}github/copilot-cli/issues/4835", "2026-09-14", _gemini),
    Rule(
        "no 'const', and only the fields of its 'Schema'",
        "gemini",
        f"{_ISSUES}taylorwilsdon/google_workspace_mcp/issues/1099",
        "2026-09-06",
        _gemini,
    ),
)
"""All rules, in the order in which they are applied."""
