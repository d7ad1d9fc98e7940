"""Rules: which calls run at once, which need the approval of a person, and which are denied.

The first rule that matches a call decides. Rules know no store and ask nobody.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from toolyard.dispatch.call import Caller
from toolyard.dispatch.results import at_pointer
from toolyard.model.envelope import encode
from toolyard.model.profile import METATOOLS, Toolset
from toolyard.model.spec import Operation, ToolSpec, make_tuples

__all__ = ["ALLOWED", "ASK_BEFORE_DESTROY", "Candidates", "Decision", "Predicate", "Rule", "Rules", "Verdict", "judge"]

Decision = Literal["allow", "ask", "deny"]
_CHARACTERS: Final = 100_000
"""The longest text that a pattern is compared with; a longer one cannot be evaluated."""
_TESTS: Final = ("equals", "matches", "less_than", "in")


class CannotEvaluateError(Exception):
    """A predicate cannot be evaluated for these arguments; its text says why."""


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

    def compiled(self) -> Callable[[object], bool]:
        """Return the test as a function of a value that is not null.

        Raises:
            ValueError: The regular expression is wrong.
        """
        if self.matches is not None:
            return _pattern_test(self.matches)
        if self.less_than is not None:
            return _number_test(self.less_than)
        values = (self.equals,) if self.in_ is None else self.in_
        return lambda value: any(_is_same(value, other) for other in values)

    def __str__(self) -> str:
        """Return the test in words."""
        if self.matches is not None:
            return f"'{self.pointer}' matches '{self.matches}'"
        if self.less_than is not None:
            return f"'{self.pointer}' is less than {self.less_than:g}"
        shown = msgspec.json.encode(self.equals if self.in_ is None else self.in_).decode()
        return f"'{self.pointer}' {'is' if self.in_ is None else 'is one of'} {shown}"


def _is_same(value: object, other: object) -> bool:
    return (type(value) is bool) is (type(other) is bool) and value == other


def _number_test(bound: float) -> Callable[[object], bool]:
    def is_less(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CannotEvaluateError("the value is no number")
        return value < bound

    return is_less


def _pattern_test(pattern: str) -> Callable[[object], bool]:
    """Return the test by a regular expression, in an engine whose time is linear, because strangers write the arguments."""
    from jsonschema_rs import RegexOptions, ValidationError, validator_for  # noqa: PLC0415 - slow to load, and few rules need it

    try:
        is_valid = validator_for({"pattern": f"^(?:{pattern})$"}, pattern_options=RegexOptions()).is_valid
    except ValidationError:
        raise ValueError(f"The pattern '{pattern}' is no regular expression without look-around and back-references.") from None

    def matches(value: object) -> bool:
        if not isinstance(value, str):
            raise CannotEvaluateError("the value is no text")
        if len(value) > _CHARACTERS:
            raise CannotEvaluateError("the text is too long")
        return is_valid(value)

    return matches


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
        make_tuples(self, "operations", "tools", "tags", "sources", "callers", "when")
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


class Verdict(NamedTuple):
    """What the rules decide about a call, by which rule and why."""

    decision: Decision
    rule: Rule | None = None
    why: str = ""
    number: int = 0
    """The position of the rule, from 1; 0 if no rule of the settings decided."""


ALLOWED: Final = Verdict("allow", None, "No rule matches.")


class _Test(NamedTuple):
    """A compiled predicate."""

    name: str
    """The argument, if the pointer names one; empty for a value inside one."""
    passes: Callable[[object], bool]
    predicate: Predicate


class _Candidate(NamedTuple):
    """A rule that matches some calls of a tool, compiled."""

    verdict: Verdict
    callers: "re.Pattern[str] | None"
    tests: tuple[_Test, ...]

    @property
    def is_certain(self) -> bool:
        """Return whether it matches every call of the tool."""
        return self.callers is None and not self.tests

    def judge(self, arguments: Mapping[str, Any], caller: Caller) -> Verdict | None:
        """Return the verdict, if the rule matches the call; a rule that cannot be evaluated denies."""
        if self.callers is not None and self.callers.match(caller.identity) is None:
            return None
        for name, passes, predicate in self.tests:
            value = arguments.get(name) if name else arguments
            try:
                if not name or type(value) not in _SCALARS:
                    value = _plain_value(arguments, predicate.pointer)
                if value is None or not passes(value):
                    return None
            except CannotEvaluateError as error:
                return self.verdict._replace(decision="deny", why=f"The rule '{predicate}' cannot be evaluated: {error}.")
        return self.verdict


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _plain_value(arguments: Mapping[str, Any], pointer: str) -> object:
    """Return the value at a pointer as JSON has it: arguments may hold objects of any type."""
    try:
        return at_pointer(msgspec.json.decode(encode(arguments)), pointer)
    except LookupError:
        return None
    except TypeError:
        raise CannotEvaluateError("the arguments are no JSON") from None


class Rules:
    """The rules of a yard, in the order in which they are tried."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        listed = tuple(rules)
        self.listed: Sequence[Rule] = (*(rule for rule in listed if rule.profile), *(rule for rule in listed if not rule.profile))
        self._compiled = [_compile(rule, number) for number, rule in enumerate(self.listed, start=1)]

    def of(self, spec: ToolSpec, profile: str) -> "Candidates":
        """Return the rules that may decide about a tool, up to the first that matches all of its calls."""
        found: list[_Candidate] = []
        for rule, candidate in zip(self.listed, self._compiled, strict=True):
            if rule.profile in {"", profile} and rule.matches_tool(spec):
                found.append(candidate)
                if candidate.is_certain:
                    break
        return found


def _compile(rule: Rule, number: int) -> _Candidate:
    callers = re.compile("|".join(translate(pattern) for pattern in rule.callers)) if rule.callers else None
    tests = tuple(_Test(_argument(predicate.pointer), predicate.compiled(), predicate) for predicate in rule.when)
    return _Candidate(Verdict(rule.decision, rule, rule.reason or f"A rule says: {rule}.", number), callers, tests)


def _argument(pointer: str) -> str:
    """Return the name of the argument that a pointer names, or an empty text if it points into one."""
    name = pointer[1:]
    return "" if "/" in name or "~" in name else name


Candidates = Sequence[_Candidate]
"""The rules that may decide about a tool."""


def judge(candidates: Candidates, arguments: object, caller: Caller) -> Verdict | None:
    """Return the verdict of the first rule that matches a call, or None."""
    for candidate in candidates:
        verdict = candidate.judge(cast("Mapping[str, Any]", arguments), caller)
        if verdict is not None:
            return verdict
    return None
