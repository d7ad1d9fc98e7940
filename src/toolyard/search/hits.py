"""Listings: the tools of an index by name, for questions that words cannot answer.

Every strategy has one; it ranks nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import FunctionType
from typing import Final, Generic, TypeVar

import msgspec

from toolyard.model.spec import Operation, ToolSpec
from toolyard.search.text import plain, read_words, split_word

__all__ = ["Admits", "Allows", "Found", "Hidden", "Hit", "Listing", "Rule", "closest", "page"]


_CLOSEST: Final = 5
Allows = Callable[[ToolSpec], bool]
"""Whether a tool exists for whoever asks; it must always say the same of a tool, because what it said is remembered."""


class Hit(msgspec.Struct, frozen=True):
    """One tool that was found, how well it fits, and briefly why."""

    spec: ToolSpec
    score: float
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits; the closest namespaces are named when nothing fits."""

    hits: list[Hit]
    total: int | None = None
    """How many fit in all, where that is known."""
    more: bool = False
    """Whether another page follows."""
    closest: list[str] = []


def page(ordered: Iterable[Hit], *, offset: int, limit: int) -> Found:
    """Return one page of hits that come in their order; the total is known if they end with it."""
    offset, limit = max(offset, 0), max(limit, 0)
    seen = list(islice(ordered, offset + limit + 1))
    more = len(seen) > offset + limit
    return Found(hits=seen[offset : offset + limit], total=None if more else len(seen), more=more)


class Listing:
    """The tools of an index, by name."""

    def __init__(self) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self._lower: dict[str, tuple[str, ...]] = {}
        """The names that differ in their capitals alone, under what they share."""
        self._names: list[str] | None = None

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        self.remove(spec.name)
        self._specs[spec.name] = spec
        lower = spec.name.lower()
        self._lower[lower] = tuple(sorted((*self._lower.get(lower, ()), spec.name)))
        self._names = None

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        if self._specs.pop(name, None) is None:
            return
        lower = name.lower()
        others = tuple(other for other in self._lower.pop(lower) if other != name)
        if others:
            self._lower[lower] = others
        self._names = None

    def named(self, query: str, admits: Allows) -> ToolSpec | None:
        """Return the tool that has the query for its name, whatever its capitals; one that is written alike before others."""
        wanted = query.strip()
        names = sorted(self._lower.get(wanted.lower(), ()), key=lambda name: name != wanted)
        return next((spec for spec in map(self._specs.__getitem__, names) if admits(spec)), None)

    def by_name(self, query: str, admits: Allows) -> Iterator[Hit]:
        """Return the tools whose names hold every word of the query, one that is named by it first; all if it is empty."""
        if self._names is None:
            self._names = sorted(self._specs)
        wanted = query.strip()
        words = dict.fromkeys(_words_of(wanted))
        said = ", ".join(f"'{word}'" for word in words or (wanted,))
        why = f"{said} in name" if wanted else "all tools by name"
        exact = self.named(wanted, admits)
        if exact is not None:
            yield Hit(exact, 0.0, why)
        for name in filter(_holding(words), self._names) if words or not wanted else ():
            spec = self._specs[name]
            if spec is not exact and admits(spec):
                yield Hit(spec, 0.0, why)


def _words_of(text: str) -> list[str]:
    return [word for written in read_words(plain(text)) for word in split_word(written)]


def _holding(words: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that says whether a name holds all words; it takes apart only names that may hold them behind capitals."""
    # Where a word stands is looked for before what stands around it, because that is quick.
    alone = [(word, re.compile(rf"{re.escape(word)}(?![^\W\d_])(?<![^\W\d_]{re.escape(word)})").search) for word in words]

    def holds(name: str) -> bool:
        lower = name.lower()
        for word, search in alone:
            if word not in lower:
                return False
            if not search(lower):
                return lower != name and set(words).issubset(_words_of(name))
        return True

    return holds


def closest(scored: Iterable[tuple[ToolSpec, float]], visible: Iterable[ToolSpec]) -> list[str]:
    """Return the namespaces that have the most of the tools that nearly fit, or else of all that are visible."""
    sums: dict[str, float] = {}
    for spec, score in scored:
        sums[spec.source] = sums.get(spec.source, 0.0) + score
    sums.pop("", None)
    counts = sums or Counter(spec.source for spec in visible if spec.source)
    return sorted(counts, key=lambda source: (-counts[source], source))[:_CLOSEST]


_RULES: Final = 32
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admits:
    """What a question may be answered with: what a rule allows, narrowed by what is asked for beside the words."""

    allows: Allows
    namespace: str | None = None
    operation: Operation | None = None

    def __call__(self, spec: ToolSpec) -> bool:
        """Return whether the answer may hold the tool; the cheap questions are asked first."""
        return self.is_asked_for(spec) and self.allows(spec)

    def is_asked_for(self, spec: ToolSpec) -> bool:
        """Return whether the tool is of the namespace and the operation, allowed or not."""
        return (self.namespace is None or spec.source == self.namespace) and (self.operation is None or spec.operation == self.operation)


@dataclass(frozen=True, slots=True)
class Rule(Generic[_Key]):
    """A rule and what it hides."""

    allows: Allows
    fresh: dict[_Key, ToolSpec]
    """The tools that came since it was last asked."""
    hidden: set[_Key] = field(default_factory=set[_Key])
    counts: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    """How many tools it shows that hold a term, as was counted since tools last came or went."""


class Hidden(Generic[_Key]):
    """The tools of an index that each of the last few rules hides; a rule must always say the same of a tool."""

    def __init__(self) -> None:
        self._rules: dict[Hashable, Rule[_Key]] = {}

    def add(self, key: _Key, spec: ToolSpec) -> None:
        """Take note of a tool; rules are asked about it when they are next used."""
        for rule in self._rules.values():
            rule.fresh[key] = spec
            rule.counts.clear()

    def remove(self, key: _Key) -> None:
        """Forget a tool, if it is there."""
        for rule in self._rules.values():
            rule.fresh.pop(key, None)
            rule.hidden.discard(key)
            rule.counts.clear()

    def under(self, allows: Allows, tools: Callable[[], Iterable[tuple[_Key, ToolSpec]]]) -> Rule[_Key]:
        """Return a rule with what it hides of these tools, which are all that were noted."""
        named = _identity(allows)
        rule = self._rules.pop(named, None)
        if rule is None:
            rule = Rule(allows, dict(tools()))
            if len(self._rules) >= _RULES:
                del self._rules[next(iter(self._rules))]
        rule.hidden.update(key for key, spec in rule.fresh.items() if not allows(spec))
        rule.fresh.clear()
        self._rules[named] = rule  # the one used last is at the end
        return rule


def _identity(allows: Allows) -> Hashable:
    """Return what is the same for the same rule: a method is made anew when it is taken from its object, and a lambda where it stands."""
    if isinstance(allows, FunctionType) and not (allows.__closure__ or allows.__defaults__ or allows.__kwdefaults__):
        return id(allows.__code__), id(allows.__globals__)
    owner: object = getattr(allows, "__self__", None)
    try:
        hash(owner)
    except TypeError:
        owner = id(owner)
    return getattr(allows, "__func__", id(allows)), owner
