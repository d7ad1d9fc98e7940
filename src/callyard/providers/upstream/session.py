"""The client side of one MCP session with an upstream, over any link.

It matches responses with requests, and requests of the upstream with the call they are about. It starts no process and
retries nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from callyard._internal.logfmt import log_value
from callyard.dispatch.progress import Progress, SendProgress
from callyard.model.apps import APP_EXTENSION, APP_MIME_TYPE
from callyard.model.elicitation import CLIENT_METHODS, ClientMethod, ClientRequest, unsupported_by_client
from callyard.model.errors import ToolError
from callyard.providers.upstream.link import Link, LinkError, Received, without_mcp_headers
from callyard.providers.upstream.pages import page_request
from callyard.wire.messages import (
    INTERNAL,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Fault,
    Id,
    Message,
    decode,
    encode_fault,
    encode_notification,
    encode_result,
    id_of,
)
from callyard.wire.params import EMPTY, Requests

__all__ = [
    "APPS_DECLARED",
    "CLIENT_CAPABILITIES",
    "NO_CALLER",
    "CallContext",
    "ClientSession",
    "client_request",
    "decode_or_none",
]

T = TypeVar("T")
AskClient = Callable[[Mapping[str, ClientRequest]], Awaitable[Mapping[str, Any]]]
APPS_DECLARED: Final[dict[str, Any]] = {"extensions": {APP_EXTENSION: {"mimeTypes": [APP_MIME_TYPE]}}}
"""What is declared so that an upstream lists its Apps, whose tools may offer less without it."""
CLIENT_CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    **APPS_DECLARED,
}
"""The capabilities declared in `initialize`, for all callers; a call whose client lacks one answers with an error.

`roots` are missing on purpose: the session is shared, and roots belong to one caller.
"""
_OPEN_CLIENT_REQUESTS: Final = 100
_METHOD_CHARACTERS: Final = 200
_LOGGED_INVALID: Final = 10
_GIVEN_UP: Final = 1000
_log = logging.getLogger(__name__)


class _ProgressParams(msgspec.Struct, rename="camel", frozen=True):
    progress_token: Id
    progress: float
    total: float | None = None
    message: str = ""


class _CancelledParams(msgspec.Struct, rename="camel", frozen=True):
    request_id: Id | None = None


class _LogParams(msgspec.Struct, frozen=True):
    data: Any = None
    level: str = "info"


class _ErrorObject(msgspec.Struct, frozen=True):
    code: int = INTERNAL
    message: str = ""
    data: Any = None


def decode_or_none(raw: msgspec.Raw, kind: type[T]) -> T | None:
    """Return decoded params, or None if they are of another shape."""
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.DecodeError:
        return None


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The call that a request is part of: its caller, its callbacks, and what is sent along."""

    owner: str = ""
    """The caller and the client program; requests of the upstream are forwarded only if they have one owner."""
    progress: SendProgress | None = None
    log: Callable[[str, str], object] | None = None
    sent: Callable[[], None] | None = None
    """Called when the request is handed to the link; before that nothing can have run."""
    retried: Callable[[], None] | None = None
    """Called when the request is sent once more."""
    ask: AskClient | None = None
    capabilities: Mapping[str, Any] = EMPTY
    meta: Mapping[str, Any] = EMPTY
    """Additional entries of `_meta`, such as the trace."""
    headers: Mapping[str, str] = EMPTY
    ends: list[Callable[[], None]] = msgspec.field(default_factory=list[Callable[[], None]])
    """Called when the call is over."""
    has_roots: bool = False
    """Whether the upstream may ask for the client's folders."""
    unsupported: dict[str, ClientRequest] = msgspec.field(default_factory=dict[str, ClientRequest])
    """Requests of the upstream that the client could not answer, by the missing capability."""


def client_request(name: str, method: ClientMethod, params: dict[str, Any]) -> ClientRequest:
    """Return an upstream's request to the client; a question to a person says who asks.

    Raises:
        ToolError: `upstream_error`: it asks to open an address that nobody may be asked to open.
    """
    if method == "elicitation/create" and params.get("mode") == "url":
        return page_request(name, params)
    if method == "elicitation/create":
        params = {**params, "message": f"'{name}' asks: {params.get('message') or ''}"}
    return ClientRequest(method, params)


NO_CALLER: Final = CallContext(capabilities=APPS_DECLARED)
"""The context of requests that the yard makes for itself."""


class ClientSession:
    """One MCP session with an upstream; it is the listener of its link."""

    def __init__(
        self,
        name: str,
        link: Link,
        *,
        http: bool,
        on_notification: Callable[[str, msgspec.Raw], None],
        on_end: Callable[[LinkError], None],
    ) -> None:
        self.name = name
        self.requests: Requests | None = None
        """Encodes requests for the negotiated version; None until the handshake is done."""
        self._link = link
        self._http = http
        self._on_notification = on_notification
        self._on_end = on_end
        self._ids = count(1)
        self._pending: dict[Id, tuple[asyncio.Future[msgspec.Raw], CallContext]] = {}
        self._client_requests: dict[Id, tuple[asyncio.Task[None], CallContext]] = {}
        self.link_error: LinkError | None = None
        """Why the upstream closed the link, if it did."""
        self.is_closed = False
        self._invalid_messages = 0
        self._given_up: dict[Id, None] = {}
        """Cancelled requests whose responses may still come."""
        self._loop = asyncio.get_running_loop()

    @property
    def pid(self) -> int | None:
        """Return the process id of the upstream, if it is a program of this machine."""
        return self._link.pid

    def next_id(self) -> Id:
        """Return the id for a coming request whose sender must know it in advance."""
        return next(self._ids)

    async def request(
        self,
        requests: Requests,
        method: str,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        context: CallContext = NO_CALLER,
        request_id: Id | None = None,
    ) -> msgspec.Raw:
        """Send a request and return its result as JSON; cancelling the wait cancels the request.

        Raises:
            Fault: The upstream answered with a JSON-RPC error.
            LinkError: The request was not delivered, or there is no response.
        """
        if request_id is None:
            request_id = next(self._ids)
        meta = context.meta if context.progress is None else {**context.meta, "progressToken": request_id}
        message = requests.encode(request_id, method, params, capabilities=context.capabilities, meta=meta)
        return await self._send(request_id, message, {**requests.headers(method, name), **context.headers}, context)

    async def initialize(self, requests: Requests) -> msgspec.Raw:
        """Send `initialize` and return its result.

        Raises:
            Fault: The upstream answered with a JSON-RPC error.
            LinkError: The request was not delivered, or there is no response.
        """
        request_id = next(self._ids)
        return await self._send(request_id, requests.initialize(request_id, CLIENT_CAPABILITIES), {}, NO_CALLER)

    def notify(self, requests: Requests, method: str) -> None:
        """Send a notification without params."""
        self._link.send(encode_notification(method, None), None, requests.headers(method, None))

    async def _send(
        self, request_id: Id, message: bytes, headers: Mapping[str, str], context: CallContext
    ) -> msgspec.Raw:
        future: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._pending[request_id] = (future, context)
        try:
            if context.sent is not None:
                context.sent()
            self._link.send(message, request_id, headers)
            return await future
        except asyncio.CancelledError:
            self._cancel(request_id, context)
            raise
        finally:
            del self._pending[request_id]
            self._cancel_client_requests(context)

    def _cancel(self, request_id: Id, context: CallContext) -> None:
        self._given_up[request_id] = None
        if len(self._given_up) > _GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]
        self._link.drop(request_id)
        if self.requests is None or (self._http and self.requests.version.modern):
            # the protocol forbids cancelling 'initialize'; over modern HTTP the closed connection is the cancellation
            return
        params = {"requestId": request_id, "reason": "Nobody waits for it any more."}
        self._reply(encode_notification("notifications/cancelled", params), context)

    def receive(self, data: bytes, request_id: Id | None) -> Received:
        """Handle one message; an invalid one fails the request it appears to answer."""
        try:
            message = decode(data)
        except Fault as fault:
            self._handle_invalid(data, request_id, fault)
            return "invalid"
        if message.method is None:
            return self._handle_response(message)
        if message.is_request:
            self._handle_request(message, request_id)
        else:
            self._handle_notification(message, request_id)
        return "message"

    def _handle_invalid(self, data: bytes, request_id: Id | None, fault: Fault) -> None:
        self._invalid_messages += 1
        if self._invalid_messages <= _LOGGED_INVALID:  # a flood of them must not become one of log lines
            _log.warning("upstream_says_nonsense upstream=%s why=%s", self.name, log_value(fault.message))
        answered = id_of(data) if request_id is None else request_id
        if answered is not None:
            text = f"'{self.name}' answered with an invalid message: {fault.message}"
            self.lose(answered, LinkError("refused", text, sent=True, status=500, reason="protocol"))

    def lose(self, request_id: Id, error: LinkError) -> None:
        """Fail one request."""
        pending = self._pending.get(request_id)
        if pending is not None and not pending[0].done():
            pending[0].set_exception(error)

    def end(self, error: LinkError) -> None:
        """Fail every request, because the upstream closed the link."""
        self.link_error = error
        self._lose_all(error)
        self._cancel_client_requests()
        self._on_end(error)

    async def close(self) -> None:
        """Close the link and fail the requests that are still pending."""
        self.is_closed = True
        self._cancel_client_requests()
        await self._link.close()
        self._lose_all(LinkError("lost", f"'{self.name}' was stopped.", sent=True))

    async def drain(self, seconds: float) -> None:
        """Close the link once the pending requests are answered, or after so many seconds."""
        pending = [future for future, _ in self._pending.values()]
        try:
            if pending:
                await asyncio.wait(pending, timeout=seconds)
        finally:
            await self.close()

    def _lose_all(self, error: LinkError) -> None:
        for request_id in tuple(self._pending):
            self.lose(request_id, error)

    def _cancel_client_requests(self, context: CallContext | None = None) -> None:
        """Cancel the upstream's requests to one call's client, or to all."""
        for task, other in self._client_requests.values():
            if context is None or other is context:
                task.cancel()

    def _handle_response(self, message: Message) -> Received:
        pending = self._pending.get(message.id)  # pyright: ignore[reportArgumentType] - an invalid id finds nothing
        if pending is None or pending[0].done():
            is_late = message.id in self._given_up
            self._given_up.pop(message.id, None)  # pyright: ignore[reportArgumentType, reportCallIssue] - as above
            return "awaited" if is_late else "message"  # a late response is no flood
        if message.error and bytes(message.error) != b"null":  # some servers send 'error: null' with a result
            invalid = _ErrorObject(message="The upstream answered with an invalid error.")
            error = decode_or_none(message.error, _ErrorObject) or invalid
            pending[0].set_exception(Fault(error.code, error.message, error.data))
        else:
            pending[0].set_result(message.result)
        return "awaited"

    def _handle_notification(self, message: Message, request_id: Id | None) -> None:
        if message.method == "notifications/progress":
            progress = decode_or_none(message.params, _ProgressParams)
            pending = None if progress is None else self._pending.get(progress.progress_token)
            if progress is not None and pending is not None and pending[1].progress is not None:
                pending[1].progress(Progress(progress.progress, progress.total, progress.message))
        elif message.method == "notifications/message":
            line = decode_or_none(message.params, _LogParams)
            context = self._context_for(request_id)
            if line is not None and context is not None and context.log is not None:
                text = line.data if isinstance(line.data, str) else msgspec.json.encode(line.data).decode()
                context.log(line.level, text)
        elif message.method == "notifications/cancelled":
            cancelled = decode_or_none(message.params, _CancelledParams)
            if cancelled is not None and cancelled.request_id in self._client_requests:
                self._client_requests[cancelled.request_id][0].cancel()
        else:
            self._on_notification(str(message.method), message.params)

    def _handle_request(self, message: Message, about: Id | None) -> None:
        """Answer a request of the upstream at once, or forward it to the client of the call it is about."""
        request_id: Any = message.id
        if message.method == "ping":
            self._reply(encode_result(request_id, b"{}"))
            return
        context = self._context_for(about) if message.method in CLIENT_METHODS else None
        if context is None or (message.method == "roots/list" and not context.has_roots):
            text = f"Nobody here can be asked '{str(message.method)[:_METHOD_CHARACTERS]}'."
            self._reply(encode_fault(request_id, Fault(METHOD_NOT_FOUND, text)))
            return
        params = decode_or_none(message.params, dict[str, Any])
        if params is None or request_id in self._client_requests or len(self._client_requests) >= _OPEN_CLIENT_REQUESTS:
            fault = Fault(INVALID_REQUEST, "The request cannot be read, or too many are open.")
            self._reply(encode_fault(request_id, fault))
            return
        method: Any = message.method
        task = self._loop.create_task(self._forward(request_id, method, params, context))
        self._client_requests[request_id] = (task, context)
        task.add_done_callback(lambda _: self._client_requests.pop(request_id, None))

    async def _forward(
        self, request_id: Id, method: ClientMethod, params: dict[str, Any], context: CallContext
    ) -> None:
        request: ClientRequest | None = None
        try:
            request = client_request(self.name, method, params)
            if context.ask is None:
                raise unsupported_by_client({"answer": request})
            answer = encode_result(request_id, msgspec.json.encode((await context.ask({"answer": request}))["answer"]))
        except ToolError as error:
            is_unsupported = error.code == "not_supported" or error.details.get("reason") == "url_required"
            if is_unsupported and request is not None:
                context.unsupported[request.capability] = request
            answer = encode_fault(request_id, Fault(METHOD_NOT_FOUND if is_unsupported else INTERNAL, error.message))
        self._reply(answer, context)

    def _reply(self, message: bytes, context: CallContext = NO_CALLER) -> None:
        headers = {} if self.requests is None or self.requests.version.modern else self.requests.headers("", None)
        self._link.send(message, None, {**headers, **without_mcp_headers(context.headers)})

    def _context_for(self, request_id: Id | None) -> CallContext | None:
        """Return the call that a message is about; without a request id only if all pending calls have one owner.

        A guess between two owners could show one caller's questions and log lines to the other.
        """
        if request_id is not None:
            pending = self._pending.get(request_id)
            return None if pending is None else pending[1]
        contexts = [context for _, context in self._pending.values() if context is not NO_CALLER]
        return contexts[-1] if len({context.owner for context in contexts}) == 1 else None
