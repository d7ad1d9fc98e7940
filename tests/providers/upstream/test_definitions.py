"""Definitions: whatever is pinned changes the hash when it changes, and nothing else does."""

from typing import Any, cast

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toolyard.providers.upstream.catalogue import Catalogue, Item
from toolyard.providers.upstream.pins import Definition, Key, definitions_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
TOOL_FIELDS = ("title", "description", "inputSchema", "outputSchema", "annotations")
OTHER_FIELDS = ("icons", "_meta", "execution", "made_up")
TOOLS = st.fixed_dictionaries({"name": st.just("it")}, optional=dict.fromkeys((*TOOL_FIELDS, *OTHER_FIELDS), VALUES))


def catalogue(**given: Any) -> Catalogue:
    return Catalogue(reached_by="0", seen=0.0, version="2025-11-25", **given)


def tool_definition(*items: Item) -> Definition:
    return definitions_of(catalogue(tools=items))[Key("tool", "it")]


def turned(value: Any) -> Any:
    """Return a value with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(inner) for key, inner in reversed(list(cast("dict[str, Any]", value).items()))}
    return [turned(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


@given(TOOLS)
def test_the_order_of_keys_does_not_matter(item: Item) -> None:
    assert tool_definition(turned(item)).hash == tool_definition(item).hash


@given(TOOLS, st.sampled_from(TOOL_FIELDS), VALUES)
def test_any_change_of_any_pinned_field_does(item: Item, field: str, value: Any) -> None:
    assume(msgspec.json.encode(turned(value), order="sorted") != msgspec.json.encode(item.get(field), order="sorted"))
    before, after = tool_definition(item), tool_definition({**item, field: value})

    assert before.hash != after.hash
    fields = before.field_hashes(), after.field_hashes()
    assert [name for name in TOOL_FIELDS if fields[0].get(name) != fields[1].get(name)] == [field]


@given(TOOLS, st.sampled_from(OTHER_FIELDS), VALUES)
def test_a_field_that_is_not_pinned_may_change(item: Item, field: str, value: Any) -> None:
    assert tool_definition({**item, field: value}).hash == tool_definition(item).hash


@given(TOOLS)
def test_what_came_over_a_wire_has_the_same_hash_again(item: Item) -> None:
    assert tool_definition(msgspec.json.decode(msgspec.json.encode(item))).hash == tool_definition(item).hash


def test_a_field_that_is_null_is_as_good_as_missing() -> None:
    assert tool_definition({"name": "it", "title": None}).hash == tool_definition({"name": "it"}).hash


def test_a_name_and_a_kind_belong_to_the_hash() -> None:
    found = definitions_of(catalogue(tools=({"name": "a"}, {"name": "b"}), prompts=({"name": "a"},)))

    assert len({one.hash for one in found.values()}) == len(found) == 4


def test_everything_an_upstream_has_is_defined() -> None:
    found = definitions_of(
        catalogue(
            instructions="Be kind.",
            tools=({"name": "it"},),
            prompts=({"name": "it", "arguments": [{"name": "who"}]},),
            resources=({"uri": "x://a", "name": "A", "size": 7},),
            templates=({"uriTemplate": "x://{b}", "name": "B"},),
        )
    )

    assert {str(key): one.fields for key, one in found.items()} == {
        "instructions": {"text": "Be kind."},
        "tool 'it'": {},
        "prompt 'it'": {"arguments": [{"name": "who"}]},
        "resource 'x://a'": {"name": "A"},
        "template 'x://{b}'": {"name": "B"},
    }


def test_when_a_resource_was_written_last_is_not_pinned() -> None:
    def one(**notes: Any) -> Definition:
        listed = ({"uri": "x://a", "name": "A", "annotations": notes},)
        return definitions_of(catalogue(resources=listed))[Key("resource", "x://a")]

    assert one(priority=1, lastModified="2026-01-01").hash == one(priority=1, lastModified="2026-01-02").hash == one(priority=1).hash
    assert one(priority=1).hash != one(priority=0.5).hash


@pytest.mark.parametrize("name", [None, "", 5, ["a"]])
def test_what_has_no_name_has_no_definition(name: object) -> None:
    assert list(definitions_of(catalogue(tools=({"name": name},)))) == [Key("instructions", "")]


def test_tools_of_one_name_are_pinned_together() -> None:
    first, second, third = ({"name": "it", "description": text} for text in "abc")
    hashes = {tool_definition(*items).hash for items in ([first], [first, second], [first, third], [second, first], [first, second, third])}

    assert len(hashes) == 5
