"""A duplex: a conversation over a line that carries messages both ways, such as a pipe.

It takes messages as bytes, answers each, and keeps the number of those it works on within bounds. It does no I/O: it is handed
what writes, and says whether it can take more.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, cast

import msgspec
from msgspec import UNSET

from toolyard.dispatch.call import Caller
from toolyard.server.context import ServerContext
from toolyard.server.request import Notify
from toolyard.server.session import ServerSession
from toolyard.wire.messages import INTERNAL, INVALID_REQUEST, WHITESPACE, Fault, Id, Message, decode, decode_batch, encode_fault, id_of
from toolyard.wire.params import CallMessage, Cancelled, decode_call, decode_params

__all__ = ["MessageStream", "Said"]

Settle = Callable[[bytes | None], None]
"""Takes the answer to a request of a batch, or that there is none because it was cancelled."""

_NAME: Final = "toolyard request"
_WAITING: Final = 4
_LEAST: Final = 10_000  # more than one reading of a pipe can bring


class Said(msgspec.Struct, frozen=True):
    """What is said beside a message: the headers that handlers may see, and the trace that it is part of."""

    headers: Mapping[str, str] = {}
    trace: Mapping[str, str] = {}


_NOTHING: Final = Said()


class _Work(asyncio.Task[None]):
    """What works on a request, which it knows in case that it does not end."""

    __slots__ = ("message", "settle")

    message: Message | CallMessage
    settle: Settle | None


class MessageStream:
    """One client on one line."""

    def __init__(self, front: ServerContext, write: Notify, *, caller: Caller) -> None:
        self.conversation = ServerSession(front, caller=caller, send=write)
        self._write = write
        self.on_room: Callable[[], None] = lambda: None
        self.conversation.questions.on_ask = lambda: self.on_room()  # noqa: PLW0108 - it is set later
        self._depth = front.serving.message_depth
        self._limit = front.serving.in_flight
        self._bytes = front.serving.message_bytes
        self._in_flight = self.conversation.in_flight
        self._quiet: asyncio.Event | None = None
        """There while somebody waits until nothing is in flight."""
        self._waiting: OrderedDict[Id, tuple[Message | CallMessage, Settle | None, Said]] = OrderedDict()
        self._said = _NOTHING
        """What is said beside the message that is being taken."""
        self._loop = asyncio.get_running_loop()

    @property
    def is_full(self) -> bool:
        """Return whether no more should be read for now: never while the client owes an answer that a call waits for."""
        return len(self._waiting) >= self._limit * _WAITING and not self.conversation.is_asking

    def receive(self, data: bytes) -> None:
        """Take one message, or one batch; whatever it is, it is answered if an answer is owed."""
        call = decode_call(data, depth=self._depth)
        if call is not None:
            self._take_request(call)
            return
        try:
            if data[:1] != b"{" and self._took_other(data):
                return
            message = decode(data, depth=self._depth)
        except Fault as fault:
            self._write(encode_fault(id_of(data) if fault.code == INVALID_REQUEST else None, fault))
            return
        self._take(message)

    def receive_with(self, said: Said, data: bytes) -> None:
        """Take one message, or one batch, that something is said beside."""
        self._said = said
        try:
            self.receive(data)
        finally:
            self._said = _NOTHING

    def refuse_length(self) -> None:
        """Answer a message that is too long to be read."""
        self._write(encode_fault(None, Fault(INVALID_REQUEST, f"The message has more than {self._bytes} bytes.")))

    async def end(self, seconds: float) -> None:
        """Let calls finish for so long, then interrupt them, so that each is answered, and close."""
        try:
            await self.drain(seconds)
        finally:
            closing = asyncio.ensure_future(self.conversation.front.interrupt())
            with suppress(asyncio.CancelledError):
                await asyncio.shield(closing)
            await self.drain(1.0)
            self.give_up()
            self.close()

    async def drain(self, seconds: float) -> None:
        """Wait until everything that came in is answered, or the time is up."""
        if self._in_flight:
            quiet = self._quiet = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await quiet.wait()

    def give_up(self) -> None:
        """Answer those calls that do not end although they were interrupted; what comes of them later is told to nobody."""
        for work in tuple(self._in_flight.values()):
            if isinstance(work, _Work) and work.message.method == "tools/call":
                self._answer(self.conversation.refuse_unended(work.message), work.settle)

    def close(self) -> None:
        """Drop what waits, and interrupt what runs."""
        self._waiting.clear()
        self.conversation.close()

    def _answer(self, answer: bytes | None, settle: Settle | None) -> None:
        if settle is not None:
            settle(answer)
        elif answer is not None:
            self._write(answer)

    def _take(self, message: Message, settle: Settle | None = None) -> None:
        if message.method is None:
            self.conversation.settle(message)
        elif message.id is UNSET:
            self._take_note(message)
        else:
            self._take_request(message, settle)

    def _take_request(self, message: Message | CallMessage, settle: Settle | None = None) -> None:
        if len(self._in_flight) < self._limit:  # then nothing waits
            self._begin(message, settle, self._said)
        elif message.id in self._waiting or self._in_flight.get(message.id):  # one that was cancelled before it began is no twin
            self._answer(self.conversation.refuse_twin(message), settle)
        elif len(self._waiting) < max(self._limit * _WAITING * _WAITING, _LEAST):
            self._waiting[cast("Id", message.id)] = (message, settle, self._said)
        else:
            self._answer(encode_fault(cast("Id", message.id), Fault(INTERNAL, "Too many requests are waiting already.")), settle)

    def _take_note(self, message: Message) -> None:
        if message.method == "notifications/cancelled" and self._waiting:
            self._cancel_waiting(message)
        self.conversation.note(message)

    def _cancel_waiting(self, message: Message) -> None:
        with suppress(Fault):
            request_id = decode_params(message.params, Cancelled).request_id
            waiting = self._waiting.pop(request_id, None)
            if waiting is not None:
                self._answer(None, waiting[1])

    def _begin(self, message: Message | CallMessage, settle: Settle | None, said: Said) -> None:
        request_id = message.id
        if request_id in self._in_flight:
            self._answer(self.conversation.refuse_twin(message), settle)
            return
        # a task for each: what tools keep by task, such as a database session, must not reach the next caller;
        # made here and with a name, because a loop would first make up one
        work = self._in_flight[request_id] = _Work(self._serve(message, settle, said), loop=self._loop, name=_NAME)
        work.message, work.settle = message, settle

    async def _serve(self, message: Message | CallMessage, settle: Settle | None, said: Said) -> None:
        in_flight = self._in_flight
        answer: bytes | None = None
        try:
            if in_flight[message.id]:
                answer = await self.conversation.serve(message, notify=self._write, headers=said.headers, trace=said.trace)
        finally:
            del in_flight[message.id]
            if answer is not None and settle is None:  # the everyday case of what '_answer' does
                self._write(answer)
            else:
                self._answer(answer, settle)
            if self._waiting or self._quiet is not None:
                self._go_on()

    def _go_on(self) -> None:
        while self._waiting and len(self._in_flight) < self._limit:
            self._begin(*self._waiting.popitem(last=False)[1])
        if self._quiet is not None and not self._in_flight:
            self._quiet.set()
        if not self.is_full:
            self.on_room()

    def _took_other(self, data: bytes) -> bool:
        """Take what is no single message: nothing at all, or a batch; return whether it was."""
        if not data.strip(WHITESPACE):
            return True
        batch = decode_batch(data, depth=self._depth)
        if batch is not None:
            self._take_batch(batch)
        return batch is not None

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

    def _take_item(self, item: bytes, settle: Settle) -> None:
        try:
            message = decode(item, depth=self._depth)
        except Fault as fault:
            settle(encode_fault(id_of(item), fault))
            return
        if message.is_request:
            self._take(message, settle)
        else:
            self._take(message)
            settle(None)
