"""The metatool `read_result`, which returns a stored result in parts."""

import re
from typing import Any, Final, cast

import msgspec

from callyard.dispatch.call import Call
from callyard.dispatch.results import at_pointer, pointer_hint, shape_of, shape_within
from callyard.dispatch.tool import Tool
from callyard.metatools.metatool import TEXT, YardParts, build_metatool, object_schema, room
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError, invalid_input, shortened
from callyard.model.spec import Reason

__all__ = ["read_metatool"]

_ITEMS: Final = 100
_CHARACTERS: Final = 4000
_ESCAPED: Final = r"\\(?:u[0-9a-f]{4}|.)"

_OFFSET: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "default": 0}
_INPUT_SCHEMA: Final = object_schema(
    "handle",
    handle={**TEXT, "description": "Such as 'r_17'."},
    path={**TEXT, "default": "", "description": "JSON pointer to a part."},
    offset=_OFFSET,
    limit={"type": "integer", "minimum": 1, "maximum": 50_000, "description": "Items, or characters of a text."},
    grep={**TEXT, "minLength": 1, "maxLength": 200, "description": "Only items, entries or lines that hold this text."},
)
_OUTPUT_SCHEMA: Final = object_schema(
    "handle path type value total",
    handle=TEXT,
    path=TEXT,
    type=TEXT,
    value={},
    total={"type": "integer"},
    matches={"type": "integer"},
    next_offset={"type": "integer"},
    too_long={"type": "object"},
)


def read_metatool(yard: YardParts) -> Tool:
    """Return the metatool `read_result`."""

    async def read(call: Call) -> dict[str, Any] | Envelope:
        arguments = call.arguments
        handle, path = arguments["handle"], arguments["path"]
        kept = await yard.dispatcher.results.elsewhere(shortened(handle), call.caller.owner)
        if kept is not None:
            part = await yard.providers.ask_yard(kept[0], call, "read_result", {**arguments, "handle": kept[1]})
            part.data = {**part.data, "handle": handle}
            return part
        whole = await yard.dispatcher.results.read(shortened(handle), call.caller.owner)
        try:
            part = at_pointer(whole, path)
        except LookupError:
            raise _unknown_path(handle, path, whole) from None
        stated, allowed = call.channel.result_characters, room(yard, call)
        head = {"handle": handle, "path": shortened(path)}
        window = _Window(arguments["offset"], arguments.get("limit"), arguments.get("grep"), allowed - _length(head))
        _check_window(part, window, suggestion=f"read_result(handle={handle!r}, path={shortened(path)!r})")
        result = {**head, **_read_part(part, window)}
        if _length(result) > allowed:
            raise _no_room(handle, allowed if stated is None else stated, is_stated=stated is not None)
        return result

    return build_metatool(
        "read_result",
        "Read a stored result by its handle, in parts.",
        read,
        input_schema=_INPUT_SCHEMA,
        output_schema=_OUTPUT_SCHEMA,
        listed=True,
        reasons={"unknown_handle": Reason("not_found", ("handle",)), "no_room": Reason("too_large", ("limit",))},
    )


def _unknown_path(handle: str, path: str, whole: object) -> ToolError:
    message = f"'{handle}' has nothing at {shortened(path)!r}."
    return ToolError(
        "invalid_input",
        message,
        hint=pointer_hint(whole, path),
        next_actions=[f"read_result(handle={handle!r})"],
        issues=[{"field": "path", "code": "unknown_path", "message": message}],
        shape=shape_of(whole, 1),
    )


def _no_room(handle: str, allowed: int, *, is_stated: bool) -> ToolError:
    """Return the failure for a part that would be stored again, because an agent would read on for ever."""
    why, otherwise = "", "have whoever runs the yard raise 'result_characters'"
    if is_stated:
        why, otherwise = " by what the client states", "let the client state a larger size"
    return ToolError(
        "too_large",
        f"Not even a part of '{handle}' fits: an answer may have {allowed} characters{why}.",
        reason="no_room",
        hint=f'Pass it on as an argument, {{"$ref": "{handle}"}}, or {otherwise}.',
        may_have_run=False,
        limit=allowed,
    )


class _Window(msgspec.Struct, frozen=True):
    """Which items of a part to return, and how many characters they may have."""

    offset: int
    limit: int | None
    grep: str | None
    room: int


def _check_window(part: object, window: _Window, *, suggestion: str) -> None:
    """Check that a part can be searched and cut this way.

    Raises:
        ToolError: `invalid_input` if it cannot.
    """
    grep = window.grep
    if not isinstance(part, list | dict | str):
        for name in ("grep", "offset"):
            if getattr(window, name):
                kind = shape_of(part)["type"]
                message = f"'{name}' is for lists, objects and texts, and this is one value of the type '{kind}'."
                raise invalid_input(message, field=name, hint=f"Leave '{name}' out.", next_actions=[suggestion])
    elif isinstance(part, str) and grep is not None and grep.splitlines() != [grep]:
        message = "A text is searched line by line, and 'grep' has a line break."
        raise invalid_input(message, field="grep", hint="Search for a part of one line.", next_actions=[suggestion])


def _read_part(part: Any, window: _Window) -> dict[str, Any]:
    """Return some items of a list, entries of an object or characters of a text."""
    if isinstance(part, list):
        items = cast("list[Any]", part)
        return _cut({"type": "array", "total": len(items)}, items, window)
    if isinstance(part, dict):
        pairs = [{key: value} for key, value in cast("dict[str, Any]", part).items()]
        result = _cut({"type": "object", "total": len(pairs)}, pairs, window)
        return {**result, "value": {key: value for pair in result["value"] for key, value in pair.items()}}
    if isinstance(part, str) and window.grep is not None:
        lines = part.splitlines()
        matches = [f"{number}: {line}" for number, line in enumerate(lines, start=1) if _contains(line, window.grep)]
        frame = {"type": "lines", "total": len(lines), "matches": len(matches)}
        return _cut(frame, matches, msgspec.structs.replace(window, grep=None))
    if isinstance(part, str):
        return _cut_text(part, window)
    return {"type": shape_of(part)["type"], "total": 1, "value": part}


def _cut_text(text: str, window: _Window) -> dict[str, Any]:
    """Return the requested characters, as many as fit when written as JSON, but at least one."""
    frame = {"type": "string", "total": len(text)}
    room = max(window.room - _length({**frame, "value": "", "next_offset": len(text)}), 1)
    piece = text[window.offset : window.offset + min(window.limit or _CHARACTERS, room)]
    while (written := _length(piece) - 2) > room and len(piece) > 1:
        piece = piece[: max(len(piece) * room // written, 1)]
    end = window.offset + len(piece)
    return {**frame, "value": piece, **({"next_offset": end} if end < len(text) else {})}


def _cut(frame: dict[str, Any], items: list[Any], window: _Window) -> dict[str, Any]:
    """Return the requested items that contain the text, as many as fit; of one that is too long, its shape."""
    offset, grep = window.offset, window.grep
    matches = items if grep is None else [item for item in items if _contains(item, grep)]
    result = frame if grep is None else {**frame, "matches": len(matches)}
    room = window.room - _length({**result, "value": [], "next_offset": len(matches)})
    value: list[Any] = []
    for item in matches[offset : offset + (window.limit or _ITEMS)]:
        left = room - _length(item) - 1
        if left < 0:
            break
        room = left
        value.append(item)
    result = {**result, "value": value}
    end = offset + len(value)
    if not value and offset < len(matches):
        room -= _length({"too_long": {"offset": offset, "shape": None}})
        result["too_long"] = {"offset": offset, "shape": shape_within(matches[offset], room)}
        end += 1
    return {**result, "next_offset": end} if end < len(matches) else result


def _length(value: object) -> int:
    """Return the number of characters of a value as JSON, by which results are limited."""
    text = encode(value)
    return len(text) if text.isascii() else len(text.decode())


def _contains(item: object, grep: str) -> bool:
    """Return whether an item contains the text, ignoring case; a plain text, because a pattern could take for ever."""
    if not isinstance(item, str):  # its strings are unescaped, as an agent searches for them
        item = re.sub(_ESCAPED, lambda found: msgspec.json.decode(f'"{found[0]}"'), encode(item).decode())
    return grep.lower() in item.lower()
