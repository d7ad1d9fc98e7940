"""Sessions: state that outlives a call, with an id that callers pass as an argument.

A session belongs to an owner, an opaque string; this module knows no caller, call or transport. A session lives in one
process. If the yard has a store, the `data` of its sessions are kept there. Another process can continue a session that
has only `data`.
"""

import asyncio
import inspect
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from callyard._internal.logfmt import is_identifier, log_exception
from callyard.model.errors import ToolError
from callyard.model.limits import CLEANUP_S, Limits
from callyard.state.replicas import Replica
from callyard.state.store import Clock, Store, StoreUnavailableError, owner_key

__all__ = ["SHARED_OWNER", "Cleanup", "EndReason", "Session", "SessionElsewhereError", "Sessions"]

Cleanup = Callable[[], Awaitable[None] | None]
EndReason = Literal["ended", "idle", "closed"]

SHARED_OWNER: Final = "5:local:*"
"""The owner of everything of callers that nothing tells apart; only an id that cannot be guessed separates them."""
_ID_BYTES: Final = 8
_SESSIONS: Final = "session/"
"""What the keys of sessions in the store begin with."""
_MAX_RELEASED: Final = 1000
_log = logging.getLogger(__name__)


class _StoredSession(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session in the store."""

    data: dict[str, Any]
    kind: str = ""
    source: str = ""
    is_bound: bool = False
    """Whether it also has objects that exist only in its process."""
    replica: str = ""
    """That process, if it is one of several that serve the yard."""


class SessionElsewhereError(ToolError):
    """A session has objects that only another process has, or had."""

    def __init__(self, session_id: str, replica: str, available: list[str]) -> None:
        super().__init__(
            "not_running",
            "The session is not here: it has objects that only another process has, or had.",
            hint="Start a new session, unless the server that has this one can be called.",
            reason="not_here",
            session_id=session_id,
            available_sessions=available,
        )
        self.session_id = session_id
        self.replica = replica


class Session(msgspec.Struct, eq=False):
    """One live session; tools that share it keep live objects in `state`, and JSON in `data`."""

    id: str
    owner: str
    kind: str
    started: float
    last_used: float
    source: str = ""
    """The source of the tool that started it; it ends when that closes or is disabled."""
    state: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Any objects; they end with the process."""
    data: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """JSON, which is stored after each call that changes it; with a lasting store it survives a restart."""
    outlives_client: bool = False
    """Whether it stays until it is idle although the client that is its owner has gone."""
    last_code: str | None = None
    calls: int = 0
    """The number of calls that used it in this process."""
    busy: int = 0
    stored: bytes | None = None
    """What the store has of it, as this process last saw it."""
    stored_at: float = 0.0
    ends_unused: bool = False
    """Whether it ends as soon as no call uses it, because its owner has gone or its source is disabled."""
    saving: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _cleanups: list[Cleanup] = msgspec.field(default_factory=list[Cleanup])

    __repr__ = object.__repr__  # the state may be secret

    @property
    def is_bound(self) -> bool:
        """Return whether it has objects that exist only in this process."""
        return bool(self.state or self._cleanups)

    def on_end(self, cleanup: Cleanup) -> None:
        """Run a sync or async function when the session ends, in reverse order of registration."""
        self._cleanups.append(cleanup)

    async def stop(self) -> None:
        """Run every clean-up, each within its time, even if some fail or this task is cancelled."""
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        cancelled: asyncio.CancelledError | None = None
        while self._cleanups:
            cleanup = self._cleanups.pop()
            try:
                async with asyncio.timeout(CLEANUP_S):
                    result = cleanup()
                    if inspect.isawaitable(result):
                        await result
            except asyncio.CancelledError as error:
                if task is not None and task.cancelling() > before:
                    cancelled = error
                else:  # the clean-up awaited a task that it cancelled itself
                    _log.warning("cleanup_cancelled session=%s", self.id)
            except BaseException:  # noqa: BLE001 - a clean-up may raise anything, and must not stop the others
                log_exception(_log, "cleanup_failed session=%s", self.id)
        if cancelled is not None:
            raise cancelled


class Sessions:
    """The live sessions of a yard; an owner sees only its own."""

    def __init__(self, limits: Limits, *, clock: Clock = time.monotonic, store: Store | None = None) -> None:
        self._limits = limits
        self._store = store
        self._clock = clock
        self._live: dict[str, Session] = {}
        self._by_owner: dict[str, dict[str, Session]] = {}
        self._released: deque[str] = deque(maxlen=_MAX_RELEASED)
        """The last owners that went; jobs of them may still start sessions."""
        self._ending: set[asyncio.Task[bool]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_disabled: Callable[[str], bool] = lambda _: False
        """Returns whether a source is disabled, so that its sessions end and none begins."""
        self.replica: Replica | None = None
        """This process, if it is one of several that serve the yard."""

    def __len__(self) -> int:
        return len(self._live)

    def now(self) -> float:
        """Return the time of the clock that sessions use."""
        return self._clock()

    def start(
        self,
        owner: str,
        *,
        kind: str = "",
        source: str = "",
        session_id: str | None = None,
        outlives_client: bool = False,
    ) -> Session:
        """Start a session, with a random id if `session_id` is missing.

        Raises:
            ToolError: `state_error` if the id is taken, `overloaded` if there are too many sessions.
        """
        if session_id is not None and not is_identifier(session_id):
            raise ValueError("The id of a session must be of letters, digits and '_.:-'.")
        if session_id in self._live:
            raise ToolError("state_error", "There is a session of that id already.", session_id=session_id)
        self._check_room(owner)
        session_id, now = session_id or f"s_{os.urandom(_ID_BYTES).hex()}", self._clock()
        session = Session(
            session_id,
            owner=owner,
            kind=kind,
            source=source,
            started=now,
            last_used=now,
            outlives_client=outlives_client,
        )
        session.ends_unused = (owner in self._released and not outlives_client) or self.is_disabled(source)
        self._live[session.id] = session
        if owner != SHARED_OWNER:  # whose sessions are never listed, and never found without their id
            self._by_owner.setdefault(owner, {})[session.id] = session
        return session

    def _check_room(self, owner: str) -> None:
        own = self.ids(owner)
        if len(self._live) >= self._limits.sessions:
            message = f"There may be {self._limits.sessions} sessions at a time."
            hint = "End a session you no longer need, or wait until one has been idle."
        elif len(own) >= self._limits.caller_sessions:
            message = f"A caller may have {self._limits.caller_sessions} sessions at a time."
            hint = "End a session you no longer need."
        else:
            return
        raise ToolError("overloaded", message, hint=hint, available_sessions=own)

    def has(self, session_id: str, owner: str) -> bool:
        """Return whether the owner has a live session of that id."""
        session = self._live.get(session_id)
        return session is not None and session.owner == owner

    def ids(self, owner: str) -> list[str]:
        """Return the ids of the owner's live sessions, oldest first."""
        return [session.id for session in self.of(owner)]

    def of(self, owner: str) -> list[Session]:
        """Return the owner's live sessions, oldest first."""
        return list(self._by_owner.get(owner, {}).values())

    def all(self) -> list[Session]:
        """Return the live sessions of all owners, oldest first; only for operators."""
        return list(self._live.values())

    def get(self, session_id: str, owner: str) -> Session:
        """Return the owner's session of that id.

        Raises:
            ToolError: `not_running` if there is none, or if it is another owner's.
        """
        session = self._live.get(session_id)
        if session is None or session.owner != owner:
            message, ids = "There is no such live session.", self.ids(owner)
            raise ToolError("not_running", message, session_id=session_id, available_sessions=ids)
        return session

    def resolve(self, session_id: str | None, owner: str, *, required: bool) -> Session | None:
        """Return the session of that id, else the owner's only session, else none.

        Raises:
            ToolError: `not_running` if the id is unknown or a required session is missing, `invalid_input` if there are
            several.
        """
        if session_id is not None:
            return self.get(session_id, owner)
        sessions = self.of(owner)
        if len(sessions) == 1:
            return sessions[0]
        if not sessions:
            if required:
                raise ToolError("not_running", "There is no live session.", available_sessions=[])
            return None
        raise _several(self.ids(owner))

    async def find(self, session_id: str | None, owner: str, *, required: bool) -> Session | None:
        """Return the session as `resolve` does, also one that another process stored.

        Raises:
            ToolError: As `resolve`; `not_running` also if the session has objects that only another process has.
            StoreUnavailableError: It may be in the store, which cannot be read.
        """
        if self._store is None:
            return self.resolve(session_id, owner, required=required)
        if session_id is not None and session_id not in self._live:
            await self._revive(self._store, session_id, owner)
        elif session_id is None and self._may_have_more(owner, required=required):
            await self._revive_all(self._store, owner)
        session = self.resolve(session_id, owner, required=required)
        if session is not None and session.stored is not None and not session.busy:
            await self._refresh(self._store, session)
            return self.get(session.id, owner)
        return session

    def _may_have_more(self, owner: str, *, required: bool) -> bool:
        """Return whether to look for sessions of an owner in the store, for a call that names none."""
        if self.replica is not None:
            return owner != SHARED_OWNER
        return required and owner not in self._by_owner

    async def _revive_all(self, store: Store, owner: str) -> None:
        """Go on here with all sessions of an owner that can; the only one may live in another process.

        Raises:
            ToolError: `invalid_input` if there are several, of which one is elsewhere.
            SessionElsewhereError: The only one is elsewhere.
        """
        prefix, elsewhere = _prefix(owner), list[SessionElsewhereError]()
        for key in await store.keys(prefix, limit=self._limits.sessions):
            try:
                await self._revive(store, key.removeprefix(prefix), owner)
            except SessionElsewhereError as error:
                if self.replica is not None and await self.replica.is_alive(error.replica):
                    elsewhere.append(error)
        own = self.ids(owner)
        if elsewhere and len(own) + len(elsewhere) > 1:
            raise _several([*own, *(error.session_id for error in elsewhere)])
        if elsewhere:
            raise elsewhere[0]

    async def _refresh(self, store: Store, session: Session) -> None:
        """Take over what other processes did with a session: changed its data, or ended it."""
        text = await store.get(_prefix(session.owner) + session.id)
        if session.busy or text == session.stored:
            return
        if text is None:
            await self.end(session.id)
        else:
            session.data, session.stored = msgspec.json.decode(text, type=_StoredSession).data, text

    async def _revive(self, store: Store, session_id: str, owner: str) -> None:
        """Go on here with a session that another process stored, if there is one."""
        text = await store.get(_prefix(owner) + session_id) if is_identifier(session_id) else None
        if text is None or session_id in self._live:
            return
        found = msgspec.json.decode(text, type=_StoredSession)
        if self.is_disabled(found.source):
            return
        if not found.is_bound:
            session = self.start(owner, kind=found.kind, source=found.source, session_id=session_id)
            session.data, session.stored, session.stored_at = found.data, text, self._clock()
        elif self.replica is None or found.replica != self.replica.id:  # else it has just ended here
            raise SessionElsewhereError(session_id, found.replica, self.ids(owner))

    def is_stored(self, session: Session) -> bool:
        """Return whether a session has data that belong into the store."""
        is_known = session.stored is not None or bool(session.data)
        return self._store is not None and (is_known or (self.replica is not None and session.is_bound))

    async def save(self, session: Session) -> None:
        """Store the data of a session, if it has any and they changed.

        Raises:
            ToolError: `state_error` if another process changed them meanwhile, `too_large` or `internal_error` if they
            cannot be stored. StoreUnavailableError: The store cannot be written.
        """
        if self._store is None or session.id not in self._live or not self.is_stored(session):
            return
        if self.is_disabled(session.source):  # it ends after this call, and another process may have forgotten it
            return
        async with session.saving:
            text, ttl = self._encode(session), self._limits.session_idle or None
            if text == session.stored and (ttl is None or self._clock() < session.stored_at + ttl / 2):
                return
            key = _prefix(session.owner) + session.id
            if session.stored is None:
                await self._store.put(key, text, ttl=ttl)
            elif not await self._store.compare_and_set(key, session.stored, text, ttl=ttl):
                raise ToolError(  # the data stay as they are, so that other calls that changed them are told, too
                    "state_error",
                    "Another process changed the data of the session meanwhile, so the changes of this call are "
                    "dropped.",
                    may_have_run=True,
                    reason="session_changed",
                    session_id=session.id,
                )
            session.stored, session.stored_at = text, self._clock()

    def _encode(self, session: Session) -> bytes:
        try:
            replica = "" if self.replica is None or not session.is_bound else self.replica.id
            stored = _StoredSession(session.data, session.kind, session.source, session.is_bound, replica)
            text = msgspec.json.encode(stored)
        except (TypeError, ValueError, RecursionError) as error:
            message = "The data of the session cannot be written as JSON."
            raise ToolError("internal_error", message, blame="tool") from error
        if len(text) > self._limits.stored_bytes:
            message = (
                f"The data of the session have {len(text)} bytes; at most {self._limits.stored_bytes} can be kept."
            )
            raise ToolError("too_large", message, may_have_run=True, bytes=len(text), limit=self._limits.stored_bytes)
        return text

    async def _forget(self, session: Session, reason: EndReason) -> None:
        """Delete a session that ended from the store; one that ends with the yard stays there for the next start."""
        is_kept = reason == "closed" and (self.replica is None or not session.is_bound)
        if self._store is None or session.stored is None or is_kept:
            return
        try:
            await self._store.delete(_prefix(session.owner) + session.id)
        except StoreUnavailableError:  # logged by the store; the session expires there
            return

    def enter(self, session: Session) -> None:
        """Mark the session as used by one more call, so that it does not become idle."""
        session.busy += 1
        session.calls += 1
        session.last_used = self._clock()

    def leave(self, session: Session, code: str | None) -> None:
        """Mark the session as used by one call less; `code` is the call's error code, if it failed."""
        session.busy -= 1
        session.last_used = self._clock()
        if code is not None:
            session.last_code = code
        if session.ends_unused and not session.busy and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_soon, session.id)

    def release(self, owner: str) -> None:
        """End the sessions of an owner that cannot return: now, or when the last call leaves them."""
        self._loop = asyncio.get_running_loop()
        if owner not in self._released:
            self._released.append(owner)
        for session in self.of(owner):
            session.ends_unused = session.ends_unused or not session.outlives_client
            if session.ends_unused and not session.busy:
                self._end_soon(session.id)

    def end_disabled(self) -> None:
        """End the sessions of disabled sources: now, or when the last call leaves them."""
        self._loop = asyncio.get_running_loop()
        for session in self.all():
            if self.is_disabled(session.source):
                session.ends_unused = True
                if not session.busy:
                    self._end_soon(session.id)

    async def forget_disabled(self) -> None:
        """Delete the sessions of disabled sources that no process has any more from the store."""
        after, page = "", [""]
        while self._store is not None and page:
            page = await self._store.keys(_SESSIONS, after=after)
            for key in page:
                text = await self._store.get(key)
                is_live = key.rpartition("/")[2] in self._live
                if text is not None and not is_live and self.is_disabled(_source_of(text)):
                    await self._store.delete(key)
            after = page[-1] if page else ""

    def _end_soon(self, session_id: str) -> None:
        task = asyncio.ensure_future(self.end(session_id))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def end(self, session_id: str, *, reason: EndReason = "ended") -> bool:
        """Remove a session and run its clean-ups; return whether it was live.

        A call that is using the session is not interrupted; no other call can enter it.
        """
        session = self._live.pop(session_id, None)
        if session is None:
            return False
        own = self._by_owner.get(session.owner, {})
        own.pop(session.id, None)
        if not own:
            self._by_owner.pop(session.owner, None)
        await session.stop()
        await self._forget(session, reason)
        return True

    async def end_of(self, source: str) -> None:
        """End the sessions that tools of a source started, newest first."""
        for session in reversed(self.all()):
            if session.source == source:
                await self.end(session.id)

    async def end_all(self) -> None:
        """End every session, newest first, even if this task is cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        while self._live or self._ending:
            try:
                if self._live:
                    await self.end(next(reversed(self._live)), reason="closed")
                else:
                    await asyncio.wait(self._ending)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def sweep(self) -> None:
        """End the sessions that were idle for longer than the limit, if there is one."""
        if not self._limits.session_idle:
            return
        before = self._clock() - self._limits.session_idle
        for session in list(self._live.values()):
            if not session.busy and session.last_used <= before:
                await self.end(session.id, reason="idle")

    async def sweep_forever(self) -> None:
        """Sweep periodically until cancelled; return at once if there is no limit."""
        while self._limits.session_idle:
            await asyncio.sleep(min(max(self._limits.session_idle / 10, 0.1), 60.0))
            await self.sweep()


def _prefix(owner: str) -> str:
    return f"{_SESSIONS}{owner_key(owner)}/"


def _several(ids: list[str]) -> ToolError:
    message = "There are several live sessions: name one."
    issue = {"field": "session_id", "code": "ambiguous", "message": message}
    return ToolError("invalid_input", message, issues=[issue], available_sessions=ids)


def _source_of(text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=_StoredSession).source
    except msgspec.DecodeError:
        return ""
