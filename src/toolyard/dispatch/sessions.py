"""Sessions: state that outlives a call, named by an id that the caller passes as an argument.

A session belongs to an owner, which is a text; who that is, and how a call came by it, is not known here.
"""

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from toolyard._internal.logfmt import is_identifier
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.state.store import Clock

__all__ = ["Cleanup", "EndReason", "Session", "SessionEnd", "Sessions"]

Cleanup = Callable[[], Awaitable[None] | None]
EndReason = Literal["ended", "idle", "closed"]

_log = logging.getLogger(__name__)


class SessionEnd(msgspec.Struct, frozen=True):
    """What listeners are told once a session is gone."""

    session_id: str
    owner: str
    reason: EndReason
    remaining: tuple[str, ...]


class Session:
    """One named piece of state; `state` is free for the tools that share it."""

    __slots__ = ("_cleanups", "busy", "id", "kind", "last_code", "last_used", "owner", "started", "state")

    def __init__(self, session_id: str, *, owner: str, kind: str, now: float) -> None:
        self.id = session_id
        self.owner = owner
        self.kind = kind
        self.state: dict[str, Any] = {}
        self.started = now
        self.last_used = now
        self.last_code: str | None = None
        self.busy = 0
        self._cleanups: list[Cleanup] = []

    def on_end(self, cleanup: Cleanup) -> None:
        """Run this, plain or async, when the session ends; the last one added runs first."""
        self._cleanups.append(cleanup)

    async def stop(self, seconds: float) -> None:
        """Run the clean-ups in reverse, each for so long, even if some fail or the caller is cancelled meanwhile."""
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        cancelled: asyncio.CancelledError | None = None
        while self._cleanups:
            cleanup = self._cleanups.pop()
            try:
                async with asyncio.timeout(seconds or None):
                    result = cleanup()
                    if inspect.isawaitable(result):
                        await result
            except asyncio.CancelledError as error:
                if task is not None and task.cancelling() > before:
                    cancelled = error
                else:  # the clean-up cancelled something of its own and waited for it
                    _log.warning("cleanup_cancelled session=%s", self.id)
            except BaseException:  # noqa: BLE001 - a clean-up may raise anything, and must not stop the others
                _log.exception("cleanup_failed session=%s", self.id)
        if cancelled is not None:
            raise cancelled


class Sessions:
    """The live sessions of a yard, each seen only by its owner."""

    def __init__(self, limits: Limits, *, clock: Clock = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._live: dict[str, Session] = {}
        self._owned: dict[str, dict[str, Session]] = {}
        self._listeners: list[Callable[[SessionEnd], None]] = []

    def __len__(self) -> int:
        return len(self._live)

    def now(self) -> float:
        """Return the time that sessions are measured by."""
        return self._clock()

    def start(self, owner: str, *, kind: str = "", session_id: str | None = None) -> Session:
        """Start a session; an id of its own is for what already has one.

        Raises:
            ToolError: `state_error` if the id is taken, `overloaded` if there are too many sessions.
        """
        if session_id is not None and not is_identifier(session_id):
            raise ValueError("The id of a session must be of letters, digits and '_.:-'.")
        if session_id in self._live:
            raise ToolError("state_error", "There is a session of that id already.", session_id=session_id)
        if len(self._live) >= self._limits.sessions:
            raise ToolError(
                "overloaded",
                f"There may be {self._limits.sessions} sessions at a time.",
                hint="End a session you no longer need, or wait until one has been idle.",
                available_sessions=self.ids(owner),
            )
        session = Session(session_id or f"s_{os.urandom(6).hex()}", owner=owner, kind=kind, now=self._clock())
        self._live[session.id] = session
        self._owned.setdefault(owner, {})[session.id] = session
        return session

    def ids(self, owner: str) -> list[str]:
        """Return the ids of the owner's live sessions, oldest first."""
        return [session.id for session in self.of(owner)]

    def of(self, owner: str) -> list[Session]:
        """Return the owner's live sessions, oldest first."""
        return list(self._owned.get(owner, {}).values())

    def get(self, session_id: str, owner: str) -> Session:
        """Return the owner's session of that id.

        Raises:
            ToolError: `not_running` if there is none; somebody else's counts as none.
        """
        session = self._live.get(session_id)
        if session is None or session.owner != owner:
            raise ToolError("not_running", "There is no such live session.", session_id=session_id, available_sessions=self.ids(owner))
        return session

    def resolve(self, session_id: str | None, owner: str, *, required: bool) -> Session | None:
        """Return the session a call means: the one named, else the owner's only one, else none if none is required.

        Raises:
            ToolError: `not_running` if there is none that is required or named, `invalid_input` if there are several.
        """
        if session_id is not None:
            return self.get(session_id, owner)
        mine = self.of(owner)
        if len(mine) == 1:
            return mine[0]
        if not mine:
            if required:
                raise ToolError("not_running", "There is no live session.", available_sessions=[])
            return None
        ids = [session.id for session in mine]
        message = "There are several live sessions: name one."
        issue = {"field": "session_id", "code": "ambiguous", "message": message}
        raise ToolError("invalid_input", message, issues=[issue], available_sessions=ids)

    def enter(self, session: Session) -> None:
        """Note that a call uses the session."""
        session.busy += 1
        session.last_used = self._clock()

    def leave(self, session: Session, code: str | None) -> None:
        """Note that a call is done with the session, and how it failed if it did."""
        session.busy -= 1
        session.last_used = self._clock()
        if code is not None:
            session.last_code = code

    def on_end(self, listener: Callable[[SessionEnd], None]) -> Callable[[], None]:
        """Tell the listener of every session that ends; return what stops that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    async def end(self, session_id: str, *, reason: EndReason = "ended") -> bool:
        """End a session: remove it, clean up, tell the listeners; return whether it was live.

        A call that is using it goes on and meets what the clean-ups left; no other call can enter it.
        """
        session = self._live.pop(session_id, None)
        if session is None:
            return False
        del self._owned[session.owner][session.id]
        if not self._owned[session.owner]:
            del self._owned[session.owner]
        try:
            await session.stop(self._limits.cleanup)
        finally:
            self._tell(SessionEnd(session.id, session.owner, reason, tuple(self.ids(session.owner))))
        return True

    def _tell(self, event: SessionEnd) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except BaseException:  # noqa: BLE001 - a listener may raise anything, and must not stop the others
                _log.exception("session_listener_failed session=%s", event.session_id)

    async def end_all(self) -> None:
        """End every session, newest first; none is left, even if this is cancelled meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        while self._live:
            try:
                await self.end(next(reversed(self._live)), reason="closed")
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled

    async def sweep(self) -> None:
        """End the sessions that have been idle for too long; none where they may be for ever."""
        if not self._limits.session_idle:
            return
        before = self._clock() - self._limits.session_idle
        for session in list(self._live.values()):
            if not session.busy and session.last_used <= before:
                await self.end(session.id, reason="idle")

    async def sweep_forever(self) -> None:
        """Sweep again and again, until cancelled; not at all where sessions may be idle for ever."""
        while self._limits.session_idle:
            await asyncio.sleep(min(max(self._limits.session_idle / 10, 0.1), 60.0))
            await self.sweep()
