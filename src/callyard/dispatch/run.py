"""The run state of a call: its task, its interruptions and what it must give back.

Handlers never see it: they are given the `Call` that it extends.
"""

import asyncio
import logging
from typing import Any

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Call, Handler, Release
from callyard.dispatch.progress import Progress, ProgressThrottle, call_safely
from callyard.model.errors import Blame, CodeName

__all__ = ["Run"]

_log = logging.getLogger("callyard.tool")


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
    delegated: bool = False
    """Whether a job does its work, and leaves a record of its own."""
    stopped_by: Blame | None = None
    inner_session_id: str | None = None
    """The session that the envelope of another yard names."""
    children: "set[Run] | None" = None
    """Calls that this one started in other tasks."""
    releases: tuple[Release, ...] = ()
    """Gives back what the limiters of this call hold."""
    task: "asyncio.Task[Any] | None" = None
    """The task that it runs in, while it does."""
    cancelling: int = 0
    """Cancellations of the task by others, from before the call."""
    progress_throttle: ProgressThrottle | None = None
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
        if self.task is not None:
            self._cancellations += 1
            self.task.cancel()

    def join(self, task: "asyncio.Task[Any]") -> None:
        """Note how often the task was cancelled before, and let a parent in another task cancel this call when it ends."""
        self.cancelling = task.cancelling()
        parent: Any = self.parent  # a run, as every call is
        if parent is not None and parent.task is not task:
            if parent.children is None:
                parent.children = {self}
            else:
                parent.children.add(self)

    def uncancel(self, task: "asyncio.Task[Any]") -> bool:
        """Take back this call's own cancellations of the task, and return whether others remain."""
        while self._cancellations:
            self._cancellations -= 1
            task.uncancel()
        return task.cancelling() > self.cancelling

    def release(self) -> None:
        """Give back what the limiters hold, the last one first, even if some fail."""
        releases, self.releases = self.releases, ()
        for release in reversed(releases):
            try:
                release()
            except Exception:  # noqa: BLE001 - a release may raise anything, and must not keep the others
                log_exception(_log, "release_failed tool=%s id=%s", self.tool, self.id)

    def settle(self) -> None:
        """Deliver the last progress of a finished call, and cancel the calls that it started and did not wait for."""
        self.memo = None  # it may refer to the call: a cycle would stay until the next collection
        if self.progress_throttle is not None:
            self.progress_throttle.close()
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
        if self.progress_throttle is None:
            send = self.channel.progress
            self.progress_throttle = ProgressThrottle(lambda progress: call_safely(lambda: send(progress)), self.funnel.loop)
        self.progress_throttle.add(progress, own=own)
