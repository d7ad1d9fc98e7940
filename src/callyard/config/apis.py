"""APIs as they are configured in 'callyard.toml'.

References to variables and secrets stay unresolved until `ApiEntry.resolve`. Nothing connects here.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from callyard.config.convert import (
    ConfigError,
    Location,
    References,
    Table,
    build_struct,
    convert_fields,
    require_table,
)
from callyard.config.read import RESERVED, colliding_name, is_upstream_name, to_upstream_name
from callyard.config.upstreams import HIDDEN, UPSTREAMS, resolve_value, without_credentials, without_secrets
from callyard.providers.openapi.settings import ApiSettings, ResolvedApi

__all__ = ["APIS", "ApiEntry", "apis_from_file"]

APIS: Final = "apis"
_WITH_REFERENCES: Final = ("document", "base_url", "server_variables", "credentials", "headers", "login", "files_root")


class ApiEntry(NamedTuple):
    """One configured API with unresolved references."""

    settings: ApiSettings
    fields: Table
    """The values that were set, without defaults."""
    location: Location
    folder: Path

    def masked(self) -> Table:
        """Return the values that were set, with secrets masked, so that they can be shown."""
        return {name: _mask(name, value) for name, value in self.fields.items()}

    def resolve(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> ApiSettings:
        """Return the settings with every variable and secret filled in, and with absolute paths.

        Raises:
            ConfigError: A variable or secret is missing.
        """
        references = References(variables=variables, folder=self.folder, warn=warn)
        found = {
            name: resolve_value(getattr(self.settings, name), references, self.location.child(f".{name}"))
            for name in _WITH_REFERENCES
        }
        if "://" not in found["document"]:
            found["document"] = self._absolute(found["document"])
        if found["files_root"] is not None:
            found["files_root"] = self._absolute(found["files_root"])
        return msgspec.structs.replace(self.settings, **found)

    def _absolute(self, path: str) -> str:
        return str(self.folder.resolve() / Path(path).expanduser())

    def try_resolve(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> ResolvedApi:
        """Return the settings with every variable and secret, or the problem, which must not stop other APIs."""
        try:
            return ResolvedApi(self.resolve(variables, warn))
        except ConfigError as error:
            return ResolvedApi(self.settings, str(error))


def _mask(name: str, value: Any) -> Any:
    if name in {"credentials", "headers"}:
        return dict.fromkeys(value, HIDDEN)
    if name == "login":
        return without_secrets(value)
    if name == "overrides":
        return {pattern: without_secrets(change) for pattern, change in value.items()}
    return without_credentials(value) if name in {"document", "base_url"} else value


def apis_from_file(document: Table, path: Path, *, upstreams: Iterable[str] = ()) -> dict[str, ApiEntry]:
    """Return the APIs of 'callyard.toml', whose names must not be those of its upstreams.

    Raises:
        ConfigError: An API is wrong; the message names its key and the file.
    """
    whole = Location(APIS, str(path))
    entries: dict[str, ApiEntry] = {}
    others = list(upstreams)
    for name, table in require_table(document.get(APIS, {}), whole).items():
        location = whole.child(f".{name}")
        if not is_upstream_name(name):
            why = "is reserved" if name in RESERVED else "has characters that names of APIs cannot have"
            usable = to_upstream_name(name)
            raise ConfigError(f"{location} needs another name: '{name}' {why}. Use '{usable}', for example.")
        for kind, known in ((APIS, list(entries)), (UPSTREAMS, others)):
            other = name if name in known else colliding_name(name, known)
            if other is not None:
                both = f"{location} and '{kind}.{other}'"
                raise ConfigError(f"{both} would give their tools the same names. Rename one of them.")
        fields = convert_fields(table, ApiSettings, location)
        entries[name] = ApiEntry(build_struct(ApiSettings, fields, location), fields, location, path.parent)
    return entries
