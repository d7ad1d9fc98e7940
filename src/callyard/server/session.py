"""A session: the state of one MCP client, without I/O.

It stores what the client negotiated, its requests in flight and its subscriptions. The transport hands in decoded
messages and a function that sends some. A client of the 2026-07-28 era has no such state, but on a pipe its requests
can be cancelled, too.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Final, cast

import msgspec

from callyard._internal.converted import as_object
from callyard.dispatch.call import Caller
from callyard.dispatch.questions import Question
from callyard.model.apps import APP_EXTENSION
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.server.context import (
    Notify,
    RequestContext,
    ServerContext,
    encode_log,
    own_scope,
    relevant_capabilities,
)
from callyard.server.input_required import check_asks
from callyard.server.lists import Kind
from callyard.server.methods import answer, encode_error, is_modern, level_index, open_request, params_of_message
from callyard.server.notifications import MAX_URIS, Subscription, check_uri
from callyard.wire.messages import (
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Fault,
    Id,
    Message,
    decode,
    encode_fault,
    encode_notification,
    encode_request,
    encode_result,
    id_of,
)
from callyard.wire.params import LEVELS, TASKS_EXTENSION, Cancelled, Initialize, declares, decode_params
from callyard.wire.versions import LATEST, LATEST_HANDSHAKE, VERSIONS, Version, negotiated

__all__ = ["CHANGING_METHODS", "MAX_IN_FLIGHT", "InFlight", "PendingClientRequests", "Respond", "ServerSession"]


Respond = Callable[[bytes | None], None]
"""Takes the response to a message of a batch, or None if there is none."""
CHANGING_METHODS: Final = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""The methods that change a session after its handshake."""
MAX_IN_FLIGHT: Final = 1000
"""Requests of one connection that run at one time; further ones wait."""
_MESSAGE_LENGTH: Final = 2000
_DETAILS_LENGTH: Final = 20_000
_HINT: Final = "Tell the person that the client could not put the question."
_ASK: Final = "ask-"
"""What the ids of requests to clients begin with."""
_INFO: Final = LEVELS.index("info")
_KINDS: Final[tuple[Kind, ...]] = ("tools", "resources", "templates", "prompts")
_EMPTY: Final[Mapping[str, Any]] = {}
_session_numbers: Final = count(1)
_log = logging.getLogger(__name__)


class PendingClientRequests:
    """The requests to one client that have no response yet."""

    def __init__(self, seconds: float, replica: str = "") -> None:
        """Name requests after the replica that sends them, because the response may reach another one."""
        self.on_request: Callable[[], None] = lambda: None
        """Called after a request was sent, so that the transport reads its response."""
        self._seconds = seconds
        self._pending: dict[Id, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._prefix = f"{_ASK}{replica}-" if replica else _ASK

    def __len__(self) -> int:
        return len(self._pending)

    async def send(
        self, asks: Mapping[str, ClientRequest], notify: Notify, *, version: Version | None
    ) -> Mapping[str, Any]:
        """Send requests to the client, and wait for the results of all.

        Raises:
            ToolError: `timeout` if one came too late; `upstream_error` if one is an error.
        """
        requests = {f"{self._prefix}{next(self._numbers)}": ask for ask in asks.values()}
        encoded = [_encode(request_id, ask, version) for request_id, ask in requests.items()]
        loop = asyncio.get_running_loop()
        waiting: dict[Id, asyncio.Future[Any]] = {request_id: loop.create_future() for request_id in requests}
        self._pending.update(waiting)
        try:
            for request in encoded:
                notify(request)
            self.on_request()
            async with asyncio.timeout(self._seconds):
                results = await asyncio.gather(*waiting.values())
        except TimeoutError:
            raise ToolError("timeout", "Nobody answered the question in time.", blame="caller") from None
        finally:
            self._drop(waiting, notify)
        return dict(zip(asks, results, strict=True))

    def settle(self, message: Message) -> None:
        """Take a response of the client."""
        future = self._pending.pop(message.id, None) if isinstance(message.id, int | str) else None
        if future is None or future.done():
            _log.debug("response_dropped id=%s", message.id)
        else:
            _settle(future, message)

    def cancel_all(self) -> None:
        """Stop waiting for any response."""
        for future in self._pending.values():
            future.cancel()

    def _drop(self, waiting: "dict[Id, asyncio.Future[Any]]", notify: Notify) -> None:
        """Stop waiting for these requests, and cancel those without a response at the client."""
        for request_id, future in waiting.items():
            self._pending.pop(request_id, None)
            if not future.done():
                future.cancel()
            if future.cancelled():
                params = {"requestId": request_id, "reason": "The call is over."}
                notify(encode_notification("notifications/cancelled", params))


def _encode(request_id: Id, ask: ClientRequest, version: Version | None) -> bytes:
    params = ask.params
    if version is not None and not version.modes:
        params = {key: value for key, value in params.items() if key != "mode"}
    return encode_request(request_id, ask.method, params)


def _settle(future: "asyncio.Future[Any]", message: Message) -> None:
    if message.error and bytes(message.error) != b"null":  # some clients send a null error with a result
        future.set_exception(_failure_of(_decoded(message.error)))
    elif isinstance(result := _decoded(message.result), dict):
        future.set_result(result)
    else:
        sentence = "The client answered the question with something that is no object."
        future.set_exception(ToolError("upstream_error", sentence, hint=_HINT, blame="caller"))


def _failure_of(error: object) -> ToolError:
    """Return a client's JSON-RPC error as a failure of the call, with its code and message."""
    fields = as_object(error)
    text = str(fields.get("message") or "")
    reason = text[:_MESSAGE_LENGTH].strip().removesuffix(".")
    message = "The client answered the question with an error" + (f": {reason}." if reason else ".")
    facts: dict[str, Any] = {"client_code": fields.get("code"), "text": text[:_DETAILS_LENGTH]}
    return ToolError("upstream_error", message, hint=_HINT, blame="caller", **facts)


def _decoded(raw: msgspec.Raw) -> object:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(raw)
    return None


class InFlight(msgspec.Struct, eq=False, kw_only=True):
    """A request in flight."""

    task: "asyncio.Task[Any] | None" = None
    has_started: bool = False
    """Whether the task runs; one that is cancelled before that never gets to clean up."""
    is_cancelled: bool = False
    """Whether the request was cancelled before its task ran."""


class ServerSession:
    """One client, from its first message to its last."""

    def __init__(
        self,
        server: ServerContext,
        *,
        caller: Caller,
        send: Notify | None,
        version: Version | None = None,
        is_scope: bool = False,
        scope: str = "",
    ) -> None:
        """Open the session; with `is_scope`, a caller without an identity gets a scope that ends with it."""
        self.server = server
        self.caller = own_scope(caller, scope) if is_scope else caller
        self._base: Caller = caller
        self.has_own_scope = self.caller is not caller
        self.version = version
        self.capabilities: Mapping[str, Any] = {}
        self.in_flight: dict[Any, InFlight] = {}
        replica = server.yard.replica
        self.client_requests = PendingClientRequests(server.serving.ask_seconds, "" if replica is None else replica.id)
        self.keep: Callable[[str, str], Awaitable[None]] | None = None
        """Stores what a method changed for other replicas; it gets the method and the resource."""
        self.pass_on: Callable[[Message], bool] | None = None
        """Sends a notification or response to the replica that it is for; returns False if that is this one."""
        self._send = send
        self._level = _INFO
        self._is_closed = False
        self._began = time.monotonic()
        self.number = next(_session_numbers)
        """Names it to people: an id may be all that lets somebody in."""
        self._connection_id = f"conversation {self.number}"
        self._subscription: Subscription | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def serve(
        self,
        message: Message,
        *,
        notify: Notify | None,
        params: Any = None,
        headers: Mapping[str, str] = _EMPTY,
        trace: Mapping[str, str] = _EMPTY,
        hang_up: Callable[[], None] | None = None,
    ) -> bytes:
        """Return the response to a request, which the transport has put in `in_flight`.

        `params` are the decoded params, where the transport needed them; `notify` sends messages ahead of the response.
        """
        method, request_id = str(message.method), cast("Id", message.id)
        try:
            params = params_of_message(message) if params is None else params
            if trace:
                params.meta = {**trace, **(params.meta or {})}
            context = self._open(request_id, method, params, notify=notify, headers=headers)
            context.hang_up, context.transport_trace = hang_up, trace
            if self.keep is not None and method in CHANGING_METHODS:
                return await self._answer_and_keep(context, method, params)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not end the session
            return encode_error(request_id, method, error)
        return await answer(context, request_id, method, params)

    async def _answer_and_keep(self, context: RequestContext, method: str, params: Any) -> bytes:
        """Return the response to a request that changes the session, once other replicas can read the change."""
        response = await answer(context, context.id, method, params)
        if context.fault is None and self.keep is not None:
            await self.keep(method, getattr(params, "uri", ""))
        return response

    def _open(
        self, request_id: Id, method: str, params: Any, *, notify: Notify | None, headers: Mapping[str, str]
    ) -> RequestContext:
        """Return the context of a request.

        Raises:
            Fault: Its `_meta` is wrong, or the session has not begun.
        """
        if is_modern(method, params):
            context = open_request(self.server, request_id, params, caller=self.caller, notify=notify, headers=headers)
            context.connection_id = self._connection_id
            return context
        if self.version is None and method not in {"initialize", "ping"}:
            message = "The session must begin with 'initialize', or the request name its version in '_meta'."
            raise Fault(INVALID_REQUEST, message)
        context = RequestContext(
            server=self.server,
            id=request_id,
            encoder=self.server.encoders[(self.version or LATEST_HANDSHAKE).name],
            caller=self.caller,
            capabilities=self.capabilities,
            session=self,
            stateless=self._send is None,
            connection_id=self._connection_id,
            meta=params.meta or _EMPTY,
            headers=headers,
            notify=notify,
            log_level=None if self._send is None else self._level,
        )
        if notify is not None and self.capabilities:
            context.ask_client = partial(self._ask, notify)
        return context

    def take_batch(
        self,
        items: list[bytes],
        *,
        take: Callable[[Message], None],
        start: Callable[[Message, Respond], None],
        respond: Respond,
    ) -> None:
        """Take the messages of a JSON-RPC batch.

        `start` starts a request and passes its response on, `take` gets all other messages, `respond` the response to
        the batch.

        Raises:
            Fault: The session's version has no batches.
        """
        if self.version is None or not self.version.batches:
            raise Fault(INVALID_REQUEST, "The protocol version of this session has no batches.")
        responses: list[bytes | None] = [None] * len(items)
        missing = len(items)

        def collect(index: int, response: bytes | None) -> None:
            nonlocal missing
            missing -= 1
            responses[index] = response
            if not missing:
                present = [response for response in responses if response is not None]
                respond(b"[%b]" % b",".join(present) if present else None)

        for index, item in enumerate(items):
            try:
                message = decode(item)
            except Fault as fault:
                collect(index, encode_fault(id_of(item), fault))
                continue
            if message.is_request:
                start(message, partial(collect, index))
            else:
                take(message)
                collect(index, None)

    def take(self, message: Message) -> None:
        """Take a notification, or a response to a request of ours; an invalid notification is logged and dropped."""
        if message.method is None:
            if self.pass_on is None or not self.pass_on(message):
                self.client_requests.settle(message)
            return
        try:
            if message.method == "notifications/cancelled":
                request_id = decode_params(message.params, Cancelled).request_id
                if request_id not in self.in_flight and self.pass_on is not None:
                    self.pass_on(message)
                self.cancel(request_id)
            elif message.method == "notifications/initialized":
                self.start_notifications()
            else:
                _log.debug("notification_dropped method=%s", message.method)
        except Fault as fault:
            _log.warning("notification_wrong method=%s reason=%s", message.method, fault.message)

    def update_caller(self, caller: Caller) -> None:
        """Take over the claims of the newest request; the client's name stays the one of the handshake."""
        if caller is not self._base:
            self._base = caller
            self.caller = self.server.caller(caller, {"name": self.caller.client})

    def begin(self, request_id: Id) -> bool:
        """Note that the task of a request runs; return False if the request was cancelled already."""
        request = self.in_flight[request_id]
        request.has_started = not request.is_cancelled
        return request.has_started

    def cancel(self, request_id: Id) -> None:
        """Cancel a request."""
        request = self.in_flight.get(request_id)
        if request is not None and request.has_started and request.task is not None:
            request.task.cancel()
        elif request is not None:
            request.is_cancelled = True

    def refuse_duplicate(self, message: Message) -> bytes:
        """Return the error for a request whose id is in flight; it has no id, because that would be the other's."""
        return encode_fault(None, Fault(INVALID_REQUEST, f"The request id {message.id!r} is in flight already."))

    def refuse_unfinished(self, message: Message) -> bytes:
        """Return the response to a call that does not end although the server shuts down."""
        text = "The yard is closing, and the call did not end in time."
        return self._refuse_call(message, ToolError("cancelled", text, blame="yard", may_have_run=True))

    def refuse_lost(self, message: Message) -> bytes:
        """Return the response to a request whose server died."""
        text = "The server that ran the call is gone."
        if message.method == "tools/call":
            return self._refuse_call(message, ToolError("cancelled", text, blame="yard", may_have_run=True))
        return encode_fault(cast("Id", message.id), Fault(INTERNAL, text))

    def refuse_ended(self, message: Message, *, started: bool) -> bytes | None:
        """Return the response to a cancelled request if the session was closed; None if the client cancelled it."""
        if not self._is_closed:
            return None
        text = "The session was ended meanwhile."
        if started and message.method == "tools/call":
            return self._refuse_call(message, ToolError("cancelled", text, may_have_run=True))
        return encode_fault(cast("Id", message.id), Fault(INVALID_REQUEST, text))

    def _refuse_call(self, message: Message, failure: ToolError) -> bytes:
        params = params_of_message(message)
        version = LATEST if is_modern("tools/call", params) else self.version or LATEST_HANDSHAKE
        return encode_result(
            cast("Id", message.id),
            self.server.encoders[version.name].envelope(Envelope.fail(failure, tool_id=params.name)),
        )

    def close(self, *, goes_on: bool = False) -> None:
        """Stop notifications, cancel what is in flight, and end the tool sessions that nobody else can reach.

        A session that `goes_on` is served by other replicas.
        """
        tracing, version = self.server.yard.tracing, self.version
        if tracing is not None and version is not None and not (self._is_closed or goes_on):
            seconds = time.monotonic() - self._began
            tracing.end_session(seconds, transport=self.server.channel, version=version.name)
        self._is_closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        for request_id in tuple(self.in_flight):
            self.cancel(request_id)
        self.client_requests.cancel_all()
        if self.has_own_scope and not goes_on:
            self.server.yard.sessions.release(self.caller.owner)

    def encode_log(self, level: str, text: str, facts: Mapping[str, object]) -> bytes | None:
        """Return a log message, or None if the client gets none of its level."""
        return encode_log(level, text, facts, self._level)

    def initialize(self, params: Initialize) -> bytes:
        """Negotiate the version and the capabilities; return the result of `initialize`."""
        self.version = negotiated(params.protocol_version)
        self.capabilities = relevant_capabilities(params.capabilities, self.version)
        self.caller = self.server.caller(self.caller, params.client_info)
        profile = self.server.profile_of(self.caller)
        tasks, apps = (declares(params.capabilities, name) for name in (TASKS_EXTENSION, APP_EXTENSION))
        capabilities = self.server.capabilities(profile, notifies=self._send is not None, tasks=tasks, apps=apps)
        return self.server.encoders[self.version.name].initialize(
            capabilities, self.server.yard.instructions_for(profile, whole=True)
        )

    @property
    def level(self) -> int:
        """Return the lowest level of log messages that the client gets."""
        return self._level

    def restore(self, version: str, capabilities: Mapping[str, Any], client: str) -> None:
        """Take over what a client negotiated with another replica."""
        self.version = VERSIONS[version]
        self.capabilities = capabilities
        self.caller = self.server.caller(self.caller, {"name": client})
        self.start_notifications()

    def follow(self, level: int, uris: Iterable[str]) -> None:
        """Take over the level and the subscriptions that another replica stored."""
        self._level = level
        if self._subscription is not None:
            wanted = set(uris)
            for uri in self._subscription.uris - wanted:
                self.server.notifier.unfollow(self._subscription, uri)
            for uri in wanted - self._subscription.uris:
                self.server.notifier.follow(self._subscription, uri)

    def start_notifications(self) -> None:
        """Notify the client of changes from now on, if it can be."""
        if self._send is None or self._subscription is not None:
            return
        profile = self.server.profile_of(self.caller)
        kinds = set(_KINDS) if self.server.serving.notify_changes else set[Kind]()
        self._subscription = Subscription(profile=profile, send=self._send, kinds=kinds, uris=set())
        self._unsubscribe = self.server.notifier.add(self._subscription)

    def set_level(self, level: str) -> None:
        """Set the lowest level of log messages that the client gets.

        Raises:
            Fault: There is no such level, or the client gets no log messages.
        """
        if self._send is None:
            message = "A stateless server stores no log level, and sends this client no log messages."
            raise Fault(METHOD_NOT_FOUND, message)
        self._level = level_index(level)

    async def subscribe(self, uri: str) -> None:
        """Subscribe the client to a resource.

        Raises:
            Fault: There is no such resource, there are too many, or the client gets no notifications.
        """
        self.start_notifications()
        if self._subscription is None:
            raise Fault(METHOD_NOT_FOUND, "This client cannot get notifications, so it cannot subscribe.")
        if len(self._subscription.uris) >= MAX_URIS:
            raise Fault(INVALID_PARAMS, f"At most {MAX_URIS} resources can be subscribed to.")
        check_uri(uri)
        try:
            self.server.yard.registry.find_resource(uri, self._subscription.profile)
        except ToolError as error:
            raise Fault(INVALID_PARAMS, error.message, {"uri": uri}) from None
        self.server.notifier.follow(self._subscription, uri)
        await self.server.notifier.settle(self._subscription)

    def unsubscribe(self, uri: str) -> None:
        """Unsubscribe the client from a resource."""
        if self._subscription is not None:
            self.server.notifier.unfollow(self._subscription, uri)

    async def _ask(self, notify: Notify, asks: Mapping[str, ClientRequest], question: Question) -> Mapping[str, Any]:
        check_asks(asks, self.capabilities)
        question.expire_after(self.server.serving.ask_seconds)
        return await self.client_requests.send(asks, notify, version=self.version)
