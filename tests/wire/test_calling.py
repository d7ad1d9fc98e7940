"""Calls read in one go: what is one, and what is left to those who look closely."""

import pytest

from toolyard.wire.params import decode_call

DEPTH = 128


def written(params: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%b}' % params


def test_a_call_is_read_with_its_params_and_its_arguments_stay_json() -> None:
    call = decode_call(written(b'{"name":"add","arguments":{"a": 1}}'), depth=DEPTH)

    assert call is not None
    assert (call.id, call.method, call.params.name, bytes(call.params.arguments)) == (7, "tools/call", "add", b'{"a": 1}')


@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"name":"add"}}',
        b'{"jsonrpc":"2.0","id":7,"params":{"name":"add"}}',
        b'{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"add"}}',
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"add"}}',
        b'{"id":7,"method":"tools/call","params":{"name":"add"}}',
        b'{"jsonrpc":"1.0","id":7,"method":"tools/call","params":{"name":"add"}}',
        written(b"null"),
        written(b"{}"),
        written(b'{"name":"add"')[:-1],
        b"[" + written(b'{"name":"add"}') + b"]",
        b"",
    ],
)
def test_what_is_no_call_as_it_should_be_is_left_to_others(message: bytes) -> None:
    assert decode_call(message, depth=DEPTH) is None


@pytest.mark.parametrize("params", [b'{"name":"add","arguments":{"a":"\xff"}}', '{"name":"Häuser"}'.encode()])
def test_what_is_not_ascii_is_left_to_those_who_look_at_characters(params: bytes) -> None:
    assert decode_call(written(params), depth=DEPTH) is None


def test_what_may_be_too_deep_is_left_to_those_who_count_levels() -> None:
    nested = b'{"name":"add","arguments":{"a":%b1%b}}' % (b"[" * 100, b"]" * 100)

    assert decode_call(written(nested), depth=DEPTH) is None
    assert decode_call(written(nested), depth=1000) is not None


def test_what_is_longer_is_read_in_one_go_only_while_it_cannot_be_too_deep() -> None:
    def call_of(length: int) -> bytes:
        return written(b'{"name":"add","arguments":{"a":"%b"}}' % (b"x" * length))

    assert decode_call(call_of(3 * DEPTH), depth=DEPTH) is not None
    assert decode_call(call_of(5 * DEPTH), depth=DEPTH) is None
