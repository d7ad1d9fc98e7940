"""The HTTP API of agents: sessions, messages as event streams, and decisions of people.

It is mounted beside `/mcp`. The HTTP application authenticates each request and checks its host before it calls this
module.
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec

from callyard._version import VERSION
from callyard.agents.events import StreamEvent, encode_stream_event, type_of
from callyard.agents.history import Message
from callyard.agents.interactions import Interaction, WaitingApproval, WaitingQuestion, mode_of
from callyard.agents.manager import AgentManager, MessageOptions
from callyard.agents.sessions import AgentSession, SessionFacts
from callyard.agents.turn import Turn
from callyard.config.settings import PermissionMode
from callyard.dispatch.call import Caller
from callyard.dispatch.outcome import store_unavailable
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import CODES, CodeName, ToolError, refused
from callyard.state.store import StoreUnavailableError
from callyard.transports.http.app import Mount
from callyard.transports.http.request import RefusedError, Request
from callyard.transports.http.response import ResponseWriter
from callyard.wire.sse import KEEP_ALIVE, encode_event

__all__ = ["ROUTES", "AgentApi", "openapi_document"]

_PATHS: Final = ("/api/sessions", "/api/interactions", "/api/openapi.json")
_KEEP_ALIVE_S: Final = 15.0
_DIGITS: Final = 9
_REFS: Final = "#/components/schemas/{name}"
_FAILURES: Final = {
    "400": "The request or its body is wrong.",
    "401": "There are no or wrong credentials.",
    "403": "It is not allowed.",
    "404": "There is none, or it is another's.",
    "409": "The state does not allow it.",
    "413": "The body or the message is too large.",
    "415": "The body is no JSON.",
    "501": "The runtime does not have it.",
    "503": "There is no room for it now, or the store cannot be used.",
}
_SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or an access token, as for '/mcp'."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


class NewSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to create; every field may be left out."""

    cwd: str | None = None
    """The folder that the agent works in: one of the server's roots, or below one."""
    model: str | None = None
    permission_mode: PermissionMode | None = None


class NewMessage(NewSession, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to an agent; only the first one of a session can choose a folder."""

    content: str
    attended: bool = True
    """Whether a person is at hand; without one, what needs a person is refused when the countdown ends."""


class DecisionReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a person approves or denies; may be left out."""

    reason: str = ""
    """The model reads the reason of a denial."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a question."""

    content: dict[str, Any]


class Session(SessionFacts, frozen=True, kw_only=True):
    """A session as clients see it."""

    running: bool


class SessionWithInteractions(Session, frozen=True, kw_only=True):
    """A session, and what it waits for."""

    interactions: list[WaitingApproval | WaitingQuestion]


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a session, in order: the last turns, at most 100; with 'before', those before the first of them."""

    messages: list[Message]


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, the last used first."""

    sessions: list[Session]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a person, the oldest first."""

    interactions: list[WaitingApproval | WaitingQuestion]


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there was a turn to cancel."""

    cancelled: bool


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided."""

    interaction_id: str
    decision: Literal["approve", "deny", "answer"]


class FailureDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed."""

    code: CodeName
    message: str
    hint: str | None
    retryable: bool
    details: dict[str, Any]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that failed."""

    error: FailureDetails


class Route(NamedTuple):
    """One operation of the API."""

    method: str
    path: str
    """With names of parameters in braces."""
    name: str
    """The method of `AgentApi` that serves it."""
    summary: str
    answer: Any = None
    """The type of the answer; None if it has no body."""
    body: type[msgspec.Struct] | None = None
    status: int = 200


_SESSION: Final = "/api/sessions/{session_id}"
_INTERACTION: Final = "/api/interactions/{interaction_id}"
_LAST: Final = "List the sessions of the caller, the last used first."
_ONE: Final = "Return a session, whether it runs, and what it waits for."
_HISTORY: Final = "List the messages of a session with what the agent did, also of turns before a restart."
_AGAIN: Final = "Stream the events of the current or last turn again."
_WAITING: Final = "List what waits for a decision or an answer, the oldest first."
_DENY: Final = "Deny a tool call, or decline a question."
ROUTES: Final = (
    Route("GET", "/api/sessions", "list_sessions", _LAST, Sessions),
    Route("POST", "/api/sessions", "create_session", "Create a session.", Session, body=NewSession, status=201),
    Route("GET", _SESSION, "get_session", _ONE, SessionWithInteractions),
    Route("DELETE", _SESSION, "delete_session", "Cancel what runs in a session, and delete it.", status=204),
    Route("GET", f"{_SESSION}/messages", "list_messages", _HISTORY, Messages),
    Route(
        "POST",
        f"{_SESSION}/messages",
        "send_message",
        "Send a message, and stream the turn.",
        StreamEvent,
        body=NewMessage,
    ),
    Route("GET", f"{_SESSION}/events", "read_events", _AGAIN, StreamEvent),
    Route("POST", f"{_SESSION}/cancel", "cancel", "Cancel the running turn.", Cancelled),
    Route("GET", "/api/interactions", "list_interactions", _WAITING, Waiting),
    Route("POST", f"{_INTERACTION}/approve", "approve", "Approve a tool call.", Settled, body=DecisionReason),
    Route("POST", f"{_INTERACTION}/deny", "deny", _DENY, Settled, body=DecisionReason),
    Route("POST", f"{_INTERACTION}/answer", "answer", "Answer a question.", Settled, body=Answer),
    Route("GET", "/api/openapi.json", "describe", "Return this document.", dict[str, Any]),
)


class _Stream(NamedTuple):
    turn: Turn
    after: int = 0


class AgentApi:
    """Serves an `AgentManager` over HTTP."""

    def __init__(self, manager: AgentManager, *, roots: Sequence[Path], keep_alive: float = _KEEP_ALIVE_S) -> None:
        self._manager = manager
        self._roots = [root.resolve() for root in roots]
        self._keep_alive = keep_alive
        self._routes = [(route, _pattern(route.path)) for route in ROUTES]

    @property
    def mounts(self) -> dict[str, Mount]:
        """Return what the HTTP application mounts."""
        return {path: Mount(handle=self.serve, has_subpaths=True, end=self._manager.cancel_all) for path in _PATHS}

    async def serve(self, request: Request, writer: ResponseWriter) -> None:
        """Serve one request.

        Raises:
            RefusedError: There is no such operation, or the body is no JSON.
        """
        known = {route.method: (route, place) for route, pattern in self._routes if (place := pattern(request.path))}
        if not known:
            raise RefusedError(404, "There is nothing here. The API is described by '/api/openapi.json'.")
        if request.method not in known:
            allowed = ", ".join(known)
            raise RefusedError(405, f"Only {allowed} is allowed here.", ((b"allow", allowed.encode()),))
        route, place = known[request.method]
        try:
            body = _read_body(request, route)
            arguments = place.groups() if body is None else (*place.groups(), body)
            answer: object = await getattr(self, f"_{route.name}")(request, *arguments)
            if isinstance(answer, _Stream):
                await self._stream(writer, *answer)
            elif answer is None:
                await writer.respond(204, b"", ())
            else:
                await writer.respond(route.status, encode(answer))
        except ToolError as error:
            await _respond_failure(writer, error)
        except StoreUnavailableError as error:
            await _respond_failure(writer, store_unavailable(error, may_have_run=False))

    def waiting(self) -> list[dict[str, Any]]:
        """Return what the agents of all callers wait for besides approvals of the yard, the oldest first."""
        found = [one for one in self._manager.interactions.pending() if not one.approval_id]
        return [
            {**msgspec.to_builtins(view), "identity": one.identity}
            for one, view in zip(found, _shown(found), strict=True)
        ]

    def decide(self, interaction_id: str, *, approve: bool, by: str, reason: str) -> None:
        """Approve or deny a tool call, or decline a question.

        Raises:
            ToolError: `not_found`, or `state_error` if a question is approved.
        """
        self._manager.interactions.decide(interaction_id, approve=approve, by=by, reason=reason)

    async def _list_sessions(self, request: Request) -> Sessions:
        sessions = await self._manager.sessions.all(self._seen_by(request))
        return Sessions(sessions=[Session(**self._facts(session)) for session in sessions])

    async def _create_session(self, request: Request, body: NewSession) -> Session:
        self._check_mode(body.permission_mode)
        session = await self._manager.sessions.create(
            request.caller,
            runtime=self._manager.runtime.name,
            cwd=self._folder(body.cwd),
            model=body.model,
            permission_mode=body.permission_mode or "",
        )
        return Session(**self._facts(session))

    async def _get_session(self, request: Request, session_id: str) -> SessionWithInteractions:
        session = await self._session(request, session_id)
        pending = self._manager.interactions.pending(identity=session.identity, session_id=session.id)
        return SessionWithInteractions(**self._facts(session), interactions=_shown(pending))

    async def _delete_session(self, request: Request, session_id: str) -> None:
        await self._manager.delete(await self._manager.sessions.get(request.caller.identity, session_id))

    async def _list_messages(self, request: Request, session_id: str) -> Messages:
        session = await self._session(request, session_id)
        before = parse_qs(request.query.decode("latin-1")).get("before", [""])[-1]
        if before and not (before.isdecimal() and len(before) <= _DIGITS):
            raise refused("invalid_input", "'before' is the number of a turn.")
        return Messages(messages=await self._manager.history(session, before=int(before) if before else None))

    async def _send_message(self, request: Request, session_id: str, body: NewMessage) -> _Stream:
        # operators see the sessions of others, and do not speak in them
        session = await self._manager.sessions.get(request.caller.identity, session_id)
        self._check_mode(body.permission_mode or session.permission_mode)  # the server may be stricter now than it was
        if session.cwd is not None and self._folder(session.cwd) != session.cwd:
            raise _outside()
        options = MessageOptions(
            caller=request.caller, model=body.model, permission_mode=body.permission_mode, attended=body.attended
        )
        options["create"] = False  # it may have been deleted meanwhile
        if body.cwd is not None:
            options["cwd"] = self._folder(body.cwd)
        return _Stream(await self._manager.start_turn(session.id, body.content, **options))

    async def _read_events(self, request: Request, session_id: str) -> _Stream:
        turn = self._manager.turn_of(await self._session(request, session_id))
        if turn is None:
            message = "No turn of this session runs, and the events of the last one are not kept any longer."
            raise refused("not_found", message, reason="no_turn")
        number, _, last = request.text(b"last-event-id").partition("-")
        return _Stream(turn, int(last[:_DIGITS]) if number == str(turn.number) and last.isdecimal() else 0)

    async def _cancel(self, request: Request, session_id: str) -> Cancelled:
        return Cancelled(cancelled=await self._manager.cancel(await self._session(request, session_id)))

    async def _list_interactions(self, request: Request) -> Waiting:
        return Waiting(interactions=_shown(self._manager.interactions.pending(identity=self._seen_by(request))))

    async def _approve(self, request: Request, interaction_id: str, body: DecisionReason) -> Settled:
        return self._decide(request, interaction_id, approve=True, reason=body.reason)

    async def _deny(self, request: Request, interaction_id: str, body: DecisionReason) -> Settled:
        return self._decide(request, interaction_id, approve=False, reason=body.reason)

    def _decide(self, request: Request, interaction_id: str, *, approve: bool, reason: str) -> Settled:
        self._check_interaction(request, interaction_id)
        self._manager.interactions.decide(interaction_id, approve=approve, by=request.caller.identity, reason=reason)
        return Settled(interaction_id=interaction_id, decision="approve" if approve else "deny")

    async def _answer(self, request: Request, interaction_id: str, body: Answer) -> Settled:
        self._check_interaction(request, interaction_id)
        self._manager.interactions.answer(interaction_id, body.content, by=request.caller.identity)
        return Settled(interaction_id=interaction_id, decision="answer")

    async def _describe(self, _: Request) -> dict[str, Any]:
        return openapi_document(self._manager.yard.name)

    async def _stream(self, writer: ResponseWriter, turn: Turn, after: int) -> None:
        """Write the events of a turn until its end; a client that disconnects ends the writing, not the turn."""
        with turn.reader() as wake:
            gone = asyncio.Event()

            def leave() -> None:
                gone.set()
                wake.set()

            writer.watch(leave)
            try:
                await writer.start_stream()
                while not gone.is_set():
                    wake.clear()
                    is_last, events = turn.is_over, turn.after(after)
                    after = events[-1][0] if events else after
                    if events or is_last:
                        await writer.write(b"".join(_sse(turn, *numbered) for numbered in events), last=is_last)
                    if is_last:
                        return
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._keep_alive or None):
                            await wake.wait()
                        continue
                    await writer.write(KEEP_ALIVE)
            finally:
                writer.unwatch()

    def _is_operator(self, caller: Caller) -> bool:
        gate = self._manager.yard.gate
        return gate is not None and gate.is_operator(caller)

    def _seen_by(self, request: Request) -> str | None:
        """Return whose sessions a caller sees; None is those of everybody."""
        return None if self._is_operator(request.caller) else request.caller.identity

    async def _session(self, request: Request, session_id: str) -> AgentSession:
        is_operator = self._is_operator(request.caller)
        return await self._manager.sessions.get(request.caller.identity, session_id, is_operator=is_operator)

    def _check_interaction(self, request: Request, interaction_id: str) -> None:
        """Refuse an interaction of another's session, as if there were none."""
        self._manager.interactions.get(interaction_id, identity=self._seen_by(request))

    def _check_mode(self, mode: str | None) -> None:
        """Refuse a mode that is looser than the server's own.

        Raises:
            ToolError: `permission_denied`.
        """
        own = self._manager.options.permission_mode
        if mode and not mode_of(mode).fits(mode_of(own)):
            message = f"The permission mode '{mode}' is looser than '{own}', which the server allows."
            raise refused("permission_denied", message, hint="Choose a stricter one.")

    def _folder(self, cwd: str | None) -> str | None:
        """Return the real path of a folder for the agent, which must be in one of the roots.

        Raises:
            ToolError: `permission_denied`, or `not_supported` if agents work in no folder.
        """
        if not self._manager.runtime.has_folder:
            if cwd is None:
                return None
            raise refused("not_supported", "Agents of this runtime work in no folder.", hint="Leave 'cwd' out.")
        with suppress(OSError, ValueError, RuntimeError):  # there is none, or its name is no name
            folder = (self._roots[0] / (cwd or "")).resolve(strict=True)
            if folder.is_dir() and any(folder.is_relative_to(root) for root in self._roots):
                return str(folder)
        raise _outside()

    def _facts(self, session: AgentSession) -> dict[str, Any]:
        facts = {name: getattr(session, name) for name in SessionFacts.__struct_fields__}
        return {**facts, "running": self._manager.is_running(session)}


def _shown(pending: list[Interaction]) -> list[WaitingApproval | WaitingQuestion]:
    return [interaction.view(time.time()) for interaction in pending]


def _outside() -> ToolError:
    message = "The folder is outside of those that agents may work in, or does not exist."
    return refused("permission_denied", message, reason="outside_roots", hint="See 'agents.roots'.")


def _sse(turn: Turn, place: int, event: StreamEvent) -> bytes:
    return encode_event(encode_stream_event(event), event_id=f"{turn.number}-{place}", kind=type_of(event))


def _pattern(path: str) -> Callable[[str], "re.Match[str] | None"]:
    return re.compile(re.sub(r"\{\w+\}", "([^/]+)", path.replace(".", r"\."))).fullmatch


def _read_body(request: Request, route: Route) -> msgspec.Struct | None:
    """Return the body of a request.

    Every POST must be JSON: a browser asks the server before a page of another origin may send it.

    Raises:
        RefusedError: 415 if it is something else.
        ToolError: `invalid_input` if it does not fit.
    """
    if request.method != "POST":
        return None
    if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
        raise RefusedError(415, "The body must be 'application/json'.")
    if route.body is None:
        return None
    try:
        return msgspec.json.decode(request.body or b"{}", type=route.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # also valid JSON of another shape
        raise refused("invalid_input", f"The body is wrong: {error}.", hint="See '/api/openapi.json'.") from error


async def _respond_failure(writer: ResponseWriter, error: ToolError) -> None:
    whole = Envelope.fail(error).error
    shown = {name: getattr(whole, name) for name in FailureDetails.__struct_fields__}
    await writer.respond(CODES[error.code].http, encode(Failure(error=FailureDetails(**shown))))


def openapi_document(title: str) -> dict[str, Any]:
    """Return the OpenAPI document of the HTTP API, from its routes and structs."""
    kinds: list[Any] = [
        StreamEvent,
        Failure,
        *(kind for route in ROUTES for kind in (route.answer, route.body) if kind is not None),
    ]
    found, schemas = msgspec.json.schema_components(kinds, ref_template=_REFS)
    schema_of = {**dict(zip(kinds, found, strict=True)), StreamEvent: {"$ref": _REFS.format(name="StreamEvent")}}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Agents of {title}", "version": VERSION},
        "security": [{}, *({name: list[str]()} for name in _SECURITY)],  # a server without '[auth]' needs none
        "paths": paths,
        "components": {"schemas": {**schemas, "StreamEvent": found[0]}, "securitySchemes": _SECURITY},
    }


def _operation(route: Route, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    text: dict[str, Any] = {"schema": {"type": "string"}}
    names: list[str] = re.findall(r"\{(\w+)\}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, **text} for name in names]
    if route.name == "read_events":
        about = "The id of the last event that was read; those of another turn are ignored."
        parameters.append({"name": "Last-Event-ID", "in": "header", "description": about, **text})
    if route.name == "list_messages":
        about = "The number of a turn; the messages before it are returned."
        parameters.append({"name": "before", "in": "query", "description": about, "schema": {"type": "integer"}})
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": _responses(route, schema_of),
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(route: Route, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "It succeeded."}
    if route.answer is StreamEvent:
        success["description"] = "Server-sent events; the data of each is a StreamEvent, and the last one is 'done'."
    if route.answer is not None:
        media = "text/event-stream" if route.answer is StreamEvent else "application/json"
        success["content"] = {media: {"schema": schema_of[route.answer]}}
    # A request that the HTTP server refuses before the API sees it is answered with a sentence.
    failure = {"application/json": {"schema": schema_of[Failure]}, "text/plain": {"schema": {"type": "string"}}}
    failures = {status: {"description": text, "content": failure} for status, text in _FAILURES.items()}
    return {str(route.status): success, **failures}
