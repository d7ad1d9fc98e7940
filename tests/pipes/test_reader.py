import asyncio
import os
import select
import socket
from pathlib import Path

import pytest

from toolyard._internal.pipes import Reader

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
