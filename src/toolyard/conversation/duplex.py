"""A duplex: a conversation over a line that carries messages both ways, such as a pipe.

It takes messages as bytes, answers each, and keeps the number of those it works on within bounds. It does no I/O: it is handed
what writes, and says whether it can take more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from toolyard.caller import Caller
from toolyard.conversation.exchange import Notify
from toolyard.conversation.front import Front
from toolyard.conversation.talk import Conversation
from toolyard.wire.faults import INVALID_REQUEST, Fault
from toolyard.wire.messages import Message, decode, decode_batch, encode_fault, id_of

__all__ = ["Duplex"]

_WAITING: Final = 4
_log = logging.getLogger(__name__)


class Duplex:
    """One client on one line."""

    def __init__(self, front: Front, write: Notify, *, caller: Caller) -> None:
        self.conversation = Conversation(front, caller=caller, send=write)
        self._write = write
        self.on_room: Callable[[], None] = lambda: None
        self._depth = front.serving.message_depth
        self._limit = front.serving.in_flight
        self._bytes = front.serving.message_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[tuple[Message, Notify]] = deque()
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        """Return whether no more should be read for now."""
        return len(self._waiting) >= self._limit * _WAITING

    def receive(self, data: bytes) -> None:
        """Take one message, or one batch; whatever it is, it is answered if an answer is owed."""
        if not data.strip():
            return
        try:
            batch = decode_batch(data, depth=self._depth)
            if batch is not None:
                self._take_batch(batch)
                return
            message = decode(data, depth=self._depth)
        except Fault as fault:
            self._write(encode_fault(id_of(data) if fault.code == INVALID_REQUEST else None, fault))
            return
        self._take(message, self._write)

    def refuse_length(self) -> None:
        """Answer a message that is too long to be read."""
        self._write(encode_fault(None, Fault(INVALID_REQUEST, f"The message has more than {self._bytes} bytes.")))

    async def drain(self, seconds: float) -> None:
        """Wait until everything that came in is answered, or the time is up."""
        deadline = self._loop.time() + seconds
        while self._tasks and (left := deadline - self._loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    def close(self) -> None:
        """Drop what waits, and interrupt what runs."""
        self._waiting.clear()
        self.conversation.close()
        for task in tuple(self._tasks):
            task.cancel()

    def _take(self, message: Message, write: Notify) -> None:
        if message.method is None:
            self.conversation.settle(message)
        elif not message.is_request:
            self.conversation.note(message)
        elif len(self._tasks) < self._limit:
            self._begin(message, write)
        else:
            self._waiting.append((message, write))

    def _begin(self, message: Message, write: Notify) -> None:
        task = self._loop.create_task(self._serve(message, write))
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    async def _serve(self, message: Message, write: Notify) -> None:
        write(await self.conversation.serve(message, notify=self._write))

    def _finish(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("answer_failed", exc_info=task.exception())
        if self._waiting:
            was_full = self.is_full
            self._begin(*self._waiting.popleft())
            if was_full:
                self.on_room()

    def _take_batch(self, batch: list[bytes]) -> None:
        version = self.conversation.version
        if version is None or not version.batches:
            raise Fault(INVALID_REQUEST, "Batches are no part of the version that is spoken here.")
        answers: list[bytes] = []
        owed = [len(batch)]

        def settle(answer: bytes | None) -> None:
            owed[0] -= 1
            if answer is not None:
                answers.append(answer)
            if not owed[0] and answers:
                self._write(b"[%b]" % b",".join(answers))

        for item in batch:
            self._take_item(item, settle)

    def _take_item(self, item: bytes, settle: Callable[[bytes | None], None]) -> None:
        try:
            message = decode(item, depth=self._depth)
        except Fault as fault:
            settle(encode_fault(id_of(item), fault))
            return
        if message.is_request:
            self._take(message, settle)
        else:
            self._take(message, self._write)
            settle(None)
