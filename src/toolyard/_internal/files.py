"""Files that are rewritten whole: links and modes stay as they are."""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["find_state_dir", "make_private", "read_private", "rewrite", "write_atomically", "write_once"]


_VARIABLE: Final = "TOOLYARD_STATE_DIR"
_HOME: Final = "XDG_STATE_HOME"
_OTHERS: Final = 0o077
_PRIVATE: Final = 0o600


def find_state_dir(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory: the given one, or what the environment names, or the usual place of the user.

    Raises:
        OSError: The user has no home.
    """
    named = given or os.environ.get(_VARIABLE)
    home = os.environ.get(_HOME, "")
    try:
        if named:
            return Path(named).expanduser().absolute()
        return (Path(home) if Path(home).is_absolute() else Path("~/.local/state").expanduser()) / "toolyard"
    except RuntimeError:
        raise OSError(errno.ENOENT, "There is no home directory") from None


def make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, closed to others.

    Raises:
        OSError: It cannot be made.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def write_atomically(path: Path, content: bytes, *, mode: int = _PRIVATE) -> None:
    """Write a file so that whoever reads it finds all of the old content or all of the new; only its owner may, unless the mode says so.

    Raises:
        OSError: It cannot be written.
    """
    with _written_beside(path, content, mode) as fresh:
        fresh.replace(path)


def write_once(path: Path, content: bytes) -> bytes:
    """Write a file unless it is there, and return what is in it; all who do so at the same time get the same.

    Raises:
        OSError: It cannot be written or read, or others can read it.
    """
    if not path.exists():
        with _written_beside(path, content, _PRIVATE) as fresh, suppress(FileExistsError):  # another was quicker
            path.hardlink_to(fresh)  # unlike a rename it never takes the place of a file
    return read_private(path)


def read_private(path: Path) -> bytes:
    """Return what is in a file that nobody else may read or write.

    Raises:
        OSError: It cannot be read, or others can read it or wrote it.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_mode & _OTHERS or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "Others can read or change it", str(path))
        return file.read()


@contextmanager
def _written_beside(path: Path, content: bytes, mode: int) -> Generator[Path]:
    """Write content to a file beside the path, which is gone afterwards unless it was moved."""
    make_private(path.parent)
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(number)
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


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
