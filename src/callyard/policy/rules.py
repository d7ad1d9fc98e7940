"""The rules of a yard, compiled: they judge a call by its tool, caller and arguments.

The first rule that matches a call decides. Rules know no store and ask nobody.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from callyard.dispatch.call import Caller
from callyard.dispatch.results import at_pointer
from callyard.model.envelope import encode
from callyard.model.profile import compile_globs
from callyard.model.rule import Decision, Predicate, Rule
from callyard.model.spec import ToolSpec

__all__ = ["ALLOWED", "Candidates", "Rules", "Verdict", "judge"]

_CHARACTERS: Final = 100_000
"""The longest text that a pattern is compared with; a longer one cannot be evaluated."""


class CannotEvaluateError(Exception):
    """A predicate cannot be evaluated for these arguments; its text says why."""


def compile_predicate(predicate: Predicate) -> Callable[[object], bool]:
    """Return a predicate as a function of a value that is not null.

    Raises:
        ValueError: The regular expression is wrong.
    """
    if predicate.matches is not None:
        return _pattern_test(predicate.matches)
    if predicate.less_than is not None:
        return _number_test(predicate.less_than)
    if predicate.in_ is None:
        return _equality_test(predicate.equals)
    tests = [_equality_test(value) for value in predicate.in_]
    return lambda value: any(test(value) for test in tests)


def _equality_test(other: object) -> Callable[[object], bool]:
    is_flag = type(other) is bool  # True is no 1 here
    return lambda value: value == other and (type(value) is bool) is is_flag


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


class Verdict(msgspec.Struct, frozen=True):
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
    callers = compile_globs(rule.callers) if rule.callers else None
    tests = tuple(_Test(_argument(predicate.pointer), compile_predicate(predicate), predicate) for predicate in rule.when)
    return _Candidate(Verdict(rule.decision, rule, rule.reason or f"A rule says: {rule}.", number), callers, tests)


def _argument(pointer: str) -> str:
    """Return the name of the argument that a pointer names, or an empty text if it points into one."""
    name = pointer[1:]
    return "" if "/" in name or "~" in name else name


Candidates = Sequence[_Candidate]
"""The rules that may decide about a tool."""


def judge(candidates: Candidates, arguments: Mapping[str, Any], caller: Caller) -> Verdict | None:
    """Return the verdict of the first rule that matches a call, or None; a rule that cannot be evaluated denies."""
    for verdict, callers, tests in candidates:  # in one function, because a call for each rule would take twice the time
        if callers is not None and callers.match(caller.identity) is None:
            continue
        for name, passes, predicate in tests:
            value = arguments.get(name) if name else arguments
            try:
                if type(value) not in _SCALARS:
                    value = _plain_value(arguments, predicate.pointer)
                if value is None or not passes(value):
                    break
            except CannotEvaluateError as error:
                return msgspec.structs.replace(verdict, decision="deny", why=f"The rule '{predicate}' cannot be evaluated: {error}.")
        else:
            return verdict
    return None
