"""What every search strategy shares: hits and pages, the filter of a search, hidden tools, and tools by name.

It ranks nothing.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from types import FunctionType
from typing import Final, Generic, TypeVar

import msgspec

from callyard.model.spec import Operation, ToolSpec
from callyard.search.text import fold, words_of

__all__ = ["Allows", "Filter", "Found", "HiddenTools", "Hit", "NameList", "Rule", "closest_namespaces", "page"]

_CLOSEST: Final = 5
_RULES: Final = 32
_Key = TypeVar("_Key")
Allows = Callable[[ToolSpec], bool]
"""Whether a tool exists for the caller; the result is cached, so it must always be the same for a tool."""


class Hit(msgspec.Struct, frozen=True):
    """One tool that was found, its score, and briefly why."""

    spec: ToolSpec
    score: float
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits."""

    hits: list[Hit]
    total: int | None = None
    """How many tools fit in all, where that is known."""
    more: bool = False
    """Whether another page follows."""
    closest: list[str] = []
    """The closest namespaces, if nothing fits."""


def page(ordered: Iterable[Hit], *, offset: int, limit: int) -> Found:
    """Return one page of ordered hits; the total is known if the page is the last one."""
    offset, limit = max(offset, 0), max(limit, 0)
    seen = list(islice(ordered, offset + limit + 1))
    more = len(seen) > offset + limit
    return Found(hits=seen[offset : offset + limit], total=None if more else len(seen), more=more)


class NameList:
    """The tools of an index by name, for queries without words that could be ranked."""

    def __init__(self) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self._by_lower: dict[str, tuple[str, ...]] = {}
        """The names that differ in case only, by their lower-case form."""
        self._sorted: list[str] | None = None

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name."""
        self.remove(spec.name)
        self._specs[spec.name] = spec
        lower = spec.name.lower()
        self._by_lower[lower] = tuple(sorted((*self._by_lower.get(lower, ()), spec.name)))
        self._sorted = None

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        if self._specs.pop(name, None) is None:
            return
        lower = name.lower()
        others = tuple(other for other in self._by_lower.pop(lower) if other != name)
        if others:
            self._by_lower[lower] = others
        self._sorted = None

    def exact(self, query: str, where: Allows) -> ToolSpec | None:
        """Return the tool whose name is the query, ignoring case; one of the same case first."""
        wanted = query.strip()
        names = sorted(self._by_lower.get(wanted.lower(), ()), key=lambda name: name != wanted)
        return next((spec for spec in map(self._specs.__getitem__, names) if where(spec)), None)

    def search(self, query: str, where: Allows) -> Iterator[Hit]:
        """Yield the tools whose names hold every word of the query, an exact match first; all if it is empty."""
        if self._sorted is None:
            self._sorted = sorted(self._specs)
        query = query.strip()
        words = dict.fromkeys(words_of(fold(query)))
        quoted = ", ".join(f"'{word}'" for word in words or (query,))
        why = f"{quoted} in name" if query else "all tools by name"
        exact = self.exact(query, where)
        if exact is not None:
            yield Hit(exact, 0.0, why)
        for name in filter(_name_matcher(words), self._sorted) if words or not query else ():
            spec = self._specs[name]
            if spec is not exact and where(spec):
                yield Hit(spec, 0.0, why)


def _name_matcher(words: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that checks whether a name holds all words."""
    # A substring is searched before its surroundings, and only names with capitals are split into words: both save most of the time.
    alone = [(word, re.compile(rf"{re.escape(word)}(?![^\W\d_])(?<![^\W\d_]{re.escape(word)})").search) for word in words]

    def matches(name: str) -> bool:
        lower = name.lower()
        for word, search in alone:
            if word not in lower:
                return False
            if not search(lower):
                return lower != name and set(words).issubset(words_of(fold(name)))
        return True

    return matches


def closest_namespaces(scored: Iterable[tuple[ToolSpec, float]], visible: Iterable[ToolSpec]) -> list[str]:
    """Return the namespaces with the best scores, or else those with the most visible tools."""
    sums: dict[str, float] = {}
    for spec, score in scored:
        sums[spec.source] = sums.get(spec.source, 0.0) + score
    sums.pop("", None)
    counts = sums or Counter(spec.source for spec in visible if spec.source)
    return sorted(counts, key=lambda source: (-counts[source], source))[:_CLOSEST]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a search may return: those of a rule, narrowed by namespace and operation."""

    allows: Allows
    namespace: str | None = None
    operation: Operation | None = None

    def __call__(self, spec: ToolSpec) -> bool:
        """Return whether the tool may be returned; the cheap conditions are checked first."""
        return self.is_asked_for(spec) and self.allows(spec)

    def is_asked_for(self, spec: ToolSpec) -> bool:
        """Return whether the tool is of the namespace and the operation, allowed or not."""
        return (self.namespace is None or spec.source == self.namespace) and (self.operation is None or spec.operation == self.operation)


class Rule(msgspec.Struct, Generic[_Key], frozen=True):
    """A rule and the tools that it hides."""

    allows: Allows
    pending: dict[_Key, ToolSpec]
    """Tools added since the rule was last used."""
    hidden: set[_Key] = msgspec.field(default_factory=set[_Key])
    counts: dict[int, tuple[int, ...]] = msgspec.field(default_factory=dict[int, tuple[int, ...]])
    """Cached numbers of visible tools by term; cleared when a tool is added or removed."""


class HiddenTools(Generic[_Key]):
    """Caches which tools each of the most recently used rules hides."""

    def __init__(self) -> None:
        self._rules: dict[Hashable, Rule[_Key]] = {}

    def add(self, key: _Key, spec: ToolSpec) -> None:
        """Add a tool; each rule is applied to it when it is next used."""
        for rule in self._rules.values():
            rule.pending[key] = spec
            rule.counts.clear()

    def remove(self, key: _Key) -> None:
        """Remove a tool, if it is there."""
        for rule in self._rules.values():
            rule.pending.pop(key, None)
            rule.hidden.discard(key)
            rule.counts.clear()

    def for_rule(self, allows: Allows, tools: Callable[[], Iterable[tuple[_Key, ToolSpec]]]) -> Rule[_Key]:
        """Return a rule with the tools it hides; `tools` returns all tools, for a rule that is new."""
        identity = _identity(allows)
        rule = self._rules.pop(identity, None)
        if rule is None:
            rule = Rule(allows, dict(tools()))
            if len(self._rules) >= _RULES:
                del self._rules[next(iter(self._rules))]
        rule.hidden.update(key for key, spec in rule.pending.items() if not allows(spec))
        rule.pending.clear()
        self._rules[identity] = rule  # last: the dictionary is in order of use
        return rule


def _identity(allows: Allows) -> Hashable:
    """Return a key that is equal for equal rules, because bound methods and lambdas are new objects each time."""
    if isinstance(allows, FunctionType) and not (allows.__closure__ or allows.__defaults__ or allows.__kwdefaults__):
        return id(allows.__code__), id(allows.__globals__)
    owner: object = getattr(allows, "__self__", None)
    try:
        hash(owner)
    except TypeError:
        owner = id(owner)
    return getattr(allows, "__func__", id(allows)), owner
