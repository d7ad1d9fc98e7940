"""Arguments as a person approves them: JSON under the schema's names, with defaults filled in.

Rules judge this JSON, people see it, approvals are bound to it, and the handler's arguments are parsed from it. It is
made only for calls that are judged.
"""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, cast
from urllib.parse import unquote

import msgspec

from callyard.model.envelope import encode, encode_sorted
from callyard.model.errors import ToolError
from callyard.model.schema import Schema, compile_at, escaped

__all__ = [
    "Bind",
    "BoundArguments",
    "as_json",
    "bind_by_schema",
    "bound_to",
    "canonical",
    "not_comparable",
    "same_json",
    "with_defaults",
]

_FLOAT: Final = re.compile(rb"\d[.eE]")
"""What the JSON of every float has."""
_EXACT: Final = 2**53
"""Up to here every whole number has one form as a float, too."""
_DEPTH: Final = 32
"""How deep defaults are filled in."""


class BoundArguments(msgspec.Struct, frozen=True):
    """The arguments of one call, as they are judged, shown and parsed."""

    value: Mapping[str, Any]
    """What rules judge and people see."""
    text: bytes
    """What the handler's arguments are parsed from."""
    parse: Callable[[bytes], dict[str, Any]]
    common: Mapping[str, Any]
    """What equal calls have in common: the value without what default factories made for this call."""

    @property
    def generated(self) -> bool:
        """Return whether default factories made values for this call."""
        return self.common is not self.value

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the handler, parsed anew.

        Raises:
            ToolError: `permission_denied` if the text does not fit, so that nothing else than it can run.
        """
        try:
            return self.parse(self.text)
        except Exception as error:
            raise not_comparable() from error


Bind = Callable[[bytes], BoundArguments]
"""Takes arguments as JSON that fits, and returns them bound; raises a `ToolError` if that cannot be done."""


def bind_by_schema(
    schema: Schema, parse: Callable[[bytes], dict[str, Any]], *, fixed: Mapping[str, Any] | None = None
) -> Bind:
    """Return the function that binds arguments which only a JSON Schema describes, with `fixed` ones added."""

    def bind(text: bytes) -> BoundArguments:
        given = {**msgspec.json.decode(text), **(fixed or {})}
        return bound_to(with_defaults(schema, given), parse)

    return bind


def bound_to(value: Mapping[str, Any], parse: Callable[[bytes], dict[str, Any]]) -> BoundArguments:
    """Return arguments that are bound to one JSON value, which says all of them."""
    text = encode(value)
    if _FLOAT.search(text) is None:
        return BoundArguments(value, text, parse, value)
    value = canonical(value)
    return BoundArguments(value, encode(value), parse, value)


def canonical(value: Any) -> Any:
    """Return JSON in which equal values look alike: a whole number is an integer."""
    if isinstance(value, dict):
        return {name: canonical(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [canonical(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value


def as_json(value: object) -> Any:
    """Return a value as JSON, or None if it cannot become JSON."""
    try:
        return msgspec.json.decode(encode(value))
    except (TypeError, msgspec.DecodeError):
        return None


def same_json(one: object, other: object) -> bool:
    """Return whether two values are the same JSON; a boolean is never a number."""
    first, second = encode_sorted(one), encode_sorted(other)
    if first == second or not (_FLOAT.search(first) or _FLOAT.search(second)):
        return first == second
    return encode_sorted(canonical(one)) == encode_sorted(canonical(other))


def with_defaults(schema: Schema, value: Any) -> Any:
    """Return a value with the defaults of its schema filled in, nested ones too, where they fit their own schema."""
    return _Defaults(schema).fill("", value, 0) if b'"default"' in encode(schema) else value


class _Defaults:
    """Fills in the defaults of one schema; its parts are named by JSON pointers."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._validators: dict[str, Any] = {}

    def fill(self, pointer: str, value: Any, depth: int) -> Any:
        """Return a value with the defaults that the schema at a pointer has for it."""
        node, pointer = self._resolve(pointer)
        if depth > _DEPTH or not isinstance(value, dict | list):
            return value
        for branch in self._branches(node, pointer, value):
            value = self.fill(branch, value, depth + 1)
        if isinstance(value, list):
            return self._fill_items(node, pointer, cast("list[Any]", value), depth + 1)
        return self._fill_members(node, pointer, cast("dict[str, Any]", value), depth + 1)

    def _fill_items(self, node: Mapping[str, Any], pointer: str, items: list[Any], depth: int) -> list[Any]:
        first = len(node.get("prefixItems", ()))
        if "items" not in node and not first:
            return items
        places = [
            f"{pointer}/prefixItems/{index}" if index < first else f"{pointer}/items" for index in range(len(items))
        ]
        return [self.fill(place, item, depth) for place, item in zip(places, items, strict=True)]

    def _fill_members(
        self, node: Mapping[str, Any], pointer: str, members: dict[str, Any], depth: int
    ) -> dict[str, Any]:
        properties = cast("Mapping[str, Any]", node.get("properties", {}))
        places = {name: f"{pointer}/properties/{escaped(name)}" for name in properties}
        others = f"{pointer}/additionalProperties"
        filled = {name: self.fill(places.get(name, others), inner, depth) for name, inner in members.items()}
        for name, place in places.items():
            if name in filled:
                continue
            target, _ = self._resolve(place)
            here: dict[str, Any] = properties[name] if isinstance(properties[name], dict) else {}
            own = {**target, **here}
            if "default" in own and self._fits(place, own["default"]):
                filled[name] = self.fill(place, deepcopy(own["default"]), depth)
        return filled

    def _branches(self, node: Mapping[str, Any], pointer: str, value: Any) -> list[str]:
        """Return the branches that apply to a value: those that must, and the first of each choice that fits."""
        branches = [f"{pointer}/allOf/{index}" for index in range(len(node.get("allOf", ())))]
        for keyword in ("anyOf", "oneOf"):
            choices = (f"{pointer}/{keyword}/{index}" for index in range(len(node.get(keyword, ()))))
            fitting = next((choice for choice in choices if self._fits(choice, value)), None)
            branches += [] if fitting is None else [fitting]
        return branches

    def _fits(self, pointer: str, value: Any) -> bool:
        if pointer not in self._validators:
            self._validators[pointer] = compile_at(self._root, pointer)
        return self._validators[pointer].is_valid(value)

    def _resolve(self, pointer: str) -> tuple[Mapping[str, Any], str]:
        """Return the schema at a pointer, and where it is, with references followed."""
        for _ in range(_DEPTH):
            node = self._at(pointer)
            reference = cast("dict[str, Any]", node).get("$ref") if isinstance(node, dict) else None
            if not isinstance(reference, str) or not reference.startswith("#"):
                return cast("dict[str, Any]", node) if isinstance(node, dict) else {}, pointer
            pointer = reference[1:]
        return {}, pointer

    def _at(self, pointer: str) -> Any:
        node: Any = self._root
        for raw in pointer.split("/")[1:]:
            part = unquote(raw).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                items = cast("list[Any]", node)
                node = items[int(part)] if part.isdigit() and int(part) < len(items) else None
            else:
                node = cast("dict[str, Any]", node).get(part) if isinstance(node, dict) else None
        return node


def not_comparable() -> ToolError:
    """Return the failure of a call whose arguments cannot be bound."""
    message = "The arguments cannot be compared, so no approval can be bound to them."
    return ToolError("permission_denied", message, reason="not_comparable", may_have_run=False)
