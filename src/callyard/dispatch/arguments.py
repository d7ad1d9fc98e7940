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
_INTEGERS: Final = range(-(2**63), 2**64)
"""The whole numbers that JSON may have here; a float beyond them has no other form."""
_DEPTH: Final = 32
"""How deep defaults are filled in."""
_STEPS: Final = 20_000
_STEPS_PER_BYTE: Final = 4
"""So many parts of schemas may apply to arguments, because upstreams may write schemas that never end."""


class BoundArguments(msgspec.Struct, frozen=True):
    """The arguments of one call, as they are judged, shown and parsed."""

    value: Mapping[str, Any]
    """What rules judge and people see."""
    text: bytes
    """What the handler's arguments are parsed from."""
    parse: Callable[[bytes], dict[str, Any]]
    common: Mapping[str, Any]
    """What equal calls have in common: the value without what default factories made for this call."""
    inner: Callable[[bytes], dict[str, Any]] | None = None
    """Parses the text as the tool of a mounted yard does, whose handler here only passes it on."""

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
    if isinstance(value, float) and value.is_integer() and int(value) in _INTEGERS:
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
    """Return a value with the defaults of its schema filled in, nested ones too, where they fit their own schema.

    Raises:
        ToolError: `permission_denied` if the schema is made to take forever.
    """
    return _Defaults(schema, value).fill("", value) if b'"default"' in encode(schema) else value


class _Defaults:
    """Fills in the defaults of one schema; its parts are named by JSON pointers."""

    def __init__(self, root: Schema, value: Any) -> None:
        self._root = root
        self._validators: dict[str, Any] = {}
        self._nodes: dict[str, Any] = {}
        self._defaults: dict[str, Any] = {}
        self._anchors: dict[str, str] | None = None
        self._steps_left = _STEPS + _STEPS_PER_BYTE * len(encode(value))

    def fill(self, pointer: str, value: Any, depth: int = 0, applied: set[str] | None = None) -> Any:
        """Return a value with the defaults that the schema at a pointer has for it.

        `applied` are the parts of the schema that were applied to the same value: recursive ones lead back to them.
        """
        applied = set() if applied is None else applied
        if depth > _DEPTH or type(value) not in {dict, list} or pointer in applied:
            return value
        applied.add(pointer)
        self._steps_left -= 1
        if self._steps_left < 0:
            raise not_comparable()
        node = self._at(pointer)
        for branch in self._branches(node, pointer, value):
            value = self.fill(branch, value, depth, applied)
        if isinstance(value, list):
            return self._fill_items(node, pointer, cast("list[Any]", value), depth + 1)
        return self._fill_members(node, pointer, value, depth + 1)

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
        filled = dict(members)
        for name, inner in members.items():
            for place in self._places(node, pointer, name):
                inner = self.fill(place, inner, depth)  # noqa: PLW2901 - the same member, with more defaults
            filled[name] = inner
        for name in properties.keys() - filled.keys():
            place = f"{pointer}/properties/{escaped(name)}"
            default = self._default(place)
            if default is not msgspec.NODEFAULT and self._fits(place, default):
                filled[name] = self.fill(place, deepcopy(default), depth)
        return filled

    def _places(self, node: Mapping[str, Any], pointer: str, name: str) -> list[str]:
        """Return where a schema describes a member of an object."""
        places = [f"{pointer}/properties/{escaped(name)}"] if name in node.get("properties", {}) else []
        patterns = [pattern for pattern in node.get("patternProperties", {}) if self._matches(pattern, name)]
        places += [f"{pointer}/patternProperties/{escaped(pattern)}" for pattern in patterns]
        return places or [f"{pointer}/additionalProperties"]

    def _default(self, pointer: str) -> Any:
        """Return the default of the schema at a pointer: its own, or that of a schema that it always includes."""
        if pointer not in self._defaults:
            self._defaults[pointer] = msgspec.NODEFAULT  # for references that lead back here
            node = self._at(pointer)
            places = [*self._target(node), *(f"{pointer}/allOf/{index}" for index in range(len(node.get("allOf", ()))))]
            found = [node["default"]] if "default" in node else map(self._default, places)
            self._defaults[pointer] = next((one for one in found if one is not msgspec.NODEFAULT), msgspec.NODEFAULT)
        return self._defaults[pointer]

    def _branches(self, node: Mapping[str, Any], pointer: str, value: Any) -> list[str]:
        """Return the branches that apply to a value: those that must, and the first of each choice that fits."""
        branches = self._target(node)
        branches += [f"{pointer}/allOf/{index}" for index in range(len(node.get("allOf", ())))]
        for keyword in ("anyOf", "oneOf"):
            choices = (f"{pointer}/{keyword}/{index}" for index in range(len(node.get(keyword, ()))))
            fitting = next((choice for choice in choices if self._fits(choice, value)), None)
            branches += [] if fitting is None else [fitting]
        if "if" in node:
            branches.append(f"{pointer}/{'then' if self._fits(f'{pointer}/if', value) else 'else'}")
        dependent: Mapping[str, Any] = node.get("dependentSchemas", {}) if isinstance(value, dict) else {}
        return [*branches, *(f"{pointer}/dependentSchemas/{escaped(name)}" for name in dependent if name in value)]

    def _fits(self, pointer: str, value: Any) -> bool:
        if pointer not in self._validators:
            self._validators[pointer] = compile_at(self._root, pointer)
        return self._validators[pointer].is_valid(value)

    def _matches(self, pattern: str, name: str) -> bool:
        key = f"pattern {pattern}"  # which is no pointer
        if key not in self._validators:
            self._validators[key] = compile_at({"pattern": pattern}, "")
        return self._validators[key].is_valid(name)

    def _target(self, node: Mapping[str, Any]) -> list[str]:
        """Return where the reference of a schema leads to, if it has one within the whole."""
        places: list[str] = []
        for keyword in ("$ref", "$dynamicRef"):
            reference = node.get(keyword)
            whole = self._root.get("$id")
            if isinstance(reference, str) and isinstance(whole, str):
                reference = reference.removeprefix(whole.removesuffix("#"))
            if isinstance(reference, str) and reference.startswith("#"):
                place = reference[1:]
                places.append(self._find_anchors().get(place, "/?") if place and place[0] != "/" else place)
        return places

    def _find_anchors(self) -> Mapping[str, str]:
        """Return the pointers of the anchors of the schema."""
        if self._anchors is None:
            self._anchors = {}
            places: list[tuple[str, Any]] = [("", self._root)]
            while places:
                pointer, node = places.pop()
                inner: Any = enumerate(cast("list[Any]", node)) if isinstance(node, list) else ()
                if isinstance(node, dict):
                    members = cast("dict[str, Any]", node)
                    inner = members.items()
                    for keyword in ("$anchor", "$dynamicAnchor"):
                        if isinstance(members.get(keyword), str):
                            self._anchors.setdefault(members[keyword], pointer)
                places += [(f"{pointer}/{escaped(str(key))}", part) for key, part in inner]
        return self._anchors

    def _at(self, pointer: str) -> Mapping[str, Any]:
        """Return the schema at a pointer; one that does not exist or is a boolean says nothing."""
        if pointer not in self._nodes:
            node: Any = self._root
            for raw in pointer.split("/")[1:]:
                part = unquote(raw).replace("~1", "/").replace("~0", "~")
                if isinstance(node, list):
                    items = cast("list[Any]", node)
                    node = items[int(part)] if part.isdecimal() and int(part) < len(items) else None
                else:
                    node = cast("dict[str, Any]", node).get(part) if isinstance(node, dict) else None
            self._nodes[pointer] = node if isinstance(node, dict) else {}
        return self._nodes[pointer]


def not_comparable() -> ToolError:
    """Return the failure of a call whose arguments cannot be bound."""
    message = "The arguments cannot be compared, so no approval can be bound to them."
    return ToolError("permission_denied", message, reason="not_comparable", may_have_run=False)
