"""What a call is given: pairs, an object or stdin, and how the schema reads text."""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from toolyard.cli.call import read_given
from toolyard.launch.errors import LaunchError

Run = Callable[..., tuple[int, str, str]]


def read(schema: object, text: str) -> Any:
    whole = {
        "type": "object",
        "properties": {"x": schema},
        "$defs": {"number": {"type": "number"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}},
    }
    return read_given([f"x={text}"]).arguments(whole)["x"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        {"enum": ["5", "6"]},
        {"const": "5"},
        {"allOf": [{"type": "string"}, {"minLength": 1}]},
        {},
    ],
)
def test_what_may_be_a_string_is_kept_as_text(schema: object) -> None:
    assert read(schema, "5") == "5"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": ["number", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"$ref": "#/$defs/number"},
        {"enum": [5, 6]},
        {"const": 5},
        {"allOf": [{"type": ["string", "number"]}, {"type": "number"}]},
    ],
)
def test_what_cannot_be_a_string_is_read_as_json(schema: object) -> None:
    assert read(schema, "5") == 5


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": "b"}', {"a": "b"}),
        ("yes", "yes"),
        ("NaN", "NaN"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_what_is_no_json_stays_text(text: str, value: object) -> None:
    assert read({"type": "object"}, text) == value


def test_a_key_that_the_schema_does_not_know_is_read_as_json_if_it_is() -> None:
    assert read_given(["y=5", "z=five"]).arguments({"type": "object", "properties": {}}) == {"y": 5, "z": "five"}


def test_a_schema_that_refers_to_itself_is_read_in_the_end() -> None:
    assert read({"$ref": "#/$defs/loop"}, "5") in {5, "5"}


def test_an_object_is_taken_as_it_is() -> None:
    given = read_given(['{"x": "5"}'])

    assert given.arguments({"properties": {"x": {"type": "integer"}}}) == {"x": "5"}
    assert given.names("x")
    assert not given.names("y")


@pytest.mark.parametrize(
    "items",
    [
        ["x"],
        ["=5"],
        ["x=1", "x=1"],
        ["x=1", "{}"],
        ["{}", "{}"],
        ["-", "x=1"],
        ["-", "-"],
        ["{"],
        ['{"x": NaN}'],
        ["{}{}"],
        ["[1]"],
        ["{" + '"a":{' * 100_000],
        ['{"x": "\udcff"}'],
    ],
)
def test_what_is_of_no_form_or_of_several_is_refused(items: list[str]) -> None:
    with pytest.raises(LaunchError) as refused:
        read_given(items)

    assert refused.value.status == 2


def feed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_json_is_read_from_stdin(shop: str, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b'{"text": "null", "items": [1]}\n')

    status, out, _ = toolyard("call", shop, "echo", "-", "--json")

    assert status == 0
    assert json.loads(out)["data"] == {"text": "null", "number": 0, "flag": False, "items": [1], "either": 0}


@pytest.mark.parametrize("text", [b"", b"nothing", b"[]", b"5", b'{"x": "\xff"}'])
def test_stdin_must_hold_one_object(text: bytes, shop: str, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, text)

    assert toolyard("call", shop, "echo", "-")[:2] == (2, "")


def test_a_closed_stdin_holds_nothing(shop: str, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    assert toolyard("call", shop, "echo", "-")[:2] == (2, "")
