"""Edits of JSON as text, with comments and trailing commas; excerpts of an edit, and snippets to paste into YAML.

The text was parsed before, so an edit only looks for positions. The result is parsed again and compared.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, NamedTuple, cast

from callyard.client_configs.edit_toml import EditError, set_member
from callyard.client_configs.secrets import mask_excerpt
from callyard.config.upstreams import parse_json

__all__ = ["Snippet", "excerpt", "put_member", "remove_member", "yaml_snippet"]

_LOOK_BACK: Final = 20
"""Lines before an excerpt that are masked with it, because a line can tell that the next is secret."""


def excerpt(before: str, after: str) -> tuple[int, list[str]]:
    """Return the number of the first changed line, and a diff with one line of context; secrets are masked."""
    old, new = _lines(before), _lines(after)
    same = _common_length(old, new)
    end = min(_common_length(old[::-1], new[::-1]), len(old) - same, len(new) - same)
    start = max(same - _LOOK_BACK, 0)
    above = _masked(old[start:same])[-1:]
    removed, added = (_masked(lines[start : len(lines) - end])[same - start :] for lines in (old, new))
    below = _masked(new[start : len(new) - end + 1])[len(new) - end - start :] if end else []
    return same + 1, [*_signed(" ", above), *_signed("-", removed), *_signed("+", added), *_signed(" ", below)]


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _common_length(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _masked(lines: Sequence[str]) -> list[str]:
    return mask_excerpt("\n".join(lines)).split("\n") if lines else []


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
    """An object in a text: where it opens and closes, its members, and the trailing comma if there is one."""

    start: int
    close: int
    members: list[_Member]
    comma: int | None

    def last(self, key: str) -> _Member | None:
        return next((member for member in reversed(self.members) if member.key == key), None)


def put_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with a member at a path, whose missing objects are created.

    Raises:
        EditError: A part of the path is not an object.
    """
    if not text.strip():
        return json.dumps(_nested(path, value), indent=2, ensure_ascii=False) + "\n"
    where = _object_at(text, _start(text))
    for number, key in enumerate(path[:-1]):
        member = where.last(key)
        if member is None:
            return _checked(text, _inserted(text, where, key, _nested(path[number + 1 :], value)), path, value)
        if text[member.value] != "{":
            raise EditError(f"'{key}' is not an object")
        where = _object_at(text, member.value)
    member = where.last(path[-1])
    if member is None:
        return _checked(text, _inserted(text, where, path[-1], value), path, value)
    written = _written(text, value, indent=_indent_of(text, member.start), inline=_is_inline(text, where))
    return _checked(text, text[: member.value] + written + text[member.end :], path, value)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the existing member at a path.

    Raises:
        EditError: It cannot be removed without a change to something else.
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
    return _checked(text, edited, path, None)


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
    """Return the object that opens at a position."""
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
    raise EditError("an object in it is not closed")


def _start(text: str) -> int:
    first = next(_tokens(text, 0), None)
    if first is None or first[0] != "{":
        raise EditError("it is not an object")
    return first.start()


def _tokens(text: str, start: int) -> Iterator[re.Match[str]]:
    return (token for token in _TOKEN.finditer(text, start) if not token[0].startswith(("//", "/*")))


def _is_inline(text: str, where: _Object) -> bool:
    return "\n" not in text[where.start : where.close]


def _indent_of(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    return cast("re.Match[str]", _SPACES.match(text, begin, position))[0]


def _unit(text: str) -> str:
    """Return one step of the text's indentation."""
    return next((indent for indent in re.findall(r"\n([ \t]+)\S", text)), _INDENT)


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _checked(text: str, edited: str, path: Sequence[str], value: Any) -> str:
    """Return the edited text if it says what the text says with this value at the path."""
    expected: Any = parse_json(text, "")
    set_member(expected, path, value)
    with suppress(ValueError):
        if parse_json(edited, "") == expected:
            return edited
    raise EditError("it is not written in a way that can be changed safely")


class Snippet(NamedTuple):
    """Lines to paste into a file, and where, as part of a sentence."""

    lines: tuple[str, ...]
    position: str


def yaml_snippet(text: str, section: str, entry: str) -> Snippet:
    """Return a one-line entry to paste into YAML, indented as its neighbours below the name of its section."""
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        match = re.fullmatch(rf"([\"']?){re.escape(section)}\1\s*:(.*)", line)
        if match is None:
            continue
        if match[2].partition("#")[0].strip():
            return Snippet((f"{section}:", f"  {entry}"), f"in place of line {number}, together with its present content")
        return Snippet((f"{_indent(lines[number:], entry)}{entry}",), f"below line {number}, which says '{section}:'")
    return Snippet((f"{section}:", f"  {entry}"), "at the end" if lines else "there")


def _indent(below: list[str], entry: str) -> str:
    """Return the indentation of an entry's neighbours; the items of a list may have none."""
    for line in below:
        bare = line.lstrip(" ")
        if bare and not bare.startswith("#"):
            is_neighbour = bare != line or (entry.startswith("- ") and bare.startswith("-"))
            return line[: len(line) - len(bare)] if is_neighbour else "  "
    return "  "
