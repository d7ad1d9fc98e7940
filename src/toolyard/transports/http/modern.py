"""Requests of the newer era over HTTP: each is answered on its own, and a client that goes away cancels it."""

import asyncio
import logging
from typing import Any

import msgspec

from toolyard.conversation import Front
from toolyard.conversation.replies import name_of, reply
from toolyard.conversation.stateless import open_exchange
from toolyard.transports.http.asgi import Headers
from toolyard.transports.http.gate import RefusedError, first_twice
from toolyard.transports.http.patience import Patience
from toolyard.transports.http.request import Request
from toolyard.transports.http.response import Response
from toolyard.wire.faults import HEADER_MISMATCH, INTERNAL, Fault
from toolyard.wire.headers import PARAM, ROUTING, check_params, check_routing
from toolyard.wire.messages import Message, encode_fault, encode_result
from toolyard.wire.params import PROTOCOL_VERSION, CallTool

__all__ = ["check_headers", "serve_modern"]

_log = logging.getLogger(__name__)


async def serve_modern(front: Front, request: Request, message: Message, *, params: Any, patience: Patience) -> None:
    """Answer one request.

    Raises:
        Fault: It cannot be answered as what it claims to be.
        RefusedError: It listens, and takes no stream.
    """
    method = str(message.method)
    listens = method == "subscriptions/listen"
    if listens and not request.wants_stream():
        raise RefusedError(406, "Listening needs 'text/event-stream' to be accepted.")
    response = Response(request.send, request.receive, front.serving, patience=patience, streams=request.streams or listens)
    _check_said(request, method, params)
    notify = response.notify if request.streams or listens else None
    exchange = open_exchange(front, message, params, request.caller, notify=notify, headers=request.shown)
    if method == "tools/call" and (wanted := front.wanted_headers(params.name, exchange.caller)) is not None:
        _check_arguments(wanted, params, request.headers)
    if exchange.log_level is not None:
        response.log_level = exchange.log_level
    response.watch()
    try:
        answer = encode_result(exchange.id, await reply(exchange, method, params))
    except Fault as fault:
        await response.finish(encode_fault(exchange.id, fault), fault.http)
        return
    except asyncio.CancelledError:
        response.drop()
        if response.is_gone:
            return  # nobody is there to be answered
        raise
    except Exception:  # noqa: BLE001 - a defect of ours must not leave the client without an answer
        _log.exception("request_failed method=%s", method)
        answer = encode_fault(exchange.id, Fault(INTERNAL, "The server could not answer; the reason is in its log."))
    if not response.finish_whole(answer):
        await response.finish(answer)


def _check_said(request: Request, method: str, params: Any) -> None:
    """Check what is said twice, and take the trace from the headers where the body has none."""
    headers, meta = request.headers, params.meta
    if meta is None or not isinstance(meta.get(PROTOCOL_VERSION), str):
        return
    check_routing(headers, method, meta[PROTOCOL_VERSION], name_of(params))
    if b"traceparent" in headers or b"baggage" in headers:
        params.meta = request.traced(meta)


def check_headers(pairs: list[tuple[bytes, bytes]]) -> None:
    """Check that nothing that requests are routed by is said twice.

    Raises:
        Fault: It is, and one reader would take the first and another the last.
    """
    twice = first_twice(pairs, lambda name: name in ROUTING or name.startswith(PARAM))
    if twice is not None:
        raise Fault(HEADER_MISMATCH, f"The header '{twice}' is there twice.")


def _check_arguments(wanted: dict[tuple[str, ...], tuple[str, str]], params: CallTool, headers: Headers) -> None:
    try:
        arguments = msgspec.json.decode(params.arguments)
    except msgspec.DecodeError as error:
        raise Fault(HEADER_MISMATCH, "The arguments cannot be read, and some go with headers.") from error
    check_params(wanted, arguments, headers)
