"""Notices: lines for people, and log lines, on stderr.

Control characters are escaped, so that text of tools cannot move the cursor. Data on stdout belongs to the command
line.
"""

import logging
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TextIO

from callyard._internal.logfmt import traceback_of
from callyard._internal.mask import mask_text

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
CONTROL: Final = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"


class Painted(NamedTuple):
    """Text with a style, which shows where colours are on."""

    text: str
    style: Style


Part = str | Painted
Line = tuple[Part, ...]


class Notices:
    """Writes notices to stderr; a notice that cannot be written is dropped."""

    def __init__(self) -> None:
        self._err: TextIO | None = sys.stderr
        self.quiet = False
        """Whether only errors and warnings are written."""
        self.trace_ids: Callable[[], tuple[str, str] | None] | None = None
        """Returns the trace and span that a log line belongs to, where a yard is traced."""
        self.stderr_is_terminal = is_terminal(self._err)
        self._has_escapes = os.environ.get("TERM") != "dumb"
        self._wants_colours = self._has_escapes and not os.environ.get("NO_COLOR")
        self._notice_colours = self.stderr_is_terminal and self._wants_colours
        self._notice_is_open = False
        """Whether the last text has no line break at its end."""

    def say(self, *parts: Part) -> None:
        """Write a line to stderr, below an open one; nothing fails if it cannot be written."""
        self.clear()
        self._notify("\n" * self._notice_is_open + painted(parts, colours=self._notice_colours) + "\n")
        self._notice_is_open = False

    def say_text(self, text: str) -> None:
        """Write text to stderr as it is, without a line break after it."""
        self.clear()
        self._notify(clean(text))
        self._notice_is_open = bool(text) and not text.endswith("\n")

    def inform(self, *parts: Part) -> None:
        """Write a line to stderr, unless quiet."""
        if not self.quiet:
            self.say(*parts)

    def clear(self) -> None:
        """Remove a progress line, which only a terminal has."""

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
    """Log to stderr while the context is open.

    The level is warning; `verbose` 1 adds information, 2 everything; `quiet` leaves only errors.
    """
    handler = _NoticeHandler(notices, with_messages=verbose > 1)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


class _NoticeHandler(logging.Handler):
    """Writes records as notices, which clear the progress line first."""

    def __init__(self, notices: Notices, *, with_messages: bool) -> None:
        super().__init__()
        self._notices = notices
        form = "%(asctime)s %(levelname)s %(name)s %(message)s"
        self.setFormatter(_LineFormatter(form, notices, with_messages=with_messages))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._notices.say(self.format(record))
        except Exception:  # noqa: BLE001 - logging must not fail the code that logs
            self.handleError(record)


class _LineFormatter(logging.Formatter):
    """Formats a record as one line, whoever logs it, with secrets masked; a traceback follows on lines of its own."""

    def __init__(self, form: str, notices: Notices, *, with_messages: bool) -> None:
        super().__init__(form)
        self._notices = notices
        self._with_messages = with_messages

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with a traceback of its own.

        A traceback that another handler has formatted may not be masked.
        """
        if record.exc_info:
            record = copy(record)
            record.exc_text = None
        return super().format(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - logging's own name
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        line = mask_text(super().formatMessage(record).replace("\n", "\\n"))
        find_ids = self._notices.trace_ids
        ids = None if find_ids is None else find_ids()
        return line if ids is None or " span=" in line else f"{line} trace={ids[0]} span={ids[1]}"

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's own name
        """Return a traceback, whose messages may hold contents of calls and are shown only with `-vv`."""
        return traceback_of(ei[1], with_messages=self._with_messages)


def painted(parts: Iterable[Part], *, colours: bool) -> str:
    """Return the parts as one line, with or without colours."""
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
    """Redirect a stream to the null device, so that flushing its buffer cannot fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def clean(text: str) -> str:
    """Return the text with control characters escaped."""
    if text.isprintable():
        return text
    return re.sub(CONTROL, lambda match: ascii(match[0])[1:-1], text.replace("\r\n", "\n"))


def encodable(text: str, stream: TextIO) -> str:
    """Return the text with characters escaped that the encoding of the stream does not have."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
