"""The log of a process: what it says on stderr, with the time, in a file that stays small, and its last words at hand.

However much comes, at most so much a second is written; the rest is counted, and the file says how much is missing.
"""

import contextlib
import logging
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

from toolyard._internal.files import make_private
from toolyard._internal.logfmt import log_fields
from toolyard._internal.pipes import LineSplitter
from toolyard.providers.upstream.catalogue import folder_of

__all__ = ["LogReader", "ProcessLog", "names_of_logs", "older", "path_of_log"]


Source = Literal["stderr", "stdout", "toolyard"]
_FILE_BYTES: Final = 1024 * 1024
_LINE_BYTES: Final = 16 * 1024
_SECOND_BYTES: Final = 1024 * 1024
_LAST_BYTES: Final = 4096
_LAST_LINES: Final = 20
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_log = logging.getLogger(__name__)


def path_of_log(state: Path, name: str) -> Path:
    """Return where the log of an upstream is in the state directory."""
    return folder_of(state, name) / "stderr.log"


def names_of_logs(state: Path) -> list[str]:
    """Return the names of the upstreams that have a log."""
    return sorted(path.parent.name for path in state.glob(str(path_of_log(Path(), "*"))))


def older(path: Path) -> Path:
    """Return where the lines are that were moved out of a log to make room."""
    return path.with_name(f"{path.name}.1")


class ProcessLog:
    """Writes lines to a file; when it is full it becomes the older one, and the one before that is gone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._size = 0
        self._pending: list[bytes] = []
        self._last = b""
        self._second = 0.0
        self._used = 0
        self._missing = 0
        self._lines = LineSplitter(lambda line: self._add("stderr", line), limit=_LINE_BYTES, on_too_long=self._note_length)
        self._open()

    @property
    def is_flooded(self) -> bool:
        """Return whether more comes than is written."""
        return self._missing > 0

    @property
    def last_words(self) -> str:
        """Return the last few lines, without what moves cursors."""
        lines = _ESCAPES.sub("", self._last.decode(errors="replace")).splitlines()
        if len(self._last) == _LAST_BYTES:
            lines = lines[1:] or lines  # the first one has lost its beginning
        return "\n".join(lines[-_LAST_LINES:])

    def feed(self, piece: bytes) -> None:
        """Take a piece of what came on stderr."""
        self._last = (self._last + piece[-_LAST_BYTES:])[-_LAST_BYTES:]
        if self._has_room(len(piece)):
            self._lines.feed(piece)
            self._write()

    def note(self, source: Source, line: bytes) -> None:
        """Write one line that did not come on stderr: from stdout, where it was no message, or from us."""
        line = line[:_LINE_BYTES]
        if source == "stdout":
            self._last = (self._last + line[-_LAST_BYTES:] + b"\n")[-_LAST_BYTES:]
        if self._has_room(len(line)):
            self._add(source, line)
            self._write()

    def close(self) -> None:
        """Write what came without an end, and close the file."""
        self._lines.flush()
        self._tell_missing()
        self._write()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _has_room(self, size: int) -> bool:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._used = now, 0
            self._tell_missing()
        if self._used + size <= _SECOND_BYTES:
            return True
        self._lines.flush()  # what follows does not continue it
        self._missing += size
        return False

    def _tell_missing(self) -> None:
        if self._missing:
            self._add("toolyard", b"%d bytes are missing here, because too many came at a time." % self._missing)
            self._missing = 0

    def _note_length(self) -> None:
        self._add("toolyard", b"A line of more than %d bytes is missing here." % _LINE_BYTES)

    def _add(self, source: Source, line: bytes) -> None:
        self._pending.append(source.encode() + b" " + line + b"\n")

    def _write(self) -> None:
        """Write what has been added, all with the same time; without a file it is lost, and nothing else."""
        if not self._pending:
            return
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").encode() + b" "
        text = stamp + stamp.join(self._pending)
        self._pending.clear()
        self._used += len(text)
        if self._size and self._size + len(text) > _FILE_BYTES:
            self._rotate()
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # such as a full disk
                self._size += os.write(self._descriptor, text)

    def _rotate(self) -> None:
        """Begin a new file, unless another process that writes to it has done so already."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._descriptor), self._path.stat()):
                self._path.replace(older(self._path))
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
    """Remembers how far a log has been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read_last(self, count: int) -> list[str]:
        """Return the last lines, from the older file, too, if this one has too few."""
        lines = self.read_on()
        if len(lines) < count and older(self._path).exists():
            lines = older(self._path).read_text(errors="replace").splitlines() + lines
        return lines[max(0, len(lines) - count) :]

    def read_on(self) -> list[str]:
        """Return the lines that came since they were read last."""
        *lines, self._rest = (self._rest + self._read()).split(b"\n")
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
        """Return whether the file that is open is the one that is written to."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False
