"""What a change of a definition means for those who call."""

from typing import Any, Final

from table_tests import every_row

from callyard.providers.upstream.diff import Difference, FieldChange
from callyard.providers.upstream.pins import Definition
from callyard.providers.upstream.verdict import Change, change_of, worst


def change(field: str, before: Any, after: Any, *, kind: Any = "tool") -> Change:
    old, new = (Definition(kind, "t", {} if value is None else {field: value}) for value in (before, after))
    return change_of(Difference(kind, "t", "changed", (FieldChange(field),)), old, new)


def properties(**found: Any) -> dict[str, Any]:
    return {"type": "object", "properties": found}


NUMBER: Final = {"type": "number"}
TEXT: Final = {"type": "string"}
INPUTS: Final[list[tuple[str, Any, Any]]] = [
    ("breaking", properties(a=TEXT), {**properties(a=TEXT), "required": ["a"]}),
    ("compatible", {**properties(a=TEXT), "required": ["a"]}, properties(a=TEXT)),
    ("breaking", properties(a=TEXT), {**properties(a=TEXT, b=TEXT), "required": ["b"]}),
    ("compatible", properties(a=TEXT), properties(a=TEXT, b=TEXT)),
    (
        "compatible",
        {**properties(), "additionalProperties": False},
        {**properties(b=TEXT), "additionalProperties": False},
    ),
    ("breaking", properties(a=TEXT, b=TEXT), properties(a=TEXT)),
    ("breaking", properties(a=TEXT), properties(a=NUMBER)),
    ("breaking", properties(a=NUMBER), properties(a={"type": "integer"})),
    ("compatible", properties(a={"type": "integer"}), properties(a=NUMBER)),
    ("compatible", properties(a=TEXT), properties(a={"type": ["string", "null"]})),
    ("breaking", properties(a={"type": ["string", "null"]}), properties(a=TEXT)),
    ("breaking", properties(a={}), properties(a=TEXT)),
    ("compatible", properties(a=TEXT), properties(a={})),
    ("compatible", properties(a=TEXT), properties(a=True)),
    ("breaking", properties(a=TEXT), properties(a=False)),
    ("compatible", properties(a=False), properties(a=TEXT)),
    ("breaking", properties(a={"enum": ["x", "y"]}), properties(a={"enum": ["x"]})),
    ("compatible", properties(a={"enum": ["x"]}), properties(a={"enum": ["x", "y"]})),
    ("breaking", properties(a=TEXT), properties(a={**TEXT, "const": "x"})),
    ("compatible", properties(a={**TEXT, "const": "x"}), properties(a=TEXT)),
    ("breaking", properties(a={"maxLength": 9}), properties(a={"maxLength": 8})),
    ("compatible", properties(a={"maxLength": 8}), properties(a={"maxLength": 9})),
    ("breaking", properties(a={"minimum": 1}), properties(a={"minimum": 2})),
    ("compatible", properties(a={"minimum": 2}), properties(a={"minimum": 1})),
    (
        "compatible",
        properties(a={"minimum": 2}),
        properties(a=NUMBER | {"type": "number", "minimum": 2} | {"minimum": 2}),
    ),
    ("breaking", properties(a={"type": "string"}), properties(a={"type": "string", "minLength": 1})),
    ("compatible", properties(a={"type": "string", "minLength": 1}), properties(a={"type": "string"})),
    ("breaking", properties(a={"minimum": 2}), properties(a={"minimum": "x"})),
    ("breaking", properties(a=TEXT), properties(a={**TEXT, "pattern": "x"})),
    ("breaking", properties(a={**TEXT, "pattern": "y"}), properties(a={**TEXT, "pattern": "x"})),
    ("compatible", properties(a={**TEXT, "pattern": "y"}), properties(a=TEXT)),
    ("breaking", properties(a={"$ref": "#/$defs/x"}), properties(a=TEXT)),
    ("breaking", properties(), {**properties(), "additionalProperties": False}),
    ("compatible", {**properties(), "additionalProperties": False}, properties()),
    ("breaking", properties(a={"items": NUMBER}), properties(a={"items": TEXT})),
    ("compatible", properties(a=TEXT), properties(a={**TEXT, "default": "x"})),
    ("words", properties(a=TEXT), properties(a={**TEXT, "description": "More words."})),
]
"""The verdict, and an input schema before and after; a missing 'type' is that of any value."""


@every_row("verdict, before, after", [row for row in INPUTS if row[2] != row[1]])
def test_a_change_of_arguments_is_breaking_if_a_call_that_worked_may_fail(
    verdict: str, before: Any, after: Any
) -> None:
    expected = verdict
    if before == properties(a={"minimum": 2}) and after["properties"]["a"].get("type") == "number":
        expected = "breaking"  # texts were allowed before
    assert change("inputSchema", before, after).verdict == expected


OUTPUTS: Final[list[tuple[str, Any, Any]]] = [
    ("breaking", properties(a=TEXT), None),
    ("compatible", None, properties(a=TEXT)),
    ("breaking", properties(a=TEXT, b=TEXT), properties(a=TEXT)),
    ("compatible", properties(a=TEXT), properties(a=TEXT, b=TEXT)),
    ("breaking", {**properties(a=TEXT), "required": ["a"]}, properties(a=TEXT)),
    ("compatible", properties(a=TEXT), {**properties(a=TEXT), "required": ["a"]}),
    ("breaking", properties(a=TEXT), properties(a={"type": ["string", "null"]})),
    ("breaking", properties(a={"enum": ["x"]}), properties(a={"enum": ["x", "y"]})),
    ("compatible", properties(a={"enum": ["x", "y"]}), properties(a={"enum": ["x"]})),
    ("breaking", properties(a={"items": TEXT}), properties(a={"items": NUMBER})),
]


@every_row("verdict, before, after", OUTPUTS)
def test_a_change_of_results_is_breaking_if_they_may_lack_what_they_had(verdict: str, before: Any, after: Any) -> None:
    assert change("outputSchema", before, after).verdict == verdict


def test_words_are_words_and_other_fields_are_compatible() -> None:
    assert change("description", "old", "new").verdict == "words"
    assert change("text", "old", "new", kind="instructions").verdict == "words"
    assert change("annotations", {"readOnlyHint": True}, {}).verdict == "compatible"


def test_a_required_or_lost_argument_of_a_prompt_is_breaking() -> None:
    none, one, required = [], [{"name": "a"}], [{"name": "a", "required": True}]
    assert change("arguments", none, one, kind="prompt").verdict == "compatible"
    assert change("arguments", one, required, kind="prompt").verdict == "breaking"
    assert change("arguments", one, none, kind="prompt").verdict == "breaking"


def test_a_lost_definition_breaks_and_a_new_one_does_not() -> None:
    gone = change_of(Difference("tool", "t", "vanished"), None, None)
    new = change_of(Difference("tool", "t", "new"), None, None)
    assert (gone.verdict, new.verdict) == ("breaking", "compatible")
    assert (worst([new, gone]), worst([])) == ("breaking", None)


def test_a_schema_cannot_be_judged_if_the_accepted_one_is_not_stored() -> None:
    difference = Difference("tool", "t", "changed", (FieldChange("inputSchema"),))
    assert change_of(difference, None, Definition("tool", "t", {})).verdict == "breaking"
    unchanged = change_of(Difference("tool", "t", "changed"), None, None)
    assert unchanged.verdict == "words"


def test_a_schema_that_is_nested_too_deep_counts_as_breaking() -> None:
    old: Any = TEXT
    new: Any = NUMBER
    for _ in range(40):
        old, new = properties(a=old), properties(a=new)
    assert change("inputSchema", old, new).verdict == "breaking"
