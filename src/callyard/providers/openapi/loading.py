"""Loads the document of an API with all files that it refers to, and keeps what is slow to get in the state directory.

Files are read from the document's folder and the folders below it; those of a URL are fetched from its host.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from callyard._internal.addresses import origin_of
from callyard._internal.files import read_private, write_atomically
from callyard.providers.openapi.document import Document, join_location
from callyard.providers.openapi.http import ApiHttp, Request
from callyard.providers.openapi.reading import DocumentError, external_references, parse
from callyard.providers.openapi.settings import ApiSettings
from callyard.providers.upstream.http.client import parse_address
from callyard.providers.upstream.link import LinkError

__all__ = ["Loaded", "Stamps", "load_cached", "load_file", "load_url", "stamps_of"]

_FILE: Final = "document.json"
_MAX_FILES: Final = 500
_OK: Final = 200
Read = Callable[[str], Awaitable[bytes]]
Stamps = dict[str, tuple[int, int]]


class Loaded(msgspec.Struct, frozen=True):
    """A document that was loaded, and what tells whether it is still the same."""

    document: Document
    digest: str
    """A hash of all its files."""
    stamps: Stamps
    """Modification time and size of each file; none of a URL."""
    seen: float
    """When it was read or fetched, in seconds of the wall clock."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A document in the state directory: as JSON, whatever it was written in."""

    source: str
    digest: str
    stamps: Stamps
    seen: float
    files: dict[str, msgspec.Raw]
    refused: dict[str, str]


def stamps_of(locations: Mapping[str, Any]) -> Stamps:
    """Return the current stamps of files; a file that is gone has none."""
    found: Stamps = {}
    for location in locations:
        with suppress(OSError):
            status = Path(location).stat()
            found[location] = (status.st_mtime_ns, status.st_size)
    return found


def load_cached(folder: Path, settings: ApiSettings, *, fresh: bool) -> Loaded | None:
    """Return the stored document of these settings, if there is one; with `fresh` only if its files are the same."""
    try:
        stored = msgspec.json.decode(read_private(folder / _FILE), type=_Stored)
        if stored.source != settings.document or (fresh and stamps_of(stored.stamps) != stored.stamps):
            return None
        files = {location: msgspec.json.decode(raw) for location, raw in stored.files.items()}
        document = Document(next(iter(files)), files, refused=stored.refused)
    except (OSError, msgspec.DecodeError, DocumentError, StopIteration, RecursionError):
        return None
    return Loaded(document, stored.digest, stored.stamps, stored.seen)


async def load_file(folder: Path, settings: ApiSettings) -> Loaded:
    """Return the document in a file; one that is slow to read is stored in the folder for the next start.

    Raises:
        DocumentError: It cannot be used.
    """
    return await asyncio.to_thread(_load_file, folder, settings)


def _load_file(folder: Path, settings: ApiSettings) -> Loaded:
    stored = load_cached(folder, settings, fresh=True)
    if stored is not None:
        return stored
    path = Path(settings.document).absolute()
    root = path.parent.resolve()
    reader = _Reader(settings, name=path.name)

    def read(location: str) -> bytes:
        file = Path(location)
        try:
            if not file.resolve().is_relative_to(root):
                raise DocumentError("leads out of the document's folder")
            if file.stat().st_size > settings.document_bytes:
                raise _too_large(file.name, settings)
            return file.read_bytes()
        except (OSError, ValueError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no file"
            raise DocumentError(f"The document '{file.name}' cannot be read: {why}.") from None

    pending = [str(path)]
    while pending:
        location = pending.pop()
        pending += reader.take(location, lambda location=location: read(location))
    return reader.finish(folder, stamps_of(reader.files), is_slow=reader.is_slow)


async def load_url(folder: Path, settings: ApiSettings, http: ApiHttp, *, name: str) -> Loaded:
    """Return the document at a URL, and store it.

    Raises:
        DocumentError: It cannot be fetched, or cannot be used.
    """
    reader = _Reader(settings, name=name)
    origin = origin_of(settings.document)
    pending = [settings.document]
    while pending:
        location = pending.pop()
        if origin_of(location) != origin:
            reader.refused[location] = "leads to another host"
            continue
        content: bytes | DocumentError
        try:
            content = await _fetch(http, location, settings, name=name)
        except DocumentError as error:
            content = error

        def given(content: bytes | DocumentError = content) -> bytes:
            if isinstance(content, DocumentError):
                raise content
            return content

        pending += await asyncio.to_thread(reader.take, location, given)
    return await asyncio.to_thread(reader.finish, folder, {}, is_slow=True)


async def _fetch(http: ApiHttp, location: str, settings: ApiSettings, *, name: str) -> bytes:
    try:
        address = parse_address(name, location)
        accepted = {"Accept": "application/json, application/yaml, text/yaml, */*;q=0.5"}
        async with asyncio.timeout(settings.connect_seconds):
            answer = await http.send(Request(method="GET", address=address, headers=accepted))
    except TimeoutError:
        sentence = f"The document of '{name}' did not come within {settings.connect_seconds:g} seconds."
        raise DocumentError(sentence) from None
    except LinkError as error:
        raise DocumentError(f"The document of '{name}' cannot be fetched: {error.message}") from None
    if answer.status != _OK:
        raise DocumentError(f"The document of '{name}' cannot be fetched: its address answered {answer.status}.")
    return answer.body


def _too_large(name: str, settings: ApiSettings) -> DocumentError:
    return DocumentError(f"The document '{name}' has more than {settings.document_bytes} bytes.")


class _Reader:
    """Collects the files of one document."""

    def __init__(self, settings: ApiSettings, *, name: str) -> None:
        self.files: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.is_slow = False
        self._settings = settings
        self._name = name
        self._digest = sha256()
        self._bytes = 0

    def take(self, location: str, read: Callable[[], bytes]) -> list[str]:
        """Add a file, and return the locations that it refers to and that are not known yet.

        Raises:
            DocumentError: It is the document itself, and cannot be used.
        """
        if location in self.files or location in self.refused:
            return []
        if len(self.files) >= _MAX_FILES:
            self.refused[location] = f"leads to one file more than the {_MAX_FILES} that are read"
            return []
        try:
            content = read()
            if self._bytes + len(content) > self._settings.document_bytes:
                raise _too_large(self._name, self._settings)
            parsed, is_yaml = parse(content, self._name if not self.files else location.rpartition("/")[2])
        except DocumentError as error:
            if not self.files:
                raise
            text = str(error)
            self.refused[location] = text if text.startswith("leads") else "leads to a file that cannot be read"
            return []
        self._bytes += len(content)
        self._digest.update(content)
        self.files[location] = parsed
        self.is_slow = self.is_slow or is_yaml or len(self.files) > 1
        written = msgspec.json.encode(parsed) if is_yaml else content
        found = [join_location(location, reference) for reference in sorted(external_references(written))]
        return [one for one in found if one not in self.files]

    def finish(self, folder: Path, stamps: Stamps, *, is_slow: bool) -> Loaded:
        """Return the document, and store it if it is slow to get."""
        location = next(iter(self.files))
        document = Document(location, self.files, refused=self.refused)
        loaded = Loaded(document, self._digest.hexdigest(), stamps, time.time())
        if is_slow:
            files = {name: msgspec.Raw(msgspec.json.encode(parsed)) for name, parsed in self.files.items()}
            stored = _Stored(
                source=self._settings.document,
                digest=loaded.digest,
                stamps=stamps,
                seen=loaded.seen,
                files=files,
                refused=self.refused,
            )
            with suppress(OSError):  # the next start is slower then
                write_atomically(folder / _FILE, msgspec.json.encode(stored))
        return loaded
