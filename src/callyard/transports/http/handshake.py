"""Requests of the handshake era over HTTP: in a session, where a call outlives its connection, or without one."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from callyard.dispatch.call import Caller
from callyard.server import RequestContext, ServerContext, ServerSession
from callyard.server.methods import SESSION_METHODS
from callyard.server.session import MAX_IN_FLIGHT, InFlight, Respond
from callyard.transports.http.request import RefusedError, Request
from callyard.transports.http.response import GAP, HOLD_BACK_S, JSON, Response, ResponseWriter, respond_fault
from callyard.transports.http.sessions import HttpSession, HttpSessions, Stream
from callyard.transports.http.shared import SharedSessions
from callyard.wire.messages import INTERNAL, INVALID_REQUEST, Fault, Id, Message, encode_fault
from callyard.wire.versions import HANDSHAKE, VERSIONS, Version

__all__ = ["read_stream", "serve_batch", "serve_in_session", "serve_stateless", "start_session", "version_named"]

_DEFAULT_VERSION: Final = VERSIONS["2025-03-26"]
"""The version of requests without the header, which came in with the next one."""


def version_named(name: str | None) -> Version:
    """Return the version that the header of a request without a session names."""
    return VERSIONS[name] if name is not None and name in HANDSHAKE else _DEFAULT_VERSION


def serve_stateless(
    server: ServerContext,
    request: Request,
    message: Message,
    params: Any,
    *,
    version: Version,
    response: Response,
) -> Awaitable[None]:
    """Return the awaitable response to a request without a session."""
    method = cast("str", message.method)
    context = RequestContext(
        server=server,
        id=cast("Id", message.id),
        encoder=server.encoders[version.name],
        caller=request.caller,
        capabilities={},
        # Only methods about a session need one, and making it takes longer than a call.
        session=ServerSession(server, caller=request.caller, send=None, version=version)
        if method in SESSION_METHODS
        else None,
        stateless=True,
        meta=request.traced(params.meta),
        transport_trace=request.trace(),
        headers=request.visible_headers,
        notify=response.notify if request.accepts_stream else None,
    )
    return response.serve(context, method, params)


async def start_session(
    sessions: HttpSessions,
    message: Message,
    params: Any,
    *,
    caller: Caller,
    writer: ResponseWriter,
    shared: SharedSessions | None,
) -> None:
    """Serve `initialize`: start a session, whose id the client sends from now on."""
    http_session = sessions.start(caller)
    if http_session is None:
        way_out = "begin one later, or raise the setting 'sessions'."
        full = Fault(INTERNAL, f"There are too many sessions, and none of them is idle: {way_out}")
        await writer.respond(503, encode_fault(cast("Id", message.id), full), (JSON, (b"retry-after", b"1")))
        return
    result = await http_session.session.serve(message, notify=None, params=params)
    if http_session.session.version is None:
        sessions.end(http_session)
        await writer.respond(200, result)
    else:
        if shared is not None:
            await shared.store(http_session)
        await writer.respond(200, result, (JSON, (b"mcp-session-id", http_session.id.encode())))


async def serve_in_session(
    http_session: HttpSession, request: Request, writer: ResponseWriter, *, message: Message, params: Any
) -> None:
    """Serve a request of a session; if the client disconnects, the call goes on and its messages are stored."""
    session, streams = http_session.session, request.accepts_stream
    if message.id in session.in_flight:
        await writer.respond(400, session.refuse_duplicate(message))
        return
    if len(session.in_flight) >= MAX_IN_FLIGHT:
        raise RefusedError(503, "This session has too many requests in flight.", ((b"retry-after", b"1"),))
    stream = http_session.open_stream()
    stream.refuse_lost = partial(session.refuse_lost, message)
    session.in_flight[message.id] = in_flight = InFlight()
    in_flight.task = http_session.start(_serve(http_session, stream, request, message=message, params=params))
    if request.release is not None:  # the call is in work for as long as its task, even if the client disconnects
        release, request.release = request.release, None
        in_flight.task.add_done_callback(lambda _: release())
    http_session.attach(stream)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_BACK_S if streams else None):
                await stream.has_events.wait()
        if stream.is_over and (stream.answer is None or stream.is_silent or not streams):
            http_session.forget(stream)
            await (writer.respond(202, b"", ()) if stream.answer is None else writer.respond(200, stream.answer))
            return
        await _pump(http_session, stream, 0, writer=writer, primed=_can_resume(session))
    finally:
        http_session.detach(stream)


async def _serve(http_session: HttpSession, stream: Stream, request: Request, *, message: Message, params: Any) -> None:
    session = http_session.session
    started = session.begin(cast("Id", message.id))
    result: bytes | None = None
    try:
        if started:
            streams = request.accepts_stream
            result = await session.serve(
                message,
                notify=stream.push if streams else None,
                params=params,
                headers=request.visible_headers,
                trace=request.trace(),
                hang_up=stream.hang_up if streams and _can_resume(session) else None,
            )
    finally:
        del session.in_flight[message.id]
        http_session.finish(stream, result or session.refuse_ended(message, started=started))


async def serve_batch(session: ServerSession, batch: list[bytes], request: Request, writer: ResponseWriter) -> None:
    """Serve a batch.

    Raises:
        Fault: The session's version has no batches.
    """
    done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    tasks: set[asyncio.Task[bytes | None]] = set()

    def start(message: Message, respond: Respond) -> None:
        if message.id in session.in_flight:
            respond(session.refuse_duplicate(message))
            return
        task = asyncio.ensure_future(_serve_item(session, message, request))
        session.in_flight[message.id] = InFlight(task=task)
        tasks.add(task)
        task.add_done_callback(partial(_finish_item, session, message, respond))

    def finish(answer: bytes | None) -> None:
        if not done.done():  # else the client is gone
            done.set_result(answer)

    session.take_batch(batch, take=session.take, start=start, respond=finish)
    try:
        answer = await done
    finally:
        for task in tasks:
            task.cancel()  # if it is not done, nobody waits for it any more
    await (writer.respond(202, b"", ()) if answer is None else writer.respond(200, answer))


async def _serve_item(session: ServerSession, message: Message, request: Request) -> bytes | None:
    """Return the response to a request of a batch, unless the same batch cancelled it before it started."""
    if not session.begin(cast("Id", message.id)):
        return None
    return await session.serve(message, notify=None, headers=request.visible_headers, trace=request.trace())


def _finish_item(session: ServerSession, message: Message, respond: Respond, task: asyncio.Task[bytes | None]) -> None:
    del session.in_flight[message.id]
    answer = None if task.cancelled() else task.result()
    respond(answer or session.refuse_ended(message, started=task.cancelled()))


async def read_stream(
    http_session: HttpSession, request: Request, writer: ResponseWriter, shared: SharedSessions | None
) -> None:
    """Resume a stream after `Last-Event-ID`, or open the session's standalone stream."""
    event_id = request.text(b"last-event-id")
    position = (
        http_session.find_event(event_id) if event_id else (http_session.standalone, http_session.standalone.delivered)
    )
    if position is None and shared is not None:
        elsewhere = await shared.resume(http_session, event_id)
        if elsewhere is not None:
            await _pump_events(elsewhere, writer)
            return
    if position is None:
        # not 404, which would mean that the session is gone
        await respond_fault(writer, 400, Fault(INVALID_REQUEST, "There is nothing stored after that event."))
        return
    stream, after = position
    if not event_id and stream.has_reader:
        await respond_fault(writer, 409, Fault(INVALID_REQUEST, "Another request reads this session's stream already."))
        return
    http_session.attach(stream)
    try:
        await _pump(
            http_session, stream, after, writer=writer, primed=_can_resume(http_session.session) and not event_id
        )
    finally:
        http_session.detach(stream)


async def _pump(http_session: HttpSession, stream: Stream, after: int, *, writer: ResponseWriter, primed: bool) -> None:
    """Write a stream's events until it ends or the client disconnects."""

    def report_gap(dropped: int) -> bytes | None:
        return http_session.session.encode_log("warning", GAP, {"dropped": dropped})

    events = stream.read(after, keep_alive=http_session.serving.keep_alive, primed=primed, report_gap=report_gap)
    await _pump_events(events, writer)


async def _pump_events(events: AsyncGenerator[bytes], writer: ResponseWriter) -> None:
    disconnected = asyncio.ensure_future(writer.wait_for_disconnect())
    await writer.start_stream()
    pump = asyncio.ensure_future(_write(events, writer))
    try:
        await asyncio.wait({disconnected, pump}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        disconnected.cancel()
        if not pump.done():
            pump.cancel()
        await asyncio.wait({pump})
        await events.aclose()


async def _write(events: AsyncGenerator[bytes], writer: ResponseWriter) -> None:
    async for event in events:
        await writer.write(event)
    await writer.write(b"", last=True)


def _can_resume(session: ServerSession) -> bool:
    """Return whether streams begin with an event id to resume from, as in versions that have `modes`."""
    return session.version is not None and session.version.modes
