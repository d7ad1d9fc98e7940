"""Reading: flags beat the environment, the environment beats the file, the file beats the defaults; and all is remembered."""

import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast
from unicodedata import normalize

import msgspec

from toolyard.config.convert import ConfigError, Place, Table, fitted, from_text, unknown
from toolyard.config.profiles import PROFILES, TOOLSETS, read_profiles
from toolyard.config.settings import PACKS, PREFIX, Setting, Settings, known_settings
from toolyard.model.names import closest_name
from toolyard.model.profile import METATOOLS, Profile
from toolyard.search.settings import read_environment

if TYPE_CHECKING:
    from toolyard.config.upstreams import Written  # see below  # it brings asyncio with it, and most yards have no upstream

__all__ = [
    "FILE",
    "FOREIGN",
    "RESERVED",
    "TABLES",
    "VARIABLE",
    "Config",
    "Origin",
    "Stamp",
    "Tables",
    "foreign_files",
    "is_foreign",
    "is_name",
    "made_name",
    "read_config",
    "read_tables",
    "stamp_of",
    "twin_of",
]


RESERVED: Final = frozenset({METATOOLS, *PACKS})
"""Names of sources that are there already."""
_NAME: Final = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_OTHER: Final = re.compile(r"[^a-z0-9]{2,}|[^a-z0-9_]")
_DIGITS: Final = 6


def is_name(text: str) -> bool:
    """Return whether an upstream may be called so: small letters and digits, with single '-' and '_' between them."""
    return text not in RESERVED and _NAME.fullmatch(text) is not None


def made_name(text: str) -> str:
    """Return the name that is made of another, always the same."""
    plain = normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = _OTHER.sub("-", plain).strip("-_")
    name = words or sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{name}-upstream" if name in RESERVED or not words else name


def twin_of(name: str, known: list[str]) -> str | None:
    """Return a name whose tools would be named like those of this one, because names of tools have no '-'."""
    return next((other for other in known if other != name and other.replace("-", "_") == name.replace("-", "_")), None)


FOREIGN: Final = (".json", ".jsonc")
"""How the names of clients' files end."""
_OF_UPSTREAMS: Final = ("upstreams", "upstream_defaults")
TABLES: Final = (*_OF_UPSTREAMS, PROFILES, TOOLSETS)
"""The headings under which people choose names."""


class Tables(NamedTuple):
    """What tables say: what a yard is made of, and every value as it may be shown, with the file it is from."""

    upstreams: "dict[str, Written]"
    profiles: dict[str, Profile]
    shown: dict[str, Any]
    sources: dict[str, str]
    warnings: tuple[str, ...]


def is_foreign(target: str | None) -> bool:
    """Return whether a target names upstreams: a client's file or an address."""
    return target is not None and (target.endswith(FOREIGN) or target.startswith(("http://", "https://")))


def foreign_files(target: str | None) -> list[Path]:
    """Return the client's file that a target names, if it names one."""
    return [Path(target)] if target is not None and target.endswith(FOREIGN) and "://" not in target else []


def read_tables(document: Table, path: Path | None, target: str | None) -> Tables:
    """Read the tables of a file; a target that names upstreams takes the place of those that the file has.

    Raises:
        ConfigError: Something in them is wrong.
    """
    found = Tables({}, {}, {}, {}, ())
    if path is not None:
        found.profiles.update(read_profiles(document, path))
        shown = dict(_flat_tables({name: document[name] for name in (PROFILES, TOOLSETS) if name in document}))
        found.shown.update(shown)
        found.sources.update(dict.fromkeys(shown, str(path)))
    if is_foreign(target) or any(name in document for name in _OF_UPSTREAMS):
        return _with_upstreams(found, document, path, target)
    return found


def _with_upstreams(found: Tables, document: Table, path: Path | None, target: str | None) -> Tables:
    from toolyard.config.upstreams import from_file, from_target, masked  # noqa: PLC0415 - it brings asyncio, and most yards have none

    upstreams = {} if path is None else from_file(document, path)
    warnings: tuple[str, ...] = ()
    if target is not None and is_foreign(target):
        upstreams, warnings = from_target(target)
    for name, written in upstreams.items():
        found.upstreams[name] = written
        for field, value in written.fields.items():
            key = f"upstreams.{name}.{field}"
            found.shown[key] = masked(field, value)
            if written.place.file is not None:
                found.sources[key] = written.place.file
    return found._replace(warnings=warnings)


def _flat_tables(document: Table) -> Iterator[tuple[str, Any]]:
    for section, tables in document.items():
        for name, table in cast("dict[str, Table]", tables).items():
            yield from ((f"{section}.{name}.{field}", value) for field, value in table.items())


FILE: Final = "toolyard.toml"
"""The file that is read if no other is named."""
VARIABLE: Final = f"{PREFIX}CONFIG"
"""The variable that names another file."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_OTHERS: Final = frozenset({"SECRET"})  # read where it is used, because it is no setting to show
_PATHS: Final = frozenset({"state_dir", "serve.socket", "serve.tls_cert", "serve.tls_key"})
Kind = Literal["flag", "code", "environment", "file", "default"]


class Origin(NamedTuple):
    """Where a value came from, and what it is called there."""

    kind: Kind = "default"
    name: str = ""

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.kind} {self.name}".rstrip()


Stamp = tuple[int, int, int] | None
"""What a file looks like from outside, nothing if it is not there; when it changes, so does this."""
Layer = Iterator[tuple[str, Any, Origin]]


class Config(NamedTuple):
    """The settings in effect, where each that is no default came from, and what in the environment means nothing."""

    settings: Settings
    origins: Mapping[str, Origin]
    path: Path | None
    warnings: tuple[str, ...]
    upstreams: "Mapping[str, Written]"
    """Upstreams by name, as they are written."""
    profiles: Mapping[str, Profile]
    """Profiles of the file by name."""
    tables: Mapping[str, Any]
    """What is said of upstreams, profiles and toolsets, by key, as it may be shown."""
    files: "Mapping[Path, Stamp]"
    """Every file that was read, and what it looked like then."""

    @property
    def is_yard(self) -> bool:
        """Return whether there is a yard without any code: upstreams or packs."""
        return is_foreign(self.settings.target) or (self.settings.target is None and bool(self.upstreams or self.settings.packs))

    def origin(self, key: str) -> Origin:
        """Return where the value of a setting came from."""
        return self.origins.get(key, Origin())

    def value(self, key: str) -> Any:
        """Return the value of a setting."""
        if key in self.tables:
            return self.tables[key]
        section, _, name = key.rpartition(".")
        return getattr(getattr(self.settings, section) if section else self.settings, name)

    def given(self, section: str) -> dict[str, Any]:
        """Return what a section was given by name, without what is there by default."""
        known = known_settings().values()
        return {setting.name: self.value(setting.key) for setting in known if setting.section == section and setting.key in self.origins}


def read_config(
    given: Mapping[str, Any] = _NOTHING,
    *,
    path: str | None = None,
    environment: Mapping[str, str] | None = None,
    origin: Literal["flag", "code"] = "flag",
) -> Config:
    """Read all settings; `given` has those that beat every other by key, as text if they are flags.

    Raises:
        ConfigError: One is wrong; the sentence names it and where it stands.
    """
    variables = os.environ if environment is None else environment
    file = _find(path, variables)
    files = {} if file is None else {file: stamp_of(file)}  # first, so that a change while it is read is seen later
    document = {} if file is None else _read_toml(file)
    named = {name: document.pop(name) for name in TABLES if name in document}
    values: dict[str, Any] = {key: setting.default for key, setting in known_settings().items()}
    origins: dict[str, Origin] = {}
    for layer in (_from_file(document, file), _from_environment(variables), _from_caller(given, origin)):
        for key, value, source in layer:
            values[key], origins[key] = value, source
    settings = _assembled(values, origins)
    _check_search(variables)
    files |= {path: stamp_of(path) for path in foreign_files(settings.target)}
    tables = read_tables(named, file, settings.target)
    for key in tables.shown:
        origins[key] = Origin("file", tables.sources[key]) if key in tables.sources else origins["target"]
    return Config(
        settings=settings,
        origins=origins,
        path=file,
        warnings=(*_warnings(variables), *tables.warnings),
        upstreams=tables.upstreams,
        profiles=tables.profiles,
        tables=tables.shown,
        files=files,
    )


def stamp_of(path: Path) -> Stamp:
    """Return what a file looks like now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _find(path: str | None, variables: Mapping[str, str]) -> Path | None:
    named = path or variables.get(VARIABLE)
    if named:
        return Path(named)
    return Path(FILE) if Path(FILE).is_file() else None


def _from_file(document: Table, path: Path | None) -> Layer:
    if path is None:
        return
    for key, value in _flat(document, path):
        fits = fitted(value, known_settings()[key].type, Place(key, str(path)))
        yield key, _beside(path, key, fits), Origin("file", str(path))


def _read_toml(path: Path) -> Table:
    import tomllib  # noqa: PLC0415 - most servers have no file to read

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The file '{path}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The file '{path}' is not written in UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The file '{path}' is no TOML: {str(error).removesuffix('.')}.") from None


def _flat(document: Table, path: Path) -> Iterator[tuple[str, Any]]:
    """Return every value of a file under its whole key."""
    known = known_settings()
    sections = {setting.section for setting in known.values() if setting.section}
    belongs = {setting.name: setting.key for setting in reversed(known.values())}
    for name, value in document.items():
        if name not in sections:
            inner = {name: value}
        elif name == "auth" and not value:  # whoever wrote it meant that somebody is kept out
            raise ConfigError(f"{Place(name, str(path))} is empty: it needs 'api_keys', or 'issuer' and 'audience'.")
        elif isinstance(value, dict):
            inner = {f"{name}.{part}": item for part, item in cast("dict[str, Any]", value).items()}
        else:
            raise ConfigError(f"{Place(name, str(path))} must be a section, as in '[{name}]'.")
        for key, item in inner.items():
            if key not in known:
                section = key.rpartition(".")[0]
                siblings = [setting.name for setting in known.values() if setting.section == section]
                raise unknown(Place(key, str(path)), siblings if section else [*siblings, *sorted({*sections, *TABLES})], elsewhere=belongs)
            yield key, item


def _beside(path: Path, key: str, value: Any) -> Any:
    """Return a path as seen from here, because in a file it is seen from the file."""
    is_target = key == "target" and "://" not in value and value.partition(":")[0].endswith((".py", *FOREIGN))
    is_file = is_target or (key in _PATHS and not value.startswith("~"))
    return str(path.parent / value) if is_file else value


def _from_environment(variables: Mapping[str, str]) -> Layer:
    for key, setting in known_settings().items():
        text = variables.get(setting.variable)
        if text:  # an empty variable is how many programs unset one
            yield key, from_text(text, setting.type, Place(setting.variable)), Origin("environment", setting.variable)


def _from_caller(given: Mapping[str, Any], origin: Literal["flag", "code"]) -> Layer:
    for key, value in given.items():
        setting = known_settings()[key]
        name = setting.name if origin == "code" else _flag(setting, value)
        fits = from_text(value, setting.type, Place(name)) if origin == "flag" and isinstance(value, str) else value
        yield key, fitted(fits, setting.type, Place(name)), Origin(origin, name)


def _flag(setting: Setting, value: Any) -> str:
    """Return what was written on the command line to give the value."""
    if setting.key == "target":
        return "TARGET"
    return f"--no-{setting.flag.removeprefix('--')}" if value is False else setting.flag


def _assembled(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Settings:
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
    """Refuse a variable that looks like a setting of search and is none, as every yard does when it opens."""
    try:
        read_environment(variables)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _source(sentence: str, section: str, origins: Mapping[str, Origin]) -> str:
    """Return where the first setting that the sentence names came from, which a rule between settings cannot know."""
    found = [origins[key] for name in re.findall(r"'(\w+)'", sentence) if (key := f"{section}.{name}") in origins]
    return f" It comes from '{found[0].name}'." if found else ""


def _warnings(variables: Mapping[str, str]) -> Iterator[str]:
    """Return which variables are nearly settings; others may use the prefix for purposes of their own."""
    known = [name.removeprefix(PREFIX) for name in (VARIABLE, *(setting.variable for setting in known_settings().values()))]
    for name in sorted(variables):
        rest = name.removeprefix(PREFIX)
        if rest == name or rest in known or rest in _OTHERS:
            continue
        near = closest_name(rest, known, cutoff=0.7)  # other programs may use the prefix, too
        if near:
            yield f"The variable '{name}' sets nothing. Did you mean '{PREFIX}{near}'?"
