"""Requests of the older era over HTTP: in a visit, where a call outlives its connection, or without one."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, cast

from toolyard.config.settings import Serving
from toolyard.dispatch.call import Caller
from toolyard.server import RequestContext, ServerContext, ServerSession
from toolyard.server.methods import answer as answer_request
from toolyard.transports.http.asgi import JSON, STREAM, Request, Send, respond, respond_fault, wait_until_gone
from toolyard.transports.http.host_check import RefusedError
from toolyard.transports.http.response import GAP, Response, StreamTimer
from toolyard.transports.http.sessions import HttpSession, HttpSessions, Stream
from toolyard.wire.messages import INTERNAL, INVALID_REQUEST, Fault, Id, Message, decode, encode_fault, id_of
from toolyard.wire.versions import HANDSHAKE, VERSIONS, Version

__all__ = ["named_version", "read_stream", "serve_batch", "serve_batch_alone", "serve_in_session", "serve_stateless", "start_session"]

_UNSAID: Final = VERSIONS["2025-03-26"]
_NOTHING: Final[Mapping[str, Any]] = {}


def named_version(name: str | None) -> Version:
    """Return the version that a request outside a visit says it is of; those that came before the header do not say it."""
    return VERSIONS[name] if name is not None and name in HANDSHAKE else _UNSAID


async def serve_stateless(
    front: ServerContext, request: Request, message: Message, *, params: Any, version: Version, patience: StreamTimer
) -> None:
    """Answer one request outside a visit."""
    response = Response(request.send, request.receive, front.serving, patience=patience, streams=request.streams)
    notify = response.notify if request.streams else None
    response.watch()
    try:
        if message.method == "tools/call" and params is not None:  # what nearly all are; the rest may be about a state that is not there
            exchange = RequestContext(
                front=front,
                id=cast("Id", message.id),
                answers=front.answers(version),
                caller=request.caller,
                capabilities=_NOTHING,
                stateless=True,
                meta=request.traced(params.meta),
                headers=request.shown,
                notify=notify,
            )
            result = await answer_request(exchange, "tools/call", params)
        else:
            conversation = ServerSession(front, caller=request.caller, send=None, version=version)
            result = await conversation.serve(message, notify=notify, headers=request.shown, trace=request.trace())
    except Fault as fault:
        result = encode_fault(cast("Id", message.id), fault)
    except asyncio.CancelledError:
        response.drop()
        if response.is_gone:
            return  # nobody is there to be answered
        raise
    if not response.finish_whole(result):
        await response.finish(result)


async def start_session(visits: HttpSessions, message: Message, *, caller: Caller, send: Send) -> None:
    """Shake hands with a client: its visit begins, whose id it sends along from now on."""
    visit = visits.start(caller)
    if visit is None:
        full = Fault(INTERNAL, "There are too many sessions, and none of them is idle: begin one later, or raise the setting 'sessions'.")
        await respond(send, 503, encode_fault(_id_of(message), full), (JSON, (b"retry-after", b"1")))
        return
    result = await visit.conversation.serve(message, notify=None)
    if visit.conversation.version is None:
        visits.end(visit)
        await respond(send, 200, result)
        return
    await respond(send, 200, result, (JSON, (b"mcp-session-id", visit.id.encode())))


async def serve_in_session(visit: HttpSession, request: Request, message: Message, serving: Serving) -> None:
    """Answer one request of a visit; if the client goes away meanwhile, the call goes on and its messages are kept."""
    conversation, send, streams = visit.conversation, request.send, request.streams
    if message.id in conversation.in_flight:
        await respond(send, 400, conversation.refuse_twin(message))
        return
    if len(conversation.in_flight) >= serving.in_flight:
        raise RefusedError(503, "This session has too many requests in flight.", ((b"retry-after", b"1"),))
    stream = visit.open_stream()
    conversation.in_flight[message.id] = visit.start(_serve(visit, message, stream, request))
    visit.attend(stream)
    try:
        try:
            async with asyncio.timeout(serving.hold_back if streams else None):
                await stream.spoke.wait()
        except TimeoutError:
            pass
        if stream.is_over and (stream.answer is None or stream.is_silent or not streams):
            visit.forget(stream)
            await (respond(send, 202, b"", ()) if stream.answer is None else respond(send, 200, stream.answer))
            return
        await _pump(visit, stream, 0, serving=serving, request=request, primed=_primes(visit))
    finally:
        visit.leave(stream)


async def serve_batch(conversation: ServerSession, batch: list[bytes], request: Request, *, depth: int) -> None:
    """Answer several messages at once, in the versions that have that.

    Raises:
        Fault: The conversation's version has not.
    """
    version = conversation.version
    if version is None or not version.batches:
        raise Fault(INVALID_REQUEST, "Batches are no part of the version that is spoken here.")
    items = (_item(conversation, item, request, depth=depth) for item in batch)
    answers = [one for one in await asyncio.gather(*items) if one is not None]
    await (respond(request.send, 200, b"[%b]" % b",".join(answers)) if answers else respond(request.send, 202, b"", ()))


async def serve_batch_alone(
    front: ServerContext, batch: list[bytes], request: Request, *, version: Version, patience: StreamTimer, depth: int
) -> None:
    """Answer several messages outside a visit; a client that goes away cancels them.

    Raises:
        Fault: The version has no batches.
    """
    response = Response(request.send, request.receive, front.serving, patience=patience, streams=False)
    response.watch()
    try:
        await serve_batch(ServerSession(front, caller=request.caller, send=None, version=version), batch, request, depth=depth)
    except asyncio.CancelledError:
        if not response.is_gone:
            raise
    finally:
        response.drop()


async def _item(conversation: ServerSession, item: bytes, request: Request, *, depth: int) -> bytes | None:
    """Return the answer to one message of a batch, if one is owed."""
    try:
        message = decode(item, depth=depth)
    except Fault as fault:
        return encode_fault(id_of(item), fault)
    if message.method is None:
        conversation.settle(message)
    elif not message.is_request:
        conversation.note(message)
    elif message.id in conversation.in_flight:
        return conversation.refuse_twin(message)
    else:
        work = asyncio.ensure_future(_serve_item(conversation, message, request))
        conversation.in_flight[message.id] = work
        try:
            await asyncio.wait({work})
            answer = None if work.cancelled() else work.result()
            return answer or conversation.refuse_ended(message, begun=work.cancelled())
        finally:
            work.cancel()  # if it is not done, nobody waits for it any more
            del conversation.in_flight[message.id]
    return None


async def _serve_item(conversation: ServerSession, message: Message, request: Request) -> bytes | None:
    """Return the answer to a request of a batch, unless the same batch cancelled it before it began."""
    if not conversation.in_flight[message.id]:
        return None
    return await conversation.serve(message, notify=None, headers=request.shown, trace=request.trace())


async def read_stream(visit: HttpSession, request: Request, serving: Serving) -> None:
    """Go on with a stream that the client lost, or begin the one that belongs to no request."""
    event_id, send = request.text(b"last-event-id"), request.send
    found = visit.stream_of(event_id) if event_id else (visit.standalone, visit.standalone.delivered)
    if found is None:
        # not 404, which would tell the client that its session is gone
        await respond_fault(send, 400, Fault(INVALID_REQUEST, "There is nothing kept after that event."))
        return
    stream, after = found
    if not event_id and stream.has_reader:
        await respond_fault(send, 409, Fault(INVALID_REQUEST, "Somebody reads this session's stream already."))
        return
    visit.attend(stream)
    try:
        await _pump(visit, stream, after, serving=serving, request=request, primed=_primes(visit) and not event_id)
    finally:
        visit.leave(stream)


async def _serve(visit: HttpSession, message: Message, stream: Stream, request: Request) -> None:
    in_flight = visit.conversation.in_flight
    begins = bool(in_flight[message.id])
    result: bytes | None = None
    try:
        if begins:
            hang_up = stream.hang_up if request.streams and _primes(visit) else None
            notify = stream.push if request.streams else None
            trace = request.trace()
            result = await visit.conversation.serve(message, notify=notify, headers=request.shown, trace=trace, hang_up=hang_up)
    finally:
        del in_flight[message.id]
        visit.finish(stream, result or visit.conversation.refuse_ended(message, begun=begins))


async def _pump(visit: HttpSession, stream: Stream, after: int, *, serving: Serving, request: Request, primed: bool) -> None:
    """Write a stream's events until it ends or the client goes."""

    def gap(dropped: int) -> bytes | None:
        return visit.conversation.encode_log("warning", GAP, {"dropped": dropped})

    gone = asyncio.ensure_future(wait_until_gone(request.receive))
    await request.send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
    events = stream.read(after, keep_alive=serving.keep_alive, primed=primed, gap=gap)
    pump = asyncio.ensure_future(_write(events, request.send))
    try:
        await asyncio.wait({gone, pump}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not pump.done():
            pump.cancel()
        await asyncio.wait({pump})
        await events.aclose()


async def _write(events: AsyncGenerator[bytes], send: Send) -> None:
    async for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _primes(visit: HttpSession) -> bool:
    """Return whether streams begin with an event to come back to, which clients know since the version that has it."""
    version = visit.conversation.version
    return version is not None and version.modes


def _id_of(message: Message) -> int | str | None:
    return message.id if isinstance(message.id, int | str) else None
