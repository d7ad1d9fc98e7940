"""Edits of TOML as text: add a table at the end or remove one, and leave everything else as it is."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast

__all__ = ["EditError", "add_table", "format_table", "remove_table", "set_member"]

_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*|[\[\]{}\n]|[^\[\]{}\n"\'\#]+|["\']',
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class EditError(ValueError):
    """A text cannot be edited without a change to something else; the message is half a sentence with the reason."""


def format_table(path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return a table with its heading; inner tables of strings get headings of their own."""
    inner = {name: value for name, value in table.items() if _is_table_of_strings(value)}
    lines = [f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner]
    return "\n\n".join(["\n".join(lines), *(format_table([*path, name], value) for name, value in inner.items())])


def add_table(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return the text with a table at its end.

    Raises:
        EditError: The result would not mean what it should.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
    added = text + gap + f"{format_table(path, table)}\n".replace("\n", newline)
    return _checked(text, added, path, dict(table), f"'{'.'.join(path[:-1])}' is not written as tables with headings")


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
    return _checked(text, rest, path, None, f"'{'.'.join(path)}' is not written as a table with a heading")


def _checked(text: str, edited: str, path: Sequence[str], value: dict[str, Any] | None, problem: str) -> str:
    """Return the edited text if it says what the text says with this value at the path."""
    expected = tomllib.loads(text)
    set_member(expected, path, value)
    with suppress(tomllib.TOMLDecodeError):
        if _without_empty(tomllib.loads(edited)) == _without_empty(expected):
            return edited
    raise EditError(problem)


def _without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without empty top-level tables, which a heading alone can make."""
    return {name: value for name, value in document.items() if value != {}}


def set_member(document: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a member of a document by its path, or remove it if the value is None."""
    for name in path[:-1]:
        document = document.setdefault(name, {})
    if value is None:
        document.pop(path[-1], None)
    else:
        document[path[-1]] = value


def _headings(text: str) -> Iterator[tuple[int, list[str]]]:
    """Return where each heading begins, and its path."""
    depth, begins_line = 0, True
    for token in _TOKEN.finditer(text):
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
    return isinstance(value, dict) and value != {} and all(isinstance(item, str) for item in cast("dict[str, Any]", value).values())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(name))} = {_value(inner)}" for name, inner in cast("dict[Any, Any]", value).items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(inner) for inner in cast("list[Any]", value)) + "]"
    return repr(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
