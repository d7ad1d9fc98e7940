"""Connecting: Toolyard's entry put into a client's file, or taken out again, with everything else left as it was."""

import glob
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from toolyard._internal.files import rewrite
from toolyard.client_configs.edit import put_member, remove_member
from toolyard.client_configs.edit_toml import EditError, add_table, remove_table
from toolyard.client_configs.known import Client
from toolyard.client_configs.read import OURS, Server, decode, parse, read_bytes, runs_toolyard
from toolyard.client_configs.secrets import HIDDEN, REFERENCE, Keeping, hidden, keep_secrets
from toolyard.config.convert import ConfigError, Table
from toolyard.config.read import colliding_name
from toolyard.config.upstreams import UPSTREAMS
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = [
    "Adopted",
    "Change",
    "Status",
    "add_upstreams",
    "adopt",
    "carry_out",
    "connected",
    "disconnected",
    "missing_variables",
    "shown_way",
]


Status = Literal["added", "renamed", "there already", "left out"]
_ORDER: Final = UpstreamSettings.__struct_fields__
_VARIABLE: Final = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_]\w*)\}")


class Adopted(NamedTuple):
    """What becomes of a server: its name here, its table if it has one, and the secrets that the table refers to or has."""

    server: Server
    name: str
    status: Status
    why: str = ""
    table: Table = {}  # noqa: RUF012 - never changed, as no table here is
    secrets: dict[str, str] = {}  # noqa: RUF012 - the same


def adopt(servers: Iterable[Server], there: Mapping[str, Table], *, keeping: Keeping, secrets: Path, folder: Path) -> list[Adopted]:
    """Return what becomes of each server in a file of that folder that has some upstreams already."""
    known = {name: _comparable(table) for name, table in there.items()}
    taken: dict[str, str] = {}
    found: list[Adopted] = []
    for server in servers:
        if server.why:
            found.append(Adopted(server, server.name, "left out", server.why))
            continue
        name, is_new = _free_name(server, known)
        if not is_new:
            found.append(Adopted(server, name, "there already"))
            continue
        known[name] = _comparable(server.table)
        here = {key: server.table[key] for key in _ORDER if key in server.table and (key, server.table[key]) != ("cwd", str(folder))}
        kept = keep_secrets(name, here, keeping=keeping, folder=secrets, taken=taken)
        status: Status = "added" if name == server.name else "renamed"
        why = "" if status == "added" else f"There is another '{server.name}', so it is '{name}' here."
        found.append(Adopted(server, name, status, why, kept.table, kept.secrets))
    return found


def add_upstreams(text: str, upstreams: Mapping[str, Table]) -> str:
    """Return the text of 'toolyard.toml' with these upstreams at its end.

    Raises:
        EditError: They cannot stand there.
    """
    for name, table in upstreams.items():
        text = add_table(text, [UPSTREAMS, name], table)
    return text


def shown_way(table: Table) -> str:
    """Return the command or the address of an upstream as it may be shown."""
    shown = hidden(table)
    if "url" in shown:
        return str(shown["url"])
    words = [str(shown.get("command", "")), *map(str, shown.get("args", ()))]
    return " ".join(words)


def missing_variables(table: Table, variables: Mapping[str, str]) -> list[str]:
    """Return the variables that a table needs and that are not set."""
    return sorted({name for text in _texts(table) for name in _VARIABLE.findall(text)} - set(variables))


def _free_name(server: Server, known: Mapping[str, object]) -> tuple[str, bool]:
    """Return the name of a server, and whether it is new here."""
    mine = _comparable(server.table)
    number = 1
    name = server.name
    while True:
        if known.get(name) == mine:
            return name, False
        if name not in known and colliding_name(name, list(known)) is None:
            return name, True
        name = f"{server.name}-{server.client}" + (f"-{number}" if number > 1 else "")
        number += 1


def _comparable(table: Table) -> tuple[object, ...]:
    """Return how an upstream is reached, with nothing of what is secret or looked up."""
    shown = hidden(table)
    texts = [shown.get("command"), shown.get("url"), *shown.get("args", ())]
    return tuple(REFERENCE.sub(HIDDEN, text) if isinstance(text, str) else text for text in texts)


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items: Iterable[Any] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).values()
    elif isinstance(value, list | tuple):
        items = cast("list[Any]", value)
    return [text for item in items for text in _texts(item)]


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
