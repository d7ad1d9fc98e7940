"""`@prompt`: a function that makes the messages of a prompt out of its arguments."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, overload

from toolyard.prompts import Prompt
from toolyard.providers.functions.arguments import arguments_of
from toolyard.providers.functions.function import handler_of, inner_of, read_function, sentence
from toolyard.providers.functions.marks import Marks, make_marks, mark, marks_of
from toolyard.spec import Kind, PromptArgument, PromptSpec, PublishError
from toolyard.tools import Complete

__all__ = ["DeclaredPrompt", "prompt", "prompt_from"]

Function = TypeVar("Function", bound=Callable[..., Any])


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
