"""The handlers of an API's tools: arguments become a request, and its answer becomes data or a failure."""

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

from callyard._internal.mask import MASK
from callyard.dispatch.call import Arguments, Call
from callyard.dispatch.run import run_of
from callyard.dispatch.tool import Check, InvalidArgumentsError, Tool, decode_arguments
from callyard.model.content import Block
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.schema import SchemaValidator
from callyard.model.spec import LazySpec
from callyard.providers.openapi.answers import data_of, failure_of, link_failure, next_page_of, retry_after_ms
from callyard.providers.openapi.credentials import ApiCredentials, Applied
from callyard.providers.openapi.http import Answer, ApiHttp, Request
from callyard.providers.openapi.operations import BODY, Body, Parameter
from callyard.providers.openapi.published import ApiTool
from callyard.providers.openapi.requests import Files, Parts, body_of, build
from callyard.providers.openapi.settings import ApiSettings
from callyard.providers.upstream.health import Health
from callyard.providers.upstream.link import LinkError, without_mcp_headers

__all__ = ["ApiCalls"]

_ACCEPT: Final = "application/json, */*;q=0.8"
_UNAVAILABLE: Final = frozenset({502, 503, 504})
_UNAUTHENTICATED: Final = 401
_SHORTEST_SECRET: Final = 4


class ApiCalls:
    """Makes the tools of one API."""

    def __init__(
        self, name: str, settings: ApiSettings, *, http: ApiHttp, credentials: ApiCredentials, health: Health
    ) -> None:
        self._name = name
        self._settings = settings
        self._http = http
        self._credentials = credentials
        self._health = health
        self._files = Files(settings.files_root, max_bytes=settings.file_bytes)
        self._forwarded = tuple(header.lower() for header in settings.forward_headers)
        basic = {b64encode(value.encode()).decode() for value in settings.credentials.values() if ":" in value}
        self._secrets = settings.secrets() | basic

    def tool(self, tool: ApiTool) -> Tool:
        """Return a tool whose handler calls the API."""

        @cache
        def parameters() -> list[Parameter]:
            return tool.operation.parameters()

        @cache
        def body() -> Body | None:
            return tool.operation.body()

        async def handler(call: Call) -> object:
            call.may_have_run = False  # nothing is sent yet
            parts = build(tool.operation.path, parameters(), call.arguments)
            await self._add_body(parts, tool, body(), call.arguments)
            answer = await self._answered(call, tool, parts)
            return self._result(call, answer, tool, parameters())

        return Tool(spec=tool.spec, handler=handler, check=_check(tool.spec), may_return_none=True)

    async def _add_body(self, parts: Parts, tool: ApiTool, body: Body | None, arguments: Mapping[str, Any]) -> None:
        if body is None or BODY not in arguments:
            return
        make = (body_of, tool.operation.document, body, arguments[BODY], self._files)
        reads_files = body.kind in {"multipart", "bytes"}
        content, media_type = await asyncio.to_thread(*make) if reads_files else make[0](*make[1:])
        parts.body = content
        parts.headers["Content-Type"] = media_type

    async def _answered(self, call: Call, tool: ApiTool, parts: Parts) -> Answer:
        """Return the answer to a request; after a refusal it is sent once more if there are newer credentials.

        Raises:
            ToolError: There is no answer.
        """
        try:
            applied = await self._credentials.of(tool.operation)
            answer = await self._sent(call, self._request(call, tool, parts, applied))
            if answer.status == _UNAUTHENTICATED and await self._credentials.refuse(answer.header("www-authenticate")):
                applied = await self._credentials.of(tool.operation)
                answer = await self._sent(call, self._request(call, tool, parts, applied))
        except LinkError as error:
            if error.kind == "unauthenticated":
                raise self._unauthenticated(error.message) from error
            raise link_failure(self._name, error) from error
        return answer

    def _request(self, call: Call, tool: ApiTool, parts: Parts, applied: Applied) -> Request:
        server = tool.server
        assert server is not None  # noqa: S101 - without one it is not published
        path, mark, fixed = parts.path.partition("?")
        names = {quote(name, safe="") for name in applied.query}
        query = [pair for pair in (*([fixed] if mark else []), *parts.query) if pair.partition("=")[0] not in names]
        query += [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in applied.query.items()]
        target = f"{server.target.rstrip('/')}{path}{'?' if query else ''}{'&'.join(query)}"
        headers = _merged({"Accept": _ACCEPT}, self._settings.headers, self._forwarded_headers(call), parts.headers)
        cookies = [one for one in parts.cookies if one.partition("=")[0] not in applied.cookies]
        cookies += [f"{name}={value}" for name, value in applied.cookies.items()]
        if cookies:
            headers = _merged(headers, {"Cookie": "; ".join(cookies)})
        headers = _merged(headers, applied.headers)
        address = msgspec.structs.replace(server, target=target)
        return Request(method=tool.operation.method, address=address, headers=headers, body=parts.body)

    def _forwarded_headers(self, call: Call) -> Mapping[str, str]:
        channel = call.channel
        if channel.job_id and self._forwarded:
            message = f"'{call.spec.name}' passes on credentials of the request, which a job must not keep."
            raise ToolError("not_supported", message, hint="Call it directly, not in the background.")
        found = {name: channel.forwarded[name] for name in self._forwarded if name in channel.forwarded}
        return without_mcp_headers(found)

    async def _sent(self, call: Call, request: Request) -> Answer:
        """Send a request, and once more if the first attempt surely did no harm.

        Raises:
            LinkError: There is no answer.
        """
        self._health.admit()
        self._health.calls += 1
        started = time.monotonic()
        try:
            try:
                answer = await self._http.send(request, on_sent=_marks(call))
            except LinkError as error:
                if error.kind != "lost" or not (call.spec.safe or not error.sent):
                    raise
                answer = await self._http.send(request, on_sent=_marks(call))
        except LinkError as error:
            self._health.fail(started, error)
            raise
        except asyncio.CancelledError:
            self._record_cancelled(call, started)
            raise
        except BaseException:
            self._health.abandon()
            raise
        self._record(answer, started)
        return answer

    def _record_cancelled(self, call: Call, started: float) -> None:
        run = run_of(call)
        if run.stopped == "timeout":
            run.at_fault = "upstream"
            self._health.fail(started, LinkError("lost", f"'{self._name}' did not answer in time.", sent=True))
        else:
            self._health.abandon()

    def _record(self, answer: Answer, started: float) -> None:
        """Record what an answer says about the whole API; most failures are about one call."""
        if answer.status in _UNAVAILABLE:
            wait = retry_after_ms(answer)
            seconds = None if wait is None else wait / 1000
            message = f"'{self._name}' answered with status {answer.status}."
            self._health.fail(started, LinkError("unavailable", message, sent=True, retry_after=seconds))
        elif answer.status >= 500:  # noqa: PLR2004 - the first status of a server's own failure
            self._health.abandon()
        else:
            self._health.succeed(started)

    def _unauthenticated(self, message: str, **details: Any) -> ToolError:
        hint = self._credentials.hint()
        self._health.set_state("auth_needed", f"{message} {hint}")
        return ToolError(
            "unauthenticated", message, hint=hint, blame="upstream", may_have_run=False, upstream=self._name, **details
        )

    def _result(self, call: Call, answer: Answer, tool: ApiTool, parameters: list[Parameter]) -> object:
        secrets = self._known_secrets()
        failure = failure_of(self._name, answer, secrets=secrets)
        if failure is not None:
            if failure.code == "unauthenticated" and not self._forwarded_headers(call):
                raise self._unauthenticated(failure.message, status=answer.status)
            raise failure
        data, warning = data_of(answer)
        if warning:
            call.warnings = (*call.warnings, warning)
        if isinstance(data, Block):
            return data
        data = _without(data, secrets)
        if call.spec.safe and tool.operation.method != "DELETE":
            call.next_page = _without(next_page_of(answer, data, parameters, call.arguments), secrets)
        return data

    def _known_secrets(self) -> frozenset[str]:
        tokens = [value.partition(" ")[2] for value in (self._credentials.oauth.ready() or {}).values()]
        found = {secret for secret in (*self._secrets, *tokens) if len(secret) >= _SHORTEST_SECRET}
        return frozenset(found | {quote(secret, safe="") for secret in found})


def _marks(call: Call) -> Callable[[], None]:
    def mark() -> None:
        call.may_have_run = True

    return mark


def _merged(*groups: Mapping[str, str]) -> dict[str, str]:
    """Return headers of all groups; a later one replaces an earlier one, whatever its case."""
    merged: dict[str, tuple[str, str]] = {}
    for group in groups:
        merged |= {name.lower(): (name, value) for name, value in group.items()}
    return dict(merged.values())


def _without(data: Any, secrets: frozenset[str]) -> Any:
    """Return data of an API in which our own credentials are masked, should it send them back."""
    if not secrets:
        return data
    text = encode(data).decode()
    if not any(encode(secret).decode()[1:-1] in text for secret in secrets):
        return data
    return _masked(data, sorted(secrets, key=len, reverse=True))


def _masked(data: Any, secrets: list[str]) -> Any:
    if isinstance(data, str):
        for secret in secrets:
            data = data.replace(secret, MASK)
        return data
    if isinstance(data, list):
        return [_masked(item, secrets) for item in cast("list[Any]", data)]
    if isinstance(data, dict):
        pairs = cast("dict[str, Any]", data).items()
        return {_masked(key, secrets): _masked(value, secrets) for key, value in pairs}
    return data


def _check(spec: LazySpec) -> Check:
    """Return the check of arguments, compiled with the first call; the API fills in its own defaults."""

    @cache
    def validator() -> SchemaValidator:
        return SchemaValidator(spec.input_schema)

    def check(text: bytes) -> Arguments:
        arguments = decode_arguments(text)
        known = validator()
        if spec.lazy.fault:
            message = f"'{spec.name}' is quarantined. It {spec.lazy.fault}"
            raise ToolError("tool_not_found", message, status="quarantined", similar=[])
        if not known.fits(arguments):
            raise InvalidArgumentsError(known.issues(arguments))
        return arguments

    return check
