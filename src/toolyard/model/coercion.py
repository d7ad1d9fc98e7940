"""The one repair of arguments: what models get wrong in known ways, put right by the schema alone.

It proposes readings; whether one fits is for the tool's own check to say.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice, product, repeat
from typing import Any, Final, NamedTuple, cast

from toolyard.model.envelope import encode
from toolyard.model.schema import Path, Schema, field_name, resolve

__all__ = ["Integers", "Reading", "readings"]


_DEPTH: Final = 32
_NESTING: Final = (dict, list)
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")


class Integers:
    """Makes integers of the whole numbers in values that fit one schema, wherever it says integer and nowhere number."""

    __slots__ = ("_root", "_says")

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._says: bool | None = None

    def put(self, value: Any) -> Any:
        """Return a value with its integers as such; it is the value itself where none was written with a point."""
        if self._says is None:
            self._says = b'"integer"' in encode(self._root)
        return self._put([self._root], value, 0) if self._says and _holds_pointed(value) else value

    def _put(self, said: Iterable[Any], value: Any, depth: int) -> Any:
        """Return a value as the parts of the schema that speak of it have it."""
        nodes = list(self._unfold(said, set())) if depth <= _DEPTH else []
        if not nodes:
            return value
        if isinstance(value, float):
            return int(value) if value.is_integer() and _is_integer(nodes) else value
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return [self._put([_item(node, index) for node in nodes], item, depth + 1) for index, item in enumerate(items)]
        if isinstance(value, dict):
            pairs = cast("dict[str, Any]", value)
            return {key: self._put([_member(node, key) for node in nodes], item, depth + 1) for key, item in pairs.items()}
        return value

    def _unfold(self, said: Iterable[Any], seen: set[int]) -> Iterator[dict[str, Any]]:
        """Yield every part that speaks, with what it refers to and branches into."""
        for part in said:
            node = resolve(self._root, part)
            if isinstance(node, dict) and id(cast("object", node)) not in seen:
                seen.add(id(cast("object", node)))
                here = cast("dict[str, Any]", node)
                yield here
                for word in _BRANCHES:
                    yield from self._unfold(here.get(word, ()), seen)


def _holds_pointed(value: Any) -> bool:
    """Return whether there is a whole number with a point anywhere, however deep; hardly ever there is."""
    left: list[Any] = [[value]]
    while left:
        node = left.pop()
        for item in cast("list[object]", node.values() if isinstance(node, dict) else node):
            if isinstance(item, float):
                if item.is_integer():
                    return True
            elif isinstance(item, _NESTING):
                left.append(item)
    return False


def _is_integer(nodes: list[dict[str, Any]]) -> bool:
    types: set[str] = set()
    for node in nodes:
        named: str | list[str] = node.get("type", [])
        types |= {named} if isinstance(named, str) else set(named)
    return "integer" in types and "number" not in types


def _item(node: dict[str, Any], index: int) -> Any:
    first: list[Any] = node.get("prefixItems", [])
    return first[index] if index < len(first) else node.get("items")


def _member(node: dict[str, Any], key: str) -> Any:
    return node.get("properties", {}).get(key, node.get("additionalProperties"))


_READINGS: Final = 8
_VALUES: Final = 20_000
_TYPE_NAMES: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_LEFT_OUT: Final = object()
_PYTHON_WORDS: Final[dict[str, list[object]]] = {"True": [True], "False": [False], "None": [None]}


class Reading(NamedTuple):
    """One way to understand the arguments, and the fields that it changed."""

    value: Any
    changed: tuple[str, ...]


def readings(schema: Schema, value: object) -> list[Reading]:
    """Return the ways to understand a value that a schema does not fit as it is; none if there are too many."""
    try:
        found = _Reader(schema).read(schema, value, (), 0)
    except _TooMuchError:
        return []
    return [reading for reading in found if reading.changed] if len(found) <= _READINGS else []


class _TooMuchError(Exception):
    """There are more values than a repair looks at."""


class _Reader:
    """Walks a value and its schema together, within bounds."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _VALUES

    def read(self, schema: Any, value: object, path: Path, depth: int) -> list[Reading]:
        """Return the readings of one value under one schema; the first is the value itself where its type fits."""
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError
        node = resolve(self._root, schema)
        if not isinstance(node, dict) or depth > _DEPTH:
            return [Reading(value, ())]
        here = cast("dict[str, Any]", node)
        branches = [*here.get("anyOf", ()), *here.get("oneOf", ())]
        if branches:
            return _distinct(reading for branch in branches for reading in self.read(branch, value, path, depth + 1))
        if _accepts(here, value):
            return self._inside(here, value, path, depth)
        return _distinct(
            Reading(inner.value, _named(path, inner.changed))
            for candidate in _candidates(here, value)
            for inner in self._inside(here, candidate, path, depth)
        )

    def _inside(self, here: dict[str, Any], value: object, path: Path, depth: int) -> list[Reading]:
        """Return the readings of what is inside an object or a list of the right type."""
        if isinstance(value, dict):
            pairs = cast("dict[str, object]", value)
            parts = [self._member(here, key, item, (*path, key), depth) for key, item in pairs.items()]
            return [Reading(_present(pairs, values), changed) for values, changed in _combine(parts)]
        if isinstance(value, list):
            items = cast("list[object]", value)
            schemas = chain(here.get("prefixItems", ()), repeat(here.get("items")))
            parts = [self.read(schema, item, (*path, index), depth + 1) for index, (item, schema) in enumerate(zip(items, schemas))]  # noqa: B905 - the schemas never end
            return [Reading(list(values), changed) for values, changed in _combine(parts)]
        return [Reading(value, ())]

    def _member(self, here: dict[str, Any], key: str, item: object, path: Path, depth: int) -> list[Reading]:
        """Return the readings of what an object has under a key; null for what may be left out, and may not be null, is left out."""
        properties: dict[str, Any] = here.get("properties", {})
        found = self.read(properties.get(key, here.get("additionalProperties")), item, path, depth + 1)
        if item is None and not found and key in properties and key not in here.get("required", ()):
            return [Reading(_LEFT_OUT, (field_name(path),))]
        return found


def _present(pairs: dict[str, object], values: tuple[Any, ...]) -> dict[str, Any]:
    return {key: value for key, value in zip(pairs, values, strict=True) if value is not _LEFT_OUT}


def _combine(parts: list[list[Reading]]) -> list[tuple[tuple[Any, ...], tuple[str, ...]]]:
    if not all(parts):
        return []
    chosen = islice(product(*parts), _READINGS + 1)
    return [(tuple(part.value for part in choice), tuple(name for part in choice for name in part.changed)) for choice in chosen]


def _named(path: Path, changed: tuple[str, ...]) -> tuple[str, ...]:
    return (field_name(path), *changed)


def _distinct(found: Iterable[Reading]) -> list[Reading]:
    """Return the readings that differ as JSON, and one more than allowed if there are more."""
    kept: dict[bytes, Reading] = {}
    for reading in found:
        try:
            kept.setdefault(encode(reading.value), reading)
        except TypeError:  # half a character, which nobody can have meant
            continue
        if len(kept) > _READINGS:
            break
    return list(kept.values())


def _types(schema: dict[str, Any]) -> set[str]:
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return set(cast("list[str]", named))
    options = cast("list[object]", schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else [])
    return {_type_of(option) for option in options}


def _type_of(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "null")


def _accepts(schema: dict[str, Any], value: object) -> bool:
    types = _types(schema)
    if not types:
        return True
    name = _type_of(value)
    fits = name in types or (name == "integer" and "number" in types)
    return fits and ("enum" not in schema or value in schema["enum"])


def _candidates(schema: dict[str, Any], value: object) -> list[object]:
    """Return what a value of a wrong type may have been meant as."""
    types = _types(schema)
    if isinstance(value, str):
        return _from_text(types, value)
    if isinstance(value, float) and value.is_integer() and "integer" in types and abs(value) < 2**53:
        return [int(value)]
    if isinstance(value, int) and not isinstance(value, bool) and "string" in types:
        return [str(value)]
    return []


def _from_text(types: set[str], text: str) -> list[object]:
    import json  # noqa: PLC0415 - only for what somebody got wrong

    try:
        meant: object = json.loads(text.strip(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _PYTHON_WORDS.get(text.strip(), []) if types & {"boolean", "null"} else []
    if isinstance(meant, float) and meant.is_integer() and "integer" in types and "number" not in types:
        meant = int(meant)
    name = _type_of(meant)
    return [meant] if name in types or (name == "integer" and "number" in types) else []


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
