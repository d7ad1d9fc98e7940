"""Server and request contexts: the state that all requests of a server share, and that of one request.

Neither does I/O: a request context gets a function that sends messages to its client.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard._internal.converted import as_object
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, SHARED, AskClient, Caller, Channel
from callyard.dispatch.progress import Progress
from callyard.dispatch.tracing import RequestSpan
from callyard.jobs.job import TASKS
from callyard.model.apps import APP_EXTENSION, APP_SCHEME, APPS
from callyard.model.profile import EVERYTHING, Profile
from callyard.server.input_required import InputRequired
from callyard.server.lists import Lists
from callyard.server.notifications import ChangeNotifier
from callyard.server.replicas import ReplicaCalls
from callyard.server.tasks import REQUIRED
from callyard.wire.headers import param_names
from callyard.wire.messages import INVALID_PARAMS, Fault, Id, encode_notification
from callyard.wire.params import (
    CAPABILITIES,
    LEVELS,
    RESULT_SIZE,
    TASKS_EXTENSION,
    custom_meta,
    declares,
    has_only_protocol_keys,
)
from callyard.wire.results import ResultEncoder, Server
from callyard.wire.versions import LATEST, VERSIONS, Version
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.server.session import ServerSession

__all__ = [
    "CLIENT_CAPABILITIES",
    "Notify",
    "ParamHeaders",
    "RequestContext",
    "ServerContext",
    "check_progress_token",
    "encode_log",
    "own_scope",
    "relevant_capabilities",
]

Notify = Callable[[bytes], None]
ParamHeaders = dict[tuple[str, ...], tuple[str, str]]

CLIENT_CAPABILITIES: Final = frozenset({"elicitation", "sampling", "roots"})
"""The capabilities of clients that let a tool ask them something."""
_LIST_MS: Final = 60_000
"""Milliseconds for which clients may cache a list."""
_MAX_CALLERS: Final = 4096
_CLIENT_NAME_LENGTH: Final = 100
_POLL_S: Final = 0.02
_SCOPE_BYTES: Final = 8
_NO_CAPABILITIES: Final = frozenset[str]()
_TRACEPARENT: Final = r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
_TRACE: Final = ("traceparent", "tracestate", "baggage")
_server_numbers: Final = count(1)
_request_numbers: Final = count(1)


class ServerContext:
    """The state that all clients of one open yard share on one transport."""

    def __init__(self, yard: Yard, serving: Serving, *, channel: str) -> None:
        self.yard = yard
        self.serving = serving
        self.channel = channel
        if serving.ask_before_destroy:
            yard.ask_before_destroy(always=False)
        self.number = next(_server_numbers)
        """Marks the calls that came in here, so that closing cancels these and no others."""
        self.default_channel = Channel(name=channel, server=self.number, asks_before_destroy=serving.ask_before_destroy)
        self.stateless_channel = msgspec.structs.replace(self.default_channel, stateless=True)
        self.lists = Lists(yard, serving, yard.signer)
        self.input_required = InputRequired(yard.dispatcher, yard.signer, store=yard.store, seconds=serving.ask_seconds)
        self.replica_calls: ReplicaCalls | None = None
        if yard.replica is not None:
            self.replica_calls = ReplicaCalls(self, yard.replica, self.input_required)
        self.notifier = ChangeNotifier(yard, self.lists)
        self.closing = asyncio.Event()
        """Set when the server shuts down, which answers open subscriptions."""
        server = Server(yard.name, yard.version)
        self.encoders = {name: ResultEncoder(version, server, ttl_ms=_LIST_MS) for name, version in VERSIONS.items()}
        """The encoders of results by the name of a version, because a version computes its hash each time."""
        self._callers: dict[tuple[str, str, str], Caller] = {}
        self._param_headers: dict[str, ParamHeaders] = {}
        self._param_headers_version = -1
        self._visible_headers = tuple(name.lower() for name in serving.request_headers)

    def capabilities(
        self, profile: Profile, *, notifies: bool = True, tasks: bool = True, apps: bool = True
    ) -> dict[str, Any]:
        """Return the server's capabilities; subscriptions and logging only for clients that can get notifications.

        Versions with a handshake do not define extensions, so only a client that declares one is told of it. Apps are
        offered where a resource is one.
        """
        changes = {"listChanged": True} if self.serving.notify_changes and notifies else {}
        capabilities: dict[str, Any] = {"tools": changes, **({"logging": {}} if notifies else {})}
        if tasks:
            capabilities |= REQUIRED
        if apps and self.app_uris(profile):
            capabilities["extensions"] = {**capabilities.get("extensions", {}), APP_EXTENSION: {}}
        prompts = self.lists.any("prompts", profile)
        resources = self.lists.any("resources", profile) or self.lists.any("templates", profile)
        if prompts:
            capabilities["prompts"] = changes
        if resources:
            capabilities["resources"] = {**changes, "subscribe": True} if notifies else changes
        if prompts or resources:
            capabilities["completions"] = {}
        return capabilities

    def app_uris(self, profile: Profile) -> list[str]:
        """Return the addresses of the Apps that a profile has."""
        return [spec.uri for spec in self.yard.list_resources(profile) if spec.uri.startswith(APP_SCHEME)]

    def app_tools(self, profile: Profile) -> list[str]:
        """Return the names of the tools of all sources with Apps."""
        resources = self.yard.list_resources(profile)
        sources = {spec.source for spec in resources if spec.uri.startswith(APP_SCHEME)}
        return [spec.name for spec in self.yard.registry.visible(profile) if spec.source in sources]

    def caller(self, base: Caller, client: object) -> Caller:
        """Return the caller with the name that its client states, the same object for the same name."""
        name = as_object(client).get("name")
        if not isinstance(name, str) or not name:
            return base
        name = name[:_CLIENT_NAME_LENGTH]
        key = (base.identity, base.scope, name)
        cached = self._callers.get(key)
        if cached is None or cached.claims is not base.claims or cached.profile is not base.profile:
            if len(self._callers) >= _MAX_CALLERS:
                self._callers.clear()
            cached = self._callers[key] = msgspec.structs.replace(base, client=name)
        return cached

    def profile_of(self, caller: Caller) -> Profile:
        """Return the caller's profile, or else the yard's."""
        return caller.profile or self.yard.profile

    def header_names(self) -> tuple[bytes, ...]:
        """Return the names of the request headers that handlers may see or upstreams get; upstreams come and go."""
        providers = self.yard.providers
        forwarded = providers.forward_headers if providers.forwarding else ()
        return tuple(name.encode() for name in (*self._visible_headers, *forwarded))

    def visible_headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return the request headers that handlers may see."""
        return {name: headers[name] for name in self._visible_headers if name in headers}

    def param_headers(self, name: str, caller: Caller) -> ParamHeaders | None:
        """Return the arguments that a tool visible to the caller requires as headers; None if there are none."""
        registry = self.yard.registry
        if self._param_headers_version != registry.version:
            specs = registry.visible(EVERYTHING)
            self._param_headers = {spec.name: names for spec in specs if (names := param_names(spec.input_schema))}
            self._param_headers_version = registry.version
        if not self._param_headers:
            return None
        tool = registry.get(name) or registry.resolve(name)
        required = None if tool is None else self._param_headers.get(tool.spec.name)
        return required if tool is not None and self.profile_of(caller).allows(tool.spec) else None

    def retried_request(
        self,
        caller: Caller,
        *,
        meta: Mapping[str, Any],
        capabilities: Mapping[str, Any],
        log_level: int | None,
        notify: Notify,
    ) -> "RequestContext":
        """Return the context of a request of the 2026-07-28 era that came to another replica."""
        return RequestContext(
            server=self,
            id=0,
            encoder=self.encoders[LATEST.name],
            caller=caller,
            capabilities=capabilities,
            meta=meta,
            notify=notify,
            log_level=log_level,
        )

    def end_listeners(self) -> None:
        """Answer open subscriptions, and cancel calls that wait for input."""
        self.closing.set()
        self.input_required.cancel_all()

    async def finish(self, seconds: float) -> None:
        """Let calls finish within a time, then cancel the rest; each is answered, and no more are admitted."""
        dispatcher = self.yard.dispatcher
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while loop.time() < deadline and dispatcher.serves(self.number):  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_S)  # polling is good enough for something that happens once
        await self.cancel_calls()

    async def cancel_calls(self) -> None:
        """Cancel the calls that came in here, wait until each is answered, and admit no more."""
        await self.yard.dispatcher.close(self.number)

    def close(self) -> None:
        """Send no more notifications."""
        self.closing.set()
        self.notifier.close()


class RequestContext(msgspec.Struct, eq=False, kw_only=True):
    """The state of one request while it is served."""

    server: ServerContext
    id: Id
    encoder: ResultEncoder
    caller: Caller
    capabilities: Mapping[str, Any]
    session: "ServerSession | None" = None
    stateless: bool = False
    """Whether the client began with a handshake and the server keeps no session."""
    connection_id: str = ""
    """Identifies the session, if there is one."""
    meta: Mapping[str, Any] = {}
    transport_trace: Mapping[str, str] = {}
    """The trace context of the HTTP request, which `meta` has only if the message has none."""
    headers: Mapping[str, str] = {}
    notify: Notify | None = None
    """Sends a message of this request ahead of its response, if the transport can."""
    ask_client: AskClient | None = None
    """Sends requests to the client and waits for the results; handshake era only."""
    log_level: int | None = None
    """The lowest level of log messages that the client gets."""
    hang_up: Callable[[], None] | None = None
    """Closes the connection ahead of the response, which the client then fetches by reconnecting."""
    input_responses: dict[str, dict[str, Any]] = {}
    """The client's answers that came with the request."""
    fault: Fault | None = None
    """Set when the response is a JSON-RPC error."""
    span: RequestSpan | None = None
    """The span of the request, where the yard is traced."""

    @property
    def may_ask(self) -> bool:
        """Return whether an `input_required` result can be sent to the client."""
        return self.encoder.version.modern and not CLIENT_CAPABILITIES.isdisjoint(self.capabilities)

    @property
    def takes_tasks(self) -> bool:
        """Return whether the client declares the extension for tasks."""
        return self._declares(TASKS_EXTENSION)

    @property
    def shows_apps(self) -> bool:
        """Return whether the client declares the extension for Apps."""
        return self._declares(APP_EXTENSION)

    def _declares(self, extension: str) -> bool:
        """Return whether the client declares an extension, for its session or for this request."""
        own, stated = self.capabilities, self.meta.get(CAPABILITIES)
        return bool(own and declares(own, extension)) or bool(stated and declares(as_object(stated), extension))

    def channel(self, ask: AskClient | None = None) -> Channel:
        """Return the channel of this request's call, a shared one where the request allows it."""
        meta = self.meta
        token = meta.get("progressToken")
        check_progress_token(token)
        resumes = ask is not None  # then a later request may bring the token and the level
        ask = ask or self.ask_client
        reports = resumes or (self.notify is not None and token is not None)
        logs = resumes or (self.notify is not None and self.log_level is not None)
        is_quiet = has_only_protocol_keys(meta)
        capabilities = _NO_CAPABILITIES
        if self.capabilities or CAPABILITIES in meta:
            extensions = [name for name, has in ((TASKS, self.takes_tasks), (APPS, self.shows_apps)) if has]
            capabilities = _usable_capabilities(self.capabilities, extensions)
        if is_quiet and ask is None and not (self.headers or reports or logs or capabilities):
            # Most requests need nothing of their own.
            return self.server.stateless_channel if self.stateless else self.server.default_channel
        connection_id = self.connection_id
        if not connection_id and self.caller.identity == ANYONE.identity:
            connection_id = f"request {next(_request_numbers)}"  # then each request is a client of its own
        trace = {} if is_quiet else {key: str(meta[key]) for key in _TRACE if key in meta}
        return Channel(
            name=self.server.channel,
            connection_id=connection_id,
            server=self.server.number,
            progress=self.progress if reports else None,
            log=self.log if logs else None,
            ask=ask,
            capabilities=capabilities,
            page_done=self.page_done if self.encoder.version.completes_pages and ask is not None else None,
            headers=self.server.visible_headers(self.headers) if self.headers else self.headers,
            forwarded=self.headers,
            meta={} if is_quiet else custom_meta(meta),
            trace=trace,
            trace_id=_trace_id(trace) if trace else None,
            stateless=self.stateless,
            hang_up=self.hang_up,
            result_characters=None if is_quiet else self._result_characters(),
            asks_before_destroy=self.server.serving.ask_before_destroy,
        )

    def _result_characters(self) -> int | None:
        """Return the size limit that the client states for results, if it is below the yard's."""
        limit = self.meta.get(RESULT_SIZE)
        return limit if type(limit) is int and 0 < limit < self.server.yard.limits.result_characters else None

    def continue_as(self, other: "RequestContext") -> None:
        """Send progress and log messages by way of a retried request from now on."""
        self.meta, self.notify = other.meta, other.notify
        self.log_level, self.capabilities = other.log_level, other.capabilities

    def progress(self, note: Progress) -> None:
        """Send a progress notification, if the request has a progress token."""
        token = self.meta.get("progressToken")
        if self.notify is None or token is None:
            return
        params: dict[str, Any] = {"progressToken": token, "progress": note.done}
        if note.total is not None:
            params["total"] = note.total
        if note.text and self.encoder.version.annotations:
            params["message"] = note.text
        self.notify(encode_notification("notifications/progress", params))

    def page_done(self, elicitation_id: str) -> None:
        """Tell the client that the page of an elicitation is done."""
        if self.notify is not None:
            self.notify(encode_notification("notifications/elicitation/complete", {"elicitationId": elicitation_id}))

    def log(self, level: str, text: str, facts: Mapping[str, object]) -> None:
        """Send a log message, if the client gets those of its level."""
        if self.notify is not None and self.log_level is not None:
            message = encode_log(level, text, facts, self.log_level)
            if message is not None:
                self.notify(message)


def own_scope(caller: Caller, scope: str = "") -> Caller:
    """Return the caller of a session or a connection: without an identity, that is its scope, by default a new one."""
    if caller.identity != ANYONE.identity or caller.scope not in {ANYONE.scope, SHARED.scope}:
        return caller
    return msgspec.structs.replace(caller, scope=scope or os.urandom(_SCOPE_BYTES).hex())


def check_progress_token(token: object) -> None:
    """Check the type of a progress token.

    Raises:
        Fault: It is neither a string nor a number.
    """
    if token is not None and type(token) not in {str, int, float}:
        raise Fault(INVALID_PARAMS, "The 'progressToken' in '_meta' must be a text or a number.")


def encode_log(level: str, text: str, facts: Mapping[str, object], minimum: int) -> bytes | None:
    """Return a log message as a notification, or None if its level is below the minimum."""
    level = level if level in LEVELS else "info"
    if LEVELS.index(level) < minimum:
        return None
    data: object = {"message": text, **facts} if facts else text
    return encode_notification("notifications/message", {"level": level, "logger": "callyard", "data": data})


def relevant_capabilities(capabilities: Mapping[str, Any], version: Version) -> dict[str, dict[str, Any]]:
    """Return the part of a client's capabilities that a session stores, because it is used later."""
    asked = [name for name in CLIENT_CAPABILITIES if name in capabilities]
    names: dict[str, dict[str, Any]] = {name: _modes(capabilities[name]) for name in asked}
    if "elicitation" in names and not version.modes:  # its versions have forms alone
        names["elicitation"] = {}
    extensions: dict[str, Any] = {name: {} for name in (TASKS_EXTENSION, APP_EXTENSION) if declares(capabilities, name)}
    return {**names, "extensions": extensions} if extensions else names


def _modes(capability: object) -> dict[str, Any]:
    return {mode: {} for mode in ("form", "url") if mode in capability} if isinstance(capability, dict) else {}


def _usable_capabilities(capabilities: Mapping[str, Any], extensions: Sequence[str]) -> frozenset[str]:
    """Return the capabilities for handlers: `elicitation` is forms, `elicitation.url` pages, the others extensions."""
    names = frozenset((*capabilities, *extensions))
    modes = _modes(capabilities.get("elicitation"))
    if "url" not in modes:
        return names
    return (names if "form" in modes else names - {"elicitation"}) | {"elicitation.url"}


def _trace_id(trace: Mapping[str, str]) -> str | None:
    match = re.fullmatch(_TRACEPARENT, trace.get("traceparent", ""))
    return None if match is None else match[1]
