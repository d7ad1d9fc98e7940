"""Tools whose annotations are all text, as `from __future__ import annotations` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from callyard import Call, Session, tool

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction


class Place(BaseModel):
    """Where something is."""

    city: str


@dataclass
class Trip:
    """What comes out."""

    to: str
    steps: int


@tool(operation="query")
async def travel(
    place: Place,
    steps: Annotated[int, Field(ge=1)] = 3,
    mode: Literal["walk", "fly"] = "walk",
    *,
    call: Call,
    stops: list[Place] | None = None,
) -> Trip:
    """Travel.

    Args:
        place: Where to.
        steps: How many.
    """
    return Trip(f"{place.city} by {mode} {call.spec.name} {len(stops or [])}", steps)


@tool
async def rest(session: Session | None = None, minutes: int = 5) -> str | None:
    """Rest."""
    return None if session is None else f"{minutes}"


class Hotel:
    """An object with a tool."""

    @tool
    async def book(self, place: Place) -> str:
        """Book."""
        return place.city


class Walker:
    """An object that is a tool."""

    def __call__(self, place: Place) -> str:
        """Walk."""
        return place.city


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, wrapped as decorators do."""

    @wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


@logged
@tool(name="drive")
async def wrapped(place: Place) -> str:
    """Drive."""
    return place.city


async def _fly(place: Place, height: int) -> str:
    """Fly."""
    return f"{place.city} {height}"


fly = tool(name="fly")(partial(_fly, height=3))


def make_local() -> Any:
    """Return a tool whose annotation is a name that it closes over."""

    class Local(BaseModel):
        n: int

    async def use(local: Local) -> int:
        """Use."""
        return Local.model_validate(local).n

    return use


async def lost(what: Fraction) -> int:
    """Take what only a type checker knows."""
    return int(what)


async def lost_result() -> Fraction:
    """Return what only a type checker knows."""
    raise AssertionError
