"""Edits of TOML and JSON as text: what is not edited stays as it is, comments and trailing commas included.

A result is parsed and compared with what it should mean. Excerpts of an edit, and snippets to paste into YAML.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, NamedTuple, cast

from callyard.client_configs.secrets import mask_excerpt
from callyard.config.upstreams import parse_json

__all__ = [
    "EditError",
    "Snippet",
    "add_table",
    "excerpt",
    "format_table",
    "put_member",
    "remove_member",
    "remove_table",
    "yaml_snippet",
]

_TOML_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*|[\[\]{}\n]|[^\[\]{}\n"\'\#]+|["\']',
    re.DOTALL,
)


class EditError(ValueError):
    """A text cannot be edited without a change to something else; the message is half a sentence with the reason."""


def format_table(path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return a table with its heading; inner tables of strings get headings of their own."""
    inner = {name: value for name, value in table.items() if value and _is_table_of_strings(value)}
    lines = [f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner]
    return "\n\n".join(["\n".join(lines), *(format_table([*path, name], value) for name, value in inner.items())])


def add_table(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return the text with a table at its end.

    Raises:
        EditError: The result would not mean what it should.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = newline if text.endswith("\n") else newline * 2
    if not text.strip():
        gap = ""
    added = text + gap + f"{format_table(path, table)}\n".replace("\n", newline)
    return _checked_toml(
        text, added, path, dict(table), f"'{'.'.join(path[:-1])}' is not written as tables with headings"
    )


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return the text without a table and those inside it.

    Raises:
        EditError: It is not written as a table with a heading.
    """
    pieces: list[str] = []
    begin, removing = 0, False
    for start, heading in _headings(text):
        pieces.append(_comments_above(text[begin:start]) if removing else text[begin:start])
        begin, removing = start, heading[: len(path)] == list(path)
    rest = "".join(pieces)
    rest = re.sub(r"(\r?\n)(?:\r?\n)+\Z", r"\1", rest) if removing else rest + text[begin:]
    return _checked_toml(text, rest, path, None, f"'{'.'.join(path)}' is not written as a table with a heading")


def _checked_toml(text: str, edited: str, path: Sequence[str], value: dict[str, Any] | None, problem: str) -> str:
    """Return the edited text if it says what the text says with this value at the path."""
    expected = tomllib.loads(text)
    _set_member(expected, path, value)
    with suppress(tomllib.TOMLDecodeError):
        if _without_empty(tomllib.loads(edited)) == _without_empty(expected):
            return edited
    raise EditError(problem)


def _without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without empty top-level tables, which a heading alone can make."""
    return {name: value for name, value in document.items() if value != {}}


def _set_member(document: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a member of a document by its path, or remove it if the value is None."""
    for name in path[:-1]:
        document = document.setdefault(name, {})
    if value is None:
        document.pop(path[-1], None)
    else:
        document[path[-1]] = value


def _headings(text: str) -> Iterator[tuple[int, list[str]]]:
    depth, begins_line = 0, True
    for token in _TOML_TOKEN.finditer(text):
        word = token[0]
        if word == "[" and begins_line and depth == 0:
            yield text.rfind("\n", 0, token.start()) + 1, _path_of(text[token.start() :].partition("\n")[0].rstrip())
        depth += (word in "[{") - (word in "]}") if len(word) == 1 else 0
        begins_line = word == "\n" or (begins_line and not word.strip())


def _path_of(line: str) -> list[str]:
    path: list[str] = []
    document: Any = tomllib.loads(line)
    while document:
        inner: Any = cast("list[Any]", document)[0] if isinstance(document, list) else document
        if not inner:
            break
        (name,) = cast("dict[str, Any]", inner)
        path.append(name)
        document = inner[name]
    return path


def _comments_above(piece: str) -> str:
    """Return the comments at the end of a removed table that belong to the next heading."""
    lines = piece.splitlines(keepends=True)
    number = len(lines)
    while number > 1 and lines[number - 1].lstrip().startswith("#"):
        number -= 1
    return "".join(lines[number:])


def _is_table_of_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in cast("dict[str, Any]", value).values())


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = [f"{_key(str(name))} = {_value(inner)}" for name, inner in cast("dict[Any, Any]", value).items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(inner) for inner in cast("list[Any]", value)) + "]"
    return repr(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


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


_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|//[^\n]*|/\*.*?\*/|[{}\[\],:]|[^\s{}\[\],:"/]+', re.DOTALL)


class _Member(NamedTuple):
    key: str
    start: int
    value: int
    end: int


class _Object(NamedTuple):
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
            return _checked_json(text, _inserted(text, where, key, _nested(path[number + 1 :], value)), path, value)
        if text[member.value] != "{":
            raise EditError(f"'{key}' is not an object")
        where = _object_at(text, member.value)
    member = where.last(path[-1])
    if member is None:
        return _checked_json(text, _inserted(text, where, path[-1], value), path, value)
    written = _written(text, value, indent=_indent_of(text, member.start), inline=_is_inline(text, where))
    return _checked_json(text, text[: member.value] + written + text[member.end :], path, value)


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
        edited = text[:begin] + text[text.index(",", member.end) + 1 :]
    elif where.comma is not None:
        edited = text[:begin] + text[where.comma + 1 :]
    elif number:
        comma = text.index(",", where.members[number - 1].end)
        edited = text[:comma] + text[comma + 1 : begin] + text[member.end :]
    else:
        edited = text[:begin] + text[member.end :]
    return _checked_json(text, edited, path, None)


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
    return (token for token in _JSON_TOKEN.finditer(text, start) if not token[0].startswith(("//", "/*")))


def _is_inline(text: str, where: _Object) -> bool:
    return "\n" not in text[where.start : where.close]


def _indent_of(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """Return one step of the text's indentation."""
    found = re.search(r"\n([ \t]+)\S", text)
    return "  " if found is None else found[1]


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _checked_json(text: str, edited: str, path: Sequence[str], value: Any) -> str:
    """Return the edited text if it says what the text says with this value at the path."""
    expected: Any = parse_json(text, "")
    _set_member(expected, path, value)
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
    for row, line in enumerate(lines, start=1):
        match = re.fullmatch(rf"([\"']?){re.escape(section)}\1\s*:(.*)", line)
        if match is None:
            continue
        if match[2].partition("#")[0].strip():
            return Snippet((f"{section}:", f"  {entry}"), f"in place of line {row}, together with its present content")
        return Snippet((f"{_indent(lines[row:], entry)}{entry}",), f"below line {row}, which says '{section}:'")
    return Snippet((f"{section}:", f"  {entry}"), "at the end" if lines else "there")


def _indent(below: list[str], entry: str) -> str:
    """Return the indentation of an entry's neighbours; the items of a list may have none."""
    for line in below:
        bare = line.lstrip(" ")
        if bare and not bare.startswith("#"):
            is_neighbour = bare != line or (entry.startswith("- ") and bare.startswith("-"))
            return line[: len(line) - len(bare)] if is_neighbour else "  "
    return "  "
