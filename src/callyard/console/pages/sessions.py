"""The page 'Sessions': state that tools keep between calls, and the MCP clients that are connected.

Whoever knows the id of a session may be able to use it, so pages show only its beginning.
"""

from hashlib import sha256
from typing import Any, ClassVar, Final, NamedTuple

from callyard.console.page import Done, Page, View, page_of, url
from callyard.dispatch.sessions import Session
from callyard.model.errors import not_found

__all__ = ["SessionsPage", "session_key"]

_SHOWN: Final = 6
_KEY: Final = 16
_PAGE: Final = 50


class SessionRow(NamedTuple):
    """A session of the yard as people see it."""

    key: str
    """Names it in forms, without giving its id away."""
    short: str
    kind: str
    identity: str
    age_ms: float
    idle_ms: float
    calls: int
    busy: int
    last_code: str
    is_stored: bool


class SessionsPage(Page):
    """Sessions of tools, and of MCP clients."""

    name: ClassVar[str] = "sessions"
    title: ClassVar[str] = "Sessions"
    template: ClassVar[str] = "sessions"

    async def context(self, view: View) -> dict[str, Any]:
        """Return the sessions, the one used last first, and the clients."""
        words = view.query.get("q", "").lower()
        live = sorted(self.yard.sessions.all(), key=lambda session: -session.last_used)
        rows = [row for row in map(self._row, live) if words in f"{row.kind} {row.identity}".lower()]
        opened = view.query.get("open", "")
        place = next((place for place, row in enumerate(rows) if row.key == opened), None)
        current = view.query.get("page", "" if place is None else str(place // _PAGE + 1))
        sessions, number, pages = page_of(rows, current, _PAGE)
        found = self.parts.find_sessions()
        idle_s = self.yard.limits.session_idle
        return {
            "sessions": sessions,
            "total": len(live),
            "opened": opened,
            "is_gone": bool(opened) and place is None,
            "page_number": number,
            "page_count": pages,
            "clients": [] if found is None else found.describe(),
            "idle_ms": idle_s * 1000,
            "endpoint": self.yard.address or "URL",
        }

    async def act(self, view: View) -> Done:
        """End a session of the yard, or disconnect a client."""
        match view.path:
            case ("end", key):
                session = next((one for one in self.yard.sessions.all() if session_key(one.id) == key), None)
                if session is None or not await self.yard.sessions.end(session.id):
                    raise not_found("session", key, may_have_run=False)
                return Done(to=url(self.name), notice="The session has ended.")
            case ("disconnect", number) if number.isdecimal():
                found = self.parts.find_sessions()
                if found is None or not found.end_number(int(number)):
                    raise not_found("client", number, may_have_run=False)
                return Done(to=url(self.name), notice="The client is disconnected. It may connect again.")
            case _:
                raise LookupError

    def _row(self, session: Session) -> SessionRow:
        now, sessions = self.yard.sessions.now(), self.yard.sessions
        length, _, rest = session.owner.partition(":")
        return SessionRow(
            key=session_key(session.id),
            short=f"{session.id[:_SHOWN]}…",
            kind=session.kind,
            identity=rest[: int(length)] if length.isdecimal() else session.owner,
            age_ms=(now - session.started) * 1000,
            idle_ms=0.0 if session.busy else (now - session.last_used) * 1000,
            calls=session.calls,
            busy=session.busy,
            last_code=session.last_code or "",
            is_stored=sessions.is_stored(session),
        )


def session_key(session_id: str) -> str:
    """Return what names a session in URLs and forms, without giving its id away."""
    return sha256(session_id.encode()).hexdigest()[:_KEY]
