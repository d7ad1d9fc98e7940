"""`@tool`: what a signature cannot say about a function, written beside it.

The function stays a function: it can be called, tested and imported as before, and nothing is registered.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar, overload

from toolyard.asks import Question
from toolyard.providers.functions.marks import Marks, make_marks, mark, marks_of
from toolyard.spec import Annotations, EvalRule, Example, Kind, Reason

__all__ = ["Declared", "declared", "tool"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Declared(Marks, frozen=True, kw_only=True):
    """What `@tool` was given."""

    kind: ClassVar[Kind] = "tool"
    operation: str | None = None
    eval: EvalRule | None = None
    session: Literal["none", "optional", "required"] | None = None
    examples: Sequence[Example | dict[str, Any]] = ()
    reasons: Sequence[str] | Mapping[str, Reason | Sequence[str]] = ()
    question: Question | None = None
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
    question: Question | None = None,
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
