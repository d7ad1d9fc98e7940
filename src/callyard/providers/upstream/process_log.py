"""The log of an upstream's process: its stderr with timestamps, in a small rotated file, and its last lines in memory.

At most a fixed number of bytes a second is written. The rest is counted, and a line in the file says how much is
missing. Secrets of the upstream's settings are masked when they are written; what looks like another secret is masked
when the file is read.
"""

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

from callyard._internal.files import make_private
from callyard._internal.logfmt import log_fields
from callyard._internal.mask import MASK, mask_text
from callyard._internal.pipes import LineSplitter
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.link import LinkError

__all__ = [
    "LOG_FILE",
    "LogReader",
    "ProcessLog",
    "last_lines",
    "log_failure",
    "log_path",
    "logged_upstreams",
    "rotated_path",
]

Source = Literal["stderr", "stdout", "callyard"]
LOG_FILE: Final = "stderr.log"
_FILE_BYTES: Final = 1024 * 1024
_LINE_BYTES: Final = 16 * 1024
_SECOND_BYTES: Final = 1024 * 1024
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 20
_CONTROL_SEQUENCES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_log = logging.getLogger(__name__)


def log_path(state: Path, name: str) -> Path:
    """Return the path of an upstream's log in the state directory."""
    return folder_of(state, name) / LOG_FILE


def logged_upstreams(state: Path) -> list[str]:
    """Return the names of the upstreams that have a log."""
    return sorted(path.parent.name for path in state.glob(str(log_path(Path(), "*"))))


def rotated_path(path: Path) -> Path:
    """Return the path of the previous file of a log."""
    return path.with_name(f"{path.name}.1")


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a log, masked, and without control sequences of terminals."""
    with contextlib.suppress(OSError), LogReader(path) as reader:
        return [mask_text(_CONTROL_SEQUENCES.sub("", line)) for line in reader.read_last(count)]
    return []


def log_failure(path: Path, error: LinkError, secrets: Iterable[str] = ()) -> None:
    """Log why a program cannot be started."""
    log = ProcessLog(path, secrets)
    log.add_line("callyard", f"{error.message} {error.private}".rstrip().encode())
    log.close()


class ProcessLog:
    """Writes lines to a file; a full one replaces the previous file."""

    def __init__(self, path: Path, secrets: Iterable[str] = ()) -> None:
        self._path = path
        self._secrets = [secret.encode() for secret in sorted(secrets, key=len, reverse=True)]
        self._descriptor: int | None = None
        self._size = 0
        self._pending: list[bytes] = []
        self._tail = b""
        self._second_started = 0.0
        self._second_bytes = 0
        self._missing_bytes = 0
        self._lines = LineSplitter(partial(self._add, "stderr"), limit=_LINE_BYTES, on_too_long=self._add_too_long)
        self._open()

    @property
    def is_flooded(self) -> bool:
        """Return whether more arrives than is written."""
        return self._missing_bytes > 0

    @property
    def tail(self) -> str:
        """Return the last lines, masked, and without control sequences of terminals."""
        lines = _CONTROL_SEQUENCES.sub("", self._masked(self._tail).decode(errors="replace")).splitlines()
        if len(self._tail) == _TAIL_BYTES:
            lines = lines[1:] or lines  # the first line has lost its beginning
        return mask_text("\n".join(lines[-_TAIL_LINES:]))

    def feed(self, piece: bytes) -> None:
        """Log a piece of stderr."""
        self._tail = (self._tail + piece[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        if self._has_room(len(piece)):
            self._lines.feed(piece)
            self._write()

    def add_line(self, source: Source, line: bytes) -> None:
        """Log a line from elsewhere: from stdout, where it was no message, or from us."""
        line = line[:_LINE_BYTES]
        if source == "stdout":
            self._tail = (self._tail + line[-_TAIL_BYTES:] + b"\n")[-_TAIL_BYTES:]
        if self._has_room(len(line)):
            self._add(source, line)
            self._write()

    def close(self) -> None:
        """Log the last, unfinished line, and close the file."""
        self._lines.flush()
        self._add_missing()
        self._write()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _has_room(self, size: int) -> bool:
        now = time.monotonic()
        if now - self._second_started >= 1:
            self._second_started, self._second_bytes = now, 0
            self._add_missing()
        if self._second_bytes + size <= _SECOND_BYTES:
            return True
        self._lines.flush()  # what is read next does not continue this line
        self._missing_bytes += size
        return False

    def _add_missing(self) -> None:
        if self._missing_bytes:
            self._add("callyard", b"%d bytes are missing here, because too many came at a time." % self._missing_bytes)
            self._missing_bytes = 0

    def _add_too_long(self) -> None:
        self._add("callyard", b"A line of more than %d bytes is missing here." % _LINE_BYTES)

    def _add(self, source: Source, line: bytes) -> None:
        self._pending.append(source.encode() + b" " + self._masked(line) + b"\n")

    def _masked(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, MASK.encode())
        return text

    def _write(self) -> None:
        """Write the pending lines with one timestamp; without a file they are lost."""
        if not self._pending:
            return
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").encode() + b" "
        text = stamp + stamp.join(self._pending)
        self._pending.clear()
        self._second_bytes += len(text)
        if self._size and self._size + len(text) > _FILE_BYTES:
            self._rotate()
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # such as a full disk
                self._size += os.write(self._descriptor, text)

    def _rotate(self) -> None:
        """Start a new file, unless another process that logs to it already has."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                self._path.replace(rotated_path(self._path))
        os.close(self._descriptor)
        self._open()

    def _open(self) -> None:
        self._descriptor = None
        try:
            make_private(self._path.parent)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        except OSError as error:
            _log.warning("process_log_lost%s", log_fields({"path": self._path, "why": error.strerror}))


class LogReader:
    """Reads a log incrementally, across rotations."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._partial = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read_last(self, count: int) -> list[str]:
        """Return the last lines, masked, including the previous file if this one has too few."""
        lines = self._read_lines()
        if len(lines) < count and rotated_path(self._path).exists():
            lines = rotated_path(self._path).read_text(errors="replace").splitlines() + lines
        return [mask_text(line) for line in lines[max(0, len(lines) - count) :]]

    def read_new(self) -> list[str]:
        """Return the lines since the last read, masked."""
        return [mask_text(line) for line in self._read_lines()]

    def _read_lines(self) -> list[str]:
        *lines, self._partial = (self._partial + self._read()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _read(self) -> bytes:
        piece = b"" if self._file is None else self._file.read()
        if self._is_current():
            return piece
        if self._file is not None:
            self._file.close()
            self._file = None
        try:
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return piece
        return piece + self._file.read()

    def _is_current(self) -> bool:
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False
