"""The monitor of a served yard: its metrics, its log files, and the mounts '/metrics' and '/console'.

The HTTP transport does not know what is mounted; it gets the mounts from here.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from callyard.config import Config, Key
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.model.errors import ToolError
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.console import Console  # stdio starts sooner without these
    from callyard.console.page import Handle
    from callyard.dispatch.call import Caller
    from callyard.monitor import Metrics, Ring, UpstreamState
    from callyard.policy.approvals import AuditLine
    from callyard.transports import Transport
    from callyard.transports.auth import ApiKeys, Authenticator
    from callyard.transports.http.app import Mount
    from callyard.transports.http.request import Request
    from callyard.transports.http.response import ResponseWriter

__all__ = ["Monitor", "Mounted"]


class Mounted(Protocol):
    """A part of a server that has paths of its own beside '/mcp'."""

    @property
    def mounts(self) -> "Mapping[str, Mount]":
        """Return its mounts by path."""
        ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is entered while the yard is open."""
        ...


class Monitor:
    """What a server counts and logs, as the section `[monitor]` says."""

    def __init__(self, yard: Yard, config: Config, *, is_authenticated: bool) -> None:
        self._yard = yard
        self._settings = settings = config.settings.monitor
        self._is_authenticated = is_authenticated
        serving = config.settings.serve
        over_http = serving.transport == "http"
        if settings.metrics and over_http and serving.workers > 1:
            raise LaunchError("'metrics' needs one worker, because each worker would show only its own calls.")
        has_metrics = over_http and serving.workers == 1 and settings.metrics is not False
        self.metrics = _make_metrics() if has_metrics else None
        self._records: Ring | None = None
        self._keys = _make_keys(settings.metrics_keys) if has_metrics and settings.metrics_keys else None
        self._audit_log: Any = self._log_file("AuditLog", settings.audit_log)
        self._access_log: Any = self._log_file("AccessLog", settings.access_log if over_http else None)
        self._shows_metrics = has_metrics
        self.console: Console | None = None

    def add_console(self, config: Config, authenticator: "Authenticator | None", agents: "Handle | None" = None) -> None:
        """Show the yard in a browser, if the settings say so; each of several workers would show only its own calls.

        `agents` is the HTTP API of agents, for the chat.
        """
        serving = config.settings.serve
        if not serving.console or serving.transport != "http" or serving.workers > 1:
            return
        from callyard.console import Console  # noqa: PLC0415 - stdio starts sooner without
        from callyard.monitor import Ring  # noqa: PLC0415 - the same

        self.metrics = self.metrics or _make_metrics()
        self._records = Ring()
        self.console = Console(self._yard, config, self.metrics, records=self._records, authenticator=authenticator, agents=agents)

    def attach(self, transport: "Transport") -> None:
        """Let the console show and end the sessions of the transport's clients."""
        if self.console is not None:
            self.console.find_sessions = lambda: getattr(getattr(transport, "app", None), "sessions", None)

    @property
    def transport_options(self) -> dict[str, Any]:
        """Return the arguments for the HTTP transport."""
        return {"mounts": self._mounts(), "access_log": self._access_log}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Count and log while the context is open. Open it before the yard, so that it sees the last calls.

        Raises:
            OSError: A log file cannot be opened.
        """
        with ExitStack() as files:
            for file in filter(None, (self._audit_log, self._access_log)):
                files.enter_context(file)
            self._yard.audit = self._note_approval
            removals = [self._yard.add_sink(sink) for sink in (self.metrics, self._records, self._audit_log) if sink is not None]
            try:
                yield
            finally:
                for remove in removals:
                    remove()
                await asyncio.to_thread(files.close)  # waits for the disk

    def _note_approval(self, line: "AuditLine") -> None:
        """Write what happens to an approval to the audit log, and count it."""
        if self._audit_log is not None:
            self._audit_log(line)
        event: Any = line.event.removeprefix("approval_")
        if self.metrics is not None and event in {"asked", "approved", "denied"}:
            self.metrics.count_approval(event, line.approval_id, source=line.source, tool=line.tool)

    async def settle_approvals(self) -> None:
        """Count the approvals that ended without this process: they expired, or a command decided."""
        gate, metrics = self._yard.gate, self.metrics
        if gate is None or metrics is None:
            return
        for approval_id in [*metrics.open_approvals]:
            try:
                status = (await gate.approvals.get(approval_id)).status
            except ToolError:  # it expired long ago
                status = "expired"
            except StoreUnavailableError:
                return
            if status != "pending" and approval_id in metrics.open_approvals:
                metrics.count_approval("approved" if status == "spent" else status, approval_id)

    def _log_file(self, kind: str, path: str | None) -> Any:
        if path is None:
            return None
        from callyard.monitor import log_files  # noqa: PLC0415 - most servers write none

        settings = self._settings
        return getattr(log_files, kind)(Path(path).expanduser(), max_bytes=settings.log_bytes, backups=settings.log_backups)

    def _mounts(self) -> "Mapping[str, Mount]":
        pages = {} if self.console is None else self.console.mounts
        if not self._shows_metrics:
            return pages
        from callyard.transports.http.app import Mount  # noqa: PLC0415 - stdio starts sooner without

        return {**pages, "/metrics": Mount(handle=self._serve_metrics, authenticate=self._authenticate)}

    async def _authenticate(self, request: "Request") -> "Caller":
        """Admit a key for metrics; without such keys, only a server without authentication shows them.

        Metrics name every tool and caller, so the credentials of a caller are not enough.
        """
        from callyard.dispatch.call import ANYONE, Caller  # noqa: PLC0415 - the first scrape loads what it needs
        from callyard.transports.auth import Refusal  # noqa: PLC0415 - the same
        from callyard.transports.http.request import RefusedError  # noqa: PLC0415 - the same

        if self._keys is None:
            if self._is_authenticated:
                raise RefusedError(403, "Metrics need a key of their own. Add 'metrics_keys' to '[monitor]'.")
            return ANYONE
        try:
            admitted = await self._keys.admit(request.text(b"authorization"), request.text(b"x-api-key"))
        except Refusal as refusal:
            challenge = (b"www-authenticate", refusal.challenge().encode("latin-1", "replace"))
            raise RefusedError(refusal.status, refusal.message, (challenge,)) from None
        return Caller(identity=admitted.identity)

    async def _serve_metrics(self, request: "Request", writer: "ResponseWriter") -> None:
        from callyard.monitor.prometheus import render, snapshot_of  # noqa: PLC0415 - the first scrape loads what it needs
        from callyard.transports.http.request import RefusedError  # noqa: PLC0415 - the same

        if request.method not in {"GET", "HEAD"}:
            raise RefusedError(405, "Only GET is allowed here.", ((b"allow", b"GET, HEAD"),))
        assert self.metrics is not None  # noqa: S101 - mounted only with metrics
        await self.settle_approvals()
        snapshot = snapshot_of(self.metrics, self._yard.dispatcher.in_flight.values(), self._upstreams())
        # in a thread, because a page about a thousand tools takes a while
        page, media_type = await asyncio.to_thread(render, snapshot, request.text(b"accept"))
        await writer.respond(200, page, ((b"content-type", media_type.encode()), (b"cache-control", b"no-store")))

    def _upstreams(self) -> "list[UpstreamState]":
        from callyard.monitor import UpstreamState  # noqa: PLC0415 - the same

        found: list[Any] = [provider for provider in self._yard.providers if hasattr(provider, "supervisor")]
        statuses = [provider.status() for provider in found]
        return [UpstreamState(status.name, status.state, is_open=status.retry_at is not None) for status in statuses]


def _make_metrics() -> "Metrics":
    from callyard.monitor import Metrics  # noqa: PLC0415 - stdio starts sooner without

    return Metrics()


def _make_keys(keys: Sequence[Key]) -> "ApiKeys":
    from callyard.transports.auth import ApiKey, ApiKeys  # noqa: PLC0415 - stdio starts sooner without

    with as_launch_error(ValueError):
        return ApiKeys(ApiKey(key.name, key.digest) for key in keys)
