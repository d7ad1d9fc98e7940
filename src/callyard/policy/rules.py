"""The rules of a yard, compiled: they judge a call by its tool, caller and arguments.

The first rule that matches a call decides. Rules know no store and ask nobody.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from callyard.dispatch.arguments import same_json
from callyard.dispatch.call import Caller
from callyard.dispatch.results import at_pointer
from callyard.model.profile import compile_globs
from callyard.model.spec import Operation, ToolSpec
from callyard.policy.settings import Decision, Predicate, Rule

__all__ = ["ALLOWED", "Candidates", "Rules", "Verdict", "first_for", "judge", "unmatched"]

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
    def is_equal(value: object) -> bool:
        try:
            return same_json(value, other)
        except (TypeError, ValueError):
            raise CannotEvaluateError("the value is no JSON") from None

    return is_equal


def _number_test(bound: float) -> Callable[[object], bool]:
    def is_less(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CannotEvaluateError("the value is no number")
        return value < bound

    return is_less


def _pattern_test(pattern: str) -> Callable[[object], bool]:
    """Return the test by a regular expression, in an engine of linear time, because strangers write arguments."""
    from jsonschema_rs import RegexOptions, ValidationError, validator_for  # noqa: PLC0415 - slow to load, and few rules need it

    try:
        validator_for({"pattern": pattern}, pattern_options=RegexOptions())  # by itself, so that no ')' ends the group
        whole = f"^(?s:{pattern})$"  # a line break does not end the text
        is_valid = validator_for({"pattern": whole}, pattern_options=RegexOptions()).is_valid
    except ValidationError:
        raise ValueError(
            f"The pattern '{pattern}' is no regular expression without look-around and back-references."
        ) from None

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

    def matches(self, arguments: object) -> bool:
        """Return whether arguments pass every test.

        Raises:
            CannotEvaluateError: A test cannot be evaluated.
        """
        for test in self.tests:
            value = _value_at(arguments, test.predicate.pointer)
            try:
                if value is None or not test.passes(value):
                    return False
            except CannotEvaluateError as error:
                message = f"The rule '{test.predicate}' cannot be evaluated: {error}."
                raise CannotEvaluateError(message) from error
        return True


def _value_at(arguments: object, pointer: str) -> object:
    try:
        return at_pointer(arguments, pointer)
    except LookupError:
        return None


class Rules:
    """The rules of a yard, in the order in which they are tried."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.listed: Sequence[Rule] = sorted(rules, key=lambda rule: not rule.profile)
        self._compiled = [_compile(rule, number) for number, rule in enumerate(self.listed, start=1)]

    def of(self, spec: ToolSpec, profile: str, *, may_destroy: bool = False) -> "Candidates":
        """Return the rules that may decide about a tool, up to the first that matches all of its calls.

        One that perhaps destroys something has two operations: a rule that allows must match both, any other one.
        """
        operations = dict.fromkeys([spec.operation, Operation.DESTROY] if may_destroy else [spec.operation])
        specs = [msgspec.structs.replace(spec, operation=operation) for operation in operations]
        found: list[_Candidate] = []
        for rule, candidate in zip(self.listed, self._compiled, strict=True):
            matches = [rule.matches_tool(one) for one in specs]
            is_match = all(matches) if rule.decision == "allow" else any(matches)
            if rule.profile in {"", profile} and is_match:
                found.append(candidate)
                if candidate.is_certain:
                    break
        return found


def unmatched(rules: Sequence[Rule], specs: Iterable[ToolSpec]) -> list[str]:
    """Return a sentence for each of the rules, in their order, that names what no tool, resource or prompt has."""
    known, sentences = list(specs), list[str]()
    for number, rule in enumerate(rules, start=1):
        missing: list[str] = []
        for key in ("tools", "sources", "tags"):
            for entry in getattr(rule, key):
                only = msgspec.structs.replace(_NAMELESS, decision=rule.decision, **{key: (entry,)})
                if not any(only.matches_tool(spec) for spec in known):
                    missing.append(f"'{entry}' in '{key}'")
        if missing:
            sentences.append(f"Rule {number} names no known tool by {', '.join(missing)}: {rule}.")
        elif not any(rule.matches_tool(spec) for spec in known):
            sentences.append(f"Rule {number} matches no known tool: {rule}.")
    return sentences


_NAMELESS: Final = Rule(decision="deny")


def _compile(rule: Rule, number: int) -> _Candidate:
    callers = compile_globs(rule.callers) if rule.callers else None
    tests = tuple(_Test(compile_predicate(test), test) for test in rule.when)
    return _Candidate(Verdict(rule.decision, rule, rule.reason or f"A rule says: {rule}.", number), callers, tests)


Candidates = Sequence[_Candidate]
"""The rules that may decide about a tool."""


def first_for(candidates: Candidates, caller: Caller) -> Verdict | None:
    """Return the first verdict that some arguments of a caller get, unless they are allowed by what they are."""
    for candidate in candidates:
        may_match = candidate.callers is None or candidate.callers.match(caller.identity) is not None
        if may_match and not (candidate.tests and candidate.verdict.decision == "allow"):
            return candidate.verdict
    return None


def judge(candidates: Candidates, views: Sequence[Any], caller: Caller) -> Verdict | None:
    """Return the verdict of the first rule that matches a call, or None; a rule that cannot be evaluated denies.

    The views are its arguments as JSON: as they are approved, and after the check. A rule that allows must match all of
    them, and any other rule one of them.
    """
    for candidate in candidates:
        if candidate.callers is not None and candidate.callers.match(caller.identity) is None:
            continue
        try:
            matches = [candidate.matches(view) for view in views]
        except CannotEvaluateError as error:
            return msgspec.structs.replace(candidate.verdict, decision="deny", why=str(error))
        if all(matches) if candidate.verdict.decision == "allow" else any(matches):
            return candidate.verdict
    return None
