"""The decorators `@tool`, `@resource` and `@prompt`, and functions as resources and prompts."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, cast, overload

from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.tool import Complete
from callyard.model.elicitation import Confirmation
from callyard.model.spec import Annotations, EvalRule, Example, Kind, PromptArgument, PromptSpec, PublishError, Reason, ResourceSpec
from callyard.model.uri_template import variables_of
from callyard.providers.functions.schema import Input, input_of
from callyard.providers.functions.signature import (
    Options,
    Signature,
    as_tuple,
    attach_options,
    describe_function,
    find_options,
    handler_of,
    make_options,
    sentence_from_name,
)

__all__ = ["PromptOptions", "ResourceOptions", "ToolOptions", "prompt", "prompt_from", "resource", "resource_from", "tool"]


Function = TypeVar("Function", bound=Callable[..., Any])


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
    requires_eval: bool | None = None
    aliases: Sequence[str] = ()
    deprecated: str | None = None
    shape: Literal["envelope", "plain"] = "envelope"
    annotations: Annotations | None = None


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
    requires_eval: bool | None = None,
    aliases: Sequence[str] = (),
    deprecated: str | None = None,
    shape: Literal["envelope", "plain"] = "envelope",
    annotations: Annotations | None = None,
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
    options = options or find_options(PromptOptions, function) or PromptOptions()
    name, description, signature, inputs = _describe(function, options)
    required = inputs.schema.get("required", ())
    spec = PromptSpec(
        name=name,
        title=options.title,
        description=description,
        arguments=tuple(
            PromptArgument(key, inner.get("description", ""), key in required) for key, inner in inputs.schema["properties"].items()
        ),
        source=source,
        tags=as_tuple(options.tags),
    )
    return Prompt.of(spec, handler_of(function, signature), schema=inputs.schema, check=inputs.check, complete=options.complete)


def _describe(function: Callable[..., Any], options: Options) -> tuple[str, str, Signature, Input]:
    """Return the name, the description, the signature and the input of a resource or prompt, which has no session."""
    described = describe_function(function, options)
    signature, docstring = described.signature, described.documented
    if signature.session != "none":
        raise PublishError(f"{described.what} takes a session, which only a tool has.")
    inputs = input_of(described.what, signature.parameters, docstring.parameters, session=False)
    description = options.description or docstring.description or sentence_from_name(described.name)
    return described.name, description, signature, inputs


class ResourceOptions(Options, frozen=True, kw_only=True):
    """Options of `@resource`."""

    kind: ClassVar[Kind] = "resource"
    uri: str
    mime_type: str | None = None
    complete: Mapping[str, Complete] = {}


def resource(
    uri: str,
    *,
    name: str | None = None,
    title: str | None = None,
    mime_type: str | None = None,
    description: str | None = None,
    tags: Sequence[str] = (),
    complete: Mapping[str, Complete] | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as a resource, or as a template if its URI has variables, which are its parameters."""
    if not isinstance(cast("object", uri), str):
        raise TypeError("'@resource' needs the URI that the function is read under.")
    options = ResourceOptions(
        uri=uri, name=name, title=title, mime_type=mime_type, description=description, tags=tags, complete=complete or {}
    )
    return lambda function: attach_options(function, options)


def resource_from(function: Callable[..., Any], *, source: str, options: ResourceOptions | None = None) -> Resource:
    """Return a function with `@resource` as a resource; `options` replace those of the decorator.

    Raises:
        PublishError: The function cannot become a resource.
    """
    options = options or find_options(ResourceOptions, function)
    if options is None:
        raise PublishError(f"The function '{getattr(function, '__name__', function)}' has no URI: decorate it with '@resource'.")
    name, description, signature, inputs = _describe(function, options)
    variables = variables_of(options.uri)
    for variable in variables:
        if variable not in inputs.schema["properties"]:
            raise PublishError(f"Resource '{name}' has no parameter for the variable '{variable}' of its URI.")
    for parameter in inputs.schema.get("required", ()):
        if parameter not in variables:
            raise PublishError(f"Resource '{name}' has the parameter '{parameter}', which its URI lacks: write it as '{{{parameter}}}'.")
    spec = ResourceSpec(
        uri=options.uri,
        name=name,
        title=options.title,
        description=description,
        mime_type=options.mime_type,
        source=source,
        tags=as_tuple(options.tags),
    )
    return Resource.of(spec, handler_of(function, signature), schema=inputs.schema, check=inputs.check, complete=options.complete)
