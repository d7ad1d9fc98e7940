"""The pages about the server: its state, sessions and clients, the sandboxes of this machine, and every setting.

Whoever knows the id of a session may be able to use it, so pages show only its beginning.
"""

import asyncio
import time
from collections import Counter
from hashlib import sha256
from typing import Any, Final, NamedTuple

from callyard.config.settings import known_settings
from callyard.console.page import Done, Page, Parts, View, page_of, url
from callyard.dispatch.sessions import Session
from callyard.model.envelope import encode
from callyard.model.errors import not_found
from callyard.model.profile import METATOOLS, Profile
from callyard.monitor.metrics import CallStats, Second
from callyard.providers.upstream.health import supervised
from callyard.runtimes.runtime import Probe
from callyard.runtimes.selection import probe_all, wanted_backends
from callyard.state.store import StoreUnavailableError

__all__ = ["Overview", "RuntimesPage", "SessionsPage", "SettingsPage", "session_key"]

_CHART_S: Final = 900
_NOW_S: Final = 60
_SPAN_S: Final = 15
"""Seconds of one point of a chart: single seconds of a quiet server are noise."""
_TOP: Final = 8
_MIN_CALLS: Final = 5
_BAD_SHARE: Final = 0.2
_SHOWN: Final = 6
_KEY: Final = 16
_PAGE: Final = 50
_ABOUT: Final = {
    "container": "Containers of docker or podman, without network, read-only.",
    "bubblewrap": "Namespaces of Linux, without network and with a filter of system calls.",
    "wasm": "CPython for WebAssembly under wasmtime, in a process of its own.",
    "subprocess": "A plain process without a sandbox: for development only.",
}


class Attention(NamedTuple):
    """Something that a person should look at, and where."""

    kind: str
    text: str
    action: str
    to: str


class Overview(Page):
    """The state of the yard."""

    name = ""

    async def context(self, view: View) -> dict[str, Any]:
        """Return the charts, the busiest tools and what needs attention."""
        now, rates = time.time(), self.parts.metrics.rates
        spans = rates.last(_CHART_S, now=now, step=_SPAN_S)
        is_first_run = not self.parts.metrics.tools
        public = self.parts.config.settings.serve.public_url
        return {
            "is_first_run": is_first_run,
            "numbers": self._numbers(spans, rates.total(int(now) - _NOW_S + 1, _NOW_S)),
            "errors": sum((span.errors for span in spans), Counter[str]()).most_common(),
            "attention": await self._attention(),
            "tools": sorted(self.parts.metrics.tools.items(), key=lambda item: -item[1].calls)[:_TOP],
            "endpoint": self.yard.address or "" if public is None else f"{public.rstrip('/')}/mcp",
            **(self._first_tools(self.profile_of(view)) if is_first_run else {}),
        }

    def _first_tools(self, profile: Profile) -> dict[str, str]:
        """Return the links of the first steps.

        They lead to a tool that only reads, or else to all tools, and to one that destroys, if there is any.
        """
        tools = [spec for spec in self.yard.registry.visible(profile) if spec.source != METATOOLS]
        links = {str(spec.operation): url("tools", open=spec.name) for spec in reversed(tools)}
        return {"first_tool": links.get("query", url("tools")), "destroy_tool": links.get("destroy", "")}

    def _numbers(self, spans: list[Second], recent: Second) -> dict[str, Any]:
        return {
            "rate": recent.calls / _NOW_S,
            "rates": [span.calls / _SPAN_S for span in spans],
            "p95": recent.quantile_ms(0.95),
            "p50": recent.quantile_ms(0.5),
            "p95s": [span.quantile_ms(0.95) for span in spans],
            "errors": recent.errors.total(),
            "error_share": recent.errors.total() / max(recent.calls, 1),
            "error_rates": [span.errors.total() / _SPAN_S for span in spans],
            "running": self.yard.calls_in_flight,
            "calls": sum(stats.calls for stats in self.parts.metrics.tools.values()),
        }

    async def _attention(self) -> list[Attention]:
        """Return what needs a person now, the most urgent first."""
        found: list[Attention] = []
        gate = self.yard.gate
        try:
            pending = 0 if gate is None else await gate.approvals.count()
        except StoreUnavailableError as error:
            pending = 0
            found.append(Attention("bad", f"The store cannot be used: {error}", "Settings", url("settings", q="store")))
        pending += 0 if self.parts.agents is None else len(self.parts.agents.waiting())
        if pending:
            text = f"{pending} {'call waits' if pending == 1 else 'calls wait'} for approval."
            found.append(Attention("warn", text, "Decide", url("approvals")))
        for status in (upstream.status() for upstream in supervised(self.yard.providers)):
            place = url("upstreams", open=status.name)
            if status.is_failing:
                reason = status.reason or status.last_error or status.state
                found.append(Attention("bad", f"The upstream '{status.name}' does not work: {reason}", "Look", place))
            elif status.withheld:
                text = f"{status.withheld} changed definitions of '{status.name}' are withheld."
                found.append(Attention("warn", text, "Review", place))
        for label, stats in self.parts.metrics.tools.items():
            share = _share_of_failures(stats) if stats.errors else 0.0
            if share >= _BAD_SHARE:
                text = f"{share:.0%} of the latest calls of '{label.tool}' failed."
                found.append(Attention("bad", text, "Look", url("calls", tool=label.tool)))
        return found[:_TOP]


def _share_of_failures(stats: CallStats) -> float:
    """Return the share of calls in the last 15 minutes that failed; 0 if there were few.

    Failures by a fault of the caller do not count.
    """
    steps = stats.trend.last()
    calls = sum(step.calls for step in steps)
    return sum(step.failed for step in steps) / calls if calls >= _MIN_CALLS else 0.0


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
    """State that tools keep between calls, and the MCP clients that are connected."""

    name = "sessions"

    async def context(self, view: View) -> dict[str, Any]:
        """Return the sessions, the one used last first, and the clients."""
        words, opened = view.query.get("q", "").lower(), view.query.get("open", "")
        live = sorted(self.yard.sessions.all(), key=lambda session: -session.last_used)
        rows = [row for row in map(self._row, live) if words in f"{row.kind} {row.identity}".lower()]
        place = next((place for place, row in enumerate(rows) if row.key == opened), None)
        current = view.query.get("page", "" if place is None else str(place // _PAGE + 1))
        sessions, number, pages = page_of(rows, current, _PAGE)
        found = self.parts.find_sessions()
        return {
            "sessions": sessions,
            "total": len(live),
            "opened": opened,
            "is_gone": bool(opened) and place is None,
            "page_number": number,
            "page_count": pages,
            "clients": [] if found is None else found.describe(),
            "idle_ms": self.yard.limits.session_idle * 1000,
            "endpoint": self.yard.address or "URL",
        }

    async def act(self, view: View) -> Done:
        """End a session of the yard, or disconnect a client."""
        match view.path:
            case ("end", key):
                session = next((one for one in self.yard.sessions.all() if session_key(one.id) == key), None)
                if session is None or not await self.yard.sessions.end(session.id):
                    raise not_found("session", key)
                return Done(to=url(self.name), notice="The session has ended.")
            case ("disconnect", number) if number.isdecimal():
                found = self.parts.find_sessions()
                if found is None or not found.end_number(int(number)):
                    raise not_found("client", number)
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


class RuntimesPage(Page):
    """The sandboxes of this machine, the limits that they enforce, and what is missing."""

    name = "runtimes"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._probing: asyncio.Task[None] | None = None
        self._probes: list[Probe] = []
        self._probed_at = 0.0

    async def context(self, view: View) -> dict[str, Any]:  # noqa: ARG002 - the page is the same for everybody
        """Return what was probed; the first look starts it, because engines of containers take a while to answer."""
        task = self._probing or self._start(attack=False)
        has_failed = task.done() and not task.cancelled() and task.exception() is not None
        settings = self.yard.runtime
        wanted = wanted_backends(settings)
        usable = [probe.backend for probe in self._probes if probe.available]
        return {
            "probes": self._probes,
            "is_probing": not task.done(),
            "failure": "The backends could not be probed; the log of the server says why." if has_failed else "",
            "probed_at": self._probed_at,
            "settings": settings,
            "wanted": wanted,
            "selected": next((name for name in wanted if name in usable), ""),
            "about": _ABOUT,
        }

    async def act(self, view: View) -> Done:
        """Look again, or attack every sandbox."""
        if view.path not in {("probe",), ("attack",)}:
            raise LookupError
        if self._probing is None or self._probing.done():
            self._start(attack=view.path == ("attack",))
        return Done(to=url(self.name))

    def _start(self, *, attack: bool) -> "asyncio.Task[None]":
        self._probing = asyncio.get_running_loop().create_task(self._probe(attack=attack))
        return self._probing

    async def _probe(self, *, attack: bool) -> None:
        self._probes = await probe_all(self.yard.runtime, self.yard.state_dir, attack=attack)
        self._probed_at = time.time()


class SettingRow(NamedTuple):
    """A setting as people see it."""

    key: str
    value: str
    origin: str
    """Such as 'environment CALLYARD_PORT'; 'default' for one that nobody set."""
    meaning: str = ""
    variable: str = ""

    @property
    def is_set(self) -> bool:
        """Return whether somebody set it."""
        return self.origin != "default"


class SettingsPage(Page):
    """Every setting with its value and where that came from, secrets masked."""

    name = "settings"
    live_seconds = 0.0

    async def context(self, view: View) -> dict[str, Any]:
        """Return the settings by section."""
        words, only_set = view.query.get("q", "").lower(), bool(view.query.get("set"))
        sections: dict[str, list[SettingRow]] = {}
        rows = self._rows()
        for row in rows:
            if words in f"{row.key} {row.value} {row.origin} {row.meaning}".lower() and (row.is_set or not only_set):
                section, dot, _ = row.key.partition(".")
                sections.setdefault(section if dot else "general", []).append(row)
        path = self.parts.config.path
        count = sum(row.is_set for row in rows)
        return {"sections": sections, "file": "" if path is None else str(path), "set_count": count}

    def _rows(self) -> list[SettingRow]:
        """Return every setting; what the code of the yard sets is shown as it is in effect."""
        in_effect = self.yard.settings()
        rows: list[SettingRow] = []
        config, known = self.parts.config, known_settings()
        for key in (*known, *config.tables):
            value, origin = config.shown(key), str(config.origin(key))
            setting = known.get(key)
            if setting is None:
                rows.append(SettingRow(key, _text(value), origin))
                continue
            own = in_effect.get(key.removeprefix("limits."))
            if origin == "default" and own is not None and own["from"] == "code":
                value, origin = own["value"], "code"
            rows.append(SettingRow(key, _text(value), origin, setting.meaning, setting.variable))
        return rows


def _text(value: Any) -> str:
    if value is None:
        return "–"  # noqa: RUF001 - a dash is meant
    return value if isinstance(value, str) else encode(value).decode()
