"""What is visible: which tools a question may be answered with, and which a rule hides, remembered for the last few rules."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Final, Generic, TypeVar

from toolyard.search.listing import Allows
from toolyard.spec import Operation, ToolSpec

__all__ = ["Admits", "Hidden", "Rule"]

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
