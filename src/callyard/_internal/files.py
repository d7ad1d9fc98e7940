"""Atomic and private files, the state directory, and the file systems that they are on."""

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = [
    "file_system_of",
    "find_state_dir",
    "is_network",
    "make_private",
    "read_private",
    "rewrite",
    "write_atomically",
    "write_once",
]

_OTHERS: Final = 0o077
_PRIVATE: Final = 0o600
_DEFAULT: Final = 0o666
_KERNEL: Final = (
    "nfs nfs3 nfs4 cifs smb smb2 smb3 smbfs 9p afs ceph coda davfs glusterfs gpfs lustre beegfs ncpfs orangefs pvfs2"
)
_USER_SPACE: Final = (
    "sshfs rclone s3fs gcsfuse davfs davfs2 glusterfs ceph ceph-fuse cephfs curlftpfs smbnetfs goofys juicefs nfs"
)
_NETWORK: Final = frozenset([*_KERNEL.split(), *(f"fuse.{name}" for name in _USER_SPACE.split())])
_MOUNTS: Final = Path("/proc/self/mounts")


def find_state_dir(configured: str | os.PathLike[str] | None = None) -> Path:
    """Return the state directory: the configured one, `CALLYARD_STATE_DIR`, or the user's default.

    Raises:
        OSError: The user has no home directory, or everybody can change the state directory.
    """
    chosen = configured or os.environ.get("CALLYARD_STATE_DIR")
    states = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        if chosen:
            return _checked(Path(chosen).expanduser().absolute())
        return _checked((states if states.is_absolute() else Path("~/.local/state").expanduser()) / "callyard")
    except RuntimeError:
        raise OSError(errno.ENOENT, "There is no home directory") from None


def _checked(folder: Path) -> Path:
    """Return the folder unless everybody can change it, because then logins and pins could be swapped."""
    with suppress(FileNotFoundError):
        if folder.stat().st_mode & stat.S_IWOTH:
            reason = f"Everybody can write to '{folder}'. Run 'chmod o-w' on it, or choose a folder inside it"
            raise PermissionError(errno.EPERM, reason, str(folder))
    return folder


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, accessible to the owner only.

    Raises:
        OSError: It cannot be created.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def write_atomically(path: Path, content: bytes, *, mode: int = _PRIVATE) -> None:
    """Replace a file in one step, so that readers see the old content or the new.

    Raises:
        OSError: It cannot be written.
    """
    with _temporary_file(path, content, mode) as temporary:
        temporary.replace(path)


def write_once(path: Path, content: bytes) -> bytes:
    """Write a file unless it exists, and return its content; concurrent callers all get the same.

    Raises:
        OSError: It cannot be written or read, or others can read it.
    """
    if not path.exists():
        # Another process may be first.
        with _temporary_file(path, content, _PRIVATE) as temporary, suppress(FileExistsError):
            path.hardlink_to(temporary)  # unlike a rename, a link never replaces a file
    return read_private(path)


def read_private(path: Path) -> bytes:
    """Return the content of a file that only its owner can access.

    Raises:
        OSError: It cannot be read, others have access to it, or somebody else owns it.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_mode & _OTHERS or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "Others can read or change it", str(path))
        return file.read()


def rewrite(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file in one step, behind its symbolic link; it keeps its mode unless `private`.

    Raises:
        OSError: It cannot be written.
    """
    target = path.resolve()
    mode = None if private or not target.exists() else stat.S_IMODE(target.stat().st_mode)
    write_atomically(target, content, mode=_PRIVATE if private else mode or _DEFAULT)
    if mode is not None:
        target.chmod(mode)  # the umask cuts the mode of a new file


@contextmanager
def _temporary_file(path: Path, content: bytes, mode: int) -> Generator[Path]:
    """Write content to a new file in the same folder, and remove it afterwards unless it was renamed."""
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system of an existing path, such as 'ext4', or an empty text."""
    try:
        text = _MOUNTS.read_text("utf-8", "surrogateescape") if mounts is None else mounts
    except OSError:
        return ""
    real, longest, found = path.resolve(), -1, ""
    for line in text.splitlines():
        _, point, kind, *_ = line.split(" ")
        if "\\" in point:
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        place = Path(point)
        if len(place.parts) >= longest and real.is_relative_to(place):  # of two mounts at one place, the later one
            longest, found = len(place.parts), kind
    return found


def is_network(kind: str) -> bool:
    """Return whether the locks and the shared memory of a file system do not reach other machines, or do not exist."""
    return kind in _NETWORK
