"""Reading: `read_result`, which shows a stored result part by part."""

import re
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolyard.dispatch.call import Call
from toolyard.dispatch.outcome import room_for_data
from toolyard.dispatch.results import at_pointer, pointer_hint, shape_of, shape_within
from toolyard.dispatch.tool import Tool
from toolyard.metatools.metatool import TEXT, Subject, fields, make, outcome
from toolyard.model.envelope import encode
from toolyard.model.errors import ToolError, invalid_input, shortened
from toolyard.model.spec import Reason

__all__ = ["make_read"]

_ITEMS: Final = 100
_CHARACTERS: Final = 4000
_ESCAPED: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)")

_PLACE: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "default": 0}
_TAKES: Final = fields(
    "handle",
    handle={**TEXT, "description": "Such as 'r_17'."},
    path={**TEXT, "default": "", "description": "JSON pointer to a part."},
    offset=_PLACE,
    limit={"type": "integer", "minimum": 1, "maximum": 50_000, "description": "Items, or characters of a text."},
    grep={**TEXT, "minLength": 1, "maxLength": 200, "description": "Only items, entries or lines that hold this text."},
)
_ANSWERS: Final = outcome(
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


def make_read(subject: Subject) -> Tool:
    """Return the tool `read_result`."""

    async def read(call: Call) -> dict[str, Any]:
        given = call.arguments
        handle, path = given["handle"], given["path"]
        whole = await subject.dispatcher.results.read(shortened(handle), call.caller.owner)
        try:
            part = at_pointer(whole, path)
        except LookupError:
            raise _leads_nowhere(handle, path, whole) from None
        stated = call.channel.result_characters
        allowed = subject.limits.result_characters if stated is None else room_for_data(call, stated)
        head = {"handle": handle, "path": shortened(path)}
        window = _Window(given["offset"], given.get("limit"), given.get("grep"), allowed - _length(head))
        _check_window(part, window, again=f"read_result(handle={handle!r}, path={shortened(path)!r})")
        told = {**head, **_told(part, window)}
        if _length(told) > allowed:
            raise _has_no_room(handle, allowed if stated is None else stated, is_stated=stated is not None)
        return told

    return make(
        "read_result",
        "Read a stored result by its handle, in parts.",
        read,
        takes=_TAKES,
        answers=_ANSWERS,
        listed=True,
        reasons={"unknown_handle": Reason("not_found", ("handle",)), "no_room": Reason("too_large", ("limit",))},
    )


def _leads_nowhere(handle: str, path: str, whole: object) -> ToolError:
    message = f"'{handle}' has nothing at {shortened(path)!r}."
    return ToolError(
        "invalid_input",
        message,
        hint=pointer_hint(whole, path),
        next_actions=[f"read_result(handle={handle!r})"],
        issues=[{"field": "path", "code": "unknown_path", "message": message}],
        shape=shape_of(whole, 1),
    )


def _has_no_room(handle: str, allowed: int, *, is_stated: bool) -> ToolError:
    """Return the failure to show anything where it would be stored again, so that nobody reads on for ever."""
    otherwise = "let the client state a larger size" if is_stated else "have whoever runs the yard raise 'result_characters'"
    return ToolError(
        "too_large",
        f"Not even a part of '{handle}' fits: an answer may have {allowed} characters{' by what the client states' if is_stated else ''}.",
        reason="no_room",
        hint=f'Pass it on as an argument, {{"$ref": "{handle}"}}, or {otherwise}.',
        may_have_run=False,
        limit=allowed,
    )


class _Window(NamedTuple):
    """Which part of a value is wanted, and how many characters what is told of it may have."""

    offset: int
    limit: int | None
    grep: str | None
    room: int


def _check_window(part: object, window: _Window, *, again: str) -> None:
    """Check that a part can be searched and cut as it is asked for.

    Raises:
        ToolError: `invalid_input` if it cannot.
    """
    grep = window.grep
    if not isinstance(part, list | dict | str):
        for name in ("grep", "offset"):
            if getattr(window, name):
                message = f"'{name}' is for lists, objects and texts, and this is one value of the type '{shape_of(part)['type']}'."
                raise invalid_input(message, field=name, hint=f"Leave '{name}' out.", next_actions=[again])
    elif isinstance(part, str) and grep is not None and grep.splitlines() != [grep]:
        message = "A text is searched line by line, and 'grep' has a line break."
        raise invalid_input(message, field="grep", hint="Search for a part of one line.", next_actions=[again])


def _told(part: Any, window: _Window) -> dict[str, Any]:
    """Return a part of a value: some of the items of a list, of the entries of an object or of the characters of a text."""
    if isinstance(part, list):
        items = cast("list[Any]", part)
        return _cut({"type": "array", "total": len(items)}, items, window)
    if isinstance(part, dict):
        pairs = [{key: value} for key, value in cast("dict[str, Any]", part).items()]
        told = _cut({"type": "object", "total": len(pairs)}, pairs, window)
        return {**told, "value": {key: value for pair in told["value"] for key, value in pair.items()}}
    if isinstance(part, str) and window.grep is not None:
        lines = part.splitlines()
        found = [f"{number}: {line}" for number, line in enumerate(lines, start=1) if _holds(line, window.grep)]
        return _cut({"type": "lines", "total": len(lines), "matches": len(found)}, found, window._replace(grep=None))
    if isinstance(part, str):
        return _cut_text(part, window)
    return {"type": shape_of(part)["type"], "total": 1, "value": part}


def _cut_text(text: str, window: _Window) -> dict[str, Any]:
    """Return as many of the characters as are asked for and there is room for as JSON, but at least one."""
    frame = {"type": "string", "total": len(text)}
    room = max(window.room - _length({**frame, "value": "", "next_offset": len(text)}), 1)
    piece = text[window.offset : window.offset + min(window.limit or _CHARACTERS, room)]
    while (written := _length(piece) - 2) > room and len(piece) > 1:
        piece = piece[: max(len(piece) * room // written, 1)]
    end = window.offset + len(piece)
    return {**frame, "value": piece, **({"next_offset": end} if end < len(text) else {})}


def _cut(frame: dict[str, Any], items: list[Any], window: _Window) -> dict[str, Any]:
    """Return as many of the items that hold the text as are asked for and there is room for; of one that is too long, its shape."""
    offset, limit, grep, room = window
    found = items if grep is None else [item for item in items if _holds(item, grep)]
    told = frame if grep is None else {**frame, "matches": len(found)}
    room -= _length({**told, "value": [], "next_offset": len(found)})
    kept: list[Any] = []
    for item in found[offset : offset + (limit or _ITEMS)]:
        left = room - _length(item) - 1
        if left < 0:
            break
        room = left
        kept.append(item)
    told = {**told, "value": kept}
    end = offset + len(kept)
    if not kept and offset < len(found):
        told["too_long"] = _outline(found[offset], offset, room)
        end += 1
    return {**told, "next_offset": end} if end < len(found) else told


def _outline(item: object, offset: int, room: int) -> dict[str, Any]:
    """Return what is told of an item that is too long: as much of its shape as there is room for."""
    return {"offset": offset, "shape": shape_within(item, room - _length({"too_long": {"offset": offset, "shape": None}}))}


def _length(value: object) -> int:
    """Return how many characters a value has as JSON, which is what answers are measured by."""
    text = encode(value)
    return len(text) if text.isascii() else len(text.decode())


def _holds(item: object, grep: str) -> bool:
    """Return whether an item has the text in it, whatever its capitals; the text is no pattern, so it cannot take for ever."""
    text = item if isinstance(item, str) else _unescaped(encode(item).decode())
    return grep.lower() in text.lower()


def _unescaped(text: str) -> str:
    """Return JSON with its texts as they are, which is how somebody knows them who looks for one."""
    return _ESCAPED.sub(lambda found: msgspec.json.decode(f'"{found[0]}"'), text) if "\\" in text else text
