"""A table of published entries of one kind by key, and an index that finds similar keys.

It knows the source of each entry and why some entries are unavailable. It runs nothing. A disabled entry stays
published, so that no other source gets its name, and callers cannot use it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.tool import Tool
from callyard.model.names import LIKE, Likeness, words_of
from callyard.model.profile import Profile
from callyard.model.spec import AnySpec, Kind, PublishError
from callyard.model.switch import Switch

__all__ = ["NONE_WITHHELD", "ChangeKind", "NameIndex", "Status", "Table", "Unavailable", "WithheldReasons"]

ChangeKind = Literal["registered", "updated", "withdrawn"]
Status = Literal["disabled", "gated", "quarantined", "withdrawn", "withheld"]
WithheldReasons = Mapping[tuple[Kind, str], str]
"""Why a source withholds some entries, by kind and key."""
NONE_WITHHELD: Final[WithheldReasons] = MappingProxyType({})

P = TypeVar("P", Tool, Resource, Prompt)
_MAX_PER_PREFIX: Final = 3000
_MAX_CANDIDATES: Final = 60
_MAX_SIMILAR: Final = 20
_MAX_WITHDRAWN: Final = 1000
_log = logging.getLogger(__name__)


class NameIndex:
    """Finds names similar to a misspelt one, by the first letters of their words."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, dict[str, None]] = {}

    def add(self, name: str) -> None:
        """Add a name."""
        for prefix in _prefixes(name):
            self._by_prefix.setdefault(prefix, {})[name] = None

    def remove(self, name: str) -> None:
        """Remove a name."""
        for prefix in _prefixes(name):
            names = self._by_prefix[prefix]
            names.pop(name, None)
            if not names:
                del self._by_prefix[prefix]

    def similar(self, name: str, allows: Callable[[str], bool] = bool) -> list[str]:
        """Return the allowed names that are similar to this one, most similar first, ties by name."""
        likeness = Likeness(name)
        candidates = islice(filter(allows, self._candidates(name)), _MAX_CANDIDATES)
        scored = [(-likeness.to(other), other) for other in candidates]
        return [other for score, other in sorted(scored) if -score >= LIKE][:_MAX_SIMILAR]

    def _candidates(self, name: str) -> list[str]:
        """Return the names that share a prefix with this one, those that share most first."""
        shared = Counter[str]()
        for prefix in _prefixes(name):
            shared.update(islice(self._by_prefix.get(prefix, ()), _MAX_PER_PREFIX))
        return sorted(shared, key=lambda other: (-shared[other], other))


def _prefixes(name: str) -> set[str]:
    """Return the first two letters of each word, and its second and third, in case the first is misspelt."""
    words = words_of(name)
    return {word[:2] for word in words} | {"~" + word[1:3] for word in words if len(word) > 2}  # noqa: PLR2004 - a pair after the first


class Unavailable(msgspec.Struct, frozen=True):
    """An entry that exists and cannot be used now, and why."""

    spec: Any
    status: Status
    reason: str
    until: float | None = None
    """When it can be used again by itself, in seconds since the epoch, if that is known."""

    @property
    def details(self) -> dict[str, Any]:
        """Return the details of a failure because of it."""
        if self.status != "disabled":
            return {"status": self.status}
        return {"status": self.status, "reason": self.status, "until": self.until}


class Table(Generic[P]):
    """The entries of one kind by key."""

    def __init__(
        self,
        kind: Kind,
        *,
        check: Callable[..., None],
        announce: Callable[[ChangeKind, Kind, str], None],
        refusal: Callable[[P], str | None] = lambda _: None,
        switch_of: Callable[[AnySpec], Switch | None] = lambda _: None,
    ) -> None:
        self.kind: Final = kind
        self.entries: Final[dict[str, P]] = {}
        """Entries that can be used, by their first key. Callers keep this dictionary, so it is never replaced."""
        self._published: dict[str, P] = {}
        """The same with those that are disabled."""
        self._disabled: dict[str, Unavailable] = {}
        self._check = check
        self._announce = announce
        self._refusal = refusal
        self._switch_of = switch_of
        self._aliases: dict[str, str] = {}
        self._by_source: dict[str, dict[str, P]] = {}
        self._gives_way: set[str] = set()
        self._displaced: dict[str, P] = {}
        """Entries that gave way to another source, by key; they return when their keys are free."""
        self._unavailable: dict[str, Unavailable] = {}
        self._withdrawn: dict[str, Unavailable] = {}
        self._names = NameIndex()

    def prepare(
        self, source: str, entries: Iterable[P], *, withheld: WithheldReasons, foreign: bool, gives_way: bool
    ) -> Callable[[], None]:
        """Check the entries of a source, and return a function that publishes them in place of its former ones.

        Raises:
            PublishError: An entry of our own is invalid or its key is taken.
        """
        accepted: dict[str, P] = {}
        unavailable: dict[str, Unavailable] = {}
        displaced: list[P] = []
        claimed: set[str] = set()
        for entry in (entry.with_source(source) for entry in entries):
            key = entry.keys[0]
            fault = self._fault(entry, source, claimed, foreign=foreign, gives_way=gives_way)
            if fault is not None:
                if not foreign:
                    raise fault
                unavailable[key] = Unavailable(entry.spec, "quarantined", str(fault))
                continue
            if gives_way and self._is_taken(entry, source):
                displaced.append(entry)
                continue
            claimed.update(entry.keys)
            reason, refusal = withheld.get((self.kind, key)), self._refusal(entry)
            if reason is not None:
                unavailable[key] = Unavailable(entry.spec, "withheld", reason)
            elif refusal is not None:
                unavailable[key] = Unavailable(entry.spec, "gated", refusal)
            else:
                accepted[key] = entry
        return partial(
            self._commit, source, accepted, unavailable=unavailable, displaced=displaced, gives_way=gives_way
        )

    def _commit(
        self,
        source: str,
        entries: dict[str, P],
        *,
        unavailable: dict[str, Unavailable],
        displaced: list[P],
        gives_way: bool,
    ) -> None:
        before = self._by_source.pop(source, {})
        usable = {key: entry for key, entry in before.items() if key in self.entries}
        self._displaced = {key: entry for key, entry in self._displaced.items() if entry.spec.source != source}
        for key, entry in before.items():
            self._remove(entry, "" if key in entries else "Its source no longer publishes it.")
        for entry in entries.values():
            self._displace_for(entry)
            self._add(entry, gives_way=gives_way)
        if entries:
            self._by_source[source] = entries
        self._announce_changes(usable, {key: entry for key, entry in entries.items() if key in self.entries})
        self._unavailable = {key: former for key, former in self._unavailable.items() if former.spec.source != source}
        for entry in displaced:
            self._set_displaced(entry)
        self._restore_displaced()
        self._unavailable.update(unavailable)

    def resolve(self, key: str) -> P | None:
        """Return the entry of a current or former key, if it can be used."""
        return self.entries.get(key) or self.entries.get(self._aliases.get(key, ""))

    def published(self) -> Iterator[tuple[P, Unavailable | None]]:
        """Yield every published entry; with the second part if it is disabled."""
        return ((entry, self._disabled.get(key)) for key, entry in self._published.items())

    def switch(self) -> None:
        """Look anew which entries are disabled, and announce those that can or cannot be used any more."""
        for key, entry in tuple(self._published.items()):
            was_usable = key in self.entries
            self._enlist(key, entry)
            if was_usable and key not in self.entries:
                self._announce("withdrawn", self.kind, key)
            elif not was_usable and key in self.entries:
                self._announce("registered", self.kind, key)

    def visible(self, profile: Profile) -> list[P]:
        """Return the entries that the profile allows, sorted by key."""
        return [entry for _, entry in sorted(self.entries.items()) if profile.allows(entry.spec)]

    def unavailable(self, profile: Profile) -> Sequence[Unavailable]:
        """Return the unavailable entries that the profile allows, sorted by key, without those that were withdrawn."""
        every = {**self._unavailable, **self._disabled}
        return [unavailable for _, unavailable in sorted(every.items()) if profile.allows(unavailable.spec)]

    def find_unavailable(self, key: str, profile: Profile) -> Unavailable | None:
        """Return the disabled, unavailable or withdrawn entry of a key, if the profile allows it."""
        disabled = self._disabled.get(key) or self._disabled.get(self._aliases.get(key, ""))
        unavailable = disabled or self._unavailable.get(key) or self._withdrawn.get(key)
        return unavailable if unavailable is not None and profile.allows(unavailable.spec) else None

    def similar(self, key: str, profile: Profile) -> list[str]:
        """Return the keys that the profile allows and that are similar to this one, most similar first."""
        return self._names.similar(str(key), lambda other: profile.allows(self.entries[other].spec))

    def _fault(
        self, entry: P, source: str, claimed: set[str], *, foreign: bool, gives_way: bool
    ) -> PublishError | None:
        """Return why an entry cannot be published; `claimed` are the keys of the entries before it."""
        noun = self.kind.capitalize()
        try:
            self._check(entry, foreign=foreign)
        except PublishError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the definitions of another program may be wrong in any way
            return PublishError(f"{noun} '{entry.spec.name}' cannot be read: {type(error).__name__}.")
        for key in entry.keys:
            if key in claimed:
                return PublishError(f"Two {self.kind}s of '{source}' are named '{key}'.")
            other = self.holder(key)
            if other is None or other.spec.source == source or gives_way or other.keys[0] in self._gives_way:
                continue
            return PublishError(f"{noun} '{key}' of '{source}' has the name of a {self.kind} of '{other.spec.source}'.")
        return None

    def _is_taken(self, entry: P, source: str) -> bool:
        holders = [self.holder(key) for key in entry.keys]
        return any(holder is not None and holder.spec.source != source for holder in holders)

    def holder(self, key: str) -> P | None:
        """Return the entry that has a current or former key, disabled or not."""
        return self._published.get(key) or self._published.get(self._aliases.get(key, ""))

    def _announce_changes(self, before: dict[str, P], entries: dict[str, P]) -> None:
        for key in before:
            if key not in entries:
                self._announce("withdrawn", self.kind, key)
        for key, entry in entries.items():
            if key not in before:
                self._announce("registered", self.kind, key)
            elif before[key].spec != entry.spec:
                self._announce("updated", self.kind, key)

    def _displace_for(self, entry: P) -> None:
        """Displace the entries that have a key of this one; `prepare` refused it unless they give way."""
        for key in entry.keys:
            other = self.holder(key)
            if other is None:
                continue
            was_usable = other.keys[0] in self.entries
            self._set_displaced(other)
            self._remove(other, f"Another source published a {self.kind} of its name.")
            self._by_source[other.spec.source].pop(other.keys[0], None)
            if was_usable:
                self._announce("withdrawn", self.kind, other.keys[0])

    def _set_displaced(self, entry: P) -> None:
        _log.warning("gave_way tool=%s source=%s", entry.keys[0], entry.spec.source)
        self._displaced[entry.keys[0]] = entry

    def _restore_displaced(self) -> None:
        for key, entry in list(self._displaced.items()):
            if all(self.holder(name) is None for name in entry.keys):
                del self._displaced[key]
                self._add(entry, gives_way=True)
                self._by_source.setdefault(entry.spec.source, {})[key] = entry
                if key in self.entries:
                    self._announce("registered", self.kind, key)

    def _add(self, entry: P, *, gives_way: bool) -> None:
        key, *aliases = entry.keys
        self._published[key] = entry
        self._enlist(key, entry)
        self._aliases.update(dict.fromkeys(aliases, key))
        self._unavailable.pop(key, None)
        self._withdrawn.pop(key, None)
        if gives_way:
            self._gives_way.add(key)

    def _enlist(self, key: str, entry: P) -> None:
        """Let callers use a published entry, unless a switch disables it."""
        switch = self._switch_of(entry.spec)
        if switch is None:
            self._disabled.pop(key, None)
            if key not in self.entries:
                self._names.add(key)
            self.entries[key] = entry
        else:
            self._disabled[key] = Unavailable(entry.spec, "disabled", switch.why, switch.until)
            if self.entries.pop(key, None) is not None:
                self._names.remove(key)

    def _remove(self, entry: P, why: str) -> None:
        """Remove an entry; a reason makes it known as withdrawn."""
        key, *aliases = entry.keys
        del self._published[key]
        self._disabled.pop(key, None)
        if self.entries.pop(key, None) is not None:
            self._names.remove(key)
        for alias in aliases:
            self._aliases.pop(alias, None)
        self._gives_way.discard(key)
        if why:
            self._withdrawn[key] = Unavailable(entry.spec, "withdrawn", why)
            if len(self._withdrawn) > _MAX_WITHDRAWN:
                del self._withdrawn[next(iter(self._withdrawn))]
