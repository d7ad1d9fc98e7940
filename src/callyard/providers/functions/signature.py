"""What a function declares: its decorator's options, its docstring, its signature, and the handler that calls it."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeVar, cast, get_args, get_origin

import msgspec

from callyard.dispatch.call import Call, Handler
from callyard.dispatch.run import run_of
from callyard.dispatch.sessions import Session
from callyard.model.envelope import encode
from callyard.model.names import closest_name
from callyard.model.spec import Kind, PublishError

__all__ = [
    "REQUIRED",
    "ArgumentSchema",
    "Default",
    "Docstring",
    "Factory",
    "Fills",
    "FunctionDescription",
    "InputForm",
    "Options",
    "Parameter",
    "Signature",
    "as_tuple",
    "attach_options",
    "decorated_methods",
    "describe_function",
    "handler_of",
    "make_options",
    "options_of",
    "read_docstring",
    "read_signature",
    "sentence_from_name",
    "to_json",
    "unwrap_partial",
]


_PARAMETERS: Final = frozenset({"Args:", "Arguments:", "Parameters:"})
_SECTIONS: Final = _PARAMETERS | {"Returns:", "Yields:", "Raises:", "Attributes:", "Example:", "Examples:"}
_ENTRY: Final = r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)\Z"
_FIELD: Final = r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)\Z"


class Docstring(msgspec.Struct, frozen=True):
    """The description and the descriptions of the parameters in a docstring."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    """Return the parsed docstring; its description has no sections."""
    if not text:
        return Docstring("", {})
    lines = inspect.cleandoc(text).splitlines()
    start = next(
        (number for number, line in enumerate(lines) if line.rstrip() in _SECTIONS or line.startswith(":")), len(lines)
    )
    return Docstring("\n".join(lines[:start]).strip(), _parameters(lines[start:]))


def _parameters(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    inside = False
    name = ""
    margin = 0
    for line in lines:
        field = re.match(_FIELD, line)
        indent = len(line) - len(line.lstrip())
        if line.rstrip() in _SECTIONS:
            inside, name, margin = line.rstrip() in _PARAMETERS, "", 0
        elif field:
            name, found[field[1]] = field[1], field[2].strip()
        elif not line.strip() or line.startswith(":"):
            name = "" if line.strip() else name
        elif inside and (not name or indent <= margin) and (entry := re.match(_ENTRY, line.strip())):
            name, margin = entry[1], indent
            found[name] = entry[2].strip()
        elif name and indent > margin:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


M = TypeVar("M", bound="Options")
Function = TypeVar("Function", bound=Callable[..., Any])


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every decorator."""

    kind: ClassVar[Kind]
    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: Sequence[str] = ()


def make_options(kind: type[M], options: dict[str, Any]) -> M:
    """Return the options of a decorator.

    Raises:
        TypeError: It has no such option; the message suggests a similar one.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            meant = closest_name(name, kind.__struct_fields__)
            raise TypeError(f"'@{kind.kind}' has no option '{name}'." + (f" Did you mean '{meant}'?" if meant else ""))
    return kind(**options)


def attach_options(function: Function, options: Options) -> Function:
    """Store the options on the function and return it."""
    setattr(function, _key(type(options)), options)
    return function


def options_of(kind: type[M], function: object) -> M | None:
    """Return the options of one kind that are stored on a function, or on the function inside a partial, if any."""
    for holder in (function, unwrap_partial(function)):
        options = getattr(holder, _key(kind), None)
        if isinstance(options, kind):
            return options
    return None


def decorated_methods(kind: type[M], item: object) -> Iterator[tuple[Callable[..., Any], M]]:
    """Yield the methods of an object that have options of one kind, also together with `@staticmethod` and the like.

    Raises:
        PublishError: There are none.
    """
    found = False
    for name, member in inspect.getmembers_static(type(item)):
        options = options_of(kind, member) or options_of(kind, getattr(cast("object", member), "__func__", None))
        if options is not None:
            found = True
            yield getattr(item, name), options
    if not found:
        raise PublishError(
            f"An object of type '{type(item).__name__}' is not a function and has no method with '@{kind.kind}'."
        )


def _key(kind: type[Options]) -> str:
    return f"__callyard_{kind.kind}__"


REQUIRED: Final = inspect.Parameter.empty
_VARIADIC: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class Parameter(msgspec.Struct, frozen=True):
    """One argument of a function; without a default its default is `REQUIRED`."""

    name: str
    annotation: Any
    default: Any


class Factory(msgspec.Struct, frozen=True):
    """A default that is made for each call, and so is not in the schema."""

    make: Callable[[], Any]


def to_json(value: object) -> Any:
    """Return a value as JSON.

    Raises:
        TypeError: It cannot become JSON.
    """
    return msgspec.json.decode(encode(value))


Default = Literal["static", "generated"]
"""Where a default comes from: the same for each call, or made by a factory."""
Fills = AbstractSet[Default]
InputForm = Callable[[Any, object, Fills], Any]
"""Returns JSON that was checked under its published names, with the defaults inside it filled in."""


class ArgumentSchema(msgspec.Struct, frozen=True):
    """Schema of a function's parameters, a factory of their validator, their defaults and names."""

    schema: dict[str, Any]
    make_validate: Callable[..., Callable[..., dict[str, Any]]]
    """Takes `fail_fast`: whether the validator stops at the first wrong item of each list."""
    defaults: dict[str, Any]
    keys: dict[str, str]
    """The published names by parameter."""
    accepted: Mapping[str, tuple[str, ...]] = {}
    """All names by parameter, where there are several."""
    form: InputForm | None = None
    to_input: Callable[[object], Any] = to_json
    """Turns a value of the function into the JSON that is checked to such a value."""
    is_simple: bool = False
    """Whether the schema expresses everything that the validator checks."""


class Signature(msgspec.Struct, frozen=True):
    """Parameters and return annotation of a function."""

    parameters: tuple[Parameter, ...]
    positional: tuple[str, ...]
    """Positional-only parameters in order, including those that the yard fills in."""
    returns: Any
    call_parameter: str | None
    session_parameter: str | None
    session: Literal["none", "optional", "required"]


def read_signature(function: Callable[..., Any], what: str) -> Signature:
    """Return the parameters and the return annotation of a function.

    Raises:
        PublishError: The signature or an annotation cannot be resolved.
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
        if parameter.kind in _VARIADIC:
            raise PublishError(
                f"{what} has the parameter '{_VARIADIC[parameter.kind]}{name}', which cannot become a schema."
            )
        if _is(annotation, Call):
            filled["call"] = name
        elif _is(annotation, Session):
            filled["session"], session = name, "required" if annotation is Session else "optional"
        else:
            parameters.append(Parameter(name, annotation, parameter.default))
    return Signature(
        parameters=tuple(parameters),
        positional=tuple(
            name for name, item in signature.parameters.items() if item.kind is inspect.Parameter.POSITIONAL_ONLY
        ),
        returns=hints.get("return", REQUIRED),
        call_parameter=filled.get("call"),
        session_parameter=filled.get("session"),
        session=session,
    )


def _is(annotation: object, expected: type) -> bool:
    """Return whether an annotation is a type, or that type or None."""
    if get_origin(annotation) in {typing.Union, types.UnionType}:
        return set(get_args(annotation)) == {expected, type(None)}
    return annotation is expected


def _hints(function: Callable[..., Any], what: str, signature: inspect.Signature) -> dict[str, Any]:
    annotations: dict[str, Any] = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    annotations["return"] = signature.return_annotation
    scope = _scope(function)
    return {
        name: _resolve(annotation, scope, what, name)
        for name, annotation in annotations.items()
        if annotation is not REQUIRED
    }


def _scope(function: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the globals and the closure variables of a function, for its annotations."""
    function = unwrap_partial(function)
    target = inspect.unwrap(getattr(function, "__func__", function))
    if not hasattr(target, "__code__"):
        target = inspect.unwrap(type(target).__call__)
    if not hasattr(target, "__code__"):
        return {}, {}
    values: dict[str, Any] = {}
    for name, cell in zip(target.__code__.co_freevars, target.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has no value yet
            values[name] = cell.cell_contents
    return target.__globals__, values


def _resolve(annotation: Any, scope: tuple[dict[str, Any], dict[str, Any]], what: str, name: str) -> Any:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    try:
        return typing.get_type_hints(holder, *scope, include_extras=True)[name]
    except Exception as error:
        where = "return annotation" if name == "return" else f"parameter '{name}'"
        raise PublishError(f"{what} has a {where} whose annotation '{annotation}' cannot be understood.") from error


class FunctionDescription(msgspec.Struct, frozen=True):
    """What a function and its options declare; `what` is the subject of messages about it."""

    name: str
    what: str
    documented: Docstring
    signature: Signature


def describe_function(function: Callable[..., Any], options: Options) -> FunctionDescription:
    """Return what a function and its options declare.

    Raises:
        PublishError: The function cannot be published.
    """
    inner = unwrap_partial(function)
    name = options.name or getattr(inner, "__name__", type(inner).__name__)
    if name == "<lambda>":
        raise PublishError(f"A {options.kind} made of a lambda needs a name.")
    what = f"{options.kind.capitalize()} '{name}'"
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise PublishError(f"{what} is a generator, whose result cannot be sent: return a list.")
    documented = read_docstring(getattr(inner, "__doc__", None))
    return FunctionDescription(name, what, documented, read_signature(function, what))


def unwrap_partial(function: Any) -> Any:
    """Return the function inside a partial, or the function itself."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function


def as_tuple(names: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single text is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def sentence_from_name(name: str) -> str:
    """Return a name as a sentence, for a function without a description."""
    words = name.replace("_", " ").strip()
    return f"{words[:1].upper()}{words[1:]}."


def handler_of(function: Callable[..., Any], signature: Signature, *, drops_session: bool = False) -> Handler:
    """Return the function as a handler: an async function is awaited, another runs in a thread."""

    def bind(call: Call) -> Callable[[], Any]:
        arguments = dict(call.arguments)
        if drops_session:
            arguments.pop("session_id", None)
        if signature.call_parameter is not None:
            arguments[signature.call_parameter] = call
        if signature.session_parameter is not None:
            arguments[signature.session_parameter] = call.session
        return partial(function, *[arguments.pop(name) for name in signature.positional], **arguments)

    async def awaited(call: Call) -> object:
        return await bind(call)()

    async def threaded(call: Call) -> object:
        result = await run_of(call).funnel.threads.run(call, bind(call))
        return await result if inspect.isawaitable(result) else result

    if not _is_async(function):
        return threaded
    if signature.call_parameter or signature.session_parameter or signature.positional or drops_session:
        return awaited
    return lambda call: function(**call.arguments)  # nothing to fill in: saves a coroutine and a copy of the arguments


def _is_async(function: Callable[..., Any]) -> bool:
    target = unwrap_partial(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004 - an object whose call is async
