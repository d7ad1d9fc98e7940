"""Signatures: which parameters of a function are arguments, and which the yard fills in."""

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from toolyard.call import Call
from toolyard.session import Session
from toolyard.spec import PublishError

__all__ = ["REQUIRED", "Parameter", "Signature", "read_signature"]

REQUIRED: Final = inspect.Parameter.empty
_NO_ARGUMENTS: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a function; a default that stands for none is `REQUIRED`."""

    name: str
    annotation: Any
    default: Any
    positional: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and returns."""

    parameters: tuple[Parameter, ...]
    returns: Any
    call_parameter: str | None
    session_parameter: str | None
    session: Literal["none", "optional", "required"]


def read_signature(function: Callable[..., Any], tool: str) -> Signature:
    """Return what a function takes and returns.

    Raises:
        PublishError: An annotation cannot be understood.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise PublishError(f"Tool '{tool}' has no signature that can be read.") from error
    hints = _hints(function, tool, signature)
    filled: dict[str, str] = {}
    session: Literal["none", "optional", "required"] = "none"
    parameters: list[Parameter] = []
    for name, parameter in signature.parameters.items():
        annotation = hints.get(name, Any)
        if parameter.kind in _NO_ARGUMENTS:
            raise PublishError(f"Tool '{tool}' has the parameter '{_NO_ARGUMENTS[parameter.kind]}{name}', which cannot become a schema.")
        if annotation is Call:
            filled["call"] = name
        elif _is_session(annotation):
            filled["session"], session = name, "required" if annotation is Session else "optional"
        else:
            positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
            parameters.append(Parameter(name, annotation, parameter.default, positional))
    returns = hints.get("return", REQUIRED)
    return Signature(tuple(parameters), returns, filled.get("call"), filled.get("session"), session)


def _is_session(annotation: object) -> bool:
    if get_origin(annotation) in {typing.Union, types.UnionType}:
        return set(get_args(annotation)) == {Session, type(None)}
    return annotation is Session


def _hints(function: Callable[..., Any], tool: str, signature: inspect.Signature) -> dict[str, Any]:
    """Return the annotations, with those written as text understood."""
    target = inspect.unwrap(function)
    if not inspect.isroutine(target):
        target = getattr(target, "func", None) or type(target).__call__
    annotations: dict[str, Any] = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    annotations["return"] = signature.return_annotation
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        if annotation is REQUIRED:
            continue
        hints[name] = _understand(annotation, target, tool, name) if isinstance(annotation, str) else annotation
    return hints


def _understand(text: str, function: Any, tool: str, name: str) -> Any:
    function = getattr(function, "__func__", function)
    closure = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True))
    holder = types.SimpleNamespace(__annotations__={name: text})
    try:
        return typing.get_type_hints(holder, function.__globals__, closure, include_extras=True)[name]
    except Exception as error:
        where = "return annotation" if name == "return" else f"parameter '{name}'"
        raise PublishError(f"Tool '{tool}' has a {where} whose annotation '{text}' cannot be understood.") from error
