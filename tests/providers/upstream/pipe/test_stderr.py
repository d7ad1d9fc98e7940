import asyncio
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from wired import until

from toolyard.providers.upstream import process_log
from toolyard.providers.upstream import stdio as module
from toolyard.providers.upstream.process_log import ProcessLog
from toolyard.providers.upstream.stdio import Stderr


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    for descriptor in (source, sink):
        os.close(descriptor)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessLog:
    """Return a log that is soon flooded."""
    monkeypatch.setattr(process_log, "_SECOND_BYTES", 1000)
    return ProcessLog(tmp_path / "stderr.log")


async def test_what_comes_during_a_flood_is_read_after_a_rest(pipe: tuple[int, int], log: ProcessLog) -> None:
    source, sink = pipe
    stderr = Stderr(source, log, on_end=lambda: None)
    for number in range(3):
        os.write(sink, b"x" * 2000 + b"%d\n" % number)
        await until(lambda number=number: log.last_words.endswith(str(number)))
    stderr.close()
    log.close()


async def test_what_is_there_already_is_read_at_the_end_though_it_rests(
    pipe: tuple[int, int], log: ProcessLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REST", 3600)
    source, sink = pipe
    stderr = Stderr(source, log, on_end=lambda: None)
    os.write(sink, b"x" * 2000)
    await until(lambda: log.is_flooded)
    os.write(sink, b"\nthe last words")
    stderr.close()
    os.write(sink, b"too late")
    await asyncio.sleep(0)  # a turn of the loop, not a wait
    log.close()

    assert log.last_words.endswith("\nthe last words")
