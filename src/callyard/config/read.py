"""Reads the settings: flags override the environment, that overrides the file, and that overrides the defaults.

The origin of each value is remembered, so that it can be shown.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from unicodedata import normalize

import msgspec

from callyard._internal.mask import mask_url
from callyard._internal.project import find_project
from callyard.config.convert import (
    ConfigError,
    Location,
    Table,
    build_struct,
    check_keys,
    convert,
    convert_fields,
    parse_text,
    require_table,
    unknown_key,
)
from callyard.config.packs import PACK, PackTable, read_pack_tables
from callyard.config.probes import PROBE, ProbeTable, read_probe_tables
from callyard.config.settings import PACKS, PREFIX, Key, Setting, Settings, known_settings, values_of
from callyard.model.names import closest_name
from callyard.model.profile import METATOOLS, Profile, Shape, Surface, Toolset, pending_toolset
from callyard.policy.settings import Rule
from callyard.search.settings import read_environment

if TYPE_CHECKING:
    from callyard.config.apis import ApiEntry  # imports much, and most yards have no API
    from callyard.config.upstreams import UpstreamEntry  # imports asyncio, and most yards have no upstream

__all__ = [
    "CLIENT_FILES",
    "FILE",
    "RESERVED",
    "VARIABLE",
    "Config",
    "Origin",
    "ProfileTable",
    "Stamp",
    "colliding_name",
    "is_upstream_name",
    "read_config",
    "stamp_of",
    "to_upstream_name",
]


RESERVED: Final = frozenset({METATOOLS, *PACKS})
"""Sources of tools that upstreams cannot be named after."""


def is_upstream_name(text: str) -> bool:
    """Return whether an upstream may have this name: lower-case letters and digits, single '-' and '_' between."""
    return text not in RESERVED and re.fullmatch(r"[a-z0-9]+(?:[-_][a-z0-9]+)*", text) is not None


def to_upstream_name(text: str) -> str:
    """Return a valid name for an upstream, always the same one for the same text."""
    ascii_text = normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]{2,}|[^a-z0-9_]", "-", ascii_text).strip("-_")
    name = words or sha256(text.encode()).hexdigest()[:6]
    return f"{name}-upstream" if name in RESERVED or not words else name


def colliding_name(name: str, known: list[str]) -> str | None:
    """Return another name whose tools would get the same names, because names of tools have no '-'."""
    return next((other for other in known if other != name and other.replace("-", "_") == name.replace("-", "_")), None)


CLIENT_FILES: Final = (".json", ".jsonc")
"""The suffixes of MCP clients' configuration files."""
PROFILES: Final = "profiles"
TOOLSETS: Final = "toolsets"
RULES: Final = "rules"
_APIS: Final = "apis"
_OF_UPSTREAMS: Final = ("upstreams", "upstream_defaults")
_TABLES: Final = (*_OF_UPSTREAMS, _APIS, PROFILES, TOOLSETS, RULES, PACK, PROBE)
"""The tables whose keys are names that people choose."""


def _names_upstreams(target: str | None) -> bool:
    return target is not None and (target.endswith(CLIENT_FILES) or target.startswith(("http://", "https://")))


class ProfileTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[profiles.NAME]`."""

    toolsets: tuple[str, ...] = ()
    """Names of toolsets: a tool exists if one of them has it; without toolsets every tool does."""
    surface: Surface = Surface.AUTO
    """How its tools are listed: 'direct', 'meta' or 'auto'."""
    pins: tuple[str, ...] = ()
    """Patterns of tool names that are listed on every surface."""
    rules: tuple[Rule, ...] = ()
    """Rules for its callers only, which come before the rules for all."""
    description: str = ""
    """What the profile is for."""
    shape: Shape | None = None
    """How successes are sent: 'envelope' or 'plain' (default: the yard's 'shape')."""


def _read_profiles(document: Table, path: Path, packs: Iterable[str]) -> dict[str, Profile]:
    toolsets = {name: _toolset(name, table, location) for name, table, location in _tables(document, TOOLSETS, path)}
    tables = _tables(document, PROFILES, path)
    return {name: _profile(name, table, place, toolsets, packs=packs) for name, table, place in tables}


def _read_rules(document: Table, path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file: those of profiles, then those for all.

    Raises:
        ConfigError: A rule is wrong.
    """
    found: list[Rule] = []
    for name, table, location in _tables(document, PROFILES, path):
        rules: tuple[Rule, ...] = convert_fields(table, ProfileTable, location).get(RULES, ())
        found += [msgspec.structs.replace(rule, profile=name) for rule in rules]
    return (*found, *convert(document.get(RULES, []), tuple[Rule, ...], Location(RULES, str(path))))


def _tables(document: Table, section: str, path: Path) -> list[tuple[str, Any, Location]]:
    whole = Location(section, str(path))
    tables = require_table(document.get(section, {}), whole)
    return [(name, table, whole.child(f".{name}")) for name, table in tables.items()]


def _toolset(name: str, table: object, location: Location) -> Toolset:
    known = [field for field in Toolset.__struct_fields__ if field != "name"]
    check_keys(require_table(table, location), known, location)
    return build_struct(Toolset, {"name": name, **convert_fields(table, Toolset, location)}, location)


def _profile(
    name: str, table: object, location: Location, toolsets: dict[str, Toolset], *, packs: Iterable[str]
) -> Profile:
    rules: ProfileTable = build_struct(ProfileTable, convert_fields(table, ProfileTable, location), location)
    of_packs = [known for known in rules.toolsets if any(known.startswith(f"{pack}_") for pack in packs)]
    toolsets = {**{known: pending_toolset(known) for known in of_packs}, **toolsets}
    for number, toolset in enumerate(rules.toolsets):
        item = location.child(f".toolsets[{number}]")
        if toolset not in toolsets:
            known = ", ".join(f"'{known}'" for known in toolsets) or "none"
            raise ConfigError(f"{item} names the toolset '{toolset}', which does not exist. Known: {known}.")
        if toolset in rules.toolsets[:number]:
            raise ConfigError(f"{item} names the toolset '{toolset}' twice.")
    return Profile(
        name=name,
        toolsets=tuple(toolsets[toolset] for toolset in rules.toolsets),
        surface=rules.surface,
        pins=rules.pins,
        description=rules.description,
        shape=rules.shape,
    )


def _read_upstreams(
    document: Table, path: Path | None, target: str | None
) -> tuple[dict[str, "UpstreamEntry"], tuple[str, ...]]:
    """Return the upstreams of a target that names some, or else of the file, and warnings.

    Raises:
        ConfigError: A table is wrong.
    """
    is_target = _names_upstreams(target)
    if not is_target and not any(name in document for name in _OF_UPSTREAMS):
        return {}, ()
    from callyard.config.upstreams import from_file, from_target  # noqa: PLC0415 - imports asyncio, and most yards have none

    upstreams = {} if path is None else from_file(document, path)
    return from_target(target) if is_target and target is not None else (upstreams, ())


def _read_apis(
    document: Table, path: Path | None, target: str | None, upstreams: "Mapping[str, UpstreamEntry]"
) -> "dict[str, ApiEntry]":
    """Return the APIs of the file, unless the target names upstreams, which are used alone.

    Raises:
        ConfigError: A table is wrong.
    """
    if path is None or _APIS not in document:
        return {}
    from callyard.config.apis import apis_from_file  # noqa: PLC0415 - imports much, and most yards have no API

    if _names_upstreams(target):
        upstreams = {}  # those of the target have no names that people chose
    apis = apis_from_file(document, path, upstreams=upstreams)
    return {} if _names_upstreams(target) else apis


def _flat_tables(document: Table) -> dict[str, Any]:
    found: dict[str, Any] = {RULES: document[RULES]} if RULES in document else {}
    for section in (PROFILES, TOOLSETS, PROBE):
        for name, table in document.get(section, {}).items():
            found |= {f"{section}.{name}.{field}": value for field, value in table.items()}
    return found


FILE: Final = "callyard.toml"
"""The file that is read by default."""
VARIABLE: Final = f"{PREFIX}CONFIG"
"""The environment variable that names another file."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_FORMER_PREFIX: Final = "METATOOLS_"
"""Prefix of the variables of metatools-mcp, whose users come here."""
_OTHERS: Final = ("KEY", "SECRET")
"""Variables that are read where they are used, because settings are shown and these must not be."""
_PATHS: Final = (
    *("state_dir", "serve.socket", "serve.tls_cert", "serve.tls_key", "monitor.audit_log", "monitor.access_log"),
    *("agents.cli_path", "agents.roots"),
)


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from, and the name of the flag, variable or file."""

    kind: Literal["flag", "code", "environment", "file", "default"] = "default"
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


Stamp = tuple[int, int, int] | None
"""Inode, size and modification time of a file, by which a change is detected; none if it does not exist."""
Layer = Iterator[tuple[str, Any, Origin]]


class Config(msgspec.Struct, frozen=True):
    """The settings in effect and their origins."""

    settings: Settings
    values: Mapping[str, Any]
    """The value of every setting, by key."""
    origins: Mapping[str, Origin]
    """The origin of each value that is no default, by key."""
    path: Path | None
    """The 'callyard.toml' that was read."""
    warnings: tuple[str, ...]
    """Sentences about variables and entries that have no effect."""
    upstreams: "Mapping[str, UpstreamEntry]"
    """Upstreams by name, with unresolved references."""
    apis: "Mapping[str, ApiEntry]"
    """APIs by name, with unresolved references."""
    profiles: Mapping[str, Profile]
    rules: tuple[Rule, ...]
    """Rules of the file, in the order in which they are tried."""
    pack_tables: Mapping[str, PackTable]
    """The tables of packs by name."""
    probes: Mapping[str, ProbeTable]
    """What probes check, by the name of the upstream."""
    tables: Mapping[str, Any]
    """Values of upstreams, profiles and toolsets by key, secrets masked."""
    files: "Mapping[Path, Stamp]"
    """Every file that was read, with its stamp at that time."""

    @property
    def is_yard(self) -> bool:
        """Return whether upstreams, APIs or packs make a yard, so that no module is needed."""
        target = self.settings.target
        return _names_upstreams(target) or (target is None and bool(self.upstreams or self.apis or self.settings.packs))

    @property
    def project(self) -> str:
        """Return the project that these settings belong to; a URL that no file names is a project of its own."""
        target = self.settings.target
        is_stray_url = target is not None and "://" in target and self.origin("target").kind != "file"
        return find_project(None if is_stray_url else self.path, target)

    def origin(self, key: str) -> Origin:
        """Return where the value of a setting came from."""
        return self.origins.get(key, Origin())

    def value(self, key: str) -> Any:
        """Return the value of a setting."""
        return self.tables[key] if key in self.tables else self.values[key]

    def shown(self, key: str) -> Any:
        """Return the value of a setting as people may read it: without secrets, also those in URLs."""
        value = self.value(key)
        if key in self.tables:
            return value
        if value is not None and key.endswith("_secret"):
            return _HIDDEN
        if isinstance(value, str) and "://" in value:
            return mask_url(value, keeps_path=key not in _SECRET_PATHS)
        return [_without_digest(item) for item in cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value

    def explicit(self, section: str) -> dict[str, Any]:
        """Return the values of a section that are no defaults, by name."""
        start = f"{section}."
        return {key.removeprefix(start): self.values[key] for key in self.origins if key.startswith(start)}


_HIDDEN: Final = "…"
_SECRET_PATHS: Final = frozenset({"alerts.webhook", "approvals.webhook", "policy.url"})


def _without_digest(item: Any) -> Any:
    return {**msgspec.structs.asdict(item), "digest": _HIDDEN} if isinstance(item, Key) else item


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
    chosen = path or variables.get(VARIABLE) or (FILE if Path(FILE).is_file() else "")
    file = Path(chosen) if chosen else None
    # the stamp comes before reading, so that a change meanwhile is noticed later
    files = {} if file is None else {file: stamp_of(file)}
    document = {} if file is None else _read_toml(file)
    tables = {name: document.pop(name) for name in _TABLES if name in document}
    found = [*_from_file(document, file), *_from_environment(variables), *_from_caller(overrides, origin)]
    defaults = {key: setting.default for key, setting in known_settings().items()}
    values: dict[str, Any] = defaults | {key: value for key, value, _ in found}
    origins = {key: source for key, _, source in found}
    settings = _build_settings(values, origins)
    try:
        read_environment(variables)  # refuses an unknown variable with the prefix of search, as every yard does
    except ValueError as error:
        raise ConfigError(str(error)) from None
    target = settings.target
    if target is not None and target.endswith(CLIENT_FILES) and "://" not in target:
        files[Path(target)] = stamp_of(Path(target))
    profiles = {} if file is None else _read_profiles(tables, file, settings.packs)
    upstreams, warnings = _read_upstreams(tables, file, settings.target)
    pack_tables = {} if file is None else read_pack_tables(tables, file)
    apis = _read_apis(tables, file, settings.target, upstreams)
    shown = _flat_tables(tables)
    for name, table in pack_tables.items():
        shown |= {f"{PACK}.{name}.{key}": value for key, value in table.masked().items()}
    origins |= dict.fromkeys(shown, Origin("file", str(file)))
    for name, entry in upstreams.items():
        masked = {f"upstreams.{name}.{field}": value for field, value in entry.masked().items()}
        shown |= masked
        source = origins["target"] if entry.location.file is None else Origin("file", entry.location.file)
        origins |= dict.fromkeys(masked, source)
    of_apis = {f"{_APIS}.{name}.{key}": value for name, entry in apis.items() for key, value in entry.masked().items()}
    shown |= of_apis
    origins |= dict.fromkeys(of_apis, Origin("file", str(file)))
    return Config(
        settings=settings,
        values=values_of(settings),
        origins=origins,
        path=file,
        warnings=(*_warnings(variables), *warnings),
        upstreams=upstreams,
        apis=apis,
        profiles=profiles,
        rules=() if file is None else _read_rules(tables, file),
        pack_tables=pack_tables,
        probes={} if file is None else read_probe_tables(tables, file),
        tables=shown,
        files=files,
    )


def stamp_of(path: Path) -> Stamp:
    """Return the current stamp of a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _from_file(document: Table, path: Path | None) -> Layer:
    if path is None:
        return
    packs: object = document.get("packs")
    if isinstance(packs, dict):
        name = next(iter(cast("Table", packs)), "NAME")
        written = f"'[packs.{name}]' in '{path}' is written '[{PACK}.{name}]'"
        raise ConfigError(
            f"{written}; 'packs' itself is the list of packs that are used, as in 'packs = [\"{name}\"]'."
        )
    for key, value in _flat(document, path):
        converted = convert(value, known_settings()[key].type, Location(key, str(path)))
        yield key, _relative_to_file(path, key, converted), Origin("file", str(path))


def _read_toml(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The file '{path}' is not TOML: {str(error).removesuffix('.')}.") from None


def _flat(document: Table, path: Path) -> Iterator[tuple[str, Any]]:
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
                siblings += [] if section else sorted({*sections, *_TABLES})
                raise unknown_key(Location(key, str(path)), siblings, elsewhere=belongs)
            yield key, item


def _relative_to_file(path: Path, key: str, value: Any) -> Any:
    """Return the value; a path is resolved against the folder of the file that has it."""
    if isinstance(value, tuple):
        return tuple(_relative_to_file(path, key, item) for item in cast("tuple[Any, ...]", value))
    if key == "store":
        kind, _, file = value.partition(":")
        return f"{kind}:{path.parent / file}" if kind == "sqlite" and file and not file.startswith("~") else value
    is_target = key == "target" and "://" not in value and value.partition(":")[0].endswith((".py", *CLIENT_FILES))
    is_file = is_target or (key in _PATHS and not value.startswith("~"))
    return str(path.parent / value) if is_file else value


def _from_environment(variables: Mapping[str, str]) -> Layer:
    for key, setting in known_settings().items():
        text = variables.get(setting.variable)
        if text:  # many programs unset a variable by emptying it
            yield (
                key,
                parse_text(text, setting.type, Location(setting.variable)),
                Origin("environment", setting.variable),
            )


def _from_caller(overrides: Mapping[str, Any], origin: Literal["flag", "code"]) -> Layer:
    for key, value in overrides.items():
        setting = known_settings()[key]
        name = setting.name if origin == "code" else _flag(setting, value)
        if origin == "flag" and isinstance(value, str):
            value = parse_text(value, setting.type, Location(name))  # noqa: PLW2901 - the same value, parsed
        yield key, convert(value, setting.type, Location(name)), Origin(origin, name)


def _flag(setting: Setting, value: Any) -> str:
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
            named = [f"{name}.{field}" for field in re.findall(r"'(\w+)'", str(error))]
            sources = [f" It comes from '{origins[key].name}'." for key in named if key in origins]
            raise ConfigError(f"{error}{''.join(sources[:1])}") from None
    return Settings(**top, **built)


def _warnings(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that is probably misspelt; other programs may use the prefix, too."""
    variables_of_settings = [setting.variable for setting in known_settings().values()]
    known = [name.removeprefix(PREFIX) for name in (VARIABLE, *variables_of_settings)]
    former = [name for name in sorted(variables) if name.startswith(_FORMER_PREFIX)]
    if former:
        begin = f"variables of Callyard begin with '{PREFIX}', not with '{_FORMER_PREFIX}'"
        yield f"The variable '{former[0]}' sets nothing: {begin}."
    for name in sorted(variables):
        rest = name.removeprefix(PREFIX)
        if rest == name or rest in known or rest in _OTHERS:
            continue
        near = closest_name(rest, known, cutoff=0.7)  # other programs may use the prefix, too
        if near:
            yield f"The variable '{name}' sets nothing. Did you mean '{PREFIX}{near}'?"
