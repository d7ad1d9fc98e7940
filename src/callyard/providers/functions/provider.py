"""The provider of Python functions: the decorators `@tool`, `@resource` and `@prompt`, and what they publish."""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeVar, cast, overload

from callyard.dispatch.call import Handler
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.tool import Complete, Tool
from callyard.model.apps import APP_MIME_TYPE, APP_SCHEME, app_meta
from callyard.model.elicitation import Confirmation
from callyard.model.spec import (
    Annotations,
    EvalRule,
    Example,
    Kind,
    Operation,
    PromptArgument,
    PromptSpec,
    PublishError,
    Reason,
    ResourceSpec,
    ToolSpec,
    with_codes,
)
from callyard.model.uri_template import variables_of
from callyard.providers import Publish
from callyard.providers.functions.schema import Input, input_of, output_of
from callyard.providers.functions.signature import (
    Options,
    as_tuple,
    attach_options,
    decorated_methods,
    describe_function,
    handler_of,
    make_options,
    options_of,
    sentence_from_name,
)

__all__ = [
    "Functions",
    "PromptOptions",
    "ResourceOptions",
    "ToolOptions",
    "prompt",
    "prompt_from",
    "resource",
    "resource_from",
    "tool",
    "tool_from",
]

Function = TypeVar("Function", bound=Callable[..., Any])
P = TypeVar("P", Tool, Resource, Prompt)

_SESSIONS: Final = ("none", "optional", "required")


class ToolOptions(Options, frozen=True, kw_only=True):
    """Options of `@tool`."""

    kind: ClassVar[Kind] = "tool"
    operation: str | None = None
    eval: EvalRule | None = None
    session: Literal["none", "optional", "required"] | None = None
    examples: Sequence[Example | dict[str, Any]] = ()
    reasons: Sequence[str] | Mapping[str, Reason | Sequence[str]] = ()
    confirmation: Confirmation | None = None
    timeout: float | None = None
    timeout_hint: str | None = None
    serial: bool = False
    priority: Literal["interactive", "background"] = "interactive"
    idempotent: bool = False
    job: Literal["optional", "always", "required"] | None = None
    local: bool = False
    requires_eval: bool | None = None
    eval_target: str = ""
    aliases: Sequence[str] = ()
    deprecated: str | None = None
    shape: Literal["envelope", "plain"] = "envelope"
    annotations: Annotations | None = None
    ui: str = ""


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    operation: Literal["query", "command", "destroy", "eval"] | None = None,
    eval: EvalRule | None = None,
    session: Literal["none", "optional", "required"] | None = None,
    tags: Sequence[str] = (),
    examples: Sequence[Example | dict[str, Any]] = (),
    reasons: Sequence[str] | Mapping[str, Reason | Sequence[str]] = (),
    confirmation: Confirmation | None = None,
    timeout: float | None = None,
    timeout_hint: str | None = None,
    serial: bool = False,
    priority: Literal["interactive", "background"] = "interactive",
    idempotent: bool = False,
    job: Literal["optional", "always", "required"] | None = None,
    local: bool = False,
    requires_eval: bool | None = None,
    eval_target: str = "",
    aliases: Sequence[str] = (),
    deprecated: str | None = None,
    shape: Literal["envelope", "plain"] = "envelope",
    annotations: Annotations | None = None,
    ui: str = "",
) -> Callable[[Function], Function]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Declare what a function's signature cannot: its operation, session, timeout, reasons and so on."""
    return _decorate(function, make_options(ToolOptions, options))


def _decorate(function: Any, options: Options) -> Any:
    return partial(attach_options, options=options) if function is None else attach_options(function, options)


class PromptOptions(Options, frozen=True, kw_only=True):
    """Options of `@prompt`."""

    kind: ClassVar[Kind] = "prompt"
    complete: Mapping[str, Complete] | None = None


@overload
def prompt(function: Function, /) -> Function: ...


@overload
def prompt(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    tags: Sequence[str] = (),
    complete: Mapping[str, Complete] | None = None,
) -> Callable[[Function], Function]: ...


def prompt(function: Any = None, /, **options: Any) -> Any:
    """Declare a function as a prompt."""
    return _decorate(function, make_options(PromptOptions, options))


def prompt_from(function: Callable[..., Any], *, source: str, options: PromptOptions | None = None) -> Prompt:
    """Return a function as a prompt; `options` replace those of `@prompt`.

    Raises:
        PublishError: The function cannot become a prompt.
    """
    options = options or options_of(PromptOptions, function) or PromptOptions()
    name, description, handler, inputs = _describe(function, options)
    required = inputs.schema.get("required", ())
    spec = PromptSpec(
        name=name,
        title=options.title,
        description=description,
        arguments=tuple(
            PromptArgument(key, inner.get("description", ""), key in required)
            for key, inner in inputs.schema["properties"].items()
        ),
        source=source,
        tags=as_tuple(options.tags),
    )
    return Prompt.of(spec, handler, schema=inputs.schema, check=inputs.check, complete=options.complete)


def _describe(function: Callable[..., Any], options: Options) -> tuple[str, str, Handler, Input]:
    """Return the name, the description, the handler and the input of a resource or prompt, which has no session."""
    described = describe_function(function, options)
    signature, docstring = described.signature, described.documented
    if signature.session != "none":
        raise PublishError(f"{described.what} takes a session, which only a tool has.")
    inputs = input_of(described.what, signature.parameters, docstring.parameters, session=False)
    description = options.description or docstring.description or sentence_from_name(described.name)
    return described.name, description, handler_of(function, signature), inputs


class ResourceOptions(Options, frozen=True, kw_only=True):
    """Options of `@resource`."""

    kind: ClassVar[Kind] = "resource"
    uri: str
    mime_type: str | None = None
    complete: Mapping[str, Complete] = {}
    meta: Mapping[str, Any] = {}


def resource(
    uri: str,
    *,
    name: str | None = None,
    title: str | None = None,
    mime_type: str | None = None,
    description: str | None = None,
    tags: Sequence[str] = (),
    complete: Mapping[str, Complete] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as a resource, or as a template if its URI has variables, which are its parameters.

    `meta` is `_meta` in its list and its contents, such as the content security policy of an App.
    """
    if not isinstance(cast("object", uri), str):
        raise TypeError("'@resource' needs the URI that the function is read under.")
    options = ResourceOptions(
        uri=uri,
        name=name,
        title=title,
        mime_type=mime_type,
        description=description,
        tags=tags,
        complete=complete or {},
        meta=meta or {},
    )
    return lambda function: attach_options(function, options)


def resource_from(function: Callable[..., Any], *, source: str, options: ResourceOptions | None = None) -> Resource:
    """Return a function with `@resource` as a resource; `options` replace those of the decorator.

    Raises:
        PublishError: The function cannot become a resource.
    """
    options = options or options_of(ResourceOptions, function)
    if options is None:
        named = getattr(function, "__name__", function)
        raise PublishError(f"The function '{named}' has no URI: decorate it with '@resource'.")
    name, description, handler, inputs = _describe(function, options)
    variables = variables_of(options.uri)
    for variable in variables:
        if variable not in inputs.schema["properties"]:
            raise PublishError(f"Resource '{name}' has no parameter for the variable '{variable}' of its URI.")
    for parameter in inputs.schema.get("required", ()):
        if parameter not in variables:
            lack = f"Resource '{name}' has the parameter '{parameter}', which its URI lacks"
            raise PublishError(f"{lack}: write it as '{{{parameter}}}'.")
    spec = ResourceSpec(
        uri=options.uri,
        name=name,
        title=options.title,
        description=description,
        mime_type=options.mime_type or (APP_MIME_TYPE if options.uri.startswith(APP_SCHEME) else None),
        source=source,
        tags=as_tuple(options.tags),
        extra={"_meta": dict(options.meta)} if options.meta else {},
    )
    return Resource.of(spec, handler, schema=inputs.schema, check=inputs.check, complete=options.complete)


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
        return list(_make(self._functions, self.name, ToolOptions, Tool, tool_from))

    def resources(self) -> list[Resource]:
        """Return the functions as resources.

        Raises:
            PublishError: One of them cannot become a resource.
        """
        return list(_make(self._resources, self.name, ResourceOptions, Resource, resource_from))

    def prompts(self) -> list[Prompt]:
        """Return the functions as prompts.

        Raises:
            PublishError: One of them cannot become a prompt.
        """
        return list(_make(self._prompts, self.name, PromptOptions, Prompt, prompt_from))


def tool_from(function: Callable[..., Any], *, source: str, options: ToolOptions | None = None) -> Tool:
    """Return a function as a tool; `options` replace those of `@tool`.

    Raises:
        PublishError: The function cannot become a tool.
    """
    options = options or options_of(ToolOptions, function) or ToolOptions()
    described = describe_function(function, options)
    if options.ui and not options.ui.startswith(APP_SCHEME):
        raise PublishError(f"{described.what} names the page '{options.ui}', which is not at '{APP_SCHEME}'.")
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
        binder=inputs.bind,
        fits_output=None if options.shape == "plain" else output.fits,
        may_return_none=output.may_be_none,
    )


def _spec(options: ToolOptions, **fields: Any) -> ToolSpec:
    return ToolSpec(
        **fields,
        title=options.title,
        operation=cast("Operation", options.operation or Operation.COMMAND),
        operation_assumed=options.operation is None,
        eval=options.eval or (EvalRule("code") if options.operation == Operation.EVAL else None),
        requires_eval=options.operation == Operation.EVAL if options.requires_eval is None else options.requires_eval,
        eval_target=options.eval_target,
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
        local=options.local,
        aliases=as_tuple(options.aliases),
        deprecated=options.deprecated,
        shape=options.shape,
        annotations=options.annotations,
        extra={"_meta": app_meta(options.ui)} if options.ui else {},
    )


def _to_tuple(items: object) -> tuple[object, ...]:
    return tuple(cast("Iterable[object]", items)) if isinstance(items, Iterable) else (items,)


def _make(
    items: Iterable[object], source: str, kind: type[Options], ready: type[P], make: Callable[..., P]
) -> Iterator[P]:
    """Yield what items are published as: themselves if they are ready, functions, or objects' decorated methods."""
    for item in items:
        if isinstance(item, ready):
            yield item
        elif inspect.isroutine(item) or isinstance(item, partial) or options_of(kind, item) is not None:
            _check_kind(cast("object", item), kind)
            yield make(cast("Callable[..., Any]", item), source=source)
        else:
            for method, options in decorated_methods(kind, item):
                yield make(method, source=source, options=options)


def _check_kind(item: object, kind: type[Options]) -> None:
    for other in (ToolOptions, ResourceOptions, PromptOptions):
        if options_of(kind, item) is None and options_of(other, item) is not None:
            name = getattr(item, "__name__", type(item).__name__)
            raise PublishError(f"The function '{name}' is decorated with '@{other.kind}' and passed as a {kind.kind}.")


def _reasons(options: ToolOptions) -> dict[str, Reason]:
    if isinstance(options.reasons, Sequence):
        return {name: Reason() for name in as_tuple(options.reasons)}
    return {
        name: reason if isinstance(reason, Reason) else Reason(details=tuple(reason))
        for name, reason in options.reasons.items()
    }
