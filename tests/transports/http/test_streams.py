"""A stream by itself: who is given what of it, and what is kept."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from toolyard.transports.http.sessions import Stream


def _gap(dropped: int) -> bytes:
    return json.dumps({"dropped": dropped}).encode()


def _read(stream: Stream, after: int = 0) -> AsyncGenerator[bytes]:
    return stream.read(after, keep_alive=0, primed=False, gap=_gap)


def _said(event: bytes) -> Any:
    (line,) = (line for line in event.splitlines() if line.startswith(b"data: "))
    return json.loads(line.removeprefix(b"data: "))


async def test_what_comes_while_an_event_is_written_is_given_before_the_end() -> None:
    stream = Stream(1, keep=10, keep_bytes=1000)
    stream.push(b"1")
    events = _read(stream)

    found = [_said(await anext(events))]
    stream.push(b"2")
    stream.finish(b"3")
    found += [_said(event) async for event in events]

    assert found == [1, 2, 3]
    assert stream.was_read


async def test_whoever_is_let_go_while_an_event_is_written_is_given_what_came_before() -> None:
    stream = Stream(1, keep=10, keep_bytes=1000)
    stream.push(b"1")
    events = _read(stream)

    found = [_said(await anext(events))]
    stream.push(b"2")
    stream.hang_up()
    found += [_said(event) async for event in events]

    assert found == [1, 2]
    assert not stream.was_read
    assert not stream.has_reader


async def test_a_reader_whose_stream_is_taken_over_is_given_nothing_more() -> None:
    stream = Stream(1, keep=10, keep_bytes=1000)
    for number in (b"1", b"2", b"3"):
        stream.push(number)
    older, newer = _read(stream), _read(stream, after=1)

    first = _said(await anext(older))
    second = _said(await anext(newer))
    rest = [_said(event) async for event in older]
    stream.finish(b"4")

    assert (first, second, rest) == (1, 2, [])
    assert stream.has_reader
    assert [_said(event) async for event in newer] == [3, 4]


async def test_for_somebody_who_reads_only_bytes_are_bounded_and_he_is_told_what_is_missing() -> None:
    stream = Stream(1, keep=2, keep_bytes=10)
    stream.attended = 1
    for number in range(15):
        stream.push(b"%d" % (number % 10))
    stream.finish(b"7")

    assert [_said(event) async for event in _read(stream)] == [{"dropped": 6}, 6, 7, 8, 9, 0, 1, 2, 3, 4, 7]


async def test_when_the_last_one_leaves_only_so_many_are_kept() -> None:
    stream = Stream(1, keep=2, keep_bytes=1000)
    stream.attended = 2
    for number in range(5):
        stream.push(b"%d" % number)
    before = stream.size
    stream.leave()
    still = stream.size
    stream.leave()

    assert (before == still, stream.size < before) == (True, True)
    stream.finish(b"9")
    assert [_said(event) async for event in _read(stream)] == [{"dropped": 4}, 4, 9]


async def test_what_was_given_already_counts_as_kept_for_somebody_away() -> None:
    stream = Stream(1, keep=2, keep_bytes=1000)
    stream.attended = 1
    events = _read(stream)
    for number in range(5):
        stream.push(b"%d" % number)
        assert _said(await anext(events)) == number
    await events.aclose()

    stream.finish(b"9")
    assert [_said(event) async for event in _read(stream)] == [{"dropped": 4}, 4, 9]


async def test_a_stream_that_keeps_nothing_keeps_nothing() -> None:
    stream = Stream(1, keep=0, keep_bytes=1000)
    stream.finish(b"1")

    assert [event async for event in _read(stream)] == []
