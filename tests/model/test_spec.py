from typing import Any

import msgspec
import pytest
from table_tests import every_row

from callyard import Confirmation, EvalRule, Example, Limits, Operation, PublishError, Reason, ToolSpec
from callyard.model.envelope import encode
from callyard.model.spec import Annotations, check_spec, with_codes

EMPTY: dict[str, Any] = {"type": "object", "additionalProperties": False}
CODE: dict[str, Any] = {**EMPTY, "properties": {"code": {"type": "string"}}}


def spec(**given: Any) -> ToolSpec:
    least: dict[str, Any] = {"name": "walk", "description": "Walk.", "input_schema": EMPTY, "operation": "query"}
    return ToolSpec(**{**least, **given})


def deep(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return {**EMPTY, "properties": {"x": inner}}


GOOD: dict[str, dict[str, Any]] = {
    "the least": {},
    "every operation": {"operation": Operation.DESTROY},
    "aliases": {"aliases": ("stroll", "go2")},
    "the longest name": {"name": "w" * 48},
    "no deadline": {"timeout": 0},
    "five examples": {"examples": (Example({}),) * 5},
    "an output schema": {"output_schema": {"type": "integer"}},
    "reasons": {"reasons": {"closed": Reason(), "gone": Reason("not_found", ("id",))}},
    "eval": {"operation": "eval", "requires_eval": True, "eval": EvalRule("code"), "input_schema": CODE},
    "a flag without eval": {"requires_eval": True},
}


@every_row("given", GOOD.values(), ids=GOOD)
def test_a_good_spec_passes(given: dict[str, Any]) -> None:
    check_spec(spec(**given), Limits())


WRONG: dict[str, dict[str, Any]] = {
    "an operation that is none": {"operation": "delete"},
    "an operation in capitals": {"operation": "QUERY"},
    "no operation": {"operation": ""},
    "no description": {"description": " \n"},
    "a schema that is nothing": {"input_schema": None},
    "a schema that is true": {"input_schema": True},
    "a schema that is a list": {"input_schema": []},
    "a schema without a type": {"input_schema": {"additionalProperties": False}},
    "a schema of another type": {"input_schema": {"type": "array", "additionalProperties": False}},
    "a schema of several types": {"input_schema": {"type": ["object", "null"], "additionalProperties": False}},
    "a schema that is none": {"input_schema": {**EMPTY, "properties": {"x": {"type": "strnig"}}}},
    "a schema that is too deep": {"input_schema": deep(70)},
    "a schema that is too large": {"input_schema": {**EMPTY, "description": "x" * 300_000}},
    "a schema that refers elsewhere": {
        "input_schema": {**EMPTY, "properties": {"x": {"$ref": "http://127.0.0.1:9/x"}}}
    },
    "a schema that cannot be written": {"input_schema": {**EMPTY, "default": object()}},
    "a schema that takes what it does not know": {"input_schema": {"type": "object"}},
    "a schema that says it takes what it does not know": {
        "input_schema": {"type": "object", "additionalProperties": True}
    },
    "an output schema that is none": {"output_schema": {"type": "strnig"}},
    "an output schema that is no object": {"output_schema": True},
    "an output schema that refers elsewhere": {"output_schema": {"$ref": "http://127.0.0.1:9/x"}},
    "a question that no form can ask": {"confirmation": Confirmation("Sure?", {"type": "array"})},
    "eval without a rule": {"operation": "eval", "requires_eval": True},
    "eval without the flag": {"operation": "eval", "eval": EvalRule("code"), "input_schema": CODE},
    "eval of an argument that is not there": {"operation": "eval", "requires_eval": True, "eval": EvalRule("code")},
    "eval of an argument that is no text": {
        "operation": "eval",
        "requires_eval": True,
        "eval": EvalRule("code"),
        "input_schema": {**EMPTY, "properties": {"code": {"type": "array", "items": {"type": "string"}}}},
    },
    "eval under rules that nobody knows": {
        "operation": "eval",
        "requires_eval": True,
        "eval": EvalRule("code", rules=msgspec.convert("hots", Any)),
        "input_schema": CODE,
    },
    "a session that is mistyped": {"session": "requird"},
    "a priority that is mistyped": {"priority": "low"},
    "a shape that is mistyped": {"shape": "plian"},
    "a rule without eval": {"eval": EvalRule("code"), "input_schema": CODE},
    "six examples": {"examples": (Example({}),) * 6},
    "an example that cannot be written": {"examples": (Example({"x": object()}),)},
    "a negative timeout": {"timeout": -1.0},
    "an endless timeout": {"timeout": float("inf")},
    "a timeout that is no number": {"timeout": float("nan")},
    "a reason of a code that is none": {"reasons": {"closed": Reason(msgspec.convert("oops", Any))}},
}


@every_row("given", WRONG.values(), ids=WRONG)
def test_a_wrong_spec_fails_with_one_sentence_that_names_the_tool(given: dict[str, Any]) -> None:
    with pytest.raises(PublishError, match="'walk'") as caught:
        check_spec(spec(**given), Limits())

    assert "\n" not in str(caught.value)


@every_row("name", ["", "Walk", "2walk", "_walk", "walk-on", "walk on", "walk.on", "wälk", "walk\n", "w" * 49])
@every_row("place", ["name", "aliases"])
def test_a_name_of_our_own_is_small_letters_digits_and_underscores_and_not_too_long(name: str, place: str) -> None:
    given: dict[str, Any] = {"name": name} if place == "name" else {"aliases": (name,)}

    with pytest.raises(PublishError) as caught:
        check_spec(spec(**given), Limits())

    assert f"'{name}'" in str(caught.value)


def test_limits_of_a_spec_are_given_by_the_caller() -> None:
    limits = Limits(name_characters=3, schema_bytes=10)

    for given in ({}, {"name": "go"}):
        with pytest.raises(PublishError):
            check_spec(spec(**given), limits)


@every_row("name", ["Orders__List", "a-b", "9", "_", "a" * 48])
def test_a_foreign_tool_keeps_the_letters_of_its_name(name: str) -> None:
    check_spec(spec(name=name), Limits(), foreign=True)


@every_row("name", ["", "a b", "a.b", "a/b", "é", "a" * 49])
def test_a_foreign_name_has_limits_too(name: str) -> None:
    with pytest.raises(PublishError):
        check_spec(spec(name=name), Limits(), foreign=True)


def test_a_foreign_tool_may_take_what_it_does_not_know() -> None:
    check_spec(spec(input_schema={"type": "object"}), Limits(), foreign=True)


@every_row("operation", [*Operation, *map(str, Operation)])
def test_an_operation_may_be_written_as_text(operation: Any) -> None:
    assert type(spec(operation=operation).operation) is Operation


@every_row(
    ("given", "read_only", "destructive", "idempotent"),
    [
        ({"operation": "query"}, True, False, True),
        ({"operation": "command"}, False, False, False),
        ({"operation": "command", "idempotent": True}, False, False, True),
        ({"operation": "destroy"}, False, True, False),
        ({"operation": "eval"}, False, True, False),
    ],
)
def test_hints_for_clients_follow_from_the_operation(
    given: dict[str, Any], *, read_only: bool, destructive: bool, idempotent: bool
) -> None:
    assert msgspec.to_builtins(spec(**given).hints()) == {
        "readOnlyHint": read_only,
        "destructiveHint": destructive,
        "idempotentHint": idempotent,
        "openWorldHint": False,
    }
    assert spec(**given).safe is idempotent


def test_annotations_replace_the_hints_for_clients() -> None:
    annotations = Annotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)

    assert spec(annotations=annotations).hints() is annotations


def test_one_name_may_stand_where_several_may() -> None:
    assert spec(aliases="old").aliases == ("old",)
    assert spec(tags="slow").tags == ("slow",)


def test_the_summary_is_the_first_line() -> None:
    assert spec(description="Walk.\n\nSlowly.").summary == "Walk."
    assert spec().summary == "Walk."


@every_row(
    ("given", "codes", "line"),
    [
        ({}, [], ""),
        ({"session": "optional"}, ["not_running"], "not_running"),
        ({"operation": "eval"}, ["eval_blocked"], "eval_blocked"),
        (
            {"reasons": {"a": Reason("upstream_error"), "b": Reason("not_found"), "c": Reason("timeout")}},
            ["not_found", "upstream_error", "timeout"],
            "not_found, upstream_error",
        ),
        ({"reasons": {"a": Reason("timeout")}}, ["timeout"], ""),
        (
            {"reasons": {"a": Reason(), "b": Reason()}, "session": "required"},
            ["not_running", "state_error"],
            "not_running, state_error",
        ),
    ],
)
def test_a_tool_has_the_codes_it_declares_and_is_described_with_those_that_nobody_expects(
    given: dict[str, Any], codes: list[str], line: str
) -> None:
    declared = spec(**given)
    assert declared.codes() == codes
    assert with_codes(declared).description == declared.description + (f"\n\nMay answer with: {line}." if line else "")


def test_a_spec_is_data_that_survives_being_written_and_read() -> None:
    whole = spec(
        examples=(Example({"a": 1}, "one", 2),),
        reasons={"closed": Reason(details=("id",))},
        eval=EvalRule("x"),
        tags=("a",),
    )

    assert msgspec.json.decode(encode(whole), type=ToolSpec) == whole


def test_a_spec_cannot_be_changed() -> None:
    whole: Any = spec()

    with pytest.raises(AttributeError):
        whole.name = "run"
