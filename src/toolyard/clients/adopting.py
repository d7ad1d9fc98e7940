"""Adopting: which servers of clients become upstreams of a file, under which names, and what of them is kept elsewhere."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from toolyard.clients.secrets import HIDDEN, REFERENCE, Keeping, hidden, keep_secrets
from toolyard.clients.servers import Server
from toolyard.clients.toml_text import add_table
from toolyard.config.fitting import Table
from toolyard.config.naming import twin_of
from toolyard.config.upstreams import UPSTREAMS
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["Adopted", "Status", "add_upstreams", "adopt", "missing_variables", "shown_way"]

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
        if name not in known and twin_of(name, list(known)) is None:
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
