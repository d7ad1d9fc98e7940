"""JSON as text: one member comes and goes, and comments, order and style stay."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard.client_configs.edit import put_member, remove_member
from toolyard.client_configs.edit_toml import EditError
from toolyard.config.upstreams import parse_json

PATH = ("mcpServers", "toolyard")
ENTRY = {"command": "x"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "mcpServers": {\n    "toolyard": {\n      "command": "x"\n    }\n  }\n}\n'),
        ("{}", '{\n  "mcpServers": {\n    "toolyard": {\n      "command": "x"\n    }\n  }\n}'),
        ('{"a": 1}', '{"a": 1, "mcpServers": {"toolyard": {"command": "x"}}}'),
        ('{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {}, "toolyard": {"command": "x"}}}'),
        (
            '{\n\t"a": [1, {"mcpServers": 2}] // why\n}\n',
            '{\n\t"a": [1, {"mcpServers": 2}], // why\n\t"mcpServers": {\n\t\t"toolyard": {\n\t\t\t"command": "x"\n\t\t}\n\t}\n}\n',
        ),
        (
            '// top\n{\n  "mcpServers": {\n    "a": {}, // one\n    /* end, { */\n  },\n}',
            '// top\n{\n  "mcpServers": {\n    "a": {}, // one\n    /* end, { */\n    "toolyard": {\n      "command": "x"\n    },\n  },\n}',
        ),
        (
            '{\r\n    "mcpServers": {\r\n    }\r\n}',
            '{\r\n    "mcpServers": {\r\n        "toolyard": {\r\n            "command": "x"\r\n        }\r\n    }\r\n}',
        ),
        ('{"mcpServers": {"toolyard": {"url": "}"}, "b": {}}}', '{"mcpServers": {"toolyard": {"command": "x"}, "b": {}}}'),
        ('{\n "mcpServers": {\n  "toolyard": 5}}', '{\n "mcpServers": {\n  "toolyard": {\n   "command": "x"\n  }}}'),
    ],
)
def test_a_member_is_put_in_as_the_rest_is_written(before: str, after: str) -> None:
    assert put_member(before, PATH, ENTRY) == after
    assert put_member(after, PATH, ENTRY) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"mcpServers": {"toolyard": {}}}', '{"mcpServers": {}}'),
        ('{"mcpServers": {"a": 1, "toolyard": {}}}', '{"mcpServers": {"a": 1}}'),
        ('{"mcpServers": {"toolyard": {}, "a": 1}}', '{"mcpServers": { "a": 1}}'),
        ('{"mcpServers": {\n "a": 1, // one\n "toolyard": {}\n}}', '{"mcpServers": {\n "a": 1 // one\n}}'),
        ('{"mcpServers": {\n "a": 1,\n "toolyard": {},\n}}', '{"mcpServers": {\n "a": 1,\n}}'),
    ],
)
def test_a_member_is_taken_out_with_its_comma(before: str, after: str) -> None:
    assert remove_member(before, PATH) == after


@pytest.mark.parametrize("text", ["[]", "5", "// nothing", '{"mcpServers": []}', '{"mcpServers": null}'])
def test_what_is_no_object_is_not_changed(text: str) -> None:
    with pytest.raises(EditError):
        put_member(text, PATH, ENTRY)


def test_a_member_that_cannot_be_taken_out_safely_is_left() -> None:
    with pytest.raises(EditError):
        remove_member('{"mcpServers": {"toolyard": {} /* , */, "a": 1}}', PATH)
    with pytest.raises(EditError):
        remove_member('{"mcpServers": {"toolyard": 1, "toolyard": 2}}', PATH)


def test_an_object_without_an_end_is_not_changed() -> None:
    with pytest.raises(EditError):
        put_member('{"mcpServers": {', PATH, ENTRY)


KEYS = st.sampled_from(["a", 'b"c', "mcpServers", "{", "//", "ü"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(KEYS.filter(lambda key: key != "mcpServers"), JSON),
    st.dictionaries(KEYS, JSON) | st.none(),
    st.sampled_from([None, 2, "\t"]),
)
def test_a_member_can_be_put_into_any_document_and_taken_out_again(document: dict[str, Any], servers: Any, indent: Any) -> None:
    whole = document if servers is None else {**document, "mcpServers": servers}
    text = json.dumps(whole, indent=indent)

    added = put_member(text, PATH, ENTRY)

    assert parse_json(added, "") == {**whole, "mcpServers": {**(servers or {}), "toolyard": ENTRY}}
    assert parse_json(remove_member(added, PATH), "") == {**whole, "mcpServers": servers or {}}
