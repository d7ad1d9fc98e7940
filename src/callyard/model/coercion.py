"""Repair of arguments: finds what a model probably meant, by the schema alone.

It proposes values; whether one of them is valid is decided by the tool's own check.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Any, Final, cast

import msgspec

from callyard._internal.converted import as_object
from callyard.model.envelope import encode
from callyard.model.schema import Path, Schema, field_name, resolve
from callyard.model.simple_schema import json_type

__all__ = ["IntegerConverter", "Repair", "find_repairs"]

_MAX_DEPTH: Final = 32
_MAX_REPAIRS: Final = 8
_MAX_VALUES: Final = 10_000
"""Most values that a repair visits: a tenth of a second."""
_TEXT_PER_VALUE: Final = 200
"""Characters of JSON that take as long to read as one value to visit."""
_BYTES_PER_VALUE: Final = 10_000
"""Bytes of JSON that take as long to write as one value to visit."""
_CONTAINERS: Final = (dict, list)
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")
_OMITTED: Final = object()
_PYTHON_WORDS: Final[dict[str, list[object]]] = {"True": [True], "False": [False], "None": [None]}


class IntegerConverter:
    """Converts floats such as `5.0` to integers where one schema allows integers but not other numbers."""

    __slots__ = ("_expansions", "_has_integers", "_root")

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._has_integers: bool | None = None
        self._expansions: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def convert(self, value: Any) -> Any:
        """Return a valid value with its integers converted; the same object if nothing is to convert."""
        if self._has_integers is None:
            self._has_integers = b'"integer"' in encode(self._root)
        return self._convert([self._root], value, 0) if self._has_integers and _has_whole_float(value) else value

    def _convert(self, schemas: Iterable[Any], value: Any, depth: int) -> Any:
        if not isinstance(value, float | list | dict):
            return value
        nodes = self._expanded(schemas) if depth <= _MAX_DEPTH else []
        if not nodes:
            return cast("Any", value)
        if isinstance(value, float):
            return int(value) if value.is_integer() and _allows_only_integers(nodes) else value
        if isinstance(value, list):
            return self._convert_items(nodes, cast("list[Any]", value), depth + 1)
        return self._convert_members(nodes, cast("dict[str, Any]", value), depth + 1)

    def _convert_items(self, nodes: list[dict[str, Any]], items: list[Any], depth: int) -> list[Any]:
        fixed = max(len(node.get("prefixItems", ())) for node in nodes)
        head = [
            self._convert([_item_schema(node, index) for node in nodes], item, depth)
            for index, item in enumerate(items[:fixed])
        ]
        return [*head, *self._convert_alike([node.get("items") for node in nodes], items[fixed:], depth)]

    def _convert_members(self, nodes: list[dict[str, Any]], pairs: dict[str, Any], depth: int) -> dict[str, Any]:
        named = {key for node in nodes for key in node.get("properties", ())} & pairs.keys()
        others = pairs if not named else {key: value for key, value in pairs.items() if key not in named}
        rest = self._convert_alike([node.get("additionalProperties") for node in nodes], list(others.values()), depth)
        converted = {
            key: self._convert([_member_schema(node, key) for node in nodes], pairs[key], depth) for key in named
        }
        return {**pairs, **dict(zip(others, rest, strict=True)), **converted}

    def _convert_alike(self, schemas: list[Any], values: list[Any], depth: int) -> list[Any]:
        """Return values that have the same schemas converted; there may be millions."""
        nodes = self._expanded(schemas)
        only_integers = _allows_only_integers(nodes)
        converted = list(values)
        for index, value in enumerate(values):
            if type(value) in _CONTAINERS:
                converted[index] = self._convert(schemas, value, depth)
            elif only_integers and type(value) is float and value.is_integer():
                converted[index] = int(value)
        return converted

    def _expanded(self, schemas: Iterable[Any]) -> list[dict[str, Any]]:
        """Return the schemas with their branches; remembered, because the items of a list have the same ones."""
        key = tuple(map(id, schemas))  # of parts of the root, which lives as long as this converter
        if key not in self._expansions:
            self._expansions[key] = list(self._expand(schemas, set()))
        return self._expansions[key]

    def _expand(self, schemas: Iterable[Any], seen: set[int]) -> Iterator[dict[str, Any]]:
        """Yield every schema, its references resolved, followed by its branches."""
        for schema in schemas:
            here = as_object(resolve(self._root, schema))
            if here and id(here) not in seen:
                seen.add(id(here))
                yield here
                for keyword in _BRANCHES:
                    yield from self._expand(here.get(keyword, ()), seen)


def _has_whole_float(value: Any) -> bool:
    """Return whether a float without a fraction is anywhere in the value; nearly every call ends here."""
    pending: list[Any] = [[value]]
    while pending:
        node = pending.pop()
        for item in cast("list[object]", node.values() if isinstance(node, dict) else node):
            if isinstance(item, float):
                if item.is_integer():
                    return True
            elif isinstance(item, _CONTAINERS):
                pending.append(item)
    return False


def _allows_only_integers(nodes: list[dict[str, Any]]) -> bool:
    types = {name for node in nodes for name in _declared_types(node)}
    return "integer" in types and "number" not in types


def _item_schema(node: dict[str, Any], index: int) -> Any:
    prefix: list[Any] = node.get("prefixItems", [])
    return prefix[index] if index < len(prefix) else node.get("items")


def _member_schema(node: dict[str, Any], key: str) -> Any:
    return node.get("properties", {}).get(key, node.get("additionalProperties"))


class Repair(msgspec.Struct, frozen=True):
    """One possible meaning of the arguments, and the fields that differ from what was sent."""

    value: Any
    changed: tuple[str, ...]


def find_repairs(schema: Schema, value: object) -> list[Repair]:
    """Return the possible repairs of an invalid value; none if there are too many."""
    try:
        found = _RepairSearch(schema).find(schema, value, (), 0)
    except _TooManyValuesError:
        return []
    return [repair for repair in found if repair.changed] if len(found) <= _MAX_REPAIRS else []


class _TooManyValuesError(Exception):
    """The arguments have more values than a repair visits."""


class _RepairSearch:
    """Walks a value and its schema together, within bounds."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._values_left = _MAX_VALUES

    def find(self, schema: Any, value: object, path: Path, depth: int) -> list[Repair]:
        """Return the repairs of one value under one schema; the first is the value itself if its type is right."""
        self._spend(1)
        node = resolve(self._root, schema)
        if not isinstance(node, dict) or depth > _MAX_DEPTH:
            return [Repair(value, ())]
        here = cast("dict[str, Any]", node)
        branches = [*here.get("anyOf", ()), *here.get("oneOf", ())]
        if branches:
            return self._distinct(repair for branch in branches for repair in self.find(branch, value, path, depth + 1))
        if _accepts(here, value):
            return self._find_inside(here, value, path, depth)
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):  # others are read or refused at once
            self._spend(len(value) // _TEXT_PER_VALUE)
        return self._distinct(
            Repair(inner.value, (field_name(path), *inner.changed))
            for candidate in _candidates(here, value)
            for inner in self._find_inside(here, candidate, path, depth)
        )

    def _spend(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise _TooManyValuesError

    def _distinct(self, found: Iterable[Repair]) -> list[Repair]:
        """Return the repairs that differ as JSON; one more than allowed if there are too many."""
        distinct: dict[bytes, Repair] = {}
        for repair in found:
            try:
                text = encode(repair.value)
            except TypeError:  # a lone surrogate, which is never what was meant
                continue
            self._spend(len(text) // _BYTES_PER_VALUE)
            distinct.setdefault(text, repair)
            if len(distinct) > _MAX_REPAIRS:
                break
        return list(distinct.values())

    def _find_inside(self, here: dict[str, Any], value: object, path: Path, depth: int) -> list[Repair]:
        """Return the repairs of the members of an object or the items of a list."""
        if isinstance(value, dict):
            pairs = cast("dict[str, object]", value)
            parts = [self._find_member(here, key, item, path=(*path, key), depth=depth) for key, item in pairs.items()]
            return [
                Repair({key: value for key, value in zip(pairs, values, strict=True) if value is not _OMITTED}, changed)
                for values, changed in _combine(parts)
            ]
        if isinstance(value, list):
            items = cast("list[object]", value)
            parts = [
                self.find(_item_schema(here, index), item, (*path, index), depth + 1)
                for index, item in enumerate(items)
            ]
            return [Repair(list(values), changed) for values, changed in _combine(parts)]
        return [Repair(value, ())]

    def _find_member(self, here: dict[str, Any], key: str, item: object, *, path: Path, depth: int) -> list[Repair]:
        """Return the repairs of one member of an object; a forbidden null is omitted if the member is optional."""
        found = self.find(_member_schema(here, key), item, path, depth + 1)
        if item is None and not found and key in here.get("properties", {}) and key not in here.get("required", ()):
            return [Repair(_OMITTED, (field_name(path),))]
        return found


def _combine(parts: list[list[Repair]]) -> list[tuple[tuple[Any, ...], tuple[str, ...]]]:
    if not all(parts):
        return []
    return [
        (tuple(part.value for part in choice), tuple(name for part in choice for name in part.changed))
        for choice in islice(product(*parts), _MAX_REPAIRS + 1)
    ]


def _declared_types(schema: dict[str, Any]) -> set[str]:
    declared: str | list[str] = schema.get("type", [])
    return {declared} if isinstance(declared, str) else set(declared)


def _types(schema: dict[str, Any]) -> set[str]:
    constants = [schema["const"]] if "const" in schema else []
    return _declared_types(schema) or {json_type(option) for option in schema.get("enum", constants)}


def _has_type(types: set[str], value: object) -> bool:
    name = json_type(value)
    return name in types or (name == "integer" and "number" in types)


def _accepts(schema: dict[str, Any], value: object) -> bool:
    types = _types(schema)
    return not types or (_has_type(types, value) and ("enum" not in schema or value in schema["enum"]))


def _candidates(schema: dict[str, Any], value: object) -> list[object]:
    """Return the values of the right type that a value of a wrong type may stand for."""
    types = _types(schema)
    if isinstance(value, str):
        return _candidates_from_text(types, value)
    if isinstance(value, float) and value.is_integer() and "integer" in types and abs(value) < 2**53:
        return [int(value)]
    if isinstance(value, int) and not isinstance(value, bool) and "string" in types:
        return [str(value)]
    return []


def _candidates_from_text(types: set[str], text: str) -> list[object]:
    try:
        value: object = json.loads(text.strip(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _PYTHON_WORDS.get(text.strip(), []) if types & {"boolean", "null"} else []
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)
    return [value] if _has_type(types, value) else []


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
