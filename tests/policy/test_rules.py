"""The first rule that matches decides, and a rule that cannot be evaluated denies."""

import time
from typing import Any

import pytest
from table_tests import every_row

from callyard import Operation, ToolSpec
from callyard.dispatch.call import ANYONE
from callyard.model.profile import METATOOLS
from callyard.model.spec import Metatool
from callyard.policy.rules import Rules, judge
from callyard.policy.settings import Predicate, Rule


def spec(**facts: Any) -> ToolSpec:
    settings: dict[str, Any] = {
        "name": "pay",
        "description": "Pay.",
        "input_schema": {"type": "object"},
        "operation": Operation.COMMAND,
    }
    return ToolSpec(**{**settings, **facts})


def decision(rules: list[Rule], tool: ToolSpec, arguments: Any = None, *, profile: str = "everything") -> str | None:
    verdict = judge(Rules(rules).of(tool, profile), [arguments or {}], ANYONE)
    return None if verdict is None else verdict.decision


@every_row(
    ("conditions", "matches"),
    [
        ({}, True),
        ({"operations": (Operation.COMMAND,)}, True),
        ({"operations": (Operation.DESTROY,)}, False),
        ({"tools": ("p*",)}, True),
        ({"tools": ("old_pay",)}, True),
        ({"tools": ("q*",)}, False),
        ({"tags": ("money",)}, True),
        ({"tags": ("other",)}, False),
        ({"sources": ("ba?k",)}, True),
        ({"sources": ("shop",)}, False),
        ({"callers": ("local",)}, True),
        ({"callers": ("key:*",)}, False),
        ({"profile": "everything"}, True),
        ({"profile": "other"}, False),
        ({"tools": ("p*",), "tags": ("other",)}, False),
    ],
)
def test_a_rule_matches_by_all_of_its_conditions(conditions: dict[str, Any], matches: bool) -> None:  # noqa: FBT001 - a parameter of a test
    tool = spec(tags=("money",), source="bank", aliases=("old_pay",))
    assert (decision([Rule(decision="deny", **conditions)], tool) == "deny") is matches


@every_row(
    ("test", "arguments", "expected"),
    [
        ({"pointer": "/n", "equals": 1}, {"n": 1}, "allow"),
        ({"pointer": "/n", "equals": 1}, {"n": True}, None),
        ({"pointer": "/n", "equals": "1"}, {"n": 1}, None),
        ({"pointer": "/n", "equals": False}, {"n": False}, "allow"),
        ({"pointer": "/n", "in_": (1, "x")}, {"n": "x"}, "allow"),
        ({"pointer": "/n", "in_": (1, "x")}, {"n": 2}, None),
        ({"pointer": "/n", "less_than": 3}, {"n": 2.5}, "allow"),
        ({"pointer": "/n", "less_than": 3}, {"n": 3}, None),
        ({"pointer": "/n", "less_than": 3}, {"n": "2"}, "deny"),
        ({"pointer": "/n", "less_than": 3}, {"n": True}, "deny"),
        ({"pointer": "/n", "less_than": 3}, {"n": None}, None),
        ({"pointer": "/n", "less_than": 3}, {}, None),
        ({"pointer": "/n", "matches": "a+"}, {"n": "aaa"}, "allow"),
        ({"pointer": "/n", "matches": "a+"}, {"n": "aaab"}, None),
        ({"pointer": "/n", "matches": "a+"}, {"n": "aaa\n"}, None),
        ({"pointer": "/n", "matches": "a+|b"}, {"n": "ab"}, None),
        ({"pointer": "/n", "matches": "a+"}, {"n": 1}, "deny"),
        ({"pointer": "/n", "matches": "a+"}, {"n": "a" * 200_000}, "deny"),
        ({"pointer": "/list/1/x", "equals": 2}, {"list": [{}, {"x": 2}]}, "allow"),
        ({"pointer": "/a~1b", "equals": 2}, {"a/b": 2}, "allow"),
        ({"pointer": "/n", "equals": [1]}, {"n": [1]}, "allow"),
        ({"pointer": "/n", "equals": 1}, {"n": object()}, "deny"),
    ],
)
def test_a_predicate_tests_one_value(test: dict[str, Any], arguments: dict[str, Any], expected: str | None) -> None:
    assert decision([Rule(decision="allow", when=(Predicate(**test),))], spec(), arguments) == expected


def test_an_evil_pattern_and_text_do_not_freeze() -> None:
    rule = Rule(decision="ask", when=(Predicate(pointer="/n", matches="(a+)+b"),))
    before = time.perf_counter()
    assert decision([rule], spec(), {"n": "a" * 50_000}) is None
    assert time.perf_counter() - before < 5  # a backtracking engine would need years


def test_the_first_match_wins_and_rules_of_a_profile_come_first() -> None:
    rules = [Rule(decision="deny"), Rule(decision="allow", profile="staff"), Rule(decision="ask")]
    assert decision(rules, spec(), profile="staff") == "allow"
    assert decision(rules, spec()) == "deny"


def test_a_metatool_is_matched_only_by_its_name_or_source() -> None:
    tool = spec(name="call_tool", source=METATOOLS, metatool=Metatool("call", "run_tool"))
    assert (
        decision(
            [Rule(decision="deny"), Rule(decision="deny", tools=("*",)), Rule(decision="deny", sources=("*",))], tool
        )
        is None
    )
    assert decision([Rule(decision="deny", tools=("run_tool",))], tool) == "deny"
    assert decision([Rule(decision="deny", sources=(METATOOLS,))], tool) == "deny"


@pytest.mark.parametrize(
    "wrong",
    [
        {"pointer": "n", "equals": 1},
        {"pointer": "/n"},
        {"pointer": "/n", "equals": 1, "less_than": 2},
    ],
)
def test_a_wrong_predicate_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="'"):
        Predicate(**wrong)


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"(a)\1"])
def test_a_pattern_that_is_not_linear_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        Rules([Rule(decision="deny", when=(Predicate(pointer="/n", matches=pattern),))])


def test_an_unknown_decision_is_refused() -> None:
    with pytest.raises(ValueError, match="maybe"):
        Rule(decision="maybe")  # pyright: ignore[reportArgumentType] - the wrong decision is the test
