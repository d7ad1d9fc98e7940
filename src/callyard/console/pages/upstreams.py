"""The page 'Upstreams': the state of each, what to do about a failure, and definitions to review."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby, zip_longest
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from callyard.console.access import is_local
from callyard.console.page import PERIODS, Done, Page, Parts, View, url
from callyard.model.envelope import fingerprint
from callyard.model.errors import ToolError
from callyard.model.switch import Switch
from callyard.monitor.metrics import CallStats
from callyard.providers.upstream.health import State, Status, more_command
from callyard.providers.upstream.oauth.vault import LoginError
from callyard.providers.upstream.pins import Key, LockError, Settled
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.scan import visible
from callyard.providers.upstream.unsettled import SETTLED, UnsettledTool, in_words
from callyard.yard import Yard

__all__ = ["UpstreamsPage", "operation_of", "side_by_side", "upstreams_of"]

Kind = Literal["ok", "warn", "bad", "accent", ""]
_WORDS: Final[dict[State, tuple[Kind, str]]] = {
    "ready": ("ok", "Ready"),
    "starting": ("accent", "Starting"),
    "cold": ("", "Not connected"),
    "degraded": ("bad", "Failing"),
    "backing_off": ("bad", "Failing, and not tried for now"),
    "auth_needed": ("bad", "Needs a login"),
    "stopped": ("", "Stopped"),
}
_SWITCHED_OFF: Final = (
    "It is switched off. Set 'enabled' to true in the section '[upstreams.{}]' of the settings to use it."
)
_UNUSABLE: Final = "Cannot be used"
_LOG_LINES: Final = 200
_TOOLS: Final = 100
_RESTART_S: Final = 3.0
_ADDRESS_S: Final = 15.0
"""How long an upstream may take to say where people log in."""
_LOGIN_S: Final = 600.0
_NO_CALLS: Final = CallStats()


class Advice(NamedTuple):
    """What to do about an upstream: a sentence, and the command."""

    text: str
    command: str = ""


class Row(NamedTuple):
    """A line of a text before and after; a side is None where there is none."""

    before: str | None
    after: str | None
    is_same: bool


class UpstreamRow(NamedTuple):
    """An upstream in the list."""

    name: str
    kind: Kind
    state: str
    carrier: str
    is_off: bool = False
    status: Status | None = None
    advice: Advice | None = None

    @property
    def shows_reason(self) -> bool:
        """Return whether the state has a reason that the advice does not say already."""
        return self.status is not None and bool(self.status.reason) and self.state != _UNUSABLE

    @property
    def is_broken(self) -> bool:
        """Return whether it needs a person."""
        return self.kind == "bad"


class LoginFlow:
    """A login at an upstream that a person has begun."""

    def __init__(self, upstream: Upstream) -> None:
        self.address = ""
        """Where the person logs in; empty until the upstream says it."""
        self.problem = ""
        self.shown = asyncio.Event()
        """Set once there is an address, or the login has failed."""
        self.task = asyncio.get_running_loop().create_task(self._run(upstream))

    @property
    def host(self) -> str:
        """Return the host that the person is sent to."""
        return urlsplit(self.address).netloc

    async def _run(self, upstream: Upstream) -> None:
        try:
            await upstream.sign_in(self._show, seconds=_LOGIN_S)
        except LoginError as error:
            self.problem = error.message
        finally:
            self.address = ""
            self.shown.set()

    def _show(self, address: str) -> None:
        if address.startswith(("https://", "http://")):  # it becomes a link
            self.address = address
        self.shown.set()


class UpstreamsPage(Page):
    """Other MCP servers, as this yard sees them."""

    name = "upstreams"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._restarts: set[asyncio.Task[None]] = set()
        self._logins: dict[str, LoginFlow] = {}
        self._is_local = is_local(parts.config.settings.serve)

    async def context(self, view: View) -> dict[str, Any]:
        """Return every upstream, those that need a person first, and the one that is open."""
        open_ones, sources = self._open(), self.parts.metrics.sources()
        rows = [self._with_switch(_row(upstream)) for upstream in open_ones.values()]
        for name, entry in self.parts.config.upstreams.items():
            if name not in open_ones and not entry.settings.enabled:
                advice = Advice(_SWITCHED_OFF.format(name))
                rows.append(UpstreamRow(name, "", "Switched off", "", is_off=True, advice=advice))
        rows.sort(key=lambda row: (not row.is_broken, row.kind != "warn", row.is_off, row.name))
        opened = view.query.get("open", "")
        row = next((row for row in rows if row.name == opened), None)
        if opened and row is None:
            raise LookupError
        stats = {row.name: sources.get(row.name, _NO_CALLS) for row in rows}
        details = await self._details(open_ones[opened], view) if opened in open_ones else {"upstream": None}
        facts = {"switch": self._switch_of(opened), "periods": PERIODS}
        return {"upstreams": rows, "open": row, "stats": stats, **facts, **details}

    def _switch_of(self, source: str) -> Switch | None:
        return next((switch for switch in self.yard.switches.active if switch.covers_source(source)), None)

    def _with_switch(self, row: UpstreamRow) -> UpstreamRow:
        """Return the row of an upstream, which says so if an operator disabled it."""
        if self._switch_of(row.name) is None:
            return row
        return row._replace(state=f"{row.state}, disabled", kind="warn" if row.kind == "ok" else row.kind)

    async def count(self) -> int:
        """Return how many upstreams need a person."""
        return sum(row.kind in {"bad", "warn"} for row in map(_row, self._open().values()))

    async def act(self, view: View) -> Done:
        """Restart an upstream, begin a login, or accept definitions."""
        action, name = view.path if len(view.path) == 2 else ("", "")  # noqa: PLR2004 - the action and the name
        upstream = self._open().get(name)
        if upstream is None:
            raise LookupError
        match action:
            case "restart":
                return await self._restart(upstream)
            case "login" if self._can_log_in(upstream):
                return await self._log_in(upstream)
            case "accept" if self.yard.replica is not None:
                way_out = "Run 'callyard accept', and give all servers the new 'callyard.lock'."
                raise ToolError("permission_denied", f"Servers that share a store share their lock file. {way_out}")
            case "accept":
                kind, item = view.form.get("kind", ""), view.form.get("name", "")
                keys = [Key(kind, item)] if kind else []  # pyright: ignore[reportArgumentType] - an unknown kind is in no comparison
                accepted = await upstream.accept(keys, seen=view.form.get("seen", ""))
                if not accepted:
                    raise ToolError("not_found", "There is nothing of that name to accept.")
                what = f"The {accepted[0]} is" if len(accepted) == 1 else f"{len(accepted)} definitions are"
                return Done(to=url(self.name, open=name), notice=f"{what} accepted, and published.")
            case "settle":
                return await self._settle(upstream, view)
            case _:
                raise LookupError

    async def _settle(self, upstream: Upstream, view: View) -> Done:
        """Settle what the tools without hints do, each as the person chose, if they still are what the person saw."""
        tools, form = upstream.unsettled(), view.form
        if form.get("seen", "") != digest_of_tools(tools):
            message = f"The tools of '{upstream.name}' have changed since you looked. Look at them again."
            raise ToolError("state_error", message, reason="changed_since", may_have_run=False)
        operations: dict[str, Settled] = {}
        for tool in tools:
            operations[tool.name] = operation_of(form.get(f"operation:{tool.name}", ""))
        seen = {tool.name: tool.hash for tool in tools}
        await upstream.settle(operations, seen=seen, by=view.person.identity)
        return Done(to=url(self.name, open=upstream.name), notice=f"Settled: {in_words([*operations.values()])}.")

    async def _restart(self, upstream: Upstream) -> Done:
        """Restart an upstream; one that hangs is restarted in the background."""
        task = asyncio.get_running_loop().create_task(upstream.restart())
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)
        await asyncio.wait([task], timeout=_RESTART_S)
        is_bad = task.done() and _row(upstream).is_broken
        words = "was restarted" if task.done() else "is being restarted"
        notice = f"'{upstream.name}' {words}{', and fails again' if is_bad else ''}."
        return Done(to=url(self.name, open=upstream.name), notice=notice, is_bad=is_bad)

    def _can_log_in(self, upstream: Upstream) -> bool:
        """Return whether a login can be begun here: the browser is sent back to a port of this machine."""
        return self._is_local and upstream.can_sign_in

    async def _log_in(self, upstream: Upstream) -> Done:
        """Begin a login; the page then links to where the person goes on."""
        flow = self._logins.get(upstream.name)
        if flow is None or flow.task.done():
            flow = self._logins[upstream.name] = LoginFlow(upstream)
        with suppress(TimeoutError):
            async with asyncio.timeout(_ADDRESS_S):
                await flow.shown.wait()
        return Done(to=url(self.name, open=upstream.name), notice=flow.problem, is_bad=bool(flow.problem))

    def _open(self) -> dict[str, Upstream]:
        return {provider.name: provider for provider in self.yard.providers if isinstance(provider, Upstream)}

    async def _details(self, upstream: Upstream, view: View) -> dict[str, Any]:
        comparison, problem = None, ""
        try:
            comparison = await asyncio.to_thread(upstream.compare)
        except LockError as error:
            problem = str(error)
        registry, profile = self.yard.registry, self.profile_of(view)
        unsettled = upstream.unsettled()
        tools = [spec for spec in registry.visible(profile) if spec.source == upstream.name]
        return {
            "upstream": upstream,
            "can_log_in": self._can_log_in(upstream),
            "login": self._logins.get(upstream.name),
            "tools": tools[:_TOOLS],
            "more_tools": max(len(tools) - _TOOLS, 0),
            "withheld": [one for one in registry.unavailable(profile) if one.spec.source == upstream.name],
            "comparison": comparison,
            "side_by_side": side_by_side,
            "visible": visible,
            "lock_problem": problem,
            "log": await asyncio.to_thread(upstream.last_log_lines, _LOG_LINES) if view.person.can_act else [],
            "unsettled": unsettled,
            "unsettled_digest": digest_of_tools(unsettled),
            "settled_words": SETTLED,
            "has_log": upstream.settings.carrier == "stdio",
            "address": self.parts.config.tables.get(f"upstreams.{upstream.name}.url", ""),
        }


def upstreams_of(yard: Yard) -> Iterator[Upstream]:
    """Yield the upstreams of a yard, and those of yards that are mounted in it."""
    for provider in yard.providers:
        if isinstance(provider, Upstream):
            yield provider
        elif isinstance(provider, Yard):
            yield from upstreams_of(provider)


def operation_of(text: str) -> Settled:
    """Return what a form says that a tool does.

    Raises:
        ToolError: `invalid_input` if it says something else.
    """
    for operation in SETTLED:
        if operation == text:
            return operation
    raise ToolError("invalid_input", "Say of each tool whether it reads, changes or destroys.")


def digest_of_tools(tools: Sequence[UnsettledTool]) -> str:
    """Return a short hash of tools, so that a person settles what they saw."""
    return fingerprint([(tool.name, tool.hash) for tool in tools])[:16]


def _row(upstream: Upstream) -> UpstreamRow:
    status, settings = upstream.status(), upstream.settings
    kind, words = _WORDS[status.state]
    if upstream.problem:
        kind, words = "bad", _UNUSABLE
    elif status.withheld and kind != "bad":
        kind, words = "warn", f"{words}, {status.withheld} withheld"
    return UpstreamRow(upstream.name, kind, words, settings.carrier, status=status, advice=_advice(upstream, status))


def _advice(upstream: Upstream, status: Status) -> Advice | None:
    """Return what to do about an upstream, or None if there is nothing to do."""
    name, settings = upstream.name, upstream.settings
    if upstream.problem:
        return Advice(f"{upstream.problem} Then restart the server.")
    if status.state == "auth_needed" and settings.url is not None and not settings.authorizes:
        text = "It refuses calls without a login. Log in with this command; the server uses the login at once."
        return Advice(text, f"callyard login {name}")
    if status.state == "auth_needed":
        place = f"the section '[upstreams.{name}]' of the settings"
        return Advice(f"It refuses the credentials. Correct the headers in {place}.")
    if status.is_failing:
        is_program = settings.carrier == "stdio"
        reads = "Read its log, correct what it says, and restart it."
        return Advice(reads if is_program else "See whether its address answers.", more_command(name, settings.carrier))
    if status.withheld:
        return Advice("Review what changed. Agents cannot use it until somebody accepts it.", f"callyard diff {name}")
    return None


def side_by_side(lines: tuple[str, ...]) -> list[Row]:
    """Return the lines of a unified difference as rows, with removed lines beside the added ones that follow them."""
    rows: list[Row] = []
    removed: list[str] = []
    for sign, group in groupby([*lines, ""], key=lambda line: line[:1]):
        texts = [line[1:] for line in group]
        if sign == "-":
            removed = texts
            continue
        added = texts if sign == "+" else []
        rows += [Row(before, after, is_same=False) for before, after in zip_longest(removed, added)]
        removed = []
        if sign not in {"+", ""}:
            rows += [Row(text, text, is_same=True) for text in texts]
    return rows
