"""Large results, and the handles by which a later call can take them.

A result belongs to its owner; for anybody else a handle does not exist.
"""

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any, Final, cast

import msgspec

from toolyard.model.envelope import Encoded, encode
from toolyard.model.errors import ToolError, shortened
from toolyard.model.limits import Limits
from toolyard.model.names import closest_name
from toolyard.model.profile import Profile
from toolyard.model.schema import Path, Schema, field_name, resolve, subschema
from toolyard.state.store import Store

__all__ = [
    "ESCAPE",
    "MARK",
    "REFERENCE",
    "Filling",
    "Results",
    "at_pointer",
    "hint_at_pointer",
    "may_refer",
    "shape_of",
    "shape_within",
    "too_large",
]

REFERENCE: Final = b"$ref"
"""What the text of arguments holds if they refer to a stored result."""
MARK: Final = REFERENCE[0]
"""Its first byte, which begins every reference; a byte is looked for ten times sooner than bytes are."""
ESCAPE: Final = ord("\\")
"""The byte that a client may begin each of these with, because JSON lets it."""

_ESCAPED: Final = re.compile(rb"\\u00(?:24|72|65|66)")
_HANDLE: Final = re.compile(r"r_[0-9]{1,18}\Z")
_INDEX: Final = re.compile(r"(0|[1-9][0-9]{0,17})\Z", re.ASCII)
_NUMBERED_SECONDS: Final = 30 * 24 * 3600.0
"""How long the numbers of an unused owner go on, so that an old handle does not come to name something new."""
_SHAPES: Final = ({"$ref"}, {"$ref", "path"})
_DEPTH: Final = 128
_KEYS: Final = 20
_KEYS_READ: Final = 1000
_POINTER_CHARACTERS: Final = 200
_SCALARS: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number"}

_AGAIN: Final = "the call whose answer had the handle, again"


class Results:
    """Keeps large results for a while and puts them where a call refers to them."""

    def __init__(self, store: Store, limits: Limits, *, reads: Callable[[Profile], bool]) -> None:
        self._store = store
        self._limits = limits
        self._reads = reads
        """Whether callers of a profile have a tool that reads stored results."""

    async def keep(self, encoded: Encoded, owner: str, profile: Profile, *, room: int | None = None) -> dict[str, Any]:
        """Keep a result that is too long to answer with, and return what to answer instead, with as much of its shape as there is room for.

        Raises:
            ToolError: `too_large` if it is too long to keep.
        """
        if len(encoded.text) > self._limits.stored_bytes:
            raise ToolError(
                "too_large",
                f"The result has {len(encoded.text)} bytes; at most {self._limits.stored_bytes} can be kept.",
                may_have_run=True,
                bytes=len(encoded.text),
                limit=self._limits.stored_bytes,
            )
        prefix = _prefix(owner)
        handle = f"r_{await self._store.count(prefix, ttl=max(_NUMBERED_SECONDS, 2 * self._limits.stored_seconds))}"
        await self._store.put(prefix + handle, encoded.text, ttl=self._limits.stored_seconds)
        kept = await self._store.keys(prefix)
        for key in kept[: max(len(kept) - self._limits.stored_results, 0)]:
            await self._store.delete(key)
        told = {
            "status": "stored",
            "handle": handle,
            "characters": encoded.characters,
            "shape": None,
            "expires_in_s": round(self._limits.stored_seconds),
            "use": (f"Read parts of it with read_result(handle='{handle}'). " if self._reads(profile) else "")
            + f'Pass {{"$ref": "{handle}"}} as an argument, with a JSON pointer as "path" for a part of it.',
        }
        shape = shape_of(encoded.data) if room is None else shape_within(encoded.data, room - len(encode(told)))
        return {**told, "shape": shape}

    async def read(self, handle: str, owner: str) -> Any:
        """Return what a handle of this owner names.

        Raises:
            ToolError: `not_found` if there is no such result, or no longer.
        """
        text = await self._store.get(_prefix(owner) + handle) if _HANDLE.match(handle) else None
        if text is None:
            raise ToolError(
                "not_found",
                f"There is no stored result '{handle}'.",
                reason="unknown_handle",
                hint="Run the call that made it again: results are kept for a while only.",
                next_actions=[_AGAIN],
                may_have_run=False,
                handle=handle,
            )
        return msgspec.json.decode(text)

    def look_up(self, handle: str, profile: Profile) -> list[str]:
        """Return how to look at what a handle names, if there is a tool for that."""
        return [f"read_result(handle={handle!r})"] if self._reads(profile) else []

    def filling(self, owner: str, profile: Profile) -> "Filling":
        """Return what fills in the arguments of one call of this owner's."""
        return Filling(self, owner, profile, room=self._limits.stored_bytes)


def may_refer(text: bytes) -> bool:
    """Return whether JSON, as a client wrote it, may hold a reference to a stored result."""
    return REFERENCE in text or (b"\\u00" in text and _ESCAPED.search(text) is not None)


class Filling:
    """Fills in one call's arguments, reading each result once and no more in all than one result may have."""

    def __init__(self, results: Results, owner: str, profile: Profile, *, room: int) -> None:
        self._results = results
        self._owner = owner
        self._profile = profile
        self._room = room
        self._read: dict[str, Any] = {}

    async def fill_in(self, arguments: object, schema: Schema) -> Any:
        """Return arguments with the results in the places that refer to them.

        Raises:
            ToolError: `invalid_input` if a reference leads nowhere.
        """
        return await self._fill(arguments, (), schema)

    async def _fill(self, value: object, path: Path, schema: Schema) -> Any:
        if len(path) > _DEPTH:
            return value
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [await self._fill(item, (*path, index), schema) for index, item in enumerate(items)]
        if not isinstance(value, dict):
            return value
        pairs = cast("dict[str, object]", value)
        if _refers(pairs) and not _declares(schema, subschema(schema, path)):
            found = await self._follow(pairs, path)
            self._room -= len(encode(found))
            if self._room < 0:
                raise ToolError("too_large", "The results that the arguments refer to are too large together.")
            return found
        return {key: await self._fill(item, (*path, key), schema) for key, item in pairs.items()}

    async def _follow(self, reference: Mapping[str, Any], path: Path) -> Any:
        field, handle = field_name(path), reference["$ref"]
        try:
            if handle not in self._read:
                self._read[handle] = await self._results.read(handle, self._owner)
        except ToolError as error:
            raise ToolError(
                "invalid_input",
                error.message,
                hint="Use a handle that an earlier answer gave you.",
                next_actions=error.next_actions,
                issues=[{"field": field, "code": "unknown_handle", "message": error.message}],
            ) from None
        found, pointer = self._read[handle], reference.get("path", "")
        try:
            return at_pointer(found, pointer)
        except LookupError:
            message = f"'{handle}' has nothing at '{shortened(pointer)}'."
            raise ToolError(
                "invalid_input",
                message,
                hint=hint_at_pointer(found, pointer),
                next_actions=self._results.look_up(handle, self._profile),
                issues=[{"field": field, "code": "unknown_path", "message": message}],
                shape=shape_of(found, 1),
            ) from None


def too_large(encoded: Encoded) -> dict[str, Any]:
    """Return what is said of a result that can neither be answered nor kept, where something else must be said as well."""
    return {"status": "too_large", "characters": encoded.characters, "shape": shape_of(encoded.data)}


def at_pointer(value: Any, pointer: str) -> Any:
    """Return the part of a value that a JSON pointer names.

    Raises:
        LookupError: There is none; the argument is the pointer.
    """
    if pointer and not pointer.startswith("/"):
        raise LookupError(pointer)
    for raw in pointer.split("/")[1:]:
        part = raw.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(part) if isinstance(value, list) and _INDEX.match(part) else part]
        except (LookupError, TypeError):
            raise LookupError(pointer) from None
    return value


def hint_at_pointer(value: Any, pointer: str) -> str:
    """Return what to do about a JSON pointer that leads nowhere in a value."""
    near = _pointer_near(value, pointer)
    return f"Use a path that it has, such as '{near}'." if near else "It has no such parts: leave 'path' out."


def _pointer_near(value: Any, pointer: str) -> str:
    """Return a JSON pointer that leads somewhere: along the one that was meant as far as that goes, and one step on."""
    way = ""
    for raw in pointer.lstrip("#/").split("/"):
        try:
            further, value = f"{way}/{raw}", at_pointer(value, f"/{raw}")
        except LookupError:
            return way + _step_near(value, raw)
        if len(further) > _POINTER_CHARACTERS:
            break
        way = further
    return way


def _step_near(value: Any, raw: str) -> str:
    """Return a step that leads on from a value, the one that was meant if there is one like it."""
    if isinstance(value, list):
        return "/0" if value else ""
    if not isinstance(value, dict):
        return ""
    keys = [key for key in islice(cast("dict[str, Any]", value), _KEYS_READ) if len(key) <= _POINTER_CHARACTERS]
    key = closest_name(raw, keys) or next(iter(keys), None)
    return "" if key is None else "/" + key.replace("~", "~0").replace("/", "~1")


def shape_within(value: Any, characters: int) -> Any:
    """Return as much of the shape of a value as so many characters hold, or the least that can be said of it."""
    shapes = [shape_of(value, depth) for depth in (2, 1, 0)]
    return next((shape for shape in shapes if len(encode(shape).decode()) <= characters), shapes[-1])


def shape_of(value: Any, depth: int = 2) -> Any:
    """Return what kind of thing a value is, without saying what is in it."""
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value)
        if depth == 0:
            return {"type": "object", "keys": len(pairs)}
        inner = {key: shape_of(item, depth - 1) for key, item in list(pairs.items())[:_KEYS]}
        more = {"more_keys": len(pairs) - _KEYS} if len(pairs) > _KEYS else {}
        return {"type": "object", "properties": inner, **more}
    if isinstance(value, list):
        items = cast("list[object]", value)
        inner = {"items": shape_of(items[0], depth - 1)} if items and depth else {}
        return {"type": "array", "length": len(items), **inner}
    if isinstance(value, str):
        return {"type": "string", "length": len(value)}
    return {"type": _SCALARS.get(type(cast("object", value)), "null")}


def _prefix(owner: str) -> str:
    return f"result/{sha256(owner.encode()).hexdigest()[:32]}/"


def _refers(pairs: Mapping[str, object]) -> bool:
    handle, path = pairs.get("$ref"), pairs.get("path", "")
    return set(pairs) in _SHAPES and isinstance(handle, str) and _HANDLE.match(handle) is not None and isinstance(path, str)


def _declares(root: Schema, node: Any) -> bool:
    """Return whether the schema itself has a property of that name in this place."""
    resolved = resolve(root, node)
    if not isinstance(resolved, dict):
        return False
    here = cast("dict[str, Any]", resolved)
    branches = (*here.get("anyOf", ()), *here.get("oneOf", ()), *here.get("allOf", ()))
    return "$ref" in here.get("properties", {}) or any(_declares(root, branch) for branch in branches)
