import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.wire import params as given_params
from callyard.wire.messages import INVALID_PARAMS, UNSUPPORTED_VERSION, Fault, decode
from callyard.wire.params import (
    CAPABILITIES,
    CLIENT,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    CallTool,
    Cancelled,
    Complete,
    GetPrompt,
    Initialize,
    Page,
    ReadResource,
    SetLevel,
    SubscriptionsListen,
    custom_meta,
    decode_params,
    has_only_protocol_keys,
    version_of,
)
from callyard.wire.versions import LATEST

KINDS: list[type[msgspec.Struct]] = [
    CallTool,
    Cancelled,
    Complete,
    GetPrompt,
    Initialize,
    SubscriptionsListen,
    Page,
    ReadResource,
    SetLevel,
]
KEYS = [
    "name",
    "arguments",
    "uri",
    "cursor",
    "_meta",
    "inputResponses",
    "requestState",
    "ref",
    "argument",
    "context",
    "notifications",
    "requestId",
    "reason",
    "level",
    "protocolVersion",
    "capabilities",
    "clientInfo",
    "type",
    "value",
    "toolsListChanged",
    "resourceSubscriptions",
    PROTOCOL_VERSION,
    CAPABILITIES,
    LOG_LEVEL,
    CLIENT,
]
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
)
META: dict[str, Any] = {PROTOCOL_VERSION: LATEST.name, CAPABILITIES: {}}


def raw(content: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(content).encode())


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6), st.sampled_from(KINDS))
def test_no_params_raise_anything_but_a_fault(params: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    try:
        taken = decode_params(raw(params), kind)
    except Fault as fault:
        assert fault.code == INVALID_PARAMS  # noqa: PT017 - either is right, nothing else is
    else:
        assert isinstance(taken, kind)


@given(st.binary(max_size=60), st.sampled_from(KINDS))
def test_no_bytes_raise_anything_but_a_fault(data: bytes, kind: type[msgspec.Struct]) -> None:
    try:
        decode_params(msgspec.Raw(data), kind)
    except Fault as fault:
        assert fault.code == INVALID_PARAMS  # noqa: PT017 - either is right, nothing else is


@given(st.one_of(st.none(), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)))
def test_no_meta_raises_anything_but_a_fault(meta: dict[str, Any] | None) -> None:
    try:
        assert version_of(meta).modern
    except Fault as fault:
        assert fault.code in {INVALID_PARAMS, UNSUPPORTED_VERSION}  # noqa: PT017 - either is right, nothing else is


def test_the_arguments_of_a_call_stay_bytes() -> None:
    params = decode_params(msgspec.Raw(b'{"name":"a","arguments":{ "x" : 1e5 },"more":1}'), CallTool)

    assert (params.name, bytes(params.arguments)) == ("a", b'{ "x" : 1e5 }')
    assert bytes(decode_params(raw({"name": "a"}), CallTool).arguments) == b"{}"


def test_params_that_are_not_there_are_an_empty_object() -> None:
    assert decode_params(msgspec.Raw(b""), Page).cursor is None
    with pytest.raises(Fault):
        decode_params(msgspec.Raw(b""), CallTool)


def test_nesting_too_deep_for_a_parser_is_a_fault() -> None:
    deep = msgspec.Raw(b'{"_meta":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001)
    with pytest.raises(Fault):
        decode_params(deep, Page)


def test_the_fault_names_the_field() -> None:
    with pytest.raises(Fault) as caught:
        decode_params(raw({"name": 5}), CallTool)
    assert "$.name" in caught.value.message


def test_input_responses_and_request_state_are_read() -> None:
    params = decode_params(
        raw({"uri": "a://b", "inputResponses": {"who": {"action": "accept"}}, "requestState": "s"}), ReadResource
    )

    assert (params.input_responses, params.request_state) == ({"who": {"action": "accept"}}, "s")


def test_a_request_says_its_version() -> None:
    assert version_of(META) is LATEST


@every_row(
    "meta",
    [
        None,
        {},
        {PROTOCOL_VERSION: LATEST.name},
        {CAPABILITIES: {}},
        {PROTOCOL_VERSION: 5, CAPABILITIES: {}},
        {PROTOCOL_VERSION: LATEST.name, CAPABILITIES: []},
    ],
)
def test_a_request_that_does_not_say_what_it_must_is_refused(meta: dict[str, Any] | None) -> None:
    with pytest.raises(Fault) as caught:
        version_of(meta)
    assert caught.value.code == INVALID_PARAMS


@pytest.mark.parametrize("version", ["2025-11-25", "2099-01-01", ""])
def test_a_version_that_is_not_spoken_is_answered_with_those_that_are(version: str) -> None:
    with pytest.raises(Fault) as caught:
        version_of({**META, PROTOCOL_VERSION: version})
    assert caught.value.code == UNSUPPORTED_VERSION
    assert caught.value.data == {"supported": [LATEST.name], "requested": version}


def test_a_handler_sees_only_what_is_not_the_protocols_own() -> None:
    own = {"mine": 1, "com.example/x": 2, "example.com/y": 3, "/": 4, "com.example.mcp/x": 5, "mcp/x": 6}
    kept: dict[str, Any] = {
        **META,
        "progressToken": 1,
        "traceparent": "x",
        "io.modelcontextprotocol/new": 1,
        "mcp.dev/x": 1,
        "com.mcp.tools/x": 1,
        "com.mcp.tools.x/y": 1,
        "io.modelcontextprotocol.a.b/c": 1,
        "api.v1.mcp.dev/x": 1,
    }

    assert custom_meta({**own, **kept}) == own
    assert custom_meta(kept) == {}
    assert custom_meta({PROTOCOL_VERSION: 1, "progressToken": 2}) == {}


def test_meta_is_quiet_if_no_handler_could_want_it() -> None:
    assert has_only_protocol_keys({**META, "progressToken": 1})
    assert not has_only_protocol_keys({"traceparent": "x"})
    assert not has_only_protocol_keys({"mine": 1})


def test_every_kind_is_exported() -> None:
    assert {kind.__name__ for kind in KINDS} <= set(given_params.__all__)


def test_the_arguments_of_a_call_stay_json() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"add","arguments":{"a": 1}}}')
    call = decode_params(message.params, CallTool)

    assert (message.id, message.method, call.name, bytes(call.arguments)) == (7, "tools/call", "add", b'{"a": 1}')
