"""Images below the roots: their names, their originals, and the workspace beside each.

The workspace of `a.jpg` is the folder `a.jpg.darkroom`. An original is read and never written.
"""

import os
import shutil
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from callyard import ToolError
from callyard_darkroom.state import EMPTY, Frame, State, decode, encode
from callyard_darkroom.versions import BRANCH, Versions, file_errors, write_file

__all__ = ["RAW", "SUFFIX", "Image", "Images", "Source", "raw_dimensions", "read_source"]

SUFFIX: Final = ".darkroom"
"""What the name of a workspace ends with."""
RAW: Final = frozenset({".3fr", ".arw", ".cr2", ".dng", ".erf", ".mef", ".nef", ".nrw", ".pef", ".srw"})
"""The endings of raw files that have the structure of TIFF, where the camera's orientation can be read."""
_VERSION: Final = 1
_HEAD_BYTES: Final = 512 * 1024
_EXIF: Final = b"Exif\0\0"
_WIDTH: Final = 0x100
_HEIGHT: Final = 0x101
_ORIENTATION: Final = 0x112
_INNER: Final = 0x14A
_KINDS: Final = {3: "H", 4: "I"}
_MOST_DIRECTORIES: Final = 8
_FRAMES: Final = (
    Frame(),
    Frame(),
    Frame(mirrored=True),
    Frame(quarters=2),
    Frame(mirrored=True, quarters=2),
    Frame(mirrored=True, quarters=3),
    Frame(quarters=1),
    Frame(mirrored=True, quarters=1),
    Frame(quarters=3),
)
"""How a picture is shown, by its orientation of EXIF."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a workspace says about its original; the file `image.json`."""

    version: int = _VERSION
    engine: str
    sha256: str
    size: int
    mtime_ns: int
    width: int
    height: int
    orientation: int = 1
    baseline: str
    ingested: str


class _RecordVersion(msgspec.Struct, frozen=True):
    version: int


class Source(NamedTuple):
    """An original as engines see it."""

    path: Path
    is_raw: bool
    orientation: int = 1

    @property
    def frame(self) -> Frame:
        """Return how the picture is shown before any edit."""
        return _FRAMES[self.orientation]


class Image(NamedTuple):
    """An image that was ingested."""

    name: str
    source: Source
    versions: Versions
    record: _Record

    @property
    def engine(self) -> str:
        """Return the engine that renders it."""
        return self.record.engine

    def state(self, ref: str = "HEAD") -> State:
        """Return the state at a ref.

        Raises:
            ToolError: There is no such ref or its object is damaged; `state_error`, reason `no_baseline`.
        """
        return self.state_of(self.resolve(ref))

    def resolve(self, ref: str = "HEAD") -> str:
        """Return the hash of a ref.

        Raises:
            ToolError: `not_found`, reason `unknown_ref`; `state_error`, reason `no_baseline`.
        """
        if ref != "HEAD":
            return self.versions.resolve(ref)
        digest = self.versions.head().hash
        if digest is None:
            raise no_baseline()
        return digest

    def state_of(self, digest: str) -> State:
        """Return the state with a hash."""
        try:
            return decode(self.versions.read(digest))
        except msgspec.DecodeError:
            message = "The stored version is no state that this version of the pack can read."
            raise ToolError("state_error", message, reason="newer_workspace", may_have_run=False) from None

    def check_source(self) -> None:
        """Check that the original is what was ingested.

        Raises:
            ToolError: `not_found`, reason `image_gone`, or `state_error`, reason `image_changed`.
        """
        try:
            found = self.source.path.stat()
            if (found.st_size, found.st_mtime_ns) == (self.record.size, self.record.mtime_ns):
                return
            is_same = _digest(self.source.path) == self.record.sha256
        except FileNotFoundError:
            message = "The file of the image is gone."
            raise ToolError("not_found", message, reason="image_gone", may_have_run=False) from None
        if not is_same:
            message = "The file of the image is not the one that was ingested. Forget the image and ingest it anew."
            raise ToolError("state_error", message, reason="image_changed", may_have_run=False)


class Images:
    """All images below the roots."""

    def __init__(self, roots: Sequence[Path]) -> None:
        folders = [Path(os.path.realpath(root)) for root in roots]
        if not folders:
            raise ValueError("Name at least one folder of photographs in 'roots'.")
        for root, folder in zip(roots, folders, strict=True):
            if not folder.is_dir():
                raise ValueError(f"The folder '{root}' of 'roots' does not exist.")
        self._roots = {folder.name: folder for folder in folders} if len(folders) > 1 else {"": folders[0]}
        if len(self._roots) < len(folders):
            raise ValueError("Two folders of 'roots' have the same name, so that names of images would be ambiguous.")

    def locate(self, text: str) -> tuple[str, Path]:
        """Return the name and the file that a name or path means.

        Raises:
            ToolError: `permission_denied`, reason `outside_roots`.
        """
        written = Path(text)
        first = written.parts[0] if written.parts else ""
        if written.is_absolute():
            candidate = written
        elif "" in self._roots:
            candidate = self._roots[""] / written
        else:
            candidate = self._roots.get(first, Path(os.sep)) / Path(*written.parts[1:])
        try:
            path = Path(os.path.realpath(candidate))
        except ValueError:  # a zero byte
            path = Path(os.sep)
        for name, root in self._roots.items():
            if path.is_relative_to(root) and path != root:
                return (Path(name) / path.relative_to(root)).as_posix(), path
        message = "The path is outside the folders that this yard may use."
        raise ToolError("permission_denied", message, reason="outside_roots", may_have_run=False)

    def open(self, text: str) -> Image:
        """Return an image that was ingested.

        Raises:
            ToolError: `not_found`, reason `unknown_image`; `permission_denied`; `state_error` if it cannot be read.
        """
        name, path = self.locate(text)
        folder = _workspace(path)
        record = _read_record(folder)
        if record is None:
            message = f"There is no image '{name}'. Ingest it first, or list the images."
            raise ToolError("not_found", message, reason="unknown_image", may_have_run=False)
        source = Source(path, path.suffix.lower() in RAW, record.orientation)
        return Image(name, source, Versions(folder), record)

    def names(self) -> Iterator[str]:
        """Yield the names of all images, in order."""
        for prefix, root in sorted(self._roots.items()):
            for folder, below, _ in os.walk(root):
                found = sorted(name for name in below if name.endswith(SUFFIX))
                below[:] = sorted(name for name in below if not name.endswith(SUFFIX) and not name.startswith("."))
                place = Path(prefix) / Path(folder).relative_to(root)
                yield from ((place / name.removesuffix(SUFFIX)).as_posix() for name in found)

    def ingest(self, text: str, *, engine: str, width: int, height: int, label: str | None) -> Image:
        """Make the workspace of an image, with the untouched picture as its baseline.

        Raises:
            ToolError: `state_error`, reason `image_exists`, or the file cannot be read or its folder written.
        """
        name, path = self.locate(text)
        folder = _workspace(path)
        with file_errors(), _unfinished(folder) as unfinished:
            source = read_source(path)
            versions = Versions(unfinished)
            baseline = versions.write(encode(EMPTY))
            versions.move(BRANCH, baseline)
            versions.point_head(branch=BRANCH)
            versions.record("ingest", baseline, parent=None, ref=BRANCH, label=label)
            status = path.stat()
            record = _Record(
                engine=engine,
                sha256=_digest(path),
                size=status.st_size,
                mtime_ns=status.st_mtime_ns,
                width=width,
                height=height,
                orientation=source.orientation,
                baseline=baseline,
                ingested=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            write_file(unfinished / "image.json", msgspec.json.encode(record), unfinished / "tmp")
            try:
                unfinished.rename(folder)
            except OSError:
                if folder.exists():
                    raise image_exists(name) from None
                raise
        return self.open(name)

    def check_new(self, text: str) -> Path:
        """Return the file of an image that was not ingested yet.

        Raises:
            ToolError: `state_error`, reason `image_exists`; `not_found`, reason `image_gone`; `permission_denied`.
        """
        name, path = self.locate(text)
        if _workspace(path).exists():
            raise image_exists(name)
        if not path.is_file():
            message = f"There is no file '{name}'."
            raise ToolError("not_found", message, reason="image_gone", may_have_run=False)
        return path

    def forget(self, text: str) -> str:
        """Remove the workspace of an image with all its versions, and return its name."""
        name, path = self.locate(text)
        folder = _workspace(path)
        if not folder.is_dir():
            self.open(text)
        with Versions(folder).lock():
            doomed = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
            folder.rename(doomed)
            shutil.rmtree(doomed)
        return name


def _workspace(path: Path) -> Path:
    folder = path.with_name(f"{path.name}{SUFFIX}")
    if folder.is_symlink():
        message = "The workspace of the image is a link, which may lead elsewhere."
        raise ToolError("permission_denied", message, reason="outside_roots", may_have_run=False)
    return folder


@contextmanager
def _unfinished(folder: Path) -> Generator[Path]:
    """Give a hidden folder beside the final one, and remove what was not renamed."""
    unfinished = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
    unfinished.mkdir(mode=0o700)
    try:
        yield unfinished
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _read_record(folder: Path) -> _Record | None:
    try:
        content = (folder / "image.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if msgspec.json.decode(content, type=_RecordVersion).version > _VERSION:
            message = "A newer version of the pack made the workspace of this image. Upgrade 'callyard-darkroom'."
            raise ToolError("state_error", message, reason="newer_workspace", may_have_run=False)
        return msgspec.json.decode(content, type=_Record)
    except msgspec.DecodeError:
        message = "The workspace of the image is damaged: 'image.json' cannot be read."
        raise ToolError("state_error", message, reason="damaged_object", may_have_run=False) from None


def read_source(path: Path) -> Source:
    """Return an original with its orientation."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    orientation = next((tags[_ORIENTATION] for tags in _directories(head) if _ORIENTATION in tags), 1)
    known = orientation if 1 <= orientation < len(_FRAMES) else 1
    return Source(path, path.suffix.lower() in RAW, known)


def raw_dimensions(path: Path) -> tuple[int, int]:
    """Return the width and height of the largest picture in a raw file; a file without one has none."""
    with path.open("rb") as file:
        sizes = [(tags.get(_WIDTH, 0), tags.get(_HEIGHT, 0)) for tags in _directories(file.read(_HEAD_BYTES))]
    return max(sizes, key=lambda size: size[0] * size[1], default=(0, 0))


def _directories(head: bytes) -> Iterator[dict[int, int]]:
    """Yield the tags with one number of the first directory of a TIFF, or of a JPEG's EXIF, and of those inside it."""
    start = head.find(_EXIF) + len(_EXIF) if head.startswith(b"\xff\xd8") and _EXIF in head else 0
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(head[start : start + 4])
    if order is None:
        return
    waiting = [4]
    for _ in range(_MOST_DIRECTORIES):
        if not waiting:
            return
        try:
            (place,) = struct.unpack_from(f"{order}I", head, start + waiting.pop(0))
            tags = dict(_tags(head, start, place, order))
        except struct.error:
            return
        waiting += tags.pop(_INNER, ())
        yield {tag: values[0] for tag, values in tags.items()}


def _tags(head: bytes, start: int, place: int, order: str) -> Iterator[tuple[int, list[int]]]:
    (count,) = struct.unpack_from(f"{order}H", head, start + place)
    for index in range(count):
        entry = start + place + 2 + index * 12
        tag, kind, values = struct.unpack_from(f"{order}HHI", head, entry)
        if tag == _INNER:
            pointer = entry + 8 - start
            (first,) = struct.unpack_from(f"{order}I", head, entry + 8)
            yield tag, [pointer] if values == 1 else [first + 4 * number for number in range(min(values, 8))]
        elif kind in _KINDS and values == 1:
            yield tag, list(struct.unpack_from(f"{order}{_KINDS[kind]}", head, entry + 8))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def image_exists(name: str) -> ToolError:
    """Return the failure of an image that was ingested before."""
    message = f"The image '{name}' was ingested before."
    return ToolError("state_error", message, reason="image_exists", image=name, may_have_run=False)


def no_baseline() -> ToolError:
    """Return the failure of a workspace whose branch has no version."""
    message = "The branch of the image has no version. Check out another branch, or forget the image."
    return ToolError("state_error", message, reason="no_baseline", may_have_run=False)
