"""The HTTP API of agents: sessions, messages as event streams, and decisions of people.

It is mounted beside `/mcp`. The HTTP application authenticates each request and checks its host before it calls this module.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from callyard.agents.events import StreamEvent, encode_stream_event, type_of
from callyard.agents.interactions import Interaction, WaitingApproval, WaitingQuestion, looseness
from callyard.agents.manager import AgentManager, MessageOptions
from callyard.agents.sessions import AgentSession
from callyard.agents.turn import Turn
from callyard.config.settings import PermissionMode
from callyard.dispatch.call import Caller
from callyard.dispatch.outcome import store_unavailable
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import CODES, CodeName, ToolError
from callyard.state.store import StoreUnavailableError
from callyard.transports.http.app import Mount
from callyard.transports.http.request import RefusedError, Request
from callyard.transports.http.response import ResponseWriter
from callyard.wire.sse import KEEP_ALIVE, encode_event

__all__ = [
    "PATHS",
    "ROUTES",
    "AgentApi",
    "Answer",
    "Cancelled",
    "DecisionReason",
    "Failure",
    "NewMessage",
    "NewSession",
    "Route",
    "Session",
    "SessionWithInteractions",
    "Sessions",
    "Settled",
    "Waiting",
]

PATHS: Final = ("/api/sessions", "/api/interactions", "/api/openapi.json")
"""Where it is mounted."""
_JSON_TYPE: Final = b"application/json"
_KEEP_ALIVE_S: Final = 15.0
_DIGITS: Final = 9


class NewSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session to create; every field may be left out."""

    cwd: str | None = None
    """The folder that the agent works in: one of the server's roots, or below one."""
    model: str | None = None
    permission_mode: PermissionMode | None = None


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to an agent."""

    content: str
    cwd: str | None = None
    """The folder that the agent works in; only the first message of a session can choose it."""
    model: str | None = None
    permission_mode: PermissionMode | None = None
    attended: bool = True
    """Whether a person is at hand; without one, what needs a person is refused when the countdown ends."""


class DecisionReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a person approves or denies; may be left out."""

    reason: str = ""
    """The model reads the reason of a denial."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a question."""

    content: dict[str, Any]
    """The filled form."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A session as clients see it."""

    id: str
    identity: str
    """Whose it is."""
    runtime: str
    created_at: float
    """Seconds since the epoch."""
    updated_at: float
    title: str
    """The beginning of the first message."""
    turns: int
    cwd: str | None
    model: str | None
    permission_mode: str
    """Empty for the mode of the server."""
    running: bool
    """Whether a turn runs."""


class SessionWithInteractions(Session, frozen=True, kw_only=True):
    """A session, and what it waits for."""

    interactions: list[WaitingApproval | WaitingQuestion]


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
    """Whether the same request may succeed later."""
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
    """The status of a success."""


_SESSION: Final = "/api/sessions/{session_id}"
_INTERACTION: Final = "/api/interactions/{interaction_id}"
ROUTES: Final = (
    Route("GET", "/api/sessions", "list_sessions", "List the sessions of the caller, the last used first.", Sessions),
    Route("POST", "/api/sessions", "create_session", "Create a session.", Session, body=NewSession, status=201),
    Route("GET", _SESSION, "get_session", "Return a session, whether it runs, and what it waits for.", SessionWithInteractions),
    Route("DELETE", _SESSION, "delete_session", "Cancel what runs in a session, and delete it.", status=204),
    Route("POST", f"{_SESSION}/messages", "send_message", "Send a message, and stream the turn.", StreamEvent, body=NewMessage),
    Route("GET", f"{_SESSION}/events", "read_events", "Stream the events of the current or last turn again.", StreamEvent),
    Route("POST", f"{_SESSION}/cancel", "cancel", "Cancel the running turn.", Cancelled),
    Route("GET", "/api/interactions", "list_interactions", "List what waits for a decision or an answer, the oldest first.", Waiting),
    Route("POST", f"{_INTERACTION}/approve", "approve", "Approve a tool call.", Settled, body=DecisionReason),
    Route("POST", f"{_INTERACTION}/deny", "deny", "Deny a tool call, or decline a question.", Settled, body=DecisionReason),
    Route("POST", f"{_INTERACTION}/answer", "answer", "Answer a question.", Settled, body=Answer),
    Route("GET", "/api/openapi.json", "describe", "Return this document.", dict[str, Any]),
)
"""Every operation."""


class _Match(NamedTuple):
    route: Route
    serve: Callable[..., Awaitable[None]]
    pattern: "re.Pattern[str]"


class AgentApi:
    """Serves an `AgentManager` over HTTP."""

    def __init__(self, manager: AgentManager, *, roots: Sequence[Path], keep_alive: float = _KEEP_ALIVE_S) -> None:
        self._manager = manager
        self._roots = [root.resolve() for root in roots]
        self._keep_alive = keep_alive
        self._routes = [_Match(route, getattr(self, f"_{route.name}"), _pattern(route.path)) for route in ROUTES]

    @property
    def mounts(self) -> dict[str, Mount]:
        """Return what the HTTP application mounts."""
        return {path: Mount(handle=self.serve, has_subpaths=True, end=self._manager.cancel_all) for path in PATHS}

    async def serve(self, request: Request, writer: ResponseWriter) -> None:
        """Serve one request.

        Raises:
            RefusedError: There is no such operation, or the body is no JSON.
        """
        found = [(match, match.pattern.fullmatch(request.path)) for match in self._routes]
        known = [(match, place) for match, place in found if place is not None]
        if not known:
            raise RefusedError(404, "There is nothing here. The API is described by '/api/openapi.json'.")
        served = [(match, place) for match, place in known if match.route.method == request.method]
        if not served:
            allowed = ", ".join(match.route.method for match, _ in known)
            raise RefusedError(405, f"Only {allowed} is allowed here.", ((b"allow", allowed.encode()),))
        match, place = served[0]
        try:
            body = _read_body(request, match.route)
            arguments = [*place.groups(), *([] if body is None else [body])]
            await match.serve(request, writer, *arguments)
        except ToolError as error:
            await _respond_failure(writer, error)
        except StoreUnavailableError:
            await _respond_failure(writer, store_unavailable(may_have_run=False))

    async def _list_sessions(self, request: Request, writer: ResponseWriter) -> None:
        sessions = await self._manager.sessions.all(None if self._is_operator(request.caller) else request.caller.identity)
        await _respond(writer, 200, Sessions(sessions=[Session(**self._facts(session)) for session in sessions]))

    async def _create_session(self, request: Request, writer: ResponseWriter, body: NewSession) -> None:
        self._check_mode(body.permission_mode)
        session = await self._manager.sessions.create(
            request.caller,
            runtime=self._manager.runtime.name,
            cwd=self._folder(body.cwd),
            model=body.model,
            permission_mode=body.permission_mode or "",
        )
        await _respond(writer, 201, Session(**self._facts(session)))

    async def _get_session(self, request: Request, writer: ResponseWriter, session_id: str) -> None:
        session = await self._session(request, session_id)
        pending = self._manager.interactions.pending(identity=session.identity, session_id=session.id)
        await _respond(writer, 200, SessionWithInteractions(**self._facts(session), interactions=self._shown(pending)))

    async def _delete_session(self, request: Request, writer: ResponseWriter, session_id: str) -> None:
        await self._manager.delete(await self._own_session(request, session_id))
        await writer.respond(204, b"", ())

    async def _send_message(self, request: Request, writer: ResponseWriter, session_id: str, body: NewMessage) -> None:
        session = await self._own_session(request, session_id)
        self._check_mode(body.permission_mode or session.permission_mode)  # the server may be stricter now than it was
        if session.cwd is not None and self._folder(session.cwd) != session.cwd:
            raise _outside()
        options = MessageOptions(caller=request.caller, model=body.model, permission_mode=body.permission_mode, attended=body.attended)
        options["create"] = False  # it may have been deleted meanwhile
        if body.cwd is not None:
            options["cwd"] = self._folder(body.cwd)
        turn = await self._manager.start_turn(session.id, body.content, **options)
        await self._stream(turn, writer)

    async def _read_events(self, request: Request, writer: ResponseWriter, session_id: str) -> None:
        session = await self._session(request, session_id)
        turn = self._manager.turn_of(session)
        if turn is None:
            message = "No turn of this session runs, and the events of the last one are not kept any longer."
            raise ToolError("not_found", message, reason="no_turn", may_have_run=False)
        number, _, last = request.text(b"last-event-id").partition("-")
        is_same = number == str(turn.number) and last.isdecimal()
        await self._stream(turn, writer, after=int(last[:_DIGITS]) if is_same else 0)

    async def _cancel(self, request: Request, writer: ResponseWriter, session_id: str) -> None:
        cancelled = await self._manager.cancel(await self._session(request, session_id))
        await _respond(writer, 200, Cancelled(cancelled=cancelled))

    async def _list_interactions(self, request: Request, writer: ResponseWriter) -> None:
        pending = self._manager.interactions.pending(identity=None if self._is_operator(request.caller) else request.caller.identity)
        await _respond(writer, 200, Waiting(interactions=self._shown(pending)))

    async def _approve(self, request: Request, writer: ResponseWriter, interaction_id: str, body: DecisionReason) -> None:
        await self._decide(request, writer, interaction_id, approve=True, reason=body.reason)

    async def _deny(self, request: Request, writer: ResponseWriter, interaction_id: str, body: DecisionReason) -> None:
        await self._decide(request, writer, interaction_id, approve=False, reason=body.reason)

    async def _decide(self, request: Request, writer: ResponseWriter, interaction_id: str, *, approve: bool, reason: str) -> None:
        self._check_interaction(request, interaction_id)
        self._manager.interactions.decide(interaction_id, approve=approve, by=request.caller.identity, reason=reason)
        await _respond(writer, 200, Settled(interaction_id=interaction_id, decision="approve" if approve else "deny"))

    async def _answer(self, request: Request, writer: ResponseWriter, interaction_id: str, body: Answer) -> None:
        self._check_interaction(request, interaction_id)
        self._manager.interactions.answer(interaction_id, body.content, by=request.caller.identity)
        await _respond(writer, 200, Settled(interaction_id=interaction_id, decision="answer"))

    async def _describe(self, _: Request, writer: ResponseWriter) -> None:
        from callyard.agents.openapi import openapi_document  # noqa: PLC0415 - few clients read it

        await _respond(writer, 200, openapi_document(self._manager.yard.name))

    async def _stream(self, turn: Turn, writer: ResponseWriter, *, after: int = 0) -> None:
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
                    if not await _wait(wake, self._keep_alive):
                        await writer.write(KEEP_ALIVE)
            finally:
                writer.unwatch()

    def _is_operator(self, caller: Caller) -> bool:
        gate = self._manager.yard.gate
        return gate is not None and gate.is_operator(caller)

    async def _session(self, request: Request, session_id: str) -> AgentSession:
        """Return a session that the caller may see."""
        return await self._manager.sessions.get(request.caller.identity, session_id, is_operator=self._is_operator(request.caller))

    async def _own_session(self, request: Request, session_id: str) -> AgentSession:
        """Return a session of the caller: operators see those of others, and do not speak in them."""
        return await self._manager.sessions.get(request.caller.identity, session_id)

    def _check_interaction(self, request: Request, interaction_id: str) -> None:
        """Refuse an interaction of another's session, as if there were none."""
        interaction = self._manager.interactions.get(interaction_id)
        if interaction.identity != request.caller.identity and not self._is_operator(request.caller):
            self._manager.interactions.get("")  # raises what an unknown id raises

    def _check_mode(self, mode: str | None) -> None:
        """Refuse a mode that is looser than the server's own.

        Raises:
            ToolError: `permission_denied`.
        """
        own = self._manager.options.permission_mode
        if mode and looseness(mode) > looseness(own):
            message = f"The permission mode '{mode}' is looser than '{own}', which the server allows."
            raise ToolError("permission_denied", message, hint="Choose a stricter one.", may_have_run=False)

    def _folder(self, cwd: str | None) -> str | None:
        """Return the real path of a folder for the agent, which must be in one of the roots.

        Raises:
            ToolError: `permission_denied`, or `not_supported` if agents work in no folder.
        """
        if not self._manager.runtime.has_folder:
            if cwd is not None:
                raise ToolError("not_supported", "Agents of this runtime work in no folder.", hint="Leave 'cwd' out.", may_have_run=False)
            return None
        try:
            folder = (self._roots[0] / (cwd or "")).resolve(strict=True)
            is_inside = folder.is_dir() and any(folder.is_relative_to(root) for root in self._roots)
        except (OSError, ValueError, RuntimeError):  # there is none, or its name is no name
            is_inside = False
        else:
            if is_inside:
                return str(folder)
        raise _outside()

    def _facts(self, session: AgentSession) -> dict[str, Any]:
        return {**session.view(), "running": self._manager.is_running(session)}

    def _shown(self, pending: list[Interaction]) -> list[WaitingApproval | WaitingQuestion]:
        now = time.time()
        return [interaction.view(now) for interaction in pending]


def _outside() -> ToolError:
    message = "The folder is outside of those that agents may work in, or does not exist."
    return ToolError("permission_denied", message, reason="outside_roots", hint="See 'agents.roots'.", may_have_run=False)


async def _wait(wake: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, and return whether it came in time."""
    try:
        async with asyncio.timeout(seconds or None):
            await wake.wait()
    except TimeoutError:
        return False
    return True


def _sse(turn: Turn, place: int, event: StreamEvent) -> bytes:
    return encode_event(encode_stream_event(event), event_id=f"{turn.number}-{place}", kind=type_of(event))


def _pattern(path: str) -> "re.Pattern[str]":
    return re.compile(re.sub(r"\{\w+\}", "([^/]+)", path.replace(".", r"\.")))


def _read_body(request: Request, route: Route) -> msgspec.Struct | None:
    """Return the body of a request. Every POST must be JSON: a browser asks the server before a page of another origin may send it.

    Raises:
        RefusedError: 415 if it is something else.
        ToolError: `invalid_input` if it does not fit.
    """
    if request.method != "POST":
        return None
    if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _JSON_TYPE:
        raise RefusedError(415, "The body must be 'application/json'.")
    if route.body is None:
        return None
    try:
        return msgspec.json.decode(request.body or b"{}", type=route.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # also what is valid JSON of another shape
        raise ToolError("invalid_input", f"The body is wrong: {error}.", hint="See '/api/openapi.json'.", may_have_run=False) from error


async def _respond_failure(writer: ResponseWriter, error: ToolError) -> None:
    whole = Envelope.fail(error).error
    shown = {name: getattr(whole, name) for name in FailureDetails.__struct_fields__}
    await _respond(writer, CODES[error.code].http, Failure(error=FailureDetails(**shown)))


async def _respond(writer: ResponseWriter, status: int, data: object) -> None:
    await writer.respond(status, encode(data))
