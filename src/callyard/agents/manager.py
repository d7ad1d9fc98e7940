"""`AgentManager`: the one place that runs agents with the yard's tools, and asks their people.

It knows no SDK, which is the runtime's business, and no HTTP. Its turns run in tasks of their own until they end or are
cancelled.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import cached_property
from typing import Any, Final, Self, TypedDict, Unpack, cast
from weakref import ref

import msgspec

from callyard._internal.logfmt import log_exception, log_value
from callyard.agents.events import Done, Error, Status, StreamEvent
from callyard.agents.history import AgentMessages, Message, keeping
from callyard.agents.interactions import ELICITATION, MODES, Interactions, Person
from callyard.agents.sessions import AgentSession, AgentSessions
from callyard.agents.turn import AgentRuntime, Turn, TurnRequest
from callyard.dispatch.call import ANYONE, Caller
from callyard.dispatch.outcome import store_unavailable
from callyard.inject.plain import Conversation
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError, refused
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard

__all__ = ["AgentManager", "AgentOptions", "MessageOptions", "Servers"]

Servers = Mapping[str, Any] | Callable[[AgentSession], Mapping[str, Any]]
"""MCP servers of the host, or a function that makes those of a session for each query."""
_MAX_FINISHED: Final = 100
_KEPT_S: Final = 600.0
"""How long the events of a finished turn can be read."""
_SHARE: Final = 4
"""One identity runs at most this part of the turns, so that others find a place."""
_MAX_CHARACTERS: Final = 1_000_000
_TITLE_CHARACTERS: Final = 80
_LATER: Final = "Send it again later."
_CANCELLED: Final = Error(code="cancelled", message="The turn was cancelled.")
_STOPPED: Final = {
    "lost": Error(code="cancelled", message="The store was away, and another server took the session over."),
    "shutdown": Error(
        code="cancelled", message="The server shuts down.", hint="Send the message again later.", retryable=True
    ),
}
"""The last event but one of a turn that was cancelled, by the reason."""
_log = logging.getLogger(__name__)


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How agents are run."""

    permission_mode: str = "default"
    model: str | None = None
    countdown_s: float = 600.0
    """How long a person has at first; an unattended turn is refused then."""
    park_s: float = 14_400.0
    """How long an interaction waits in all before it is refused."""
    turn_s: float = 3600.0
    """How long a turn may take, apart from the time that a person is asked; 0 is for ever."""
    turns: int = 8
    """How many turns run at one time; an identity that signed in runs at most a quarter of them, and at least one."""
    ask_before_destroy: bool = True


class MessageOptions(TypedDict, total=False):
    """The options of one message."""

    caller: Caller
    cwd: str | None
    """The folder that the agent works in; only a session's first message can choose it."""
    permission_mode: str | None
    model: str | None
    create: bool
    """Whether an unknown session is created, which is the default; otherwise it is `not_found`."""
    attended: bool
    """Whether a person is at hand; without one, what needs a person is refused when the countdown ends."""


class AgentManager:
    """Runs agents with the tools of an open yard; use it as a context manager inside the yard's."""

    def __init__(self, yard: Yard, runtime: AgentRuntime, options: AgentOptions | None = None) -> None:
        self.yard = yard
        self.runtime = runtime
        self.options = options or AgentOptions()
        self.interactions = Interactions(countdown_s=self.options.countdown_s, park_s=self.options.park_s)
        self._servers: Servers = {}
        self._turns: dict[tuple[str, str], Turn] = {}
        self._is_closing = False

    async def __aenter__(self) -> Self:
        self._is_closing = False
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel_all()
        for turn in list(self._turns.values()):
            await turn.wait()

    @cached_property
    def sessions(self) -> AgentSessions:
        """Return the sessions in the store of the open yard."""
        return AgentSessions(self.yard.store)

    @cached_property
    def messages(self) -> AgentMessages:
        """Return the messages of the sessions, in the store of the open yard."""
        return AgentMessages(self.yard.store)

    async def history(self, session: AgentSession, *, before: int | None = None) -> list[Message]:
        """Return the last messages of a session in order, or those of the turns before a number."""
        turn = self.turn_of(session)
        return await self.messages.of(session, before=before, running=None if turn is None else turn.record)

    def set_mcp_servers(self, servers: Servers) -> None:
        """Add MCP servers of the host to every later query, or a function that makes them; the yard's own come last.

        Raises:
            ValueError: A name is reserved for the yard, or the runtime takes no servers.
        """
        if not callable(servers):  # those of a function are checked for each query
            self.runtime.check_servers(servers)
        self._servers = servers

    async def send_message(
        self, session_id: str, content: str, **options: Unpack[MessageOptions]
    ) -> AsyncGenerator[StreamEvent]:
        """Send a message to an agent and yield what happens, up to `done`; an unknown session is a new one.

        Closing the iterator before its end cancels the turn.

        Raises:
            ToolError: The message is refused: `state_error` while another one runs, here or in another server,
            `overloaded`,
                `not_found` or `invalid_input`.
        """
        turn = await self.start_turn(session_id, content, **options)
        try:
            async with aclosing(turn.events()) as events:
                async for event in events:
                    yield event
        finally:
            turn.cancel("client")
            await turn.wait()

    async def start_turn(self, session_id: str, content: str, **options: Unpack[MessageOptions]) -> Turn:
        """Start the turn of a message; it goes on even if nobody reads its events.

        Raises:
            ToolError: As `send_message`.
        """
        self._check(content, options)
        caller = options.get("caller", ANYONE)
        key = (caller.identity, session_id)
        self._check_room(key)
        turn = self._reserve(key)
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.sessions.locked(*key, on_lost=lambda: turn.cancel("lost")))
                session = await self._find(caller, session_id, options)
                self._check_session(session, options)
                title = session.title or " ".join(content.split())[:_TITLE_CHARACTERS]
                turn.session = session = await self.sessions.save(session, turns=session.turns + 1, title=title)
                turn.record = await self.messages.begin(session, content)
                self._check_open()
                mode = options.get("permission_mode") or session.permission_mode or self.options.permission_mode
                attended = options.get("attended", True)
                person = Person(self.yard, self.interactions, turn, session=session, mode=mode, attended=attended)
                turn.start(self._run(person, caller, content, options, held=stack.pop_all()))
        except BaseException:
            self._drop(key, turn)
            raise
        return turn

    def turn_of(self, session: AgentSession) -> Turn | None:
        """Return the turn of a session that runs, or its last one, if it is still kept."""
        return self._turns.get(session.key)

    def is_running(self, session: AgentSession) -> bool:
        """Return whether a turn of a session runs."""
        turn = self._turns.get(session.key)
        return turn is not None and not turn.is_over

    async def cancel(self, session: AgentSession, why: str = "client") -> bool:
        """Cancel the running turn of a session, wait until it has ended, and return whether there was one."""
        turn = self._turns.get(session.key)
        if turn is None or turn.is_over:
            return False
        turn.cancel(why)
        await turn.wait()
        return True

    async def delete(self, session: AgentSession) -> None:
        """Cancel what runs in a session, and delete it.

        Raises:
            ToolError: `state_error` while another server works in it.
        """
        while await self.cancel(session, "deleted"):  # another message may have come meanwhile
            pass
        turn = self._reserve(session.key)
        try:
            async with self.sessions.locked(*session.key):
                current = await self.sessions.find(*session.key)
                await self.messages.forget(session)
                await self.sessions.delete(session)
                if current is not None and self._is_elsewhere(current):
                    log = "conversation_left session=%s host=%s"
                    _log.warning(log, log_value(session.id), log_value(current.host))
                    return
                for sdk_session_id in () if current is None else current.sdk_session_ids or (current.sdk_session_id,):
                    await self.runtime.forget(sdk_session_id)
        finally:
            self._drop(session.key, turn)

    def cancel_all(self) -> None:
        """Cancel every turn and take no more, because the server shuts down.

        The streams end at once, because an SDK may take longer to end its process than the server waits for a response.
        """
        self._is_closing = True
        for turn in self._turns.values():
            turn.cancel("shutdown")
            if turn.session is not None and not turn.is_over:
                self._end(turn, turn.session, "cancelled")

    def _check(self, content: str, options: MessageOptions) -> None:
        mode = options.get("permission_mode")
        if not content.strip():
            raise refused("invalid_input", "The message is empty.")
        if len(content) > _MAX_CHARACTERS:
            raise refused("too_large", f"A message has at most {_MAX_CHARACTERS} characters.")
        if mode is not None and mode not in MODES:
            raise refused("invalid_input", f"There is no permission mode '{mode}'.", hint=f"Known: {', '.join(MODES)}.")
        if options.get("cwd") is not None and not self.runtime.has_folder:
            message = f"An agent of the runtime '{self.runtime.name}' works in no folder."
            raise refused("not_supported", message, hint="Leave 'cwd' out.")

    def _check_session(self, session: AgentSession, options: MessageOptions) -> None:
        cwd = options.get("cwd")
        if session.runtime != self.runtime.name:
            message = f"The session belongs to the runtime '{session.runtime}', and this is '{self.runtime.name}'."
            raise refused("state_error", message, reason="other_runtime")
        if self._is_elsewhere(session):
            hint = "Send the message to the server there, or begin another session."
            raise refused("state_error", f"The conversation is on '{session.host}'.", reason="not_here", hint=hint)
        if cwd is not None and cwd != session.cwd:
            message = "A session stays in the folder that it began in."
            raise refused("state_error", message, reason="other_folder", hint="Start another session.")

    def _is_elsewhere(self, session: AgentSession) -> bool:
        """Return whether only the files of another machine have the conversation of a session."""
        return bool(session.host and session.sdk_session_id) and session.host != socket.gethostname()

    def _check_open(self) -> None:
        if self._is_closing:
            raise refused("overloaded", "The server shuts down.", hint=_LATER)

    def _check_room(self, key: tuple[str, str]) -> None:
        """Refuse a message while its session, its identity or the server has no room for a turn."""
        running = [other for other, turn in self._turns.items() if not turn.is_over]
        if key in running:
            message = "The agent still works on another message."
            raise refused("state_error", message, reason="turn_running", hint="Wait for its end, or cancel it.")
        self._check_open()
        most = self.options.turns
        if len(running) >= most:
            raise refused("overloaded", f"{most} turns run already.", reason="turns_full", hint=_LATER)
        # without credentials all have one identity
        share = most if key[0] == ANYONE.identity else max(most // _SHARE, 1)
        if sum(identity == key[0] for identity, _ in running) >= share:
            raise refused("overloaded", f"{share} of your turns run already.", reason="turns_full", hint=_LATER)

    def _reserve(self, key: tuple[str, str]) -> Turn:
        """Take the place of a turn, before anything is awaited, lest two messages run at once."""
        over = [other for other, turn in self._turns.items() if turn.is_over]
        for other in over[: len(over) - _MAX_FINISHED + 1] if len(over) >= _MAX_FINISHED else ():
            del self._turns[other]
        self._turns.pop(key, None)
        turn = self._turns[key] = Turn(seconds=self.options.turn_s)
        return turn

    def _drop(self, key: tuple[str, str], turn: Turn) -> None:
        """Give the place of a turn that did not start to the next one."""
        turn.end()
        if self._turns.get(key) is turn:
            del self._turns[key]

    def _drop_kept(self, key: tuple[str, str], kept: "ref[Turn]") -> None:
        """Drop a turn that is over for long; the timer must not keep its events if another turn took its place."""
        turn = kept()
        if turn is not None:
            self._drop(key, turn)

    async def _find(self, caller: Caller, session_id: str, options: MessageOptions) -> AgentSession:
        """Return the session of a message; an unknown one is created, unless the message says otherwise."""
        if not options.get("create", True):
            return await self.sessions.get(caller.identity, session_id)
        found, runtime = await self.sessions.find(caller.identity, session_id), self.runtime.name
        return found or await self.sessions.create(
            caller, runtime=runtime, session_id=session_id, cwd=options.get("cwd")
        )

    async def _run(
        self, person: Person, caller: Caller, content: str, options: MessageOptions, *, held: AsyncExitStack
    ) -> None:
        """Run the turn of a person to its last event, whatever happens, and release the session."""
        turn, session, status = person.turn, person.session, cast("Status", "failed")
        timeout = asyncio.timeout(self.options.turn_s or None)
        try:
            turn.check_cancelled()
            request = self._request(person, caller, content, options)
            async with keeping(turn.record), timeout, aclosing(self.runtime.run(request)) as events:
                with turn.limited(timeout):
                    async for event in events:
                        turn.emit(event)
            status = "completed"
        except asyncio.CancelledError:
            status = "cancelled"
        except Exception as error:  # noqa: BLE001 - a defect must not leave a stream without an end
            turn.emit(self._explain(error, session, is_late=timeout.expired()))
        finally:
            async with held:
                await person.close()
            self._end(turn, session, status)
            if turn.record is not None:
                await turn.record.save()
            asyncio.get_running_loop().call_later(_KEPT_S, self._drop_kept, session.key, ref(turn))

    def _end(self, turn: Turn, session: AgentSession, status: Status) -> None:
        self.interactions.cancel(identity=session.identity, session_id=session.id)
        if status == "cancelled":
            turn.emit(_STOPPED.get(turn.stopped_by, _CANCELLED))
        turn.emit(Done(status=status, elapsed_ms=turn.elapsed_ms))

    def _explain(self, error: Exception, session: AgentSession, *, is_late: bool) -> Error:
        if is_late:
            message = f"The turn took longer than {self.options.turn_s:g} seconds."
            return Error(code="timeout", message=message, hint="Send a smaller task, or raise 'agents.turn_seconds'.")
        if isinstance(error, StoreUnavailableError):
            error = store_unavailable(error, may_have_run=True)
        failure = Envelope.fail(error).error if isinstance(error, ToolError) else None
        if failure is not None:
            return Error(
                code=failure.code, message=failure.message, hint=failure.hint or "", retryable=failure.retryable
            )
        log_exception(_log, "turn_failed session=%s runtime=%s", log_value(session.id), self.runtime.name, error=error)
        message, hint = "The turn failed because of a defect.", "The log of the server says more."
        return Error(code="internal_error", message=message, hint=hint)

    def _request(self, person: Person, caller: Caller, content: str, options: MessageOptions) -> TurnRequest:
        turn, session = person.turn, person.session
        conversation = Conversation(
            self.yard,
            caller=caller,
            scope=session.scope,
            ask_before_destroy=self.options.ask_before_destroy,
            client=f"agent-{self.runtime.name}",
        )
        conversation.channel = msgspec.structs.replace(
            conversation.channel, ask=person.ask_client, capabilities=ELICITATION, has_permitted=person.has_permitted
        )
        conversation.progress_of = person.progress_of
        servers = self._servers(session) if callable(self._servers) else self._servers
        self.runtime.check_servers(servers)

        async def remember(sdk_session_id: str) -> None:
            current = turn.session or session
            if current.sdk_session_id != sdk_session_id:
                ids = tuple(dict.fromkeys([*current.sdk_session_ids, *filter(None, [sdk_session_id])]))
                host = socket.gethostname() if self.runtime.has_folder and self.yard.store.is_shared else ""
                turn.session = await self.sessions.save(
                    current, sdk_session_id=sdk_session_id, sdk_session_ids=ids, host=host
                )

        return TurnRequest(
            content=content,
            conversation=conversation,
            permit=person.permit,
            ask=person.ask,
            remember=remember,
            store=self.yard.store,
            store_key=self.sessions.items_key(session),
            resume=session.sdk_session_id,
            permission_mode=person.mode,
            model=options.get("model") or session.model or self.options.model,
            cwd=session.cwd,
            servers=servers,
            hold_s=self.interactions.hold_s,
        )
