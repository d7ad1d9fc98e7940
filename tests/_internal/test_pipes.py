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

from callyard._internal.pipes import LineSplitter, Reader, Writer

TIMEOUT_S = 60.0


class ReadPieces:
    """The pieces that a reader delivered, and whether there is room for more."""

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
        await asyncio.wait_for(self.some.wait(), TIMEOUT_S)
        self.some.clear()

    async def wait_for_the_end(self) -> None:
        await asyncio.wait_for(self.ended.wait(), TIMEOUT_S)


async def run_loop_briefly() -> None:
    for _ in range(10):
        await asyncio.sleep(0)  # one loop iteration, not a wait


async def test_a_reader_delivers_every_piece_until_the_end(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = ReadPieces()
    taken.read(source)
    assert not os.get_blocking(source)
    for piece in (b"one", b"two"):
        os.write(sink, piece)
        await taken.wait_for_some()
    os.close(sink)
    await taken.wait_for_the_end()

    assert taken.pieces == [b"one", b"two"]
    assert os.get_blocking(source)


async def test_a_reader_pauses_while_its_consumer_is_full(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = ReadPieces()
    taken.is_full = True
    reader = taken.read(source)
    os.write(sink, b"one")
    await taken.wait_for_some()
    os.write(sink, b"two")
    reader.resume()
    await run_loop_briefly()
    assert taken.pieces == [b"one"]
    taken.is_full = False
    reader.resume()
    reader.resume()
    await taken.wait_for_some()
    os.close(sink)
    await taken.wait_for_the_end()

    assert taken.pieces == [b"one", b"two"]


async def test_a_paused_reader_notices_a_hangup_and_reads_the_rest(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = ReadPieces()
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


async def test_a_paused_reader_notices_a_half_closed_socket_but_not_an_idle_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callyard._internal.pipes._POLL_S", 0.001)
    looked = asyncio.Event()
    poll = select.poll

    def noted() -> object:
        looked.set()
        return poll()

    monkeypatch.setattr(select, "poll", noted)
    source, sink = socket.socketpair()
    with source, sink:
        taken = ReadPieces()
        taken.is_full = True
        taken.read(source.fileno())
        sink.send(b"one")
        await taken.wait_for_some()
        await asyncio.wait_for(looked.wait(), TIMEOUT_S)
        sink.send(b"two")
        assert not taken.ended.is_set()
        sink.shutdown(socket.SHUT_WR)
        await taken.wait_for_the_end()

    assert taken.pieces == [b"one", b"two"]


async def test_a_reader_that_is_closed_reads_no_more(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    taken = ReadPieces()
    reader = taken.read(source)
    reader.close()
    reader.close()
    reader.resume()
    os.write(sink, b"one")
    await run_loop_briefly()

    assert taken.pieces == []
    assert os.get_blocking(source)
    assert os.read(source, 10) == b"one"


async def test_a_source_that_fails_has_ended(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = pipe
    taken = ReadPieces()
    results: list[OSError] = [BlockingIOError(), OSError("gone")]

    def read(_descriptor: int, _size: int) -> bytes:
        raise results.pop(0)

    monkeypatch.setattr("callyard._internal.pipes.os.read", read)
    taken.read(source)
    os.write(sink, b"x")
    await taken.wait_for_the_end()

    assert (taken.pieces, results) == ([], [])


async def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1_000_000)
    taken = ReadPieces()
    with path.open("rb") as file:
        taken.read(file.fileno())
        await taken.wait_for_the_end()

    assert b"".join(taken.pieces) == b"x" * 1_000_000


async def test_reading_a_file_pauses_while_the_consumer_is_full(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1_000_000)
    taken = ReadPieces()
    taken.is_full = True
    with path.open("rb") as file:
        reader = taken.read(file.fileno())
        await taken.wait_for_some()
        await run_loop_briefly()
        assert len(taken.pieces) == 1
        taken.is_full = False
        reader.resume()
        await taken.wait_for_the_end()

    assert len(b"".join(taken.pieces)) == 1_000_000


async def test_a_reader_of_a_file_can_be_closed_while_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 1_000_000)
    taken = ReadPieces()
    taken.is_full = True
    with path.open("rb") as file:
        reader = taken.read(file.fileno())
        await taken.wait_for_some()
        reader.close()
        await run_loop_briefly()

    assert len(taken.pieces) == 1
    assert not taken.ended.is_set()


async def test_a_folder_ends_at_once(tmp_path: Path) -> None:
    taken = ReadPieces()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        taken.read(descriptor)
        await taken.wait_for_the_end()
    finally:
        os.close(descriptor)

    assert taken.pieces == []


async def test_a_file_reader_that_is_closed_at_once_delivers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x")
    taken = ReadPieces()
    with path.open("rb") as file:
        reader = taken.read(file.fileno())
        reader.close()
        await run_loop_briefly()

    assert taken.pieces == []
    assert not taken.ended.is_set()


class SplitLines:
    """The lines of a stream, with None for one that was too long."""

    def __init__(self, limit: int) -> None:
        self.lines: list[bytes | None] = []
        self.splitter = LineSplitter(self.lines.append, limit=limit, on_too_long=lambda: self.lines.append(None))

    def feed(self, *pieces: bytes) -> list[bytes | None]:
        for piece in pieces:
            self.splitter.feed(piece)
        return self.lines


@given(st.lists(st.binary(max_size=20), max_size=10), st.lists(st.integers(0, 300), max_size=12), st.integers(3, 15))
def test_lines_do_not_depend_on_how_the_stream_is_cut(lines: list[bytes], places: list[int], limit: int) -> None:
    lines = [part for line in lines for part in line.split(b"\n")]
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})

    delivered = SplitLines(limit).feed(*(stream[start:end] for start, end in pairwise(edges)))

    assert delivered == [line if len(line) <= limit else None for line in lines if line]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_the_line_buffer_is_bounded(pieces: list[bytes]) -> None:
    taken = SplitLines(10)
    for piece in pieces:
        taken.feed(piece)
        assert sum(map(len, taken.splitter._rest)) <= 10  # pyright: ignore[reportPrivateUsage] - memory is what is tested


def test_flush_delivers_the_last_line_without_a_line_break() -> None:
    taken = SplitLines(10)
    taken.feed(b"a\nb")
    assert taken.lines == [b"a"]
    taken.splitter.flush()
    assert taken.lines == [b"a", b"b"]
    taken.splitter.flush()
    assert taken.lines == [b"a", b"b"]


def test_the_rest_of_a_line_that_is_too_long_is_skipped() -> None:
    taken = SplitLines(3)
    taken.feed(b"abcd", b"efgh", b"ij\nok\nx")
    assert taken.lines == [None, b"ok"]
    taken.feed(b"yzabc")
    taken.splitter.flush()
    assert taken.lines == [None, b"ok", None]


@pytest.mark.parametrize("pieces", [(b"abc\n",), (b"abc", b"\n"), (b"ab", b"c\n")])
def test_a_line_may_be_exactly_as_long_as_the_limit(pieces: tuple[bytes, ...]) -> None:
    assert SplitLines(3).feed(*pieces) == [b"abc"]


def test_the_callback_for_long_lines_is_optional() -> None:
    lines: list[bytes] = []
    LineSplitter(lines.append, limit=3).feed(b"abcdef\nok\n")
    assert lines == [b"ok"]


MUCH = b"x" * 1_000_000


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # one loop iteration, not a wait


async def take(source: int, count: int) -> bytes:
    """Read so many bytes without keeping the loop from running."""
    os.set_blocking(source, False)
    taken = bytearray()
    async with asyncio.timeout(TIMEOUT_S):
        while len(taken) < count:
            try:
                taken += os.read(source, 65536)
            except BlockingIOError:
                await asyncio.sleep(0)  # one loop iteration, not a wait
    return bytes(taken)


async def test_pieces_of_one_loop_iteration_are_written_in_one_system_call(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sink = pipe
    pieces: list[bytes] = []
    write = os.write

    def note(descriptor: int, piece: memoryview) -> int:
        pieces.append(bytes(piece))
        return write(descriptor, piece)

    monkeypatch.setattr("callyard._internal.pipes.os.write", note)
    writer = Writer(sink, limit=100)
    writer.write(b"one")
    writer.write(b"two")
    assert await take(source, 6) == b"onetwo"
    writer.write(b"three")
    assert await take(source, 5) == b"three"
    await writer.close()

    assert pieces == [b"onetwo", b"three"]
    assert os.get_blocking(sink)


async def test_every_piece_gets_a_terminator_which_counts_as_buffered(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, limit=8, terminator=b"\n")
    writer.write(b"one")
    writer.write(b"two")
    assert not writer.is_full
    writer.write(b"")
    assert writer.is_full
    assert await take(source, 9) == b"one\ntwo\n\n"
    await writer.close()

    assert not writer.is_full


async def test_a_slow_reader_fills_the_writer_and_gets_everything(pipe: tuple[int, int]) -> None:
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


async def test_close_sends_the_rest(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, limit=100)
    writer.write(b"one")
    await writer.close()
    writer.write(b"too late")
    assert await take(source, 3) == b"one"
    await asyncio.sleep(0)  # one loop iteration, not a wait
    with pytest.raises(BlockingIOError):
        os.read(source, 10)


async def test_close_waits_for_a_slow_reader(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, limit=100)
    writer.write(MUCH)
    closing = asyncio.create_task(writer.close())
    assert await take(source, len(MUCH)) == MUCH
    await asyncio.wait_for(closing, TIMEOUT_S)


async def test_close_stops_waiting_at_its_timeout(pipe: tuple[int, int]) -> None:
    _, sink = pipe
    writer = Writer(sink, limit=100)
    writer.write(MUCH)
    await asyncio.wait_for(writer.close(timeout_s=0.02), TIMEOUT_S)


async def test_writing_to_a_closed_pipe_raises_nothing(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    os.close(source)
    writer = Writer(sink, limit=2)
    writer.write(b"one")
    assert not writer.is_broken
    await until(lambda: not writer.is_full)
    assert writer.is_broken
    writer.write(b"two")
    assert not writer.is_full
    await asyncio.wait_for(writer.close(), TIMEOUT_S)


async def test_a_hangup_signals_room(pipe: tuple[int, int]) -> None:
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
