"""Logs: what the yard has to say about itself, as lines on stderr that grep and parse.

A line is `<ISO time> <LEVEL> <logger> <message>`, and a message is an event and then facts.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime

from toolyard.cli.terminal import Terminal

__all__ = ["logging_to"]


@contextmanager
def logging_to(terminal: Terminal, *, verbose: int, quiet: bool) -> Generator[None]:
    """Log to the terminal meanwhile: warnings, with one `verbose` information, with two everything, when `quiet` errors alone."""
    handler = _Lines(terminal)
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

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self._terminal = terminal
        self.setFormatter(_Line("%(asctime)s %(levelname)s %(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Say the record."""
        try:
            self._terminal.say(self.format(record))
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
