"""Differences: every change shows, in lines that hide nothing, as far as what was accepted is known."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callyard.providers.upstream.diff import Difference, FieldChange, diff_hash, differences
from callyard.providers.upstream.pins import Definition, Definitions, pin_of, read_accepted, store_accepted

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def one(name: str, **fields: Any) -> Definition:
    return Definition("tool", name, fields)


def table(*listed: Definition) -> Definitions:
    return {definition.key: definition for definition in listed}


def compared(before: Definition, after: Definition, folder: Path) -> list[Difference]:
    store_accepted(folder, [before])
    return differences(table(after), {before.key: pin_of("shop", before)}, read_accepted(folder))


def lines(before: Any, after: Any, folder: Path) -> tuple[str, ...]:
    old, new = (one("a") if value is None else one("a", it=value) for value in (before, after))
    [difference] = compared(old, new, folder)
    [change] = difference.changes
    assert (difference.what, change.field) == ("changed", "it")
    return change.lines


def test_equal_definitions_have_no_differences(tmp_path: Path) -> None:
    assert compared(one("a", description="It."), one("a", description="It."), tmp_path) == []


def test_texts_are_compared_by_line_with_some_context(tmp_path: Path) -> None:
    before = "\n".join("abcdefghijklm")
    after = before.replace("b", "B").replace("l", "L")

    assert lines(before, after, tmp_path) == (" a", "-b", "+B", " c", " d", " …", " j", " k", "-l", "+L", " m")


def test_a_text_that_is_added_or_removed_is_compared_too(tmp_path: Path) -> None:
    assert lines(None, "a\nb", tmp_path) == ("+a", "+b")
    assert lines("a\nb", None, tmp_path) == ("-a", "-b")


def test_schemas_are_compared_by_path(tmp_path: Path) -> None:
    before = {"type": "object", "properties": {"a": {"maximum": 1}, "b c": {}}, "required": ["a"]}
    after: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"maximum": 1.0, "enum": []}},
        "required": ["a", "b"],
    }

    assert lines(before, after, tmp_path) == (
        '-properties."b c": {}',
        "+properties.a.enum: []",
        "-properties.a.maximum: 1",
        "+properties.a.maximum: 1.0",
        '+required[1]: "b"',
    )


def test_a_value_may_change_its_type(tmp_path: Path) -> None:
    assert lines("text", {"a": None}, tmp_path) == ('-"text"', "+a: null")
    assert lines(5, None, tmp_path) == ("-5",)


def test_invisible_characters_in_a_line_are_escaped(tmp_path: Path) -> None:
    assert lines("a", "a\u200b\u2028\r", tmp_path) == ("-a", "+a\\u200b\\u2028\\r")
    assert lines({}, {"k\u202e\n": "v\U000e0041"}, tmp_path) == ("-{}", '+"k\\u202e\\n": "v\\U000e0041"')


@given(before=VALUES, after=VALUES)
def test_every_change_has_lines(before: Any, after: Any, tmp_path: Path) -> None:
    old, new = one("a", it=before), one("a", it=after)
    found = compared(old, new, tmp_path)

    assert bool(found) == (old.hash != new.hash)
    assert all(change.lines for difference in found for change in difference.changes)


def test_without_the_stored_definition_only_the_fields_are_named(tmp_path: Path) -> None:
    before, after = one("a", description="It.", title="A"), one("a", description="That.")
    found = differences(table(after), {before.key: pin_of("shop", before)}, read_accepted(tmp_path))

    assert found == [Difference("tool", "a", "changed", (FieldChange("description"), FieldChange("title")))]


def test_new_definitions_are_shown_and_vanished_ones_are_named() -> None:
    new, gone = one("b", description="It."), one("a")
    found = differences(table(new), {gone.key: pin_of("shop", gone)}, {})

    assert found == [
        Difference("tool", "a", "vanished"),
        Difference("tool", "b", "new", (FieldChange("description", ("+It.",)),)),
    ]


def test_the_hash_of_a_diff_changes_with_every_other_difference() -> None:
    gone = {one("a").key: pin_of("shop", one("a"))}
    offers = [table(), table(one("b")), table(one("b", title="B")), table(one("c")), table(one("a", title="A"))]
    seen = [diff_hash(differences(offer, gone, {}), offer) for offer in offers]

    assert len(set(seen)) == len(offers)
    assert diff_hash(differences(offers[1], gone, {}), offers[1]) == seen[1]
