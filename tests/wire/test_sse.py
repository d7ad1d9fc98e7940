import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.wire.sse import KEEP_ALIVE, Event, Events, encode_event, encode_retry

LIMIT = 10_000
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
MESSAGES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=30).map(str.encode)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


def read(pieces: list[bytes], limit: int = LIMIT) -> list[Event]:
    events = Events(max_bytes=limit)
    return [event for piece in pieces for event in events.feed(piece)]


@given(
    st.lists(st.tuples(MESSAGES, st.one_of(st.just(""), WORDS), WORDS), max_size=6),
    st.lists(st.integers(0, 2000), max_size=30),
)
def test_events_come_back_however_the_stream_was_cut(written: list[tuple[bytes, str, str]], places: list[int]) -> None:
    stream = KEEP_ALIVE.join(encode_event(message, event_id=event_id, kind=kind) for message, event_id, kind in written)

    assert read(cut(stream, places)) == [Event(message, event_id, kind) for message, event_id, kind in written]


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
@given(places=st.lists(st.integers(0, 200), max_size=20))
def test_every_kind_of_line_ending_is_understood(ending: bytes, places: list[int]) -> None:
    lines = [b"event: a", b"data: 1", b"data: 2", b"", b": alive", b"", b"id:7", b"data", b"", b""]
    stream = ending.join(lines) + b": more" + ending

    assert read(cut(stream, places)) == [Event(b"1\n2", "", "a"), Event(b"", "7", "message")]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_no_stream_raises_and_no_cut_changes_what_it_says(stream: bytes, places: list[int]) -> None:
    assert read(cut(stream, places)) == read([stream])


@given(
    st.lists(
        st.sampled_from([b"data", b"id", b"event", b"retry", b":", b": ", b" ", b"\n", b"\r", b"7", b"\xff", b"x"]),
        max_size=40,
    )
)
def test_no_fields_raise(pieces: list[bytes]) -> None:
    assert read(pieces) == read([b"".join(pieces)])


def test_a_retry_says_where_and_when_to_come_back() -> None:
    assert read([encode_retry("a-1", 1500)]) == [Event(b"", "a-1", "message", 1500)]


@every_row("value", [b"soon", b"-1", b"1.5", b"", b"\xd9\xa1"])
def test_a_retry_that_is_no_number_is_none(value: bytes) -> None:
    assert [event.retry for event in read([b"data: x\nretry: " + value + b"\n\n"])] == [None]


def test_a_retry_of_many_digits_does_no_harm() -> None:
    assert [event.data for event in read([b"data: x\nretry: " + b"9" * 5000 + b"\n\n"])] == [b"x"]


def test_only_one_blank_after_the_colon_is_no_part_of_the_value() -> None:
    assert read([b"data:  x\n\n", b"data:y\n\n"]) == [Event(b" x"), Event(b"y")]


def test_an_event_that_never_ends_is_refused() -> None:
    events = Events(max_bytes=100)
    assert list(events.feed(b"data: " + b"x" * 80)) == []
    with pytest.raises(ValueError, match="100"):
        list(events.feed(b"x" * 80))


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_an_event_is_too_long_however_it_was_cut(pieces: int) -> None:
    stream = b"data: " + b"x" * 200 + b"\n\n"
    size = -(-len(stream) // pieces)
    with pytest.raises(ValueError, match="100"):
        read([stream[start : start + size] for start in range(0, len(stream), size)], limit=100)


def test_many_events_in_one_piece_may_be_longer_than_one() -> None:
    assert len(read([encode_event(b"x" * 50) * 100], limit=100)) == 100


def test_an_event_has_one_line() -> None:
    assert encode_event(b"{}", event_id="1") == b"event: message\r\nid: 1\r\ndata: {}\r\n\r\n"
    assert encode_event(b"{}", kind="endpoint") == b"event: endpoint\r\ndata: {}\r\n\r\n"
