"""JSON as text: one member comes and goes, and comments, order and style stay."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.client_configs.edit import EditError, excerpt, put_member, remove_member, yaml_snippet
from callyard.config.upstreams import parse_json

PATH = ("mcpServers", "callyard")
ENTRY = {"command": "x"}


@every_row(
    ("before", "after"),
    [
        ("", '{\n  "mcpServers": {\n    "callyard": {\n      "command": "x"\n    }\n  }\n}\n'),
        ("{}", '{\n  "mcpServers": {\n    "callyard": {\n      "command": "x"\n    }\n  }\n}'),
        ('{"a": 1}', '{"a": 1, "mcpServers": {"callyard": {"command": "x"}}}'),
        ('{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {}, "callyard": {"command": "x"}}}'),
        (
            '{\n\t"a": [1, {"mcpServers": 2}] // why\n}\n',
            (
                '{\n\t"a": [1, {"mcpServers": 2}], // why\n\t"mcpServers": {\n\t\t"callyard": {\n\t\t\t"command": '
                '"x"\n\t\t}\n\t}\n}\n'
            ),
        ),
        (
            '// top\n{\n  "mcpServers": {\n    "a": {}, // one\n    /* end, { */\n  },\n}',
            (
                '// top\n{\n  "mcpServers": {\n    "a": {}, // one\n    /* end, { */\n    "callyard": {\n      '
                '"command": "x"\n    },\n  },\n}'
            ),
        ),
        (
            '{\r\n    "mcpServers": {\r\n    }\r\n}',
            (
                '{\r\n    "mcpServers": {\r\n        "callyard": {\r\n            "command": "x"\r\n        }\r\n   '
                " }\r\n}"
            ),
        ),
        (
            '{"mcpServers": {"callyard": {"url": "}"}, "b": {}}}',
            '{"mcpServers": {"callyard": {"command": "x"}, "b": {}}}',
        ),
        ('{\n "mcpServers": {\n  "callyard": 5}}', '{\n "mcpServers": {\n  "callyard": {\n   "command": "x"\n  }}}'),
    ],
)
def test_a_member_is_added_in_the_style_of_the_rest(before: str, after: str) -> None:
    assert put_member(before, PATH, ENTRY) == after
    assert put_member(after, PATH, ENTRY) == after


@every_row(
    ("before", "after"),
    [
        ('{"mcpServers": {"callyard": {}}}', '{"mcpServers": {}}'),
        ('{"mcpServers": {"a": 1, "callyard": {}}}', '{"mcpServers": {"a": 1}}'),
        ('{"mcpServers": {"callyard": {}, "a": 1}}', '{"mcpServers": { "a": 1}}'),
        ('{"mcpServers": {\n "a": 1, // one\n "callyard": {}\n}}', '{"mcpServers": {\n "a": 1 // one\n}}'),
        ('{"mcpServers": {\n "a": 1,\n "callyard": {},\n}}', '{"mcpServers": {\n "a": 1,\n}}'),
    ],
)
def test_a_member_is_removed_with_its_comma(before: str, after: str) -> None:
    assert remove_member(before, PATH) == after


@every_row("text", ["[]", "5", "// nothing", '{"mcpServers": []}', '{"mcpServers": null}'])
def test_a_text_without_an_object_is_not_changed(text: str) -> None:
    with pytest.raises(EditError):
        put_member(text, PATH, ENTRY)


def test_a_member_that_cannot_be_removed_safely_is_left() -> None:
    with pytest.raises(EditError):
        remove_member('{"mcpServers": {"callyard": {} /* , */, "a": 1}}', PATH)
    with pytest.raises(EditError):
        remove_member('{"mcpServers": {"callyard": 1, "callyard": 2}}', PATH)


def test_an_unclosed_object_is_not_changed() -> None:
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
def test_a_member_can_be_added_to_any_document_and_removed_again(
    document: dict[str, Any], servers: Any, indent: Any
) -> None:
    whole = document if servers is None else {**document, "mcpServers": servers}
    text = json.dumps(whole, indent=indent)

    added = put_member(text, PATH, ENTRY)

    assert parse_json(added, "") == {**whole, "mcpServers": {**(servers or {}), "callyard": ENTRY}}
    assert parse_json(remove_member(added, PATH), "") == {**whole, "mcpServers": servers or {}}


@every_row(
    ("before", "after", "shown"),
    [
        ("", "a\nb\n", (1, ["+a", "+b"])),
        ("a\nb\n", "", (1, ["-a", "-b"])),
        ("a\nb\n", "a\nx\nb\n", (2, [" a", "+x", " b"])),
        ("a\nb\nc\nd\n", "a\nb\nx\nd\n", (3, [" b", "-c", "+x", " d"])),
        ("a\na\n", "a\na\na\n", (3, [" a", "+a"])),
        ("a\r\nb", "a\r\nb\r\nc", (2, [" a", "-b", "+b", "+c"])),
    ],
)
def test_an_excerpt_shows_the_changed_lines_with_one_line_of_context(
    before: str, after: str, shown: tuple[int, list[str]]
) -> None:
    assert excerpt(before, after) == shown


def test_a_line_before_the_excerpt_can_mark_a_secret_in_it() -> None:
    before = '["--token",\n"hunter1"]\n{"TOKEN": "hunter2"}\n'

    assert excerpt(before, before.replace("]\n", "],\nx\n")) == (
        2,
        [' ["--token",', '-"…"]', '+"…"],', "+x", ' {"TOKEN": "…"}'],
    )


YAML_ENTRY = 'callyard: {"cmd": "x"}'
ITEM = '- {"name": "callyard"}'


@every_row(
    ("text", "entry", "lines", "place"),
    [
        ("", YAML_ENTRY, ("a:", f"  {YAML_ENTRY}"), "there"),
        ("b: 1\n", YAML_ENTRY, ("a:", f"  {YAML_ENTRY}"), "at the end"),
        ("  a: nested\nb: 1\n", YAML_ENTRY, ("a:", f"  {YAML_ENTRY}"), "at the end"),
        ("b: 1\na:\n  c: 1\n", YAML_ENTRY, (f"  {YAML_ENTRY}",), "below line 2"),
        ("'a' : # mine\n\n     # more\n     c: 1\n", YAML_ENTRY, (f"     {YAML_ENTRY}",), "below line 1"),
        ('\ufeff"a":\nb: 1\n', YAML_ENTRY, (f"  {YAML_ENTRY}",), "below line 1"),
        ("a:\n", YAML_ENTRY, (f"  {YAML_ENTRY}",), "below line 1"),
        ("a:\n- name: c\n", ITEM, (ITEM,), "below line 1"),
        ("a:\n  - name: c\n", ITEM, (f"  {ITEM}",), "below line 1"),
        ("b: 1\na: {c: 1}\n", YAML_ENTRY, ("a:", f"  {YAML_ENTRY}"), "in place of line 2"),
    ],
)
def test_an_entry_is_indented_as_its_neighbours_are(text: str, entry: str, lines: tuple[str, ...], place: str) -> None:
    pasted = yaml_snippet(text, "a", entry)

    assert (pasted.lines, pasted.position[: len(place)]) == (lines, place)


@pytest.mark.parametrize("entry", [YAML_ENTRY, ITEM])
def test_a_snippet_for_an_empty_file_is_valid_yaml(entry: str) -> None:
    document = yaml.safe_load("\n".join(yaml_snippet("", "a", entry).lines))

    assert document == {"a": {"callyard": {"cmd": "x"}} if entry is YAML_ENTRY else [{"name": "callyard"}]}
