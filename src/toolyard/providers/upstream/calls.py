"""Calling: the tools, resources and prompts of an upstream as ours, each with what runs it over there."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec

from toolyard.dispatch.call import Arguments, Call, Channel
from toolyard.dispatch.progress import Progress
from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.tool import Check, Complete, InvalidArgumentsError, Tool, decode_arguments
from toolyard.model.content import Foreign
from toolyard.model.elicitation import CLIENT_METHODS, ClientRequest, unanswerable
from toolyard.model.envelope import Envelope, Failure, Passed
from toolyard.model.errors import ToolError
from toolyard.model.schema import Schema, SchemaValidator
from toolyard.model.spec import PromptSpec, ResourceSpec
from toolyard.model.uri_template import variables_of
from toolyard.providers.upstream.catalogue import foreign_uri, with_our_uris
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.session import ALONE, CallContext
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.supervisor import Supervisor
from toolyard.providers.upstream.translate import ForeignTool, prefix_of
from toolyard.wire.headers import param_headers, param_names
from toolyard.wire.messages import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, Fault, check_depth
from toolyard.wire.params import LOG_LEVEL, NOTHING, unreserved

__all__ = ["Answer", "Calls", "asks_of", "failure_of", "fault_of", "no_result", "passed_of", "read_answer", "refusal_of"]


_UNHEARD: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
_SERVER_ERROR: Final = 500
_MESSAGE_CHARACTERS: Final = 2000
_DETAILS: Final = 20_000


def failure_of(name: str, error: LinkError, settings: UpstreamSettings) -> ToolError:
    """Return the failure that a link's trouble is."""
    details: dict[str, Any] = {"upstream": name}
    if error.status is not None:
        details["status"] = error.status
    if error.text:
        details["text"] = error.text[:_DETAILS]
    if error.retry_after is not None:
        details["retry_after_ms"] = round(error.retry_after * 1000)
    if error.trouble == "unauthenticated":
        return _not_let_in(name, error, settings, details)
    if error.trouble == "rate_limited":
        return ToolError("rate_limited", error.message, blame="upstream", **details)
    if error.trouble == "refused":
        ran = error.sent and (error.status or 0) >= _SERVER_ERROR
        return ToolError("upstream_error", error.message, may_have_run=ran, **details)
    return ToolError("upstream_unavailable", error.message, may_have_run=error.sent, **details)


def _not_let_in(name: str, error: LinkError, settings: UpstreamSettings, details: dict[str, Any]) -> ToolError:
    """Return that an upstream wants other credentials, and who can give it some, and how."""
    if error.of_caller:
        hint = f"The 'Authorization' that came with the request is passed on to '{name}': send one that it accepts."
        return ToolError("unauthenticated", error.message, hint=hint, blame="caller", **details)
    command, actions = f"toolyard login {name}", [f"toolyard login {name}"]
    setting = f"'headers' of the upstream '{name}'"
    if settings.authorizes:
        hint, actions = f"Ask whoever runs the yard to change 'Authorization' in {setting}.", []
    elif settings.forward_headers:
        named = ", ".join(f"'{header}'" for header in settings.forward_headers)
        hint = (
            f"{named} of the caller goes with calls alone. For the rest the yard needs credentials of its own: '{command}', or {setting}."
        )
    else:
        hint = f"Ask whoever runs the yard to sign in: '{command}'."
    return ToolError("unauthenticated", error.message, hint=hint, next_actions=actions, blame="upstream", **details)


def fault_of(name: str, fault: Fault) -> ToolError:
    """Return the failure that an upstream's JSON-RPC error is, with its own code and words."""
    details: dict[str, Any] = {"upstream": name, "upstream_code": fault.code, "text": fault.message[:_DETAILS]}
    if fault.data is not None:
        details["upstream_data"] = fault.data
    said = fault.message.strip()[:_MESSAGE_CHARACTERS].removesuffix(".") or "no words"
    if fault.code == MISSING_CAPABILITY:
        return ToolError("not_supported", f"{said}.", capabilities=_required(fault.data), **details)
    return ToolError("upstream_error", f"'{name}' answered with an error: {said}.", may_have_run=fault.code not in _UNHEARD, **details)


def no_result(name: str, error: Exception) -> ToolError:
    """Return the failure of an upstream that answered with what is no answer to the request."""
    return ToolError("upstream_error", f"'{name}' answered with something that is no result: {error}.", upstream=name)


def _required(data: object) -> list[str]:
    required = cast("dict[str, object]", data).get("requiredCapabilities") if isinstance(data, dict) else None
    return list(cast("dict[str, object]", required)) if isinstance(required, dict) else []


def refusal_of(name: str, text: str, structured: object) -> ToolError:
    """Return the failure that an upstream's tool said its result is, with its own words; another yard's keeps its code."""
    told = _envelope_of(structured)
    if told is not None:
        error = ToolError(told.code, told.message, hint=told.hint, next_actions=told.next_actions, blame=told.blame)
        error.may_have_run = told.may_have_run
        error.details = {"upstream": name, **told.details}
        return error
    details: dict[str, Any] = {"upstream": name, "text": text[:_DETAILS]}
    if structured is not None:
        details["structured"] = structured
    return ToolError("upstream_error", text.strip()[:_MESSAGE_CHARACTERS] or f"'{name}' says that it failed, and no more.", **details)


def _envelope_of(structured: object) -> Failure | None:
    """Return why a call of another yard failed, if this is the answer of one."""
    try:
        return msgspec.convert(structured, Envelope).error if isinstance(structured, dict) else None
    except msgspec.ValidationError:
        return None


_NOTHING: Final = msgspec.Raw(b"")
_NULL: Final = b"null"
_METHOD_CHARACTERS: Final = 200


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """What an upstream answered a call, a reading or a prompt with; what is passed on stays JSON."""

    content: msgspec.Raw = msgspec.Raw(b"[]")
    structured_content: msgspec.Raw = _NOTHING
    is_error: bool | None = None
    result_type: str | None = None
    input_requests: dict[str, dict[str, Any]] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_decode: Final = msgspec.json.Decoder(Answer).decode
_decode_blocks: Final = msgspec.json.Decoder(list[Any]).decode


def read_answer(name: str, result: msgspec.Raw) -> Answer:
    """Return an answer as it was meant.

    Raises:
        ToolError: `upstream_error`, because it is none.
    """
    try:
        return _decode(result)
    except msgspec.DecodeError as error:
        raise no_result(name, error) from error


def asks_of(name: str, answer: Answer) -> dict[str, ClientRequest] | None:
    """Return what an upstream wants to know first, or nothing if it is done.

    Raises:
        ToolError: `upstream_error`, because it asks what nobody knows how to ask.
    """
    if answer.result_type != "input_required":
        return None
    asks: dict[str, ClientRequest] = {}
    for key, wanted in (answer.input_requests or {}).items():
        method: Any = wanted.get("method")
        params: Any = wanted.get("params") or {}
        if str(method) not in CLIENT_METHODS or not isinstance(params, dict):
            raise ToolError(
                "upstream_error", f"'{name}' asks for '{str(method)[:_METHOD_CHARACTERS]}', which is not known here.", upstream=name
            )
        asks[key] = ClientRequest(method, cast("dict[str, Any]", params))
    return asks


def passed_of(name: str, answer: Answer, prefix: str) -> Passed:
    """Return a good answer, to be passed on as it is.

    Raises:
        ToolError: `upstream_error`, in the words of the tool, because it says that it failed.
    """
    raw: bytes | msgspec.Raw = answer.content if answer.content and bytes(answer.content) != _NULL else b"[]"
    has_structured = bool(answer.structured_content) and bytes(answer.structured_content) != _NULL
    try:
        told = _decode_blocks(raw)
        structured = msgspec.json.decode(answer.structured_content) if has_structured else None
    except msgspec.DecodeError as error:
        raise no_result(name, error) from error
    blocks = [cast("dict[str, Any]", block) for block in told if isinstance(block, dict)]
    if (prefix and b'"uri"' in bytes(raw)) or len(blocks) < len(told):  # what is no block at all no client could read
        blocks = with_our_uris(prefix, blocks)
        raw = msgspec.json.encode(blocks)
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.is_error:
        raise refusal_of(name, "\n".join(texts), structured)
    others = tuple(Foreign(block) for block in blocks if block.get("type") != "text")
    parts = (b'{"content":', raw, b',"structuredContent":' if has_structured else b"", answer.structured_content, b"}")
    return Passed(
        structured if has_structured else _data(blocks, texts, others),
        b"".join(parts if has_structured else (*parts[:2], b"}")),
        max(len(answer.structured_content), sum(map(len, texts))),
        others,
        unreserved(answer.meta) if answer.meta else {},
        b"" if not has_structured or isinstance(structured, dict) else _unstructured(raw, blocks, answer.structured_content),
    )


def _unstructured(raw: bytes | msgspec.Raw, blocks: list[dict[str, Any]], structured: msgspec.Raw) -> bytes:
    """Return an answer as content alone: in the older era only an object may be structured content."""
    told = raw if blocks else msgspec.json.encode([{"type": "text", "text": bytes(structured).decode()}])
    return b'{"content":%b}' % bytes(told)


def _data(blocks: list[dict[str, Any]], texts: list[str], others: tuple[Foreign, ...]) -> Any:
    """Return what an envelope says of content that has no structure: one text, read as JSON if it is; or what each block is."""
    if not blocks:
        return None
    if len(texts) == 1 and not others:
        return _parsed(texts[0])
    return [block if block.get("type") == "text" else Foreign(block).describe() for block in blocks]


def _parsed(text: str) -> Any:
    if text[:1] not in {"{", "["}:
        return text
    try:
        check_depth(text.encode())
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, Fault):
        return text


T = TypeVar("T", bound=msgspec.Struct)
_ROUNDS: Final = 20
"""How often an upstream may ask something before it answers."""
_ASKABLE: Final = frozenset({"elicitation", "sampling", "roots"})
_MISFIT: Final = "The upstream answered what its own output schema forbids."


class _Completion(msgspec.Struct):
    values: list[str] = []


class _Completed(msgspec.Struct):
    completion: _Completion = msgspec.field(default_factory=_Completion)


class _Contents(msgspec.Struct):
    contents: list[dict[str, Any]] | None = None


class _Made(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    description: str | None = None


class Calls:
    """Makes what an upstream offers callable."""

    def __init__(self, name: str, settings: UpstreamSettings, supervisor: Supervisor) -> None:
        self._name = name
        self._settings = settings
        self._prefix = prefix_of(name, settings)
        self._supervisor = supervisor
        self._forwarded = tuple(header.lower() for header in settings.forward_headers)
        self._over_http = settings.carrier == "http"
        self._checks_outputs = settings.outputs == "warn"

    def tool(self, foreign: ForeignTool) -> Tool:
        """Return a tool that runs over there."""
        spec = foreign.spec
        headers = param_names(foreign.schema) if self._over_http else {}
        output = SchemaValidator(spec.output_schema) if spec.output_schema is not None and self._checks_outputs else None

        async def handler(call: Call) -> Passed:
            arguments = {**call.arguments, **foreign.fixed} if foreign.fixed else call.arguments
            beside = param_headers(headers, arguments) if headers else {}
            params = {"name": foreign.own, "arguments": arguments}
            behalf = self._behalf(call, beside)
            _, answer = await self._answered(call, "tools/call", params, name=foreign.own, behalf=behalf)
            if answer.is_error and behalf.unasked:
                raise unanswerable(behalf.unasked, stateless=call.channel.stateless)
            passed = passed_of(self._name, answer, self._prefix)
            if output is not None and not output.fits(passed.data):
                call.warnings = (*call.warnings, _MISFIT)
            return passed

        return Tool(spec=spec, handler=handler, check=_check(spec.input_schema), may_return_none=True)

    def resource(self, spec: ResourceSpec, *, completes: bool) -> Resource:
        """Return a resource or a template that is read over there."""

        async def handler(call: Call) -> Envelope:
            uri = foreign_uri(self._prefix, call.name)
            result, _ = await self._answered(call, "resources/read", {"uri": uri}, name=uri, behalf=self._behalf(call))
            read = self._read(result, _Contents)
            return Envelope.ok({"contents": with_our_uris(self._prefix, read.contents or [])})

        reference = {"type": "ref/resource", "uri": foreign_uri(self._prefix, spec.uri)}
        return Resource.of(spec, handler, complete=self._completions(reference, variables_of(spec.uri)) if completes else None)

    def prompt(self, spec: PromptSpec, own: str, *, completes: bool) -> Prompt:
        """Return a prompt that is made over there."""

        async def handler(call: Call) -> Envelope:
            params = {"name": own, "arguments": call.arguments}
            result, _ = await self._answered(call, "prompts/get", params, name=own, behalf=self._behalf(call))
            made = self._read(result, _Made)
            messages = with_our_uris(self._prefix, made.messages or [])
            return Envelope.ok({"description": made.description or spec.description, "messages": messages})

        names = [argument.name for argument in spec.arguments]
        return Prompt.of(spec, handler, complete=self._completions({"type": "ref/prompt", "name": own}, names) if completes else None)

    def _completions(self, reference: Mapping[str, str], names: Sequence[str]) -> dict[str, Complete]:
        return {name: partial(self._complete, reference, name) for name in names}

    async def _complete(self, reference: Mapping[str, str], argument: str, value: str, settled: dict[str, str]) -> Sequence[str]:
        params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
        if settled:
            params["context"] = {"arguments": settled}
        try:
            result = await self._supervisor.request("completion/complete", params, name=None, behalf=ALONE, safe=True)
        except Fault as fault:
            raise fault_of(self._name, fault) from fault
        except LinkError as error:
            raise failure_of(self._name, error, self._settings) from error
        return self._read(result, _Completed).completion.values

    def _read(self, result: msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(result, type=kind)
        except msgspec.DecodeError as error:
            raise no_result(self._name, error) from error

    async def _answered(
        self, call: Call, method: str, params: dict[str, Any], *, name: str, behalf: CallContext
    ) -> tuple[msgspec.Raw, Answer]:
        """Return what came of a request, after all that the upstream wanted to know first was asked.

        Raises:
            ToolError: It failed, or there is no end to what it wants to know.
        """
        wanted = params
        for _ in range(_ROUNDS):
            result = await self._sent(call, method, wanted, name=name, behalf=behalf)
            answer = read_answer(self._name, result)
            asks = asks_of(self._name, answer)
            if asks is None:
                return result, answer
            wanted = {**params, "inputResponses": dict(await call.ask_all(asks)) if asks else {}}
            if answer.request_state is not None:
                wanted["requestState"] = answer.request_state
        raise ToolError("upstream_error", f"'{self._name}' asked {_ROUNDS} times before it answered.", upstream=self._name)

    async def _sent(self, call: Call, method: str, params: dict[str, Any], *, name: str, behalf: CallContext) -> msgspec.Raw:
        began = time.monotonic()
        try:
            return await self._supervisor.request(method, params, name=name, behalf=behalf, safe=call.spec.safe)
        except Fault as fault:
            raise fault_of(self._name, fault) from fault
        except LinkError as error:
            raise failure_of(self._name, error, self._settings) from error
        except asyncio.CancelledError:
            if call.stopped == "timeout":
                call.at_fault = "upstream"
                if _had_its_time(call):
                    self._supervisor.time_out(began)
            raise

    def _behalf(self, call: Call, headers: Mapping[str, str] = NOTHING) -> CallContext:
        """Return how the upstream reaches whoever calls; of his headers it gets only those that its settings name."""
        channel = call.channel
        call.may_have_run = False  # what is not sent yet has done nothing
        passed_on = {name: channel.forwarded[name] for name in self._forwarded if name in channel.forwarded}
        return CallContext(
            owner=f"{call.caller.owner}:{call.caller.client}:{channel.line}",  # two programs of one person are asked apart
            progress=None if channel.progress is None else partial(_tell, call),
            log=partial(_say, call),
            sent=partial(_note_sent, call),
            ask=None if channel.ask is None else call.ask_all,
            capabilities={name: {} for name in channel.capabilities & _ASKABLE} if channel.capabilities else {},
            meta=_beside(channel),
            headers={**passed_on, **headers} if passed_on or headers else {},
        )


def _check(schema: Schema) -> Check:
    """Return the check that a foreign schema says; defaults are left to the upstream, which knows them."""
    validator = SchemaValidator(schema)

    def check(text: bytes) -> Arguments:
        arguments = decode_arguments(text)
        if not validator.fits(arguments):
            raise InvalidArgumentsError(validator.issues(arguments))
        return arguments

    return check


def _had_its_time(call: Call) -> bool:
    """Return whether a call had the time that its tool has; one that a caller cut short tells nothing of the upstream."""
    return not call.seconds or 0 < (call.spec.timeout or 0) <= call.seconds


def _beside(channel: Channel) -> dict[str, Any]:
    """Return what is said beside the params: what came along, and that the client wants to be told what is logged."""
    wants = {LOG_LEVEL: "debug"} if channel.log is not None else {}
    return {**channel.meta, **channel.trace, **wants} if channel.meta or channel.trace or wants else wants


def _tell(call: Call, note: Progress) -> None:
    call.progress(note.done, note.total, note.text)


def _note_sent(call: Call) -> None:
    call.may_have_run = True


def _say(call: Call, level: str, text: str) -> None:
    call.log(level, text)
