from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.wire.headers import (
    check_params,
    check_routing,
    decode_value,
    encode_value,
    has_invalid_param_headers,
    param_headers,
    param_names,
)
from callyard.wire.messages import HEADER_MISMATCH, Fault

VERSION = "2026-07-28"
HEADERS = {b"mcp-protocol-version": VERSION.encode(), b"mcp-method": b"tools/call", b"mcp-name": b"add"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
)
SCHEMA = {
    "properties": {
        "a": {"type": "string", "x-mcp-header": "A"},
        "b": {"type": "object", "properties": {"c": {"type": "integer", "x-mcp-header": "C"}}},
        "d": {"type": "boolean", "x-mcp-header": "D"},
        "e": True,
    }
}
NAMES = param_names(SCHEMA)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | TEXTS,
        "b": st.none()
        | st.fixed_dictionaries({}, optional={"c": st.integers() | st.floats(allow_nan=False), "z": VALUES}),
        "d": st.booleans(),
        "z": VALUES,
    },
)


def is_refused(headers: Mapping[bytes, bytes], arguments: object) -> bool:
    try:
        check_params(NAMES, arguments, headers)
    except Fault as fault:
        assert fault.code == HEADER_MISMATCH  # noqa: PT017 - a refusal is what is asked for
        return True
    return False


def as_headers(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.lower().encode(): value.encode("latin-1") for name, value in headers.items()}


@given(TEXTS)
def test_every_value_survives_a_header(value: str) -> None:
    written = encode_value(value)

    assert decode_value(written) == value
    assert written.isascii()
    assert written == written.strip()
    assert all(" " <= character <= "~" for character in written)


@every_row("value", ["", "a", "a b", "~!"])
def test_a_plain_value_is_written_as_it_is(value: str) -> None:
    assert encode_value(value) == value


@every_row("value", ["ä", " a", "a ", "a\nb", "\x7f", "=?base64?YQ==?="])
def test_a_value_that_would_not_survive_is_wrapped(value: str) -> None:
    assert encode_value(value).startswith("=?base64?")


@every_row("inner", ["Y", "YQ", "YR==", "YQ== ", "/w==", "!!!!", "Y\u00e4=="])
def test_a_value_that_is_wrapped_wrongly_is_none(inner: str) -> None:
    assert decode_value(f"=?base64?{inner}?=") is None


@given(st.binary(max_size=60))
def test_no_header_raises(value: bytes) -> None:
    decode_value(value.decode("latin-1"))
    decode_value(f"=?base64?{value.decode('latin-1')}?=")


def test_headers_that_say_the_same_are_let_through() -> None:
    check_routing(HEADERS, "tools/call", VERSION, "add")
    check_routing({**HEADERS, b"mcp-name": encode_value("ä").encode()}, "tools/call", VERSION, "ä")
    check_routing({**HEADERS, b"mcp-name": "ä".encode()}, "tools/call", VERSION, "ä")
    check_routing({**HEADERS, b"mcp-method": b"tools/list"}, "tools/list", VERSION, None)
    check_routing(
        {**HEADERS, b"mcp-method": b"resources/read", b"mcp-name": b"a://b"}, "resources/read", VERSION, "a://b"
    )


@every_row(
    "wrong",
    [
        {b"mcp-protocol-version": b"2025-11-25"},
        {b"mcp-protocol-version": None},
        {b"mcp-method": b"tools/list"},
        {b"mcp-method": None},
        {b"mcp-name": b"sub"},
        {b"mcp-name": None},
        {b"mcp-name": b"=?base64?!?="},
        {b"mcp-name": b"ADD"},
        {b"mcp-name": b"\xff"},
    ],
    ids=str,
)
def test_headers_that_say_something_else_are_refused(wrong: dict[bytes, bytes | None]) -> None:
    headers = {name: value for name, value in {**HEADERS, **wrong}.items() if value is not None}
    with pytest.raises(Fault) as caught:
        check_routing(headers, "tools/call", VERSION, "add")
    assert caught.value.code == HEADER_MISMATCH


@given(
    st.dictionaries(st.sampled_from(list(HEADERS)), st.binary(max_size=20)), TEXTS, TEXTS, st.one_of(st.none(), TEXTS)
)
def test_no_routing_raises_anything_but_a_fault(
    headers: dict[bytes, bytes], method: str, version: str, name: str | None
) -> None:
    with pytest.raises(Fault):
        check_routing({**headers, b"mcp-method": b"no such"}, method, version, name)


def test_a_tool_says_which_arguments_are_headers() -> None:
    assert NAMES == {("a",): ("A", "string"), ("b", "c"): ("C", "integer"), ("d",): ("D", "boolean")}


@every_row(
    "properties",
    [
        {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"type": "string", "x-mcp-header": "a"}},
        {"a": {"type": "string", "x-mcp-header": "A B"}},
        {"a": {"type": "string", "x-mcp-header": ""}},
        {"a": {"type": "string", "x-mcp-header": 5}, "b": {"type": "array", "x-mcp-header": "B"}},
        {"a": {"type": "object", "x-mcp-header": "A"}},
        {"a": {"type": "number", "x-mcp-header": "A"}},
        {"a": {"x-mcp-header": "A"}},
        {"a": {"type": "string", "x-mcp-header": "A\r\nHost"}},
    ],
)
def test_a_tool_that_says_it_wrongly_wants_no_headers(properties: dict[str, Any]) -> None:
    assert param_names({"properties": properties}) == {}
    assert has_invalid_param_headers({"properties": properties})


def test_a_schema_without_end_is_not_followed_for_ever() -> None:
    endless: dict[str, Any] = {"type": "object"}
    endless["properties"] = {"a": endless}

    assert param_names(endless) == {}


@given(VALUES)
def test_no_schema_raises(schema: Any) -> None:
    param_names({"properties": schema})
    param_names({"properties": {"a": schema}})


@given(FITTING)
def test_the_headers_that_a_client_makes_are_let_through(arguments: dict[str, Any]) -> None:
    assert not is_refused(as_headers(param_headers(NAMES, arguments)), arguments)


@given(
    VALUES,
    st.dictionaries(
        st.sampled_from([b"mcp-param-a", b"mcp-param-c", b"mcp-param-d"]), st.binary(max_size=20), max_size=3
    ),
)
def test_no_arguments_and_headers_raise_anything_but_a_fault(arguments: Any, headers: dict[bytes, bytes]) -> None:
    assert is_refused(headers, arguments) in {True, False}


@every_row(
    ("arguments", "headers", "refused"),
    [
        ({"a": "x"}, {b"mcp-param-a": b"x"}, False),
        ({"a": "x"}, {b"mcp-param-a": b"y"}, True),
        ({"a": "x"}, {}, True),
        ({}, {b"mcp-param-a": b"x"}, True),
        ({"a": None}, {}, False),
        ({"b": {"c": 7}}, {b"mcp-param-c": b"7"}, False),
        ({"b": {"c": 7}}, {b"mcp-param-c": b"7.0"}, False),
        ({"b": {"c": 7.0}}, {b"mcp-param-c": b"7"}, False),
        ({"b": {"c": 7}}, {b"mcp-param-c": b"7.5"}, True),
        ({"b": {"c": 7}}, {b"mcp-param-c": b"seven"}, True),
        ({"b": None}, {}, False),
        ({"b": 5}, {}, True),
        ({"b": '{"c": 7}'}, {}, True),
        ({"b": {"$ref": "r_1", "path": "/0"}}, {}, True),
        ({"b": {"$ref": "r_1", "c": 7}}, {b"mcp-param-c": b"7"}, False),
        ({"b": {"c": "7"}}, {b"mcp-param-c": b"7"}, True),
        ({"b": {"c": True}}, {b"mcp-param-c": b"true"}, True),
        ({"a": ["x"]}, {}, True),
        ({"a": 7}, {b"mcp-param-a": b"7"}, True),
        ({"a": {"$ref": "r_1"}}, {}, True),
        ({"$ref": "r_1"}, {}, True),
        ({"b": 5}, {b"mcp-param-c": b"7"}, True),
        ({"d": True}, {b"mcp-param-d": b"true"}, False),
        ({"d": False}, {b"mcp-param-d": b"true"}, True),
        ({"d": True}, {b"mcp-param-d": b"=?base64?!?="}, True),
        ({"b": {"c": 1.5}}, {b"mcp-param-c": b"1.5"}, False),
        (None, {}, False),
        ("no object", {}, True),
        ('{"a": "x"}', {}, True),
    ],
)
def test_arguments_and_headers_must_say_the_same(
    arguments: object, headers: dict[bytes, bytes], *, refused: bool
) -> None:
    assert is_refused(headers, arguments) is refused


def test_a_tool_that_wants_no_headers_or_names_them_rightly_is_well() -> None:
    assert not has_invalid_param_headers(SCHEMA)
    assert not has_invalid_param_headers({"properties": {"a": {"type": "string"}}})
