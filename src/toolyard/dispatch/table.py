"""A table: keys to published things of one kind, with where each came from and why some are not there.

The registry has one for each kind. It publishes, withdraws and finds; it runs nothing.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import msgspec

from toolyard.model.names import LIKE, Likeness, words_of
from toolyard.model.profile import Profile
from toolyard.model.spec import AnySpec, Kind, PublishError

__all__ = ["NOTHING_WITHHELD", "ChangeKind", "Names", "Plan", "Published", "Status", "Table", "Withheld", "WithheldReasons"]


_LOOKED_AT: Final = 3000
_CANDIDATES: Final = 60
_NEAR: Final = 20


class Names:
    """Known names, found by the beginnings of their words; taken apart when somebody first gets one wrong."""

    def __init__(self) -> None:
        self._by_beginning: dict[str, dict[str, None]] = {}
        self._whole: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Remember a name."""
        self._whole[name] = None

    def remove(self, name: str) -> None:
        """Forget a name."""
        if name in self._whole:
            del self._whole[name]
            return
        for beginning in _beginnings(name):
            names = self._by_beginning[beginning]
            names.pop(name, None)
            if not names:
                del self._by_beginning[beginning]

    def near(self, name: str, allows: Callable[[str], bool] = bool) -> list[str]:
        """Return the known names that are allowed and may have been meant, nearest first, ties by name."""
        likeness = Likeness(name)
        scored = [(-likeness.to(known), known) for known in islice(filter(allows, self._candidates(name)), _CANDIDATES)]
        return [known for score, known in sorted(scored) if -score >= LIKE][:_NEAR]

    def _candidates(self, name: str) -> list[str]:
        self._take_apart()
        found: dict[str, int] = {}
        for beginning in _beginnings(name):
            for known in islice(self._by_beginning.get(beginning, ()), _LOOKED_AT):
                found[known] = found.get(known, 0) + 1
        return sorted(found, key=lambda known: (-found[known], known))

    def _take_apart(self) -> None:
        for name in self._whole:
            for beginning in _beginnings(name):
                self._by_beginning.setdefault(beginning, {})[name] = None
        self._whole.clear()


def _beginnings(name: str) -> set[str]:
    """Return the first letter pairs of the words, and of the words without their first letter, for one that is mistyped."""
    words = words_of(name)
    return {word[:2] for word in words} | {"~" + word[1:3] for word in words if len(word) > 2}  # noqa: PLR2004 - a pair after the first


ChangeKind = Literal["registered", "updated", "withdrawn"]
Status = Literal["gated", "quarantined", "withdrawn", "withheld"]
WithheldReasons = Mapping[tuple[Kind, str], str]
"""Why a source withholds some of what it publishes: by kind, and the key it is published under."""
NOTHING_WITHHELD: Final[WithheldReasons] = MappingProxyType({})
_REMEMBERED: Final = 1000
_log = logging.getLogger(__name__)


class Published(Protocol):
    """What a table holds: a tool, a resource or a prompt."""

    @property
    def spec(self) -> AnySpec:
        """Return it as data."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what finds it, the one it is listed by first."""
        ...

    def under(self, source: str) -> Self:
        """Return it under the source that publishes it."""
        ...


P = TypeVar("P", bound=Published)


class Withheld(msgspec.Struct, frozen=True):
    """Something that is known and cannot be used now, and why."""

    spec: Any
    status: Status
    reason: str


class Plan(NamedTuple, Generic[P]):
    """What a source will have published once this is applied; nothing can go wrong any more."""

    source: str
    wanted: dict[str, P]
    held: dict[str, Withheld]
    aside: list[P]
    gives_way: bool


class Table(Generic[P]):
    """Keys to things of one kind."""

    def __init__(
        self,
        kind: Kind,
        *,
        check: Callable[[P, bool], None],
        announce: Callable[[ChangeKind, Kind, str], None],
        gate: Callable[[P], str | None] = lambda _: None,
    ) -> None:
        self.kind: Final = kind
        self.things: Final[dict[str, P]] = {}
        """What is published, by its first key; always the same dictionary."""
        self._check = check
        self._announce = announce
        self._gate = gate
        self._aliases: dict[str, str] = {}
        self._by_source: dict[str, dict[str, P]] = {}
        self._gives_way: set[str] = set()
        self._aside: dict[str, P] = {}
        self._withheld: dict[str, Withheld] = {}
        self._withdrawn: dict[str, Withheld] = {}
        self._names = Names()

    def plan(self, source: str, things: Iterable[P], *, withheld: WithheldReasons, foreign: bool, gives_way: bool) -> Plan[P]:
        """Return what publishing these would do.

        Raises:
            PublishError: One of our own is wrong or its name is taken.
        """
        plan: Plan[P] = Plan(source=source, wanted={}, held={}, aside=[], gives_way=gives_way)
        claimed: set[str] = set()
        for thing in (thing.under(source) for thing in things):
            fault = self._fault(thing, source, claimed, foreign=foreign, gives_way=gives_way)
            if fault is not None and not foreign:
                raise fault
            key = thing.keys[0]
            if fault is not None:
                plan.held[key] = Withheld(thing.spec, "quarantined", str(fault))
                continue
            if gives_way and self._taken(thing, source):
                plan.aside.append(thing)
                continue
            claimed.update(thing.keys)
            reason, gated = withheld.get((self.kind, key)), self._gate(thing)
            if reason is not None:
                plan.held[key] = Withheld(thing.spec, "withheld", reason)
            elif gated is not None:
                plan.held[key] = Withheld(thing.spec, "gated", gated)
            else:
                plan.wanted[key] = thing
        return plan

    def apply(self, plan: Plan[P]) -> None:
        """Make the things of the plan those of its source; what the source published before and does not now is withdrawn."""
        self._replace(plan.source, plan.wanted, gives_way=plan.gives_way)
        for key in [key for key, held in self._withheld.items() if held.spec.source == plan.source]:
            del self._withheld[key]
        for thing in plan.aside:
            self._step_aside(thing)
        self._step_back()
        self._withheld.update(plan.held)

    def owner_of(self, key: str) -> P | None:
        """Return what has the key, be it a former name."""
        return self.things.get(key) or self.things.get(self._aliases.get(key, ""))

    def visible(self, profile: Profile) -> list[P]:
        """Return everything that exists for the profile, by key."""
        return [thing for _, thing in sorted(self.things.items()) if profile.allows(thing.spec)]

    def withheld(self, profile: Profile) -> Sequence[Withheld]:
        """Return what of the profile is known and cannot be used now."""
        return [held for _, held in sorted(self._withheld.items()) if profile.allows(held.spec)]

    def held(self, key: str, profile: Profile) -> Withheld | None:
        """Return why a key that was found nowhere is known all the same, if the profile may know it."""
        held = self._withheld.get(key) or self._withdrawn.get(key)
        return held if held is not None and profile.allows(held.spec) else None

    def near(self, key: str, profile: Profile) -> list[str]:
        """Return the keys that the profile allows and that may have been meant, nearest first."""
        return self._names.near(str(key), lambda near: profile.allows(self.things[near].spec))

    def _fault(self, thing: P, source: str, claimed: set[str], *, foreign: bool, gives_way: bool) -> PublishError | None:
        """Return why something cannot be published beside those that claimed their keys before it."""
        noun = self.kind.capitalize()
        try:
            self._check(thing, foreign)
        except PublishError as error:
            return error
        except Exception as error:  # noqa: BLE001 - what another program sends may be wrong in any way
            return PublishError(f"{noun} '{thing.spec.name}' cannot be read: {type(error).__name__}.")
        for key in thing.keys:
            if key in claimed:
                return PublishError(f"Two {self.kind}s of '{source}' are named '{key}'.")
            other = self.owner_of(key)
            if other is not None and other.spec.source != source and not gives_way and other.keys[0] not in self._gives_way:
                return PublishError(f"{noun} '{key}' of '{source}' has the name of a {self.kind} of '{other.spec.source}'.")
        return None

    def _taken(self, thing: P, source: str) -> bool:
        owners = [self.owner_of(key) for key in thing.keys]
        return any(owner is not None and owner.spec.source != source for owner in owners)

    def _replace(self, source: str, wanted: dict[str, P], *, gives_way: bool) -> None:
        before = self._by_source.pop(source, {})
        self._aside = {key: thing for key, thing in self._aside.items() if thing.spec.source != source}
        for key, thing in before.items():
            self._remove(thing, "" if key in wanted else "Its source no longer publishes it.")
        for thing in wanted.values():
            self._displace(thing)
            self._add(thing, gives_way=gives_way)
        if wanted:
            self._by_source[source] = wanted
        for key in [key for key in before if key not in wanted]:
            self._announce("withdrawn", self.kind, key)
        for key, thing in wanted.items():
            if key not in before:
                self._announce("registered", self.kind, key)
            elif before[key].spec != thing.spec:
                self._announce("updated", self.kind, key)

    def _displace(self, thing: P) -> None:
        """Remove what gives way to this."""
        for key in thing.keys:
            other = self.owner_of(key)
            if other is None:
                continue
            self._step_aside(other)
            self._remove(other, f"Another source published a {self.kind} of its name.")
            self._by_source[other.spec.source].pop(other.keys[0], None)
            self._announce("withdrawn", self.kind, other.keys[0])

    def _step_aside(self, thing: P) -> None:
        _log.warning("gave_way tool=%s source=%s", thing.keys[0], thing.spec.source)
        self._aside[thing.keys[0]] = thing

    def _step_back(self) -> None:
        """Publish what gave way and no longer needs to."""
        for key, thing in list(self._aside.items()):
            if all(self.owner_of(one) is None for one in thing.keys):
                del self._aside[key]
                self._add(thing, gives_way=True)
                self._by_source.setdefault(thing.spec.source, {})[key] = thing
                self._announce("registered", self.kind, key)

    def _add(self, thing: P, *, gives_way: bool) -> None:
        key, *aliases = thing.keys
        self.things[key] = thing
        self._names.add(key)
        self._aliases.update(dict.fromkeys(aliases, key))
        self._withheld.pop(key, None)
        self._withdrawn.pop(key, None)
        if gives_way:
            self._gives_way.add(key)

    def _remove(self, thing: P, why: str) -> None:
        key, *aliases = thing.keys
        del self.things[key]
        self._names.remove(key)
        for alias in aliases:
            self._aliases.pop(alias, None)
        self._gives_way.discard(key)
        if why:
            self._withdrawn[key] = Withheld(thing.spec, "withdrawn", why)
            if len(self._withdrawn) > _REMEMBERED:
                del self._withdrawn[next(iter(self._withdrawn))]
