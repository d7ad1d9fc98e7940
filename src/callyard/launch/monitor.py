"""The monitor of a served yard: metrics, log files, OpenTelemetry, and the mounts '/metrics' and '/console'.

The HTTP transport does not know what is mounted; it gets the mounts from here.
"""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from callyard.config import Config, Key
from callyard.launch.errors import LaunchError
from callyard.launch.notices import Notices
from callyard.monitor.log_files import AccessLog, AuditLog
from callyard.monitor.metrics import Metrics, Ring
from callyard.transports.auth import Authenticator
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.console import Console  # these load the HTTP transport
    from callyard.console.page import AgentHost
    from callyard.launch.alerts import Alerts
    from callyard.launch.mounts import MetricsPage
    from callyard.policy.approvals import AuditLine
    from callyard.providers.upstream.supervisor import Supervisor
    from callyard.transports.http.app import Mount

__all__ = ["Monitor", "Mounted"]

File = TypeVar("File", AccessLog, AuditLog)
_ENDPOINTS: Final = ("", "TRACES_", "METRICS_")
_log = logging.getLogger(__name__)


class Mounted(Protocol):
    """A part of a server that has paths of its own beside '/mcp'."""

    @property
    def mounts(self) -> "Mapping[str, Mount]":
        """Return its mounts by path."""
        ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that is entered while the yard is open."""
        ...


class UpstreamSessions:
    """The sessions with upstreams that ended; it remembers upstreams that are gone until their sessions are counted."""

    mounts: Mapping[str, "Mount"] = {}

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._known: dict[str, Supervisor] = {}

    def take_ended(self) -> dict[str, list[float]]:
        """Return the durations of the sessions that ended since the last time, by upstream."""
        self._find()
        return {name: _emptied(supervisor) for name, supervisor in self._known.items()}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Find the upstreams before the yard closes, which ends their sessions."""
        try:
            yield
        finally:
            self._find()

    def _find(self) -> None:
        for provider in self._yard.providers:
            supervisor = getattr(provider, "supervisor", None)
            if supervisor is not None:
                self._known[provider.name] = supervisor


def _emptied(supervisor: "Supervisor") -> list[float]:
    ended = [*supervisor.ended_sessions]
    supervisor.ended_sessions.clear()
    return ended


def _is_installed() -> bool:
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.exporter") is not None


def _wants_telemetry(setting: bool | None) -> bool:  # noqa: FBT001 - a value of a file
    """Return whether to load OpenTelemetry; what an environment wants that cannot be is a warning.

    Raises:
        LaunchError: A setting asks for it, and it is not installed or speaks another protocol.
    """
    if setting is False or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if setting is None and not any(os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT") for signal in _ENDPOINTS):
        return False
    reason = ""
    if not _is_installed():
        reason = "OpenTelemetry is not installed. Run \"pip install 'callyard[otel]'\"."
    elif os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") != "http/protobuf":
        reason = "Spans are sent by 'http/protobuf' alone, and 'OTEL_EXPORTER_OTLP_PROTOCOL' names another protocol."
    if reason and setting:
        raise LaunchError(reason)
    if reason:
        _log.warning("otel_off reason=%r", reason)
    return not reason


def _wants_alerts(config: Config) -> bool:
    """Return whether calls are judged: where several clients share a server, or the section says so."""
    chosen = config.settings.alerts.enabled
    is_shared = config.settings.serve.transport in {"http", "sse"}
    return chosen if chosen is not None else is_shared or bool(config.explicit("alerts"))


class Monitor:
    """What a server counts and logs, as the section `[monitor]` says."""

    def __init__(self, yard: Yard, config: Config, *, is_authenticated: bool, notices: Notices | None = None) -> None:
        self._yard = yard
        self._notices = notices
        self._settings = settings = config.settings.monitor
        serving = config.settings.serve
        over_http = serving.transport == "http"
        if settings.metrics and over_http and serving.workers > 1:
            raise LaunchError("'metrics' needs one worker, because each worker would show only its own calls.")
        self.page: MetricsPage | None = None
        self.metrics: Metrics | None = None
        self.alerts: Alerts | None = None
        wants_page = over_http and serving.workers == 1 and settings.metrics is not False
        if wants_page or _wants_alerts(config):
            from callyard.launch import alerts, mounts  # noqa: PLC0415 - loads the HTTP transport

            if wants_page:
                self.page = mounts.MetricsPage(yard, settings.metrics_keys, is_authenticated=is_authenticated)
            self.metrics = Metrics() if self.page is None else self.page.metrics
            if _wants_alerts(config):
                self.alerts = alerts.Alerts(yard, config, notices or Notices(), self.metrics)
            if self.page is not None and self.alerts is not None:
                self.page.incidents = self.alerts.incidents
        self._traces = _wants_telemetry(settings.otel)
        if self._traces:
            self.metrics = self.metrics or Metrics()
        self.upstreams = UpstreamSessions(yard)
        self._records: Ring | None = None
        self._audit_log = self._log_file(AuditLog, settings.audit_log)
        self._access_log = self._log_file(AccessLog, settings.access_log if over_http else None)
        self.console: Console | None = None

    @property
    def parts(self) -> "Sequence[Mounted]":
        """Return what is open while the yard is."""
        return (self.upstreams,) if self.alerts is None else (self.upstreams, self.alerts)

    def add_console(
        self, config: Config, authenticator: Authenticator | None, agents: "AgentHost | None" = None, *, token: str = ""
    ) -> None:
        """Show the yard in a browser, if the settings say so; each of several workers would show only its own calls.

        `agents` is the HTTP API of agents, for the chat and the approvals. `token` logs people in; by default it is a
        random one.
        """
        serving = config.settings.serve
        if not serving.console or serving.transport != "http" or serving.workers > 1:
            return
        from callyard.console import Console  # noqa: PLC0415 - a feature that is off over stdio

        self.metrics = self.metrics or Metrics()
        self._records = Ring()
        self.console = Console(
            self._yard,
            config,
            self.metrics,
            records=self._records,
            authenticator=authenticator,
            agents=agents,
            incidents=None if self.alerts is None else self.alerts.incidents,
            token=token,
        )

    def use_keys(self, keys: Sequence[Key]) -> None:
        """Accept these keys for metrics from now on, and no others."""
        if self.page is not None:
            self.page.use_keys(keys)

    @property
    def transport_options(self) -> dict[str, Any]:
        """Return the arguments for the HTTP transport."""
        mounts = {} if self.console is None else dict(self.console.mounts)
        if self.page is not None:
            mounts["/metrics"] = self.page.mount
        return {"mounts": mounts, "access_log": self._access_log}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Count and log while the context is open. Open it before the yard, so that it sees the last calls.

        Raises:
            OSError: A log file cannot be opened.
        """
        async with self._telemetry(), AsyncExitStack() as last:
            files = ExitStack()
            last.push_async_callback(asyncio.to_thread, files.close)  # waits for the disk
            for file in filter(None, (self._audit_log, self._access_log)):
                files.enter_context(file)
            self._yard.audit = self._note_approval
            removals = [
                self._yard.add_sink(sink) for sink in (self.metrics, self._records, self._audit_log) if sink is not None
            ]
            try:
                yield
            finally:
                for remove in removals:
                    remove()

    @asynccontextmanager
    async def _telemetry(self) -> AsyncGenerator[None]:
        """Trace the yard while the context is open, if that is wanted."""
        if not self._traces or self.metrics is None:
            yield
            return
        from callyard.monitor import otlp, tracing  # noqa: PLC0415 - OpenTelemetry is loaded only where it is on

        telemetry = otlp.Telemetry(self.metrics, upstreams=self.upstreams.take_ended)
        if self._notices is not None:
            self._notices.trace_ids = tracing.current_ids
        async with telemetry.open(self._yard.name) as tracer:
            self._yard.tracing = tracer
            try:
                yield
            finally:
                self._yard.tracing = None

    def _note_approval(self, line: "AuditLine") -> None:
        if self._audit_log is not None:
            self._audit_log(line)
        event: Any = line.event.removeprefix("approval_")
        if self.metrics is not None and event in {"asked", "approved", "denied"}:
            self.metrics.count_approval(event, line.approval_id, source=line.source, tool=line.tool)

    def _log_file(self, make: Callable[..., File], path: str | None) -> File | None:
        if path is None:
            return None
        return make(Path(path).expanduser(), max_bytes=self._settings.log_bytes, backups=self._settings.log_backups)
