"""The provider of functions: each becomes a tool, a resource or a prompt, and an object's decorated methods do, too."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, TypeVar, cast

from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.tool import Tool
from toolyard.model.spec import EvalRule, Example, Operation, PublishError, Reason, ToolSpec, with_codes
from toolyard.providers import Publish
from toolyard.providers.functions.decorators import Declared, DeclaredPrompt, DeclaredResource, declared, prompt_from, resource_from
from toolyard.providers.functions.schema import Promised, Taken, arguments_of, output_of
from toolyard.providers.functions.signature import Marks, Signature, handler_of, inner_of, marks_of, methods_with, read_function, sentence

__all__ = ["Functions", "tool_from"]

P = TypeVar("P", Tool, Resource, Prompt)

_SESSIONS: Final = ("none", "optional", "required")


class Functions:
    """Publishes plain Python functions, and the decorated methods of objects, as tools, resources and prompts."""

    def __init__(self, name: str, functions: object = (), *, resources: object = (), prompts: object = ()) -> None:
        self.name = name
        self._functions = _several(functions)
        self._resources = _several(resources)
        self._prompts = _several(prompts)

    def __len__(self) -> int:
        return len(self._functions) + len(self._resources) + len(self._prompts)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the functions."""
        publish(self.tools(), resources=self.resources(), prompts=self.prompts())
        yield

    def tools(self) -> list[Tool]:
        """Return the functions as tools.

        Raises:
            PublishError: One of them cannot become a tool.
        """
        return [tool for item in self._functions for tool in _made(item, self.name, Declared, Tool, tool_from)]

    def resources(self) -> list[Resource]:
        """Return the functions that are read as resources.

        Raises:
            PublishError: One of them cannot become a resource.
        """
        return [one for item in self._resources for one in _made(item, self.name, DeclaredResource, Resource, resource_from)]

    def prompts(self) -> list[Prompt]:
        """Return the functions that make prompts as prompts.

        Raises:
            PublishError: One of them cannot become a prompt.
        """
        return [one for item in self._prompts for one in _made(item, self.name, DeclaredPrompt, Prompt, prompt_from)]


def tool_from(function: Callable[..., Any], *, source: str, marks: Declared | None = None) -> Tool:
    """Return a function as a tool; marks found elsewhere stand for those of `@tool`.

    Raises:
        PublishError: It cannot become one; the sentence says why.
    """
    marks = marks or declared(function) or declared(inner_of(function)) or Declared()
    name, what, documented, signature = read_function(function, marks)
    session = marks.session or signature.session
    if session not in _SESSIONS:
        raise PublishError(f"{what} is marked with the session '{session}', which is none of {', '.join(_SESSIONS)}.")
    if _SESSIONS.index(session) < _SESSIONS.index(signature.session):
        raise PublishError(f"{what} takes a session that is {signature.session}, and is marked as '{session}'.")
    taken = arguments_of(what, signature.parameters, documented.parameters, session=session != "none")
    promised = output_of(what, signature.returns)
    spec = _spec(name, marks, documented.description, session, taken=taken, promised=promised, source=source)
    handler = handler_of(function, signature, drops_session=session != "none" and not _takes_session_id(signature))
    return Tool(
        spec=with_codes(spec),
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
        description=marks.description or description or sentence(name),
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
        confirmation=marks.confirmation,
        timeout_hint=marks.timeout_hint,
        serial=marks.serial,
        priority=marks.priority,
        idempotent=marks.idempotent,
        aliases=_tuple(marks.aliases),
        deprecated=marks.deprecated,
        shape=marks.shape,
        annotations=marks.annotations,
    )


def _several(given: object) -> tuple[object, ...]:
    return tuple(cast("Iterable[object]", given)) if isinstance(given, Iterable) else (given,)


def _made(item: object, source: str, kind: type[Marks], ready: type[P], make: Callable[..., P]) -> Iterator[P]:
    """Return what an item is published as: itself if it is ready, a function as one thing, an object as its marked methods."""
    if isinstance(item, ready):
        yield item
    elif inspect.isroutine(item) or isinstance(item, partial) or marks_of(kind, item) is not None:
        _check_place(cast("object", item), kind)
        yield make(cast("Callable[..., Any]", item), source=source)
    else:
        for method, marks in methods_with(kind, item):
            yield make(method, source=source, marks=marks)


def _check_place(item: object, kind: type[Marks]) -> None:
    """Check that a function was not given as one kind and marked as another."""
    for other in (Declared, DeclaredResource, DeclaredPrompt):
        if marks_of(kind, item) is None and marks_of(other, item) is not None:
            name = getattr(item, "__name__", type(item).__name__)
            raise PublishError(f"The function '{name}' is marked with '@{other.kind}' and was given as a {kind.kind}.")


def _reasons(marks: Declared) -> dict[str, Reason]:
    if isinstance(marks.reasons, Sequence):
        return {name: Reason() for name in _tuple(marks.reasons)}
    return {name: given if isinstance(given, Reason) else Reason(details=tuple(given)) for name, given in marks.reasons.items()}


def _tuple(given: Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; one name alone is not taken letter by letter."""
    return (given,) if isinstance(given, str) else tuple(given)


def _takes_session_id(signature: Signature) -> bool:
    return any(parameter.name == "session_id" for parameter in signature.parameters)
