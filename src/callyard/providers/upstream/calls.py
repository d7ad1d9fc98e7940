"""Calls to an upstream: its tools, resources and prompts with their handlers, and its answers and errors translated.

It sends every request through the supervisor, and does not know whether there is a connection.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, TypeVar, cast

import msgspec

from callyard._internal.converted import as_object
from callyard._internal.mask import remember_secret
from callyard.dispatch.arguments import bind_by_schema
from callyard.dispatch.call import Arguments, Call
from callyard.dispatch.progress import Progress
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.run import run_of
from callyard.dispatch.tool import Check, Complete, InvalidArgumentsError, Tool, decode_arguments
from callyard.dispatch.tracing import UpstreamFacts
from callyard.jobs.job import TASKS
from callyard.model.apps import APPS
from callyard.model.content import MAX_BLOCKS, UpstreamBlock
from callyard.model.elicitation import CLIENT_METHODS, ClientRequest, unsupported_by_client
from callyard.model.envelope import Envelope, UpstreamResult
from callyard.model.errors import ToolError
from callyard.model.profile import matches_any
from callyard.model.schema import EXTRA, Issue, Schema, SchemaValidator
from callyard.model.spec import PromptSpec, ResourceSpec
from callyard.model.uri_template import variables_of
from callyard.providers.upstream.catalogue import UpstreamTool, prefix_of, publish_app_uris, publish_uris, upstream_uri
from callyard.providers.upstream.health import more_command
from callyard.providers.upstream.inner_yard import adopt, as_envelope, envelope_in
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.pages import send_after_pages
from callyard.providers.upstream.session import APPS_DECLARED, NO_CALLER, CallContext, client_request
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.supervisor import Supervisor
from callyard.providers.upstream.tasks import TASKS_DECLARED, follow_upstream_task
from callyard.wire.headers import param_headers, param_names
from callyard.wire.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    URL_REQUIRED,
    Fault,
    check_depth,
)
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
_TRACE: Final = frozenset({"traceparent", "tracestate"})
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
        own = f"'{command}', or {setting}"
        hint = f"{headers} of the caller goes with calls alone. For the rest the yard needs its own credentials: {own}."
    else:
        hint = f"Ask whoever runs the yard to sign in: '{command}'."
    return ToolError("unauthenticated", error.message, hint=hint, next_actions=actions, blame="upstream", **details)


def _rpc_failure_of(name: str, fault: Fault) -> ToolError:
    details: dict[str, Any] = {
        "upstream": name,
        "upstream_code": fault.code,
        "text": fault.message[:_DETAIL_CHARACTERS],
    }
    if fault.data is not None:
        details["upstream_data"] = fault.data
    text = fault.message.strip()[:_MESSAGE_CHARACTERS].removesuffix(".") or "no text"
    if fault.code == MISSING_CAPABILITY:
        data = cast("dict[str, object]", fault.data) if isinstance(fault.data, dict) else {}
        required = data.get("requiredCapabilities")
        capabilities = list(cast("dict[str, object]", required)) if isinstance(required, dict) else []
        return ToolError("not_supported", f"{text}.", capabilities=capabilities, **details)
    message = f"'{name}' answered with an error: {text}."
    return ToolError("upstream_error", message, may_have_run=fault.code not in _NOT_RUN, **details)


def _invalid_result(name: str, error: Exception) -> ToolError:
    return ToolError("upstream_error", f"'{name}' answered with an invalid result: {error}.", upstream=name)


def _tool_failure_of(name: str, text: str, structured: object) -> ToolError:
    """Return the failure that a tool reports in its result; a failure of another yard keeps its code."""
    failed = _failure_in(structured)
    failure = None if failed is None else failed.error
    if failed is not None and failure is not None:
        error = ToolError(
            failure.code,
            failure.message,
            hint=failure.hint,
            next_actions=failure.next_actions,
            blame=failure.blame,
            data=failed.data,
        )
        error.may_have_run = failure.may_have_run
        error.details = {"upstream": name, **failure.details}
        return error
    details: dict[str, Any] = {"upstream": name, "text": text[:_DETAIL_CHARACTERS]}
    if structured is not None:
        details["structured"] = structured
    message = text.strip()[:_MESSAGE_CHARACTERS] or f"'{name}' reports a failure without a text."
    return ToolError("upstream_error", message, **details)


def _failure_in(structured: object) -> Envelope | None:
    """Return the envelope of another yard, or None."""
    try:
        return msgspec.convert(structured, Envelope) if isinstance(structured, dict) else None
    except msgspec.ValidationError:
        return None


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """The result of `tools/call`, `resources/read` or `prompts/get`; its content stays JSON, which is passed on."""

    content: msgspec.Raw = msgspec.Raw(b"[]")
    structured_content: msgspec.Raw = msgspec.Raw(b"")
    is_error: bool | None = None
    result_type: str | None = None
    input_requests: dict[str, dict[str, Any]] | None = None
    request_state: str | None = None
    task_id: str = ""
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_decode: Final = msgspec.json.Decoder(Answer).decode
_decode_blocks: Final = msgspec.json.Decoder(list[Any]).decode


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
        requests[key] = client_request(name, method, cast("dict[str, Any]", params))
    return requests


def result_of(name: str, answer: Answer, prefix: str) -> UpstreamResult:
    """Return a successful answer, to be passed on as it is.

    Raises:
        ToolError: The tool reports a failure, or the answer is invalid.
    """
    raw: bytes | msgspec.Raw = answer.content if answer.content and bytes(answer.content) != _NULL else b"[]"
    has_structured = bool(answer.structured_content) and bytes(answer.structured_content) != _NULL
    try:
        listed = _decode_blocks(raw)
        structured = msgspec.json.decode(answer.structured_content) if has_structured else None
    except msgspec.DecodeError as error:
        raise _invalid_result(name, error) from error
    if len(listed) > MAX_BLOCKS:
        message = f"'{name}' answered with more than {MAX_BLOCKS} content blocks."
        raise ToolError("too_large", message, blame="upstream", may_have_run=True, limit=MAX_BLOCKS, upstream=name)
    blocks = [cast("dict[str, Any]", block) for block in listed if isinstance(block, dict)]
    has_uris = any(key in bytes(raw) for key in (b'"uri"', b"resourceUri"))
    if (prefix and has_uris) or len(blocks) < len(listed):  # clients cannot read what is no object
        blocks = publish_uris(prefix, blocks)
        raw = msgspec.json.encode(blocks)
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.is_error:
        raise _tool_failure_of(name, "\n".join(texts), structured)
    others = tuple(UpstreamBlock(block) for block in blocks if block.get("type") != "text")
    size = max(len(answer.structured_content), sum(map(len, texts)))
    meta = publish_app_uris(prefix, custom_meta(answer.meta)) if answer.meta else {}
    plain = b'{"content":%b}' % bytes(raw)
    if not has_structured:
        return UpstreamResult(_data_of(blocks, texts, others), plain, size, others, meta)
    whole = b'{"content":%b,"structuredContent":%b}' % (bytes(raw), bytes(answer.structured_content))
    if isinstance(structured, dict):
        return UpstreamResult(structured, whole, size, others, meta)
    # before 2026-07-28 only an object may be structured content
    if not blocks:
        text = bytes(answer.structured_content).decode()
        plain = b'{"content":%b}' % msgspec.json.encode([{"type": "text", "text": text}])
    return UpstreamResult(structured, whole, size, others, meta, handshake_result=plain)


def _data_of(blocks: list[dict[str, Any]], texts: list[str], others: tuple[UpstreamBlock, ...]) -> Any:
    """Return the data of an answer without structured content: one text, decoded if it is JSON, or a list of blocks."""
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

    def __init__(
        self, name: str, settings: UpstreamSettings, supervisor: Supervisor, *, has_tasks: bool = False
    ) -> None:
        self._name = name
        self._has_tasks = has_tasks
        self._settings = settings
        self._prefix = prefix_of(name, settings)
        for secret in settings.configured_secrets():
            remember_secret(secret)
        self._supervisor = supervisor
        self._forwarded = tuple(header.lower() for header in settings.forward_headers)

    def tool(self, tool: UpstreamTool) -> Tool:
        """Return a tool whose handler calls the upstream."""
        spec, name, fixed = tool.spec, tool.upstream_name, tool.fixed
        header_names = param_names(tool.schema) if self._settings.carrier == "http" else {}
        output = None
        if spec.output_schema is not None and self._settings.outputs == "warn":
            output = SchemaValidator(spec.output_schema)

        async def handler(call: Call) -> UpstreamResult | Envelope:
            arguments = {**call.arguments, **fixed}
            context = self._context(call, param_headers(header_names, arguments))
            params = {"name": name, "arguments": arguments}
            _, answer = await self._request(call, "tools/call", params, name=name, context=context)
            if answer.is_error and context.unsupported:
                raise unsupported_by_client(context.unsupported, stateless=call.channel.stateless)
            result = result_of(self._name, answer, self._prefix)
            if output is not None and not output.fits(result.data):
                call.warnings = (*call.warnings, _INVALID_OUTPUT)
            inner = envelope_in(result.data)
            return result if inner is None else await as_envelope(call, self._name, inner, result)

        # With the hidden and fixed arguments: people see them, and what was judged is what is sent.
        bind = bind_by_schema(tool.schema, decode_arguments, fixed=fixed)
        unpublished = {*fixed, *(_names(tool.schema) - _names(spec.input_schema))}
        marks, check = self._settings.marks_secrets, _check(spec.input_schema, unpublished)
        return Tool(
            spec=spec,
            handler=handler,
            check=check,
            binder=bind,
            marks_secrets=marks,
            may_return_none=True,
            outlives_as="working" if self._has_tasks else "",
        )

    async def ask_yard(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Envelope:
        """Call a metatool of an upstream that is a yard, as a part of a call.

        Raises:
            ToolError: It failed, or the upstream is no yard any more.
        """
        params = {"name": name, "arguments": dict(arguments)}
        _, answer = await self._request(call, "tools/call", params, name=name, context=self._context(call))
        inner = envelope_in(result_of(self._name, answer, self._prefix).data)
        if inner is None:
            raise ToolError("upstream_error", f"'{self._name}' is no yard any more.", upstream=self._name)
        inner.data = await adopt(call, self._name, inner.data)
        return inner

    def resource(self, spec: ResourceSpec, *, completes: bool) -> Resource:
        """Return a resource or template whose handler reads from the upstream."""

        async def handler(call: Call) -> Envelope:
            uri = upstream_uri(self._prefix, call.name)
            result, _ = await self._request(call, "resources/read", {"uri": uri}, name=uri, context=self._context(call))
            read = self._decode(result, _ReadResult)
            return Envelope.ok({"contents": publish_uris(self._prefix, read.contents or [])})

        reference = {"type": "ref/resource", "uri": upstream_uri(self._prefix, spec.uri)}
        names = variables_of(spec.uri) if completes else ()
        return Resource.of(spec, handler, complete=self._completions(reference, names))

    def prompt(self, spec: PromptSpec, name: str, *, completes: bool) -> Prompt:
        """Return a prompt whose handler gets it from the upstream, where it has this name."""

        async def handler(call: Call) -> Envelope:
            params = {"name": name, "arguments": call.arguments}
            result, _ = await self._request(call, "prompts/get", params, name=name, context=self._context(call))
            prompt = self._decode(result, _PromptResult)
            messages = publish_uris(self._prefix, prompt.messages or [])
            return Envelope.ok({"description": prompt.description or spec.description, "messages": messages})

        names = [argument.name for argument in spec.arguments] if completes else ()
        return Prompt.of(spec, handler, complete=self._completions({"type": "ref/prompt", "name": name}, names))

    def _completions(self, reference: Mapping[str, str], names: Sequence[str]) -> dict[str, Complete]:
        return {name: partial(self._complete, reference, name) for name in names}

    async def _complete(
        self, reference: Mapping[str, str], argument: str, value: str, chosen: dict[str, str]
    ) -> Sequence[str]:
        params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
        if chosen:
            params["context"] = {"arguments": chosen}
        request = self._supervisor.request
        try:
            result = await request("completion/complete", params, name=None, context=NO_CALLER, safe=True)
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
        try:
            return await self._request_with_input(call, method, params, name=name, context=context)
        finally:
            for end in context.ends:
                end()

    async def _request_with_input(
        self, call: Call, method: str, params: dict[str, Any], *, name: str, context: CallContext
    ) -> tuple[msgspec.Raw, Answer]:
        current = params
        for _ in range(_ROUNDS):
            result, answer = await self._exchange(call, method, current, name=name, context=context)
            if answer.result_type == "task" and answer.task_id and self._has_tasks:
                result = await self._task_result(call, answer.task_id, context)
                return result, decode_answer(self._name, result)
            requests = client_requests_of(self._name, answer)
            if requests is None:
                return result, answer
            if not context.has_roots and any(request.method == "roots/list" for request in requests.values()):
                message = f"'{self._name}' asks for the folders of the client, which are not passed on to it."
                hint = f"Ask whoever runs the yard to set 'forward_roots' of '{self._name}'."
                raise ToolError("upstream_error", message, hint=hint, upstream=self._name)
            current = {**params, "inputResponses": dict(await call.ask_all(requests)) if requests else {}}
            if answer.request_state is not None:
                current["requestState"] = answer.request_state
        raise ToolError(
            "upstream_error", f"'{self._name}' asked {_ROUNDS} times before it answered.", upstream=self._name
        )

    async def _exchange(
        self, call: Call, method: str, params: dict[str, Any], *, name: str, context: CallContext
    ) -> tuple[msgspec.Raw, Answer]:
        """Send a request once and decode its answer, in a span of its own if the call has one."""
        outer = run_of(call).span
        if outer is None:
            result = await self._send(call, method, params, name=name, context=context)
            return result, decode_answer(self._name, result)
        facts = UpstreamFacts(name=self._name, url=self._settings.url, version=self._supervisor.version)
        with outer.upstream(method, params.get("name"), facts) as span:
            meta = {key: value for key, value in context.meta.items() if key not in _TRACE}
            traced = msgspec.structs.replace(context, meta={**meta, **span.carrier()}, retried=span.note_retry)
            result = await self._send(call, method, params, name=name, context=traced)
            answer = decode_answer(self._name, result)
            if answer.is_error:
                span.note_tool_error()
            return result, answer

    async def _send(
        self, call: Call, method: str, params: dict[str, Any], *, name: str, context: CallContext
    ) -> msgspec.Raw:
        started = time.monotonic()
        send = partial(self._supervisor.request, method, params, name=name, context=context, safe=call.spec.safe)
        try:
            try:
                return await send()
            except Fault as fault:
                if fault.code != URL_REQUIRED:
                    raise
                pages = self._supervisor.pages
                return await send_after_pages(call, self._name, fault, again=send, pages=pages)
        except (Fault, LinkError) as error:
            if isinstance(error, Fault) and context.unsupported:
                raise unsupported_by_client(context.unsupported, stateless=call.channel.stateless) from error
            raise self._failure_of(error) from error
        except asyncio.CancelledError:
            run = run_of(call)
            if run.stopped == "timeout":
                run.at_fault = "upstream"
                if _had_full_timeout(call):
                    self._supervisor.record_timeout(started)
            raise

    async def _task_result(self, call: Call, task_id: str, context: CallContext) -> msgspec.Raw:
        """Return the result of a task that the upstream made of a call, once it has ended."""

        async def request(method: str, params: Mapping[str, Any], name: str) -> msgspec.Raw:
            return await self._send(call, method, dict(params), name=name, context=context)

        def requests_of(asked: dict[str, dict[str, Any]]) -> dict[str, ClientRequest]:
            required = Answer(result_type="input_required", input_requests=asked)
            return client_requests_of(self._name, required) or {}

        return await follow_upstream_task(call, self._name, task_id, request=request, requests_of=requests_of)

    async def _ask(
        self, call: Call, ends: list[Callable[[], None]], asks: Mapping[str, ClientRequest]
    ) -> Mapping[str, Any]:
        """Ask the client; it learns when a page is done, as long as the call runs."""
        pages = {key: ask for key, ask in asks.items() if ask.params.get("mode") == "url"}
        if pages and call.channel.page_done is not None:
            ends.append(self._supervisor.pages.watch(pages, call.channel.page_done))
        return await call.ask_all(asks)

    def _context(self, call: Call, headers: Mapping[str, str] = EMPTY) -> CallContext:
        """Return the context of a call's requests; of the caller's headers it has only those that the settings name."""
        channel = call.channel
        # The funnel set this when it entered the handler. Until the session sends the request (`sent`) nothing can have
        # run over there, and a call that fails before, such as while the upstream starts, may safely be repeated.
        call.may_have_run = False
        if channel.job_id and self._forwarded:
            message = f"'{call.spec.name}' passes on credentials of the request, which a job must not keep."
            raise ToolError("not_supported", message, hint="Call it directly, not in the background.")
        forwarded = {name: channel.forwarded[name] for name in self._forwarded if name in channel.forwarded}
        named = self._settings.forward_meta
        meta = {key: value for key, value in channel.meta.items() if matches_any(key, named)}
        trace = {key: value for key, value in channel.trace.items() if key in _TRACE or matches_any(key, named)}
        has_roots = self._settings.forward_roots and "roots" in channel.capabilities
        takes_tasks = self._has_tasks and (TASKS in channel.capabilities or bool(channel.job_id))
        ends: list[Callable[[], None]] = []
        level = {LOG_LEVEL: "debug"} if channel.log is not None else {}
        return CallContext(
            # each program gets its own questions
            owner=f"{call.caller.owner}:{call.caller.client}:{channel.connection_id}",
            progress=None if channel.progress is None else partial(_send_progress, call),
            log=call.log,
            sent=partial(_mark_sent, call),
            ask=None if channel.ask is None else partial(self._ask, call, ends),
            ends=ends,
            capabilities=_declared(channel.capabilities, has_roots=has_roots, has_tasks=takes_tasks),
            meta={**meta, **trace, **level},
            has_roots=has_roots,
            headers={**forwarded, **headers},
        )


def _declared(capabilities: AbstractSet[str], *, has_roots: bool, has_tasks: bool) -> dict[str, Any]:
    """Return the capabilities for an upstream; where the client cannot show pages, a person gets their address."""
    form: dict[str, Any] = {"form": {}} if "elicitation" in capabilities else {}
    declared: dict[str, Any] = {"elicitation": {**form, "url": {}}}
    if "sampling" in capabilities:
        declared["sampling"] = {}
    extensions: dict[str, Any] = dict(APPS_DECLARED["extensions"]) if APPS in capabilities else {}
    if has_tasks:
        extensions |= TASKS_DECLARED
    if extensions:
        declared["extensions"] = extensions
    return {**declared, "roots": {}} if has_roots else declared


def _names(schema: Schema) -> AbstractSet[str]:
    """Return the arguments that a schema names; a wrong schema, which is refused later, names none."""
    return as_object(as_object(schema).get("properties")).keys()


def _check(schema: Schema, unpublished: AbstractSet[str]) -> Check:
    """Return the check for an upstream's schema; it fills in no defaults, because the upstream does.

    Nobody sets arguments that are not published, also where the schema allows others than it names.
    """
    validator = SchemaValidator(schema)

    def check(text: bytes) -> Arguments:
        arguments = decode_arguments(text)
        if not validator.fits(arguments):
            raise InvalidArgumentsError(validator.issues(arguments))
        hidden = sorted(unpublished & arguments.keys())
        if hidden:
            raise InvalidArgumentsError([Issue(name, EXTRA, f"There is no argument '{name}'.") for name in hidden])
        return arguments

    return check


def _had_full_timeout(call: Call) -> bool:
    """Return whether a call had its tool's whole timeout; a shorter one says nothing about the upstream."""
    seconds = run_of(call).options.seconds
    return not seconds or 0 < (call.spec.timeout or 0) <= seconds


def _send_progress(call: Call, progress: Progress) -> None:
    call.progress(progress.done, progress.total, progress.text)


def _mark_sent(call: Call) -> None:
    call.may_have_run = True
