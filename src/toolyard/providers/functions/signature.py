"""Signatures: which parameters of a function are arguments, and which the yard fills in."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

import msgspec

from toolyard.dispatch.call import Call, Handler
from toolyard.dispatch.sessions import Session
from toolyard.model.names import did_you_mean
from toolyard.model.spec import Kind, PublishError

__all__ = [
    "REQUIRED",
    "Built",
    "Documented",
    "Factory",
    "Marks",
    "Parameter",
    "ReadFunction",
    "Signature",
    "handler_of",
    "inner_of",
    "make_marks",
    "mark",
    "marks_of",
    "methods_with",
    "read_docstring",
    "read_function",
    "read_signature",
    "sentence",
]


_SECTION: Final = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Attributes|Examples?):\s*\Z")
_PARAMETERS: Final = frozenset({"Args", "Arguments", "Parameters"})
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)\Z")
_FIELD: Final = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)\Z")


class Documented(NamedTuple):
    """What a docstring says."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Documented:
    """Return the description, without the sections, and the descriptions of the parameters."""
    if not text:
        return Documented("", {})
    lines = inspect.cleandoc(text).splitlines()
    start = next((number for number, line in enumerate(lines) if _SECTION.match(line) or line.startswith(":")), len(lines))
    description = "\n".join(lines[:start]).strip()
    return Documented(description, _parameters(lines[start:]))


def _parameters(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    inside = False
    name = ""
    margin = 0
    for line in lines:
        section, field = _SECTION.match(line), _FIELD.match(line)
        indent = len(line) - len(line.lstrip())
        if section:
            inside, name, margin = section[1] in _PARAMETERS, "", 0
        elif field:
            name, found[field[1]] = field[1], field[2].strip()
        elif not line.strip() or line.startswith(":"):
            name = "" if line.strip() else name
        elif inside and (not name or indent <= margin) and (entry := _ENTRY.match(line.strip())):
            name, margin = entry[1], indent
            found[name] = entry[2].strip()
        elif name and indent > margin:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


M = TypeVar("M", bound="Marks")
Function = TypeVar("Function", bound=Callable[..., Any])


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What every decorator may be given."""

    kind: ClassVar[Kind]
    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: Sequence[str] = ()


def make_marks(kind: type[M], options: dict[str, Any]) -> M:
    """Return what a decorator was given.

    Raises:
        TypeError: It has no such option; the sentence names the one that was probably meant.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            raise TypeError(f"'@{kind.kind}' has no option '{name}'.{did_you_mean(name, kind.__struct_fields__)}")
    return kind(**options)


def mark(function: Function, marks: Marks) -> Function:
    """Keep marks beside a function, which is returned."""
    setattr(function, _key(type(marks)), marks)
    return function


def marks_of(kind: type[M], function: object) -> M | None:
    """Return the marks of a kind that a function has, if it has any."""
    found = getattr(function, _key(kind), None)
    return found if isinstance(found, kind) else None


def methods_with(kind: type[M], item: object) -> Iterator[tuple[Callable[..., Any], M]]:
    """Return the methods of an object that have marks of a kind, above or below `@staticmethod` and the like.

    Raises:
        PublishError: There are none.
    """
    found = False
    for name, member in inspect.getmembers_static(type(item)):
        marks = marks_of(kind, member) or marks_of(kind, getattr(cast("object", member), "__func__", None))
        if marks is not None:
            found = True
            yield getattr(item, name), marks
    if not found:
        raise PublishError(f"An object of type '{type(item).__name__}' is no function and has no method marked with '@{kind.kind}'.")


def _key(kind: type[Marks]) -> str:
    return f"__toolyard_{kind.kind}__"


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


class ReadFunction(NamedTuple):
    """What a function and its marks say; `what` begins the sentences about it."""

    name: str
    what: str
    documented: Documented
    signature: Signature


def read_function(function: Callable[..., Any], marks: Marks) -> ReadFunction:
    """Return what a function and its marks say.

    Raises:
        PublishError: It cannot be published; the sentence says why.
    """
    inner = inner_of(function)
    name = marks.name or getattr(inner, "__name__", type(inner).__name__)
    if name == "<lambda>":
        raise PublishError(f"A {marks.kind} made of a lambda needs a name.")
    what = f"{marks.kind.capitalize()} '{name}'"
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise PublishError(f"{what} is a generator, which cannot be answered with: return a list.")
    documented = read_docstring(getattr(inner, "__doc__", None))
    return ReadFunction(name, what, documented, read_signature(function, what))


def inner_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a partial one stands for."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function


def sentence(name: str) -> str:
    """Return what a name says, where nothing else does."""
    words = name.replace("_", " ").strip()
    return f"{words[:1].upper()}{words[1:]}."


def handler_of(function: Callable[..., Any], signature: Signature, *, drops_session: bool = False) -> Handler:
    """Return the function as a handler: async ones are awaited, the others run in a thread."""
    bind = _binder(function, signature, drops_session=drops_session)

    async def awaited(call: Call) -> object:
        return await bind(call)()

    async def threaded(call: Call) -> object:
        result = await call.funnel.in_thread(call, bind(call))
        return await result if inspect.isawaitable(result) else result

    if not _is_async(function):
        return threaded
    simple = signature.call_parameter is None and signature.session_parameter is None and not drops_session
    if not simple or signature.positional:
        return awaited

    return lambda call: function(**call.arguments)


def _binder(function: Callable[..., Any], signature: Signature, *, drops_session: bool) -> Callable[[Call], Callable[[], Any]]:
    def bind(call: Call) -> Callable[[], Any]:
        arguments = dict(call.arguments)
        if drops_session:
            arguments.pop("session_id", None)
        if signature.call_parameter is not None:
            arguments[signature.call_parameter] = call
        if signature.session_parameter is not None:
            arguments[signature.session_parameter] = call.session
        return partial(function, *[arguments.pop(name) for name in signature.positional], **arguments)

    return bind


def _is_async(function: Callable[..., Any]) -> bool:
    target = inner_of(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004 - an object whose call is async
