"""File systems: which one holds a path, and whether SQLite can work on it. It opens no file of a store and imports no sqlite3."""

import re
from pathlib import Path
from typing import Final

__all__ = ["file_system_of", "is_network"]

_KERNEL: Final = "nfs nfs3 nfs4 cifs smb smb2 smb3 smbfs 9p afs ceph coda davfs glusterfs gpfs lustre beegfs ncpfs orangefs pvfs2"
_USER_SPACE: Final = "sshfs rclone s3fs gcsfuse davfs davfs2 glusterfs ceph ceph-fuse cephfs curlftpfs smbnetfs goofys juicefs nfs"
_NETWORK: Final = frozenset([*_KERNEL.split(), *(f"fuse.{name}" for name in _USER_SPACE.split())])
_MOUNTS: Final = Path("/proc/self/mounts")


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system of an existing path, such as 'ext4', or an empty text if it cannot be known."""
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
        if len(place.parts) >= longest and real.is_relative_to(place):  # of two mounts at one place the later one is seen
            longest, found = len(place.parts), kind
    return found


def is_network(kind: str) -> bool:
    """Return whether the locks and the shared memory of a file system do not reach other machines, or do not exist."""
    return kind in _NETWORK
