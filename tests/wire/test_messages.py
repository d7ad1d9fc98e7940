import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.wire import messages as faults
from callyard.wire.messages import (
    HTTP_STATUS,
    INTERNAL,
    INVALID_REQUEST,
    PARSE,
    Fault,
    Message,
    decode,
    decode_batch,
    encode_fault,
    encode_notification,
    encode_request,
    encode_result,
    id_of,
)

FRAMES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent.parent / "corpus" / "frames.jsonl").read_text().splitlines()
]
IDS = st.one_of(st.integers(), st.text(st.characters(exclude_categories=["Cs"])))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
HALVES = st.text(st.characters(categories=["Cs"]) | st.sampled_from('a\\"'))
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), TEXTS
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


def code_of(data: bytes) -> int | None:
    """Return what decoding, as a transport does it, says is wrong."""
    try:
        if decode_batch(data) is not None:
            return INVALID_REQUEST
        decode(data)
    except Fault as fault:
        return fault.code
    return None


def nested(levels: int, kind: bytes = b"[") -> bytes:
    """Return a request that is so many levels deep."""
    inner = levels - 2
    opening, closing = (b"[", b"]") if kind == b"[" else (b'{"a":', b"}")
    return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":%b0%b}}' % (opening * inner, closing * inner)


@every_row("frame", FRAMES, ids=lambda frame: frame["name"])
def test_a_frame_that_is_wrong_is_a_fault_that_says_how(frame: dict[str, Any]) -> None:
    assert code_of(frame["data"].encode("latin-1")) == frame["code"]


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_but_a_fault(data: bytes) -> None:
    assert code_of(data) in {None, PARSE, INVALID_REQUEST}
    assert id_of(data) is None or isinstance(id_of(data), int | str)


@given(JSON)
def test_no_json_raises_anything_but_a_fault(content: Any) -> None:
    assert code_of(json.dumps(content).encode()) in {None, INVALID_REQUEST}


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("jsonrpc", "id", "method", "params", "result", "error", "more"), JSON)
    )
)
def test_no_frame_of_the_right_keys_raises_anything_but_a_fault(frame: dict[str, Any]) -> None:
    frame["jsonrpc"] = "2.0"
    data = msgspec.json.encode(frame)

    assert code_of(data) in {None, INVALID_REQUEST}
    known = id_of(data)
    assert known is None or known == frame["id"]


@given(st.text(alphabet='[]{}":,\\a1 ', max_size=60), st.integers(0, 6))
@example('["]",["]",["]",1,"["],"["],"["]', 2)
def test_depth_is_counted_as_a_parser_would(text: str, limit: int) -> None:
    try:
        deepest = depth_of(json.loads(text))
    except ValueError:
        return
    try:
        decode(text.encode(), depth=limit)
    except Fault as fault:
        assert (fault.code == PARSE) is (deepest > limit)  # noqa: PT017 - which fault is the point
    else:
        raise AssertionError(text)


def depth_of(content: Any) -> int:
    if isinstance(content, dict):
        return 1 + max((depth_of(inner) for inner in content.values()), default=0)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
    if isinstance(content, list):
        return 1 + max((depth_of(inner) for inner in content), default=0)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - any JSON
    return 0


@pytest.mark.parametrize("kind", [b"[", b"{"])
def test_a_message_may_be_exactly_as_deep_as_the_limit(kind: bytes) -> None:
    assert decode(nested(128, kind)).method == "m"
    assert decode(nested(10, kind), depth=10).method == "m"
    for data, depth in ((nested(129, kind), 128), (nested(130, kind), 128), (nested(11, kind), 10)):
        with pytest.raises(Fault) as caught:
            decode(data, depth=depth)
        assert caught.value.code == PARSE


def test_brackets_inside_texts_are_no_levels() -> None:
    for text in ("[" * 1000, "]" * 1000, "[]" * 500, '\\"[' * 300, "{" * 500 + "}" * 400, '"]["' * 200):
        data = encode_request(1, "m", {"a": [text]})
        assert msgspec.json.decode(decode(data, depth=3).params) == {"a": [text]}
        with pytest.raises(Fault):
            decode(data, depth=2)


def test_brackets_inside_texts_hide_no_levels() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":' + b'["]",' * 200 + b"1" + b',"["]' * 200 + b"}}"
    with pytest.raises(Fault) as caught:
        decode(data)
    assert caught.value.code == PARSE


def test_many_shallow_values_are_not_deep() -> None:
    data = encode_request(1, "m", {"a": [[{}], [[]]] * 20_000})
    assert decode(data, depth=5).id == 1


@every_row(
    "data",
    [
        b"[" * 200 + b'"' + b'\\"' * 300_000,
        b"[" * 300_000,
        b'{"a":' * 300_000,
        b"]" * 300_000 + b"[" * 200,
        b"[" * 200 + b'"",' * 300_000,
        b"[]" * 300_000,
        b"\\" * 300_000 + b"[" * 200,
    ],
    ids=["open text", "open arrays", "open objects", "closing first", "empty texts", "empty arrays", "backslashes"],
)
def test_no_message_keeps_the_parser_busy_for_ever(data: bytes) -> None:
    assert code_of(data) in {PARSE, INVALID_REQUEST}


@given(IDS, TEXTS, st.dictionaries(TEXTS, JSON, max_size=4))
def test_a_request_comes_back_as_it_was(request_id: int | str, method: str, params: dict[str, Any]) -> None:
    message = decode(encode_request(request_id, method, params))

    assert (message.id, message.method, message.is_request) == (request_id, method, True)
    assert type(message.id) is type(request_id)
    assert msgspec.json.decode(message.params) == msgspec.json.decode(msgspec.json.encode(params))
    again = encode_request(request_id, method, msgspec.Raw(message.params))
    assert decode(again).params == message.params


@given(IDS, JSON)
def test_a_result_comes_back_as_it_was(request_id: int | str, result: Any) -> None:
    raw = msgspec.json.encode(result)
    message = decode(encode_result(request_id, raw))

    assert (message.id, message.method, bytes(message.result)) == (request_id, None, raw)
    assert not message.is_request


@given(st.one_of(IDS, st.none()), TEXTS, JSON)
def test_a_fault_is_written_as_an_error(request_id: int | str | None, text: str, data: Any) -> None:
    written = json.loads(encode_fault(request_id, Fault(-32602, text, data)))

    assert written["id"] == request_id
    assert written["error"]["code"] == -32602
    assert written["error"]["message"] == text
    assert ("data" in written["error"]) is (data is not None)


def test_a_request_without_params_has_none() -> None:
    message = decode(encode_request("a", "ping"))

    assert (message.id, message.method, bytes(message.params)) == ("a", "ping", b"")


def test_a_notification_is_no_request() -> None:
    with_params, without = decode(encode_notification("n", {"a": 1})), decode(encode_notification("n"))

    assert not with_params.is_request
    assert bytes(with_params.params) == b'{"a":1}'
    assert not without.is_request
    assert not without.params


def test_an_error_of_the_client_is_a_response() -> None:
    message = decode(encode_fault(3, Fault(-32000, "No.")))

    assert message.method is None
    assert message.error
    assert not message.result


def test_params_that_are_null_are_none() -> None:
    assert (
        decode(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":null}').params
        == decode(b'{"jsonrpc":"2.0","id":1,"method":"ping"}').params
    )


def test_a_result_that_is_null_is_a_result() -> None:
    assert bytes(decode(b'{"jsonrpc":"2.0","id":1,"result":null}').result) == b"null"


@pytest.mark.parametrize("data", [b"[1, {} ,\n[2]]", b"  [1,{},[2]]\r"])
def test_a_batch_is_cut_into_its_messages(data: bytes) -> None:
    items = decode_batch(data)

    assert items is not None
    assert [json.loads(item) for item in items] == [1, {}, [2]]


def test_a_message_that_is_no_array_is_no_batch() -> None:
    assert decode_batch(b'{"a":[]}') is None
    assert decode_batch(b"") is None


def test_a_batch_that_is_wrong_is_a_fault() -> None:
    for data, code in (
        (b"[]", INVALID_REQUEST),
        (b"[1,]", PARSE),
        (b"[" * 200 + b"]" * 200, PARSE),
        (b'["\xff"]', PARSE),
    ):
        with pytest.raises(Fault) as caught:
            decode_batch(data)
        assert caught.value.code == code


def test_a_batch_is_one_level_of_the_depth() -> None:
    assert decode_batch(b"[[[1]]]", depth=3) is not None
    with pytest.raises(Fault):
        decode_batch(b"[[[1]]]", depth=2)


@every_row(
    ("data", "expected"),
    [
        (b'{"id":1}', 1),
        (b'{"id":"a"}', "a"),
        (b'{"id":true}', None),
        (b'{"id":1.5}', None),
        (b'{"id":null}', None),
        (b"{}", None),
        (b"[1]", None),
        (b"{", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_id_of_a_wrong_message_is_found_if_it_is_valid(data: bytes, expected: int | str | None) -> None:
    assert id_of(data) == expected


@every_row("half", [r"\ud800", r"\uDFFF", r"\ud83d\ud83d\ude00", r"\ud83d\u0041", r"\\\udc00", r"\ud83d\ude00\ude00"])
def test_half_a_character_is_an_invalid_request_whose_id_is_found(half: str) -> None:
    data = f'{{"jsonrpc":"2.0","id":7,"method":"m","params":{{"a":"{half}"}}}}'.encode()
    with pytest.raises(Fault, match="half a character") as caught:
        decode(data)

    assert (caught.value.code, id_of(data)) == (INVALID_REQUEST, 7)


def test_an_id_with_half_a_character_is_not_found() -> None:
    data = rb'{"jsonrpc":"2.0","id":"\ud800","method":"m"}'

    assert (code_of(data), id_of(data)) == (INVALID_REQUEST, None)
    assert id_of(rb'{"jsonrpc":"2.0","id":"\ufffd","method":1,"params":{"a":"\ufffd"}}') == "\ufffd"


def test_half_a_character_in_what_is_no_json_otherwise_is_a_parse_fault() -> None:
    for data in (rb'{"a":"\ud800"', rb'["\ud800"', rb'{"a":"\ud800\x"}', rb'{"a":"\ud8"}', rb'{"a":"\ud8"}"}'):
        assert code_of(data) == PARSE
    assert decode(rb'{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"\ud83d\ude00 \\ud800"}}').id == 7


def test_half_a_character_in_a_batch_spoils_its_own_message_alone() -> None:
    good, bad = (
        b'{"jsonrpc":"2.0","id":1,"method":"m"}',
        rb'{"jsonrpc":"2.0","id":2,"method":"m","params":{"a":"\ud800"}}',
    )

    assert decode_batch(b"[ " + good + b" ,\n" + bad + b"," + good + b"]") == [good, bad, good]
    assert decode_batch(rb'[[["\ud800"]],["\ud800"],"\ufffd"]') == [rb'[["\ud800"]]', rb'["\ud800"]', rb'"\ufffd"']


@given(st.recursive(HALVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HALVES, inner, max_size=4)))
def test_text_of_any_program_is_no_parse_fault(content: Any) -> None:
    frame = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"a": content}}).encode()

    assert code_of(frame) in {None, INVALID_REQUEST}
    assert id_of(frame) == 7
    assert decode_batch(b"[" + frame + b", " + frame + b"]") == [frame, frame]


def test_keys_that_are_not_known_are_left_alone() -> None:
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"m","extra":[1,2]}').method == "m"


def test_a_message_is_made_of_what_it_is() -> None:
    assert Message(method="m").is_request is False
    assert Message(method="m", id=1).is_request is True
    assert Message(id=1).is_request is False


@every_row(("code", "status"), HTTP_STATUS.items())
def test_a_fault_has_a_status(code: int, status: int) -> None:
    assert Fault(code, "No.").http == status


def test_a_fault_without_a_status_of_its_own_is_an_answer() -> None:
    assert Fault(INTERNAL, "No.").http == 200


def test_a_fault_says_what_it_is() -> None:
    fault = Fault(-32602, "No.", {"uri": "a://b"})

    assert (fault.code, fault.message, fault.data, str(fault)) == (-32602, "No.", {"uri": "a://b"}, "No.")


def test_no_two_codes_are_the_same() -> None:
    codes = [value for value in vars(faults).values() if isinstance(value, int) and value <= -32000]
    assert len(set(codes)) == len(codes) == 9


@pytest.mark.parametrize("data", [b'{"jsonrpc":"2.0","id":7,"result":%b}', b'{"jsonrpc":"2.0","result":%b,"id":7}'])
def test_the_id_of_a_message_that_is_nested_too_deep_is_found(data: bytes) -> None:
    assert id_of(data % (b'{"a":' * 50_000 + b"1" + b"}" * 50_000)) == 7
