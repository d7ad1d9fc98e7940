"""Fitting: from what a person wrote, as text or in a file, to a value of the type that is wanted."""

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from toolyard.model.names import closest_name

__all__ = ["ConfigError", "Place", "References", "Table", "fitted", "fitted_fields", "from_text", "made", "table_of", "unknown"]


Table = dict[str, Any]
"""What a file says under one heading."""
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_MEANT: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "'true' or 'false'",
    tuple[str, ...]: "a list of texts",
    dict[str, str]: "a table of texts",
    dict[str, Any]: "a table",
}


class ConfigError(ValueError):
    """A setting is wrong: one sentence that names it and where it stands."""


class Place(NamedTuple):
    """Where a value stands, as a sentence names it."""

    name: str
    file: str | None = None

    def __str__(self) -> str:
        """Return it with quotes."""
        return f"'{self.name}'" if self.file is None else f"'{self.name}' in '{self.file}'"

    def inside(self, part: str) -> "Place":
        """Return the place of a part."""
        return self._replace(name=f"{self.name}{part}")


def fitted(value: object, kind: Any, place: Place) -> Any:
    """Return a value as its type has it.

    Raises:
        ConfigError: It does not fit.
    """
    struct = next((part for part in _without_none(kind) if _is_struct(part)), None)
    if struct is not None and (value is not None or struct is kind):
        return made(struct, fitted_fields(value, struct, place), place)
    if get_origin(kind) is dict and _is_struct(get_args(kind)[1]):
        return {name: fitted(item, get_args(kind)[1], place.inside(f".{name}")) for name, item in table_of(value, place).items()}
    if get_origin(kind) is tuple and isinstance(value, list) and get_args(kind)[0] is not str:
        items = enumerate(cast("list[object]", value))
        return tuple(fitted(item, get_args(kind)[0], place.inside(f"[{number}]")) for number, item in items)
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        raise ConfigError(f"{place} must be {_meant(kind)}.") from None


def from_text(text: str, kind: Any, place: Place) -> Any:
    """Return what a text stands for: words for true and false, commas between the parts of a list, JSON for what is larger.

    Raises:
        ConfigError: It stands for nothing that fits.
    """
    kinds = _without_none(kind)
    if bool in kinds and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if kinds in {(int,), (float,)}:
        try:
            return kinds[0](text)
        except ValueError:
            raise ConfigError(f"{place} must be {_meant(kind)}, and not '{text}'.") from None
    if kinds == (bool,):
        raise ConfigError(f"{place} must be one of '1', '0', 'true', 'false', 'yes', 'no', 'on' and 'off', and not '{text}'.")
    if tuple[str, ...] in kinds:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text if str in kinds else fitted(_json(text, place), kind, place)


def fitted_fields(value: object, kind: type[msgspec.Struct], place: Place) -> Table:
    """Return the fields of a struct that a table has, each as its type has it.

    Raises:
        ConfigError: It has others, or one does not fit.
    """
    fields = _fields_of(kind)
    given = table_of(value, place)
    for name in given:
        if name not in fields:
            raise unknown(place.inside(f".{name}"), list(fields), elsewhere={})
    return {name: fitted(item, fields[name].type, place.inside(f".{name}")) for name, item in given.items()}


def made(kind: type[msgspec.Struct], fields: Table, place: Place) -> Any:
    """Return the struct with these fields.

    Raises:
        ConfigError: One is missing, or they do not go together.
    """
    for name, field in _fields_of(kind).items():
        if field.required and name not in fields:
            raise ConfigError(f"{place} needs '{name}'.")
    try:
        return kind(**fields)
    except ValueError as error:
        raise ConfigError(f"{place} makes no sense: {error}") from None


def table_of(value: object, place: Place) -> Table:
    """Return a value that must be a table.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{place} must be a table.")
    return cast("Table", value)


def unknown(place: Place, known: Sequence[str], *, elsewhere: Mapping[str, str]) -> ConfigError:
    """Return that something is not known, with what was probably meant; `elsewhere` is where other names belong."""
    name = place.name.rpartition(".")[2]
    meant = elsewhere.get(name) or closest_name(name, known)
    hint = f" Did you mean '{meant}'?" if meant else f" Known: {', '.join(known)}."
    return ConfigError(f"{place} is not known.{hint}")


@cache  # reading types takes long, and many tables may be of one kind
def _fields_of(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _json(text: str, place: Place) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ConfigError(f"{place} must be JSON.") from None


def _without_none(kind: Any) -> tuple[Any, ...]:
    kinds = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    return tuple(part for part in kinds if part is not type(None))


def _meant(kind: Any) -> str:
    return " or ".join(_MEANT.get(part) or _choices(part) or "a list of tables" for part in _without_none(kind))


def _choices(kind: Any) -> str:
    """Return the words that may stand there, if there are only some."""
    if get_origin(kind) is tuple and (several := _choices(get_args(kind)[0])):
        return f"a list of these: {several.removeprefix('one of ')}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        words = [str(word.value) for word in kind]
    else:
        words = [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
    return f"one of {', '.join(repr(word) for word in words)}" if words else ""


_SECRET: Final = "secretref:"  # noqa: S105 - the word that a reference begins with
_REFERENCE: Final = re.compile(r"\$(\$?)\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_INPUT: Final = "input:"


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Looks up what texts refer to: variables in the environment, secrets there, in files beside the text, or in the keyring."""

    variables: Mapping[str, str]
    folder: Path
    warn: Callable[[str], None]

    def text(self, written: str, place: Place) -> str:
        """Return a text with everything it refers to; '$${' is how '${' itself is written.

        Raises:
            ConfigError: Something it refers to is not there.
        """
        if written.startswith(_SECRET):
            return self._secret(written.removeprefix(_SECRET), place)
        return _REFERENCE.sub(lambda found: self._referred(found, place), written)

    def _referred(self, found: re.Match[str], place: Place) -> str:
        inner = found[2]
        if found[1]:
            return found[0][1:]
        if inner.startswith(_INPUT):
            raise ConfigError(
                f"{place} wants '{found[0]}', which a person is asked for by the client. Write a variable instead, as in '${{TOKEN}}', "
                "or a secret, as in 'secretref:keyring:SERVICE/NAME'."
            )
        if inner.startswith(_SECRET):
            return self._secret(inner.removeprefix(_SECRET), place)
        variable = _VARIABLE.fullmatch(inner)
        if variable is None:
            return found[0]
        value, default = self.variables.get(variable[1]), variable[2]
        if default is not None:
            return value or default
        if value is None:
            raise ConfigError(f"{place} needs the variable '{variable[1]}', which is not set.")
        return value

    def _secret(self, reference: str, place: Place) -> str:
        kind, _, name = reference.partition(":")
        find = {"env": self._from_environment, "file": self._from_file, "keyring": _from_keyring}.get(kind)
        if find is None or not name:
            forms = "'secretref:env:NAME', 'secretref:file:PATH' and 'secretref:keyring:SERVICE/NAME'"
            raise ConfigError(f"{place} refers to a secret in no known way. Known: {forms}.")
        try:
            secret = find(self.text(name, place))
        except LookupError as error:
            raise ConfigError(f"{place} needs the secret '{_SECRET}{reference}': {error.args[0]}") from None
        if not secret:
            raise ConfigError(f"{place} needs the secret '{_SECRET}{reference}', which is empty.")
        return secret

    def _from_environment(self, name: str) -> str:
        if name not in self.variables:
            raise LookupError("the variable is not set.")
        return self.variables[name]

    def _from_file(self, name: str) -> str:
        path = self.folder / Path(name).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                    self.warn(f"The file '{path}' holds a secret and can be read by everybody: 'chmod 600' mends that.")
                return file.read().rstrip("\r\n")
        except OSError as error:
            raise LookupError(f"the file cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise LookupError("the file is not written in UTF-8.") from None


def _from_keyring(name: str) -> str:
    service, _, user = name.rpartition("/")
    if not service:
        raise LookupError("it is written 'secretref:keyring:SERVICE/NAME'.")
    try:
        keyring: Any = import_module("keyring")  # dear to load, and few keep secrets there
    except ImportError:
        raise LookupError("the package 'keyring' is missing; 'pip install keyring' brings it.") from None
    try:
        secret = keyring.get_password(service, user)
    except Exception as error:  # noqa: BLE001 - each system's keyring has failures of its own
        raise LookupError(f"the keyring does not open: {type(error).__name__}.") from None
    if secret is None:
        raise LookupError(f"the keyring has none; 'keyring set {service} {user}' puts it there.")
    return secret
