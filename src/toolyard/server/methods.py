"""Replies: what each method of MCP is answered with, from params that were read to a result as JSON."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

import msgspec

from toolyard.dispatch.call import Caller, CallRequest, Channel, EnvelopeCoroutine
from toolyard.model.envelope import Envelope, Failure, encode, encode_sorted
from toolyard.model.errors import ToolError
from toolyard.server.context import ServerContext
from toolyard.server.input_required import Asked, Start, Work
from toolyard.server.lists import Kind
from toolyard.server.notifications import listen
from toolyard.server.request import ASKABLE, Notify, RequestContext, check_token
from toolyard.wire import params as given
from toolyard.wire.messages import (
    INTERNAL,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    Fault,
    Message,
    encode_fault,
    encode_result,
)
from toolyard.wire.params import CAPABILITIES, CLIENT, LEVELS, LOG_LEVEL, PROTOCOL_VERSION, CallMessage, version_of

__all__ = ["Bare", "Reply", "answer", "answer_of", "call_tool", "is_modern", "name_of", "open_request", "params_of", "reply", "start_tool"]


_NULL: Final = msgspec.Raw(b"null")
_COMPLETIONS: Final = 100
Reply = Callable[[RequestContext, Any], Awaitable[bytes]]


class Bare(msgspec.Struct, gc=False):
    """What methods take that take nothing, and those that are none."""

    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


async def call_tool(exchange: RequestContext, params: given.CallTool) -> bytes:
    """Call a tool and answer in the shape that it has."""
    if exchange.answers.version.modern and (params.request_state is not None or (exchange.capabilities and exchange.may_ask)):
        raw = None if params.arguments == _NULL else params.arguments
        start: Start = partial(_start_with, exchange, params.name, raw)
        outcome = await _parked(exchange, Work("tools/call", params.name, _sorted(raw), start), params.request_state)
        if isinstance(outcome, Asked):
            return exchange.answers.input_required(outcome.asks, outcome.state)
    else:
        outcome = await start_tool(exchange, params)
    return answer_of(exchange, params.name, outcome)


def start_tool(exchange: RequestContext, params: given.CallTool) -> EnvelopeCoroutine:
    """Return the call of a tool whose client is asked, if at all, while its request stays open."""
    raw = params.arguments
    channel = exchange.ready or exchange.channel()
    return exchange.front.dispatch(CallRequest(params.name, None if raw == _NULL else raw, exchange.caller), channel=channel)


def answer_of(exchange: RequestContext, name: str, outcome: Envelope) -> bytes:
    """Return what came of a call in the shape that its tool has.

    Raises:
        Fault: It failed because the client cannot be asked, which the newer era has a fault for.
    """
    if outcome.error is not None:
        _refuse_incapable(exchange, outcome)
        return exchange.answers.envelope(outcome)
    registry = exchange.front.yard.registry
    tool = registry.get(name) or registry.resolve(name)
    return exchange.answers.plain(outcome) if tool is not None and tool.spec.shape == "plain" else exchange.answers.envelope(outcome)


def _start_with(exchange: RequestContext, name: str, raw: msgspec.Raw | None, channel: Channel) -> EnvelopeCoroutine:
    return exchange.front.dispatch(CallRequest(name, raw, exchange.caller), channel=channel)


def _sorted(raw: msgspec.Raw | None) -> bytes:
    """Return arguments so that equal ones are equal text; what cannot be read is refused by the call itself."""
    try:
        return encode_sorted(None if raw is None else msgspec.json.decode(raw))
    except msgspec.DecodeError:
        return bytes(raw or b"")


async def _parked(exchange: RequestContext, work: Work, state: str | None) -> Envelope | Asked:
    check_token(exchange.meta.get("progressToken"))  # before a call that is parked goes on in its name
    try:
        return await exchange.front.parking.run(work, exchange, state)
    except ToolError as error:
        return exchange.front.yard.dispatcher.refuse(work.name, error, caller=exchange.caller, channel=exchange.front.silent_door)


def _refuse_incapable(exchange: RequestContext, envelope: Envelope) -> None:
    """Raise the fault that the newer era has for a client that cannot be asked what a call must know."""
    error = envelope.error
    if error is None or error.code != "not_supported" or not exchange.answers.version.modern:
        return
    missing = _missing(error)
    if missing and not any(_has(exchange.capabilities, name, modes) for name, modes in missing.items()):
        raise Fault(MISSING_CAPABILITY, error.message, {"requiredCapabilities": missing})


def _missing(error: Failure) -> dict[str, dict[str, Any]]:
    """Return what a client would have to have, if that is why a call failed; a tool may say something else under the same name."""
    names: object = error.details.get("capabilities") if error.code == "not_supported" else None
    known = cast("list[object]", names) if isinstance(names, list | tuple) else []
    parts = [name.partition(".") for name in known if isinstance(name, str)]
    return {name: {mode: {}} if mode else {} for name, _, mode in parts if name in ASKABLE}


def _has(capabilities: Mapping[str, Any], name: str, modes: Mapping[str, Any]) -> bool:
    """Return whether a client says that it has a capability, and the modes of it."""
    return name in capabilities and all(mode in capabilities[name] for mode in modes)


async def read_resource(exchange: RequestContext, params: given.ReadResource) -> bytes:
    """Read a resource."""
    yard = exchange.front.yard
    work = Work("resources/read", params.uri, b"", lambda channel: yard.read(params.uri, caller=exchange.caller, channel=channel))
    answer = await _run(exchange, work, params.request_state)
    if isinstance(answer, bytes):
        return answer
    if answer.error is not None:
        raise _fault_of(answer, {"uri": params.uri}, answer.meta.call_id)
    return exchange.answers.complete(encode(answer.data), cacheable=True)


async def get_prompt(exchange: RequestContext, params: given.GetPrompt) -> bytes:
    """Fill in a prompt."""
    yard = exchange.front.yard
    arguments = params.arguments or {}

    def start(channel: Channel) -> Awaitable[Envelope]:
        return yard.prompt(params.name, arguments, caller=exchange.caller, channel=channel)

    answer = await _run(exchange, Work("prompts/get", params.name, encode_sorted(arguments), start), params.request_state)
    if isinstance(answer, bytes):
        return answer
    if answer.error is not None:
        raise _fault_of(answer, {"name": params.name}, answer.meta.call_id)
    return exchange.answers.messages(answer.data)


async def _run(exchange: RequestContext, work: Work, state: str | None) -> Envelope | bytes:
    """Return what came of it, or the question as a whole result."""
    if not exchange.may_ask and (state is None or not exchange.answers.version.modern):
        return await work.start(exchange.channel())
    outcome = await _parked(exchange, work, state)
    return exchange.answers.input_required(outcome.asks, outcome.state) if isinstance(outcome, Asked) else outcome


def _fault_of(envelope: Envelope, data: dict[str, Any], call_id: str) -> Fault:
    """Return a failure of what is no tool: such answers have no place for an envelope, so the fault carries it."""
    error = envelope.error
    assert error is not None  # noqa: S101 - asked only of failures
    if missing := _missing(error):
        return Fault(MISSING_CAPABILITY, error.message, {"requiredCapabilities": missing})
    code = INVALID_PARAMS if error.code in {"not_found", "invalid_input"} else INTERNAL
    return Fault(code, error.message, {**data, "error": error, **({"call_id": call_id} if call_id else {})})


async def complete(exchange: RequestContext, params: given.Complete) -> bytes:
    """Complete what was typed so far."""
    known = {"ref/prompt": ("prompt", params.ref.name), "ref/resource": ("resource", params.ref.uri)}.get(params.ref.type)
    if known is None or known[1] is None:
        raise Fault(INVALID_PARAMS, "The 'ref' must be a 'ref/prompt' with a name or a 'ref/resource' with a URI.")
    kind = cast("Any", known[0])
    context = {} if params.context is None else params.context.arguments
    try:
        found = await exchange.front.yard.dispatcher.complete(
            kind, known[1], argument=params.argument.name, value=params.argument.value, settled=context, caller=exchange.caller
        )
    except ToolError as error:
        raise _fault_of(Envelope.fail(error), {"argument": params.argument.name}, str(error.details.get("call_id", ""))) from error
    values = list(found)[:_COMPLETIONS]
    told = {"values": values, "total": len(found), "hasMore": len(found) > len(values)}
    return exchange.answers.complete(encode({"completion": told}))


async def discover(exchange: RequestContext, _: Bare) -> bytes:
    """Tell a client of the newer era what there is."""
    front = exchange.front
    profile = front.profile_of(exchange.caller)
    return exchange.answers.discover(front.capabilities(profile), front.instructions(profile))


async def ping(exchange: RequestContext, _: Bare) -> bytes:
    """Say that somebody is there."""
    return exchange.answers.empty


def _lister(kind: Kind) -> Reply:
    async def listed(exchange: RequestContext, params: given.Page) -> bytes:
        front = exchange.front
        return front.lists.page(kind, front.profile_of(exchange.caller), exchange.answers, params.cursor)

    return listed


_REPLIES: Final[dict[str, tuple[type[msgspec.Struct], Reply]]] = {
    "tools/call": (given.CallTool, call_tool),
    "tools/list": (given.Page, _lister("tools")),
    "resources/list": (given.Page, _lister("resources")),
    "resources/templates/list": (given.Page, _lister("templates")),
    "resources/read": (given.ReadResource, read_resource),
    "prompts/list": (given.Page, _lister("prompts")),
    "prompts/get": (given.GetPrompt, get_prompt),
    "completion/complete": (given.Complete, complete),
    "server/discover": (Bare, discover),
    "subscriptions/listen": (given.SubscriptionsListen, listen),
    "ping": (Bare, ping),
}

_DECODE: Final[dict[str, Callable[[bytes], Any]]] = {}
"""By method what reads its params, once it was needed."""


def params_of(method: str, raw: msgspec.Raw) -> Any:
    """Return the params of a request as its method takes them, or of a method that is not here as nothing but `_meta`.

    Raises:
        Fault: They are something else.
    """
    decode = _DECODE.get(method)
    if decode is None:
        known = _REPLIES.get(method)
        decode = given.params_decoder(Bare if known is None else known[0])
        if known is not None:
            _DECODE[method] = decode
    try:
        return decode(raw or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise given.invalid_params(error) from error


def name_of(params: object) -> str | None:
    """Return the name or URI that the params are about, if they are about one."""
    return getattr(params, "name", None) or getattr(params, "uri", None)


def reply(exchange: RequestContext, method: str, params: Any) -> Awaitable[bytes]:
    """Return the result of a request, to be awaited.

    Raises:
        Fault: There is no such method in the client's version.
    """
    known = _REPLIES.get(method)
    if known is None or method not in exchange.answers.version.methods:
        raise Fault(METHOD_NOT_FOUND, f"There is no method '{method}' here.")
    if getattr(params, "input_responses", None):
        exchange.responses = params.input_responses
    return known[1](exchange, params)


_METHODS: Final = frozenset({"server/discover", "subscriptions/listen"})
_log = logging.getLogger(__name__)


def is_modern(method: str | None, params: Any) -> bool:
    """Return whether a request is of the newer era: it says so, or asks for what only that has."""
    meta = params.meta
    return method in _METHODS or (meta is not None and PROTOCOL_VERSION in meta)


def open_request(
    front: ServerContext, message: Message | CallMessage, params: Any, caller: Caller, *, notify: Notify | None, headers: Mapping[str, str]
) -> RequestContext:
    """Return the exchange that a request of the newer era is.

    Raises:
        Fault: It does not say what it must.
    """
    meta: dict[str, Any] | None = params.meta
    version = version_of(meta)
    assert meta is not None  # noqa: S101 - 'version_of' has seen it
    exchange = RequestContext(
        front=front,
        id=message.id,  # pyright: ignore[reportArgumentType] - a request has one
        answers=front.answers(version),
        caller=front.caller(caller, meta.get(CLIENT)),
        capabilities=meta[CAPABILITIES],
        meta=meta,
        headers=headers,
        notify=notify,
    )
    if LOG_LEVEL in meta:
        exchange.log_level = _level(meta[LOG_LEVEL])
    return exchange


async def answer(exchange: RequestContext, method: str, params: Any) -> bytes:
    """Return the whole answer to a request whose exchange is open."""
    try:
        result = await reply(exchange, method, params)
    except Fault:
        raise
    except Exception:  # noqa: BLE001 - a defect of ours must not end the conversation
        _log.exception("request_failed method=%s", method)
        return encode_fault(exchange.id, Fault(INTERNAL, "The server could not answer; the reason is in its log."))
    return encode_result(exchange.id, result)


def _level(level: object) -> int:
    if level not in LEVELS:
        raise Fault(INVALID_PARAMS, f"There is no level {level!r}. Known: {', '.join(LEVELS)}.")
    return LEVELS.index(str(level))
