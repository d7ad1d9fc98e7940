"""A conversation: one MCP client as state, without I/O.

It knows what the client negotiated, what is in flight and what it subscribed to. It is handed messages and a function that sends
some; where those come from and go to is the transport's business. A client of the newer era has no state, but on a pipe its
requests can still be cancelled, so they are kept in the same book.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from itertools import count
from typing import Any, Final, cast

import msgspec

from toolyard.dispatch.call import Caller, Channel
from toolyard.model.elicitation import ClientRequest
from toolyard.model.envelope import Envelope
from toolyard.model.errors import ToolError
from toolyard.server.context import ServerContext
from toolyard.server.lists import Kind
from toolyard.server.methods import answer_of, is_modern, open_request, params_of, reply, start_tool
from toolyard.server.notifications import URIS, Subscription, check_uri
from toolyard.server.request import Notify, RequestContext, check_asks, encode_log, kept_capabilities
from toolyard.wire.messages import (
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Fault,
    Id,
    Message,
    encode_fault,
    encode_notification,
    encode_request,
    encode_result,
)
from toolyard.wire.params import LEVELS, CallMessage, Cancelled, Initialize, ReadResource, SetLevel, decode_params
from toolyard.wire.versions import LATEST, LATEST_HANDSHAKE, Version, negotiated

__all__ = ["PendingClientRequests", "ServerSession"]


_WORDS: Final = 2000
_DETAILS: Final = 20_000
_UNPUT: Final = "Tell the person that the client could not put the question."
_log = logging.getLogger(__name__)


class PendingClientRequests:
    """What one client was asked and has not answered yet."""

    def __init__(self, seconds: float) -> None:
        self.on_ask: Callable[[], None] = lambda: None
        """Called when the client is asked something, so that its answer is read."""
        self._seconds = seconds
        self._asked: dict[Id, asyncio.Future[Any]] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._asked)

    async def put(self, asks: Mapping[str, ClientRequest], notify: Notify, *, version: Version | None) -> Mapping[str, Any]:
        """Ask the client all that at once, and wait for every answer.

        Raises:
            ToolError: `timeout` if nobody answered in time.
        """
        questions = {f"ask-{next(self._numbers)}": ask for ask in asks.values()}
        written = [_written(number, ask, version) for number, ask in questions.items()]
        loop = asyncio.get_running_loop()
        waiting: dict[Id, asyncio.Future[Any]] = {number: loop.create_future() for number in questions}
        self._asked.update(waiting)
        try:
            for question in written:
                notify(question)
            self.on_ask()
            async with asyncio.timeout(self._seconds):
                results = await asyncio.gather(*waiting.values())
        except TimeoutError:
            raise ToolError("timeout", "Nobody answered the question in time.", blame="caller") from None
        finally:
            self._drop(waiting, notify)
        return dict(zip(asks, results, strict=True))

    def settle(self, message: Message) -> None:
        """Take the client's answer to something it was asked."""
        future = self._asked.pop(message.id, None) if isinstance(message.id, int | str) else None
        if future is None or future.done():
            _log.debug("response_dropped id=%s", message.id)
        else:
            _settle(future, message)

    def cancel_all(self) -> None:
        """Wait for no answer any more."""
        for future in self._asked.values():
            future.cancel()

    def _drop(self, waiting: "dict[Id, asyncio.Future[Any]]", notify: Notify) -> None:
        """Wait no longer for these, and tell the client of those that nobody answered."""
        for number, future in waiting.items():
            self._asked.pop(number, None)
            if not future.done():
                future.cancel()
            if future.cancelled():
                notify(encode_notification("notifications/cancelled", {"requestId": number, "reason": "The call is over."}))


def _written(number: Id, ask: ClientRequest, version: Version | None) -> bytes:
    params = ask.params
    if version is not None and not version.modes:
        params = {key: value for key, value in params.items() if key != "mode"}
    return encode_request(number, ask.method, params)


def _settle(future: "asyncio.Future[Any]", message: Message) -> None:
    """Hand on what the client answered, or that it was no answer."""
    if message.error and bytes(message.error) != b"null":  # which some write beside a result
        future.set_exception(_refusal(_decoded(message.error)))
    elif isinstance(result := _decoded(message.result), dict):
        future.set_result(result)
    else:
        sentence = "The client answered the question with something that is no object."
        future.set_exception(ToolError("upstream_error", sentence, hint=_UNPUT, blame="caller"))


def _refusal(error: object) -> ToolError:
    """Return the failure that a client's JSON-RPC error is, with its own code and words."""
    said = cast("dict[str, object]", error) if isinstance(error, dict) else {}
    text = str(said.get("message") or "")
    words = text[:_WORDS].strip().removesuffix(".")
    message = "The client answered the question with an error" + (f": {words}." if words else ".")
    return ToolError("upstream_error", message, hint=_UNPUT, blame="caller", client_code=said.get("code"), text=text[:_DETAILS])


def _decoded(raw: msgspec.Raw) -> object:
    """Return what a client said, or nothing if it cannot be read."""
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(raw)
    return None


_INFO: Final = LEVELS.index("info")
_KINDS: Final[tuple[Kind, ...]] = ("tools", "resources", "templates", "prompts")
_OWN: Final = frozenset({"initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe"})
_NONE: Final[Mapping[str, str]] = {}
_conversations: Final = count(1)


class ServerSession:
    """One client, from its first message to its last."""

    def __init__(self, front: ServerContext, *, caller: Caller, send: Notify | None, version: Version | None = None) -> None:
        self.front = front
        self.caller = caller
        self._base: Caller = caller
        self.version = version
        self.capabilities: Mapping[str, Any] = {}
        self.in_flight: dict[Any, asyncio.Task[Any] | bool] = {}
        """By request id the task that works on it, or will, or false if that was cancelled before it began."""
        self.questions = PendingClientRequests(front.serving.ask_seconds)
        self._send = send
        self._level = _INFO
        self._is_closed = False
        self._line = f"conversation {next(_conversations)}"
        self._door = Channel(name=front.channel, line=self._line, front=front.number, log=self._tell)
        self._standing: RequestContext | None = None
        """What all calls on the client's own line share that say nothing of themselves."""
        self._subscription: Subscription | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def serve(
        self,
        message: Message | CallMessage,
        *,
        notify: Notify | None,
        headers: Mapping[str, str] = _NONE,
        trace: Mapping[str, str] = _NONE,
        hang_up: Callable[[], None] | None = None,
    ) -> bytes:
        """Answer one request, which the caller has put in the book; what belongs to it before its answer goes out by `notify`."""
        method: str = message.method  # pyright: ignore[reportAssignmentType] - a request has one, and an id
        request_id: Id = message.id  # pyright: ignore[reportAssignmentType] - the same
        try:
            params: Any = message.params if type(message) is CallMessage else params_of(method, cast("msgspec.Raw", message.params))
            meta: dict[str, Any] | None = params.meta
            if trace:
                meta = params.meta = {**trace, **(meta or {})}
            standing = self._standing
            if standing is not None and meta is None and method == "tools/call" and notify is self._send and not headers:
                return encode_result(request_id, answer_of(standing, params.name, await start_tool(standing, params)))
            if is_modern(method, params):
                exchange = open_request(self.front, message, params, self.caller, notify=notify, headers=headers)
                exchange.line = self._line
            elif method in _OWN or self.version is None:
                result = self._reply(method, cast("Message", message))
                if method == "resources/subscribe" and self._subscription is not None:
                    await self.front.changes.settle(self._subscription)
                return encode_result(request_id, result)
            else:
                exchange = self._open_exchange(request_id, params, version=self.version, notify=notify, headers=headers, hang_up=hang_up)
            return encode_result(request_id, await reply(exchange, method, params))
        except Fault as fault:
            return encode_fault(request_id, fault)
        except Exception:  # noqa: BLE001 - a defect of ours must not end the conversation
            _log.exception("request_failed method=%s", method)
            return encode_fault(request_id, Fault(INTERNAL, "The server could not answer; the reason is in its log."))

    def renew(self, caller: Caller) -> None:
        """Take what is claimed of the caller from his newest request; his client is the one that shook hands."""
        if caller is not self._base:
            self._base = caller
            self.caller = self.front.caller(caller, {"name": self.caller.client})
            self._standing = None

    def refuse_twin(self, message: Message | CallMessage) -> bytes:
        """Return what a request is answered with whose id is in flight already: without an id, which would be the other's."""
        return encode_fault(None, Fault(INVALID_REQUEST, f"The request id {message.id!r} is in flight already."))

    def refuse_unended(self, message: Message | CallMessage) -> bytes:
        """Return what a call is answered with that does not end although the server does."""
        text = "The yard is closing, and the call did not end in time."
        return self._refuse_call(message, ToolError("cancelled", text, blame="yard", may_have_run=True))

    def refuse_ended(self, message: Message, *, begun: bool) -> bytes | None:
        """Return what an interrupted request is answered with if the client ended its session; one that it cancelled is not."""
        if not self._is_closed:
            return None
        text = "The session was ended meanwhile."
        if begun and message.method == "tools/call":
            return self._refuse_call(message, ToolError("cancelled", text, may_have_run=True))
        return encode_fault(cast("Id", message.id), Fault(INVALID_REQUEST, text))

    def _refuse_call(self, message: Message | CallMessage, failure: ToolError) -> bytes:
        params: Any = message.params if type(message) is CallMessage else params_of("tools/call", cast("msgspec.Raw", message.params))
        version = LATEST if is_modern("tools/call", params) else self.version or LATEST_HANDSHAKE
        return encode_result(cast("Id", message.id), self.front.answers(version).envelope(Envelope.fail(failure, tool_id=params.name)))

    def note(self, message: Message) -> None:
        """Take a notification of the client's; one that makes no sense is logged and dropped."""
        try:
            match message.method:
                case "notifications/cancelled":
                    self.cancel(decode_params(message.params, Cancelled).request_id)
                case "notifications/initialized":
                    self._begin_notices()
                case _:
                    _log.debug("notification_dropped method=%s", message.method)
        except Fault as fault:
            _log.warning("notification_wrong method=%s reason=%s", message.method, fault.message)

    def settle(self, message: Message) -> None:
        """Take the client's answer to something it was asked."""
        self.questions.settle(message)

    def close(self) -> None:
        """End: nobody is told of anything any more, and what is in flight is interrupted."""
        self._is_closed = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        for request_id in tuple(self.in_flight):
            self.cancel(request_id)
        self.questions.cancel_all()

    def _open_exchange(
        self,
        request_id: Id,
        params: Any,
        *,
        version: Version,
        notify: Notify | None,
        headers: Mapping[str, str],
        hang_up: Callable[[], None] | None,
    ) -> RequestContext:
        exchange = RequestContext(
            front=self.front,
            id=request_id,
            answers=self.front.answers(version),
            caller=self.caller,
            capabilities=self.capabilities,
            stateless=self._send is None,
            line=self._line,
            meta=params.meta or _NONE,
            headers=headers,
            notify=notify,
            log_level=None if self._send is None else self._level,
            hang_up=hang_up,
            standing=self._door if notify is self._send else None,
        )
        if notify is not None and self.capabilities:
            exchange.ask_client = partial(self._ask, notify)
        if notify is self._send and not params.meta and not headers:
            exchange.ready = exchange.channel()
            self._standing = exchange
        return exchange

    def _reply(self, method: str, message: Message) -> bytes:
        """Return the result of a request that is about the conversation itself."""
        answers = self.front.answers(self.version or LATEST_HANDSHAKE)
        match method:
            case "initialize":
                return self._initialize(decode_params(message.params, Initialize))
            case "ping":
                return answers.empty
            case _ if self.version is None:
                raise Fault(INVALID_REQUEST, "The conversation must begin with 'initialize', or the request say its version in '_meta'.")
            case "logging/setLevel":
                self._set_level(decode_params(message.params, SetLevel).level)
            case "resources/subscribe":
                self._subscribe(decode_params(message.params, ReadResource).uri)
            case _:
                self._cease(decode_params(message.params, ReadResource).uri)
        return answers.empty

    def encode_log(self, level: str, text: str, facts: Mapping[str, object]) -> bytes | None:
        """Return what the client is told, or nothing if it does not want to hear of that level."""
        return encode_log(level, text, facts, self._level)

    def _tell(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        """Tell the client something that belongs to no request of its own, as far as it wants to hear of it."""
        if self._send is not None and (told := self.encode_log(level, text, facts)) is not None:
            self._send(told)

    def _initialize(self, params: Initialize) -> bytes:
        self._standing = None
        self.version = negotiated(params.protocol_version)
        self.capabilities = kept_capabilities(params.capabilities)
        self.caller = self.front.caller(self.caller, params.client_info)
        profile = self.front.profile_of(self.caller)
        capabilities = self.front.capabilities(profile, notifies=self._send is not None)
        return self.front.answers(self.version).initialize(capabilities, self.front.instructions(profile))

    def _begin_notices(self) -> None:
        if self._send is None or self._subscription is not None:
            return
        profile = self.front.profile_of(self.caller)
        kinds = set(_KINDS) if self.front.serving.notify_changes else set[Kind]()
        self._subscription = Subscription(profile, self._send, kinds=kinds, uris=set())
        self._unsubscribe = self.front.changes.add(self._subscription)

    def _set_level(self, level: str) -> None:
        if self._send is None:
            raise Fault(METHOD_NOT_FOUND, "A stateless server keeps no level: it tells this client nothing of its log.")
        if level not in LEVELS:
            raise Fault(INVALID_PARAMS, f"There is no level '{level}'. Known: {', '.join(LEVELS)}.")
        self._level = LEVELS.index(level)
        self._standing = None

    def _subscribe(self, uri: str) -> None:
        self._begin_notices()
        if self._subscription is None:
            raise Fault(METHOD_NOT_FOUND, "There is no way to tell this client of changes.")
        if len(self._subscription.uris) >= URIS:
            raise Fault(INVALID_PARAMS, f"At most {URIS} resources can be subscribed to.")
        check_uri(uri)
        try:
            self.front.yard.registry.find_resource(uri, self._subscription.profile)
        except ToolError as error:
            raise Fault(INVALID_PARAMS, error.message, {"uri": uri}) from None
        self.front.changes.follow(self._subscription, uri)

    def _cease(self, uri: str) -> None:
        if self._subscription is not None:
            self.front.changes.unfollow(self._subscription, uri)

    def cancel(self, request_id: Id) -> None:
        """Interrupt a request, or see to it that it is not begun."""
        at_work = self.in_flight.get(request_id)
        if not isinstance(at_work, asyncio.Task):
            return
        work = cast("Coroutine[Any, Any, Any]", at_work.get_coro())
        if getcoroutinestate(work) == CORO_CREATED:  # interrupted now, it would end without a word
            self.in_flight[request_id] = False
        else:
            at_work.cancel()

    @property
    def is_asking(self) -> bool:
        """Return whether the client owes an answer to something."""
        return bool(self.questions)

    async def _ask(self, notify: Notify, asks: Mapping[str, ClientRequest], declared: bool) -> Mapping[str, Any]:  # noqa: ARG002, FBT001 - the shape of a door
        """Ask the client while its request stays open."""
        check_asks(asks, self.capabilities)
        return await self.questions.put(asks, notify, version=self.version)
