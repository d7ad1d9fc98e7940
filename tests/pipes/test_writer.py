import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toolyard._internal.pipes import Writer

PATIENCE = 20.0
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
