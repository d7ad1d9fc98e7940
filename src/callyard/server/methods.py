"""The methods of MCP: the handler of each, and the one loop from a decoded request to an encoded response."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Caller, CallRequest
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.tracing import RequestFacts
from callyard.jobs.job import TASKS
from callyard.model.apps import APP_SCHEME, served_as, served_tool
from callyard.model.envelope import Envelope, Failure, encode, estimate_tokens
from callyard.model.errors import ToolError
from callyard.server.context import CLIENT_CAPABILITIES, Notify, RequestContext, ServerContext, check_progress_token
from callyard.server.lists import Kind
from callyard.server.notifications import listen
from callyard.server.tasks import REQUIRED, cancel_task, get_task, started_job_id, task_created, update_task
from callyard.state.store import StoreUnavailableError
from callyard.wire import params as wire
from callyard.wire.messages import (
    INTERNAL,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    Fault,
    Id,
    Message,
    encode_fault,
    encode_result,
)
from callyard.wire.params import CAPABILITIES, CLIENT, LEVELS, LOG_LEVEL, PROTOCOL_VERSION, version_of

if TYPE_CHECKING:
    from callyard.server.session import ServerSession

__all__ = [
    "SESSION_METHODS",
    "Handler",
    "NoParams",
    "answer",
    "encode_error",
    "is_modern",
    "level_index",
    "name_of",
    "open_request",
    "params_of",
    "params_of_message",
]


SESSION_METHODS: Final = frozenset({"initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""The methods whose handlers need a session."""
_MODERN_METHODS: Final = frozenset({"server/discover", "subscriptions/listen"})
_NAMED_METHODS: Final = frozenset({"tools/call", "prompts/get"})
"""The methods whose spans have a name; a URI may hold arguments."""
_NULL: Final = msgspec.Raw(b"null")
_MAX_COMPLETIONS: Final = 100
_log = logging.getLogger(__name__)
Handler = Callable[[RequestContext, Any], Awaitable[bytes]]


async def answer(context: RequestContext, request_id: Id, method: str, params: Any) -> bytes:
    """Return the encoded response to a request of either era, on every transport, in a span if the yard is traced."""
    tracing = context.server.yard.tracing
    if tracing is None:
        return await _answer(context, request_id, method, params)
    facts = RequestFacts(
        method=method if method in _METHODS else "",
        name=name_of(params) if method in _NAMED_METHODS else None,
        id=request_id,
        version=context.encoder.version.name,
        transport=context.server.channel,
        session=context.connection_id if context.session is not None and not context.encoder.version.modern else None,
        meta=context.meta,
        around=context.transport_trace,
    )
    with tracing.serve(facts) as context.span:
        return await _answer(context, request_id, method, params)


async def _answer(context: RequestContext, request_id: Id, method: str, params: Any) -> bytes:
    """Return the encoded response; a `Fault` or a defect becomes a JSON-RPC error, and a fault is noted."""
    try:
        handle = _handler_of(context, method)
        context.input_responses = getattr(params, "input_responses", None) or {}
        return encode_result(request_id, await handle(context, params))
    except Exception as error:  # noqa: BLE001 - a defect of ours must not end the session
        if isinstance(error, Fault):
            context.fault = error
        if context.span is not None:
            context.span.fail(INTERNAL if context.fault is None else context.fault.code)
        return encode_error(request_id, method, error)


def _handler_of(context: RequestContext, method: str) -> Handler:
    if method not in _METHODS or method not in context.encoder.version.methods:
        raise Fault(METHOD_NOT_FOUND, f"There is no method '{method}' here.")
    return _METHODS[method][1]


def encode_error(request_id: Id, method: str, error: Exception) -> bytes:
    """Return the encoded response to a request that failed."""
    if isinstance(error, Fault):
        return encode_fault(request_id, error)
    if isinstance(error, StoreUnavailableError):
        failed = store_unavailable(error, may_have_run=False)
        return encode_fault(request_id, Fault(INTERNAL, failed.message, {"error": Envelope.fail(failed).error}))
    log_exception(_log, "request_failed method=%s", method, error=error)
    return encode_fault(request_id, Fault(INTERNAL, "The server could not answer; the reason is in its log."))


def is_modern(method: str | None, params: Any) -> bool:
    """Return whether a request is of the 2026-07-28 era: its `_meta` says so, or only that era has its method."""
    meta = params.meta
    return method in _MODERN_METHODS or (meta is not None and PROTOCOL_VERSION in meta)


def open_request(
    server: ServerContext,
    request_id: Id,
    params: Any,
    *,
    caller: Caller,
    notify: Notify | None,
    headers: Mapping[str, str],
) -> RequestContext:
    """Return the context of a request of the 2026-07-28 era.

    Raises:
        Fault: Its `_meta` is incomplete or wrong.
    """
    meta: dict[str, Any] | None = params.meta
    version = version_of(meta)
    assert meta is not None  # noqa: S101 - 'version_of' has seen it
    context = RequestContext(
        server=server,
        id=request_id,
        encoder=server.encoders[version.name],
        caller=server.caller(caller, meta.get(CLIENT)),
        capabilities=meta[CAPABILITIES],
        meta=meta,
        headers=headers,
        notify=notify,
    )
    if LOG_LEVEL in meta:
        context.log_level = level_index(meta[LOG_LEVEL])
    return context


def level_index(level: object) -> int:
    """Return the rank of a log level.

    Raises:
        Fault: There is no such level.
    """
    if level not in LEVELS:
        raise Fault(INVALID_PARAMS, f"There is no level {level!r}. Known: {', '.join(LEVELS)}.")
    return LEVELS.index(str(level))


async def call_tool(context: RequestContext, params: wire.CallTool) -> bytes:
    """Call a tool; a call that was answered in place of its tool becomes a task, if the client takes tasks."""
    raw = None if params.arguments == _NULL else params.arguments
    name = params.name
    if context.server.yard.registry.get(name) is None and context.shows_apps:  # an App knows its upstream's names
        name = served_tool(name, context.server.app_tools(context.server.profile_of(context.caller)))
    outcome = await _run(context, CallRequest(name, raw, context.caller), params.request_state)
    if isinstance(outcome, bytes):
        return outcome
    job_id = started_job_id(outcome) if outcome.held and context.takes_tasks else None
    return _encode_outcome(context, outcome) if job_id is None else await task_created(context, job_id)


def _encode_outcome(context: RequestContext, outcome: Envelope) -> bytes:
    """Return the outcome of a call as a result, in the shape of its tool.

    Raises:
        Fault: The client lacks a capability that the call needs, and its era has a fault for that.
    """
    if outcome.error is not None:
        _check_capabilities(context, outcome.error)
    profile, spec = context.server.profile_of(context.caller), outcome.shortened_of
    is_plain = outcome.has_plain_shape and outcome.error is None
    if is_plain and spec is not None and context.server.lists.shows_schema(spec, profile):
        return context.encoder.envelope(_too_large(outcome))
    return context.encoder.outcome(outcome)


def _too_large(outcome: Envelope) -> Envelope:
    """Return the failure in place of a plain result that became a handle, which would not fit the listed schema."""
    name: str = outcome.shortened_of.name
    message = f"The result of '{name}' is too long; it is kept under the handle."
    failed = Envelope.fail(ToolError("too_large", message, may_have_run=True, **outcome.data), tool_id=name)
    failed.meta = msgspec.structs.replace(outcome.meta, estimated_tokens=estimate_tokens(None, failed.error))
    return failed


async def _run_asking(context: RequestContext, request: CallRequest, state: str | None) -> Envelope | bytes:
    """Return the outcome of a call, or its questions as an encoded result."""
    check_progress_token(context.meta.get("progressToken"))  # before a waiting call continues with it
    server = context.server
    try:
        outcome = await server.input_required.run(request, context, state)
    except ToolError as error:
        return server.yard.dispatcher.refuse(request.name, error, caller=context.caller, channel=server.default_channel)
    return outcome if isinstance(outcome, Envelope) else context.encoder.input_required(outcome.asks, outcome.state)


def _check_capabilities(context: RequestContext, error: Failure) -> None:
    """Raise the protocol error of a call that failed because the client lacks a capability.

    It is for the 2026-07-28 era, and for tasks of every era.
    """
    if error.code == "not_supported" and error.details.get("capabilities") == [TASKS]:
        raise Fault(MISSING_CAPABILITY, error.message, {"requiredCapabilities": REQUIRED})
    if error.code != "not_supported" or not context.encoder.version.modern:
        return
    missing = _missing_capabilities(error)
    if missing and not any(_has(context.capabilities, name, modes) for name, modes in missing.items()):
        raise Fault(MISSING_CAPABILITY, error.message, {"requiredCapabilities": missing})


def _missing_capabilities(error: Failure) -> dict[str, dict[str, Any]]:
    """Return the client capabilities that a failure names; a tool may use the same key for something else."""
    listed: object = error.details.get("capabilities") if error.code == "not_supported" else None
    names = cast("list[object]", listed) if isinstance(listed, list | tuple) else []
    parts = [name.partition(".") for name in names if isinstance(name, str)]
    return {name: {mode: {}} if mode else {} for name, _, mode in parts if name in CLIENT_CAPABILITIES}


def _has(capabilities: Mapping[str, Any], name: str, modes: Mapping[str, Any]) -> bool:
    return name in capabilities and all(mode in capabilities[name] for mode in modes)


async def read_resource(context: RequestContext, params: wire.ReadResource) -> bytes:
    """Read a resource."""
    uri = params.uri
    if uri.startswith(APP_SCHEME):
        served = context.server.app_uris(context.server.profile_of(context.caller))
        uri = uri if uri in served else served_as(uri, served)
    outcome = await _run(context, CallRequest(uri, None, context.caller, "resource"), params.request_state)
    if isinstance(outcome, bytes):
        return outcome
    if outcome.error is not None:
        raise _fault_of(outcome, {"uri": params.uri}, outcome.meta.call_id)
    return context.encoder.complete(encode(outcome.data), cacheable=True)


async def get_prompt(context: RequestContext, params: wire.GetPrompt) -> bytes:
    """Return the messages of a prompt."""
    outcome = await _run(
        context, CallRequest(params.name, params.arguments or {}, context.caller, "prompt"), params.request_state
    )
    if isinstance(outcome, bytes):
        return outcome
    if outcome.error is not None:
        raise _fault_of(outcome, {"name": params.name}, outcome.meta.call_id)
    return context.encoder.messages(outcome.data)


async def _run(context: RequestContext, request: CallRequest, state: str | None) -> Envelope | bytes:
    """Return the outcome, or the questions as an encoded result."""
    outcome: Envelope | bytes
    if not context.may_ask and (state is None or not context.encoder.version.modern):
        outcome = await context.server.yard.dispatcher.dispatch(request, channel=context.channel())
    else:
        outcome = await _run_asking(context, request, state)
    if context.span is not None and isinstance(outcome, Envelope):
        context.span.note(outcome)
    return outcome


def _fault_of(envelope: Envelope, data: dict[str, Any], call_id: str) -> Fault:
    """Return the failure of a resource or a prompt as a fault, because their results cannot carry an envelope."""
    error = envelope.error
    assert error is not None  # noqa: S101 - called for failures only
    if missing := _missing_capabilities(error):
        return Fault(MISSING_CAPABILITY, error.message, {"requiredCapabilities": missing})
    code = INVALID_PARAMS if error.code in {"not_found", "invalid_input"} else INTERNAL
    return Fault(code, error.message, {**data, "error": error, **({"call_id": call_id} if call_id else {})})


async def complete(context: RequestContext, params: wire.Complete) -> bytes:
    """Complete an argument of a prompt or of a resource template."""
    references = {"ref/prompt": ("prompt", params.ref.name), "ref/resource": ("resource", params.ref.uri)}
    kind, name = references.get(params.ref.type, ("", None))
    if name is None:
        raise Fault(INVALID_PARAMS, "The 'ref' must be a 'ref/prompt' with a name or a 'ref/resource' with a URI.")
    try:
        completions = await context.server.yard.dispatcher.complete(
            cast("Any", kind),
            name,
            argument=params.argument.name,
            value=params.argument.value,
            settled={} if params.context is None else params.context.arguments,
            caller=context.caller,
        )
    except ToolError as error:
        raise _fault_of(
            Envelope.fail(error), {"argument": params.argument.name}, str(error.details.get("call_id", ""))
        ) from error
    values = list(completions)[:_MAX_COMPLETIONS]
    completion = {"values": values, "total": len(completions), "hasMore": len(completions) > len(values)}
    return context.encoder.complete(encode({"completion": completion}))


async def discover(context: RequestContext, _: "NoParams") -> bytes:
    """Return the server's capabilities and instructions."""
    server = context.server
    profile = server.profile_of(context.caller)
    return context.encoder.discover(server.capabilities(profile), server.yard.instructions_for(profile, whole=True))


async def ping(context: RequestContext, _: "NoParams") -> bytes:
    """Return an empty result."""
    return context.encoder.empty


async def _list_page(kind: Kind, context: RequestContext, params: wire.Page) -> bytes:
    server = context.server
    profile, client = server.profile_of(context.caller), context.caller.client
    return server.lists.page(kind, profile, context.encoder, params.cursor, client=client)


def _session_of(context: RequestContext) -> "ServerSession":
    assert context.session is not None  # noqa: S101 - every transport gives one to the requests of `SESSION_METHODS`
    return context.session


async def initialize(context: RequestContext, params: wire.Initialize) -> bytes:
    """Begin a session."""
    if not params.protocol_version:
        raise Fault(INVALID_PARAMS, "The params of 'initialize' lack the 'protocolVersion'.")
    return _session_of(context).initialize(params)


async def set_level(context: RequestContext, params: wire.SetLevel) -> bytes:
    """Set the lowest level of log messages that the session gets."""
    _session_of(context).set_level(params.level)
    return context.encoder.empty


async def subscribe(context: RequestContext, params: wire.ReadResource) -> bytes:
    """Subscribe the session to a resource."""
    await _session_of(context).subscribe(params.uri)
    return context.encoder.empty


async def unsubscribe(context: RequestContext, params: wire.ReadResource) -> bytes:
    """Unsubscribe the session from a resource."""
    _session_of(context).unsubscribe(params.uri)
    return context.encoder.empty


class NoParams(msgspec.Struct, gc=False):
    """The params of methods that take none, and of unknown methods."""

    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_METHODS: Final[dict[str, tuple[type[msgspec.Struct], Handler]]] = {
    "tools/call": (wire.CallTool, call_tool),
    "tools/list": (wire.Page, partial(_list_page, "tools")),
    "resources/list": (wire.Page, partial(_list_page, "resources")),
    "resources/templates/list": (wire.Page, partial(_list_page, "templates")),
    "resources/read": (wire.ReadResource, read_resource),
    "resources/subscribe": (wire.ReadResource, subscribe),
    "resources/unsubscribe": (wire.ReadResource, unsubscribe),
    "prompts/list": (wire.Page, partial(_list_page, "prompts")),
    "prompts/get": (wire.GetPrompt, get_prompt),
    "completion/complete": (wire.Complete, complete),
    "server/discover": (NoParams, discover),
    "subscriptions/listen": (wire.SubscriptionsListen, listen),
    "initialize": (wire.Initialize, initialize),
    "logging/setLevel": (wire.SetLevel, set_level),
    "ping": (NoParams, ping),
    "tasks/get": (wire.TaskParams, get_task),
    "tasks/update": (wire.UpdateTask, update_task),
    "tasks/cancel": (wire.TaskParams, cancel_task),
}


def params_of(method: str, raw: msgspec.Raw) -> Any:
    """Return the decoded params of a request; for an unknown method only `_meta`.

    Raises:
        Fault: They do not fit the method.
    """
    kind, _ = _METHODS.get(method, (NoParams, None))
    try:
        return wire.decode_params(raw, kind)
    except Fault:
        if method in SESSION_METHODS:  # the 2026-07-28 era lacks them, and says that first, whatever their params are
            with suppress(Fault):
                params = wire.decode_params(raw, NoParams)
                if is_modern(method, params):
                    return params
        raise


def params_of_message(message: Message) -> Any:
    """Return the decoded params of a request.

    Raises:
        Fault: They do not fit the method.
    """
    return params_of(str(message.method), message.params)


def name_of(params: object) -> str | None:
    """Return the tool or prompt name, the URI or the task in the params."""
    return getattr(params, "name", None) or getattr(params, "uri", None) or getattr(params, "task_id", None)
