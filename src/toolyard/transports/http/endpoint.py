"""The endpoint: every message of MCP over HTTP comes in here, of either era, in a visit or outside."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE
from toolyard.server import ServerContext, ServerSession
from toolyard.server.methods import is_modern, name_of, open_request, params_of, reply
from toolyard.transports.http.asgi import (
    JSON,
    Headers,
    Request,
    Streamed,
    Target,
    TooLargeError,
    kinds_taken,
    read_body,
    respond,
    respond_fault,
    shown_of,
    text_of,
)
from toolyard.transports.http.handshake import (
    named_version,
    read_stream,
    serve_batch,
    serve_batch_alone,
    serve_in_session,
    serve_stateless,
    start_session,
)
from toolyard.transports.http.host_check import RefusedError, first_twice
from toolyard.transports.http.response import Response, StreamTimer
from toolyard.transports.http.sessions import HttpSession, HttpSessions
from toolyard.wire.headers import PARAM, ROUTING, check_params, check_routing
from toolyard.wire.messages import (
    HEADER_MISMATCH,
    INTERNAL,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    Fault,
    Message,
    decode,
    decode_batch,
    encode_fault,
    encode_result,
    id_of,
)
from toolyard.wire.params import PROTOCOL_VERSION, CallTool
from toolyard.wire.versions import LATEST, MODERN, VERSIONS

__all__ = ["Endpoint", "check_headers", "serve_modern"]


_log = logging.getLogger(__name__)


async def serve_modern(front: ServerContext, request: Request, message: Message, *, params: Any, patience: StreamTimer) -> None:
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
    exchange = open_request(front, message, params, request.caller, notify=notify, headers=request.shown)
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


_JSON: Final = b"application/json"
_REMEMBERED: Final = 100
Taken = Literal["json", "both", "streams"]
"""What a client takes for an answer."""


class Endpoint:
    """One yard at one path."""

    def __init__(self, front: ServerContext, serving: Serving) -> None:
        self._front = front
        self._serving = serving
        self._visits = HttpSessions(front, serving)
        self._shown = tuple(name.lower().encode() for name in serving.request_headers)
        self._accepted: dict[bytes, Taken] = {}
        self._patience = StreamTimer(serving.hold_back)

    async def serve(self, request: Request) -> None:
        """Answer one request.

        Raises:
            RefusedError: It is none that is taken here.
        """
        if request.method != "POST":
            await self._serve_other(request)
            return
        kind = request.headers.get(b"content-type", b"")
        if kind != _JSON and kind.partition(b";")[0].strip().lower() != _JSON:
            raise RefusedError(415, "The body must be 'application/json'.")
        accept = request.headers.get(b"accept", b"*/*")
        taken = self._accepted.get(accept) or self._accepts(accept)
        if taken != "json":
            request.streams = True
            if taken == "streams":
                request.send = Streamed(request.send)
        body = request.body
        if body is None:
            body = await self._read(request)
            if body is None:
                return
        message: Message | None = None
        try:
            if body[:1] != b"{" and await self._took_batch(request, body):
                return
            message = decode(body, depth=self._serving.message_depth)
            await self._take(request, message)
        except Fault as fault:
            found = None if message is None else message.id
            request_id = found if isinstance(found, int | str) else id_of(body) if fault.code == INVALID_REQUEST else None
            await respond_fault(request.send, fault.http, fault, request_id)

    async def _serve_other(self, request: Request) -> None:
        """Answer what is no message: a stream that is opened, or a visit that is ended."""
        if request.method == "GET" and self._has_visits(request):
            if not request.wants_stream():
                raise RefusedError(406, "A stream needs 'text/event-stream' to be accepted.")
            await read_stream(self._visit(request), request, self._serving)
        elif request.method == "DELETE" and self._has_visits(request):
            self._visits.end(self._visit(request))
            await respond(request.send, 200, b"", ())
        else:
            allowed, are = (b"POST, GET, DELETE", "are") if self._has_visits(request) else (b"POST", "is")
            raise RefusedError(405, f"Only {allowed.decode()} {are} taken here.", ((b"allow", allowed),))

    def end_listeners(self) -> None:
        """Let go of whoever only listens, so that a server can end."""
        self._front.end_listeners()
        self._visits.end_listeners()

    def finish(self, seconds: float) -> Awaitable[None]:
        """Let calls finish for so long, then interrupt them, so that each is answered."""
        return self._front.finish(seconds)

    def answer_unended(self, target: Target) -> bytes | None:
        """Return what a call is answered with that does not end although the server does, if that is what the request asked for."""
        version = named_version(text_of(target.headers, b"mcp-protocol-version"))
        try:
            message = decode(target.body or b"", depth=self._serving.message_depth)
            if message.method != "tools/call":
                return None
            return ServerSession(self._front, caller=ANYONE, send=None, version=version).refuse_unended(message)
        except Fault:  # one of a batch, or what will be refused
            return None

    def close(self) -> None:
        """End every visit."""
        self._visits.close()
        self._front.close()

    async def _read(self, request: Request) -> bytes | None:
        try:
            return await read_body(request.receive, request.headers, self._serving.message_bytes)
        except TooLargeError:
            too_long = Fault(INVALID_REQUEST, f"The message has more than {self._serving.message_bytes} bytes.")
            await respond(request.send, 413, encode_fault(None, too_long), (JSON, (b"connection", b"close")))
            return None

    async def _took_batch(self, request: Request, body: bytes) -> bool:
        batch = decode_batch(body, depth=self._serving.message_depth)
        if batch is not None:
            version = self._look_at(request)
            _check_spoken(version)
            depth = self._serving.message_depth
            if self._has_visits(request):
                await serve_batch(self._visit(request).conversation, batch, request, depth=depth)
            else:
                spoken = LATEST if version in MODERN else named_version(version)
                await serve_batch_alone(self._front, batch, request, version=spoken, patience=self._patience, depth=depth)
        return batch is not None

    def _look_at(self, request: Request) -> str | None:
        """Look at the headers of a message: keep those that handlers may see, and return the version that they name."""
        if len(request.headers) != len(request.pairs):
            check_headers(request.pairs)
        forwarded = self._front.yard.providers.forward_headers
        if self._shown or forwarded:
            request.shown = shown_of(request.headers, (*self._shown, *(name.encode() for name in forwarded)))
        said = request.headers.get(b"mcp-protocol-version")
        return None if said is None else said.strip().decode("latin-1")

    def _take(self, request: Request, message: Message) -> Awaitable[None]:
        """Return the work that a message makes, to be awaited."""
        version = self._look_at(request)
        if message.method is None or message.id is UNSET:
            return self._take_note(request, message)
        if version in MODERN:
            params = params_of(message.method, message.params)
            return serve_modern(self._front, request, message, params=params, patience=self._patience)
        return self._take_older(request, message, version)

    def _take_older(self, request: Request, message: Message, version: str | None) -> Awaitable[None]:
        """Take a request that does not say by its header that it is of the newer era; its body may, and contradict it."""
        params = _params_of(message)
        if params is not None and is_modern(message.method, params):
            return serve_modern(self._front, request, message, params=params, patience=self._patience)
        _check_spoken(version)
        if self._serving.stateless:
            spoken = named_version(version)
            return serve_stateless(self._front, request, message, params=params, version=spoken, patience=self._patience)
        if message.method == "initialize":
            return start_session(self._visits, message, caller=request.caller, send=request.send)
        return serve_in_session(self._visit(request), request, message, self._serving)

    async def _take_note(self, request: Request, message: Message) -> None:
        """Take a notification or a response, which are not answered; outside a visit there is nothing they could be about."""
        if self._has_visits(request):
            conversation = self._visit(request).conversation
            if message.method is None:
                conversation.settle(message)
            else:
                conversation.note(message)
        await respond(request.send, 202, b"", ())

    def _has_visits(self, request: Request) -> bool:
        """Return whether there are visits of such a client."""
        return not self._serving.stateless and request.text(b"mcp-protocol-version") not in MODERN

    def _visit(self, request: Request) -> HttpSession:
        session_id = request.headers.get(b"mcp-session-id")
        if session_id is None:
            raise RefusedError(400, "The header 'Mcp-Session-Id' is missing; a session begins with 'initialize'.")
        visit = self._visits.get(session_id.decode("latin-1"), request.caller)
        if visit is None:
            raise RefusedError(404, "There is no such session; begin one with 'initialize'.")
        return visit

    def _accepts(self, said: bytes) -> Taken:
        """Return what the answer may be.

        Raises:
            RefusedError: It may be nothing that we have.
        """
        kinds = kinds_taken(said)
        streams = b"text/event-stream" in kinds
        plain = not kinds.isdisjoint((_JSON, b"*/*", b"application/*"))
        if not streams and not plain:
            raise RefusedError(406, "Answers are 'application/json' or 'text/event-stream'.")
        taken: Taken = "json" if not streams or self._serving.json_response else "both" if plain else "streams"
        if len(self._accepted) < _REMEMBERED:
            self._accepted[said] = taken
        return taken


def _check_spoken(version: str | None) -> None:
    if version is not None and version not in VERSIONS:
        told = {"supported": list(VERSIONS), "requested": version}
        raise Fault(UNSUPPORTED_VERSION, f"Version '{version}' is not spoken here.", told)


def _params_of(message: Message) -> Any:
    """Return the params of a message, or nothing if they are wrong, which its conversation then says in its own way."""
    try:
        return params_of(str(message.method), message.params)
    except Fault:
        return None
