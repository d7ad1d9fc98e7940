"""Conversion of values that people write to the types of the settings, and of the references in them.

Errors name the setting and its file. No setting is known here.
"""

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

import msgspec

from callyard._internal.mask import remember_secret
from callyard.model.names import closest_name

__all__ = [
    "ConfigError",
    "Location",
    "References",
    "Table",
    "build_struct",
    "check_keys",
    "convert",
    "convert_fields",
    "parse_text",
    "require_table",
    "unknown_key",
]


Table = dict[str, Any]
"""A TOML table or JSON object."""
_SWITCHES: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_DESCRIPTIONS: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "'true' or 'false'",
    tuple[str, ...]: "a list of texts",
    dict[str, str]: "a table of texts",
    dict[str, Any]: "a table",
}


class ConfigError(ValueError):
    """A setting is wrong; the message names the setting and its file."""


class Location(msgspec.Struct, frozen=True):
    """The key of a value and the file it is in, for error messages."""

    name: str
    file: str | None = None

    def __str__(self) -> str:
        return f"'{self.name}'" if self.file is None else f"'{self.name}' in '{self.file}'"

    def child(self, part: str) -> "Location":
        """Return the location of a part, such as '.port' or '[0]'."""
        return msgspec.structs.replace(self, name=f"{self.name}{part}")


def convert(value: object, kind: Any, location: Location) -> Any:
    """Return the value converted to a type.

    Raises:
        ConfigError: The value does not fit the type.
    """
    struct = next((part for part in _without_none(kind) if _is_struct(part)), None)
    if struct is not None and (value is not None or struct is kind):
        return build_struct(struct, convert_fields(value, struct, location), location)
    if get_origin(kind) is dict and _is_struct(get_args(kind)[1]):
        return {
            name: convert(item, get_args(kind)[1], location.child(f".{name}"))
            for name, item in require_table(value, location).items()
        }
    if get_origin(kind) is tuple and isinstance(value, list) and get_args(kind)[0] is not str:
        items = enumerate(cast("list[object]", value))
        return tuple(convert(item, get_args(kind)[0], location.child(f"[{number}]")) for number, item in items)
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError:
        raise ConfigError(f"{location} must be {_describe_type(kind)}.") from None


def parse_text(text: str, kind: Any, location: Location) -> Any:
    """Parse the text of a flag or an environment variable: lists are separated by commas, tables are JSON.

    Raises:
        ConfigError: The text does not fit the type.
    """
    kinds = _without_none(kind)
    if bool in kinds and text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    if kinds in {(int,), (float,)}:
        try:
            return kinds[0](text)
        except ValueError:
            raise ConfigError(f"{location} must be {_describe_type(kind)}, and not '{text}'.") from None
    if kinds == (bool,):
        known = "'1', '0', 'true', 'false', 'yes', 'no', 'on' and 'off'"
        raise ConfigError(f"{location} must be one of {known}, and not '{text}'.")
    if tuple[str, ...] in kinds:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if any(get_origin(part) is Literal for part in kinds):
        return convert(text, kind, location)
    if str in kinds:
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise ConfigError(f"{location} must be JSON.") from None
    return convert(value, kind, location)


def convert_fields(value: object, kind: type[msgspec.Struct], location: Location) -> Table:
    """Return the fields in a table, each converted to its type in the struct.

    Raises:
        ConfigError: A key is unknown, or a value does not fit.
    """
    fields = _fields_of(kind)
    table = require_table(value, location)
    check_keys(table, list(fields), location)
    return {fields[key].name: convert(item, fields[key].type, location.child(f".{key}")) for key, item in table.items()}


def build_struct(kind: type[msgspec.Struct], fields: Table, location: Location) -> Any:
    """Return a struct with these fields.

    Raises:
        ConfigError: A required field is missing, or the struct refuses the combination.
    """
    for name, field in _fields_of(kind).items():
        if field.required and field.name not in fields:
            raise ConfigError(f"{location} needs '{name}'.")
    try:
        return kind(**fields)
    except ValueError as error:
        raise ConfigError(f"{location} makes no sense: {error}") from None


def require_table(value: object, location: Location) -> Table:
    """Return a value that must be a table.

    Raises:
        ConfigError: It is something else.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{location} must be a table.")
    return cast("Table", value)


def check_keys(table: Table, known: Sequence[str], location: Location) -> None:
    """Refuse unknown keys.

    Raises:
        ConfigError: A key is unknown.
    """
    for name in table:
        if name not in known:
            raise unknown_key(location.child(f".{name}"), known)


def unknown_key(location: Location, known: Sequence[str], *, elsewhere: Mapping[str, str] | None = None) -> ConfigError:
    """Return the error for an unknown key; `elsewhere` has the full keys of names that belong in another section."""
    name = location.name.rpartition(".")[2]
    meant = (elsewhere or {}).get(name) or closest_name(name, known)
    hint = f" Did you mean '{meant}'?" if meant else f" Known: {', '.join(known)}."
    return ConfigError(f"{location} is not known.{hint}")


@cache  # reading type hints is slow, and many tables may have one type
def _fields_of(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    # a keyword of Python, such as 'in', has another name
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _without_none(kind: Any) -> tuple[Any, ...]:
    kinds = get_args(kind) if get_origin(kind) in {Union, UnionType} else (kind,)
    return tuple(part for part in kinds if part is not type(None))


def _describe_type(kind: Any) -> str:
    return " or ".join(_DESCRIPTIONS.get(part) or _choices(part) or "a list of tables" for part in _without_none(kind))


def _choices(kind: Any) -> str:
    """Return the allowed values of a literal type, an enum or a list of them; empty for other types."""
    if get_origin(kind) is tuple and (several := _choices(get_args(kind)[0])):
        return f"a list of these: {several.removeprefix('one of ')}"
    words = [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
    if isinstance(kind, type) and issubclass(kind, Enum):
        words = [str(word.value) for word in kind]
    return f"one of {', '.join(repr(word) for word in words)}" if words else ""


_SECRET: Final = "secretref:"  # noqa: S105 - the prefix of a reference


class References(msgspec.Struct, frozen=True, kw_only=True):
    """Resolves references to environment variables, and to secrets in variables, files or the keyring."""

    variables: Mapping[str, str]
    folder: Path
    warn: Callable[[str], None]

    def resolve(self, text: str, location: Location) -> str:
        """Return the text with its references replaced; '$${' escapes '${'.

        Raises:
            ConfigError: A variable or secret is missing.
        """
        if text.startswith(_SECRET):
            return self._secret(text.removeprefix(_SECRET), location)
        return re.sub(r"\$(\$?)\{([^{}]*)\}", lambda match: self._referred(match, location), text)

    def _referred(self, match: re.Match[str], location: Location) -> str:
        inner = match[2]
        if match[1]:
            return match[0][1:]
        if inner.startswith("input:"):
            instead = "a variable instead, as in '${TOKEN}', or a secret, as in 'secretref:keyring:SERVICE/NAME'."
            raise ConfigError(f"{location} refers to '{match[0]}', which only the client can ask for. Write {instead}")
        if inner.startswith(_SECRET):
            return self._secret(inner.removeprefix(_SECRET), location)
        variable = re.fullmatch(r"(?s)(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", inner)
        if variable is None:
            return match[0]
        value, default = self.variables.get(variable[1]), variable[2]
        if default is not None:
            return value or default
        if value is None:
            raise ConfigError(f"{location} needs the variable '{variable[1]}', which is not set.")
        return value

    def _secret(self, reference: str, location: Location) -> str:
        kind, _, name = reference.partition(":")
        find = {"env": self._from_environment, "file": self._from_file, "keyring": _from_keyring}.get(kind)
        if find is None or not name:
            forms = "'secretref:env:NAME', 'secretref:file:PATH' and 'secretref:keyring:SERVICE/NAME'"
            raise ConfigError(f"{location} refers to a secret in an unknown form. Known: {forms}.")
        try:
            secret = find(self.resolve(name, location))
        except LookupError as error:
            raise ConfigError(f"{location} needs the secret '{_SECRET}{reference}': {error.args[0]}") from None
        if not secret:
            raise ConfigError(f"{location} needs the secret '{_SECRET}{reference}', which is empty.")
        remember_secret(secret)
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
                    self.warn(f"The file '{path}' holds a secret and everybody can read it. Run 'chmod 600' on it.")
                return file.read().rstrip("\r\n")
        except OSError as error:
            raise LookupError(f"the file cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise LookupError("the file is not UTF-8.") from None


def _from_keyring(name: str) -> str:
    service, _, user = name.rpartition("/")
    if not service:
        raise LookupError("it is written 'secretref:keyring:SERVICE/NAME'.")
    try:
        keyring: Any = import_module("keyring")  # slow to load, and rarely used
    except ImportError:
        raise LookupError("the package 'keyring' is missing; install it with 'pip install keyring'.") from None
    try:
        secret = keyring.get_password(service, user)
    except Exception as error:  # noqa: BLE001 - each system's keyring has failures of its own
        raise LookupError(f"the keyring cannot be opened: {type(error).__name__}.") from None
    if secret is None:
        raise LookupError(f"the keyring does not have it; add it with 'keyring set {service} {user}'.")
    return secret
