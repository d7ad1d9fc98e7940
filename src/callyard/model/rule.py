"""Rules as data: which calls run at once, which need the approval of a person, and which are denied."""

from typing import Any, Final, Literal

import msgspec

from callyard.model.profile import METATOOLS, Toolset
from callyard.model.spec import Operation, ToolSpec, make_tuples

__all__ = ["ASK_BEFORE_DESTROY", "Decision", "Predicate", "Rule"]

Decision = Literal["allow", "ask", "deny"]
_TESTS: Final = ("equals", "matches", "less_than", "in")
_LISTS: Final = ("operations", "tools", "tags", "sources", "callers", "when")


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"in_": "in"}):
    """A test of one argument. A value that is absent or null passes no test."""

    pointer: str
    """The JSON pointer of the value in the arguments, such as '/amount'."""
    equals: Any = None
    """Passes if the value is this one."""
    matches: str | None = None
    """Passes if the whole text matches this regular expression, which has no look-around and no back-references."""
    less_than: float | None = None
    """Passes if the number is below this one; a value that is no number denies the call."""
    in_: tuple[Any, ...] | None = None
    """Passes if the value is one of these."""

    def __post_init__(self) -> None:
        if self.pointer and not self.pointer.startswith("/"):
            raise ValueError(f"The pointer '{self.pointer}' must start with '/'.")
        if sum(test is not None for test in (self.equals, self.matches, self.less_than, self.in_)) != 1:
            raise ValueError(f"The predicate for '{self.pointer}' needs exactly one of {', '.join(map(repr, _TESTS))}.")

    def __str__(self) -> str:
        """Return the test in words."""
        if self.matches is not None:
            return f"'{self.pointer}' matches '{self.matches}'"
        if self.less_than is not None:
            return f"'{self.pointer}' is less than {self.less_than:g}"
        shown = msgspec.json.encode(self.equals if self.in_ is None else self.in_).decode()
        return f"'{self.pointer}' {'is' if self.in_ is None else 'is one of'} {shown}"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision about the calls that it matches: those that fit each of its conditions. A rule without conditions matches all.

    A condition fits if one of its entries does. Metatools reach no more than their callers may, so a rule matches one only if it
    has its name in `tools`, or 'metatools' in `sources`.
    """

    decision: Decision
    """'allow', 'ask' (a person must approve) or 'deny'."""
    operations: tuple[Operation, ...] = ()
    """Operations of tools."""
    tools: tuple[str, ...] = ()
    """Patterns of names of tools, former names included."""
    tags: tuple[str, ...] = ()
    """Tags of tools."""
    sources: tuple[str, ...] = ()
    """Patterns of names of providers."""
    callers: tuple[str, ...] = ()
    """Patterns of identities of callers."""
    when: tuple[Predicate, ...] = ()
    """Tests of the arguments, all of which must pass."""
    by: Literal["anyone", "operator"] = "anyone"
    """Who may approve: also the person at the caller's client ('anyone'), or only an operator."""
    reason: str = ""
    """Why, in a sentence for people."""
    profile: str = ""
    """The only profile that the rule is for; such rules come before those for all."""

    def __post_init__(self) -> None:
        make_tuples(self, *_LISTS)
        if self.decision not in {"allow", "ask", "deny"}:
            raise ValueError(f"There is no decision '{self.decision}'. Known: 'allow', 'ask', 'deny'.")
        for operation in self.operations:
            Operation(operation)

    def matches_tool(self, spec: ToolSpec) -> bool:
        """Return whether the rule matches some calls of a tool."""
        if spec.source == METATOOLS:
            return METATOOLS in self.sources or not {spec.name, spec.metatool.alias, spec.metatool.alias_of}.isdisjoint(self.tools)
        toolset = Toolset(name="rule", names=self.tools, tags=self.tags, sources=self.sources, operations=self.operations)
        return toolset.holds(spec)

    def __str__(self) -> str:
        """Return the rule in words."""
        lists = {"operations": self.operations, "tools": self.tools, "tags": self.tags, "sources": self.sources, "callers": self.callers}
        parts = [f"{name} {', '.join(map(str, values))}" for name, values in lists.items() if values]
        parts += [str(predicate) for predicate in self.when]
        return f"{self.decision} {'; '.join(parts) or 'every call'}"


ASK_BEFORE_DESTROY: Final = Rule(
    decision="ask", operations=(Operation.DESTROY,), reason="The tool deletes or overwrites something, and that cannot be undone."
)
"""The last rule of a served yard."""
