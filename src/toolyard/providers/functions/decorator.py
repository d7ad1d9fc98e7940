"""`@tool`: what a signature cannot say about a function, written beside it.

The function stays a function: it can be called, tested and imported as before, and nothing is registered.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeVar, overload

import msgspec

from toolyard.asks import Question
from toolyard.spec import Annotations, EvalRule, Example, Reason

__all__ = ["Declared", "declared", "tool"]

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK: Final = "__toolyard_tool__"


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What `@tool` was given."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    operation: str | None = None
    eval: EvalRule | None = None
    session: Literal["none", "optional", "required"] | None = None
    tags: Sequence[str] = ()
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
    for name in options:
        if name not in Declared.__struct_fields__:
            meant = get_close_matches(name, Declared.__struct_fields__, n=1)
            raise TypeError(f"'@tool' has no option '{name}'." + (f" Did you mean '{meant[0]}'?" if meant else ""))
    marks = Declared(**options)

    def mark(marked: Any) -> Any:
        setattr(marked, _MARK, marks)
        return marked

    return mark if function is None else mark(function)


def declared(function: object) -> Declared | None:
    """Return what `@tool` was given for the function, if it was used."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Declared) else None
