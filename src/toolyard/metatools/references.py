"""References: places in the arguments of a step that take what an earlier step answered."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, cast

from toolyard.schema import Path

__all__ = ["Reference", "filled", "references"]

_FROM: Final = "$from"
_CONTAINERS: Final = (dict, list)
_STEP: Final = (int, str)
_DEPTH: Final = 32


class Reference(NamedTuple):
    """Which step a place takes the result of, which part of it, and where the place is."""

    step: str | int
    pointer: str
    at: Path


def references(args: dict[str, Any]) -> list[Reference]:
    """Return the references in arguments."""
    found: list[Reference] = []
    for key, value in args.items():
        if type(value) in _CONTAINERS:
            _collect(value, (key,), found)
    return found


def filled(args: dict[str, Any], found: Iterable[Reference], follow: Callable[[Reference], Any]) -> dict[str, Any]:
    """Return the arguments with what `follow` finds in the places that refer to something."""
    result = dict(args)
    for reference in found:
        first, *rest = reference.at
        value = follow(reference)
        result[cast("str", first)] = _with(result[cast("str", first)], rest, value) if rest else value
    return result


def _collect(value: Any, at: Path, found: list[Reference]) -> None:
    if len(at) > _DEPTH:
        return
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        if _FROM in pairs and _refers(pairs):
            found.append(Reference(pairs[_FROM], pairs.get("path", ""), at))
            return
    items = cast("dict[str, Any]", value).items() if isinstance(value, dict) else enumerate(cast("list[Any]", value))
    for key, item in items:
        if type(item) in _CONTAINERS:
            _collect(item, (*at, key), found)


def _with(container: Any, path: list[str | int], value: Any) -> Any:
    """Return a copy of a container with something else in one place."""
    copied = container.copy()
    copied[path[0]] = _with(container[path[0]], path[1:], value) if len(path) > 1 else value
    return copied


def _refers(pairs: dict[str, Any]) -> bool:
    if len(pairs) != 1 + ("path" in pairs):
        return False
    return type(pairs[_FROM]) in _STEP and isinstance(pairs.get("path", ""), str)
