"""References: places in the arguments of a step that take what an earlier step answered."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from toolyard.errors import ToolError
from toolyard.results import at_pointer

__all__ = ["Reference", "filled", "references"]

_FROM: Final = "$from"
_DEPTH: Final = 32
_CONTAINERS: Final = frozenset({dict, list})
_NAMES: Final = frozenset({int, str})


class Reference(msgspec.Struct, gc=False):
    """Which step a place takes the result of, which part of it, and where the place is."""

    step: str | int
    pointer: str
    at: tuple[str | int, ...]
    target: int = 0
    """The place of that step, once it is known."""


def references(args: dict[str, Any]) -> Sequence[Reference]:
    """Return the references in arguments."""
    found: list[Reference] = []
    for key, value in args.items():
        if type(value) in _CONTAINERS:
            _collect(value, (key,), found)
    return found


def filled(args: dict[str, Any], found: Iterable[Reference], told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments with what the steps before answered in the places that refer to it.

    Raises:
        ToolError: `invalid_input` if one answered nothing there.
    """
    filling: dict[Any, Any] = dict(args)
    for reference in found:
        value = told[reference.target]["data"]
        if reference.pointer:
            value = _part(value, reference)
        at = reference.at
        filling[at[0]] = value if len(at) == 1 else _with(filling[at[0]], at[1:], value)
    return filling


def _part(result: Any, reference: Reference) -> Any:
    try:
        return at_pointer(result, reference.pointer)
    except LookupError:
        message = f"Step {reference.target} answered nothing at {reference.pointer!r}."
        issue = {"field": ".".join(map(str, reference.at)), "code": "unknown_path", "message": message}
        raise ToolError("invalid_input", message, may_have_run=False, issues=[issue]) from None


def _collect(value: Any, at: tuple[str | int, ...], found: list[Reference]) -> None:
    if type(value) is list:
        pairs = enumerate(cast("list[Any]", value))
    else:
        step, path = value.get(_FROM), value.get("path", "")
        if type(step) in _NAMES and type(path) is str and len(value) == (2 if "path" in value else 1):
            found.append(Reference(step, path, at))
            return
        pairs = cast("dict[str, Any]", value).items()
    if len(at) < _DEPTH:
        for key, item in pairs:
            if type(item) in _CONTAINERS:
                _collect(item, (*at, key), found)


def _with(container: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of a container with something else in one place."""
    copied = container.copy()
    copied[path[0]] = _with(container[path[0]], path[1:], value) if len(path) > 1 else value
    return copied
