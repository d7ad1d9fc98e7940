"""Import of clients' servers into 'callyard.toml', and changes that connect a client to Callyard.

Changes are planned first and applied separately, so that they can be shown before anything is written.
"""

import glob
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from callyard._internal.files import rewrite
from callyard.client_configs.clients import Client
from callyard.client_configs.edit import EditError, add_table, put_member, remove_member, remove_table
from callyard.client_configs.read import OURS, Server, decode, parse, read_bytes, runs_callyard
from callyard.client_configs.secrets import MASK, REFERENCE, SecretStorage, extract_secrets, mask_table
from callyard.config.convert import ConfigError, Table
from callyard.config.read import colliding_name
from callyard.providers.upstream.settings import UpstreamSettings

__all__ = [
    "Change",
    "ImportedServer",
    "Status",
    "add_tables",
    "apply_change",
    "display_target",
    "missing_variables",
    "plan_connect",
    "plan_disconnect",
    "plan_import",
]

Status = Literal["added", "renamed", "there already", "left out"]


class ImportedServer(NamedTuple):
    """The outcome of one server: its name here, its table if it is new, and the secrets of that table."""

    server: Server
    name: str
    status: Status
    reason: str = ""
    table: Table = {}  # noqa: RUF012 - tables are never changed
    secrets: dict[str, str] = {}  # noqa: RUF012 - the same


def plan_import(
    servers: Iterable[Server], existing: Mapping[str, Table], *, storage: SecretStorage, secrets: Path, folder: Path
) -> list[ImportedServer]:
    """Return the outcome of each server for a 'callyard.toml' in a folder, which has some upstreams already."""
    targets = {name: _comparable(table) for name, table in existing.items()}
    variables: dict[str, str] = {}
    imported: list[ImportedServer] = []
    for server in servers:
        if server.reason:
            imported.append(ImportedServer(server, server.name, "left out", server.reason))
            continue
        name, is_new = _free_name(server, targets)
        if not is_new:
            imported.append(ImportedServer(server, name, "there already"))
            continue
        targets[name] = _comparable(server.table)
        table = {key: server.table[key] for key in UpstreamSettings.__struct_fields__ if key in server.table}
        if table.get("cwd") == str(folder):
            del table["cwd"]
        extracted = extract_secrets(name, table, storage=storage, folder=secrets, variables=variables)
        status: Status = "added" if name == server.name else "renamed"
        reason = "" if status == "added" else f"There is another '{server.name}', so it is '{name}' here."
        imported.append(ImportedServer(server, name, status, reason, **extracted._asdict()))
    return imported


def add_tables(text: str, section: str, tables: Mapping[str, Table]) -> str:
    """Return the text of 'callyard.toml' with these tables of a section at its end.

    Raises:
        EditError: They cannot be added there.
    """
    for name, table in tables.items():
        text = add_table(text, [section, name], table)
    return text


def display_target(table: Table) -> str:
    """Return the command or the URL of an upstream, or the document of an API, with secrets masked."""
    shown = mask_table(table)
    if "document" in shown:
        return str(shown["document"])
    if "url" in shown:
        return str(shown["url"])
    return " ".join(map(str, (shown.get("command", ""), *shown.get("args", ()))))


def missing_variables(table: Table, variables: Mapping[str, str]) -> list[str]:
    """Return the variables that a table refers to and that are not set."""
    pattern = r"(?<!\$)\$\{(?:env:)?([A-Za-z_]\w*)\}"
    return sorted({name for text in _strings(table) for name in re.findall(pattern, text)} - set(variables))


def _free_name(server: Server, targets: Mapping[str, object]) -> tuple[str, bool]:
    """Return the name of a server here, and whether the server is new."""
    target = _comparable(server.table)
    number = 1
    name = server.name
    while True:
        if targets.get(name) == target:
            return name, False
        if name not in targets and colliding_name(name, list(targets)) is None:
            return name, True
        name = f"{server.name}-{server.client}" + (f"-{number}" if number > 1 else "")
        number += 1


def _comparable(table: Table) -> tuple[object, ...]:
    """Return the command or the URL of an upstream, with secrets and references masked, to compare."""
    shown = mask_table(table)
    parts = [shown.get("command"), shown.get("url"), *shown.get("args", ())]
    return tuple(REFERENCE.sub(MASK, part) if isinstance(part, str) else part for part in parts)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return [text for item in items for text in _strings(item)]


_BACKUP: Final = ".callyard-backup-"


class Change(NamedTuple):
    """A planned change of a file: its content before and after, None without a file, and the backup that it uses up."""

    path: Path
    before: bytes | None
    after: bytes | None
    backup: Path | None = None


def plan_connect(client: Client, path: Path, *, name: str, entry: Mapping[str, Any]) -> Change:
    """Return the change that puts our entry into a client's file; it is empty if the entry is there.

    Raises:
        ConfigError: The file cannot be read, or has another server of that name.
    """
    before = read_bytes(path)
    text = decode(before or b"", path)
    present = _entry(client, parse(text, path), name)
    if present == entry:
        return Change(path, before, before)
    if present is not None and not _is_ours(present, name):
        raise ConfigError(f"There is another server '{name}' in '{path}'. Choose another name with '--name'.")
    return Change(path, before, _with_entry(client, path, text, name=name, entry=entry).encode())


def plan_disconnect(client: Client, path: Path, *, name: str) -> Change:
    """Return the change that restores the backup, or removes our entry alone if the file changed since.

    Raises:
        ConfigError: Our entry is not in the file, or the file cannot be edited.
    """
    before = read_bytes(path)
    text = decode(before or b"", path)
    present = _entry(client, parse(text, path), name)
    target = path.resolve()
    backup = max(target.parent.glob(f"{glob.escape(target.name)}{_BACKUP}*"), default=None)
    original = None if backup is None else read_bytes(backup)
    if present is not None:
        with suppress(ConfigError):  # the file is the backup with our entry and nothing else
            if _with_entry(client, path, decode(original or b"", path), name=name, entry=present) == text:
                return Change(path, before, original, backup)
    if present is None or not _is_ours(present, name):
        raise ConfigError(f"There is nothing to undo: '{name}' is not in '{path}', or is not Callyard.")
    remove = remove_table if path.suffix == ".toml" else remove_member
    return Change(path, before, _edited(path, text, lambda bare: remove(bare, [*client.section, name])).encode())


def apply_change(change: Change, *, backup: bool) -> Path | None:
    """Change the file, and return the path of its backup if one was made.

    Raises:
        ConfigError: The file was changed meanwhile.
        OSError: It cannot be written.
    """
    target = change.path.resolve()
    backup_path = None
    if read_bytes(target) != change.before:
        raise ConfigError(f"The file '{change.path}' was changed by another program meanwhile. Try again.")
    if backup and change.before is not None:
        backup_path = _free_backup(target)
        rewrite(backup_path, change.before, private=True)
    if change.after is None:
        target.unlink()
    else:
        rewrite(target, change.after, private=change.before is None)
    if change.backup is not None:
        change.backup.unlink()
    return backup_path


def _with_entry(client: Client, path: Path, text: str, *, name: str, entry: Mapping[str, Any]) -> str:
    keys = [*client.section, name]

    def put(bare: str) -> str:
        if path.suffix != ".toml":
            return put_member(bare, keys, dict(entry))
        is_new = _entry(client, parse(bare, path), name) is None
        return add_table(bare if is_new else remove_table(bare, keys), keys, entry)

    return _edited(path, text, put)


def _edited(path: Path, text: str, edit: Callable[[str], str]) -> str:
    """Return a text after an edit, which does not see the byte order mark."""
    bare = text.removeprefix("\ufeff")
    try:
        return text[: len(text) - len(bare)] + edit(bare)
    except EditError as error:
        raise ConfigError(f"The file '{path}' cannot be changed: {error}.") from None


def _entry(client: Client, document: object, name: str) -> dict[str, Any] | None:
    for key in (*client.section, name):
        document = cast("dict[str, object]", document).get(key) if isinstance(document, dict) else None
    return cast("dict[str, Any]", document) if isinstance(document, dict) else None


def _is_ours(entry: dict[str, Any], name: str) -> bool:
    return name == OURS or runs_callyard(entry)


def _free_backup(target: Path) -> Path:
    """Return a name for a backup, later than all others."""
    now = time.time()
    while True:
        path = target.with_name(f"{target.name}{_BACKUP}{time.strftime('%Y%m%d%H%M%S', time.localtime(now))}")
        if not path.exists():
            return path
        now += 1
