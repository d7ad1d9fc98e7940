"""Connecting: Toolyard's entry put into a client's file, or taken out again, with everything else left as it was."""

import glob
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from toolyard.clients.documents import decode, parse, read_bytes
from toolyard.clients.files import rewrite
from toolyard.clients.json_text import put_member, remove_member
from toolyard.clients.known import Client
from toolyard.clients.servers import OURS, runs_toolyard
from toolyard.clients.toml_text import EditError, add_table, remove_table
from toolyard.config.fitting import ConfigError

__all__ = ["Change", "carry_out", "connected", "disconnected"]

_MARK: Final = ".toolyard-backup-"
_BOM: Final = "\ufeff"


class Change(NamedTuple):
    """What is to become of a file: its bytes before and after, nothing where there is no file, and the backup that is used up."""

    path: Path
    before: bytes | None
    after: bytes | None
    used: Path | None = None


def connected(client: Client, path: Path, *, name: str, entry: Mapping[str, Any]) -> Change:
    """Return how a client's file changes when it gets our entry; not at all if it has that already.

    Raises:
        ConfigError: The file cannot be read, or must not be changed so.
    """
    before = read_bytes(path)
    text = decode(before or b"", path)
    there = _entry(client, parse(text, path), name)
    if there == entry:
        return Change(path, before, before)
    if there is not None and not _is_ours(there, name):
        raise ConfigError(f"There is another server '{name}' in '{path}'. Choose another name with '--name'.")
    return Change(path, before, _put(client, path, text, name=name, entry=entry).encode())


def disconnected(client: Client, path: Path, *, name: str) -> Change:
    """Return how a client's file becomes what it was before our entry was written last; if it was changed since, our entry alone goes.

    Raises:
        ConfigError: Our entry is not in it, or it cannot be changed.
    """
    now = read_bytes(path)
    text = decode(now or b"", path)
    there = _entry(client, parse(text, path), name)
    backup = max(_backups(path), default=None)
    earlier = None if backup is None else read_bytes(backup)
    if there is not None and _would_be(client, path, earlier, name=name, entry=there) == text:
        return Change(path, now, earlier, backup)
    if there is None or not _is_ours(there, name):
        raise ConfigError(f"There is nothing to undo: '{name}' is not in '{path}', or is not of Toolyard.")
    return Change(path, now, _taken_out(client, path, text, name=name))


def carry_out(change: Change, *, keep: bool) -> Path | None:
    """Change the file, and return the backup if one is kept beside it.

    Raises:
        ConfigError: Somebody else changed it meanwhile.
        OSError: It cannot be written.
    """
    real = change.path.resolve()
    backup = None
    if read_bytes(real) != change.before:
        raise ConfigError(f"The file '{change.path}' was changed by somebody else in this moment. Try again.")
    if keep and change.before is not None:
        backup = _free_backup(real)
        rewrite(backup, change.before, private=True)
    if change.after is None:
        real.unlink()
    else:
        rewrite(real, change.after, private=change.before is None)
    if change.used is not None:
        change.used.unlink()
    return backup


def _put(client: Client, path: Path, text: str, *, name: str, entry: Mapping[str, Any]) -> str:
    where = [*client.section, name]
    plain = text.removeprefix(_BOM)
    mark = text[: len(text) - len(plain)]
    try:
        if path.suffix != ".toml":
            return mark + put_member(plain, where, dict(entry))
        bare = plain if _entry(client, parse(plain, path), name) is None else remove_table(plain, where)
        return mark + add_table(bare, where, entry)
    except EditError as error:
        raise ConfigError(f"The file '{path}' cannot be changed: {error}.") from None


def _would_be(client: Client, path: Path, earlier: bytes | None, *, name: str, entry: Mapping[str, Any]) -> str | None:
    """Return what our entry made of an earlier file, nothing if that cannot be told."""
    try:
        return _put(client, path, decode(earlier or b"", path), name=name, entry=entry)
    except ConfigError:
        return None


def _taken_out(client: Client, path: Path, text: str, *, name: str) -> bytes:
    plain = text.removeprefix(_BOM)
    remove = remove_table if path.suffix == ".toml" else remove_member
    try:
        return (text[: len(text) - len(plain)] + remove(plain, [*client.section, name])).encode()
    except EditError as error:
        raise ConfigError(f"The file '{path}' cannot be changed: {error}.") from None


def _entry(client: Client, document: object, name: str) -> dict[str, Any] | None:
    for key in (*client.section, name):
        document = cast("dict[str, object]", document).get(key) if isinstance(document, dict) else None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def _is_ours(entry: dict[str, Any], name: str) -> bool:
    return name == OURS or runs_toolyard(entry)


def _backups(path: Path) -> list[Path]:
    real = path.resolve()
    return sorted(real.parent.glob(f"{glob.escape(real.name)}{_MARK}*"))


def _free_backup(real: Path) -> Path:
    """Return a name for a backup, later than those of all others."""
    now = time.time()
    while True:
        path = real.with_name(f"{real.name}{_MARK}{time.strftime('%Y%m%d%H%M%S', time.localtime(now))}")
        if not path.exists():
            return path
        now += 1
