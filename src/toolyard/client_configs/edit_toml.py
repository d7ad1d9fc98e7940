"""TOML as text: tables put at its end and taken out again, with everything else left as somebody wrote it."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

__all__ = ["EditError", "add_table", "remove_table", "written_table"]

_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|\#[^\n]*|[\[\]{}\n]|[^\[\]{}\n"\'\#]+|["\']',
    re.DOTALL,
)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class EditError(ValueError):
    """A text cannot be changed without touching what somebody else wrote: half a sentence that says why."""


def written_table(path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return a table with its heading; tables of texts in it get headings of their own."""
    inner = {name: value for name, value in table.items() if _is_plain_table(value)}
    lines = [f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(name)} = {_value(value)}" for name, value in table.items() if name not in inner]
    return "\n\n".join(["\n".join(lines), *(written_table([*path, name], value) for name, value in inner.items())])


def add_table(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return the text with a table at its end.

    Raises:
        EditError: It cannot stand there.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
    added = text + gap + f"{written_table(path, table)}\n".replace("\n", newline)
    wanted = tomllib.loads(text)
    _put(wanted, path, dict(table))
    return _checked(added, wanted, f"'{'.'.join(path[:-1])}' is not written as tables with headings")


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return the text without a table and those inside it.

    Raises:
        EditError: It is not written as a table with a heading.
    """
    pieces: list[str] = []
    begin, removing = 0, False
    headings = list(_headings(text))
    for start, heading in headings:
        pieces.append(_comments_above(text[begin:start]) if removing else text[begin:start])
        begin, removing = start, heading[: len(path)] == list(path)
    kept = "".join(pieces)
    kept = re.sub(r"(\r?\n)(?:\r?\n)+\Z", r"\1", kept) if removing else kept + text[begin:]
    wanted = tomllib.loads(text)
    _put(wanted, path, None)
    return _checked(kept, wanted, f"'{'.'.join(path)}' is not written as a table with a heading")


def _checked(text: str, wanted: Mapping[str, Any], why: str) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise EditError(why) from None
    if _without_empty(found) != _without_empty(wanted):
        raise EditError(why)
    return text


def _without_empty(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without the tables at its top that have nothing in them: a heading may be all that made them."""
    return {name: value for name, value in document.items() if value != {}}


def _put(document: dict[str, Any], path: Sequence[str], value: dict[str, Any] | None) -> None:
    for name in path[:-1]:
        document = document.setdefault(name, {})
    if value is None:
        document.pop(path[-1], None)
    else:
        document[path[-1]] = value


def _headings(text: str) -> Iterator[tuple[int, list[str]]]:
    """Return where each heading begins, and what it names."""
    depth, begins_line = 0, True
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word == "[" and begins_line and depth == 0:
            yield text.rfind("\n", 0, token.start()) + 1, _named(text[token.start() :].partition("\n")[0].rstrip())
        depth += (word in "[{") - (word in "]}") if len(word) == 1 else 0
        begins_line = word == "\n" or (begins_line and not word.strip())


def _named(line: str) -> list[str]:
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
    """Return the comments at the end of a removed table that stand right above the next heading, and so belong to that."""
    lines = piece.splitlines(keepends=True)
    number = len(lines)
    while number > 1 and lines[number - 1].lstrip().startswith("#"):
        number -= 1
    return "".join(lines[number:])


def _is_plain_table(value: Any) -> bool:
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
