import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, computed_field
from table_tests import every_row

from callyard import Blob, Call, Envelope, Image, Text, ToolError, Yard, tool
from callyard.model.envelope import WRAPPER_CHARACTERS, Failure, Meta, encode, encode_data, estimate_tokens
from callyard.model.errors import CODES, CodeName

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


class Colour(Enum):
    RED = "red"


class Money(BaseModel):
    amount: Decimal = Field(alias="sum")
    when: datetime | None = None


class Moody(BaseModel):
    @computed_field
    @property
    def mood(self) -> str:
        raise RuntimeError


@dataclass
class Point:
    x: int
    y: int


class Pair(msgspec.Struct):
    left: int
    right: int


def failure_of(answer: Envelope) -> Failure:
    assert answer.error is not None
    return answer.error


def written(answer: Envelope) -> dict[str, Any]:
    return json.loads(answer.to_json())


def test_a_good_answer_has_all_four_keys() -> None:
    answer = written(Envelope.ok({"id": 7}))

    assert list(answer) == ["success", "data", "error", "_meta"]
    assert (answer["success"], answer["data"], answer["error"]) == (True, {"id": 7}, None)


def test_a_failure_has_all_four_keys() -> None:
    answer = written(Envelope.fail(ToolError("not_found", "There is none."), tool_id="find"))

    assert list(answer) == ["success", "data", "error", "_meta"]
    assert (answer["success"], answer["data"]) == (False, None)
    assert answer["error"] == {
        "code": "not_found",
        "message": "There is none.",
        "details": {},
        "recoverable": True,
        "retryable": False,
        "blame": "caller",
        "may_have_run": False,
        "http": 404,
        "hint": CODES["not_found"].hint,
        "next_actions": [],
        "tool_id": "find",
    }


def test_the_meta_of_an_answer_says_only_what_there_is() -> None:
    assert json.loads(encode(Meta("c_1", 2, 3))) == {"call_id": "c_1", "elapsed_ms": 2, "estimated_tokens": 3}
    assert json.loads(encode(Meta("c_1", 2, 3, "s_1", ("a",), ("w",)))) == {
        "call_id": "c_1",
        "elapsed_ms": 2,
        "estimated_tokens": 3,
        "session_id": "s_1",
        "coerced": ["a"],
        "warnings": ["w"],
    }


@every_row("code", CODES)
@every_row("safe", [False, True])
@every_row("ran", [False, True])
def test_a_retry_is_offered_where_the_code_allows_it_and_it_does_no_harm(
    code: CodeName, *, safe: bool, ran: bool
) -> None:
    failure = failure_of(Envelope.fail(ToolError(code, "…", may_have_run=ran), safe=safe))

    assert failure.may_have_run is ran
    assert failure.retryable is (CODES[code].retryable and (safe or not ran))


@every_row("code", CODES)
@every_row("ran", [False, True, None])
def test_may_have_run_counts_only_where_the_code_leaves_it_open(code: CodeName, *, ran: bool | None) -> None:
    failure = failure_of(Envelope.fail(ToolError(code, "…"), may_have_run=ran))

    assert failure.may_have_run is {"no": False, "yes": True, "maybe": bool(ran)}[CODES[code].may_have_run]


def test_may_have_run_of_the_failure_itself_wins() -> None:
    error = ToolError("timeout", "…", may_have_run=False)

    failure = failure_of(Envelope.fail(error, may_have_run=True))

    assert (failure.may_have_run, failure.retryable) == (False, True)


def test_a_failure_that_must_not_be_retried_now_hints_at_the_state() -> None:
    safe = failure_of(Envelope.fail(ToolError("timeout", "…"), safe=True))
    unsafe = failure_of(Envelope.fail(ToolError("timeout", "…"), safe=False))

    assert safe.hint == CODES["timeout"].hint
    assert unsafe.hint != safe.hint


def test_a_failure_keeps_what_it_was_given() -> None:
    error = ToolError(
        "internal_error", "…", hint="Wait.", next_actions=["a()", "b()"], blame="upstream", data=[1], at=3
    )

    answer = Envelope.fail(error)

    failure = failure_of(answer)
    assert (failure.hint, failure.next_actions, failure.blame) == ("Wait.", ("a()", "b()"), "upstream")
    assert (answer.data, failure.details) == ([1], {"at": 3})


@pytest.mark.parametrize(
    "value",
    [object(), {1: object()}, [math.nan, object()], 1j, Image(b"x"), "\ud800", Moody(), lambda: 1, 10**5000],
    ids=lambda value: type(value).__name__,
)
def test_details_that_cannot_be_written_are_dropped_with_a_warning(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="callyard.model.envelope"):
        answer = Envelope.fail(ToolError("state_error", "…", bad=value, good=1))

    assert failure_of(answer).details == {"good": 1}
    assert [record.msg.split()[0] for record in caplog.records] == ["dropped_detail"]
    assert written(answer)["error"]["details"] == {"good": 1}


def test_details_that_go_in_circles_are_dropped() -> None:
    circle: list[Any] = []
    circle.append(circle)

    assert failure_of(Envelope.fail(ToolError("state_error", "…", circle=circle, good=1))).details == {"good": 1}


def test_a_detail_that_is_too_long_for_an_answer_is_dropped_and_the_others_are_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = Envelope.fail(ToolError("rate_limited", "…", before=1, much="x" * 1_000_000, retry_after_ms=5))

    assert failure_of(answer).details == {"before": 1, "retry_after_ms": 5}
    assert "dropped_detail" in caplog.text


def test_many_details_are_kept_only_as_far_as_an_answer_can_hold_them() -> None:
    much: dict[str, Any] = {f"n{number}": "x" * 1000 for number in range(1000)}

    assert len(Envelope.fail(ToolError("state_error", "…", **much)).to_json()) < 200_000


def test_details_become_plain_json() -> None:
    error = ToolError(
        "state_error", "…", colour=Colour.RED, point=Point(1, 2), when=datetime(2026, 1, 2, tzinfo=UTC), many={1}
    )

    assert failure_of(Envelope.fail(error)).details == {
        "colour": "red",
        "point": {"x": 1, "y": 2},
        "when": "2026-01-02T00:00:00Z",
        "many": [1],
    }


def test_halves_of_characters_never_reach_an_answer() -> None:
    broken = "half \ud83d"
    facts: dict[str, Any] = {broken: 1}
    error = ToolError("state_error", broken, hint=broken, next_actions=[broken], **facts)

    answer = written(Envelope.fail(error))

    assert "\ud83d" not in json.dumps(answer, ensure_ascii=False)
    assert list(answer["error"]["details"].values()) == [1]


@every_row("wrong", [ValueError("oops"), 5, None, b"bytes"], ids=str)
def test_a_failure_whose_words_are_no_text_is_answered_all_the_same(wrong: Any) -> None:
    answer = Envelope.fail(ToolError("state_error", wrong, hint=wrong, next_actions=[wrong]))

    assert failure_of(answer).code == "state_error"
    assert isinstance(written(answer)["error"]["message"], str)
    assert isinstance(written(answer)["error"]["hint"], str)


@given(JSON)
def test_an_answer_survives_being_written_and_read(data: Any) -> None:
    answer = Envelope(success=True, data=data, meta=Meta("c_1", 2, 3, "s_1", ("a",), ("w",)))

    assert Envelope.from_json(answer.to_json()) == answer
    assert Envelope.from_json(answer.to_json().decode()) == answer


def test_a_failure_survives_being_written_and_read() -> None:
    answer = Envelope.fail(
        ToolError("timeout", "Zeit ist um ⏰.", next_actions=["a()"], at={"x": [1, None]}), tool_id="t", safe=True
    )

    assert Envelope.from_json(answer.to_json()) == answer


@given(JSON)
def test_the_tokens_of_an_answer_are_a_quarter_of_its_characters_without_its_meta(data: Any) -> None:
    text = json.dumps({"success": True, "data": data, "error": None}, ensure_ascii=False, separators=(",", ":"))
    encoded = encode_data(data)

    assert estimate_tokens(data, None) == math.ceil((WRAPPER_CHARACTERS + encoded.characters) / 4)
    if (
        json.dumps(data, ensure_ascii=False, separators=(",", ":")) == encoded.text.decode()
    ):  # floats may be written shorter
        assert estimate_tokens(data, None) == math.ceil(len(text) / 4)


@every_row("data", [None, "x", "ü" * 99, "漢字🙂" * 7, {"ключ": ["é"]}])
async def test_every_answer_says_what_it_costs_in_characters_not_bytes(data: object) -> None:
    @tool
    async def say() -> object:
        return data

    @tool
    async def fail() -> str:
        raise ToolError("state_error", f"{data} 🙂", data=data, what=data)

    async with Yard(tools=[say, fail]) as yard:
        answers = [await yard.call("say"), await yard.call("fail"), await yard.call("nothing")]

    for answer in answers:
        without_meta = {key: value for key, value in written(answer).items() if key != "_meta"}
        text = json.dumps(without_meta, ensure_ascii=False, separators=(",", ":"))
        assert answer.meta.estimated_tokens == math.ceil(len(text) / 4)


def test_blocks_ride_beside_the_answer_and_are_not_in_its_json() -> None:
    image = Image(b"x")
    answer = Envelope.ok({"n": 1}, content=[image])

    assert answer.content == (image,)
    assert b"content" not in answer.to_json()
    assert Envelope.ok(1).content == ()


async def test_blocks_in_a_result_are_described_in_their_places() -> None:
    @tool
    async def draw() -> Any:
        return {"pictures": [Image(b"12", "image/gif"), Image(b"345")], "note": Text("look"), "n": 1}

    async with Yard(tools=[draw]) as yard:
        answer = await yard.call("draw")

    assert answer.data == {
        "pictures": [
            {"type": "image", "mime_type": "image/gif", "bytes": 2},
            {"type": "image", "mime_type": "image/png", "bytes": 3},
        ],
        "note": {"type": "text", "text": "look"},
        "n": 1,
    }
    assert [type(block) for block in answer.content] == [Image, Image, Text]
    assert answer.meta.estimated_tokens == math.ceil(
        len(encode({"success": True, "data": answer.data, "error": None})) / 4
    )


def test_items_of_an_iterator_are_not_lost_beside_a_block() -> None:
    def rows() -> Iterator[int]:
        yield from (1, 2)

    assert encode_data({"rows": rows(), "picture": Image(b"x")}).data["rows"] == [1, 2]


@every_row(
    ("value", "plain"),
    [
        (Point(1, 2), {"x": 1, "y": 2}),
        (Pair(1, 2), {"left": 1, "right": 2}),
        (Money.model_validate({"sum": "1.50"}), {"sum": "1.50", "when": None}),
        ([Money.model_validate({"sum": "1.50"})], [{"sum": "1.50", "when": None}]),
        (Colour.RED, "red"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (PurePosixPath("/tmp/x"), "/tmp/x"),  # noqa: S108 - no file is made
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        ((1, "a"), [1, "a"]),
        ({"a": {1}}, {"a": [1]}),
        ((number for number in (1, 2)), [1, 2]),
        (b"bytes", "Ynl0ZXM="),
        (2**70, 2**70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_serializable_value_becomes_plain_json(value: object, plain: object) -> None:
    encoded = encode_data(value)

    assert encoded.data == plain
    assert json.loads(encoded.text) == plain


@every_row("value", [1, "x", True, None, 2.5, [], {}])
def test_plain_json_stays_what_it_is(value: object) -> None:
    encoded = encode_data(value)

    assert encoded.data == value
    assert type(encoded.data) is type(value)
    assert encoded.characters == len(json.dumps(value))


@every_row(
    "value",
    [
        object(),
        1j,
        "\ud800",
        {"a": "\udfff"},
        10**5000,
        {object()},
        Moody(),
        {"a": [Moody()]},
        [Image(b"x"), object()],
        {"a": Image(b"x"), "b": Moody()},
        Envelope,
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unserializable_value_is_one_kind_of_error(value: object) -> None:
    with pytest.raises(TypeError):
        encode_data(value)


def test_circles_cannot_be_written() -> None:
    circle: dict[str, Any] = {}
    circle["again"] = circle

    with pytest.raises(TypeError):
        encode(circle)


def test_without_pydantic_what_only_it_knows_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (1, 2)
    assert encode(iter(rows)) == b"[1,2]"
    monkeypatch.delitem(sys.modules, "pydantic_core")

    with pytest.raises(TypeError):
        encode(iter(rows))


async def test_a_ready_answer_is_kept_and_its_meta_stamped_anew() -> None:
    image = Image(b"x")

    @tool
    async def ready(call: Call) -> Envelope:
        old = Meta("c_old", 999_999, 999_999, "s_old", ("was",), ("careful",))
        envelope = Envelope(success=True, data={"id": call.id, "blob": Blob(b"12")}, meta=old)
        envelope.content = (image,)
        return envelope

    async with Yard(tools=[ready]) as yard:
        answer = await yard.call("ready")

    assert answer.data["id"] == answer.meta.call_id != "c_old"
    assert answer.data["blob"]["bytes"] == 2
    assert (answer.meta.session_id, answer.meta.coerced, answer.meta.warnings) == ("s_old", ("was",), ("careful",))
    assert answer.meta.elapsed_ms < 999_999
    assert [type(block) for block in answer.content] == [Image, Blob]


async def test_a_ready_failure_is_kept() -> None:
    @tool
    async def ready() -> Envelope:
        return Envelope.fail(ToolError("upstream_error", "…", data=[1], status=500), tool_id="their_tool")

    async with Yard(tools=[ready]) as yard:
        answer = await yard.call("ready")

    failure = failure_of(answer)
    assert (answer.success, answer.data, failure.code, failure.details) == (
        False,
        [1],
        "upstream_error",
        {"status": 500},
    )
    assert failure.tool_id == "their_tool"
    assert answer.meta.call_id


@every_row(
    "contradiction",
    [
        Envelope(success=True, error=Envelope.fail(ToolError("timeout", "…")).error),
        Envelope(success=False),
        Envelope(success=True, data=object()),
        Envelope(success=True, data="\ud800"),
    ],
)
async def test_a_ready_answer_that_contradicts_itself_is_the_tools_fault(contradiction: Envelope) -> None:
    @tool
    async def ready() -> Envelope:
        return contradiction

    async with Yard(tools=[ready]) as yard:
        answer = await yard.call("ready")

    assert failure_of(answer).code == "invalid_output"


async def test_a_ready_failure_of_an_unknown_code_is_the_tools_fault() -> None:
    @tool
    async def ready() -> Envelope:
        error: Any = Envelope.fail(ToolError("timeout", "…")).error
        return Envelope(success=False, error=msgspec.structs.replace(error, code="oops"))

    async with Yard(tools=[ready]) as yard:
        answer = await yard.call("ready")

    assert failure_of(answer).code == "invalid_output"


def test_the_state_need_not_be_looked_at_where_nothing_ran() -> None:
    failures = [Envelope.fail(ToolError("cancelled", "No."), may_have_run=ran).error for ran in (False, True)]

    assert [failure is not None and "state" in failure.hint for failure in failures] == [False, True]


def test_a_test_can_expect_a_failure() -> None:
    failed = Envelope.fail(ToolError("not_found", "It is gone."))

    assert failed.expect_error() is failed.error
    assert failed.expect_error("not_found").message == "It is gone."
    with pytest.raises(AssertionError):
        failed.expect_error("timeout")
    with pytest.raises(AssertionError):
        Envelope.ok(5).expect_error()


def test_a_hint_names_a_field_only_where_it_is_given() -> None:
    fields = ("available_sessions", "issues", "retry_after_ms", "similar", "step_index", "next_actions")
    named: list[str] = []
    for code in CODES:
        without = failure_of(Envelope.fail(ToolError(code, "…", may_have_run=False)))
        details: dict[str, Any] = {**dict.fromkeys(fields, ()), "next_actions": ["callyard login x"]}
        with_all = failure_of(Envelope.fail(ToolError(code, "…", may_have_run=False, **details)))
        assert without.hint
        assert not [field for field in fields if f"'{field}'" in without.hint]
        named += [field for field in fields if f"'{field}'" in with_all.hint]

    assert set(named) == set(fields)
    own = ToolError("overloaded", "…", hint="Wait for 'retry_after_ms', then call again.")
    assert failure_of(Envelope.fail(own)).hint == "Wait a moment, then call again."
