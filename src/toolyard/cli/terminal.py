"""The terminal: data goes to stdout, everything else to stderr, and colours only to people.

What others wrote, such as a description or a result, cannot move the cursor: control characters are shown, not sent.
"""

import os
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple, TextIO
from unicodedata import combining, east_asian_width

__all__ = ["OutputError", "Painted", "Part", "Style", "Terminal", "columns_of", "cut", "width_of"]

Style = Literal["bold", "faint", "good", "bad"]

_STYLES: Final[dict[Style, str]] = {"bold": "1", "faint": "2", "good": "32", "bad": "31"}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_BEYOND_ASCII: Final = re.compile(r"[^\x00-\x7e]")
_WIDTH: Final = 80


class OutputError(Exception):
    """Data cannot be written to stdout; the sentence says why."""


class Painted(NamedTuple):
    """Text in a style, where there are colours."""

    text: str
    style: Style


Part = str | Painted


class Terminal:
    """Where a command writes: data, notices, and progress in one place of the screen."""

    def __init__(self) -> None:
        self._out: TextIO | None = sys.stdout
        self._err: TextIO | None = sys.stderr
        smart = os.environ.get("TERM") != "dumb"
        self.interactive = _is_terminal(self._out)
        self.quiet = False
        self.attended = _is_terminal(self._err)
        wanted = smart and not os.environ.get("NO_COLOR")
        self._colours = self.interactive and wanted
        self._notice_colours = self.attended and wanted
        self._in_place = smart and self.attended
        self._progress_shown = False

    @property
    def width(self) -> int:
        """Return how many columns stdout has."""
        return columns_of(self._out)

    def write(self, *parts: Part) -> None:
        """Write a line of data, made of the parts."""
        self.clear()
        if self._out is not None:
            text = _painted(parts, colours=self._colours)
            with _told():
                self._out.write(_encodable(text, self._out) + "\n")

    def write_json(self, text: bytes) -> None:
        """Write JSON, with what the terminal or the encoding cannot take escaped as JSON escapes it."""
        self.clear()
        if self._out is None:
            return
        shown = _escape_json(text.decode(), _CONTROL)
        if _encodable(shown, self._out) != shown:
            shown = _escape_json(shown, _BEYOND_ASCII)
        with _told():
            self._out.write(shown + "\n")

    def say(self, *parts: Part) -> None:
        """Write a notice to stderr; one that nobody reads fails nothing."""
        self.clear()
        self._notify(_painted(parts, colours=self._notice_colours) + "\n")

    def show_progress(self, text: str) -> None:
        """Write to stderr how far a call has come, over what was written so before if that is a terminal."""
        if self.quiet or self._err is None:
            return
        if not self._in_place:
            self.say(text)
            return
        line = cut(" ".join(_clean(text).split()), columns_of(self._err) - 1)
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
            _discard(self._out)

    def _notify(self, text: str) -> None:
        if self._err is None:
            return
        try:
            self._err.write(_encodable(text, self._err))
            self._err.flush()
        except OSError:
            _discard(self._err)


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


def _painted(parts: Iterable[Part], *, colours: bool) -> str:
    return "".join(_paint(part, colours=colours) for part in parts)


def _paint(part: Part, *, colours: bool) -> str:
    if isinstance(part, str):
        return _clean(part)
    text = _clean(part.text)
    return f"\x1b[{_STYLES[part.style]}m{text}\x1b[0m" if colours and text else text


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


@contextmanager
def _told() -> Generator[None]:
    """Say why data cannot be written; that nobody reads it any more is another matter."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"The output cannot be written: {error.strerror}.") from error


def _discard(stream: TextIO) -> None:
    """Send what the stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def columns_of(stream: TextIO | None) -> int:
    """Return how many columns a stream has: what the environment says, or the terminal, or the usual number."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH if stream is not None else _WIDTH
    except (OSError, ValueError):  # no terminal, or a stream that is no file
        return _WIDTH


def _clean(text: str) -> str:
    """Return the text with its control characters shown as people write them."""
    return _CONTROL.sub(_shown, text.replace("\r\n", "\n"))


def _shown(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def _encodable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _escape_json(text: str, pattern: re.Pattern[str]) -> str:
    import json  # noqa: PLC0415 - a server writes no data here

    return pattern.sub(lambda match: json.dumps(match[0])[1:-1], text)
