"""Profiles: which tools exist for a caller, and how they are listed.

A profile decides; it holds no tools. It answers the same for the same spec, whatever else is published.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import Final

import msgspec

from toolyard.model.envelope import encode
from toolyard.model.spec import AnySpec, Operation, ToolSpec

__all__ = ["EVERYTHING", "METATOOLS", "PINNED", "UNLISTED", "Profile", "Profiles", "Surface", "Toolset", "cost", "listed"]

METATOOLS: Final = "metatools"
"""The source of the tools about tools, which are listed where the rest is not."""

UNLISTED: Final = "unlisted"
"""The tag of a metatool that is on no list."""

PINNED: Final = "pinned"
"""The tag of a tool that is on every list."""

_SLACK: Final = 0.25


def _make_tuples(rule: msgspec.Struct, *names: str) -> None:
    """Read one thing where several may stand as a tuple of it, so that a text is never taken letter by letter."""
    for name in names:
        given = getattr(rule, name)
        if not isinstance(given, tuple):
            several: Iterable[object] = [given] if isinstance(given, str | msgspec.Struct) else given
            msgspec.structs.force_setattr(rule, name, tuple(several))


class Surface(StrEnum):
    """How a profile lists its tools; never what may be called."""

    DIRECT = "direct"
    META = "meta"
    AUTO = "auto"


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """A named subset of tools, resources and prompts: what matches everything given here, less what is denied.

    Each of `names`, `tags`, `sources` and `operations` lets through what fits one of its entries; empty lets all through.
    Names and sources may hold `*` and `?`. A name rule holds for the names of tools and prompts, former ones included, and for
    both the name and the URI of a resource. Operations are rules about tools: a resource or prompt only tells something, so they
    neither let it through nor deny it. Nor do rules let a metatool through, which does nothing by itself and reaches no more than
    its caller may: it is there unless its name, its source or a tag of it is denied. One that has another name is denied with it.
    """

    name: str
    names: tuple[str, ...] = ()
    """Patterns of names."""
    tags: tuple[str, ...] = ()
    """Tags."""
    sources: tuple[str, ...] = ()
    """Patterns of the providers' names."""
    operations: tuple[Operation, ...] = ()
    """Operations."""
    deny: tuple[str, ...] = ()
    """Patterns of names that are left out."""
    deny_tags: tuple[str, ...] = ()
    """Tags that are left out."""
    deny_sources: tuple[str, ...] = ()
    """Patterns of the names of providers that are left out."""
    deny_operations: tuple[Operation, ...] = ()
    """Operations that are left out."""
    description: str = ""
    """What it is for."""

    def __post_init__(self) -> None:
        _make_tuples(self, "names", "tags", "sources", "operations", "deny", "deny_tags", "deny_sources", "deny_operations")
        for name in ("operations", "deny_operations"):
            msgspec.structs.force_setattr(self, name, tuple(Operation(operation) for operation in getattr(self, name)))

    def holds(self, spec: AnySpec) -> bool:
        """Return whether something is in the set, under any of its names; a denial beats everything."""
        if _any_fits(spec, self.deny) or _fits(spec.source, self.deny_sources) or any(tag in self.deny_tags for tag in spec.tags):
            return False
        if isinstance(spec, ToolSpec):
            if spec.source == METATOOLS:
                return spec.metatool.alias not in self.deny and not _fits(spec.metatool.alias_of, self.deny)
            if not self._may_do(spec.operation):
                return False
        return (
            (not self.names or _any_fits(spec, self.names))
            and (not self.sources or _fits(spec.source, self.sources))
            and (not self.tags or any(tag in self.tags for tag in spec.tags))
        )

    def _may_do(self, operation: Operation) -> bool:
        return operation not in self.deny_operations and (not self.operations or operation in self.operations)


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen rule: the tools in any of its toolsets exist, all if it has none; pins are listed on every surface.

    Its toolsets have different names, by which callers are told of them.
    """

    name: str
    toolsets: tuple[Toolset, ...] = ()
    surface: Surface = Surface.AUTO
    pins: tuple[str, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        _make_tuples(self, "toolsets", "pins")
        msgspec.structs.force_setattr(self, "surface", Surface(self.surface))
        names = [toolset.name for toolset in self.toolsets]
        if len(set(names)) < len(names):
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            raise ValueError(f"The profile '{self.name}' has two toolsets of the name '{twice}'.")

    def allows(self, spec: AnySpec) -> bool:
        """Return whether a tool, resource or prompt exists for callers of this profile."""
        return not self.toolsets or any(toolset.holds(spec) for toolset in self.toolsets)


class Profiles:
    """The profiles that a yard knows by name, its own first."""

    def __init__(self, own: Profile, others: Iterable[Profile]) -> None:
        self._given = {profile.name: profile for profile in (own, *others)}
        self._known = self._given
        self._own = own

    @property
    def known(self) -> tuple[Profile, ...]:
        """Return them all."""
        return tuple(self._known.values())

    def adopt(self, profiles: Iterable[Profile], *, own: str | None) -> Profile:
        """Know these besides those that were there from the beginning, take one as the own, and return it.

        Raises:
            KeyError: There is no profile of that name.
        """
        known = {**self._given, **{profile.name: profile for profile in profiles}}
        self._own = _named(known, own or next(iter(self._given)))
        self._known = known
        return self._own

    def find(self, profile: Profile | str | None) -> Profile:
        """Return a profile by its name, the own by default.

        Raises:
            KeyError: There is no profile of that name.
        """
        if isinstance(profile, str):
            return _named(self._known, profile)
        return self._own if profile is None else profile


def _named(known: Mapping[str, Profile], name: str) -> Profile:
    if name not in known:
        raise KeyError(f"There is no profile '{name}'. Known: {', '.join(sorted(known))}.")
    return known[name]


EVERYTHING: Final = Profile(name="everything")
"""The profile of a caller that has no other."""


def listed(profile: Profile, specs: Sequence[ToolSpec], *, budget: int, was_meta: bool | None = None) -> tuple[list[ToolSpec], bool]:
    """Return which of the profile's tools are listed, and whether that is the short list.

    An automatic surface flips from what it was only when the cost is a quarter past the budget, so that clients can cache the list.
    Where there are no metatools to find the rest with and to call it, everything is listed; where everything is, none needs to be.
    """
    pinned = [spec for spec in specs if _shows(spec) or PINNED in spec.tags or _any_fits(spec, profile.pins)]
    rest = [spec for spec in specs if spec.source != METATOOLS or _any_fits(spec, profile.pins)]
    if profile.surface is Surface.META:
        return pinned, True
    uses = {spec.metatool.use for spec in pinned if _shows(spec)}
    if profile.surface is Surface.DIRECT or not uses >= {"find", "call"}:
        return rest, False
    spent = cost(spec for spec in rest if spec.source != METATOOLS)
    line = budget if was_meta is None else budget * (1 - _SLACK) if was_meta else budget * (1 + _SLACK)
    meta = spent > line
    return (pinned if meta else rest), meta


def cost(specs: Iterable[ToolSpec]) -> int:
    """Return about how many tokens a list of these tools costs."""
    characters = sum(
        len(encode({"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema}).decode()) for spec in specs
    )
    return -(-characters // 4)


def _shows(spec: ToolSpec) -> bool:
    """Return whether this is a metatool that short lists show."""
    return spec.source == METATOOLS and UNLISTED not in spec.tags


def _any_fits(spec: AnySpec, patterns: tuple[str, ...]) -> bool:
    return bool(patterns) and any(_fits(name, patterns) for name in spec.known_as)


def _fits(text: str, patterns: tuple[str, ...]) -> bool:
    return bool(patterns) and _compiled(patterns).match(text) is not None


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))
