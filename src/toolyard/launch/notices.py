"""Notices: what a server or a command tells a person, as lines on stderr.

Control characters are shown, not sent, so that text from others cannot move the cursor. Data on stdout belongs to the command line.
"""

import logging
import os
import re
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TextIO

__all__ = [
    "CONTROL",
    "Line",
    "Notices",
    "Painted",
    "Part",
    "Style",
    "clean",
    "discard",
    "encodable",
    "is_terminal",
    "logging_to",
    "painted",
]

Style = Literal["bold", "faint", "good", "bad"]
_STYLES: Final[dict[Style, str]] = {"bold": "1", "faint": "2", "good": "32", "bad": "31"}
CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Painted(NamedTuple):
    """Text in a style, where there are colours."""

    text: str
    style: Style


Part = str | Painted
Line = tuple[Part, ...]


class Notices:
    """Writes notices to stderr; a notice that cannot be written is dropped."""

    def __init__(self) -> None:
        self._err: TextIO | None = sys.stderr
        self.quiet = False
        self.attended = is_terminal(self._err)
        """Whether a person watches stderr."""
        self._smart = os.environ.get("TERM") != "dumb"
        self._wants_colours = self._smart and not os.environ.get("NO_COLOR")
        self._notice_colours = self.attended and self._wants_colours

    def say(self, *parts: Part) -> None:
        """Write a notice to stderr; one that nobody reads fails nothing."""
        self.clear()
        self._notify(painted(parts, colours=self._notice_colours) + "\n")

    def clear(self) -> None:
        """Remove what is shown in place, if there is anything."""

    def _notify(self, text: str) -> None:
        if self._err is None:
            return
        try:
            self._err.write(encodable(text, self._err))
            self._err.flush()
        except OSError:
            discard(self._err)


@contextmanager
def logging_to(notices: Notices, *, verbose: int, quiet: bool) -> Generator[None]:
    """Log to the terminal meanwhile: warnings, with one `verbose` information, with two everything, when `quiet` errors alone."""
    handler = _Lines(notices)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


class _Lines(logging.Handler):
    """Says each record on the terminal, where it does not get between the pieces of a progress line."""

    def __init__(self, notices: Notices) -> None:
        super().__init__()
        self._notices = notices
        self.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Say the record."""
        try:
            self._notices.say(self.format(record))
        except Exception:  # noqa: BLE001 - a line that cannot be formatted must not fail what it tells of
            self.handleError(record)


class _Line(logging.Formatter):
    """Writes a record as one line, and its traceback, if it has one, below."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's own name
        """Return when it was, in UTC."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Return the line, with no break inside."""
        return super().formatMessage(record).replace("\n", "\\n")


def painted(parts: Iterable[Part], *, colours: bool) -> str:
    """Return a line made of the parts, with or without colours."""
    return "".join(_paint(part, colours=colours) for part in parts)


def _paint(part: Part, *, colours: bool) -> str:
    if isinstance(part, str):
        return clean(part)
    text = clean(part.text)
    return f"\x1b[{_STYLES[part.style]}m{text}\x1b[0m" if colours and text else text


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def discard(stream: TextIO) -> None:
    """Send what the stream still holds, and all that follows, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def clean(text: str) -> str:
    """Return the text with its control characters shown as people write them."""
    return CONTROL.sub(_shown, text.replace("\r\n", "\n"))


def _shown(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def encodable(text: str, stream: TextIO) -> str:
    """Return the text with what the encoding of the stream cannot write escaped."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
