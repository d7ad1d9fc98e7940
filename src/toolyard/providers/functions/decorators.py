"""`@resource`: a function that is read, as a resource or, with variables in its URI, as a template."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, cast, overload

from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.tool import Complete
from toolyard.model.elicitation import Confirmation
from toolyard.model.spec import Annotations, EvalRule, Example, Kind, PromptArgument, PromptSpec, PublishError, Reason, ResourceSpec
from toolyard.model.uri_template import variables_of
from toolyard.providers.functions.schema import arguments_of
from toolyard.providers.functions.signature import Marks, handler_of, inner_of, make_marks, mark, marks_of, read_function, sentence

__all__ = ["Declared", "DeclaredPrompt", "DeclaredResource", "declared", "prompt", "prompt_from", "resource", "resource_from", "tool"]


Function = TypeVar("Function", bound=Callable[..., Any])


class Declared(Marks, frozen=True, kw_only=True):
    """What `@tool` was given."""

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
    requires_eval: bool | None = None,
    aliases: Sequence[str] = (),
    deprecated: str | None = None,
    shape: Literal["envelope", "plain"] = "envelope",
    annotations: Annotations | None = None,
) -> Callable[[Function], Function]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Say of a function what its signature cannot: its operation, session, timeout, reasons and so on."""
    marks = make_marks(Declared, options)
    return partial(mark, marks=marks) if function is None else mark(function, marks)


def declared(function: object) -> Declared | None:
    """Return what `@tool` was given for the function, if it was used."""
    return marks_of(Declared, function)


class DeclaredPrompt(Marks, frozen=True, kw_only=True):
    """What `@prompt` was given."""

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
    """Say of a function that it makes a prompt, and what its signature cannot say of it."""
    marks = make_marks(DeclaredPrompt, options)
    return partial(mark, marks=marks) if function is None else mark(function, marks)


def prompt_from(function: Callable[..., Any], *, source: str, marks: DeclaredPrompt | None = None) -> Prompt:
    """Return a function as a prompt; marks found elsewhere stand for those of `@prompt`.

    Raises:
        PublishError: It cannot become one; the sentence says why.
    """
    marks = marks or marks_of(DeclaredPrompt, function) or marks_of(DeclaredPrompt, inner_of(function)) or DeclaredPrompt()
    name, what, documented, signature = read_function(function, marks)
    if signature.session != "none":
        raise PublishError(f"{what} takes a session, which only a tool has.")
    taken = arguments_of(what, signature.parameters, documented.parameters, session=False)
    required = taken.schema.get("required", ())
    spec = PromptSpec(
        name=name,
        title=marks.title,
        description=marks.description or documented.description or sentence(name),
        arguments=tuple(
            PromptArgument(key, inner.get("description", ""), key in required) for key, inner in taken.schema["properties"].items()
        ),
        source=source,
        tags=(marks.tags,) if isinstance(marks.tags, str) else tuple(marks.tags),
    )
    return Prompt.of(spec, handler_of(function, signature), schema=taken.schema, check=taken.check, complete=marks.complete)


class DeclaredResource(Marks, frozen=True, kw_only=True):
    """What `@resource` was given."""

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
    """Say of a function that it is read under a URI; variables in the URI are its parameters."""
    if not isinstance(cast("object", uri), str):
        raise TypeError("'@resource' needs the URI that the function is read under.")
    marks = DeclaredResource(
        uri=uri, name=name, title=title, mime_type=mime_type, description=description, tags=tags, complete=complete or {}
    )
    return lambda function: mark(function, marks)


def resource_from(function: Callable[..., Any], *, source: str, marks: DeclaredResource | None = None) -> Resource:
    """Return a marked function as a resource.

    Raises:
        PublishError: It cannot become one; the sentence says why.
    """
    marks = marks or marks_of(DeclaredResource, function) or marks_of(DeclaredResource, inner_of(function))
    if marks is None:
        raise PublishError(f"The function '{getattr(function, '__name__', function)}' has no URI: mark it with '@resource'.")
    name, what, documented, signature = read_function(function, marks)
    if signature.session != "none":
        raise PublishError(f"{what} takes a session, which only a tool has.")
    taken = arguments_of(what, signature.parameters, documented.parameters, session=False)
    variables, known = variables_of(marks.uri), taken.schema["properties"]
    for variable in variables:
        if variable not in known:
            raise PublishError(f"{what} has no parameter for the variable '{variable}' of its URI.")
    for parameter in taken.schema.get("required", ()):
        if parameter not in variables:
            raise PublishError(f"{what} has the parameter '{parameter}', which its URI does not give: write it as '{{{parameter}}}'.")
    spec = ResourceSpec(
        uri=marks.uri,
        name=name,
        title=marks.title,
        description=marks.description or documented.description or sentence(name),
        mime_type=marks.mime_type,
        source=source,
        tags=(marks.tags,) if isinstance(marks.tags, str) else tuple(marks.tags),
    )
    return Resource.of(spec, handler_of(function, signature), schema=taken.schema, check=taken.check, complete=marks.complete)
