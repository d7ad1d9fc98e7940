"""Callers and doors: who calls, and by which way in.

Neither is a session: a caller may have several, or none.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.asks import Ask
from toolyard.profile import Profile
from toolyard.progress import SendNote

__all__ = ["ANYONE", "FILLED", "LIBRARY", "NESTED", "Caller", "Door", "Nested"]


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who is calling; the scope is one conversation of that identity, and without a profile the yard's own holds."""

    identity: str = "local"
    scope: str = ""
    claims: dict[str, Any] = {}
    profile: Profile | None = None
    client: str = ""

    def __post_init__(self) -> None:
        if self.profile is not None and not isinstance(cast("object", self.profile), Profile):
            raise TypeError("The profile of a caller must be a 'Profile'.")

    def __repr__(self) -> str:
        """Return who it is, without what is claimed of him."""
        return f"<Caller '{self.identity}' '{self.scope}'>"

    @property
    def owner(self) -> str:
        """Return what the caller's sessions and results are kept under."""
        return f"{len(self.identity)}:{self.identity}:{self.scope}"


ANYONE: Final = Caller()


class Door(msgspec.Struct, frozen=True, kw_only=True):  # a struct, because one is made for nearly every call
    """The way a call came in, and what it can do while the call runs."""

    name: str = "library"
    line: str = ""
    """Which client it is, where callers of one identity and one name may be several."""
    front: int = 0
    """Which of the fronts that serve clients it belongs to, by number; without one it is 0."""
    progress: SendNote | None = None
    log: Callable[[str, str, Mapping[str, object]], None] | None = None
    ask: Callable[[Mapping[str, Ask], bool], Awaitable[Mapping[str, Any]]] | None = None
    """Puts asks, each under its key, to the client; whether it is a declared question and nothing happened yet; returns MCP's results."""
    capabilities: frozenset[str] = frozenset()
    """What the client says it can be asked."""
    stateless: bool = False
    """Whether nothing is kept of a client that begins with a handshake, so that it cannot be asked, whatever it said then."""
    hang_up: Callable[[], None] | None = None
    """Lets go of the connection before the answer, which the client then comes back for."""
    headers: Mapping[str, str] = {}
    """The request headers that handlers may see."""
    forwarded: Mapping[str, str] = {}
    """Those that some upstream wants to have passed on, which may be credentials."""
    meta: Mapping[str, Any] = {}
    """What the client said beside the arguments, without what the protocol reserves for itself."""
    trace: Mapping[str, str] = {}
    """The trace that the call is part of: `traceparent`, `tracestate` and `baggage`, as they came."""
    trace_id: str | None = None
    result_characters: int | None = None
    """How long a whole answer may be that this way in takes, if not one with as much data as the yard's limit says."""

    def __repr__(self) -> str:
        """Return which way in it is, without what came along."""
        return f"<Door '{self.name}'>"

    def inside(self, progress: SendNote | None = None) -> "Door":
        """Return the way in of calls from inside of one that came this way; their notes go nowhere else than to `progress`."""
        return self if self.progress is progress else msgspec.structs.replace(self, progress=progress)


LIBRARY: Final = Door()


class Nested(msgspec.Struct, frozen=True, kw_only=True):
    """How a call from inside a call is run, where that differs from any other."""

    seconds: float = 0.0
    """It may take no longer, whatever its tool says; 0 is as long as that."""
    filled: bool = False
    """Whether references to stored results are filled in already, so that what looks like one is data, and its size is not the caller's."""
    checked: dict[str, Any] | None = None
    """The arguments as they came out of a check, so that the same check need not look at them again."""
    checked_by: object = None
    """The tool whose check that was: by the time of the call the name may be another's."""
    coerced: tuple[str, ...] = ()
    """What was put right before they passed it."""


NESTED: Final = Nested()
FILLED: Final = Nested(filled=True)
