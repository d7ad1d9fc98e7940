"""The versions of one image as plain files: objects by their SHA-256, branches, tags, HEAD and a log.

Every file but the log is written to a temporary file, synced and renamed. Who changes something holds the lock of the
folder, which all processes share. It must not know what a state means.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from callyard import ToolError

__all__ = ["BRANCH", "Head", "Versions", "file_errors", "hash_of", "write_file"]

BRANCH: Final = "main"
"""The branch that an image begins with."""
_HEADS: Final = "refs/heads/"
_TAGS: Final = "refs/tags/"
_REF: Final = "ref: "
_DEPTH: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_HASH: Final = re.compile(r"[0-9a-f]{8,64}\Z")
_HASH_LENGTH: Final = 64
_LOCK_S: Final = 10.0
_POLL_S: Final = 0.01
_UNREACHABLE_S: Final = 30 * 86_400
_COLLECT_S: Final = 86_400
_TAIL: Final = 16 * 1024
_MOVES: Final = frozenset({"reset", "checkout", "branch"})
"""Operations that lead to a version without deriving it from the one before."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def hash_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return sha256(content).hexdigest()


@contextmanager
def file_errors() -> Generator[None]:
    """Turn a full disk and refused access into failures that a caller can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ToolError("state_error", "The disk is full.", reason="disk_full") from error
        if error.errno in _REFUSED:
            message = "The folder of the image cannot be written to."
            raise ToolError("permission_denied", message, reason="not_writable") from error
        raise


def write_file(path: Path, content: bytes, temporary: Path) -> None:
    """Write a file in one step: a reader sees the old content or the new, also after a crash.

    Raises:
        OSError: It cannot be written.
    """
    scratch = temporary / os.urandom(8).hex()
    for folder in (temporary, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with scratch.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Head(NamedTuple):
    """Where an image is: on a branch, or detached at a hash; a branch without a commit has no hash."""

    branch: str | None
    hash: str | None


class Versions:
    """The versions in one folder."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        self._temporary = folder / "tmp"
        self._log = folder / "log.jsonl"

    @contextmanager
    def lock(self) -> Generator[None]:
        """Keep every other thread and process from changing the folder; files that cannot be written become failures.

        Raises:
            ToolError: `overloaded` if another process holds it for ten seconds, `not_found` if the folder is gone.
        """
        path = self.folder / "lock"
        deadline = time.monotonic() + _LOCK_S
        with file_errors():
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                raise _forgotten() from None
            try:
                while not _try_lock(descriptor):
                    if time.monotonic() > deadline:
                        raise ToolError("overloaded", "Another process is changing this image.", may_have_run=False)
                    time.sleep(_POLL_S)  # the end of a lock has no event
                if not _is_at(descriptor, path):
                    raise _forgotten()
                self._collect_daily()
                yield
            finally:
                os.close(descriptor)

    def read(self, digest: str) -> bytes:
        """Return an object.

        Raises:
            ToolError: `state_error`, reason `damaged_object`, if it is missing or does not fit its hash.
        """
        try:
            content = self._object(digest).read_bytes()
        except FileNotFoundError:
            content = b""
        if hash_of(content) != digest:
            message = "The stored version is damaged. Check out another one."
            raise ToolError("state_error", message, reason="damaged_object", hash=digest, may_have_run=False)
        return content

    def write(self, content: bytes) -> str:
        """Store an object and return its hash; a damaged one is written anew.

        Raises:
            ToolError: `internal_error` if another content has this hash.
        """
        digest = hash_of(content)
        path = self._object(digest)
        if path.exists():
            known = path.read_bytes()
            if known != content and hash_of(known) == digest:
                raise ToolError("internal_error", "Two different contents have one hash.", hash=digest)
            if known == content:
                now = self._clock()
                os.utime(path, (now, now))
                return digest
        write_file(path, content, self._temporary)
        return digest

    def head(self) -> Head:
        """Return where the image is."""
        text = self._read_ref("HEAD") or f"{_REF}{_HEADS}{BRANCH}"
        if not text.startswith(_REF):
            return Head(None, _whole_hash(text))
        name = text.removeprefix(_REF)
        return Head(name.removeprefix(_HEADS), self._follow(name))

    def resolve(self, ref: str) -> str:
        """Return the hash of `HEAD`, a branch, a tag, a whole ref, or a hash of which eight digits are enough.

        Raises:
            ToolError: `not_found`, reason `unknown_ref`.
        """
        names = [ref] if ref.startswith((_HEADS, _TAGS)) else []
        if _NAME.match(ref) and not names:
            names = [f"{_HEADS}{ref}", f"{_TAGS}{ref}"]
        found = next((digest for name in names if (digest := self._follow(name))), None)
        if found is None and _HASH.match(ref):
            objects = [digest for digest in self._objects(ref[:2]) if digest.startswith(ref)]
            found = objects[0] if len(objects) == 1 else None
        if found is None:
            known = [*self.names("heads"), *self.names("tags")]
            message = "There is no such branch, tag or hash."
            raise ToolError("not_found", message, reason="unknown_ref", known=known, may_have_run=False)
        return found

    def is_branch(self, ref: str) -> bool:
        """Return whether a ref means a branch."""
        name = ref.removeprefix(_HEADS)
        return bool(_NAME.match(name)) and self._follow(f"{_HEADS}{name}") is not None

    def names(self, kind: str) -> dict[str, str]:
        """Return the hashes of all `heads` or `tags` by name."""
        folder = self.folder / "refs" / kind
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return {name: digest for name in found if (digest := self._follow(f"refs/{kind}/{name}"))}

    def create(self, kind: str, name: str, digest: str) -> None:
        """Create a branch (`heads`) or a tag (`tags`).

        Raises:
            ToolError: `state_error`, reason `ref_exists`, or `invalid_input` for a name that cannot be one.
        """
        if not _NAME.match(name) or _HASH.match(name) or name == "HEAD":
            message = "A name has letters, digits, '_' and '-', and must not look like a hash."
            issue = {"field": "name", "code": "value_error", "message": message}
            raise ToolError("invalid_input", message, issues=[issue])
        if (self.folder / "refs" / kind / name).exists():
            message = f"'{name}' is there already."
            raise ToolError("state_error", message, reason="ref_exists", may_have_run=False)
        self._write_ref(f"refs/{kind}/{name}", digest)

    def move(self, branch: str, digest: str) -> None:
        """Let a branch lead to an object."""
        self._write_ref(f"{_HEADS}{branch}", digest)

    def point_head(self, *, branch: str | None = None, digest: str = "") -> None:
        """Let HEAD follow a branch, or lead to an object alone."""
        self._write_ref("HEAD", digest if branch is None else f"{_REF}{_HEADS}{branch}")

    def record(self, op: str, digest: str, *, parent: str | None, ref: str | None, **more: Any) -> None:
        """Append a line to the log. What a killed process changed and did not record is recorded first."""
        lines: list[dict[str, Any]] = []
        last = self._last_hash()
        if last is not None and parent is not None and last != parent:
            lines.append(self._line("recovered", parent, last, ref, {}))
        lines.append(self._line(op, digest, parent, ref, more))
        content = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        with self._log.open("ab+") as file:
            if file.tell() and not _ends_line(file.fileno(), file.tell()):
                content = b"\n" + content  # the rest of a line that a killed process began
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def log(self) -> list[dict[str, Any]]:
        """Return the log, the newest first; a line that a killed process did not finish is left out."""
        return [*_parsed(self._log.read_bytes() if self._log.exists() else b"")][::-1]

    def collect(self) -> int:
        """Remove the objects that nothing has led to for 30 days, and return how many."""
        now = self._clock()
        reachable = self._reachable()
        removed = 0
        for digest in list(self._objects()):
            path = self._object(digest)
            if digest in reachable:
                os.utime(path, (now, now))
            elif path.stat().st_mtime < now - _UNREACHABLE_S:
                path.unlink()
                removed += 1
        if self._temporary.is_dir():
            for left in self._temporary.iterdir():  # of killed processes: nobody else writes under the lock
                left.unlink()
        return removed

    def _collect_daily(self) -> None:
        """Collect before a change, so that all that is reachable before it is kept for 30 days more."""
        marker = self.folder / "collected"
        if not marker.exists() or marker.stat().st_mtime < self._clock() - _COLLECT_S:
            self.collect()
            marker.touch()
            os.utime(marker, (self._clock(), self._clock()))

    def _reachable(self) -> set[str]:
        parents: dict[str, set[str]] = {}
        for line in self.log():
            if line.get("op") not in _MOVES and line.get("parent"):
                parents.setdefault(str(line["hash"]), set()).add(str(line["parent"]))
        head = self.head().hash
        waiting = [*self.names("heads").values(), *self.names("tags").values(), *([head] if head else [])]
        found: set[str] = set()
        while waiting:
            digest = waiting.pop()
            if digest not in found:
                found.add(digest)
                waiting += parents.get(digest, ())
        return found

    def _line(self, op: str, digest: str, parent: str | None, ref: str | None, more: dict[str, Any]) -> dict[str, Any]:
        moment = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        label, metadata = more.get("label"), {key: value for key, value in more.items() if key != "label"}
        return {
            "timestamp": moment,
            "op": op,
            "hash": digest,
            "parent": parent,
            "ref": ref,
            "label": label,
            "metadata": metadata,
        }

    def _last_hash(self) -> str | None:
        """Return where HEAD was by the log."""
        if not self._log.exists():
            return None
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _TAIL))
            lines = [line for line in _parsed(file.read()) if line.get("op") != "tag"]
        return str(lines[-1]["hash"]) if lines else None

    def _object(self, digest: str) -> Path:
        return self.folder / "objects" / digest[:2] / digest[2:]

    def _objects(self, start: str = "*") -> Iterator[str]:
        for path in (self.folder / "objects").glob(f"{start}/*"):
            yield f"{path.parent.name}{path.name}"

    def _read_ref(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text("utf-8").strip()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def _write_ref(self, name: str, text: str) -> None:
        write_file(self.folder / name, f"{text}\n".encode(), self._temporary)

    def _follow(self, name: str) -> str | None:
        """Return the hash that a ref leads to, through other refs; one that leads in a circle has none."""
        if ".." in name.split("/"):
            return None
        for _ in range(_DEPTH):
            text = self._read_ref(name)
            if text is None or not text.startswith(_REF):
                return _whole_hash(text)
            name = text.removeprefix(_REF)
        return None


def _forgotten() -> ToolError:
    return ToolError("not_found", "There is no such image, or no longer.", reason="unknown_image", may_have_run=False)


def _whole_hash(text: str | None) -> str | None:
    return text if text is not None and len(text) == _HASH_LENGTH and _HASH.match(text) else None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at its path, and not one of a folder that was removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _ends_line(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"


def _parsed(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            continue
