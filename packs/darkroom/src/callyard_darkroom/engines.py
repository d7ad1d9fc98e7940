"""What every engine offers, and the slots that bound how many render at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

import pyvips

from callyard import ToolError
from callyard_darkroom.images import Source
from callyard_darkroom.state import Entry, Frame
from callyard_darkroom.vocabulary import Primitive

__all__ = ["Engine", "Finish", "Slots", "engine_failed", "fit", "in_thread"]

T = TypeVar("T")
Finish = Callable[[pyvips.Image], T]
"""Takes the rendered picture, in sRGB, and returns what is wanted of it; it runs in a thread."""
_RENDERS: Final = 2
_STDERR_CHARACTERS: Final = 2000


class Engine(Protocol):
    """A program or library that renders a state."""

    name: str

    async def probe(self) -> None:
        """Check that it can be used.

        Raises:
            ToolError: `upstream_unavailable`, reason `engine_missing`.
        """
        ...

    def lacks(self, primitive: Primitive, *, has_region: bool) -> str:
        """Return what it lacks for an edit, as the end of a sentence, or nothing."""
        ...

    async def render(self, source: Source, entries: Sequence[Entry], size: int | None, finish: Finish[T]) -> T:
        """Render an original with these edits, at most so many pixels wide and high, and finish it.

        Raises:
            ToolError: `upstream_error`, reason `engine_failed` or `edit_dropped`; `upstream_unavailable`.
        """
        ...


class Slots:
    """Bounds how many renders run at a time; one that cannot be stopped keeps its place until it ends."""

    def __init__(self, most: int = _RENDERS) -> None:
        self._free = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a render as soon as there is a place."""
        async with self._free:
            return await work()


async def in_thread(work: Callable[[], T]) -> T:
    """Run work in a thread, and return only when the thread has ended, also if the caller is cancelled."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # nobody else looks at it
        raise


def engine_failed(engine: str, text: str) -> ToolError:
    """Return the failure of an engine, with the end of what it said."""
    message = f"The engine '{engine}' could not render the image."
    return ToolError("upstream_error", message, reason="engine_failed", stderr=text[-_STDERR_CHARACTERS:])


def fit(width: int, height: int, frame: Frame, size: int | None) -> tuple[int, int]:
    """Return the size of the whole picture whose framed part is at most `size` wide and high."""
    if frame.swaps:
        kept = max(height * frame.width, width * frame.height)
    else:
        kept = max(width * frame.width, height * frame.height)
    scale = 1.0 if size is None else min(1.0, size / max(kept, 1.0))
    return max(1, round(width * scale)), max(1, round(height * scale))
