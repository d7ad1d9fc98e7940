"""Reading: `read_result`, which shows a stored result part by part."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from toolyard.call import Call
from toolyard.envelope import encode
from toolyard.errors import ToolError, shortened
from toolyard.metatools.making import TEXT, fields, make, outcome
from toolyard.metatools.subject import Subject
from toolyard.results import at_pointer, shape_of
from toolyard.tools import Tool

__all__ = ["make_read"]

_ITEMS: Final = 100
_CHARACTERS: Final = 4000
_SHARE: Final = 0.8
"""How much of an answer the part that is read may fill."""

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
        room = int((call.door.result_characters or subject.limits.result_characters) * _SHARE)
        window = _Window(given["offset"], given.get("limit"), given.get("grep"), room)
        return {"handle": handle, "path": path, **_told(part, window)}

    return make(
        "read_result",
        "Read a stored result by its handle, in parts.",
        read,
        takes=_TAKES,
        answers=_ANSWERS,
        listed=True,
    )


def _leads_nowhere(handle: str, path: str, whole: object) -> ToolError:
    message = f"'{handle}' has nothing at {shortened(path)!r}."
    return ToolError(
        "invalid_input",
        message,
        hint="Use a path that the shape has, such as '/items/0'.",
        next_actions=[f"read_result(handle={handle!r})"],
        issues=[{"field": "path", "code": "unknown_path", "message": message}],
        shape=shape_of(whole, 1),
    )


class _Window(NamedTuple):
    """Which part of a value is wanted, and how many characters it may have."""

    offset: int
    limit: int | None
    grep: str | None
    room: int


def _told(part: Any, window: _Window) -> dict[str, Any]:
    """Return a part of a value: some of the items of a list, of the entries of an object or of the characters of a text."""
    if isinstance(part, list):
        items = cast("list[Any]", part)
        return {"type": "array", "total": len(items), **_cut(items, window, _as_list)}
    if isinstance(part, dict):
        pairs = list(cast("dict[str, Any]", part).items())
        return {"type": "object", "total": len(pairs), **_cut(pairs, window, dict)}
    if isinstance(part, str) and window.grep is not None:
        lines = part.splitlines()
        found = [f"{number}: {line}" for number, line in enumerate(lines, start=1) if _holds(line, window.grep)]
        return {"type": "lines", "total": len(lines), "matches": len(found), **_cut(found, window._replace(grep=None), _as_list)}
    if isinstance(part, str):
        end = window.offset + min(window.limit or _CHARACTERS, window.room // 2)
        more = {"next_offset": end} if end < len(part) else {}
        return {"type": "string", "total": len(part), "value": part[window.offset : end], **more}
    return {"type": shape_of(part)["type"], "total": 1, "value": part}


def _cut(items: list[Any], window: _Window, gather: Callable[[list[Any]], object]) -> dict[str, Any]:
    """Return as many of the items that hold the text as are asked for and there is room for; of one that is too long, its shape."""
    offset, limit, grep, room = window
    found = items if grep is None else [item for item in items if _holds(item, grep)]
    kept: list[Any] = []
    end = offset
    for item in found[offset : offset + (limit or _ITEMS)]:
        room -= len(encode(item)) + 1
        if room < 0:
            break
        kept.append(item)
        end += 1
    told: dict[str, Any] = {"value": gather(kept), **({} if grep is None else {"matches": len(found)})}
    if not kept and offset < len(found):
        told["too_long"] = {"offset": offset, "shape": shape_of(found[offset])}
        end += 1
    return {**told, "next_offset": end} if end < len(found) else told


def _as_list(items: list[Any]) -> object:
    return items


def _holds(item: object, grep: str) -> bool:
    """Return whether an item has the text in it, whatever its capitals; the text is no pattern, so it cannot take for ever."""
    text = item if isinstance(item, str) else encode(item).decode()
    return grep.lower() in text.lower()
