"""Content blocks as files: an image or a sound that a tool answered with, where a person can open it."""

from collections.abc import Iterator
from mimetypes import MimeTypes
from pathlib import Path
from typing import Final

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.content import Block, ResourceLink, Text
from toolyard.envelope import Envelope

__all__ = ["make_folder", "write_blocks"]

_ENDINGS: Final = {"audio/flac": ".flac", "audio/ogg": ".ogg", "image/jpeg": ".jpg", "image/webp": ".webp"}


def make_folder(path: str) -> Path:
    """Return the folder, made if need be, so that a call is not run whose blocks cannot be kept.

    Raises:
        CommandError: It cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"The folder '{path}' cannot be made: {error.strerror}.") from error
    return folder


def write_blocks(envelope: Envelope, folder: Path) -> Iterator[Path]:
    """Write each block of an envelope to a file, and yield where it is.

    Raises:
        CommandError: One cannot be written.
    """
    for number, block in enumerate(envelope.content, start=1):
        if isinstance(block, ResourceLink):  # it holds nothing that a file could
            continue
        path = folder / f"{envelope.meta.call_id}-{number}{_ending(block)}"
        try:
            path.write_bytes(block.text.encode("utf-8", "replace") if isinstance(block, Text) else block.data)
        except OSError as error:
            raise CommandError(f"The file '{path}' cannot be written: {error.strerror}.", status=DEFECT) from error
        yield path


def _ending(block: Block | Text) -> str:
    """Return the ending for a file, the same on every machine."""
    if isinstance(block, Text):
        return ".txt"
    kind = block.mime_type.partition(";")[0].strip().lower()
    return _ENDINGS.get(kind) or MimeTypes().guess_extension(kind) or ".bin"
