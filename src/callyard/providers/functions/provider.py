"""The provider of Python functions, and functions as tools."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar, cast

from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.tool import Tool
from callyard.model.spec import EvalRule, Example, Operation, PublishError, Reason, ToolSpec, with_codes
from callyard.providers import Publish
from callyard.providers.functions.decorators import PromptOptions, ResourceOptions, ToolOptions, prompt_from, resource_from
from callyard.providers.functions.schema import input_of, output_of
from callyard.providers.functions.signature import (
    Options,
    as_tuple,
    decorated_methods,
    describe_function,
    find_options,
    handler_of,
    options_of,
    sentence_from_name,
)

__all__ = ["Functions", "tool_from"]

P = TypeVar("P", Tool, Resource, Prompt)

_SESSIONS: Final = ("none", "optional", "required")


class Functions:
    """Publishes Python functions, and the decorated methods of objects, as tools, resources and prompts."""

    def __init__(self, name: str, functions: object = (), *, resources: object = (), prompts: object = ()) -> None:
        self.name = name
        self._functions = _to_tuple(functions)
        self._resources = _to_tuple(resources)
        self._prompts = _to_tuple(prompts)

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
        return [tool for item in self._functions for tool in _make(item, self.name, ToolOptions, Tool, tool_from)]

    def resources(self) -> list[Resource]:
        """Return the functions as resources.

        Raises:
            PublishError: One of them cannot become a resource.
        """
        return [resource for item in self._resources for resource in _make(item, self.name, ResourceOptions, Resource, resource_from)]

    def prompts(self) -> list[Prompt]:
        """Return the functions as prompts.

        Raises:
            PublishError: One of them cannot become a prompt.
        """
        return [prompt for item in self._prompts for prompt in _make(item, self.name, PromptOptions, Prompt, prompt_from)]


def tool_from(function: Callable[..., Any], *, source: str, options: ToolOptions | None = None) -> Tool:
    """Return a function as a tool; `options` replace those of `@tool`.

    Raises:
        PublishError: The function cannot become a tool.
    """
    options = options or find_options(ToolOptions, function) or ToolOptions()
    described = describe_function(function, options)
    name, what, signature, docstring = described.name, described.what, described.signature, described.documented
    session = options.session or signature.session
    if session not in _SESSIONS:
        raise PublishError(f"{what} is declared with the session '{session}', which is none of {', '.join(_SESSIONS)}.")
    if _SESSIONS.index(session) < _SESSIONS.index(signature.session):
        raise PublishError(f"{what} takes a session that is {signature.session}, and is declared as '{session}'.")
    inputs = input_of(what, signature.parameters, docstring.parameters, session=session != "none")
    output = output_of(what, signature.returns)
    spec = _spec(
        options,
        name=name,
        description=options.description or docstring.description or sentence_from_name(name),
        input_schema=inputs.schema,
        output_schema=None if options.shape == "plain" else output.schema,
        session=session,
        source=source,
    )
    takes_session_id = any(parameter.name == "session_id" for parameter in signature.parameters)
    return Tool(
        spec=with_codes(spec),
        handler=handler_of(function, signature, drops_session=session != "none" and not takes_session_id),
        check=inputs.check,
        fits_output=None if options.shape == "plain" else output.fits,
        may_return_none=output.may_be_none,
    )


def _spec(options: ToolOptions, **fields: Any) -> ToolSpec:
    """Return a spec with these fields, and the others from the options."""
    return ToolSpec(
        **fields,
        title=options.title,
        operation=cast("Operation", options.operation or Operation.COMMAND),
        operation_assumed=options.operation is None,
        eval=options.eval or (EvalRule("code") if options.operation == Operation.EVAL else None),
        requires_eval=options.operation == Operation.EVAL if options.requires_eval is None else options.requires_eval,
        tags=as_tuple(options.tags),
        examples=tuple(example if isinstance(example, Example) else Example(example) for example in options.examples),
        reasons=_reasons(options),
        timeout=options.timeout,
        confirmation=options.confirmation,
        timeout_hint=options.timeout_hint,
        serial=options.serial,
        priority=options.priority,
        idempotent=options.idempotent,
        job=options.job,
        aliases=as_tuple(options.aliases),
        deprecated=options.deprecated,
        shape=options.shape,
        annotations=options.annotations,
    )


def _to_tuple(items: object) -> tuple[object, ...]:
    return tuple(cast("Iterable[object]", items)) if isinstance(items, Iterable) else (items,)


def _make(item: object, source: str, kind: type[Options], ready: type[P], make: Callable[..., P]) -> Iterator[P]:
    """Yield what an item is published as: itself if it is ready, a function as one thing, an object as its decorated methods."""
    if isinstance(item, ready):
        yield item
    elif inspect.isroutine(item) or isinstance(item, partial) or options_of(kind, item) is not None:
        _check_kind(cast("object", item), kind)
        yield make(cast("Callable[..., Any]", item), source=source)
    else:
        for method, options in decorated_methods(kind, item):
            yield make(method, source=source, options=options)


def _check_kind(item: object, kind: type[Options]) -> None:
    """Check that a function is not passed as one kind and decorated as another."""
    for other in (ToolOptions, ResourceOptions, PromptOptions):
        if options_of(kind, item) is None and options_of(other, item) is not None:
            name = getattr(item, "__name__", type(item).__name__)
            raise PublishError(f"The function '{name}' is decorated with '@{other.kind}' and passed as a {kind.kind}.")


def _reasons(options: ToolOptions) -> dict[str, Reason]:
    if isinstance(options.reasons, Sequence):
        return {name: Reason() for name in as_tuple(options.reasons)}
    return {name: reason if isinstance(reason, Reason) else Reason(details=tuple(reason)) for name, reason in options.reasons.items()}
