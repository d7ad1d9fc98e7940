from typing import Any, get_args

import pytest
from table_tests import every_row

from callyard.model.errors import (
    CODES,
    Blame,
    CodeName,
    MayHaveRun,
    ToolError,
    invalid_input,
    not_found,
    not_implemented,
)

TABLE: list[tuple[CodeName, int, bool, bool, Blame, MayHaveRun]] = [
    ("invalid_input", 400, False, True, "caller", "no"),
    ("eval_blocked", 400, False, True, "caller", "no"),
    ("unauthenticated", 401, False, True, "caller", "no"),
    ("permission_denied", 403, False, False, "policy", "no"),
    ("approval_denied", 403, False, False, "policy", "no"),
    ("tool_not_found", 404, False, True, "caller", "no"),
    ("not_found", 404, False, True, "caller", "maybe"),
    ("not_running", 409, False, True, "caller", "no"),
    ("state_error", 409, False, True, "caller", "maybe"),
    ("too_large", 413, False, True, "caller", "no"),
    ("code_error", 422, False, True, "caller", "maybe"),
    ("limit_exceeded", 422, False, True, "caller", "maybe"),
    ("chain_step_failed", 424, False, True, "caller", "maybe"),
    ("rate_limited", 429, True, True, "policy", "no"),
    ("budget_exceeded", 429, False, False, "policy", "no"),
    ("cancelled", 499, False, True, "caller", "maybe"),
    ("internal_error", 500, False, False, "yard", "maybe"),
    ("invalid_output", 500, False, False, "tool", "yes"),
    ("not_supported", 501, False, True, "caller", "no"),
    ("not_implemented", 501, False, False, "tool", "no"),
    ("upstream_error", 502, False, True, "upstream", "maybe"),
    ("upstream_unavailable", 503, True, True, "upstream", "no"),
    ("overloaded", 503, True, True, "yard", "no"),
    ("runtime_unavailable", 503, False, False, "yard", "no"),
    ("timeout", 504, True, True, "tool", "yes"),
]


@every_row("row", TABLE, ids=[row[0] for row in TABLE])
def test_a_code_says_what_the_design_says(row: tuple[CodeName, int, bool, bool, Blame, MayHaveRun]) -> None:
    code = CODES[row[0]]

    assert (code.name, code.http, code.retryable, code.recoverable, code.blame, code.may_have_run) == row


def test_there_are_25_codes_and_no_others() -> None:
    assert list(CODES) == [row[0] for row in TABLE]
    assert set(CODES) == set(get_args(CodeName))
    assert len(CODES) == 25


def test_every_code_has_an_exit_number_of_its_own_that_no_shell_or_python_uses() -> None:
    numbers = [code.exit for code in CODES.values()]

    assert len(set(numbers)) == len(numbers)
    assert all(2 < number < 126 for number in numbers)


@every_row("code", CODES.values(), ids=list(CODES))
def test_every_code_has_a_meaning_and_a_hint_that_are_sentences(code: Any) -> None:
    for text in (code.meaning, code.hint):
        assert text[0].isupper()
        assert text.endswith(".")


def test_some_codes_are_common_and_some_are_not() -> None:
    common = {code.name for code in CODES.values() if code.common}

    assert common > {"invalid_input", "timeout"}
    assert common.isdisjoint({"not_found", "eval_blocked"})


def test_a_failure_carries_its_code_its_sentence_and_its_facts() -> None:
    error = ToolError("rate_limited", "Slow down.", retry_after_ms=5, limit=3)

    assert error.code == "rate_limited"
    assert error.message == str(error) == "Slow down."
    assert error.details == {"retry_after_ms": 5, "limit": 3}
    assert (error.hint, error.next_actions, error.blame, error.may_have_run, error.data) == (None, (), None, None, None)


def test_a_failure_takes_a_reason_and_everything_that_overrides_its_code() -> None:
    error = ToolError(
        "state_error",
        "Closed.",
        reason="already_closed",
        hint="Open it.",
        next_actions=["open()"],
        blame="tool",
        may_have_run=False,
        data=[1],
        account=7,
    )

    assert error.details == {"reason": "already_closed", "account": 7}
    assert (error.hint, error.next_actions, error.blame) == ("Open it.", ("open()",), "tool")
    assert (error.may_have_run, error.data) == (False, [1])


@every_row("code", ["", "oops", "INVALID_INPUT", "invalid_input "])
def test_a_failure_refuses_a_code_that_is_none(code: Any) -> None:
    with pytest.raises(ValueError, match="is not a code"):
        ToolError(code, "What?")


def test_the_helper_for_an_argument_names_its_field() -> None:
    error = invalid_input("'end' is before 'start'.", field="end", start=3)

    assert error.code == "invalid_input"
    assert error.details["issues"] == [{"field": "end", "code": "value_error", "message": error.message}]
    assert error.details["start"] == 3


def test_the_helper_for_what_is_missing_names_its_kind() -> None:
    error = not_found("order", 7, shop="x")

    assert error.code == "not_found"
    assert error.details == {"kind": "order", "shop": "x"}


def test_the_helper_for_a_stub_names_what_is_missing() -> None:
    error = not_implemented("Undo", issue=12)

    assert error.code == "not_implemented"
    assert error.details == {"missing": "Undo", "issue": 12}
