"""Where a call waits: the lines of its code, in its task or its thread, and never the values of its variables."""

import asyncio
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from callyard.dispatch.call import Call
from callyard.dispatch.execution import Execution
from callyard.dispatch.run import Run
from callyard.dispatch.threads import Threads

__all__ = ["Line", "current_line", "frames_of", "frames_of_thread", "line_of", "lines_of", "run_in"]

_LIBRARY: Final = sysconfig.get_path("stdlib")
_PACKAGES: Final = ("site-packages", "dist-packages")
_OWN: Final = str(Path(__file__).parents[1])
_RUN: Final = Execution.run.__code__
_WORK: Final = Threads.run_job.__code__


class Line(NamedTuple):
    """A line of code."""

    file: str
    """The name of the file without its folder."""
    number: int
    function: str

    def __str__(self) -> str:
        """Return it as people read it."""
        return f"{self.file}:{self.number} in {self.function}"


def frames_of(run: Run) -> list[FrameType]:
    """Return the frames of a running call, the innermost last: those of its thread, or else those of its task."""
    for thread in sys._current_frames():  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the one way to see other threads
        frames = frames_of_thread(thread)
        if any(frame.f_code is _WORK and _call_in(frame) is run.call for frame in frames):
            return frames
    return [] if run.task is None else _frames_of_task(run.task)


def frames_of_thread(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost last."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the one way to see other threads
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _frames_of_task(task: "asyncio.Task[Any]") -> list[FrameType]:
    """Return the frames of a task that waits; what its coroutines wait for is not known of every object."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                frames.append(frame)
        awaited = getattr(awaited, "cr_await", getattr(awaited, "gi_yieldfrom", getattr(awaited, "ag_await", None)))
    return frames


def _call_in(frame: FrameType) -> Call | None:
    job = frame.f_locals.get("job")
    return None if job is None else job.call


def run_in(frames: Iterable[FrameType]) -> Run | None:
    """Return the innermost run whose handler these frames are in."""
    found: Run | None = None
    for frame in frames:
        if frame.f_code is _RUN:
            found = frame.f_locals.get("run") or found
    return found


def lines_of(frames: Sequence[FrameType]) -> list[Line]:
    """Return the lines of frames."""
    return [current_line(frame) for frame in frames]


def current_line(frame: FrameType) -> Line:
    """Return the line that a frame is at."""
    return Line(Path(frame.f_code.co_filename).name, frame.f_lineno, frame.f_code.co_name)


def line_of(frames: Sequence[FrameType]) -> Line | None:
    """Return the line that says most: the innermost of the tool's code, or else of a package, or else of all."""
    for is_meant in (_is_of_tool, _is_of_package):
        for frame in reversed(frames):
            if is_meant(frame.f_code.co_filename):
                return current_line(frame)
    return current_line(frames[-1]) if frames else None


def _is_of_tool(file: str) -> bool:
    return _is_of_package(file) and not any(name in file for name in _PACKAGES) and not file.startswith(_OWN)


def _is_of_package(file: str) -> bool:
    if any(name in file for name in _PACKAGES):
        return True
    return not file.startswith((_LIBRARY, "<frozen"))
