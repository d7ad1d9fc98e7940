"""A message stream: a session over a connection that carries messages both ways, such as a pipe.

It takes messages as bytes, answers each, and bounds the number of requests in flight. It does no I/O: the transport
gives it a function that writes, and reads no more while it is full.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, cast

import msgspec

from callyard._internal.tasks import task_creator
from callyard.dispatch.call import Caller
from callyard.server.context import Notify, ServerContext
from callyard.server.session import MAX_IN_FLIGHT, InFlight, Respond, ServerSession
from callyard.wire.messages import (
    INTERNAL,
    INVALID_REQUEST,
    WHITESPACE,
    Fault,
    Id,
    Message,
    decode,
    decode_batch,
    encode_fault,
    id_of,
)
from callyard.wire.params import Cancelled, decode_params

__all__ = ["MessageHeaders", "MessageStream"]

_QUEUE_FACTOR: Final = 4
_MIN_QUEUE: Final = 10_000  # more than one read from a pipe can bring


class MessageHeaders(msgspec.Struct, frozen=True):
    """The HTTP headers of a message that handlers may see, and its trace."""

    headers: Mapping[str, str] = {}
    trace: Mapping[str, str] = {}


class _Request(InFlight, kw_only=True):
    """A request that is queued or in flight."""

    message: Message
    respond: Respond | None
    """Takes the response to a request of a batch."""
    sent_with: MessageHeaders


_NO_HEADERS: Final = MessageHeaders()


class MessageStream:
    """One client on one connection."""

    def __init__(self, server: ServerContext, write: Notify, *, caller: Caller, is_scope: bool = False) -> None:
        self.session = ServerSession(server, caller=caller, send=write, is_scope=is_scope)
        self._write = write
        self.on_room: Callable[[], None] = lambda: None
        self.session.client_requests.on_request = lambda: self.on_room()  # noqa: PLW0108 - it is set later
        self._limit = MAX_IN_FLIGHT
        self._bytes = server.serving.message_bytes
        self._in_flight = self.session.in_flight
        self._drained: asyncio.Event | None = None
        """Set when nothing is in flight; exists while `drain` waits."""
        self._queue: OrderedDict[Id, _Request] = OrderedDict()
        self._create_task = task_creator(asyncio.get_running_loop(), "callyard request")

    @property
    def is_full(self) -> bool:
        """Return whether to read no more for now; never while a call waits for a response of the client."""
        return len(self._queue) >= self._limit * _QUEUE_FACTOR and not self.session.client_requests

    def receive(self, data: bytes, sent_with: MessageHeaders = _NO_HEADERS) -> None:
        """Take one message, or one batch, and answer it if it needs an answer."""
        try:
            if data[:1] != b"{" and self._take_other(data, sent_with):
                return
            message = decode(data)
        except Fault as fault:
            self._write(encode_fault(id_of(data) if fault.code == INVALID_REQUEST else None, fault))
            return
        if message.is_request:
            self._take_request(message, sent_with=sent_with)
        else:
            self._take(message)

    def refuse_length(self) -> None:
        """Answer a message that is too long to be read."""
        self._write(encode_fault(None, Fault(INVALID_REQUEST, f"The message has more than {self._bytes} bytes.")))

    async def end(self, seconds: float) -> None:
        """Let calls finish within a time, then cancel the rest, so that each is answered, and close."""
        try:
            await self.drain(seconds)
        finally:
            closing = asyncio.ensure_future(self.session.server.cancel_calls())
            with suppress(asyncio.CancelledError):
                await asyncio.shield(closing)
            await self.drain(1.0)
            self.give_up()
            self.close()

    async def drain(self, seconds: float) -> None:
        """Wait until nothing is in flight, or the time is up."""
        if self._in_flight:
            drained = self._drained = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await drained.wait()

    def give_up(self) -> None:
        """Answer the calls that do not end although they were cancelled; their outcome is dropped later."""
        for request in tuple(self._in_flight.values()):
            if isinstance(request, _Request) and not request.is_cancelled and request.message.method == "tools/call":
                self._respond(self.session.refuse_unfinished(request.message), request.respond)

    def close(self) -> None:
        """Drop the queue, and cancel what is in flight."""
        self._queue.clear()
        self.session.close()

    def _respond(self, response: bytes | None, respond: Respond | None = None) -> None:
        if respond is not None:
            respond(response)
        elif response is not None:
            self._write(response)

    def _take_request(self, message: Message, respond: Respond | None = None, *, sent_with: MessageHeaders) -> None:
        request_id = cast("Id", message.id)
        request = _Request(message=message, respond=respond, sent_with=sent_with)
        if len(self._in_flight) < self._limit and request_id not in self._in_flight:  # then the queue is empty
            self._start(request)
        elif request_id in self._queue or self._is_running(request_id):
            self._respond(self.session.refuse_duplicate(message), respond)
        elif len(self._queue) < max(self._limit * _QUEUE_FACTOR * _QUEUE_FACTOR, _MIN_QUEUE):
            self._queue[request_id] = request
        else:
            self._respond(encode_fault(request_id, Fault(INTERNAL, "Too many requests are waiting already.")), respond)

    def _is_running(self, request_id: Id) -> bool:
        """Return whether a request is in flight; one that was cancelled before its start frees its id."""
        request = self._in_flight.get(request_id)
        return request is not None and not request.is_cancelled

    def _take(self, message: Message) -> None:
        if self._queue and message.method == "notifications/cancelled":
            with suppress(Fault):
                request = self._queue.pop(decode_params(message.params, Cancelled).request_id, None)
                if request is not None:
                    self._respond(None, request.respond)
        self.session.take(message)

    def _start(self, request: _Request) -> None:
        request_id = cast("Id", request.message.id)
        if request_id in self._in_flight:
            self._respond(self.session.refuse_duplicate(request.message), request.respond)
            return
        self._in_flight[request_id] = request
        # A task for each: what tools store by task, such as a database session, must not reach the next caller.
        request.task = self._create_task(self._serve(request, request_id))

    async def _serve(self, request: _Request, request_id: Id) -> None:
        response: bytes | None = None
        try:
            if not request.is_cancelled:
                request.has_started = True
                headers, trace = request.sent_with.headers, request.sent_with.trace
                response = await self.session.serve(request.message, notify=self._write, headers=headers, trace=trace)
        finally:
            del self._in_flight[request_id]
            self._respond(response, request.respond)
            if self._queue or self._drained is not None:
                self._continue()

    def _continue(self) -> None:
        """Start queued requests, and resume reading."""
        while self._queue and len(self._in_flight) < self._limit:
            self._start(self._queue.popitem(last=False)[1])
        if self._drained is not None and not self._in_flight:
            self._drained.set()
        if not self.is_full:
            self.on_room()

    def _take_other(self, data: bytes, sent_with: MessageHeaders) -> bool:
        """Take a blank line or a batch; return False if it is neither."""
        if not data.strip(WHITESPACE):
            return True
        batch = decode_batch(data)
        if batch is not None:
            start = partial(self._take_request, sent_with=sent_with)
            self.session.take_batch(batch, take=self._take, start=start, respond=self._respond)
        return batch is not None
