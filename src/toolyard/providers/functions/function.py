"""A function as something that can be published: its name, its words, its signature and its handler."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from toolyard.call import Call, Handler
from toolyard.providers.functions.docstring import Documented, read_docstring
from toolyard.providers.functions.marks import Marks
from toolyard.providers.functions.signature import Signature, read_signature
from toolyard.spec import PublishError

__all__ = ["ReadFunction", "handler_of", "inner_of", "read_function", "sentence"]


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
