"""Reads the settings: flags override the environment, that overrides the file, and that overrides the defaults.

The origin of each value is remembered, so that it can be shown.
"""

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from unicodedata import normalize

import msgspec

from callyard._internal.mask import mask_url
from callyard._internal.project import find_project
from callyard.config.convert import ConfigError, Location, Table, convert, parse_text, unknown_key
from callyard.config.profiles import PROFILES, RULES, TOOLSETS, read_profiles, read_rules
from callyard.config.settings import PACKS, PREFIX, Key, Setting, Settings, known_settings
from callyard.model.names import closest_name
from callyard.model.profile import METATOOLS, Profile
from callyard.model.rule import Rule
from callyard.search.settings import read_environment

if TYPE_CHECKING:
    from callyard.config.upstreams import UpstreamEntry  # imports asyncio, and most yards have no upstream

__all__ = [
    "CLIENT_FILES",
    "FILE",
    "RESERVED",
    "VARIABLE",
    "Config",
    "Origin",
    "Stamp",
    "colliding_name",
    "is_upstream_name",
    "read_config",
    "stamp_of",
    "to_upstream_name",
]


RESERVED: Final = frozenset({METATOOLS, *PACKS})
"""Sources of tools that upstreams cannot be named after."""
_NAME: Final = r"[a-z0-9]+(?:[-_][a-z0-9]+)*"
_SEPARATORS: Final = r"[^a-z0-9]{2,}|[^a-z0-9_]"
_DIGITS: Final = 6


def is_upstream_name(text: str) -> bool:
    """Return whether an upstream may have this name: lower-case letters and digits, with single '-' and '_' between them."""
    return text not in RESERVED and re.fullmatch(_NAME, text) is not None


def to_upstream_name(text: str) -> str:
    """Return a valid name for an upstream, always the same one for the same text."""
    ascii_text = normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(_SEPARATORS, "-", ascii_text).strip("-_")
    name = words or sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{name}-upstream" if name in RESERVED or not words else name


def colliding_name(name: str, known: list[str]) -> str | None:
    """Return another name whose tools would get the same names, because names of tools have no '-'."""
    return next((other for other in known if other != name and other.replace("-", "_") == name.replace("-", "_")), None)


CLIENT_FILES: Final = (".json", ".jsonc")
"""The suffixes of MCP clients' configuration files."""
_OF_UPSTREAMS: Final = ("upstreams", "upstream_defaults")
_TABLES: Final = (*_OF_UPSTREAMS, PROFILES, TOOLSETS, RULES)
"""The tables whose keys are names that people choose."""


class _Tables(msgspec.Struct, frozen=True):
    """Upstreams and profiles of a file or target."""

    upstreams: "dict[str, UpstreamEntry]"
    profiles: dict[str, Profile]
    rules: tuple[Rule, ...]
    shown: dict[str, Any]
    """Every value by key, secrets masked."""
    sources: dict[str, str]
    """The file of each value by key."""
    warnings: tuple[str, ...]


def _names_upstreams(target: str | None) -> bool:
    """Return whether a target is a client's file or a URL."""
    return target is not None and (target.endswith(CLIENT_FILES) or target.startswith(("http://", "https://")))


def _client_files(target: str | None) -> list[Path]:
    """Return the client's file that a target names, or an empty list."""
    return [Path(target)] if target is not None and target.endswith(CLIENT_FILES) and "://" not in target else []


def _read_tables(document: Table, path: Path | None, target: str | None) -> _Tables:
    """Read the tables of a file; a target that names upstreams replaces those of the file.

    Raises:
        ConfigError: A table is wrong.
    """
    found = _Tables(upstreams={}, profiles={}, rules=(), shown={}, sources={}, warnings=())
    if path is not None:
        found.profiles.update(read_profiles(document, path))
        found = msgspec.structs.replace(found, rules=read_rules(document, path))
        shown = {RULES: document[RULES]} if RULES in document else {}
        shown |= dict(_flat_tables({name: document[name] for name in (PROFILES, TOOLSETS) if name in document}))
        found.shown.update(shown)
        found.sources.update(dict.fromkeys(shown, str(path)))
    if _names_upstreams(target) or any(name in document for name in _OF_UPSTREAMS):
        return _with_upstreams(found, document, path, target)
    return found


def _with_upstreams(found: _Tables, document: Table, path: Path | None, target: str | None) -> _Tables:
    from callyard.config.upstreams import from_file, from_target, mask  # noqa: PLC0415 - imports asyncio, and most yards have none

    upstreams = {} if path is None else from_file(document, path)
    warnings: tuple[str, ...] = ()
    if target is not None and _names_upstreams(target):
        upstreams, warnings = from_target(target)
    for name, entry in upstreams.items():
        found.upstreams[name] = entry
        for field, value in entry.fields.items():
            key = f"upstreams.{name}.{field}"
            found.shown[key] = mask(field, value)
            if entry.location.file is not None:
                found.sources[key] = entry.location.file
    return msgspec.structs.replace(found, warnings=warnings)


def _flat_tables(document: Table) -> Iterator[tuple[str, Any]]:
    for section, tables in document.items():
        for name, table in cast("dict[str, Table]", tables).items():
            yield from ((f"{section}.{name}.{field}", value) for field, value in table.items())


FILE: Final = "callyard.toml"
"""The file that is read by default."""
VARIABLE: Final = f"{PREFIX}CONFIG"
"""The environment variable that names another file."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_FORMER_PREFIX: Final = "METATOOLS_"
"""Prefix of the variables of metatools-mcp, whose users come here."""
_OTHERS: Final = frozenset({"SECRET"})  # read where it is used, because settings are shown and this must not be
_PATHS: Final = frozenset({"state_dir", "serve.socket", "serve.tls_cert", "serve.tls_key", "monitor.audit_log", "monitor.access_log"}) | {
    "agents.cli_path",
    "agents.roots",
}
Kind = Literal["flag", "code", "environment", "file", "default"]


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from, and the name of the flag, variable or file."""

    kind: Kind = "default"
    name: str = ""

    def __str__(self) -> str:
        """Return it as text, such as 'environment CALLYARD_PORT'."""
        return f"{self.kind} {self.name}".rstrip()


Stamp = tuple[int, int, int] | None
"""Inode, size and modification time of a file, by which a change is detected; none if it does not exist."""
Layer = Iterator[tuple[str, Any, Origin]]


class Config(msgspec.Struct, frozen=True):
    """The settings in effect and their origins."""

    settings: Settings
    origins: Mapping[str, Origin]
    """The origin of each value that is no default, by key."""
    path: Path | None
    """The 'callyard.toml' that was read."""
    warnings: tuple[str, ...]
    """Sentences about variables and entries that have no effect."""
    upstreams: "Mapping[str, UpstreamEntry]"
    """Upstreams by name, with unresolved references."""
    profiles: Mapping[str, Profile]
    """Profiles of the file, by name."""
    rules: tuple[Rule, ...]
    """Rules of the file, in the order in which they are tried."""
    tables: Mapping[str, Any]
    """Values of upstreams, profiles and toolsets by key, secrets masked."""
    files: "Mapping[Path, Stamp]"
    """Every file that was read, with its stamp at that time."""

    @property
    def is_yard(self) -> bool:
        """Return whether upstreams or packs make a yard, so that no module is needed."""
        return _names_upstreams(self.settings.target) or (self.settings.target is None and bool(self.upstreams or self.settings.packs))

    @property
    def project(self) -> str:
        """Return the project that these settings belong to; a URL that no file names is one of its own, wherever it is used."""
        target = self.settings.target
        is_stray_url = target is not None and "://" in target and self.origin("target").kind != "file"
        return find_project(None if is_stray_url else self.path, target)

    def origin(self, key: str) -> Origin:
        """Return where the value of a setting came from."""
        return self.origins.get(key, Origin())

    def value(self, key: str) -> Any:
        """Return the value of a setting."""
        if key in self.tables:
            return self.tables[key]
        section, _, name = key.rpartition(".")
        return getattr(getattr(self.settings, section) if section else self.settings, name)

    def shown(self, key: str) -> Any:
        """Return the value of a setting as people may read it: without secrets, also those in URLs."""
        value = self.value(key)
        if key in self.tables:
            return value
        if value is not None and key.endswith("_secret"):
            return _HIDDEN
        if isinstance(value, str) and "://" in value:
            return mask_url(value, keeps_path=key not in _SECRET_PATHS)
        return _without_digests(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value

    def explicit(self, section: str) -> dict[str, Any]:
        """Return the values of a section that are no defaults, by name."""
        known = known_settings().values()
        return {setting.name: self.value(setting.key) for setting in known if setting.section == section and setting.key in self.origins}


_HIDDEN: Final = "…"
_SECRET_PATHS: Final = frozenset({"approvals.webhook", "policy.url"})
"""Settings whose URLs may have a secret as their path."""


def _without_digests(values: tuple[Any, ...]) -> list[Any]:
    replace, as_dict = msgspec.structs.replace, msgspec.structs.asdict
    return [as_dict(replace(value, digest=_HIDDEN)) if isinstance(value, Key) else value for value in values]


def read_config(
    overrides: Mapping[str, Any] = _NOTHING,
    *,
    path: str | None = None,
    environment: Mapping[str, str] | None = None,
    origin: Literal["flag", "code"] = "flag",
) -> Config:
    """Read all settings; `overrides` has values by key that win over every other source, as text if they are flags.

    Raises:
        ConfigError: A setting is wrong; the message names it and its origin.
    """
    variables = os.environ if environment is None else environment
    file = _find(path, variables)
    files = {} if file is None else {file: stamp_of(file)}  # before reading, so that a change meanwhile is noticed later
    document = {} if file is None else _read_toml(file)
    table_document = {name: document.pop(name) for name in _TABLES if name in document}
    values: dict[str, Any] = {key: setting.default for key, setting in known_settings().items()}
    origins: dict[str, Origin] = {}
    for layer in (_from_file(document, file), _from_environment(variables), _from_caller(overrides, origin)):
        for key, value, source in layer:
            values[key], origins[key] = value, source
    settings = _build_settings(values, origins)
    _check_search(variables)
    files |= {path: stamp_of(path) for path in _client_files(settings.target)}
    tables = _read_tables(table_document, file, settings.target)
    for key in tables.shown:
        origins[key] = Origin("file", tables.sources[key]) if key in tables.sources else origins["target"]
    return Config(
        settings=settings,
        origins=origins,
        path=file,
        warnings=(*_warnings(variables), *tables.warnings),
        upstreams=tables.upstreams,
        profiles=tables.profiles,
        rules=tables.rules,
        tables=tables.shown,
        files=files,
    )


def stamp_of(path: Path) -> Stamp:
    """Return the current stamp of a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _find(path: str | None, variables: Mapping[str, str]) -> Path | None:
    chosen = path or variables.get(VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(FILE) if Path(FILE).is_file() else None


def _from_file(document: Table, path: Path | None) -> Layer:
    if path is None:
        return
    for key, value in _flat(document, path):
        converted = convert(value, known_settings()[key].type, Location(key, str(path)))
        yield key, _relative_to_file(path, key, converted), Origin("file", str(path))


def _read_toml(path: Path) -> Table:
    import tomllib  # noqa: PLC0415 - most servers read no file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The file '{path}' is not TOML: {str(error).removesuffix('.')}.") from None


def _flat(document: Table, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield every value of a file with its full key."""
    known = known_settings()
    sections = {setting.section for setting in known.values() if setting.section}
    belongs = {setting.name: setting.key for setting in reversed(known.values())}
    for name, value in document.items():
        if name not in sections:
            inner = {name: value}
        elif name == "auth" and not value:  # an empty section must not mean that everybody is let in
            raise ConfigError(f"{Location(name, str(path))} is empty: it needs 'api_keys', or 'issuer' and 'audience'.")
        elif isinstance(value, dict):
            inner = {f"{name}.{part}": item for part, item in cast("dict[str, Any]", value).items()}
        else:
            raise ConfigError(f"{Location(name, str(path))} must be a section, as in '[{name}]'.")
        for key, item in inner.items():
            if key not in known:
                section = key.rpartition(".")[0]
                siblings = [setting.name for setting in known.values() if setting.section == section]
                raise unknown_key(
                    Location(key, str(path)), siblings if section else [*siblings, *sorted({*sections, *_TABLES})], elsewhere=belongs
                )
            yield key, item


def _relative_to_file(path: Path, key: str, value: Any) -> Any:
    """Return the value; a path is resolved against the folder of the file that has it."""
    if isinstance(value, tuple):
        return tuple(_relative_to_file(path, key, item) for item in cast("tuple[Any, ...]", value))
    if key == "store":
        kind, _, file = value.partition(":")
        return f"{kind}:{path.parent / file}" if file and not file.startswith("~") else value
    is_target = key == "target" and "://" not in value and value.partition(":")[0].endswith((".py", *CLIENT_FILES))
    is_file = is_target or (key in _PATHS and not value.startswith("~"))
    return str(path.parent / value) if is_file else value


def _from_environment(variables: Mapping[str, str]) -> Layer:
    for key, setting in known_settings().items():
        text = variables.get(setting.variable)
        if text:  # many programs unset a variable by emptying it
            yield key, parse_text(text, setting.type, Location(setting.variable)), Origin("environment", setting.variable)


def _from_caller(overrides: Mapping[str, Any], origin: Literal["flag", "code"]) -> Layer:
    for key, value in overrides.items():
        setting = known_settings()[key]
        name = setting.name if origin == "code" else _flag(setting, value)
        parsed = parse_text(value, setting.type, Location(name)) if origin == "flag" and isinstance(value, str) else value
        yield key, convert(parsed, setting.type, Location(name)), Origin(origin, name)


def _flag(setting: Setting, value: Any) -> str:
    """Return the argument of the command line that sets this value."""
    if setting.key == "target":
        return "TARGET"
    return f"--no-{setting.flag.removeprefix('--')}" if value is False else setting.flag


def _build_settings(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value
    top = sections.pop("")
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    built: dict[str, Any] = {}
    for name, inner in sections.items():
        try:
            built[name] = types[name](**inner)
        except ValueError as error:
            raise ConfigError(f"{error}{_source(str(error), name, origins)}") from None
    return Settings(**top, **built)


def _check_search(variables: Mapping[str, str]) -> None:
    """Refuse an unknown variable with the prefix of search settings, as every yard does when it opens."""
    try:
        read_environment(variables)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _source(sentence: str, section: str, origins: Mapping[str, Origin]) -> str:
    """Return a sentence with the origin of the first setting that an error message names."""
    found = [origins[key] for name in re.findall(r"'(\w+)'", sentence) if (key := f"{section}.{name}") in origins]
    return f" It comes from '{found[0].name}'." if found else ""


def _warnings(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that is probably misspelt; other programs may use the prefix, too."""
    known = [name.removeprefix(PREFIX) for name in (VARIABLE, *(setting.variable for setting in known_settings().values()))]
    former = [name for name in sorted(variables) if name.startswith(_FORMER_PREFIX)]
    if former:
        yield f"The variable '{former[0]}' sets nothing: variables of Callyard begin with '{PREFIX}', not with '{_FORMER_PREFIX}'."
    for name in sorted(variables):
        rest = name.removeprefix(PREFIX)
        if rest == name or rest in known or rest in _OTHERS:
            continue
        near = closest_name(rest, known, cutoff=0.7)  # other programs may use the prefix, too
        if near:
            yield f"The variable '{name}' sets nothing. Did you mean '{PREFIX}{near}'?"
