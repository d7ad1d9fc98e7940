"""References: places in the arguments of a step that take what an earlier step answered.

The arguments of a step may be those of a metatool that runs others. Whatever is in there is theirs to see to, but for one thing:
the steps of a chain inside a chain refer to each other, and to nobody outside.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from toolyard.errors import ToolError, shortened
from toolyard.results import at_pointer

__all__ = ["CHAIN", "Place", "Reference", "filled", "holds_steps", "references"]

_FROM: Final = "$from"
_DEPTH: Final = 128
_CONTAINERS: Final = frozenset({dict, list})
_NAMES: Final = frozenset({int, str})
_POINTERS: Final = frozenset({str, type(None)})
_BOTH: Final = 2
_RUNS: Final = ("run_tool", "call_tool")  # no set: what is looked for may be anything
CHAIN: Final = "run_chain"
"""The metatool whose steps are its own affair."""

Place = tuple[str | int, ...]


class Reference(msgspec.Struct, gc=False):
    """Which step a place takes the result of, which part of it, and where the place is."""

    step: str | int
    pointer: str
    at: Place
    target: int = 0
    """The place of that step, once it is known."""


def references(args: dict[str, Any], wrapper: object = None) -> Sequence[Reference]:
    """Return the references in arguments, which may be those of the metatool of that name."""
    found: list[Reference] = []
    if wrapper is not None:
        _gather(args, wrapper, (), found)
        return found
    for key, value in args.items():
        if type(value) in _CONTAINERS:
            _collect(value, (key,), found)
    return found


def filled(args: dict[str, Any], found: Iterable[Reference], told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments with what the steps before answered, which is told of each as its `data`, in the places that refer to it.

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


def holds_steps(args: Mapping[str, Any], wrapper: object) -> bool:
    """Return whether arguments of the metatool of that name are those of a chain, or run one, whose steps stand there as they are."""
    if wrapper == CHAIN:
        return type(args.get("steps")) is list
    inner = args.get("args") if wrapper in _RUNS else None
    return type(inner) is dict and _FROM not in inner and holds_steps(cast("dict[str, Any]", inner), args.get("tool_id"))


def _part(result: Any, reference: Reference) -> Any:
    try:
        return at_pointer(result, reference.pointer)
    except LookupError:
        message = f"Step {reference.target} answered nothing at '{shortened(reference.pointer)}'."
        issue = {"field": ".".join(map(str, reference.at)), "code": "unknown_path", "message": message}
        raise ToolError("invalid_input", message, may_have_run=False, issues=[issue]) from None


def _gather(args: Mapping[str, Any], wrapper: object, at: Place, found: list[Reference]) -> None:
    for key, value in args.items():
        if type(value) not in _CONTAINERS or (wrapper == CHAIN and key == "steps" and type(value) is list):
            continue
        if wrapper in _RUNS and key == "args" and type(value) is dict and _FROM not in value:
            _gather(cast("dict[str, Any]", value), args.get("tool_id"), (*at, key), found)
        else:
            _collect(value, (*at, key), found)


def _collect(value: Any, at: Place, found: list[Reference]) -> None:
    if type(value) is list:
        pairs = enumerate(cast("list[Any]", value))
    else:
        step, size = value.get(_FROM), len(value)
        if type(step) in _NAMES and (size == 1 or (size == _BOTH and type(value.get("path", size)) in _POINTERS)):
            found.append(Reference(step, value.get("path") or "", at))
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
