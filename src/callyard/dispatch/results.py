"""Large results in a store, their handles, and references to them among the arguments of later calls.

A result belongs to its owner; for another owner its handle does not exist. Owners are opaque strings here.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, cast

import msgspec

from callyard.dispatch.sessions import SHARED_OWNER
from callyard.model.envelope import Encoded, encode
from callyard.model.errors import ToolError, shortened
from callyard.model.limits import Limits
from callyard.model.names import closest_name
from callyard.model.profile import Profile
from callyard.model.schema import Path, Schema, field_name, resolve, subschema
from callyard.state.store import Store, owner_key

__all__ = [
    "DOLLAR",
    "REF_KEY",
    "RefResolver",
    "Results",
    "at_pointer",
    "may_contain_refs",
    "pointer_hint",
    "shape_of",
    "shape_within",
    "too_large",
]

REF_KEY: Final = b"$ref"
"""The key of a reference to a stored result, as it stands in JSON."""
DOLLAR: Final = REF_KEY[0]
"""Its first byte: a search for one byte is ten times faster than a search for four."""

_ESCAPED: Final = rb"\\u00(?:24|72|65|66)"
_HANDLE: Final = re.compile(r"r_[0-9a-f]{1,18}\Z", re.ASCII)
_RANDOM_BYTES: Final = 8
_ELSEWHERE: Final = b" "
"""What begins the entry of a result that an upstream keeps: no result that is written as JSON begins so."""
_ELSEWHERE_SECONDS: Final = 24 * 3600.0
_INDEX: Final = re.compile(r"(0|[1-9][0-9]{0,17})\Z", re.ASCII)
_COUNTER_SECONDS: Final = 30 * 24 * 3600.0
"""How long the counter of an idle owner lives, so that an old handle never names a new result."""
_READ_RESULTS: Final = 2
_LARGE_BYTES: Final = 256 * 1024
_REF_KEYS: Final = ({"$ref"}, {"$ref", "path"})
_MAX_DROPPED: Final = 100
"""Results that are dropped at one time, after the limit became smaller."""
_MAX_DEPTH: Final = 128
_MAX_BRANCH_DEPTH: Final = 8
"""How deep branches of a schema are searched in each other; a cycle of them has no end."""
_MAX_KEYS: Final = 20
_MAX_KEYS_READ: Final = 1000
_MAX_POINTER_CHARACTERS: Final = 200
_SCALARS: Final[dict[type, str]] = {bool: "boolean", int: "integer", float: "number"}


class Results:
    """Stores large results for a limited time, by owner."""

    def __init__(self, store: Store, limits: Limits, *, suggest_read: Callable[[str, Profile], list[str]]) -> None:
        self._store = store
        self._limits = limits
        self.suggest_read: Final = suggest_read
        """Returns the action that reads a stored result, by handle, if the profile has one."""

    async def store(self, encoded: Encoded, owner: str, profile: Profile, *, room: int | None = None) -> dict[str, Any]:
        """Store a result and return the data to answer with instead, in at most `room` characters if its shape allows.

        Raises:
            ToolError: `too_large` if it is too long to store.
        """
        handle = await self.keep(encoded.text, owner)
        read = "".join(f"Read parts of it with {action}. " for action in self.suggest_read(handle, profile))
        data = {
            "status": "stored",
            "handle": handle,
            "characters": encoded.characters,
            "shape": None,
            "expires_in_s": round(self._limits.stored_seconds),
            "use": f'{read}Pass {{"$ref": "{handle}"}} as an argument, with a JSON pointer as "path" for a part of it.',
        }
        shape = shape_of(encoded.data) if room is None else shape_within(encoded.data, room - len(encode(data)))
        return {**data, "shape": shape}

    async def keep(self, text: bytes, owner: str) -> str:
        """Store a result, which is JSON, and return its handle; drop the owner's oldest ones beyond the limit.

        Raises:
            ToolError: `too_large` if it is too long to store.
        """
        if len(text) > self._limits.stored_bytes:
            size, most = len(text), self._limits.stored_bytes
            message = f"The result has {size} bytes; at most {most} can be kept."
            raise ToolError("too_large", message, may_have_run=True, bytes=size, limit=most)
        prefix = _prefix(owner)
        ttl, most = self._limits.stored_seconds, self._limits.stored_results
        if owner == SHARED_OWNER:  # others have the same owner: they must not guess the handle, nor push the result out
            handle = f"r_{os.urandom(_RANDOM_BYTES).hex()}"
            await self._store.put(_key(prefix, handle), text, ttl=ttl)
            return handle
        handle = f"r_{await self._store.count(prefix, ttl=max(_COUNTER_SECONDS, 2 * ttl))}"
        await self._store.put(_key(prefix, handle), text, ttl=ttl)
        stored = await self._store.keys(prefix, limit=most + _MAX_DROPPED)
        for key in stored[: max(len(stored) - most, 0)]:
            await self._store.delete(key)
        return handle

    async def keep_elsewhere(self, source: str, name: str, owner: str) -> str:
        """Return a handle of an owner for what a source keeps under another one."""
        return await self.keep(_ELSEWHERE + encode([source, name]), owner)

    async def elsewhere(self, handle: str, owner: str) -> tuple[str, str] | None:
        """Return the source that keeps a result and its name for it, or None if it is kept here or unknown."""
        text = await self._store.get(_key(_prefix(owner), handle)) if _HANDLE.match(handle) else None
        if text is None or not text.startswith(_ELSEWHERE):
            return None
        source, name = msgspec.json.decode(text, type=tuple[str, str])
        return source, name

    async def note_elsewhere(self, name: str, owner: str) -> None:
        """Note that an owner was told the name of something that an upstream keeps, such as a job."""
        await self._store.put(f"elsewhere/{owner_key(owner)}/{name}", b"", ttl=_ELSEWHERE_SECONDS)

    async def knows_elsewhere(self, name: str, owner: str) -> bool:
        """Return whether an owner was told a name, so that nobody reaches an upstream by a name they made up."""
        return await self._store.get(f"elsewhere/{owner_key(owner)}/{name}") is not None

    async def read(self, handle: str, owner: str) -> Any:
        """Return the stored result of an owner's handle.

        Raises:
            ToolError: `not_found` if there is no such result, or no longer.
        """
        return msgspec.json.decode(await self.read_text(handle, owner))

    async def read_text(self, handle: str, owner: str) -> bytes:
        """Return the stored result of an owner's handle as JSON.

        Raises:
            ToolError: `not_found` if there is no such result, or no longer.
        """
        text = await self._store.get(_key(_prefix(owner), handle)) if _HANDLE.match(handle) else None
        if text is None:
            raise ToolError(
                "not_found",
                f"There is no stored result '{handle}'.",
                reason="unknown_handle",
                hint="Run the call that made it again: results are kept for a while only.",
                next_actions=["the call whose answer had the handle, again"],
                may_have_run=False,
                handle=handle,
            )
        if text.startswith(_ELSEWHERE):
            message = f"The result '{handle}' is kept by an upstream, and can only be read in parts."
            raise ToolError("not_supported", message, hint="Read the parts that you need, and pass those on.")
        return text

    def resolver(self, owner: str, profile: Profile) -> "RefResolver":
        """Return a resolver of the references in one call's arguments."""
        return RefResolver(self, owner, profile, max_bytes=self._limits.stored_bytes)


def may_contain_refs(text: bytes) -> bool:
    """Return whether JSON text may contain a reference to a stored result, with or without escapes."""
    # Python looks for one byte twenty times as fast as for several: 0.05 ms for 1 MB, which most large arguments take.
    has_key = b"$" in text and REF_KEY in text
    return has_key or (b"\\" in text and re.search(_ESCAPED, text) is not None)


class RefResolver:
    """Replaces references to stored results in one call's arguments.

    It reads each result once, no more bytes in all than two results may have, and inserts no more than one may have.
    """

    def __init__(self, results: Results, owner: str, profile: Profile, *, max_bytes: int) -> None:
        self._results = results
        self._owner = owner
        self._profile = profile
        self._bytes_left = max_bytes
        self._unread_bytes = _READ_RESULTS * max_bytes
        self._read: dict[str, Any] = {}

    async def resolve(self, arguments: object, schema: Schema) -> Any:
        """Return the arguments with each reference replaced by its result.

        Raises:
            ToolError: `invalid_input` if a handle or path does not exist, `too_large` if the results are too large
            together.
        """
        return await self._resolve(arguments, (), schema)

    async def _resolve(self, value: object, path: Path, schema: Schema) -> Any:
        if len(path) > _MAX_DEPTH:
            return value
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [await self._resolve(item, (*path, index), schema) for index, item in enumerate(items)]
        if not isinstance(value, dict):
            return value
        pairs = cast("dict[str, object]", value)
        if _is_ref(pairs) and not _declares_ref(schema, subschema(schema, path)):
            result = await self._follow(pairs, path)
            self._bytes_left -= len(encode(result))
            if self._bytes_left < 0:
                raise _too_large_together()
            return result
        return {key: await self._resolve(item, (*path, key), schema) for key, item in pairs.items()}

    async def _read_result(self, handle: str) -> Any:
        text = await self._results.read_text(handle, self._owner)
        self._unread_bytes -= len(text)  # counted before decoding, which takes a multiple of that in memory
        if self._unread_bytes < 0:
            raise _too_large_together()
        if len(text) > _LARGE_BYTES:
            await asyncio.sleep(0)  # so that other callers wait for one result and not for all
        return msgspec.json.decode(text)

    async def _follow(self, reference: Mapping[str, Any], path: Path) -> Any:
        field, handle, pointer = field_name(path), reference["$ref"], reference.get("path", "")
        try:
            if handle not in self._read:
                self._read[handle] = await self._read_result(handle)
        except ToolError as error:
            if error.code != "not_found":
                raise
            raise ToolError(
                "invalid_input",
                error.message,
                hint="Use a handle that an earlier answer gave you.",
                next_actions=error.next_actions,
                issues=[{"field": field, "code": "unknown_handle", "message": error.message}],
            ) from None
        result = self._read[handle]
        try:
            return at_pointer(result, pointer)
        except LookupError:
            message = f"'{handle}' has nothing at '{shortened(pointer)}'."
            raise ToolError(
                "invalid_input",
                message,
                hint=pointer_hint(result, pointer),
                next_actions=self._results.suggest_read(handle, self._profile),
                issues=[{"field": field, "code": "unknown_path", "message": message}],
                shape=shape_of(result, 1),
            ) from None


def _too_large_together() -> ToolError:
    return ToolError("too_large", "The results that the arguments refer to are too large together.")


def too_large(encoded: Encoded) -> dict[str, Any]:
    """Return the data that stands for a result too large to store, in a failure that must keep its own code."""
    return {"status": "too_large", "characters": encoded.characters, "shape": shape_of(encoded.data)}


def at_pointer(value: Any, pointer: str) -> Any:
    """Return the part of a value at a JSON pointer.

    Raises:
        LookupError: There is none; its argument is the pointer.
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


def pointer_hint(value: Any, pointer: str) -> str:
    """Return the hint for a JSON pointer that does not exist in a value."""
    similar = _similar_pointer(value, pointer)
    return f"Use a path that it has, such as '{similar}'." if similar else "It has no such parts: leave 'path' out."


def _similar_pointer(value: Any, pointer: str) -> str:
    """Return an existing JSON pointer: the longest valid part of this one, and one more step."""
    valid = ""
    for raw in pointer.lstrip("#/").split("/"):
        try:
            longer, value = f"{valid}/{raw}", at_pointer(value, f"/{raw}")
        except LookupError:
            return valid + _similar_step(value, raw)
        if len(longer) > _MAX_POINTER_CHARACTERS:
            break
        valid = longer
    return valid


def _similar_step(value: Any, raw: str) -> str:
    """Return a pointer of one step into a value: a key similar to `raw`, or else the first."""
    if isinstance(value, list):
        return "/0" if value else ""
    if not isinstance(value, dict):
        return ""
    keys = [key for key in islice(cast("dict[str, Any]", value), _MAX_KEYS_READ) if len(key) <= _MAX_POINTER_CHARACTERS]
    key = closest_name(raw, keys) or next(iter(keys), None)
    return "" if key is None else "/" + key.replace("~", "~0").replace("/", "~1")


def shape_within(value: Any, characters: int) -> Any:
    """Return the deepest shape of a value that fits into so many characters, or else the shallowest."""
    shapes = [shape_of(value, depth) for depth in (2, 1, 0)]
    return next((shape for shape in shapes if len(encode(shape).decode()) <= characters), shapes[-1])


def shape_of(value: Any, depth: int = 2) -> Any:
    """Return the types, lengths and keys in a value down to a depth, without its contents."""
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value)
        if depth == 0:
            return {"type": "object", "keys": len(pairs)}
        inner = {key: shape_of(item, depth - 1) for key, item in list(pairs.items())[:_MAX_KEYS]}
        more = {"more_keys": len(pairs) - _MAX_KEYS} if len(pairs) > _MAX_KEYS else {}
        return {"type": "object", "properties": inner, **more}
    if isinstance(value, list):
        items = cast("list[object]", value)
        inner = {"items": shape_of(items[0], depth - 1)} if items and depth else {}
        return {"type": "array", "length": len(items), **inner}
    if isinstance(value, str):
        return {"type": "string", "length": len(value)}
    return {"type": _SCALARS.get(type(cast("object", value)), "null")}


def _prefix(owner: str) -> str:
    return f"result/{owner_key(owner)}/"


def _key(prefix: str, handle: str) -> str:
    """Return the key of a handle's result; keys in order are results by age."""
    return prefix + handle.removeprefix("r_").zfill(18)


def _is_ref(pairs: Mapping[str, object]) -> bool:
    handle, path = pairs.get("$ref"), pairs.get("path", "")
    if set(pairs) not in _REF_KEYS or not isinstance(handle, str) or not isinstance(path, str):
        return False
    return _HANDLE.match(handle) is not None


def _declares_ref(root: Schema, node: Any, depth: int = 0) -> bool:
    """Return whether the schema itself declares a property `$ref` at this node."""
    resolved = resolve(root, node)
    if not isinstance(resolved, dict) or depth > _MAX_BRANCH_DEPTH:
        return False
    here = cast("dict[str, Any]", resolved)
    branches = (*here.get("anyOf", ()), *here.get("oneOf", ()), *here.get("allOf", ()))
    return "$ref" in here.get("properties", {}) or any(_declares_ref(root, branch, depth + 1) for branch in branches)
