"""Tables `[pack.NAME]` of packs: read from 'callyard.toml' as they are, and converted once their pack is imported."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from callyard._internal.mask import remember_secret
from callyard.config.convert import ConfigError, Location, References, Table, check_keys, convert, require_table

__all__ = ["PACK", "SECRETS", "PackTable", "fields_of", "pack_tables_of_code", "read_pack_tables", "shown_fields"]

PACK: Final = "pack"
SECRETS: Final = "secrets"
"""The key that the table of every pack may have: secrets by name."""
_HIDDEN: Final = "…"
_ENUM_VALUE: Final = re.compile(r"Invalid enum value .*?(?= - at|\Z)", re.DOTALL)
"""The one message of msgspec that shows a value, which may be a secret at the wrong place."""


class PackTable(msgspec.Struct, frozen=True):
    """The table of one pack, with unresolved references."""

    values: Table
    location: Location
    folder: Path
    """The folder that files of secrets are relative to."""

    @classmethod
    def empty(cls, name: str) -> "PackTable":
        """Return the table of a pack that has none."""
        return cls({}, Location(f"{PACK}.{name}"), Path())

    def masked(self) -> dict[str, Any]:
        """Return what may be shown without the pack, which alone says what is no secret: numbers and switches."""
        return {key: value if isinstance(value, bool | int | float) else _HIDDEN for key, value in self.values.items()}

    def filled(self, warn: Callable[[str], None] = lambda _: None) -> Table:
        """Return the table with all references filled in; the secrets are noted, so that they are masked in logs.

        Raises:
            ConfigError: A variable or secret is missing, or the secrets are no table of texts.
        """
        references = References(variables=os.environ, folder=self.folder, warn=warn)
        secrets = convert(self.values.get(SECRETS, {}), dict[str, str], self.location.child(f".{SECRETS}"))
        table = _filled({**self.values, SECRETS: secrets}, references, self.location)
        for secret in table[SECRETS].values():
            remember_secret(secret)
        return table

    def resolve(self, kind: type | None, filled: Table) -> tuple[Any, dict[str, str]]:
        """Return the filled table as a type, without one nothing, and the secrets by name.

        Raises:
            ConfigError: A key is unknown, or a value does not fit.
        """
        table = {key: value for key, value in filled.items() if key != SECRETS}
        check_keys(table, [*fields_of(kind), SECRETS], self.location)
        return (None if kind is None else _converted(table, kind, self.location)), filled[SECRETS]


def read_pack_tables(document: Table, path: Path) -> dict[str, PackTable]:
    """Return the tables of packs by name.

    Raises:
        ConfigError: One is no table.
    """
    whole = Location(PACK, str(path))
    tables = require_table(document.get(PACK, {}), whole)
    return {
        name: PackTable(require_table(table, whole.child(f".{name}")), whole.child(f".{name}"), path.parent)
        for name, table in tables.items()
    }


def pack_tables_of_code(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, PackTable]:
    """Return tables that a program gives to its yard."""
    return {name: PackTable(dict(table), Location(f"{PACK}.{name}"), Path()) for name, table in tables.items()}


def fields_of(kind: type | None) -> Sequence[str]:
    """Return the keys of a table of this type: of a struct, a dataclass or a pydantic model."""
    if kind is None:
        return ()
    models: Any = getattr(kind, "model_fields", None)
    if isinstance(models, Mapping):
        return [field.alias or name for name, field in cast("Mapping[str, Any]", models).items()]
    if issubclass(kind, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    return [*getattr(cast("Any", kind), "__dataclass_fields__", ())]


def shown_fields(config: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a configuration that may be shown, as JSON."""
    dump = getattr(config, "model_dump", None)
    fields: Any = msgspec.to_builtins(config) if dump is None else dump(mode="json", by_alias=True)
    return {name: fields[name] for name in names}


def _converted(table: Table, kind: Any, location: Location) -> Any:
    validate = getattr(kind, "model_validate", None)
    try:
        return msgspec.convert(table, kind, strict=True) if validate is None else validate(table)
    except msgspec.ValidationError as error:
        why = _ENUM_VALUE.sub("Invalid value", str(error)).rstrip(".")
        raise ConfigError(f"{location} is wrong: {why}.") from None
    except ValueError as error:  # of pydantic, whose text would show the values
        raise ConfigError(f"{location} is wrong: {_first_fault(error)}.") from None


def _first_fault(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if errors is None:
        return type(error).__name__
    first = errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"'{place}': {first['msg'].rstrip('.')}" if place else first["msg"].rstrip(".")


def _filled(value: Any, references: References, location: Location) -> Any:
    """Return a value with the references in its texts filled in."""
    if isinstance(value, str):
        return references.resolve(value, location)
    if isinstance(value, dict):
        table = cast("Table", value)
        return {key: _filled(item, references, location.child(f".{key}")) for key, item in table.items()}
    if isinstance(value, list | tuple):
        items = enumerate(cast("Sequence[Any]", value))
        return [_filled(item, references, location.child(f"[{number}]")) for number, item in items]
    return value
