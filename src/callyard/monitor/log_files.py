"""Log files of JSON lines: the audit log of calls and the access log of HTTP requests.

A thread encodes and writes the lines, so that a slow disk delays no call. Lines hold no contents and no credentials.
"""

import fcntl
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, Self

import msgspec

from callyard._internal.files import make_private
from callyard._internal.logfmt import log_fields

__all__ = ["AccessLine", "AccessLog", "AuditLog", "LogFile"]

_MAX_WAITING: Final = 100_000
"""The most lines that wait for a slow disk; what comes then is counted as lost."""
_BATCH: Final = 1000
"""Lines that are encoded at a time, so that the thread holds the interpreter for a few milliseconds at most."""
_GATHER_S: Final = 0.1
"""How long lines are gathered before they are written together."""
_RETRY_S: Final = 1.0
"""How long the thread waits after the disk refused a write."""
_CLOSE_S: Final = 5.0
_log = logging.getLogger(__name__)


class LogFile:
    """Appends structs as JSON to a file while the context is open, and rotates the file.

    A full file is renamed, and the oldest one is deleted. Several processes may write to the same file.
    """

    def __init__(self, path: str | Path, *, max_bytes: int = 64 * 1024 * 1024, backups: int = 5) -> None:
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._backups = backups
        self._waiting: deque[msgspec.Struct] = deque()
        self._refused = 0
        """Items that did not fit in the queue; only the caller's thread counts them."""
        self._unwritten = 0
        """Lines that the disk did not take; only our thread counts them."""
        self._reported = 0
        self._is_torn = False
        """Whether the file ends within a line."""
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._has_failed = False
        self._encoder = msgspec.json.Encoder()
        self._thread: threading.Thread | None = None
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Open the file and start the thread.

        Raises:
            OSError: The file cannot be opened.
        """
        self._open()
        self._closing.clear()
        self._thread = threading.Thread(target=self._write_all, name=f"callyard-{self.path.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the last lines and close the file, but wait no longer than a few seconds for the disk."""
        thread, self._thread = self._thread, None
        self._closing.set()
        self._wake.set()
        if thread is not None:
            thread.join(_CLOSE_S)
            if thread.is_alive():
                self._report("The disk does not answer.")

    def __call__(self, item: msgspec.Struct) -> None:
        """Append a line for an item soon; this never waits."""
        waiting = self._waiting
        if len(waiting) >= _MAX_WAITING:
            self._refused += 1
            return
        waiting.append(item)
        if len(waiting) == 1:  # the thread sleeps, or is about to look
            self._wake.set()

    def _write_all(self) -> None:
        try:
            while not self._closing.is_set():
                self._wake.wait()
                self._closing.wait(_GATHER_S)
                self._wake.clear()
                if not self._write_waiting():
                    self._closing.wait(_RETRY_S)
                    self._wake.set()
            self._write_waiting()
        finally:
            os.close(self._descriptor)

    def _write_waiting(self) -> bool:
        """Write the lines that wait; return false if the disk does not take them, which loses a batch."""
        waiting = self._waiting
        while True:
            batch = [waiting.popleft() for _ in range(min(len(waiting), _BATCH))]
            lost = self._refused + self._unwritten - self._reported
            lines: list[object] = [*batch]
            if lost and not waiting:
                lines.append({"started": time.time(), "lost_lines": lost})
            if not lines:
                return True
            try:
                self._write(self._encoder.encode_lines(lines))
            except OSError as error:  # such as a full disk
                self._unwritten += len(batch)
                self._report(error.strerror)
                return False
            self._has_failed = False
            if len(lines) > len(batch):
                self._reported += lost

    def _write(self, text: bytes) -> None:
        if self._has_failed:  # the disk, or the file on it, may be another one by now
            self._reopen()
        size = os.fstat(self._descriptor).st_size
        if size and size + len(text) > self._max_bytes:
            self._rotate()
        text = b"\n" + text if self._is_torn else text
        while text:
            text = text[os.write(self._descriptor, text) :]
            self._is_torn = bool(text)

    def _rotate(self) -> None:
        """Start a new file, unless another process that writes to it already has; the lock lets only one do it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            is_current = os.path.samestat(os.fstat(self._descriptor), self.path.stat())
        except FileNotFoundError:  # moved away by somebody else
            is_current = False
        if is_current:
            for number in range(self._backups, 0, -1):
                older = self.path if number == 1 else self._backup(number - 1)
                if older.exists():
                    older.replace(self._backup(number))
            if not self._backups:
                self.path.unlink()
        self._reopen()  # which unlocks it

    def _backup(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _reopen(self) -> None:
        old = self._descriptor
        self._open()
        os.close(old)

    def _open(self) -> None:
        self._is_torn = False
        make_private(self.path.absolute().parent)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _report(self, reason: str | None) -> None:
        if not self._has_failed:  # once for each outage
            self._has_failed = True
            _log.error("log_file_lost%s", log_fields({"path": self.path, "why": reason}))


class AccessLine(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One request in the access log."""

    started: float
    """Seconds since the epoch."""
    elapsed_ms: float
    method: str
    path: str
    """Without the query."""
    status: int
    bytes: int
    """The size of the response without its head."""
    caller: str | None
    """The identity; none for a request that was refused before it had one."""


class AuditLog(LogFile):
    """A sink that writes each record as a line of JSON to a rotated file, while its context is open."""


class AccessLog(LogFile):
    """Writes a line for each HTTP request to a rotated file, while its context is open."""
