"""The provider of functions: each becomes a tool, and an object's decorated methods do, too."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, cast

import msgspec

from toolyard.call import Call, Handler
from toolyard.providers import Publish
from toolyard.providers.functions.arguments import Taken, arguments_of
from toolyard.providers.functions.decorator import Declared, declared
from toolyard.providers.functions.docstring import read_docstring
from toolyard.providers.functions.output import Promised, output_of
from toolyard.providers.functions.signature import Signature, read_signature
from toolyard.spec import EvalRule, Example, Operation, PublishError, Reason, ToolSpec
from toolyard.tools import Tool

__all__ = ["Functions", "tool_from"]

_SESSIONS: Final = ("none", "optional", "required")


class Functions:
    """Publishes plain Python functions, and the decorated methods of objects, as tools."""

    def __init__(self, name: str, functions: Iterable[object]) -> None:
        self.name = name
        self._functions = tuple(functions)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the functions."""
        publish(self.tools())
        yield

    def tools(self) -> list[Tool]:
        """Return the functions as tools.

        Raises:
            PublishError: One of them cannot become a tool.
        """
        return [tool for item in self._functions for tool in _tools_of(item, self.name)]


def tool_from(function: Callable[..., Any], *, source: str, marks: Declared | None = None) -> Tool:
    """Return a function as a tool; marks found elsewhere stand for those of `@tool`.

    Raises:
        PublishError: It cannot become one; the sentence says why.
    """
    inner = _inner(function)
    marks = marks or declared(function) or declared(inner) or Declared()
    name = marks.name or getattr(inner, "__name__", type(inner).__name__)
    if name == "<lambda>":
        raise PublishError("A tool made of a lambda needs a name.")
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise PublishError(f"Tool '{name}' is a generator, which cannot be answered with: return a list.")
    documented = read_docstring(getattr(inner, "__doc__", None))
    signature = read_signature(function, name)
    session = marks.session or signature.session
    if session not in _SESSIONS:
        raise PublishError(f"Tool '{name}' is marked with the session '{session}', which is none of {', '.join(_SESSIONS)}.")
    if _SESSIONS.index(session) < _SESSIONS.index(signature.session):
        raise PublishError(f"Tool '{name}' takes a session that is {signature.session}, and is marked as '{session}'.")
    taken = arguments_of(name, signature.parameters, documented.parameters, session=session != "none")
    promised = output_of(name, signature.returns)
    spec = _spec(name, marks, documented.description, session, taken=taken, promised=promised, source=source)
    handler = _handler(function, signature, drops_session=session != "none" and not _takes_session_id(signature))
    return Tool(
        spec=_with_codes(spec),
        handler=handler,
        check=taken.check,
        fits_output=None if marks.shape == "plain" else promised.fits,
        may_return_none=promised.may_be_none,
    )


def _spec(
    name: str,
    marks: Declared,
    description: str,
    session: Literal["none", "optional", "required"],
    *,
    taken: Taken,
    promised: Promised,
    source: str,
) -> ToolSpec:
    return ToolSpec(
        name=name,
        title=marks.title,
        description=marks.description or description or _sentence(name),
        input_schema=taken.schema,
        output_schema=None if marks.shape == "plain" else promised.schema,
        operation=cast("Operation", marks.operation or Operation.COMMAND),
        operation_assumed=marks.operation is None,
        eval=marks.eval or (EvalRule("code") if marks.operation == Operation.EVAL else None),
        requires_eval=marks.operation == Operation.EVAL if marks.requires_eval is None else marks.requires_eval,
        session=session,
        source=source,
        tags=_tuple(marks.tags),
        examples=tuple(example if isinstance(example, Example) else Example(example) for example in marks.examples),
        reasons=_reasons(marks),
        timeout=marks.timeout,
        question=marks.question,
        timeout_hint=marks.timeout_hint,
        serial=marks.serial,
        priority=marks.priority,
        idempotent=marks.idempotent,
        aliases=_tuple(marks.aliases),
        deprecated=marks.deprecated,
        shape=marks.shape,
        annotations=marks.annotations,
    )


def _tools_of(item: object, source: str) -> Iterator[Tool]:
    if isinstance(item, Tool):
        yield item
    elif inspect.isroutine(item) or isinstance(item, partial) or declared(item) is not None:
        yield tool_from(cast("Callable[..., Any]", item), source=source)
    else:
        methods = list(_decorated_methods(item))
        if not methods:
            raise PublishError(f"An object of type '{type(item).__name__}' is no function and has no method marked with '@tool'.")
        for method, marks in methods:
            yield tool_from(method, source=source, marks=marks)


def _decorated_methods(item: object) -> Iterator[tuple[Callable[..., Any], Declared]]:
    """Return the methods that `@tool` marked, above or below `@staticmethod` and the like."""
    for name, member in inspect.getmembers_static(type(item)):
        marks = declared(member) or declared(getattr(cast("object", member), "__func__", None))
        if marks is not None:
            yield getattr(item, name), marks


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function


def _reasons(marks: Declared) -> dict[str, Reason]:
    if isinstance(marks.reasons, Sequence):
        return {name: Reason() for name in _tuple(marks.reasons)}
    return {name: given if isinstance(given, Reason) else Reason(details=tuple(given)) for name, given in marks.reasons.items()}


def _tuple(given: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; one name alone is not taken letter by letter."""
    return (given,) if isinstance(given, str) else tuple(given)


def _with_codes(spec: ToolSpec) -> ToolSpec:
    """Return the spec with its description ended by the codes that an agent would not expect."""
    codes = spec.codes()
    if not codes:
        return spec
    return msgspec.structs.replace(spec, description=f"{spec.description}\n\nMay answer with: {', '.join(codes)}.")


def _sentence(name: str) -> str:
    words = name.replace("_", " ").strip()
    return f"{words[:1].upper()}{words[1:]}."


def _takes_session_id(signature: Signature) -> bool:
    return any(parameter.name == "session_id" for parameter in signature.parameters)


def _handler(function: Callable[..., Any], signature: Signature, *, drops_session: bool) -> Handler:
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
    target = _inner(function)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004 - an object whose call is async
