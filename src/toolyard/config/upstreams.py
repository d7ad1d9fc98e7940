"""Upstreams as they are written: in 'toolyard.toml', in a client's file, or as an address; and what they are once all is looked up."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from toolyard.config.fitting import ConfigError, Place, Table, fitted_fields, made, table_of
from toolyard.config.naming import RESERVED, is_name, made_name, twin_of
from toolyard.config.variables import References
from toolyard.providers.upstream.settings import Identity, Login, UpstreamSettings

__all__ = ["DEFAULTS", "UPSTREAMS", "Written", "from_file", "from_target", "masked"]

UPSTREAMS: Final = "upstreams"
DEFAULTS: Final = "upstream_defaults"
"""The table of what all upstreams of a file have in common."""

_HIDDEN: Final = "…"
_REACHES: Final = ("command", "url")
_SINGLE: Final = ("command", "cwd", "url")
_OF_LOGIN: Final = ("client_id", "client_secret", "private_key", "client_metadata_url", "issuer")
_OF_IDENTITY: Final = ("issuer", "client_id", "client_secret", "id_token")
_SECRETS: Final = ("client_secret", "private_key", "id_token")
_CREDENTIALS: Final = re.compile(r"(?<=//)[^/?#@]*(?=@)|(?<==)[^&#]+")


class Written(NamedTuple):
    """One upstream as it is written, where that is, and the folder that its paths are seen from."""

    settings: UpstreamSettings
    fields: Table
    """What is said of it, without what is there by default."""
    place: Place
    folder: Path
    runs_there: bool
    """Whether a program without a folder of its own runs in that one."""

    def settled(self, variables: Mapping[str, str], warn: Callable[[str], None]) -> UpstreamSettings:
        """Return it with every variable and secret that it refers to.

        Raises:
            ConfigError: One is not there.
        """
        look = References(variables=variables, folder=self.folder, warn=warn)
        found: Table = {}
        for name in _SINGLE:
            value = getattr(self.settings, name)
            if value is not None:
                found[name] = look.text(value, self.place.inside(f".{name}"))
        found["args"] = tuple(look.text(one, self.place.inside(f".args[{number}]")) for number, one in enumerate(self.settings.args))
        for name in ("env", "headers"):
            texts: dict[str, str] = getattr(self.settings, name)
            found[name] = {key: look.text(text, self.place.inside(f".{name}.{key}")) for key, text in texts.items()}
        if self.settings.login is not None:
            found["login"] = _settled_login(self.settings.login, look, self.place.inside(".login"))
        if self.settings.command is not None and (self.runs_there or "cwd" in found):
            found["cwd"] = str(self.folder.resolve() / Path(found.get("cwd", "")).expanduser())
        return msgspec.structs.replace(self.settings, **found)


def _settled_login(login: Login, look: References, place: Place) -> Login:
    found: Table = dict(_looked_up(login, _OF_LOGIN, look, place))
    found["scopes"] = tuple(look.text(scope, place.inside(f".scopes[{number}]")) for number, scope in enumerate(login.scopes))
    if login.identity is not None:
        identity = _looked_up(login.identity, _OF_IDENTITY, look, place.inside(".identity"))
        found["identity"] = msgspec.structs.replace(login.identity, **identity)
    return msgspec.structs.replace(login, **found)


def _looked_up(struct: msgspec.Struct, names: tuple[str, ...], look: References, place: Place) -> dict[str, str]:
    return {name: look.text(text, place.inside(f".{name}")) for name in names if (text := getattr(struct, name)) is not None}


def from_file(document: Table, path: Path) -> dict[str, Written]:
    """Return the upstreams of 'toolyard.toml'.

    Raises:
        ConfigError: One is wrong; the sentence names its key and the file.
    """
    common = _defaults(document.get(DEFAULTS, {}), Place(DEFAULTS, str(path)))
    found: dict[str, Written] = {}
    whole = Place(UPSTREAMS, str(path))
    for name, table in table_of(document.get(UPSTREAMS, {}), whole).items():
        place = whole.inside(f".{name}")
        if not is_name(name):
            why = "is taken" if name in RESERVED else "has characters that names of upstreams may not have"
            raise ConfigError(f"{place} cannot be called so: '{name}' {why}. Call it '{made_name(name)}', for one.")
        twin = twin_of(name, list(found))
        if twin is not None:
            raise ConfigError(f"{place} and '{UPSTREAMS}.{twin}' would name their tools alike. Give one another name.")
        found[name] = _written(table, place, common=common, folder=path.parent, runs_there=True)
    return found


def from_target(target: str) -> tuple[dict[str, Written], tuple[str, ...]]:
    """Return the upstreams that a client's file has, or the one at an address, and what a person should know of them.

    Raises:
        ConfigError: They cannot be read.
    """
    path = Path(target)
    if "://" in target:
        return {
            made_name(_host_of(target)): _written({"url": target, "prefix": ""}, Place(_without_credentials(target)), folder=Path())
        }, ()
    from toolyard.config.foreign import read_foreign  # noqa: PLC0415 - most files are our own

    foreign = read_foreign(path)
    tables = foreign.upstreams.items()
    return {name: _written(table, foreign.places[name], folder=path.parent) for name, table in tables}, foreign.warnings


def masked(name: str, value: Any) -> Any:
    """Return a value as it may be shown: of what may be secret the names alone."""
    if name in {"env", "headers"}:
        return dict.fromkeys(value, _HIDDEN)
    if name == "login":
        return _without_secrets(value)
    if name == "reshape":
        return {tool: {**_given(how), **({"fixed": dict.fromkeys(how.fixed, _HIDDEN)} if how.fixed else {})} for tool, how in value.items()}
    return _without_credentials(value) if name == "url" else value


def _without_secrets(struct: msgspec.Struct) -> Table:
    return {
        name: _HIDDEN if name in _SECRETS else _without_secrets(value) if isinstance(value, Identity) else value
        for name, value in _given(struct).items()
    }


def _given(struct: msgspec.Struct) -> Table:
    return {name: value for name, value in msgspec.structs.asdict(struct).items() if value not in (None, (), {}, False)}


def _without_credentials(address: str) -> str:
    return _CREDENTIALS.sub(_HIDDEN, address)


def _written(table: object, place: Place, *, folder: Path, common: Table | None = None, runs_there: bool = False) -> Written:
    fields = fitted_fields(table, UpstreamSettings, place)
    return Written(made(UpstreamSettings, {**(common or {}), **fields}, place), fields, place, folder, runs_there)


def _defaults(table: object, place: Place) -> Table:
    fields = fitted_fields(table, UpstreamSettings, place)
    for name in _REACHES:
        if name in fields:
            raise ConfigError(f"{place.inside(f'.{name}')} makes no sense: each upstream has its own.")
    return fields


def _host_of(address: str) -> str:
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    if not host:
        raise ConfigError(f"'{_without_credentials(address)}' is no address.")
    return host
