"""A peer: the client half of one conversation with an upstream, over whatever link carries it.

It knows which answer belongs to which request, and whose question an upstream's question is. It starts nothing and repeats nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, Final, TypeVar

import msgspec

from toolyard._internal.logfmt import log_value
from toolyard.dispatch.progress import Progress, SendProgress
from toolyard.model.elicitation import CLIENT_METHODS, ClientRequest, unsupported_by_client
from toolyard.model.errors import ToolError
from toolyard.providers.upstream.link import Link, LinkError, lasting
from toolyard.wire.messages import (
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
from toolyard.wire.params import EMPTY, Requests

__all__ = ["ALONE", "ASKED", "CallContext", "ClientSession", "SaidCancelled", "SaidFault", "SaidLine", "SaidProgress", "read"]


T = TypeVar("T")


class SaidProgress(msgspec.Struct, rename="camel", frozen=True):
    """How far a request has come."""

    progress_token: Id
    progress: float
    total: float | None = None
    message: str = ""


class SaidCancelled(msgspec.Struct, rename="camel", frozen=True):
    """A question of its own that it wants no answer to any more."""

    request_id: Id | None = None


class SaidLine(msgspec.Struct, frozen=True):
    """A line for the log."""

    data: Any = None
    level: str = "info"


class SaidFault(msgspec.Struct, frozen=True):
    """An error of JSON-RPC."""

    code: int = INTERNAL
    message: str = ""
    data: Any = None


def read(raw: msgspec.Raw, kind: type[T]) -> T | None:
    """Return what was said, or nothing if it is something else."""
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.DecodeError:
        return None


ASKED: Final[Mapping[str, Any]] = {"elicitation": {}, "sampling": {}}
"""What an upstream of the older era may ask, whoever calls: a call that has nobody to ask says so.

Not its folders: those it would take for everybody's, and they are one caller's.
"""
_QUESTIONS: Final = 100
_WORDS: Final = 200
_log = logging.getLogger(__name__)
PutAsks = Callable[[Mapping[str, ClientRequest]], Awaitable[Mapping[str, Any]]]


class CallContext(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf a request is made, and how that one can be reached meanwhile."""

    owner: str = ""
    """Whose questions may be put to whom: the caller, and the program he uses."""
    progress: SendProgress | None = None
    log: Callable[[str, str], None] | None = None
    sent: Callable[[], None] | None = None
    """Called when the request goes out: until then nothing can have happened."""
    ask: PutAsks | None = None
    capabilities: Mapping[str, Any] = EMPTY
    """What whoever it is can be asked."""
    meta: Mapping[str, Any] = EMPTY
    """What is said beside the params, such as the trace it is part of."""
    headers: Mapping[str, str] = EMPTY
    """What HTTP has beside it."""
    unasked: dict[str, ClientRequest] = msgspec.field(default_factory=dict[str, ClientRequest])
    """What the upstream wanted to ask and could not, by the capability that is missing."""


ALONE: Final = CallContext()
"""On nobody's behalf but the yard's own."""


class ClientSession:
    """One conversation with an upstream; it is the listener of its link."""

    def __init__(
        self, name: str, link: Link, *, http: bool, note: Callable[[str, msgspec.Raw], None], ended: Callable[[LinkError], None]
    ) -> None:
        self.name = name
        self.requests: Requests | None = None
        """How requests are written, once the version is known."""
        self._link = link
        self._http = http
        self._note = note
        self._ended = ended
        self._ids = count(1)
        self._waiting: dict[Id, tuple[asyncio.Future[msgspec.Raw], CallContext]] = {}
        self._asking: dict[Id, tuple[asyncio.Task[None], CallContext]] = {}
        self.is_over: LinkError | None = None
        """Why the link is gone, if it went by itself."""
        self.is_closed = False
        """Whether we let go of it."""
        self._loop = asyncio.get_running_loop()

    def next_id(self) -> Id:
        """Return the id of a request to come, for whoever must know it before."""
        return next(self._ids)

    async def request(
        self,
        requests: Requests,
        method: str,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        behalf: CallContext = ALONE,
        request_id: Id | None = None,
    ) -> msgspec.Raw:
        """Send a request and return its result, which stays JSON; whoever stops waiting for it cancels it.

        Raises:
            Fault: The upstream answered with an error of JSON-RPC.
            LinkError: It did not get through, or there is no answer.
        """
        if request_id is None:
            request_id = next(self._ids)
        meta = behalf.meta if behalf.progress is None else {**behalf.meta, "progressToken": request_id}
        message = requests.encode(request_id, method, params, capabilities=behalf.capabilities, meta=meta)
        headers = requests.headers(method, name)
        return await self._sent(request_id, message, {**headers, **behalf.headers} if behalf.headers else headers, behalf)

    async def initialize(self, requests: Requests, capabilities: Mapping[str, Any]) -> msgspec.Raw:
        """Send the request that a handshake begins with and return its result.

        Raises:
            Fault: The upstream answered with an error of JSON-RPC.
            LinkError: It did not get through, or there is no answer.
        """
        request_id = next(self._ids)
        return await self._sent(request_id, requests.initialize(request_id, capabilities), {}, ALONE)

    def notify(self, requests: Requests, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a message that wants no answer."""
        self._link.send(encode_notification(method, params), None, requests.headers(method, None))

    async def _sent(self, request_id: Id, message: bytes, headers: Mapping[str, str], behalf: CallContext) -> msgspec.Raw:
        future: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._waiting[request_id] = (future, behalf)
        try:
            if behalf.sent is not None:
                behalf.sent()
            self._link.send(message, request_id, headers)
            return await future
        except asyncio.CancelledError:
            self._give_up(request_id, behalf)
            raise
        finally:
            del self._waiting[request_id]
            self._stop_asking(behalf)

    def _give_up(self, request_id: Id, behalf: CallContext) -> None:
        self._link.drop(request_id)
        if self.requests is None or (self._http and self.requests.version.modern):
            return  # a greeting cannot be cancelled, and there the connection that closes says it all
        told = encode_notification("notifications/cancelled", {"requestId": request_id, "reason": "Nobody waits for it any more."})
        self._reply(told, behalf)

    def receive(self, data: bytes, about: Id | None) -> None:
        """Take one message of the upstream; what is none answers whatever request it can be meant for."""
        try:
            message = decode(data)
        except Fault as fault:
            _log.warning("upstream_says_nonsense upstream=%s why=%s", self.name, log_value(fault.message))
            meant = id_of(data) if about is None else about
            if meant is not None:
                self.lose(
                    meant, LinkError("refused", f"'{self.name}' answered with what is no message: {fault.message}", sent=True, status=500)
                )
            return
        if message.method is None:
            self._settle(message)
        elif message.is_request:
            self._answer(message, about)
        else:
            self._hear(message, about)

    def lose(self, request_id: Id, error: LinkError) -> None:
        """Fail one request."""
        waiting = self._waiting.get(request_id)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(error)

    def end(self, error: LinkError) -> None:
        """Fail every request, because the link is gone."""
        self.is_over = error
        for request_id in tuple(self._waiting):
            self.lose(request_id, error)
        self._stop_asking()
        self._ended(error)

    async def close(self) -> None:
        """Let go of the link; what is still waiting is lost."""
        self.is_closed = True
        self._stop_asking()
        await self._link.close()
        for request_id in tuple(self._waiting):
            self.lose(request_id, LinkError("lost", f"'{self.name}' was stopped.", sent=True))

    async def retire(self, seconds: float) -> None:
        """Let go of the link once those who wait are answered, or have waited that long."""
        waiting = [future for future, _ in self._waiting.values()]
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=seconds)
        finally:
            await self.close()

    def _stop_asking(self, behalf: CallContext | None = None) -> None:
        """Ask no more, or no more on the behalf of somebody whose request is over."""
        for task, whose in self._asking.values():
            if behalf is None or whose is behalf:
                task.cancel()

    def _settle(self, message: Message) -> None:
        waiting = self._waiting.get(message.id)  # pyright: ignore[reportArgumentType] - what is no id finds nothing
        if waiting is None or waiting[0].done():
            return  # nobody waits for it any more
        if message.error and bytes(message.error) != b"null":  # which some write beside a result
            fault = read(message.error, SaidFault) or SaidFault(message="The upstream answered with an error that is none.")
            waiting[0].set_exception(Fault(fault.code, fault.message, fault.data))
        else:
            waiting[0].set_result(message.result)

    def _hear(self, message: Message, about: Id | None) -> None:
        if message.method == "notifications/progress":
            told = read(message.params, SaidProgress)
            waiting = None if told is None else self._waiting.get(told.progress_token)
            if told is not None and waiting is not None and waiting[1].progress is not None:
                waiting[1].progress(Progress(told.progress, told.total, told.message))
        elif message.method == "notifications/message":
            said = read(message.params, SaidLine)
            behalf = self._whose(about)
            if said is not None and behalf is not None and behalf.log is not None:
                behalf.log(said.level, said.data if isinstance(said.data, str) else msgspec.json.encode(said.data).decode())
        elif message.method == "notifications/cancelled":
            cancelled = read(message.params, SaidCancelled)
            asking = None if cancelled is None or cancelled.request_id is None else self._asking.get(cancelled.request_id)
            if asking is not None:
                asking[0].cancel()
        else:
            self._note(str(message.method), message.params)

    def _answer(self, message: Message, about: Id | None) -> None:
        """Answer a request of the upstream, at once or when whoever it is for has."""
        request_id: Any = message.id
        if message.method == "ping":
            self._reply(encode_result(request_id, b"{}"))
            return
        behalf = self._whose(about) if message.method in CLIENT_METHODS else None
        if behalf is None:
            self._reply(encode_fault(request_id, Fault(METHOD_NOT_FOUND, f"Nobody here can be asked '{str(message.method)[:_WORDS]}'.")))
            return
        params = read(message.params, dict[str, Any])
        if params is None or request_id in self._asking or len(self._asking) >= _QUESTIONS:
            self._reply(encode_fault(request_id, Fault(INVALID_REQUEST, "The question cannot be read, or too many are open.")))
            return
        method: Any = message.method
        task = self._loop.create_task(self._put(request_id, ClientRequest(method, params), behalf))
        self._asking[request_id] = (task, behalf)
        task.add_done_callback(lambda _: self._asking.pop(request_id, None))

    async def _put(self, request_id: Id, ask: ClientRequest, behalf: CallContext) -> None:
        try:
            if behalf.ask is None:
                raise unsupported_by_client({"answer": ask})
            answers = await behalf.ask({"answer": ask})
            answer = encode_result(request_id, msgspec.json.encode(answers["answer"]))
        except ToolError as error:
            if error.code == "not_supported":
                behalf.unasked[ask.capability] = ask
            answer = encode_fault(request_id, Fault(METHOD_NOT_FOUND if error.code == "not_supported" else INTERNAL, error.message))
        self._reply(answer, behalf)

    def _reply(self, message: bytes, behalf: CallContext = ALONE) -> None:
        headers = {} if self.requests is None or self.requests.version.modern else self.requests.headers("", None)
        self._link.send(message, None, {**headers, **lasting(behalf.headers)} if behalf.headers else headers)

    def _whose(self, about: Id | None) -> CallContext | None:
        """Return on whose behalf an upstream must be speaking: never a guess between two owners."""
        if about is not None:
            waiting = self._waiting.get(about)
            return None if waiting is None else waiting[1]
        candidates = [behalf for _, behalf in self._waiting.values() if behalf is not ALONE]
        return candidates[-1] if len({behalf.owner for behalf in candidates}) == 1 else None
