"""The HTTP application: a table of mounts, and the MCP endpoint, which serves both eras.

It does not know which server runs it: it gets requests and a `ResponseWriter` for each.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, SHARED, Caller
from callyard.model.envelope import encode
from callyard.monitor.log_files import AccessLine
from callyard.server import ServerContext, ServerSession
from callyard.server.context import ParamHeaders
from callyard.server.methods import is_modern, name_of, open_request, params_of_message
from callyard.transports.auth import Authenticator
from callyard.transports.http.admission import (
    METADATA_PATH,
    AccessCheck,
    Admissions,
    Requests,
    caller_of,
    check_duplicates,
    check_routing_duplicates,
    find_profile,
    url_of,
)
from callyard.transports.http.handshake import (
    read_stream,
    serve_batch,
    serve_in_session,
    serve_stateless,
    start_session,
    version_named,
)
from callyard.transports.http.request import (
    MAX_HEADERS,
    Headers,
    Receive,
    RefusedError,
    Request,
    Scope,
    Send,
    TooLargeError,
    accepted_types,
    is_compressed,
    read_body,
    request_of,
    select_headers,
)
from callyard.transports.http.response import (
    JSON,
    PREFLIGHT,
    AsgiWriter,
    Response,
    ResponseWriter,
    cors_headers,
    respond_fault,
    respond_refusal,
)
from callyard.transports.http.sessions import HttpSession, HttpSessions
from callyard.transports.http.shared import SharedSessions
from callyard.wire.headers import check_params, check_routing
from callyard.wire.messages import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    Fault,
    Id,
    Message,
    decode,
    decode_batch,
    encode_fault,
    id_of,
)
from callyard.wire.params import PROTOCOL_VERSION, CallTool
from callyard.wire.versions import LATEST, MODERN, VERSIONS
from callyard.yard import Yard

__all__ = ["App", "Endpoint", "Mount"]

Handle = Callable[[Request, ResponseWriter], Awaitable[None]]
_PATH: Final = "/mcp"
_JSON_TYPE: Final = b"application/json"
_LOGGED_CHARACTERS: Final = 200


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A handler at a path, and the checks that its requests must pass."""

    handle: Handle
    has_subpaths: bool = False
    """Whether it also serves every path below its own."""
    needs_authentication: bool = True
    authenticate: Callable[[Request], Awaitable[Caller]] | None = None
    """Returns the caller, or raises `RefusedError`; in place of the authentication of the server."""
    needs_host_check: bool = True
    """False for health checks, whose host is any address of the machine."""
    end: Callable[[], None] | None = None
    """Ends its streams when the server shuts down."""


class App:
    """Serves one yard by our own server or any ASGI server."""

    endpoint_path = _PATH
    # The protected endpoints, which have OAuth metadata: strangers must not learn which profiles exist.
    endpoint_paths = re.compile(rf"{_PATH}(?:/[^/]+)?")
    not_found = "There is nothing here. The endpoint is '/mcp'."

    def __init__(
        self,
        yard: Yard,
        serving: Serving,
        authenticator: Authenticator | None = None,
        *,
        host: str | None = None,
        mounts: Mapping[str, Mount] | None = None,
        access_log: Callable[[AccessLine], None] | None = None,
    ) -> None:
        self.yard = yard
        if serving.ask_before_destroy:
            yard.ask_before_destroy(always=False)  # before it opens, because jobs of an earlier process may go on then
        yard.configuration = yard.configuration or ""
        self.serving = serving
        self.is_ready = True
        self.is_open = authenticator is None
        self._access_check = AccessCheck(serving, authenticator, host=host)
        self._admissions = Admissions(self._access_check, authenticator)
        self._requests = Requests(serving)
        self._endpoint: Endpoint | None = None
        self._access_log = access_log
        health = Mount(handle=self._serve_health, needs_authentication=False, needs_host_check=False)
        self._mounts = {
            "/healthz": health,
            "/readyz": health,
            METADATA_PATH: Mount(handle=self._serve_metadata, has_subpaths=True, needs_authentication=False),
            **self.own_mounts(),
            **(mounts or {}),
        }

    def own_mounts(self) -> dict[str, Mount]:
        """Return the mounts of the protocol."""
        return {_PATH: Mount(handle=self._serve_mcp, has_subpaths=True)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope: a request, or the lifespan."""
        if scope["type"] == "http":
            await self.respond(request_of(scope, receive), AsgiWriter(receive, send))
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    def respond(self, request: Request, writer: ResponseWriter) -> Awaitable[None]:
        """Serve one request."""
        if self._access_log is None:
            return self._respond(request, writer)
        return self._respond_logged(request, writer, self._access_log)

    async def _respond_logged(
        self, request: Request, writer: ResponseWriter, log: Callable[[AccessLine], None]
    ) -> None:
        """Serve one request and log it; one whose client disconnects before the response has the status 499."""
        started, status = time.perf_counter(), 499
        try:
            await self._respond(request, writer)
        except Exception:
            status = 500
            raise
        finally:
            elapsed = time.perf_counter() - started
            line = AccessLine(
                started=time.time() - elapsed,
                elapsed_ms=elapsed * 1000,
                method=request.method,
                path=request.path[:_LOGGED_CHARACTERS],
                status=writer.status or status,
                bytes=0 if request.method == "HEAD" else writer.size,
                caller=None if request.caller is SHARED and not self.is_open else request.caller.identity,
            )
            log(line)

    async def _respond(self, request: Request, writer: ResponseWriter) -> None:
        headers = request.headers
        try:
            _check_headers(request)
            mount = self._mounts.get(request.path)
            if mount is None or mount.needs_host_check:
                self._access_check.check(headers, request.scheme)
                if b"origin" in headers:
                    writer.extra_headers = cors_headers(headers[b"origin"])
                    if request.method == "OPTIONS":
                        await writer.respond(200, b"", PREFLIGHT)
                        return
                mount = mount or self._find_mount(request)
                if mount.authenticate is not None:
                    request.caller = await mount.authenticate(request)
                elif mount.needs_authentication:
                    request.caller = SHARED if self.is_open else await self._authenticate(request, writer)
                    if request.method == "POST":  # streams that only listen are bounded by their connections
                        request.release = self._requests.enter(request.caller.identity)
            await mount.handle(request, writer)
        except RefusedError as refused:
            await respond_refusal(writer, refused)
        finally:
            if request.release is not None:
                request.release()
            self._admissions.remove(request)

    def close(self) -> None:
        """End every session and stream."""
        self.is_ready = False
        if self._endpoint is not None:
            self._endpoint.close()

    @property
    def sessions(self) -> HttpSessions | None:
        """Return the sessions of clients that began with a handshake, once there was a request."""
        return None if self._endpoint is None else self._endpoint.sessions

    def end_listeners(self) -> None:
        """End the streams that only listen, so that the server can shut down."""
        self.is_ready = False
        for mount in self._mounts.values():
            if mount.end is not None:
                mount.end()
        if self._endpoint is not None:
            self._endpoint.end_listeners()

    async def finish(self, seconds: float) -> None:
        """Let calls finish within a time, then cancel the rest; each is answered."""
        if self._endpoint is not None:
            await self._endpoint.server.finish(seconds)

    def answer_unfinished(self, request: Request) -> bytes | None:
        """Return the response to a call that does not end although the server shuts down; None if it is no call."""
        return None if self._endpoint is None else self._endpoint.answer_unfinished(request)

    def resource_path(self, request: Request) -> str:
        """Return the path of the protected endpoint that a request is for."""
        return request.path

    def _find_mount(self, request: Request) -> Mount:
        path = request.path
        if not path:
            raise RefusedError(400, "The URL of the request is invalid.")
        for prefix, mount in self._mounts.items():
            if mount.has_subpaths and path.startswith(f"{prefix}/"):
                request.subpath = path[len(prefix) :]
                return mount
        raise RefusedError(404, self.not_found)

    async def _authenticate(self, request: Request, writer: ResponseWriter) -> Caller:
        admitted = await self._access_check.admit(request, self.resource_path(request))
        if admitted is None:
            return SHARED
        caller, request.profiles = caller_of(self.yard, admitted)
        if not writer.admit(caller.identity):
            raise RefusedError(
                503, "These credentials have too many connections.", ((b"retry-after", b"1"), (b"connection", b"close"))
            )
        self._admissions.add(request, admitted, end=partial(self._revoke, request, writer))
        return caller

    def _revoke(self, request: Request, writer: ResponseWriter) -> None:
        """End the response to a request whose credentials are no longer accepted, and the session that it names."""
        if self.sessions is not None:
            session = self.sessions.get(request.text(b"mcp-session-id"), request.caller)
            if session is not None:
                self.sessions.end(session)
        writer.hang_up()

    async def _live(self, receive: Receive, send: Send) -> None:
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

    async def _serve_health(self, request: Request, writer: ResponseWriter) -> None:
        good = request.path == "/healthz" or self.is_ready
        body: dict[str, object] = {"status": "ok" if good else "ending"}
        replica = self.yard.replica
        if request.path == "/readyz" and replica is not None and (differing := replica.differing):
            body["differing"] = [
                {"replica": one.id, "version": one.version, "configuration": one.configuration}
                for one in (replica.record, *differing)
            ]
        await writer.respond(200 if good else 503, encode(body))

    async def _serve_metadata(self, request: Request, writer: ResponseWriter) -> None:
        path = request.path[len(METADATA_PATH) :] or self.endpoint_path
        metadata = None
        if request.method == "GET" and self.endpoint_paths.fullmatch(path):
            metadata = self._access_check.protected_resource(url_of(request, path, self.serving))
        if metadata is None:
            raise RefusedError(404, self.not_found)
        await writer.respond(200, encode(metadata))

    def _serve_mcp(self, request: Request, writer: ResponseWriter) -> Awaitable[None]:
        if request.path != _PATH:
            request.caller = self._with_profile(request, request.path[len(_PATH) + 1 :])
        if self._endpoint is None:
            _ = self.yard.dispatcher  # raises unless the yard is open
            self._endpoint = Endpoint(ServerContext(self.yard, self.serving, channel="http"))
        return self._endpoint.serve(request, writer)

    def _with_profile(self, request: Request, name: str) -> Caller:
        """Return the caller with the profile that the path names; credentials that may not choose it are refused."""
        if not name:
            return request.caller
        if request.profiles is not None and name not in request.profiles:
            raise RefusedError(403, "These credentials are for another profile.")
        return msgspec.structs.replace(request.caller, profile=find_profile(self.yard, name))


class Endpoint:
    """The MCP endpoint of one yard."""

    def __init__(self, server: ServerContext) -> None:
        self.server = server
        self._serving = server.serving
        self.sessions = HttpSessions(server)
        replica = server.yard.replica
        self._shared: SharedSessions | None = None
        if replica is not None and not server.serving.stateless:
            self._shared = SharedSessions(server, replica, self.sessions)

    async def serve(self, request: Request, writer: ResponseWriter) -> None:
        """Serve one request.

        Raises:
            RefusedError: Its method or a header is wrong.
        """
        if self._shared is not None and b"mcp-session-id" in request.headers:
            await self._shared.restore(request.text(b"mcp-session-id"), request.caller)
        if request.method != "POST":
            await self._serve_other(request, writer)
            return
        content_type = request.headers.get(b"content-type", b"")
        if content_type != _JSON_TYPE and content_type.partition(b";")[0].strip().lower() != _JSON_TYPE:
            raise RefusedError(415, "The body must be 'application/json'.")
        json, streams = _accepted_by(request.headers.get(b"accept", b"*/*"))
        request.accepts_stream = streams and not self._serving.json_response
        writer.requires_stream = request.accepts_stream and not json
        body = request.body if request.body is not None else await self._read_body(request, writer)
        if body is None:
            return
        message: Message | None = None
        try:
            if body[:1] != b"{" and await self._serve_batch(request, writer, body):
                return
            message = decode(body)
            await self._serve_message(request, writer, message)
        except Fault as fault:
            request_id = None if message is None else message.id
            if not isinstance(request_id, Id):
                request_id = id_of(body) if fault.code == INVALID_REQUEST else None
            await respond_fault(writer, fault.http, fault, request_id)

    async def _read_body(self, request: Request, writer: ResponseWriter) -> bytes | None:
        """Return the body, which another server reads and does not decompress; None if it was answered for."""
        if is_compressed(request.headers):
            raise RefusedError(415, "The body must not be compressed: leave 'Content-Encoding' out.")
        assert request.receive is not None  # noqa: S101 - our own server has the body already
        try:
            return await read_body(request.receive, request.headers, self._serving.message_bytes)
        except TooLargeError:
            fault = Fault(INVALID_REQUEST, f"The message has more than {self._serving.message_bytes} bytes.")
            await writer.respond(413, encode_fault(None, fault), (JSON, (b"connection", b"close")))
            return None

    async def _serve_other(self, request: Request, writer: ResponseWriter) -> None:
        """Open a stream (GET), or end a session (DELETE)."""
        if request.method == "GET" and self._has_session(request):
            if not request.requires_stream():
                raise RefusedError(406, "A stream needs 'text/event-stream' to be accepted.")
            await read_stream(self._session_of(request), request, writer, self._shared)
        elif request.method == "DELETE" and self._has_session(request):
            self.sessions.end(self._session_of(request))
            if self._shared is not None:
                await self._shared.flush()
            await writer.respond(200, b"", ())
        else:
            allowed, are = (b"POST, GET, DELETE", "are") if self._has_session(request) else (b"POST", "is")
            raise RefusedError(405, f"Only {allowed.decode()} {are} allowed here.", ((b"allow", allowed),))

    def end_listeners(self) -> None:
        """End the streams that only listen, so that the server can shut down."""
        self.server.end_listeners()
        self.sessions.end_listeners()

    def answer_unfinished(self, request: Request) -> bytes | None:
        """Return the response to a call that does not end although the server shuts down; None if it is no call."""
        version = version_named(request.text(b"mcp-protocol-version"))
        try:
            message = decode(request.body or b"")
            if message.method != "tools/call":
                return None
            return ServerSession(self.server, caller=ANYONE, send=None, version=version).refuse_unfinished(message)
        except Fault:  # a batch, or an invalid request
            return None

    def close(self) -> None:
        """End every session."""
        self.sessions.close()
        self.server.close()

    async def _serve_batch(self, request: Request, writer: ResponseWriter, body: bytes) -> bool:
        """Serve a batch; return False if the body is none."""
        batch = decode_batch(body)
        if batch is None:
            return False
        version = self._read_headers(request)
        _check_version(version)
        if self._has_session(request):
            await serve_batch(self._session_of(request).session, batch, request, writer)
        else:
            era = LATEST if version in MODERN else version_named(version)
            session = ServerSession(self.server, caller=request.caller, send=None, version=era)
            response = Response(writer, self._serving, streams=False)
            response.watch()  # without a session, a client that disconnects cancels the batch
            try:
                await serve_batch(session, batch, request, writer)
            except asyncio.CancelledError:
                if not response.is_gone:
                    raise
            finally:
                response.drop()
        return True

    def _read_headers(self, request: Request) -> str | None:
        """Select the headers for the call; return the protocol version that the headers name."""
        if len(request.headers) != len(request.pairs):
            check_routing_duplicates(request.pairs)
        if names := self.server.header_names():
            request.visible_headers = select_headers(request.headers, names)
        version = request.headers.get(b"mcp-protocol-version")
        return None if version is None else version.strip().decode("latin-1")

    def _serve_message(self, request: Request, writer: ResponseWriter, message: Message) -> Awaitable[None]:
        version = self._read_headers(request)
        if message.method is None or message.id is UNSET:
            return self._take(request, writer, message)
        if version in MODERN:
            return self._serve_modern(request, writer, message, params_of_message(message))
        return self._serve_handshake(request, writer, message, version=version)

    def _serve_handshake(
        self, request: Request, writer: ResponseWriter, message: Message, *, version: str | None
    ) -> Awaitable[None]:
        """Return the awaitable response to a request without the header of the 2026-07-28 era."""
        method = cast("str", message.method)
        try:
            params = params_of_message(message)
        except Fault as fault:
            _check_version(version)
            if self._has_session(request) and method != "initialize":
                self._session_of(request)
            return respond_fault(writer, 200, fault, cast("Id", message.id))  # wrong params have this status there
        if is_modern(method, params):  # the body contradicts the header, which a check reports
            return self._serve_modern(request, writer, message, params)
        _check_version(version)
        if self._serving.stateless:
            response = Response(writer, self._serving, streams=request.accepts_stream)
            return serve_stateless(
                self.server, request, message, params, version=version_named(version), response=response
            )
        if method == "initialize":
            return start_session(
                self.sessions, message, params, caller=request.caller, writer=writer, shared=self._shared
            )
        return serve_in_session(self._session_of(request), request, writer, message=message, params=params)

    def _serve_modern(self, request: Request, writer: ResponseWriter, message: Message, params: Any) -> Awaitable[None]:
        """Return the awaitable response to a request of the 2026-07-28 era.

        Raises:
            Fault: Headers and body contradict each other, or the `_meta` is wrong.
            RefusedError: It subscribes, and accepts no stream.
        """
        server, headers, meta = self.server, request.headers, params.meta
        method: str = message.method  # pyright: ignore[reportAssignmentType] - a request has one, and `cast` is a call
        streams = request.accepts_stream
        if method == "subscriptions/listen":
            if not request.requires_stream():
                raise RefusedError(406, "Listening needs 'text/event-stream' to be accepted.")
            streams = True
        response = Response(writer, self._serving, streams=streams)
        if meta is not None and isinstance(meta.get(PROTOCOL_VERSION), str):
            check_routing(headers, method, meta[PROTOCOL_VERSION], name_of(params))
            if b"traceparent" in headers or b"baggage" in headers:
                params.meta = request.traced(meta)
        notify = response.notify if streams else None
        request_id: Id = message.id  # pyright: ignore[reportAssignmentType] - a request has one, and `cast` is a call
        context = open_request(
            server, request_id, params, caller=request.caller, notify=notify, headers=request.visible_headers
        )
        if b"traceparent" in headers:
            context.transport_trace = request.trace()
        if method == "tools/call" and (required := server.param_headers(params.name, context.caller)) is not None:
            _check_param_headers(required, params, headers)
        response.log_level = context.log_level
        return response.serve(context, method, params)

    async def _take(self, request: Request, writer: ResponseWriter, message: Message) -> None:
        """Take a notification or a response; without a session it has no meaning, and is dropped."""
        if self._has_session(request):
            self._session_of(request).session.take(message)
            if self._shared is not None:
                await self._shared.flush()
        await writer.respond(202, b"", ())

    def _has_session(self, request: Request) -> bool:
        """Return whether requests like this one belong to a session."""
        return not self._serving.stateless and request.text(b"mcp-protocol-version") not in MODERN

    def _session_of(self, request: Request) -> HttpSession:
        session_id = request.headers.get(b"mcp-session-id")
        if session_id is None:
            raise RefusedError(400, "The header 'Mcp-Session-Id' is missing; a session begins with 'initialize'.")
        session = self.sessions.get(session_id.decode("latin-1"), request.caller)
        if session is None:
            raise RefusedError(404, "There is no such session; begin one with 'initialize'.")
        return session


@lru_cache(maxsize=100)
def _accepted_by(accept: bytes) -> tuple[bool, bool]:
    """Return whether an `Accept` header allows JSON, and whether event streams.

    Raises:
        RefusedError: It allows neither.
    """
    types = accepted_types(accept)
    streams = b"text/event-stream" in types
    json = not types.isdisjoint((_JSON_TYPE, b"*/*", b"application/*"))
    if not streams and not json:
        raise RefusedError(406, "Answers are 'application/json' or 'text/event-stream'.")
    return json, streams


def _check_version(version: str | None) -> None:
    if version is not None and version not in VERSIONS:
        data = {"supported": list(VERSIONS), "requested": version}
        raise Fault(UNSUPPORTED_VERSION, f"Version '{version}' is not spoken here.", data)


def _check_headers(request: Request) -> None:
    if len(request.pairs) > MAX_HEADERS:  # behind another server; our own refuses it before the body
        raise RefusedError(431, f"A request may have {MAX_HEADERS} headers.")
    if len(request.headers) != len(request.pairs):
        check_duplicates(request.pairs)


def _check_param_headers(required: ParamHeaders, params: CallTool, headers: Headers) -> None:
    try:
        arguments = msgspec.json.decode(params.arguments)
    except msgspec.DecodeError as error:
        raise Fault(
            HEADER_MISMATCH, "The arguments are no JSON, so they cannot be compared with the headers."
        ) from error
    check_params(required, arguments, headers)
