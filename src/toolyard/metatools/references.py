"""References: places in the arguments of a step that take what an earlier step answered."""

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

from toolyard.schema import Path

__all__ = ["Reference", "references", "replaced"]

_FROM: Final = "$from"
_SHAPES: Final = ({_FROM}, {_FROM, "path"})
_DEPTH: Final = 32


class Reference(NamedTuple):
    """Which step a place takes the result of, which part of it, and where the place is."""

    step: str | int
    pointer: str
    at: Path


def references(value: object, at: Path = ()) -> Iterator[Reference]:
    """Return the references in arguments."""
    if len(at) > _DEPTH:
        return
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        if _refers(pairs):
            yield Reference(pairs[_FROM], pairs.get("path", ""), at)
            return
        for key, item in pairs.items():
            yield from references(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from references(item, (*at, index))


def replaced(value: Any, follow: Callable[[Reference], Any], at: Path = ()) -> Any:
    """Return arguments with what `follow` finds in the places that refer to something."""
    if len(at) > _DEPTH:
        return value
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        if _refers(pairs):
            return follow(Reference(pairs[_FROM], pairs.get("path", ""), at))
        return {key: replaced(item, follow, (*at, key)) for key, item in pairs.items()}
    if isinstance(value, list):
        return [replaced(item, follow, (*at, index)) for index, item in enumerate(cast("list[Any]", value))]
    return value


def _refers(pairs: dict[str, Any]) -> bool:
    step = pairs.get(_FROM)
    return set(pairs) in _SHAPES and isinstance(step, str | int) and not isinstance(step, bool) and isinstance(pairs.get("path", ""), str)
