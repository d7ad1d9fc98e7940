"""Files that are rewritten whole: links and modes stay as they are."""

import stat
from pathlib import Path
from typing import Final

from toolyard.state_dir import write_atomically

__all__ = ["rewrite"]

_PRIVATE: Final = 0o600
_USUAL: Final = 0o666


def rewrite(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file in one step; it keeps its mode, unless it is to be private, and a link goes on leading to it.

    Raises:
        OSError: It cannot be written.
    """
    real = path.resolve()
    if private:
        write_atomically(real, content, mode=_PRIVATE)
        return
    mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else None
    write_atomically(real, content, mode=_USUAL if mode is None else mode)
    if mode is not None:
        real.chmod(mode)  # what a new file gets is cut by the umask
