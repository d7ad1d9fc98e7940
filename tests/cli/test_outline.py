"""Outlines: JSON in lines that fit."""

from typing import Any

import pytest

from toolyard.cli.terminal import Painted, outline


def lines(value: Any, width: int) -> list[str]:
    return ["".join(part.text if isinstance(part, Painted) else part for part in line) for line in outline(value, width)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (5, ["5"]),
        ("", ['""']),
        ({}, ["{}"]),
        ([], ["[]"]),
        ([1, 2], ["[1, 2]"]),
        ("a text that is too long for a line of this", ["a text that is too long", "for a line of this"]),
        ({"a": 1, "b": "two", "c": None}, ["a: 1   b: two   c: null"]),
        ({"alpha": 10_000, "beta": 20_000, "gamma": ""}, ["alpha: 10000", 'beta: 20000   gamma: ""']),
        ({"long": "a text that is too long for one line"}, ["long: a text that is too", "      long for one line"]),
        (
            {"a": 1, "long": "a text that is too long for one line", "b": 2},
            ["a: 1", "long: a text that is too", "      long for one line", "b: 2"],
        ),
        ([{"a": 1}, {"b": 2}], ["- a: 1", "- b: 2"]),
        (
            {"items": [{"name": "one", "text": "quite a long one for this line"}]},
            ["items:", "  - name: one", "    text: quite a long", "          one for this", "          line"],
        ),
        ({"numbers": [10_000, 20_000, 30_000, 40_000, 50_000]}, ["numbers: [10000, 20000,", "         30000, 40000,", "         50000]"]),
    ],
)
def test_a_value_is_laid_out_to_be_read(value: Any, shown: list[str]) -> None:
    assert lines(value, 24) == shown
