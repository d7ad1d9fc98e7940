import asyncio
import os
import select
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard._internal.pipes import Lines, Reader, Writer

PATIENCE = 20.0


class Taken:
    """What a reader handed on, and whether there is room for more."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.some = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_full = False

    def take(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.some.set()

    def read(self, descriptor: int) -> Reader:
        return Reader(descriptor, self.take, is_full=lambda: self.is_full, on_end=self.ended.set)

    async def wait_for_some(self) -> None:
        await asyncio.wait_for(self.some.wait(), PATIENCE)
        self.some.clear()

    async def wait_for_the_end(self) -> None:
        await asyncio.wait_for(self.ended.wait(), PATIENCE)


async def some_turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)  # a turn of the loop, not a wait


async def test_what_comes_is_handed_on_until_the_end(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = Taken()
    taken.read(source)
    assert not os.get_blocking(source)
    for piece in (b"one", b"two"):
        os.write(sink, piece)
        await taken.wait_for_some()
    os.close(sink)
    await taken.wait_for_the_end()

    assert taken.pieces == [b"one", b"two"]
    assert os.get_blocking(source)


async def test_nothing_is_read_while_there_is_no_room(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = Taken()
    taken.is_full = True
    reader = taken.read(source)
    os.write(sink, b"one")
    await taken.wait_for_some()
    os.write(sink, b"two")
    reader.go_on()
    await some_turns()
    assert taken.pieces == [b"one"]
    taken.is_full = False
    reader.go_on()
    reader.go_on()
    await taken.wait_for_some()
    os.close(sink)
    await taken.wait_for_the_end()

    assert taken.pieces == [b"one", b"two"]


async def test_who_goes_is_noticed_while_there_is_no_room_and_what_he_left_is_taken(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = Taken()
    taken.is_full = True
    reader = taken.read(source)
    os.write(sink, b"one")
    await taken.wait_for_some()
    os.write(sink, b"two")
    os.close(sink)
    await taken.wait_for_the_end()
    reader.close()

    assert taken.pieces == [b"one", b"two"]
    assert os.get_blocking(source)


async def test_who_will_say_no_more_on_a_socket_is_noticed_too_but_not_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolyard._internal.pipes._LOOK", 0.001)
    looked = asyncio.Event()
    poll = select.poll

    def noted() -> object:
        looked.set()
        return poll()

    monkeypatch.setattr(select, "poll", noted)
    source, sink = socket.socketpair()
    with source, sink:
        taken = Taken()
        taken.is_full = True
        taken.read(source.fileno())
        sink.send(b"one")
        await taken.wait_for_some()
        await asyncio.wait_for(looked.wait(), PATIENCE)
        sink.send(b"two")
        assert not taken.ended.is_set()
        sink.shutdown(socket.SHUT_WR)
        await taken.wait_for_the_end()

    assert taken.pieces == [b"one", b"two"]


async def test_a_reader_that_is_closed_reads_no_more(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = Taken()
    reader = taken.read(source)
    reader.close()
    reader.close()
    reader.go_on()
    os.write(sink, b"one")
    await some_turns()

    assert taken.pieces == []
    assert os.get_blocking(source)
    assert os.read(source, 10) == b"one"


async def test_a_source_that_fails_has_ended(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe
    taken = Taken()
    results: list[OSError] = [BlockingIOError(), OSError("gone")]

    def read(_descriptor: int, _size: int) -> bytes:
        raise results.pop(0)

    monkeypatch.setattr("toolyard._internal.pipes.os.read", read)
    taken.read(source)
    os.write(sink, b"x")
    await taken.wait_for_the_end()

    assert (taken.pieces, results) == ([], [])


async def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1_000_000)
    taken = Taken()
    with path.open("rb") as file:
        taken.read(file.fileno())
        await taken.wait_for_the_end()

    assert b"".join(taken.pieces) == b"x" * 1_000_000


async def test_a_file_is_read_no_faster_than_it_can_be_taken(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1_000_000)
    taken = Taken()
    taken.is_full = True
    with path.open("rb") as file:
        reader = taken.read(file.fileno())
        await taken.wait_for_some()
        await some_turns()
        assert len(taken.pieces) == 1
        taken.is_full = False
        reader.go_on()
        await taken.wait_for_the_end()

    assert len(b"".join(taken.pieces)) == 1_000_000


async def test_a_reader_of_a_file_can_be_closed_while_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1_000_000)
    taken = Taken()
    taken.is_full = True
    with path.open("rb") as file:
        reader = taken.read(file.fileno())
        await taken.wait_for_some()
        reader.close()
        await some_turns()

    assert len(taken.pieces) == 1
    assert not taken.ended.is_set()


async def test_a_folder_has_nothing_to_read(tmp_path: Path) -> None:
    taken = Taken()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        taken.read(descriptor)
        await taken.wait_for_the_end()
    finally:
        os.close(descriptor)

    assert taken.pieces == []


async def test_a_reader_of_a_file_that_is_closed_at_once_hands_nothing_on(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x")
    taken = Taken()
    with path.open("rb") as file:
        reader = taken.read(file.fileno())
        reader.close()
        await some_turns()

    assert taken.pieces == []
    assert not taken.ended.is_set()


class TakenLines:
    """What came of a stream: its lines, and how often one was too long."""

    def __init__(self, limit: int) -> None:
        self.said: list[bytes | None] = []
        self.lines = Lines(self.said.append, limit=limit, too_long=lambda: self.said.append(None))

    def feed(self, *pieces: bytes) -> list[bytes | None]:
        for piece in pieces:
            self.lines.feed(piece)
        return self.said


@given(st.lists(st.binary(max_size=20), max_size=10), st.lists(st.integers(0, 300), max_size=12), st.integers(3, 15))
def test_lines_come_out_however_the_stream_was_cut(lines: list[bytes], places: list[int], limit: int) -> None:
    lines = [part for line in lines for part in line.split(b"\n")]
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})

    said = TakenLines(limit).feed(*(stream[start:end] for start, end in pairwise(edges)))

    assert said == [line if len(line) <= limit else None for line in lines if line]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_what_is_kept_is_bounded(pieces: list[bytes]) -> None:
    taken = TakenLines(10)
    for piece in pieces:
        taken.feed(piece)
        assert len(taken.lines._buffer) <= 10  # pyright: ignore[reportPrivateUsage] - memory is what is tested


def test_what_came_without_an_end_is_taken_at_the_end() -> None:
    taken = TakenLines(10)
    taken.feed(b"a\nb")
    assert taken.said == [b"a"]
    taken.lines.end()
    assert taken.said == [b"a", b"b"]
    taken.lines.end()
    assert taken.said == [b"a", b"b"]


def test_the_rest_of_a_line_that_is_too_long_is_no_line() -> None:
    taken = TakenLines(3)
    taken.feed(b"abcd", b"efgh", b"ij\nok\nx")
    assert taken.said == [None, b"ok"]
    taken.feed(b"yzabc")
    taken.lines.end()
    assert taken.said == [None, b"ok", None]


@pytest.mark.parametrize("pieces", [(b"abc\n",), (b"abc", b"\n"), (b"ab", b"c\n")])
def test_a_line_may_be_exactly_as_long_as_the_limit(pieces: tuple[bytes, ...]) -> None:
    assert TakenLines(3).feed(*pieces) == [b"abc"]


def test_nobody_need_be_told_of_what_is_too_long() -> None:
    said: list[bytes] = []
    Lines(said.append, limit=3).feed(b"abcdef\nok\n")
    assert said == [b"ok"]


MUCH = b"x" * 1_000_000


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop, not a wait


async def take(source: int, count: int) -> bytes:
    """Read so many bytes without keeping the loop from running."""
    os.set_blocking(source, False)
    taken = bytearray()
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            try:
                taken += os.read(source, 65536)
            except BlockingIOError:
                await asyncio.sleep(0)  # a turn of the loop, not a wait
    return bytes(taken)


async def test_what_is_said_in_one_turn_goes_out_in_one_piece(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe
    pieces: list[bytes] = []
    write = os.write

    def note(descriptor: int, piece: memoryview) -> int:
        pieces.append(bytes(piece))
        return write(descriptor, piece)

    monkeypatch.setattr("toolyard._internal.pipes.os.write", note)
    writer = Writer(sink, limit=100)
    writer.write(b"one")
    writer.write(b"two")
    assert await take(source, 6) == b"onetwo"
    writer.write(b"three")
    assert await take(source, 5) == b"three"
    await writer.close()

    assert pieces == [b"onetwo", b"three"]
    assert os.get_blocking(sink)


async def test_every_piece_gets_its_end_which_counts_until_it_is_written(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, limit=8, end=b"\n")
    writer.write(b"one")
    writer.write(b"two")
    assert not writer.is_full
    writer.write(b"")
    assert writer.is_full
    assert await take(source, 9) == b"one\ntwo\n\n"
    await writer.close()

    assert not writer.is_full


async def test_a_slow_reader_gets_everything_and_makes_it_full(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    room: list[bool] = []
    writer = Writer(sink, limit=100_000)
    writer.on_room = lambda: room.append(writer.is_full)
    writer.write(MUCH)
    await until(lambda: writer._size < len(MUCH))  # pyright: ignore[reportPrivateUsage] - that the pipe is full
    writer.write(b"and more")
    assert writer.is_full
    assert await take(source, len(MUCH) + 8) == MUCH + b"and more"
    await until(lambda: not writer._size)  # pyright: ignore[reportPrivateUsage] - that all is written
    await writer.close()

    assert room == [False]
    assert not writer.is_full


async def test_what_is_left_is_sent_at_the_end(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, limit=100)
    writer.write(b"one")
    await writer.close()
    writer.write(b"too late")
    assert await take(source, 3) == b"one"
    await asyncio.sleep(0)  # a turn of the loop, not a wait
    with pytest.raises(BlockingIOError):
        os.read(source, 10)


async def test_the_end_waits_for_a_slow_reader(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, limit=100)
    writer.write(MUCH)
    closing = asyncio.create_task(writer.close())
    assert await take(source, len(MUCH)) == MUCH
    await asyncio.wait_for(closing, PATIENCE)


async def test_the_end_does_not_wait_for_ever(pipe: tuple[int, int]) -> None:
    _, sink = pipe
    writer = Writer(sink, limit=100)
    writer.write(MUCH)
    await asyncio.wait_for(writer.close(patience=0.02), PATIENCE)


async def test_a_reader_that_is_gone_does_no_harm(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    os.close(source)
    writer = Writer(sink, limit=2)
    writer.write(b"one")
    assert not writer.is_broken
    await until(lambda: not writer.is_full)
    assert writer.is_broken
    writer.write(b"two")
    assert not writer.is_full
    await asyncio.wait_for(writer.close(), PATIENCE)


async def test_who_waits_for_room_goes_on_when_the_other_side_breaks(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    room: list[bool] = []
    writer = Writer(sink, limit=100)
    writer.on_room = lambda: room.append(writer.is_full)
    writer.write(MUCH)
    await until(lambda: writer._size < len(MUCH))  # pyright: ignore[reportPrivateUsage] - that the pipe is full
    assert writer.is_full
    os.close(source)
    await until(lambda: not writer.is_full)
    await writer.close()

    assert room == [False]


async def test_a_file_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "output"
    with path.open("wb") as file:
        writer = Writer(file.fileno(), limit=100)
        writer.write(MUCH)
        writer.write(b"more")
        await writer.close()

    assert path.read_bytes() == MUCH + b"more"
