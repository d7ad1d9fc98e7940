"""The run state of a call: its task, its interruptions and what it must give back.

Handlers never see it: they are given the `Call` that it extends.
"""

import asyncio
import logging
from typing import Any

from toolyard.dispatch.call import Call, Handler, Release
from toolyard.dispatch.progress import Progress, ProgressThrottle, call_safely
from toolyard.model.errors import Blame, CodeName

__all__ = ["Run"]

_log = logging.getLogger("toolyard.tool")


async def _no_handler(call: Call) -> object:
    raise LookupError(call.name)


class Run(Call, eq=False):
    """A call with its run state: one object, because a second one for each call would be felt."""

    handler: Handler = _no_handler
    text: bytes = b"{}"
    """The arguments as JSON before check and repair, with references to stored results resolved."""
    started: float = 0.0
    """When the call came in, in seconds of `time.perf_counter`."""
    elapsed_s: float = 0.0
    """How long it took; set when it has ended."""
    queued_s: float = 0.0
    """How long the call waited for policies and limiters."""
    is_admitted: bool = True
    """False if a policy or limiter refused the call, or it ended while it waited for them."""
    stopped_by: Blame | None = None
    inner_session_id: str | None = None
    """The session that the envelope of another yard names."""
    children: "set[Run] | None" = None
    """Calls that this one started in other tasks."""
    releases: tuple[Release, ...] = ()
    """Gives back what the limiters of this call hold."""
    _progress: ProgressThrottle | None = None
    _task: "asyncio.Task[Any] | None" = None
    _cancelling: int = 0
    _cancellations: int = 0

    def stop(self, code: CodeName, *, blame: Blame | None = None) -> None:
        """Cancel the handler; the call is answered with this code, and this blame if it differs from the code's."""
        if self.finished or self.stopped is not None:
            return
        self.stopped = code
        self.stopped_by = blame
        self.cancel()

    def cancel(self) -> None:
        """Cancel the handler once more, if it is running."""
        if self._task is not None:
            self._cancellations += 1
            self._task.cancel()

    def run_in(self, task: "asyncio.Task[Any]") -> None:
        """Set the task that the call runs in; a parent in another task cancels it when that ends."""
        self._task = task
        if cancelling := task.cancelling():
            self._cancelling = cancelling
        parent: Any = self.parent  # a run, as every call is
        if parent is not None and parent._task is not task:  # noqa: SLF001 - another run
            if parent.children is None:
                parent.children = {self}
            else:
                parent.children.add(self)

    def uncancel(self, task: "asyncio.Task[Any]") -> bool:
        """Take back this call's own cancellations of the task, and return whether others remain."""
        while self._cancellations:
            self._cancellations -= 1
            task.uncancel()
        return task.cancelling() > self._cancelling

    def release(self) -> None:
        """Give back what the limiters hold, the last one first, even if some fail."""
        releases, self.releases = self.releases, ()
        for release in reversed(releases):
            try:
                release()
            except Exception:  # noqa: BLE001 - a release may raise anything, and must not keep the others
                _log.exception("release_failed tool=%s id=%s", self.tool, self.id)

    def finish(self) -> None:
        """Deliver the last progress and cancel the calls that this one started and did not wait for."""
        self.finished = True
        self._task = self.memo = None  # a memo may refer to the call: a cycle would stay until the next collection
        if self._progress is not None:
            self._progress.close()
        parent: Any = self.parent
        if parent is not None and parent.children:
            parent.children.discard(self)
        if self.children:
            for child in tuple(self.children):
                child.stop("cancelled")

    def add_progress(self, progress: Progress, *, own: bool) -> None:
        """Send progress to the client, throttled; `own` is progress that the yard reports itself."""
        if self.finished or self.channel.progress is None:
            return
        if self._progress is None:
            send = self.channel.progress
            self._progress = ProgressThrottle(lambda progress: call_safely(lambda: send(progress)), self.funnel.loop)
        self._progress.add(progress, own=own)
