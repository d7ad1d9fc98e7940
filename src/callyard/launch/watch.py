"""Serves a watch: from settings to targets, incidents, notifiers and the pages that show them."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qs

from msgspec.structs import replace

from callyard.config import Config
from callyard.launch.alerts import make_notifiers
from callyard.launch.build import make_authenticator, make_store
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.notices import Notices
from callyard.launch.probe import probe_targets
from callyard.launch.serve import run_server, serving_failure
from callyard.launch.signals import success_on_sigterm
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.monitor.incidents import Incidents, Silence
from callyard.monitor.notifiers import Notifier
from callyard.policy.approvals import local_user
from callyard.probe.history import TargetState
from callyard.probe.pages import badge, probe_metrics, status, status_page, watch_metrics
from callyard.probe.probe import Target
from callyard.probe.watch import Watch, control_of
from callyard.state.store import Store, StoreUnavailableError
from callyard.transports import Transport
from callyard.transports.http.app import Mount
from callyard.transports.http.request import RefusedError, Request
from callyard.transports.http.response import ResponseWriter
from callyard.yard import Yard

__all__ = ["WatchPages", "make_watch", "run_watch_server", "silence", "watch_targets"]

_FRESH: Final = (b"cache-control", b"no-store")
_SAFE: Final = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")
_log = logging.getLogger(__name__)


def watch_targets(config: Config, notices: Notices) -> list[Target]:
    """Return the upstreams to watch: those at a URL, and the programs that may be started for that.

    Raises:
        LaunchError: There are none.
    """
    targets: list[Target] = []
    for target in probe_targets(config, notices):
        if target.settings.url is not None or target.checks.start:
            targets.append(target)
        else:
            notices.inform(
                f"The program '{target.name}' is not watched: '[probe.{target.name}]' has no 'start = true'."
            )
    if not targets:
        raise LaunchError("There is nothing to watch. Add upstreams with a 'url' to 'callyard.toml'.")
    return targets


def make_watch(config: Config, targets: Sequence[Target], store: Store, notifiers: Sequence[Notifier]) -> Watch:
    """Return the watch over targets that the section `[watch]` describes; it is not open."""
    settings = config.settings.watch
    host, _, port = (settings.control or "").rpartition(":")
    incidents = Incidents(store, scope=_scope(config), notifiers=notifiers, lasting=True)
    return Watch(
        targets,
        incidents,
        store,
        name=settings.name,
        every=settings.every,
        control=control_of(host.strip("[]"), int(port)) if host else None,
    )


def _scope(config: Config) -> str:
    return f"watch/{config.settings.watch.name}"


async def silence(config: Config, pattern: str, *, seconds: float, reason: str) -> Silence:
    """Let the watchers of the settings alert nobody of incidents whose key matches a pattern, for so long.

    Raises:
        LaunchError: The pattern, the time or the store cannot be used.
    """
    store = make_store(config)
    try:
        with as_launch_error(StoreUnavailableError), as_launch_error(ToolError):
            incidents = Incidents(store, scope=_scope(config))
            return await incidents.silence(pattern, by=local_user(), seconds=seconds, reason=reason)
    finally:
        await store.close()


class WatchPages:
    """A watch as a part of a server, with its pages."""

    def __init__(
        self, config: Config, targets: Sequence[Target], store: Store, notifiers: Sequence[Notifier] = ()
    ) -> None:
        self.watch = make_watch(config, targets, store, notifiers)
        self._store = store
        needs = not config.settings.watch.public
        self.mounts: Mapping[str, Mount] = {
            "/status": Mount(handle=self._serve_page, needs_authentication=needs),
            "/status.json": Mount(handle=self._serve_json, needs_authentication=needs),
            "/badge": Mount(handle=self._serve_badge, has_subpaths=True, needs_authentication=needs),
            "/metrics": Mount(handle=self._serve_metrics),
            "/probe": Mount(handle=self._serve_probe),
        }

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Watch while the server is open, and close the store then."""
        try:
            async with self.watch.open():
                yield
        finally:
            await self._store.close()

    async def _incidents(self) -> list[dict[str, object]]:
        try:
            return [one.view() for one in await self.watch.incidents.all() if one.closed is None]
        except StoreUnavailableError:
            return []

    async def _serve_page(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        page = status_page(self.watch, await self._incidents())
        await writer.respond(200, page.encode(), ((b"content-type", b"text/html; charset=utf-8"), _FRESH, _SAFE))

    async def _serve_json(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        await writer.respond(200, encode(status(self.watch, await self._incidents())))

    async def _serve_badge(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        name = request.subpath.removeprefix("/").removesuffix(".svg")
        await writer.respond(200, badge(self._find(name)[1]).encode(), ((b"content-type", b"image/svg+xml"), _FRESH))

    async def _serve_metrics(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        page, media_type = watch_metrics(self.watch, request.text(b"accept"))
        await writer.respond(200, page, ((b"content-type", media_type.encode()), _FRESH))

    async def _serve_probe(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        name = parse_qs(request.query.decode("latin-1")).get("target", [""])[0]
        self._find(name)
        page, media_type = probe_metrics(await self.watch.probe_now(name), request.text(b"accept"))
        await writer.respond(200, page, ((b"content-type", media_type.encode()), _FRESH))

    def _find(self, name: str) -> tuple[Target, TargetState]:
        targets = self.watch.targets
        if name not in targets:
            raise RefusedError(404, "There is no such target.")
        return targets[name]


def _check_get(request: Request) -> None:
    if request.method not in {"GET", "HEAD"}:
        raise RefusedError(405, "Only GET is allowed here.", ((b"allow", b"GET, HEAD"),))


def run_watch_server(config: Config, notices: Notices) -> None:
    """Watch the targets of the settings, and serve the pages, until a signal ends it.

    Raises:
        LaunchError: There is nothing to watch, or the settings cannot be used.
    """
    targets = watch_targets(config, notices)
    serving = replace(config.settings.serve, transport="http", workers=1, console=False)
    notifiers = [*make_notifiers(config, notices)]
    pages = WatchPages(config, targets, make_store(config), notifiers)
    yard = Yard("watch", metatools=False)
    listening: list[str] = []

    def announce(transport: Transport) -> None:
        listening.append(transport.info().address)
        address = listening[0].removesuffix("/mcp")
        _log.info("watching targets=%d address=%s", len(targets), address)
        notices.inform(f"Watching {len(targets)} targets. Their status is at {address}/status")

    try:
        with success_on_sigterm():
            run_server(yard, serving, make_authenticator(config), mounted=(pages,), ready=announce)
    except Exception as error:
        raise serving_failure(error, yard, serving, listening=bool(listening)) from error
