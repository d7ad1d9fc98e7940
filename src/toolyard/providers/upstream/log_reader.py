"""Reads the log of a process: its last lines, and then what comes, also when the file is begun anew meanwhile."""

import os
from pathlib import Path
from typing import BinaryIO, Self

from toolyard.providers.upstream.process_log import older

__all__ = ["LogReader"]


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
