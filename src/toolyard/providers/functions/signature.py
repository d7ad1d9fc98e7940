"""Signatures: which parameters of a function are arguments, and which the yard fills in."""

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast, get_args, get_origin

from toolyard.call import Call
from toolyard.session import Session
from toolyard.spec import PublishError

__all__ = ["REQUIRED", "Built", "Factory", "Parameter", "Signature", "read_signature"]

REQUIRED: Final = inspect.Parameter.empty
_NO_ARGUMENTS: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class Parameter(NamedTuple):
    """One argument of a function; a default that stands for none is `REQUIRED`."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True, slots=True)
class Factory:
    """A default that is made anew for each call, and so is no part of the schema."""

    make: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Built:
    """What parameters became: a schema, what makes a validator of JSON text, defaults, and the name of each in the schema."""

    schema: dict[str, Any]
    make_validate: Callable[[], Callable[..., dict[str, Any]]]
    defaults: dict[str, Any]
    keys: dict[str, str]
    is_plain: bool = False
    """Whether the schema says everything that the validator asks."""


class Signature(NamedTuple):
    """What a function takes and returns."""

    parameters: tuple[Parameter, ...]
    positional: tuple[str, ...]
    """The positional-only ones in order, those that the yard fills in included."""
    returns: Any
    call_parameter: str | None
    session_parameter: str | None
    session: Literal["none", "optional", "required"]


def read_signature(function: Callable[..., Any], what: str) -> Signature:
    """Return what a function takes and returns.

    Raises:
        PublishError: An annotation cannot be understood.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise PublishError(f"{what} has no signature that can be read.") from error
    hints = _hints(function, what, signature)
    filled: dict[str, str] = {}
    session: Literal["none", "optional", "required"] = "none"
    parameters: list[Parameter] = []
    for name, parameter in signature.parameters.items():
        annotation = hints.get(name, Any)
        if parameter.kind in _NO_ARGUMENTS:
            raise PublishError(f"{what} has the parameter '{_NO_ARGUMENTS[parameter.kind]}{name}', which cannot become a schema.")
        if _is(annotation, Call):
            filled["call"] = name
        elif _is(annotation, Session):
            filled["session"], session = name, "required" if annotation is Session else "optional"
        else:
            parameters.append(Parameter(name, annotation, parameter.default))
    positional = tuple(name for name, one in signature.parameters.items() if one.kind is inspect.Parameter.POSITIONAL_ONLY)
    returns = hints.get("return", REQUIRED)
    return Signature(tuple(parameters), positional, returns, filled.get("call"), filled.get("session"), session)


def _is(annotation: object, wanted: type) -> bool:
    """Return whether an annotation is the wanted type, or that and nothing."""
    if get_origin(annotation) in {typing.Union, types.UnionType}:
        return set(get_args(annotation)) == {wanted, type(None)}
    return annotation is wanted


def _hints(function: Callable[..., Any], what: str, signature: inspect.Signature) -> dict[str, Any]:
    """Return the annotations, with what is written as text in them understood."""
    given: dict[str, Any] = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    given["return"] = signature.return_annotation
    scope = _scope(function)
    return {name: _understand(annotation, scope, what, name) for name, annotation in given.items() if annotation is not REQUIRED}


def _scope(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the names that the annotations of a function may use: those of its module and those it closes over."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    target = inspect.unwrap(getattr(function, "__func__", function))
    if not hasattr(target, "__code__"):
        target = inspect.unwrap(type(target).__call__)
    if not hasattr(target, "__code__"):
        return {}, {}
    cells = zip(target.__code__.co_freevars, target.__closure__ or (), strict=True)
    return target.__globals__, {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not REQUIRED
    except ValueError:
        return False


def _understand(annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]], what: str, name: str) -> Any:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        return typing.get_type_hints(holder, *scope, include_extras=True)[name]
    except Exception as error:
        where = "return annotation" if name == "return" else f"parameter '{name}'"
        raise PublishError(f"{what} has a {where} whose annotation '{annotation}' cannot be understood.") from error
