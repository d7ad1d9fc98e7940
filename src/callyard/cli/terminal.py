"""The terminal of a command: data on stdout, notices and progress on stderr, colours only where a person reads."""

import json
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, TextIO
from unicodedata import combining, east_asian_width

from callyard.launch.notices import (
    CONTROL,
    Line,
    Notices,
    Painted,
    Part,
    Style,
    clean,
    discard,
    encodable,
    is_terminal,
    painted,
)

__all__ = [
    "Line",
    "OutputError",
    "Painted",
    "Part",
    "Style",
    "Terminal",
    "columns_of",
    "cut",
    "pad",
    "painted_change",
    "width_of",
]


_WIDTH: Final = 80


class OutputError(Exception):
    """Data cannot be written to stdout; the message says why."""


class Terminal(Notices):
    """Writes data, notices, and progress on a line that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self._out: TextIO | None = sys.stdout
        self.interactive = is_terminal(self._out)
        self._colours = self.interactive and self._wants_colours
        self._in_place = self._has_escapes and self.stderr_is_terminal
        self._progress_shown = False
        self._line_is_open = False

    @property
    def can_ask(self) -> bool:
        """Return whether a person reads stderr and can answer on stdin."""
        return not self.quiet and self.stderr_is_terminal and is_terminal(sys.stdin)

    def ask(self, question: str) -> bool:
        """Ask a person, and return whether the answer is yes; anything else, and no answer, is no."""
        self.flush()
        self.say_text(question)
        answer = sys.stdin.readline()
        self._notice_is_open = not answer.endswith("\n")
        return answer.strip().lower() in {"y", "yes"}

    @property
    def width(self) -> int:
        """Return the number of columns of stdout."""
        return columns_of(self._out)

    def write(self, *parts: Part) -> None:
        """Write a line of data, on a line of its own."""
        self.clear()
        self._put("\n" * self._line_is_open + painted(parts, colours=self._colours) + "\n")
        self._line_is_open = False

    def say(self, *parts: Part) -> None:
        """Write a line to stderr; where a terminal shows both streams, below an open line of data."""
        if self._line_is_open and self._in_place and is_terminal(self._out):
            self.write_text("\n")
        super().say(*parts)

    def write_text(self, text: str) -> None:
        """Write text as it is, without a line break after it."""
        self.clear()
        self._put(clean(text))
        self.flush()
        self._line_is_open = not text.endswith("\n")

    def write_json(self, text: bytes) -> None:
        """Write JSON; control characters, and those that the encoding does not have, become JSON escapes."""
        self.clear()
        shown = _escape_json(text.decode(), CONTROL)
        if self._out is not None and encodable(shown, self._out) != shown:
            shown = _escape_json(shown, r"[^\x00-\x7e]")
        self._put(shown + "\n")

    def _put(self, text: str) -> None:
        if self._out is not None:
            with _explained():
                self._out.write(encodable(text, self._out))

    def show_progress(self, text: str) -> None:
        """Write progress to stderr; on a terminal it overwrites the previous progress."""
        if self.quiet or self._err is None:
            return
        if not self._in_place:
            self.say(text)
            return
        line = cut(" ".join(clean(text).split()), columns_of(self._err) - 1)
        self._notify(f"\r{line}\x1b[K")
        self._progress_shown = True

    def clear(self) -> None:
        """Remove the progress line, if one is shown."""
        if self._progress_shown:
            self._progress_shown = False
            self._notify("\r\x1b[K")

    def flush(self) -> None:
        """Flush stdout, so that a closed pipe or a full disk is noticed now."""
        if self._out is not None:
            with _explained():
                self._out.flush()

    def abandon(self) -> None:
        """Discard all further output, because nobody reads it."""
        if self._out is not None:
            discard(self._out)


def width_of(text: str) -> int:
    """Return the number of columns of a text; East Asian characters are two columns wide."""
    shown = [character for character in text if not combining(character)]
    return len(shown) + sum(east_asian_width(character) in "WF" for character in shown)


def cut(text: str, width: int) -> str:
    """Return the text cut to a number of columns, with '…' at the end."""
    if width_of(text) <= width:
        return text
    start, used = "", 1
    for character in text:
        used += width_of(character)
        if used > width:
            break
        start += character
    return f"{start.rstrip()}…" if width > 0 else ""


def painted_change(line: str) -> Part:
    """Return a line of a diff in the colour of its sign."""
    signs: dict[str, Style] = {"+": "good", "-": "bad"}
    return Painted(line, signs[line[:1]]) if line[:1] in signs else line


def pad(text: str, width: int) -> str:
    """Return the text with spaces up to a number of columns."""
    return text + " " * (width - width_of(text))


@contextmanager
def _explained() -> Generator[None]:
    """Turn errors of writing data into `OutputError`, except a closed pipe, which `main` handles."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"The output cannot be written: {error.strerror}.") from error


def columns_of(stream: TextIO | None) -> int:
    """Return the number of columns of a stream: that of the variable 'COLUMNS', of the terminal, or 80."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH if stream is not None else _WIDTH
    except (OSError, ValueError):  # not a terminal, or not a file
        return _WIDTH


def _escape_json(text: str, pattern: str) -> str:
    return re.sub(pattern, lambda match: json.dumps(match[0])[1:-1], text)
