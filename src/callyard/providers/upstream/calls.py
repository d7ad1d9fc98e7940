"""Calls to an upstream: its tools, resources and prompts with their handlers, and its answers and errors translated.

It sends every request through the supervisor, and does not know whether there is a connection.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec

from callyard.dispatch.call import Arguments, Call, Channel
from callyard.dispatch.progress import Progress
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.tool import Check, Complete, InvalidArgumentsError, Tool, decode_arguments
from callyard.model.content import MAX_BLOCKS, UpstreamBlock
from callyard.model.elicitation import CLIENT_METHODS, ClientRequest, unsupported_by_client
from callyard.model.envelope import Envelope, Failure, UpstreamResult
from callyard.model.errors import ToolError
from callyard.model.schema import Schema, SchemaValidator
from callyard.model.spec import PromptSpec, ResourceSpec
from callyard.model.uri_template import variables_of
from callyard.providers.upstream.catalogue import publish_uris, upstream_uri
from callyard.providers.upstream.health import more_command
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import NO_CALLER, CallContext
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.supervisor import Supervisor
from callyard.providers.upstream.translate import UpstreamTool, prefix_of
from callyard.wire.headers import param_headers, param_names
from callyard.wire.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, Fault, check_depth
from callyard.wire.params import EMPTY, LOG_LEVEL, custom_meta

__all__ = ["Answer", "Calls", "client_requests_of", "decode_answer", "link_failure_of", "result_of"]

T = TypeVar("T", bound=msgspec.Struct)
_NOT_RUN: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
"""JSON-RPC errors after which nothing can have run."""
_SERVER_ERROR: Final = 500
_MESSAGE_CHARACTERS: Final = 2000
_DETAIL_CHARACTERS: Final = 20_000
_METHOD_CHARACTERS: Final = 200
_NULL: Final = b"null"
_ROUNDS: Final = 20
"""How often an upstream may require input before it answers."""
_FORWARDED_CAPABILITIES: Final = frozenset({"elicitation", "sampling", "roots"})
_INVALID_OUTPUT: Final = "The upstream answered what its own output schema forbids."


def link_failure_of(name: str, error: LinkError, settings: UpstreamSettings) -> ToolError:
    """Return the failure for a link error."""
    wait_ms = None if error.retry_after is None else round(error.retry_after * 1000)
    optional = {"status": error.status, "text": error.text[:_DETAIL_CHARACTERS] or None, "retry_after_ms": wait_ms}
    details: dict[str, Any] = {"upstream": name, **{key: value for key, value in optional.items() if value is not None}}
    if error.kind == "unauthenticated":
        return _unauthenticated(name, error, settings, details)
    if error.kind == "rate_limited":
        return ToolError("rate_limited", error.message, blame="upstream", **details)
    if error.kind == "refused":
        ran = error.sent and (error.status or 0) >= _SERVER_ERROR
        return ToolError("upstream_error", error.message, may_have_run=ran, **details)
    actions = [more_command(name, settings.carrier)] if error.private else ()
    return ToolError("upstream_unavailable", error.message, may_have_run=error.sent, next_actions=actions, **details)


def _unauthenticated(name: str, error: LinkError, settings: UpstreamSettings, details: dict[str, Any]) -> ToolError:
    """Return `unauthenticated` with a hint that says who can provide credentials, and how."""
    if error.caller_credentials:
        hint = f"The 'Authorization' that came with the request is passed on to '{name}': send one that it accepts."
        return ToolError("unauthenticated", error.message, hint=hint, blame="caller", **details)
    command = f"callyard login {name}"
    actions = [command]
    setting = f"'headers' of the upstream '{name}'"
    if settings.authorizes:
        hint, actions = f"Ask whoever runs the yard to change 'Authorization' in {setting}.", []
    elif settings.forward_headers:
        headers = ", ".join(f"'{header}'" for header in settings.forward_headers)
        hint = f"{headers} of the caller goes with calls alone. For the rest the yard needs its own credentials: '{command}', or {setting}."
    else:
        hint = f"Ask whoever runs the yard to sign in: '{command}'."
    return ToolError("unauthenticated", error.message, hint=hint, next_actions=actions, blame="upstream", **details)


def _rpc_failure_of(name: str, fault: Fault) -> ToolError:
    """Return the failure for a JSON-RPC error, with its own code and text."""
    details: dict[str, Any] = {"upstream": name, "upstream_code": fault.code, "text": fault.message[:_DETAIL_CHARACTERS]}
    if fault.data is not None:
        details["upstream_data"] = fault.data
    text = fault.message.strip()[:_MESSAGE_CHARACTERS].removesuffix(".") or "no text"
    if fault.code == MISSING_CAPABILITY:
        required = cast("dict[str, object]", fault.data).get("requiredCapabilities") if isinstance(fault.data, dict) else None
        capabilities = list(cast("dict[str, object]", required)) if isinstance(required, dict) else []
        return ToolError("not_supported", f"{text}.", capabilities=capabilities, **details)
    return ToolError("upstream_error", f"'{name}' answered with an error: {text}.", may_have_run=fault.code not in _NOT_RUN, **details)


def _invalid_result(name: str, error: Exception) -> ToolError:
    """Return the failure for a result of the wrong shape."""
    return ToolError("upstream_error", f"'{name}' answered with an invalid result: {error}.", upstream=name)


def _tool_failure_of(name: str, text: str, structured: object) -> ToolError:
    """Return the failure that a tool reports in its result; a failure of another yard keeps its code."""
    failure = _failure_in(structured)
    if failure is not None:
        error = ToolError(failure.code, failure.message, hint=failure.hint, next_actions=failure.next_actions, blame=failure.blame)
        error.may_have_run = failure.may_have_run
        error.details = {"upstream": name, **failure.details}
        return error
    details: dict[str, Any] = {"upstream": name, "text": text[:_DETAIL_CHARACTERS]}
    if structured is not None:
        details["structured"] = structured
    return ToolError("upstream_error", text.strip()[:_MESSAGE_CHARACTERS] or f"'{name}' reports a failure without a text.", **details)


def _failure_in(structured: object) -> Failure | None:
    """Return the error of another yard's envelope, if this is one."""
    try:
        return msgspec.convert(structured, Envelope).error if isinstance(structured, dict) else None
    except msgspec.ValidationError:
        return None


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """The result of `tools/call`, `resources/read` or `prompts/get`; content stays JSON, because it is passed on as it is."""

    content: msgspec.Raw = msgspec.Raw(b"[]")
    structured_content: msgspec.Raw = msgspec.Raw(b"")
    is_error: bool | None = None
    result_type: str | None = None
    input_requests: dict[str, dict[str, Any]] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_decode: Final = msgspec.json.Decoder(Answer).decode
_decode_blocks: Final = msgspec.json.Decoder(list[Any]).decode
_count_blocks: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_MANY_BLOCK_BYTES: Final = 2 * MAX_BLOCKS
"""A list of so many blocks has at least as many bytes."""


def decode_answer(name: str, result: msgspec.Raw) -> Answer:
    """Decode a result.

    Raises:
        ToolError: `upstream_error`: it is of the wrong shape.
    """
    try:
        return _decode(result)
    except msgspec.DecodeError as error:
        raise _invalid_result(name, error) from error


def client_requests_of(name: str, answer: Answer) -> dict[str, ClientRequest] | None:
    """Return the input that an upstream requires first, or None if the answer is complete.

    Raises:
        ToolError: `upstream_error`: it requires an unknown method.
    """
    if answer.result_type != "input_required":
        return None
    requests: dict[str, ClientRequest] = {}
    for key, required in (answer.input_requests or {}).items():
        method: Any = required.get("method")
        params: Any = required.get("params") or {}
        if str(method) not in CLIENT_METHODS or not isinstance(params, dict):
            text = f"'{name}' asks for '{str(method)[:_METHOD_CHARACTERS]}', which is not known here."
            raise ToolError("upstream_error", text, upstream=name)
        requests[key] = ClientRequest(method, cast("dict[str, Any]", params))
    return requests


def result_of(name: str, answer: Answer, prefix: str) -> UpstreamResult:
    """Return a successful answer, to be passed on as it is.

    Raises:
        ToolError: The tool reports a failure, or the answer is invalid.
    """
    raw: bytes | msgspec.Raw = answer.content if answer.content and bytes(answer.content) != _NULL else b"[]"
    has_structured = bool(answer.structured_content) and bytes(answer.structured_content) != _NULL
    try:
        if len(raw) > _MANY_BLOCK_BYTES and len(_count_blocks(raw)) > MAX_BLOCKS:
            message = f"'{name}' answered with more than {MAX_BLOCKS} content blocks."
            raise ToolError("too_large", message, blame="upstream", may_have_run=True, limit=MAX_BLOCKS, upstream=name)
        listed = _decode_blocks(raw)
        structured = msgspec.json.decode(answer.structured_content) if has_structured else None
    except msgspec.DecodeError as error:
        raise _invalid_result(name, error) from error
    blocks = [cast("dict[str, Any]", block) for block in listed if isinstance(block, dict)]
    if (prefix and b'"uri"' in bytes(raw)) or len(blocks) < len(listed):  # clients cannot read what is no object
        blocks = publish_uris(prefix, blocks)
        raw = msgspec.json.encode(blocks)
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.is_error:
        raise _tool_failure_of(name, "\n".join(texts), structured)
    others = tuple(UpstreamBlock(block) for block in blocks if block.get("type") != "text")
    parts = (b'{"content":', raw, b',"structuredContent":', answer.structured_content, b"}")
    return UpstreamResult(
        structured if has_structured else _data_of(blocks, texts, others),
        b"".join(parts if has_structured else (*parts[:2], b"}")),
        max(len(answer.structured_content), sum(map(len, texts))),
        others,
        custom_meta(answer.meta) if answer.meta else {},
        handshake_result=b""
        if not has_structured or isinstance(structured, dict)
        else _content_alone(raw, blocks, answer.structured_content),
    )


def _content_alone(raw: bytes | msgspec.Raw, blocks: list[dict[str, Any]], structured: msgspec.Raw) -> bytes:
    """Return an answer without structured content, because before 2026-07-28 only an object may be structured content."""
    content = raw if blocks else msgspec.json.encode([{"type": "text", "text": bytes(structured).decode()}])
    return b'{"content":%b}' % bytes(content)


def _data_of(blocks: list[dict[str, Any]], texts: list[str], others: tuple[UpstreamBlock, ...]) -> Any:
    """Return the envelope's data for an answer without structured content: one text, decoded if it is JSON, or a list of blocks."""
    if not blocks:
        return None
    if len(texts) == 1 and not others:
        return _decoded_text(texts[0])
    return [block if block.get("type") == "text" else UpstreamBlock(block).describe() for block in blocks]


def _decoded_text(text: str) -> Any:
    if text[:1] not in {"{", "["}:
        return text
    try:
        check_depth(text.encode())
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, Fault):
        return text


class _Completion(msgspec.Struct):
    values: list[str] = []


class _CompleteResult(msgspec.Struct):
    completion: _Completion = msgspec.field(default_factory=_Completion)


class _ReadResult(msgspec.Struct):
    contents: list[dict[str, Any]] | None = None


class _PromptResult(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    description: str | None = None


class Calls:
    """Makes the tools, resources and prompts of an upstream callable."""

    def __init__(self, name: str, settings: UpstreamSettings, supervisor: Supervisor) -> None:
        self._name = name
        self._settings = settings
        self._prefix = prefix_of(name, settings)
        self._supervisor = supervisor
        self._forwarded = tuple(header.lower() for header in settings.forward_headers)
        self._over_http = settings.carrier == "http"
        self._checks_outputs = settings.outputs == "warn"

    def tool(self, tool: UpstreamTool) -> Tool:
        """Return a tool whose handler calls the upstream."""
        spec, name, fixed = tool.spec, tool.upstream_name, tool.fixed
        header_names = param_names(tool.schema) if self._over_http else {}
        output = SchemaValidator(spec.output_schema) if spec.output_schema is not None and self._checks_outputs else None

        async def handler(call: Call) -> UpstreamResult:
            arguments = {**call.arguments, **fixed} if fixed else call.arguments
            context = self._context(call, param_headers(header_names, arguments) if header_names else {})
            _, answer = await self._request(call, "tools/call", {"name": name, "arguments": arguments}, name=name, context=context)
            if answer.is_error and context.unsupported:
                raise unsupported_by_client(context.unsupported, stateless=call.channel.stateless)
            result = result_of(self._name, answer, self._prefix)
            if output is not None and not output.fits(result.data):
                call.warnings = (*call.warnings, _INVALID_OUTPUT)
            return result

        return Tool(spec=spec, handler=handler, check=_check(spec.input_schema), may_return_none=True)

    def resource(self, spec: ResourceSpec, *, completes: bool) -> Resource:
        """Return a resource or template whose handler reads from the upstream."""

        async def handler(call: Call) -> Envelope:
            uri = upstream_uri(self._prefix, call.name)
            result, _ = await self._request(call, "resources/read", {"uri": uri}, name=uri, context=self._context(call))
            read = self._decode(result, _ReadResult)
            return Envelope.ok({"contents": publish_uris(self._prefix, read.contents or [])})

        reference = {"type": "ref/resource", "uri": upstream_uri(self._prefix, spec.uri)}
        return Resource.of(spec, handler, complete=self._completions(reference, variables_of(spec.uri)) if completes else None)

    def prompt(self, spec: PromptSpec, name: str, *, completes: bool) -> Prompt:
        """Return a prompt whose handler gets it from the upstream, where it has this name."""

        async def handler(call: Call) -> Envelope:
            params = {"name": name, "arguments": call.arguments}
            result, _ = await self._request(call, "prompts/get", params, name=name, context=self._context(call))
            prompt = self._decode(result, _PromptResult)
            messages = publish_uris(self._prefix, prompt.messages or [])
            return Envelope.ok({"description": prompt.description or spec.description, "messages": messages})

        names = [argument.name for argument in spec.arguments]
        return Prompt.of(spec, handler, complete=self._completions({"type": "ref/prompt", "name": name}, names) if completes else None)

    def _completions(self, reference: Mapping[str, str], names: Sequence[str]) -> dict[str, Complete]:
        return {name: partial(self._complete, reference, name) for name in names}

    async def _complete(self, reference: Mapping[str, str], argument: str, value: str, chosen: dict[str, str]) -> Sequence[str]:
        params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
        if chosen:
            params["context"] = {"arguments": chosen}
        try:
            result = await self._supervisor.request("completion/complete", params, name=None, context=NO_CALLER, safe=True)
        except (Fault, LinkError) as error:
            raise self._failure_of(error) from error
        return self._decode(result, _CompleteResult).completion.values

    def _decode(self, result: msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(result, type=kind)
        except msgspec.DecodeError as error:
            raise _invalid_result(self._name, error) from error

    def _failure_of(self, error: Fault | LinkError) -> ToolError:
        if isinstance(error, Fault):
            return _rpc_failure_of(self._name, error)
        return link_failure_of(self._name, error, self._settings)

    async def _request(
        self, call: Call, method: str, params: dict[str, Any], *, name: str, context: CallContext
    ) -> tuple[msgspec.Raw, Answer]:
        """Return the result of a request, after the client gave all input that the upstream requires.

        Raises:
            ToolError: It failed, or requires input again and again.
        """
        current = params
        for _ in range(_ROUNDS):
            result = await self._send(call, method, current, name=name, context=context)
            answer = decode_answer(self._name, result)
            requests = client_requests_of(self._name, answer)
            if requests is None:
                return result, answer
            current = {**params, "inputResponses": dict(await call.ask_all(requests)) if requests else {}}
            if answer.request_state is not None:
                current["requestState"] = answer.request_state
        raise ToolError("upstream_error", f"'{self._name}' asked {_ROUNDS} times before it answered.", upstream=self._name)

    async def _send(self, call: Call, method: str, params: dict[str, Any], *, name: str, context: CallContext) -> msgspec.Raw:
        started = time.monotonic()
        try:
            return await self._supervisor.request(method, params, name=name, context=context, safe=call.spec.safe)
        except (Fault, LinkError) as error:
            raise self._failure_of(error) from error
        except asyncio.CancelledError:
            if call.stopped == "timeout":
                call.at_fault = "upstream"
                if _had_full_timeout(call):
                    self._supervisor.record_timeout(started)
            raise

    def _context(self, call: Call, headers: Mapping[str, str] = EMPTY) -> CallContext:
        """Return the context of a call's requests; of the caller's headers it has only those that the settings name."""
        channel = call.channel
        # The funnel set this when it entered the handler. Until the session sends the request (`sent`) nothing can have run over there,
        # and a call that fails before, such as while the upstream starts, may safely be repeated.
        call.may_have_run = False
        if channel.job_id and self._forwarded:
            message = f"'{call.spec.name}' passes on credentials of the request, which a job must not keep."
            raise ToolError("not_supported", message, hint="Call it directly, not in the background.")
        forwarded = {name: channel.forwarded[name] for name in self._forwarded if name in channel.forwarded}
        return CallContext(
            owner=f"{call.caller.owner}:{call.caller.client}:{channel.connection_id}",  # each program gets its own questions
            progress=None if channel.progress is None else partial(_send_progress, call),
            log=call.log,
            sent=partial(_mark_sent, call),
            ask=None if channel.ask is None else call.ask_all,
            capabilities={name: {} for name in channel.capabilities & _FORWARDED_CAPABILITIES} if channel.capabilities else {},
            meta=_meta_of(channel),
            headers={**forwarded, **headers} if forwarded or headers else {},
        )


def _check(schema: Schema) -> Check:
    """Return the check for an upstream's schema; it fills in no defaults, because the upstream does."""
    validator = SchemaValidator(schema)

    def check(text: bytes) -> Arguments:
        arguments = decode_arguments(text)
        if not validator.fits(arguments):
            raise InvalidArgumentsError(validator.issues(arguments))
        return arguments

    return check


def _had_full_timeout(call: Call) -> bool:
    """Return whether a call had its tool's whole timeout; one that the caller shortened says nothing about the upstream."""
    return not call.seconds or 0 < (call.spec.timeout or 0) <= call.seconds


def _meta_of(channel: Channel) -> dict[str, Any]:
    """Return the `_meta` entries of a request: the caller's own, the trace, and the log level if the client wants log messages."""
    level = {LOG_LEVEL: "debug"} if channel.log is not None else {}
    return {**channel.meta, **channel.trace, **level} if channel.meta or channel.trace or level else level


def _send_progress(call: Call, progress: Progress) -> None:
    call.progress(progress.done, progress.total, progress.text)


def _mark_sent(call: Call) -> None:
    call.may_have_run = True
