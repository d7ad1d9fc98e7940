"""The ASGI application: which request goes where, and what is refused before it is read."""

from collections.abc import Mapping
from typing import Any, Final

from toolyard.caller import ANYONE, Caller
from toolyard.conversation import Front
from toolyard.conversation.replies import params_of
from toolyard.conversation.stateless import is_modern
from toolyard.envelope import encode
from toolyard.serving import Serving
from toolyard.transports.auth import Guard
from toolyard.transports.http.asgi import (
    JSON,
    Headers,
    Receive,
    Scope,
    Send,
    TooLargeError,
    answer,
    answer_fault,
    answer_text,
    read_body,
)  # fmt: skip
from toolyard.transports.http.gate import Gate, RefusedError, check_once
from toolyard.transports.http.handshake import named_version, read_stream, serve_batch, serve_in_session, serve_stateless, start_session
from toolyard.transports.http.modern import check_headers, serve_modern
from toolyard.transports.http.response import Response
from toolyard.transports.http.sessions import Session, Sessions
from toolyard.wire.faults import INVALID_REQUEST, UNSUPPORTED_VERSION, Fault
from toolyard.wire.messages import Message, decode, decode_batch, encode_fault, id_of
from toolyard.wire.versions import MODERN, VERSIONS
from toolyard.yard import Yard

__all__ = ["App", "asgi"]

_PATH: Final = "/mcp"
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_REMEMBERED: Final = 100
_OPEN: Final = frozenset({"/healthz", "/readyz"})


class App:
    """Serves one yard to any ASGI server."""

    def __init__(self, yard: Yard, serving: Serving, guard: Guard | None = None, *, host: str | None = None) -> None:
        self.yard = yard
        self.serving = serving
        self.is_ready = True
        self._gate = Gate(serving, guard, host=host)
        self._anyone = ANYONE if guard is None else None
        self._accepted: dict[bytes, bool] = {}
        self._front: Front | None = None
        self._sessions: Sessions | None = None
        self._shown = tuple(name.lower().encode() for name in serving.request_headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live as long as the server does."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    def close(self) -> None:
        """End every session and whoever only listens."""
        self.is_ready = False
        if self._sessions is not None:
            self._sessions.close()
        if self._front is not None:
            self._front.close()

    def end_listeners(self) -> None:
        """Let go of whoever only listens, so that a server can end."""
        self.is_ready = False
        if self._front is not None:
            self._front.end_listeners()
        if self._sessions is not None:
            self._sessions.end_listeners()

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the yard while the server runs."""
        await receive()
        try:
            async with self.yard:
                await send({"type": "lifespan.startup.complete"})
                await receive()
                self.close()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        headers: Headers = dict(scope["headers"])
        try:
            if len(headers) != len(scope["headers"]):
                check_once(scope["headers"])
            if path in _OPEN:
                await self._tell_health(path, send)
                return
            self._gate.check(headers)
            if path == _PATH:
                await self._serve(scope, headers, receive, send, profile=None)
            elif path.startswith(f"{_PATH}/"):
                await self._serve(scope, headers, receive, send, profile=path[len(_PATH) + 1 :])
            elif path.startswith(_WELL_KNOWN) and scope["method"] == "GET":
                await self._tell_resource(scope, headers, path, send)
            else:
                await answer_text(send, 404, "There is nothing here. The endpoint is '/mcp'.")
        except RefusedError as refused:
            await answer_text(send, refused.status, refused.message, refused.headers)

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, send: Send, *, profile: str | None) -> None:
        caller = self._anyone
        if profile is not None or caller is None:
            caller = await self._gate.caller(self.yard, headers, profile, _resource(scope, headers))
        match scope["method"]:
            case "POST":
                await self._post(scope, headers, caller, receive, send)
            case "GET" if self._has_sessions(headers):
                await self._get(headers, caller, receive, send)
            case "DELETE" if self._has_sessions(headers):
                session = self._session(headers, caller)
                self._parts()[1].end(session)
                await answer(send, 200, b"", ())
            case _:
                allowed = b"POST, GET, DELETE" if self._has_sessions(headers) else b"POST"
                raise RefusedError(405, f"Only {allowed.decode()} are taken here.", ((b"allow", allowed),))

    async def _post(self, scope: Scope, headers: Headers, caller: Caller, receive: Receive, send: Send) -> None:
        kind = headers.get(b"content-type", b"")
        if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
            raise RefusedError(415, "The body must be 'application/json'.")
        streams = self._accepts(headers)
        try:
            body = await read_body(receive, headers, self.serving.message_bytes)
        except TooLargeError:
            too_long = Fault(INVALID_REQUEST, f"The message has more than {self.serving.message_bytes} bytes.")
            await answer(send, 413, encode_fault(None, too_long), (JSON, (b"connection", b"close")))
            return
        if body is None:
            return
        request_id = None
        try:
            if body[:1] != b"{" and (batch := decode_batch(body, depth=self.serving.message_depth)) is not None:
                await serve_batch(self._session(headers, caller), batch, depth=self.serving.message_depth, send=send)
                return
            message = decode(body, depth=self.serving.message_depth)
            request_id = message.id if isinstance(message.id, int | str) else None
            if len(headers) != len(scope["headers"]):
                check_headers(scope["headers"])
            await self._take(message, headers, caller, receive, send, streams=streams)
        except Fault as fault:
            if request_id is None and fault.code == INVALID_REQUEST:
                request_id = id_of(body)
            await answer_fault(send, fault.http, fault, request_id)

    async def _take(self, message: Message, headers: Headers, caller: Caller, receive: Receive, send: Send, *, streams: bool) -> None:
        front, sessions = self._parts()
        said = headers.get(b"mcp-protocol-version")
        said = None if said is None else said.strip()
        if not message.is_request:
            await self._take_note(message, headers, caller, send)
            return
        params = params_of(str(message.method), message.params)
        shown = {name.decode(): headers[name].decode("latin-1") for name in self._shown if name in headers} if self._shown else _NONE
        modern = said is not None and said.decode("latin-1") in MODERN
        if modern or is_modern(message.method, params):
            response = Response(send, receive, self.serving, streams=streams)
            if message.method == "subscriptions/listen" and b"text/event-stream" not in headers.get(b"accept", b""):
                raise RefusedError(406, "Listening needs 'text/event-stream' to be accepted.")
            await serve_modern(front, message, params, caller=caller, headers=headers, shown=shown, response=response, streams=streams)
            return
        _check_version(said)
        if self.serving.stateless:
            response = Response(send, receive, self.serving, streams=streams)
            version = named_version(said)
            await serve_stateless(front, message, caller=caller, version=version, shown=shown, response=response, streams=streams)
        elif message.method == "initialize":
            await start_session(sessions, message, caller=caller, send=send)
        else:
            session = self._session(headers, caller)
            await serve_in_session(session, message, serving=self.serving, shown=shown, receive=receive, send=send, streams=streams)

    async def _take_note(self, message: Message, headers: Headers, caller: Caller, send: Send) -> None:
        """Take a notification or a response, which are not answered; in the newer era there is nothing they could be about."""
        if self._has_sessions(headers):
            conversation = self._session(headers, caller).conversation
            if message.method is None:
                conversation.settle(message)
            else:
                conversation.note(message)
        await answer(send, 202, b"", ())

    async def _get(self, headers: Headers, caller: Caller, receive: Receive, send: Send) -> None:
        if b"text/event-stream" not in headers.get(b"accept", b""):
            raise RefusedError(406, "A stream needs 'text/event-stream' to be accepted.")
        session = self._session(headers, caller)
        event_id = headers.get(b"last-event-id", b"").decode("latin-1")
        await read_stream(session, event_id, serving=self.serving, receive=receive, send=send)

    def _has_sessions(self, headers: Headers) -> bool:
        """Return whether there are sessions for such a client."""
        said = headers.get(b"mcp-protocol-version", b"").strip().decode("latin-1")
        return said not in MODERN and not self.serving.stateless

    def _session(self, headers: Headers, caller: Caller) -> Session:
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            raise RefusedError(400, "The header 'Mcp-Session-Id' is missing; a session begins with 'initialize'.")
        session = self._parts()[1].get(session_id.decode("latin-1"), caller)
        if session is None:
            raise RefusedError(404, "There is no such session; begin one with 'initialize'.")
        return session

    def _parts(self) -> tuple[Front, Sessions]:
        if self._front is None or self._sessions is None:
            _ = self.yard.dispatcher  # raises unless the yard is open
            self._front = Front(self.yard, self.serving, door="http")
            self._sessions = Sessions(self._front, self.serving)
        return self._front, self._sessions

    def _accepts(self, headers: Headers) -> bool:
        """Return whether the answer may be a stream.

        Raises:
            RefusedError: It may not even be JSON.
        """
        said = headers.get(b"accept", b"*/*")
        known = self._accepted.get(said)
        if known is not None:
            return known
        accept = said.lower()
        streams = accept.find(b"text/event-stream") >= 0
        if not streams and accept.find(b"application/json") < 0 and accept.find(b"*/*") < 0 and accept.find(b"application/*") < 0:
            raise RefusedError(406, "Answers are 'application/json' or 'text/event-stream'.")
        streams = streams and not self.serving.json_response
        if len(self._accepted) < _REMEMBERED:
            self._accepted[said] = streams
        return streams

    async def _tell_health(self, path: str, send: Send) -> None:
        good = path == "/healthz" or self.is_ready
        await answer(send, 200 if good else 503, encode({"status": "ok" if good else "ending"}))

    async def _tell_resource(self, scope: Scope, headers: Headers, path: str, send: Send) -> None:
        known = self._gate.protected_resource(_resource(scope, headers, path[len(_WELL_KNOWN) :] or _PATH))
        if known is None:
            raise RefusedError(404, "There is nothing here.")
        await answer(send, 200, encode(known))


_NONE: Final[Mapping[str, str]] = {}


def asgi(yard: Yard, *, guard: Guard | None = None, **settings: Any) -> App:
    """Return a yard as an ASGI application, to be served or mounted; it opens the yard if the server tells it of its life."""
    return App(yard, Serving(transport="http", **settings), guard)


def _check_version(said: bytes | None) -> None:
    name = None if said is None else said.decode("latin-1")
    if name is not None and name not in VERSIONS:
        raise Fault(UNSUPPORTED_VERSION, f"Version '{name}' is not spoken here.", {"supported": list(VERSIONS), "requested": name})


def _resource(scope: Scope, headers: Headers, path: str | None = None) -> str:
    """Return the address that a client knows this endpoint by."""
    host = headers.get(b"host", b"localhost").decode("latin-1")
    root = scope.get("root_path", "")
    place = scope["path"] if path is None else f"{root}{path}"
    return f"{scope.get('scheme', 'http')}://{host}{place if place.startswith(f'{root}/') else root + place}"
