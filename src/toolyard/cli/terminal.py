"""The terminal: data goes to stdout, everything else to stderr, and colours only to people.

What others wrote, such as a description or a result, cannot move the cursor: control characters are shown, not sent.
"""

import os
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import Any, Final, TextIO, cast
from unicodedata import combining, east_asian_width

from toolyard.launch.notices import CONTROL, Line, Notices, Painted, Part, Style, clean, discard, encodable, is_terminal, painted

__all__ = ["Line", "OutputError", "Painted", "Part", "Style", "Terminal", "cell", "columns_of", "cut", "outline", "table", "width_of"]


_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7e]")
_WIDTH: Final = 80


class OutputError(Exception):
    """Data cannot be written to stdout; the sentence says why."""


class Terminal(Notices):
    """Where a command writes: data, notices, and progress in one place of the screen."""

    def __init__(self) -> None:
        super().__init__()
        self._out: TextIO | None = sys.stdout
        self.interactive = is_terminal(self._out)
        self._colours = self.interactive and self._wants_colours
        self._in_place = self._smart and self.attended
        self._progress_shown = False

    @property
    def width(self) -> int:
        """Return how many columns stdout has."""
        return columns_of(self._out)

    def write(self, *parts: Part) -> None:
        """Write a line of data, made of the parts."""
        self.clear()
        if self._out is not None:
            text = painted(parts, colours=self._colours)
            with _told():
                self._out.write(encodable(text, self._out) + "\n")

    def write_json(self, text: bytes) -> None:
        """Write JSON, with what the terminal or the encoding cannot take escaped as JSON escapes it."""
        self.clear()
        if self._out is None:
            return
        shown = _escape_json(text.decode(), CONTROL)
        if encodable(shown, self._out) != shown:
            shown = _escape_json(shown, _BEYOND_ASCII)
        with _told():
            self._out.write(shown + "\n")

    def show_progress(self, text: str) -> None:
        """Write to stderr how far a call has come, over what was written so before if that is a terminal."""
        if self.quiet or self._err is None:
            return
        if not self._in_place:
            self.say(text)
            return
        line = cut(" ".join(clean(text).split()), columns_of(self._err) - 1)
        self._notify(f"\r{line}\x1b[K")
        self._progress_shown = True

    def clear(self) -> None:
        """Remove the progress that is shown, if there is any."""
        if self._progress_shown:
            self._progress_shown = False
            self._notify("\r\x1b[K")

    def flush(self) -> None:
        """Send what was written, so that a closed pipe or a full disk is noticed now."""
        if self._out is not None:
            with _told():
                self._out.flush()

    def abandon(self) -> None:
        """Send nothing more to stdout, because nobody reads it."""
        if self._out is not None:
            discard(self._out)


def width_of(text: str) -> int:
    """Return how many columns a text takes."""
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def cut(text: str, width: int) -> str:
    """Return the text in at most so many columns, with what was cut shown as '…'."""
    if width_of(text) <= width:
        return text
    kept, used = "", 1
    for character in text:
        used += width_of(character)
        if used > width:
            break
        kept += character
    return f"{kept.rstrip()}…" if width > 0 else ""


@contextmanager
def _told() -> Generator[None]:
    """Say why data cannot be written; that nobody reads it any more is another matter."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"The output cannot be written: {error.strerror}.") from error


def columns_of(stream: TextIO | None) -> int:
    """Return how many columns a stream has: what the environment says, or the terminal, or the usual number."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH if stream is not None else _WIDTH
    except (OSError, ValueError):  # no terminal, or a stream that is no file
        return _WIDTH


def _escape_json(text: str, pattern: re.Pattern[str]) -> str:
    import json  # noqa: PLC0415 - a server writes no data here

    return pattern.sub(lambda match: json.dumps(match[0])[1:-1], text)


_SHORT: Final = 36
_NARROWEST: Final = 12
_GAP: Final = "   "


def outline(value: Any, width: int) -> Iterator[Line]:
    """Return the lines of a value."""
    if isinstance(value, dict) and value:
        yield from _pairs(cast("dict[str, Any]", value), width)
    elif isinstance(value, list) and _is_nested(value):
        for item in cast("list[Any]", value):
            mark: Part = Painted("- ", "faint")
            for line in outline(item, width - 2):
                yield (mark, *line)
                mark = "  "
    else:
        yield from ((text,) for text in _wrapped(_flat(value), width))


def _pairs(pairs: dict[str, Any], width: int) -> Iterator[Line]:
    """Return the lines of an object; facts that are short and stand together share a line."""
    shared: list[Part] = []
    used = 0
    for key, value in pairs.items():
        text = f"{key}: {_flat(value)}"
        if len(text) <= min(_SHORT, width):
            if shared and used + len(_GAP) + len(text) > width:
                yield tuple(shared)
                shared, used = [], 0
            used += len(text) + (len(_GAP) if shared else 0)
            shared += [*([_GAP] if shared else []), Painted(f"{key}: ", "faint"), _flat(value)]
            continue
        if shared:
            yield tuple(shared)
            shared, used = [], 0
        yield from _pair(key, value, width)
    if shared:
        yield tuple(shared)


def _pair(key: str, value: Any, width: int) -> Iterator[Line]:
    """Return the lines of one fact: on one if there is room, wrapped if it is text, or else below its name."""
    name, flat = Painted(f"{key}: ", "faint"), _flat(value)
    if len(key) + 2 + len(flat) > width and _is_nested(value):
        yield (Painted(f"{key}:", "faint"),)
        yield from (("  ", *line) for line in outline(value, width - 2))
        return
    first, *rest = _wrapped(flat, width - len(key) - 2)
    yield (name, first)
    yield from ((" " * (len(key) + 2), text) for text in rest)


def _is_nested(value: Any) -> bool:
    """Return whether a value has parts that have parts, which lines of their own make plain."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict | list) for item in cast("list[Any]", value)))


def _flat(value: Any) -> str:
    import json  # noqa: PLC0415 - a server writes no data here

    return value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(width, _NARROWEST), break_on_hyphens=False)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def cell(text: str) -> str:
    """Return text as it can stand in a table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
