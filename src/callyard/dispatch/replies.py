"""Replies: what a run in a task of its own answers, to whoever asked for it last.

Such a run may outlive the request that started it. Its replies are interim ones (a question for the client, "it goes on
as a job") and then the final envelope. Storing the run as a job is the one step that makes it survive its connection.
This module knows no protocol and no store.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Final

import msgspec

from callyard.dispatch.call import Channel, EnvelopeCoroutine
from callyard.dispatch.progress import Progress
from callyard.dispatch.questions import Question
from callyard.dispatch.run import Run, StoredRun
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope

__all__ = ["LogNote", "Replies", "Reply"]

Reply = Envelope | Question
LogNote = tuple[str, str, Mapping[str, object]]
_LOG_LINES: Final = 20


class Replies:
    """The replies of one run."""

    def __init__(self, channel: Channel) -> None:
        self.server = channel.server
        """The number of the server context whose client waits; 0 once the run is stored."""
        self._client = channel
        """Where progress, log lines and questions go."""
        self._forwarded = dict(channel.forwarded)
        self.channel = msgspec.structs.replace(
            channel,
            server=0,
            progress=self._send_progress,
            log=self._send_log,
            ask=None if channel.ask is None else self._ask,
            forwarded=self._forwarded,
            hang_up=None,
        )
        self.last_progress: Progress | None = None
        self.log_notes: deque[LogNote] = deque(maxlen=_LOG_LINES)
        self._job: StoredRun | None = None
        self._lock = asyncio.Lock()
        self._unread: Reply | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._work: EnvelopeCoroutine | None = None
        self._has_begun = False
        self._is_cancelled = False
        self.task: asyncio.Task[Envelope | None]

    def start(self, work: EnvelopeCoroutine, context: Context | None = None) -> None:
        """Run in a task of its own; without a context, it sees the variables of the request."""
        self._work = work
        self.task = asyncio.get_running_loop().create_task(self._carry(work), context=context)
        self.task.add_done_callback(self._end)

    async def next(self) -> Reply:
        """Wait for the next reply; cancelling this cancels a run that is not stored."""
        if self._unread is not None:
            reply, self._unread = self._unread, None
            return reply
        self._waiting = asyncio.get_running_loop().create_future()
        if self.task.done():
            self._end(self.task)
        try:
            return await self._waiting
        except asyncio.CancelledError:
            if self._job is None and not self.task.done():
                self.cancel()
                await asyncio.wait({self.task})
            raise

    def send(self, reply: Reply) -> None:
        """Send a reply to those who wait, or keep it for those who will."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(reply)
        else:
            self._unread = reply

    def cancel(self) -> None:
        """Cancel the run; one that has not begun yet ends as soon as it does, so that it is recorded."""
        if self._has_begun:
            self.task.cancel()
        else:
            self._is_cancelled = True

    async def go_on_as_job(self, run: Run, approval_id: str) -> None:
        """Store the run, and send its first answer; the credentials of its request are dropped.

        Raises:
            ToolError: `overloaded` if it cannot be stored, or too many jobs run.
        """
        jobs = run.funnel.jobs
        async with self._lock:
            if self._job is not None or jobs is None:
                return
            if approval_id:
                self._send_log("info", f"It waits for the approval '{approval_id}'.", {})
            job, data = await jobs.store_run(run, approval_id)
            self._job, self._client, self.server = job, job.channel, 0
            self._forwarded.clear()
            run.become(job)
            self.send(run.funnel.interim(run, data))
        await asyncio.sleep(0)  # those who wait get the answer before the run goes on, and may cancel it

    async def _carry(self, work: EnvelopeCoroutine) -> Envelope | None:
        self._has_begun = True
        if self._is_cancelled:
            self.task.cancel()
        try:
            envelope = await work
        except asyncio.CancelledError:
            if self._job is None:
                raise
            await self._job.end_cancelled()
            return None
        if self._job is None:
            return envelope
        await self._job.end_with(envelope)
        return None

    def _end(self, task: "asyncio.Task[Envelope | None]") -> None:
        if self._work is not None:
            self._work.close()  # for a loop that closed before the task began
            self._work = None
        waiting = self._waiting
        if task.cancelled():
            if waiting is not None and not waiting.done():
                waiting.cancel()
        elif (error := task.exception()) is not None:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        elif (envelope := task.result()) is not None:
            self.send(envelope)

    async def _ask(self, asks: Mapping[str, ClientRequest], question: Question) -> Mapping[str, Any]:
        ask = self._client.ask
        assert ask is not None  # noqa: S101 - a job has one, and the channel of a client without one has none
        return await ask(asks, question)

    def _send_progress(self, progress: Progress) -> None:
        self.last_progress = progress
        if self._client.progress is not None:
            self._client.progress(progress)

    def _send_log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        self.log_notes.append((level, text, facts))
        if self._client.log is not None:
            self._client.log(level, text, facts)
