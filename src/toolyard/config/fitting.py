"""Fitting: from what a person wrote, as text or in a file, to a value of the type that is wanted."""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from toolyard.schema import near_miss

__all__ = ["ConfigError", "Place", "fitted", "from_text", "unknown"]

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_MEANT: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "'true' or 'false'",
    tuple[str, ...]: "a list of texts",
    dict[str, str]: "a table of texts",
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
    if _is_struct(kind):
        return _fitted_struct(value, kind, place)
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
    if kinds == (bool,) and text.lower() in _TRUE | _FALSE:
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


def unknown(place: Place, known: Sequence[str], *, elsewhere: Mapping[str, str]) -> ConfigError:
    """Return that something is not known, with what was probably meant; `elsewhere` is where other names belong."""
    name = place.name.rpartition(".")[2]
    meant = elsewhere.get(name) or near_miss(name, known)
    hint = f" Did you mean '{meant}'?" if meant else f" Known: {', '.join(known)}."
    return ConfigError(f"{place} is not known.{hint}")


def _fitted_struct(value: object, kind: type[msgspec.Struct], place: Place) -> Any:
    if not isinstance(value, dict):
        raise ConfigError(f"{place} must be a table.")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    given = cast("dict[str, object]", value)
    for name in given:
        if name not in fields:
            raise unknown(place.inside(f".{name}"), list(fields), elsewhere={})
    for name, field in fields.items():
        if field.required and name not in given:
            raise ConfigError(f"{place} needs '{name}'.")
    return kind(**{name: fitted(item, fields[name].type, place.inside(f".{name}")) for name, item in given.items()})


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
    return " or ".join(_MEANT.get(part, "a list of tables") for part in _without_none(kind))
