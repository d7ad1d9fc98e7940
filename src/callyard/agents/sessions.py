"""Agent sessions: conversations of callers with an agent, kept in the store so that they outlive the process."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import Any, Final

import msgspec

from callyard._internal.tasks import background_task
from callyard.dispatch.call import Caller
from callyard.model.errors import not_found, refused
from callyard.state.store import Store, StoreUnavailableError, owner_key

__all__ = ["AgentSession", "AgentSessions"]

_PREFIX: Final = "agent_session/"
_MAX_ID: Final = 128
_LEASE_S: Final = 15.0
_MAX_SESSIONS: Final = 1000


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What everybody may know of a session that may see it."""

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
    """The folder that the agent works in, which stays the same."""
    model: str | None
    permission_mode: str
    """The mode of its messages, unless a message has its own; empty for that of the server."""


class AgentSession(SessionFacts, frozen=True, kw_only=True):
    """One conversation with an agent."""

    sdk_session_id: str = ""
    """The id by which the SDK finds the conversation."""
    sdk_session_ids: tuple[str, ...] = ()
    """This id, and those that the conversation had before."""
    host: str = ""
    """The machine whose files have the conversation; empty if every server of the store has it."""

    @property
    def scope(self) -> str:
        """Return the scope of its calls, to which handles, yard sessions and approvals belong."""
        return f"agent-{self.id}"

    @property
    def key(self) -> tuple[str, str]:
        """Return what tells it apart from every other session."""
        return (self.identity, self.id)


class AgentSessions:
    """The agent sessions in a store."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def create(
        self,
        caller: Caller,
        *,
        runtime: str,
        session_id: str = "",
        cwd: str | None = None,
        model: str | None = None,
        permission_mode: str = "",
    ) -> AgentSession:
        """Store a new session and return it.

        Raises:
            ToolError: `overloaded` if the caller has too many, or `invalid_input` if the id cannot be used.
        """
        _check_id(session_id)
        if len(await self._store.keys(_folder(caller.identity), limit=_MAX_SESSIONS)) >= _MAX_SESSIONS:
            message = f"There are {_MAX_SESSIONS} sessions already."
            raise refused("overloaded", message, hint="Delete some.", reason="sessions_full")
        now = self._now()
        session = AgentSession(
            id=session_id or f"agent_{token_hex(8)}",
            identity=caller.identity,
            runtime=runtime,
            created_at=now,
            updated_at=now,
            title="",
            turns=0,
            cwd=cwd,
            model=model,
            permission_mode=permission_mode,
        )
        return await self.save(session)

    async def find(self, identity: str, session_id: str) -> AgentSession | None:
        """Return a session of an identity, if there is one."""
        data = await self._store.get(_folder(identity) + session_id) if session_id.isprintable() else None
        return None if data is None else msgspec.json.decode(data, type=AgentSession)

    async def get(self, identity: str, session_id: str, *, is_operator: bool = False) -> AgentSession:
        """Return a session of an identity; operators find those of others, too.

        Raises:
            ToolError: `not_found` if there is none, or it is another's.
        """
        found = await self.find(identity, session_id)
        if found is None and is_operator:
            found = next((session for session in await self.all() if session.id == session_id), None)
        if found is None:
            raise not_found("session", session_id, reason="unknown_session", may_have_run=False)
        return found

    async def all(self, identity: str | None = None) -> list[AgentSession]:
        """Return the sessions of an identity, or of everybody; the last used first."""
        prefix = _PREFIX if identity is None else _folder(identity)
        keys: list[str] = []
        while page := await self._store.keys(prefix, after=keys[-1] if keys else ""):
            keys += page
        found = await self._store.get_many(keys)
        sessions = [msgspec.json.decode(data, type=AgentSession) for data in found if data is not None]
        return sorted(sessions, key=lambda session: session.updated_at, reverse=True)

    async def save(self, session: AgentSession, **changes: Any) -> AgentSession:
        """Store a session with changes, and return it."""
        changed = msgspec.structs.replace(session, updated_at=self._now(), **changes)
        await self._store.put(_folder(session.identity) + session.id, msgspec.json.encode(changed))
        return changed

    @asynccontextmanager
    async def locked(
        self, identity: str, session_id: str, on_lost: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[None]:
        """Hold a session, so that no other server works in it; `on_lost` is called if another one took it over.

        Raises:
            ToolError: `state_error` if another server holds it.
        """
        _check_id(session_id)
        key = f"agent_lease/{owner_key(identity)}/{session_id}"
        taken = await self._store.acquire(key, ttl=_LEASE_S)
        if taken is None:
            hint = "Wait for its end, or cancel it there. If that server was killed, wait for a few seconds."
            raise refused("state_error", "Another server works in this session.", reason="turn_running", hint=hint)
        lease = taken

        async def renew() -> None:
            nonlocal lease
            while True:
                await asyncio.sleep(_LEASE_S / 3)
                with suppress(StoreUnavailableError):  # it is taken again, if nobody else has it then
                    if not await self._store.renew(lease, ttl=_LEASE_S):
                        again = await self._store.acquire(key, ttl=_LEASE_S)
                        if again is None:
                            return on_lost()
                        lease = again

        try:
            async with background_task(renew()):
                yield
        finally:
            with suppress(StoreUnavailableError):  # it ends by itself
                await self._store.release(lease)

    async def delete(self, session: AgentSession) -> None:
        """Delete a session, and what its runtime stored."""
        await self._store.delete(_folder(session.identity) + session.id)
        await self._store.delete(self.items_key(session))

    def _now(self) -> float:
        return round(self._clock(), 3)

    def items_key(self, session: AgentSession) -> str:
        """Return the key under which a runtime may keep the conversation."""
        return f"agent_items/{owner_key(session.identity)}/{session.id}"


def _check_id(session_id: str) -> None:
    if len(session_id) > _MAX_ID or not session_id.isprintable() or "/" in session_id:
        raise refused("invalid_input", "An id of a session has up to 128 printable characters, and no '/'.")


def _folder(identity: str) -> str:
    return f"{_PREFIX}{owner_key(identity)}/"
