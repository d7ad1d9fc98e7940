"""Profiles: which tools exist for a caller, and how they are listed.

A profile contains no tools. Its decision about a spec depends on that spec alone.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import ClassVar, Final, Literal, TypeVar

import msgspec

from callyard._internal.converted import Converted, Converters, as_tuple
from callyard.model.envelope import encode
from callyard.model.spec import AnySpec, Operation, ToolSpec

__all__ = [
    "EVERYTHING",
    "METATOOLS",
    "PINNED",
    "UNLISTED",
    "Profile",
    "Profiles",
    "Shape",
    "Surface",
    "Toolset",
    "compile_globs",
    "cost",
    "first_match",
    "listed",
    "matches_any",
    "pending_toolset",
]

T = TypeVar("T")
METATOOLS: Final = "metatools"
"""Source of the metatools, which are listed where other tools are not."""

UNLISTED: Final = "unlisted"
"""Tag of a metatool that no surface lists."""

_CHARACTERS_PER_TOKEN: Final = 4
PINNED: Final = "pinned"
"""Tag of a tool that every surface lists."""

_SLACK: Final = 0.25
"""Share of the budget by which the cost must pass it before the surface `auto` changes."""


Shape = Literal["envelope", "plain"]
"""How successes are sent to MCP clients: in the envelope, or the result alone; a failure is always an envelope."""


class Surface(StrEnum):
    """How a profile lists its tools; never what may be called."""

    DIRECT = "direct"
    META = "meta"
    AUTO = "auto"


def _operations(names: object) -> tuple[Operation, ...]:
    return tuple(Operation(name) for name in as_tuple(names))


class Toolset(msgspec.Struct, frozen=True, kw_only=True, metaclass=Converted):
    """A named subset of tools, resources and prompts: those that match every rule and that no `deny` rule matches.

    Each of `names`, `tags`, `sources` and `operations` matches if one of its entries does; an empty one matches all.
    Names and sources may contain `*` and `?`. Names match tools and prompts by name, including former names, and
    resources by name or URI. Operations apply to tools only. A metatool needs no matching rule, because it reaches no
    more than its caller may: it is in the set unless its name, source, tag or alias is denied.
    """

    converters: ClassVar[Converters] = {
        **dict.fromkeys(("names", "tags", "sources", "deny", "deny_tags", "deny_sources"), as_tuple),
        "operations": _operations,
        "deny_operations": _operations,
    }
    name: str
    names: tuple[str, ...] = ()
    """Patterns of names."""
    tags: tuple[str, ...] = ()
    """Tags."""
    sources: tuple[str, ...] = ()
    """Patterns of provider names."""
    operations: tuple[Operation, ...] = ()
    """Operations."""
    deny: tuple[str, ...] = ()
    """Patterns of excluded names."""
    deny_tags: tuple[str, ...] = ()
    """Excluded tags."""
    deny_sources: tuple[str, ...] = ()
    """Patterns of excluded provider names."""
    deny_operations: tuple[Operation, ...] = ()
    """Excluded operations."""
    description: str = ""
    """What it is for."""

    def holds(self, spec: AnySpec) -> bool:
        """Return whether a spec is in the set, under any of its names; deny rules come first."""
        if (
            _any_matches(spec, self.deny)
            or matches_any(spec.source, self.deny_sources)
            or any(tag in self.deny_tags for tag in spec.tags)
        ):
            return False
        if isinstance(spec, ToolSpec):
            if spec.source == METATOOLS:
                return spec.metatool.alias not in self.deny and not matches_any(spec.metatool.alias_of, self.deny)
            if spec.operation in self.deny_operations or (self.operations and spec.operation not in self.operations):
                return False
        return (
            (not self.names or _any_matches(spec, self.names))
            and (not self.sources or matches_any(spec.source, self.sources))
            and (not self.tags or any(tag in self.tags for tag in spec.tags))
        )


def pending_toolset(name: str) -> Toolset:
    """Return what stands for the toolset of a pack that is not open: it holds nothing, not even a metatool."""
    return Toolset(name=name, deny=("*",), description="It is of a pack that is not open.")


class Profile(msgspec.Struct, frozen=True, kw_only=True, metaclass=Converted):
    """A rule: the tools in any of its toolsets exist for a caller, or all if it has none; pins are always listed.

    The names of its toolsets are unique, because callers see them.
    """

    converters: ClassVar[Converters] = {"toolsets": as_tuple, "pins": as_tuple, "surface": Surface}
    name: str
    toolsets: tuple[Toolset, ...] = ()
    surface: Surface = Surface.AUTO
    pins: tuple[str, ...] = ()
    description: str = ""
    shape: Shape | None = None
    """How successes are sent to MCP clients; by default as the yard says, or each tool."""

    def __post_init__(self) -> None:
        names = [toolset.name for toolset in self.toolsets]
        if len(set(names)) < len(names):
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            raise ValueError(f"The profile '{self.name}' has two toolsets named '{twice}'.")

    def completed(self, toolsets: Mapping[str, Toolset]) -> "Profile":
        """Return the profile with toolsets in place of those that are pending."""
        found = (toolsets.get(known.name, known) if _is_pending(known) else known for known in self.toolsets)
        return msgspec.structs.replace(self, toolsets=tuple(found))

    @property
    def pending(self) -> Sequence[str]:
        """Return the names of its toolsets that are of packs which are not open."""
        return [toolset.name for toolset in self.toolsets if _is_pending(toolset)]

    def allows(self, spec: AnySpec) -> bool:
        """Return whether a tool, resource or prompt exists for callers of this profile."""
        return not self.toolsets or any(toolset.holds(spec) for toolset in self.toolsets)


def _is_pending(toolset: Toolset) -> bool:
    return toolset == pending_toolset(toolset.name)


class Profiles:
    """The profiles of a yard by name, the default profile first."""

    def __init__(self, own: Profile, others: Iterable[Profile], *, shape: Shape = "envelope") -> None:
        self._given = (own, *others)
        self.shape = shape
        """The shape of profiles that have none of their own; `adopt` gives it to them."""
        self._own = self._shaped(own)
        self._by_name = {profile.name: self._shaped(profile) for profile in self._given}

    def _shaped(self, profile: Profile) -> Profile:
        has_shape = self.shape == "envelope" or profile.shape is not None
        return profile if has_shape else msgspec.structs.replace(profile, shape=self.shape)

    @property
    def known(self) -> tuple[Profile, ...]:
        """Return all profiles."""
        return tuple(self._by_name.values())

    def adopt(self, profiles: Iterable[Profile], *, own: str | None) -> Profile:
        """Add these to the initial profiles, replacing those added before; select the default profile and return it.

        Raises:
            KeyError: There is no profile of that name.
        """
        by_name = {profile.name: self._shaped(profile) for profile in (*self._given, *profiles)}
        self._own = _get(by_name, own or self._given[0].name)
        self._by_name = by_name
        return self._own

    def complete(self, toolsets: Mapping[str, Toolset]) -> Profile:
        """Put toolsets in place of those that are pending, and return the default profile."""
        if toolsets:
            self._own = self._own.completed(toolsets)
            self._by_name = {name: profile.completed(toolsets) for name, profile in self._by_name.items()}
        return self._own

    def find(self, profile: Profile | str | None) -> Profile:
        """Return a profile by its name; by default the yard's own.

        Raises:
            KeyError: There is no profile of that name.
        """
        if isinstance(profile, str):
            return _get(self._by_name, profile)
        return self._own if profile is None else profile


def _get(by_name: Mapping[str, Profile], name: str) -> Profile:
    if name not in by_name:
        raise KeyError(f"There is no profile '{name}'. Known: {', '.join(sorted(by_name))}.")
    return by_name[name]


EVERYTHING: Final = Profile(name="everything")


def listed(
    profile: Profile, specs: Sequence[ToolSpec], *, budget: int, was_meta: bool | None = None
) -> tuple[list[ToolSpec], bool]:
    """Return the tools that the profile lists, and whether that is the short list of metatools and pins.

    The surface `auto` changes only when the cost is a quarter past the budget, so that clients can cache the list.
    Without metatools to find and to call the other tools, all tools are listed. A full list has no metatools, but those
    that follow jobs, where a tool is always one: most clients call only what is listed.
    """
    has_jobs = any(spec.job == "always" for spec in specs)
    pinned = [
        spec
        for spec in specs
        if _is_listed_metatool(spec)
        or PINNED in spec.tags
        or (has_jobs and spec.metatool.use == "follow")
        or _any_matches(spec, profile.pins)
    ]
    rest = [
        spec
        for spec in specs
        if spec.source != METATOOLS or (has_jobs and spec.metatool.use == "follow") or _any_matches(spec, profile.pins)
    ]
    if profile.surface is Surface.META:
        return pinned, True
    uses = {spec.metatool.use for spec in pinned if _is_listed_metatool(spec)}
    if profile.surface is Surface.DIRECT or not uses >= {"find", "call"}:
        return rest, False
    threshold = float(budget)
    if was_meta is not None:
        threshold *= 1 - _SLACK if was_meta else 1 + _SLACK
    meta = _costs_more([spec for spec in rest if spec.source != METATOOLS], threshold)
    return (pinned if meta else rest), meta


def _costs_more(specs: Sequence[ToolSpec], threshold: float) -> bool:
    """Return whether a list costs more tokens; it stops once that is clear, at best without any schema being made."""
    without_schemas = sum(len(spec.name) + len(spec.description) for spec in specs) / _CHARACTERS_PER_TOKEN
    if without_schemas > threshold:
        return True
    spent = 0
    for spec in specs:
        spent += _characters(spec)
        if spent / _CHARACTERS_PER_TOKEN > threshold:
            return True
    return -(-spent // _CHARACTERS_PER_TOKEN) > threshold


def cost(specs: Iterable[ToolSpec]) -> int:
    """Return an estimate of the tokens in a list of these tools."""
    return -(-sum(map(_characters, specs)) // _CHARACTERS_PER_TOKEN)


def _characters(spec: ToolSpec) -> int:
    return len(encode({"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema}).decode())


def _is_listed_metatool(spec: ToolSpec) -> bool:
    return spec.source == METATOOLS and UNLISTED not in spec.tags


def _any_matches(spec: AnySpec, patterns: tuple[str, ...]) -> bool:
    return bool(patterns) and any(matches_any(name, patterns) for name in spec.known_as)


def matches_any(text: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the glob patterns matches a text; case matters."""
    return bool(patterns) and compile_globs(tuple(patterns)).match(text) is not None


def first_match(text: str, patterns: Mapping[str, T]) -> T | None:
    """Return the value of the first pattern that matches a name, or None."""
    return next((value for pattern, value in patterns.items() if matches_any(text, (pattern,))), None)


@lru_cache(maxsize=256)
def compile_globs(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regular expression that matches a whole text if one of the glob patterns does; case matters."""
    return re.compile("|".join(translate(pattern) for pattern in patterns))
