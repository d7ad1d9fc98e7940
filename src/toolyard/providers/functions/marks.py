"""Marks: what a decorator says of a function, kept beside it, and found again on functions and methods.

The function stays a function: it can be called, tested and imported as before, and nothing is registered.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar, cast

import msgspec

from toolyard.spec import Kind, PublishError

__all__ = ["Marks", "make_marks", "mark", "marks_of", "methods_with"]

M = TypeVar("M", bound="Marks")
Function = TypeVar("Function", bound=Callable[..., Any])


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What every decorator may be given."""

    kind: ClassVar[Kind]
    name: str | None = None
    title: str | None = None
    description: str | None = None
    tags: Sequence[str] = ()


def make_marks(kind: type[M], options: dict[str, Any]) -> M:
    """Return what a decorator was given.

    Raises:
        TypeError: It has no such option; the sentence names the one that was probably meant.
    """
    for name in options:
        if name not in kind.__struct_fields__:
            from difflib import get_close_matches  # noqa: PLC0415 - only for what somebody got wrong

            meant = get_close_matches(name, kind.__struct_fields__, n=1)
            raise TypeError(f"'@{kind.kind}' has no option '{name}'." + (f" Did you mean '{meant[0]}'?" if meant else ""))
    return kind(**options)


def mark(function: Function, marks: Marks) -> Function:
    """Keep marks beside a function, which is returned."""
    setattr(function, _key(type(marks)), marks)
    return function


def marks_of(kind: type[M], function: object) -> M | None:
    """Return the marks of a kind that a function has, if it has any."""
    found = getattr(function, _key(kind), None)
    return found if isinstance(found, kind) else None


def methods_with(kind: type[M], item: object) -> Iterator[tuple[Callable[..., Any], M]]:
    """Return the methods of an object that have marks of a kind, above or below `@staticmethod` and the like.

    Raises:
        PublishError: There are none.
    """
    found = False
    for name, member in inspect.getmembers_static(type(item)):
        marks = marks_of(kind, member) or marks_of(kind, getattr(cast("object", member), "__func__", None))
        if marks is not None:
            found = True
            yield getattr(item, name), marks
    if not found:
        raise PublishError(f"An object of type '{type(item).__name__}' is no function and has no method marked with '@{kind.kind}'.")


def _key(kind: type[Marks]) -> str:
    return f"__toolyard_{kind.kind}__"
