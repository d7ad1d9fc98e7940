"""`@resource`: a function that is read, as a resource or, with variables in its URI, as a template."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from toolyard.providers.functions.arguments import arguments_of
from toolyard.providers.functions.function import handler_of, inner_of, read_function, sentence
from toolyard.providers.functions.marks import Marks, mark, marks_of
from toolyard.resources import Resource
from toolyard.spec import Kind, PublishError, ResourceSpec
from toolyard.tools import Complete
from toolyard.uri_template import variables_of

__all__ = ["DeclaredResource", "resource", "resource_from"]

Function = TypeVar("Function", bound=Callable[..., Any])


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
