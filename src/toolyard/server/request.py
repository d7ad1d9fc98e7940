"""An exchange: one request of a client, what is known of that client, and the door that its call comes in by."""

import re
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolyard.dispatch.call import ANYONE, Caller, Channel
from toolyard.dispatch.progress import Progress
from toolyard.model.elicitation import ClientRequest, unsupported_by_client
from toolyard.model.envelope import encode
from toolyard.model.errors import ToolError
from toolyard.wire.messages import INVALID_PARAMS, Fault, Id, encode_notification
from toolyard.wire.params import LEVELS, RESULT_SIZE, custom_meta, has_only_protocol_keys
from toolyard.wire.results import ResultEncoder

if TYPE_CHECKING:
    from toolyard.server.context import ServerContext

__all__ = ["ASKABLE", "AskClient", "Notify", "RequestContext", "check_asks", "check_token", "encode_log", "kept_capabilities"]

Notify = Callable[[bytes], None]
AskClient = Callable[[Mapping[str, ClientRequest], bool], Awaitable[Mapping[str, Any]]]

ASKABLE: Final = frozenset({"elicitation", "sampling", "roots"})
_NOTHING: Final = frozenset[str]()
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_TRACE: Final = ("traceparent", "tracestate", "baggage")
_requests: Final = count(1)
"""Of clients that nobody knows each request is a client of its own."""


class RequestContext(msgspec.Struct, eq=False, kw_only=True):
    """One request, while it is worked on."""

    front: "ServerContext"
    id: Id
    answers: ResultEncoder
    caller: Caller
    capabilities: Mapping[str, Any]
    """What the client says it can do."""
    stateless: bool = False
    """Whether it is of a client that shook hands, of which nothing is kept."""
    line: str = ""
    """The conversation it is part of, if it is part of one."""
    meta: Mapping[str, Any] = {}
    headers: Mapping[str, str] = {}
    """The request headers that handlers may see, or that some upstream wants to have passed on."""
    notify: Notify | None = None
    """Sends a message that belongs to this request before its answer, where there is a way."""
    ask_client: AskClient | None = None
    """Asks the client while the request stays open: in the older era, where there is a way."""
    log_level: int | None = None
    """From which level on the client wants to be told."""
    hang_up: Callable[[], None] | None = None
    """Lets go of the connection before the answer, which the client then comes back for."""
    standing: Channel | None = None
    """The door of a quiet request on a line where all say the same, which need not be made anew."""
    ready: Channel | None = None
    """The door of this request's call, where it was made before."""
    responses: dict[str, dict[str, Any]] = {}
    """Answers that came along with the request."""

    @property
    def may_ask(self) -> bool:
        """Return whether the client can be asked by an answer that wants something answered first."""
        return self.answers.version.modern and not ASKABLE.isdisjoint(self.capabilities)

    def channel(self, ask: AskClient | None = None) -> Channel:
        """Return the door of this request's call, which is always the same if there is nothing to say of it."""
        meta, notify = self.meta, self.notify
        token = meta.get("progressToken")
        if token is not None:
            check_token(token)
        resumes = ask is not None  # what is said then may belong to a request that comes later
        ask = ask or self.ask_client
        tells = notify is not None and (token is not None or self.log_level is not None)
        quiet = has_only_protocol_keys(meta)
        if quiet and ask is None and not self.headers and (not self.capabilities or ASKABLE.isdisjoint(self.capabilities)):
            if not tells:
                return self.front.stateless_door if self.stateless else self.front.silent_door
            if token is None and self.standing is not None:
                return self.standing
        trace = {} if quiet else {key: str(meta[key]) for key in _TRACE if key in meta}
        return Channel(
            name=self.front.channel,
            line=self.line or (f"request {next(_requests)}" if self.caller.identity == ANYONE.identity else ""),
            front=self.front.number,
            progress=self.progress if (notify is not None and token is not None) or resumes else None,
            log=self.log if (notify is not None and self.log_level is not None) or resumes else None,
            ask=ask,
            capabilities=_askable(self.capabilities) if self.capabilities else _NOTHING,
            headers=self.front.shown(self.headers) if self.headers else self.headers,
            forwarded=self.headers,
            meta={} if quiet else custom_meta(meta),
            trace=trace,
            trace_id=_trace_id(trace) if trace else None,
            stateless=self.stateless,
            hang_up=self.hang_up,
            result_characters=None if quiet else self._stated_size(),
        )

    def _stated_size(self) -> int | None:
        """Return how long a result the client says it takes, if that is shorter than what the yard lets through."""
        stated = self.meta.get(RESULT_SIZE)
        return stated if type(stated) is int and 0 < stated < self.front.yard.limits.result_characters else None

    def take_over(self, other: "RequestContext") -> None:
        """Go on in the place of a request that came again: what is said from now on goes to it."""
        self.meta, self.notify, self.log_level, self.capabilities = other.meta, other.notify, other.log_level, other.capabilities

    def progress(self, note: Progress) -> None:
        """Tell the client how far its call has come."""
        token = self.meta.get("progressToken")
        if self.notify is None or token is None:
            return
        params: dict[str, Any] = {"progressToken": token, "progress": note.done}
        if note.total is not None:
            params["total"] = note.total
        if note.text and self.answers.version.annotations:
            params["message"] = note.text
        self.notify(encode_notification("notifications/progress", params))

    def log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        """Tell the client something, if it wants to hear of that level."""
        if self.notify is not None and self.log_level is not None:
            told = encode_log(level, text, facts, self.log_level)
            if told is not None:
                self.notify(told)


def check_token(token: object) -> None:
    """Check that progress can be told by this token.

    Raises:
        Fault: It is neither a text nor a number.
    """
    if token is not None and type(token) not in {str, int, float}:
        raise Fault(INVALID_PARAMS, "The 'progressToken' in '_meta' must be a text or a number.")


def encode_log(level: str, text: str, facts: Mapping[str, object], least: int) -> bytes | None:
    """Return what a client is told, or nothing if it does not want to hear of that level."""
    named = level if level in LEVELS else "info"
    if LEVELS.index(named) < least:
        return None
    data: object = {"message": text, **facts} if facts else text
    return encode_notification("notifications/message", {"level": named, "logger": "toolyard", "data": data})


def _trace_id(trace: Mapping[str, str]) -> str | None:
    """Return the id in the middle of a `traceparent`, if it is one."""
    found = _TRACEPARENT.fullmatch(trace.get("traceparent", ""))
    return None if found is None else found[1]


def check_asks(asks: Mapping[str, ClientRequest], capabilities: Mapping[str, Any]) -> None:
    """Check that the client said it can be asked all that, and that it can be written.

    Raises:
        ToolError: `not_supported`, naming the capabilities that are missing, or `internal_error` if it is no JSON.
    """
    if any(ask.missing_capability(capabilities) is not None for ask in asks.values()):
        raise unsupported_by_client(asks, capabilities)
    try:
        encode({key: ask.params for key, ask in asks.items()})
    except TypeError as error:
        raise ToolError("internal_error", "The question of the tool cannot be written as JSON.", blame="tool") from error


def kept_capabilities(capabilities: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return of what a client says it can do only what is looked at later, so that the rest is not kept."""
    return {name: _modes(capabilities[name]) for name in ASKABLE if name in capabilities}


def _modes(told: object) -> dict[str, Any]:
    return {mode: {} for mode in ("form", "url") if mode in told} if isinstance(told, dict) else {}


def _askable(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return what a handler may count on: a person can be asked only where a form can be shown."""
    names = frozenset(capabilities)
    told = capabilities.get("elicitation")
    return names - {"elicitation"} if told and _modes(told) == {"url": {}} else names
