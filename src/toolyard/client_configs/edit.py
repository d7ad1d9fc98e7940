"""JSON as text, with the comments and trailing commas that clients allow: one member of an object is put in or taken out.

It edits what was parsed before, so it looks for places and checks nothing but what came out.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple, cast

from toolyard.client_configs.edit_toml import EditError
from toolyard.client_configs.secrets import hidden_text
from toolyard.config.upstreams import parse_json

__all__ = ["Paste", "excerpt", "paste", "put_member", "remove_member"]


_LOOK_BACK: Final = 20
"""Lines before an excerpt that are read, too, because one may tell that the next is secret."""


def excerpt(before: str, after: str) -> tuple[int, list[str]]:
    """Return the number of the first line that differs, and the lines from there to the last, with one around them and signs in front."""
    old, new = _lines(before), _lines(after)
    same = _alike(old, new)
    end = min(_alike(old[::-1], new[::-1]), len(old) - same, len(new) - same)
    start = max(same - _LOOK_BACK, 0)
    above = _hidden(old[start:same])[-1:]
    gone, come = (_hidden(lines[start : len(lines) - end])[same - start :] for lines in (old, new))
    below = _hidden(new[start : len(new) - end + 1])[len(new) - end - start :] if end else []
    return same + 1, [*_signed(" ", above), *_signed("-", gone), *_signed("+", come), *_signed(" ", below)]


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _hidden(lines: Sequence[str]) -> list[str]:
    return hidden_text("\n".join(lines)).split("\n") if lines else []


def _signed(sign: str, lines: Sequence[str]) -> list[str]:
    return [f"{sign}{line}".rstrip() for line in lines]


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL)
_SPACES: Final = re.compile(r"[ \t]*")
_INDENT: Final = "  "


class _Member(NamedTuple):
    key: str
    start: int
    value: int
    end: int


class _Object(NamedTuple):
    """An object in a text: where it opens and closes, its members, and the comma behind the last if there is one."""

    start: int
    close: int
    members: list[_Member]
    comma: int | None

    def last(self, key: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


def put_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with a member in the object that a path leads to; what of the path is missing is made.

    Raises:
        EditError: Something on the path is no object.
    """
    if not text.strip():
        return json.dumps(_nested(path, value), indent=2, ensure_ascii=False) + "\n"
    where = _object_at(text, _start(text))
    for number, key in enumerate(path[:-1]):
        member = where.last(key)
        if member is None:
            return _checked(_inserted(text, where, key, _nested(path[number + 1 :], value)), _with(text, path, value))
        if text[member.value] != "{":
            raise EditError(f"'{key}' is no object")
        where = _object_at(text, member.value)
    member = where.last(path[-1])
    if member is None:
        return _checked(_inserted(text, where, path[-1], value), _with(text, path, value))
    written = _written(text, value, indent=_indent_of(text, member.start), inline=_is_inline(text, where))
    return _checked(text[: member.value] + written + text[member.end :], _with(text, path, value))


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member that a path leads to, which is there.

    Raises:
        EditError: It cannot be taken out without touching something else.
    """
    where = _object_at(text, _start(text))
    for key in path[:-1]:
        where = _object_at(text, cast("_Member", where.last(key)).value)
    member = cast("_Member", where.last(path[-1]))
    number = where.members.index(member)
    begin = len(text[: member.start].rstrip())
    if member is not where.members[-1]:
        after = text.index(",", member.end) + 1
        edited = text[:begin] + text[after:]
    elif where.comma is not None:
        edited = text[:begin] + text[where.comma + 1 :]
    elif number:
        comma = text.index(",", where.members[number - 1].end)
        edited = text[:comma] + text[comma + 1 : begin] + text[member.end :]
    else:
        edited = text[:begin] + text[member.end :]
    return _checked(edited, _with(text, path, None))


def _inserted(text: str, where: _Object, key: str, value: Any) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    name = f"{json.dumps(key, ensure_ascii=False)}: "
    point = len(text[: where.close].rstrip())
    if not where.members:
        outer = _indent_of(text, where.start)
        member = name + _written(text, value, indent=outer + _unit(text), inline=False)
        return f"{text[:point]}{newline}{outer}{_unit(text)}{member}{newline}{outer}{text[where.close :]}"
    end = where.members[-1].end
    if _is_inline(text, where):
        return f"{text[:end]}, {name}{_written(text, value, indent='', inline=True)}{text[end:]}"
    indent = _indent_of(text, where.members[-1].start)
    member = name + _written(text, value, indent=indent, inline=False)
    before, after = ("", ",") if where.comma is not None else (",", "")
    return f"{text[:end]}{before}{text[end:point]}{newline}{indent}{member}{after}{text[point:]}"


def _written(text: str, value: Any, *, indent: str, inline: bool) -> str:
    if inline:
        return json.dumps(value, ensure_ascii=False)
    newline = "\r\n" if "\r\n" in text else "\n"
    return json.dumps(value, indent=_unit(text), ensure_ascii=False).replace("\n", newline + indent)


def _object_at(text: str, start: int) -> _Object:
    """Return the object that opens at a place."""
    members: list[_Member] = []
    parts: list[re.Match[str]] = []
    depth, comma = 0, None
    for token in _tokens(text, start):
        word = token[0]
        depth -= word in {"}", "]"}
        ends = depth == 0 and token.start() > start
        if parts and (ends or (depth == 1 and word == ",")):
            members.append(_Member(json.loads(parts[0][0]), parts[0].start(), parts[2].start(), parts[-1].end()))
        if ends:
            return _Object(start, token.start(), members, None if parts else comma)
        if depth == 1 and word == ",":
            parts, comma = [], token.start()
        elif token.start() > start:
            parts.append(token)
        depth += word in {"{", "["}
    raise EditError("an object in it has no end")


def _start(text: str) -> int:
    first = next(_tokens(text, 0), None)
    if first is None or first[0] != "{":
        raise EditError("it is no object")
    return first.start()


def _tokens(text: str, start: int) -> Iterator[re.Match[str]]:
    return (token for token in _TOKEN.finditer(text, start) if not token[0].startswith(("//", "/*")))


def _is_inline(text: str, where: _Object) -> bool:
    return "\n" not in text[where.start : where.close]


def _indent_of(text: str, place: int) -> str:
    begin = text.rfind("\n", 0, place) + 1
    return cast("re.Match[str]", _SPACES.match(text, begin, place))[0]


def _unit(text: str) -> str:
    """Return what one step of indentation is in a text."""
    return next((indent for indent in re.findall(r"\n([ \t]+)\S", text)), _INDENT)


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _with(text: str, path: Sequence[str], value: Any) -> Any:
    """Return what a text should say once a value is there, or is gone if there is none."""
    document: Any = parse_json(text, "")
    inner = document
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    if value is None:
        inner.pop(path[-1])
    else:
        inner[path[-1]] = value
    return document


def _checked(text: str, wanted: Any) -> str:
    try:
        found = parse_json(text, "")
    except ValueError:
        raise EditError("it is not written in a way that can be changed safely") from None
    if found != wanted:
        raise EditError("it is not written in a way that can be changed safely")
    return text


class Paste(NamedTuple):
    """Lines for a file, and their place in it."""

    lines: tuple[str, ...]
    place: str
    """Where they go, as a part of a sentence."""


def paste(text: str, section: str, entry: str) -> Paste:
    """Return an entry, written on one line, as it goes into a text: indented as its neighbours are, below the name of its section."""
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        found = re.fullmatch(rf"([\"']?){re.escape(section)}\1\s*:(.*)", line)
        if found is None:
            continue
        if found[2].partition("#")[0].strip():
            return Paste((f"{section}:", f"  {entry}"), f"in the place of line {number}, with what that has already")
        return Paste((f"{_indent(lines[number:], entry)}{entry}",), f"below line {number}, which says '{section}:'")
    return Paste((f"{section}:", f"  {entry}"), "at the end" if lines else "there")


def _indent(below: list[str], entry: str) -> str:
    """Return what the neighbours of an entry begin with; the items of a list need not be indented at all."""
    for line in below:
        bare = line.lstrip(" ")
        if bare and not bare.startswith("#"):
            is_neighbour = bare != line or (entry.startswith("- ") and bare.startswith("-"))
            return line[: len(line) - len(bare)] if is_neighbour else "  "
    return "  "
