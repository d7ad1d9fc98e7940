"""A thread that sees when the event loop is blocked, and by which line.

The loop notes the time four times a second. Where that stays out, the thread looks at the stack of the loop's thread. A
loop that waits for its turn on a busy machine is not blocked: the thread waits, too, or there is no code below the
loop's own.
"""

import asyncio
import logging
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from callyard._internal.logfmt import log_value
from callyard.dispatch.stacks import frames_of_thread, line_of, lines_of, run_in

__all__ = ["Block", "LoopWatch"]

_BEAT_S: Final = 0.25
_LATE_S: Final = 0.75
"""A beat that is so late means about a second: the block may have begun right after the last one."""
_COMPUTED_S: Final = 0.5
"""CPU time of a loop that was not merely kept waiting."""
_LINES: Final = 12
_BLOCKS: Final = 50
_LOOP_FILES: Final = (str(Path(asyncio.__file__).parent), selectors.__file__)
_RUNNERS: Final = ("/asyncio/runners.py", "/asyncio/base_events.py", "/asyncio/events.py")
"""What is below these was called by the loop."""
_UNKNOWN: Final = "code that held the interpreter"
_log = logging.getLogger(__name__)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the event loop did nothing else."""

    at: float
    """When it was noticed, in seconds since the epoch."""
    line: str
    """The line that blocked, such as `report.py:42 in summarise`."""
    stack: tuple[str, ...]
    """The innermost lines, the innermost last."""
    call_id: str = ""
    session_id: str = ""


class LoopWatch:
    """Watches the loop that it is opened in."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.blocks: deque[Block] = deque(maxlen=_BLOCKS)
        self._clock = clock
        self._beat = 0.0
        self._sample: Block | None = None
        self._is_reported = False
        self._computed = 0.0
        """The CPU time of the loop's thread at the last beat."""
        self._ended = threading.Event()
        self._thread = 0

    @contextmanager
    def open(self) -> Generator[None]:
        """Watch the running loop while the context is open."""
        loop = asyncio.get_running_loop()
        self._thread, self._ended = threading.get_ident(), threading.Event()
        self._beat, timer = time.monotonic(), loop.call_soon(lambda: None)

        def beat() -> None:
            nonlocal timer
            self._note_beat()
            timer = loop.call_later(_BEAT_S, beat)

        timer = loop.call_soon(beat)
        watcher = threading.Thread(target=self._watch, name="callyard loop watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            timer.cancel()
            self._ended.set()
            watcher.join()

    def _note_beat(self) -> None:
        """Note that the loop runs, and how long it did not."""
        now = time.monotonic()
        sample, self._sample = self._sample, None
        gap, self._beat = now - self._beat, now
        computed, self._computed = time.thread_time() - self._computed, time.thread_time()
        is_reported, self._is_reported = self._is_reported, False
        if gap - _BEAT_S < _LATE_S or is_reported:
            return
        if sample is None and computed >= _COMPUTED_S:  # it held the interpreter until now
            sample = Block(at=self._clock(), line=_UNKNOWN, stack=())
        if sample is not None:
            self._report(sample)

    def _watch(self) -> None:
        clock = time.pthread_getcpuclockid(self._thread)
        woke, computed = time.monotonic(), time.clock_gettime(clock)
        while not self._ended.wait(_BEAT_S):
            gap, woke = time.monotonic() - woke, time.monotonic()
            spent, computed = time.clock_gettime(clock) - computed, time.clock_gettime(clock)
            late = woke - self._beat - _BEAT_S
            is_starved = gap > 2 * _BEAT_S and spent < _COMPUTED_S  # the whole process stood still, and not by the loop
            if late < _LATE_S / 3 or self._is_reported or is_starved:
                continue
            sample = self._take_sample()
            if sample is not None:
                self._sample = sample
                if late >= _LATE_S:
                    self._is_reported = True
                    self._report(sample)

    def _take_sample(self) -> Block | None:
        frames = frames_of_thread(self._thread)
        try:
            return self._block_of(frames)
        finally:
            frames.clear()  # frames keep their variables alive

    def _block_of(self, frames: list[FrameType]) -> Block | None:
        if not frames or frames[-1].f_code.co_filename.startswith(_LOOP_FILES):
            return None
        runners = [frame for frame in frames if frame.f_code.co_filename.endswith(_RUNNERS)]
        inner = frames[frames.index(runners[-1]) + 1 :] if runners else frames
        line, run = line_of(inner), run_in(inner)
        if line is None:
            return None
        stack = tuple(str(one) for one in lines_of(inner[-_LINES:]))
        session = None if run is None else run.call.session
        return Block(
            at=self._clock(),
            line=str(line),
            stack=stack,
            call_id="" if run is None else run.id,
            session_id="" if session is None else session.id,
        )

    def _report(self, block: Block) -> None:
        self.blocks.append(block)
        facts = log_value(block.line), block.call_id or "-", " < ".join(reversed(block.stack))
        _log.warning("loop_blocked line=%s id=%s stack=%r", *facts)
