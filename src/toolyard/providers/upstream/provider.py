"""The upstream provider: publishes what another MCP server offers, from what is known of it, before and without a connection."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from toolyard._internal.files import find_state_dir
from toolyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from toolyard.model.spec import Kind, PromptSpec
from toolyard.providers import Publish
from toolyard.providers.upstream.calls import Calls
from toolyard.providers.upstream.catalogue import Catalogue, folder_of, foreign_uri, load, our_uri, save
from toolyard.providers.upstream.health import Status, keep_status, read_status, restart_asked_at
from toolyard.providers.upstream.link import OPEN, Credentials, Link
from toolyard.providers.upstream.pins import Judgement, Key, Pins
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.supervisor import Observer, Supervisor
from toolyard.providers.upstream.translate import ForeignTool, prefix_of, prompts_of, resources_of, tools_of
from toolyard.wire.headers import is_misnamed
from toolyard.wire.versions import MODERN

__all__ = ["Upstream", "make_upstream"]


_MISNAMED: Final = "It wants arguments as headers, too, but does not say rightly which, so that it must not be called."
_SPREAD: Final = 32
_log = logging.getLogger(__name__)


class Upstream:
    """One upstream, while it is open."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        *,
        link: Callable[[], Link],
        folder: Path | None = None,
        credentials: Credentials = OPEN,
        pins: Pins | None = None,
        longest: int = 48,
        beat: float = 1.0,
    ) -> None:
        self.name = name
        self.settings = settings
        self.instructions = ""
        self.forward_headers = tuple(header.lower() for header in settings.forward_headers)
        self._make_link = link
        self._folder = folder
        self._credentials = credentials
        self._pins = pins
        self._longest = longest
        self._beat = beat
        self._catalogue: Catalogue | None = None
        self._withheld: WithheldReasons = NONE_WITHHELD
        self._warned = 0
        self._supervisor: Supervisor | None = None
        self._publish: Publish | None = None
        self._first = asyncio.Event()
        self._opened = 0.0
        self._kept: Status | None = None
        self._caring: asyncio.Task[None] | None = None

    @property
    def supervisor(self) -> Supervisor:
        """Return what owns the connection.

        Raises:
            RuntimeError: The upstream is not open.
        """
        if self._supervisor is None:
            raise RuntimeError(f"The upstream '{self.name}' is not open.")
        return self._supervisor

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish what is known, and look after the connection meanwhile."""
        self._opened = time.time()
        self._publish = publish
        self._first = asyncio.Event()
        known = None if self._folder is None else load(self._folder, self.settings)
        observer = Observer(fetched=self._take, updated=self._update, changed=self._tell)
        self._supervisor = Supervisor(
            self.name, self.settings, link=self._make_link, credentials=self._credentials, observer=observer, known=known
        )
        if known is not None:
            self._show(known)
        unfollow = publish.watch_subscriptions(self._follow)
        self._caring = asyncio.get_running_loop().create_task(self._care())
        try:
            yield
        finally:
            unfollow()
            await self.part()

    async def part(self) -> None:
        """Let go of the connection for good."""
        if self._caring is not None:
            self._caring.cancel()
            await asyncio.gather(self._caring, return_exceptions=True)
        await self.supervisor.close()
        await self._credentials.close()

    async def settled(self) -> None:
        """Wait until something was published for the first time, or it is clear that nothing can be for now."""
        await self._first.wait()

    async def restart(self) -> None:
        """Stop the upstream, forgive it everything, and look at it anew."""
        await self.supervisor.restart()
        await self.supervisor.refresh()

    def trouble(self) -> str | None:
        """Return why nothing is known of what it offers, or nothing if something is."""
        return None if self._catalogue is not None else self.supervisor.health.reason or None

    def status(self) -> Status:
        """Return how it is."""
        health, catalogue = self.supervisor.health, self._catalogue
        known: dict[str, Any] = {}
        if catalogue is not None:
            resources = len(catalogue.resources) + len(catalogue.templates)
            counts = {"tools": len(catalogue.tools), "resources": resources, "prompts": len(catalogue.prompts)}
            known = {**counts, "version": catalogue.version, "server": str(catalogue.server.get("name", "")), "seen": catalogue.seen}
        return Status(
            name=self.name,
            state=health.state,
            reason=health.reason,
            since=health.since,
            withheld=len(self._withheld),
            warned=self._warned,
            calls=health.calls,
            failures=health.failures,
            latency_ms=health.latency_ms,
            last_error=health.last_error,
            retry_at=time.time() + health.wait if health.wait else None,
            pid=os.getpid(),
            **known,
        )

    async def _care(self) -> None:
        """Do now and then what nobody asks for: look at what is stale, stop what is idle, restart what somebody wants restarted."""
        supervisor = self.supervisor
        if self._catalogue is not None:
            spread = 1 + hash(self.name) % _SPREAD / _SPREAD  # nor should all upstreams start in one moment
            await asyncio.sleep(self._beat * spread)  # the first answers come from what is known, and nothing should delay them
        while True:
            try:
                if self._is_wanted_anew():
                    await supervisor.restart()
                    self._look()
                elif supervisor.is_stale:
                    self._look()
                elif self._catalogue is not None and self._pins is not None and self._pins.changed(self.name):
                    self._show(self._catalogue)
                supervisor.keep_up()
                await supervisor.stop_if_idle()
            except Exception:  # noqa: BLE001 - care must go on, whatever one round of it meets
                _log.exception("upstream_care_failed upstream=%s", self.name)
            self._keep_status()
            await asyncio.sleep(self._beat)  # files of other processes are looked at: nothing tells of them

    def _look(self) -> None:
        """Look at what it offers, without waiting for that: one that hangs must not keep anybody from restarting it."""
        self.supervisor.look().add_done_callback(lambda _: self._first.set())

    def _is_wanted_anew(self) -> bool:
        """Return whether somebody asked, since the last time, for a restart: by a file, because he is another process."""
        if self._folder is None:
            return False
        asked = restart_asked_at(self._folder)
        newer, self._opened = asked > self._opened, max(asked, self._opened)
        return newer

    def _take(self, catalogue: Catalogue) -> None:
        if self._folder is not None:
            try:
                save(self._folder, catalogue)
            except OSError as error:
                _log.warning("catalogue_not_kept upstream=%s why=%s", self.name, error.strerror)
        self._show(catalogue)

    def _show(self, catalogue: Catalogue) -> None:
        """Publish what an upstream offers, less what must not be used."""
        assert self._publish is not None  # noqa: S101 - it is open
        self._catalogue = catalogue
        calls = Calls(self.name, self.settings, self.supervisor)
        tools = tools_of(self.name, catalogue, self.settings, longest=self._longest)
        prompts = prompts_of(self.name, catalogue, self.settings, longest=self._longest)
        completes = "completions" in catalogue.capabilities
        self._withheld = self._judged(catalogue, tools, prompts)
        self._publish(
            [calls.tool(tool) for tool in tools],
            resources=[calls.resource(spec, completes=completes) for spec in resources_of(self.name, catalogue, self.settings)],
            prompts=[calls.prompt(spec, own, completes=completes) for spec, own in prompts],
            withheld=self._withheld,
            foreign=True,
        )
        self._first.set()

    def _judged(
        self, catalogue: Catalogue, tools: Sequence[ForeignTool], prompts: Sequence[tuple[PromptSpec, str]]
    ) -> dict[tuple[Kind, str], str]:
        """Return what must not be used, as it is called here, and why; instructions that must not be are not there."""
        judgement = Judgement() if self._pins is None else self._pins.judge(self.name, catalogue, self.settings)
        reasons, self._warned = judgement.withheld, len(judgement.warned)
        self.instructions = "" if Key("instructions", "") in reasons else catalogue.instructions
        prefix = prefix_of(self.name, self.settings)
        ours: dict[Key, tuple[Kind, str]] = {
            **{Key("tool", tool.own): ("tool", tool.spec.name) for tool in tools},
            **{Key("prompt", own): ("prompt", spec.name) for spec, own in prompts},
            **{key: ("resource", our_uri(prefix, key.name)) for key in reasons if key.kind in {"resource", "template"}},
        }
        withheld = {ours[key]: reason for key, reason in reasons.items() if key in ours}
        if self.settings.carrier == "http" and catalogue.version in MODERN:
            withheld |= {("tool", tool.spec.name): _MISNAMED for tool in tools if is_misnamed(tool.schema)}
        return withheld

    def _update(self, uri: str) -> None:
        if self._publish is not None:
            self._publish.updated(our_uri(prefix_of(self.name, self.settings), uri))

    def _follow(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        prefix = prefix_of(self.name, self.settings)
        return self.supervisor.follow(frozenset(foreign_uri(prefix, uri) for uri in uris))

    def _tell(self) -> None:
        if self.supervisor.health.state in {"degraded", "backing_off", "auth_needed"}:
            self._first.set()
        self._keep_status()

    def _keep_status(self) -> None:
        """Keep how it is where commands of other processes find it."""
        if self._folder is None:
            return
        status, said = self.status(), read_status(self._folder)
        if status == self._kept and said is not None:
            return  # what is there is ours, or that of another yard that runs
        if status.state == "stopped" and said is not None and said.pid != status.pid:
            return
        self._kept = status
        try:
            keep_status(self._folder, status)
        except OSError as error:
            _log.debug("status_not_kept upstream=%s why=%s", self.name, error.strerror)


def make_upstream(
    name: str, settings: UpstreamSettings, *, state: Path | None = None, pins: Pins | None = None, longest: int = 48
) -> Upstream:
    """Return a provider of what an upstream offers; what is known of it is kept in the state directory, by default the usual one."""
    folder = folder_of(state or find_state_dir(), name)
    credentials = _credentials(name, settings, folder)
    link = _link(name, settings, folder, credentials)
    return Upstream(name, settings, link=link, folder=folder, credentials=credentials, pins=pins, longest=longest)


def _credentials(name: str, settings: UpstreamSettings, folder: Path) -> Credentials:
    """Return what is shown to an upstream; one whose headers say already who calls is shown nothing else."""
    if settings.url is None or settings.authorizes:
        return OPEN
    from toolyard.providers.upstream.oauth.credentials import SignedIn  # noqa: PLC0415 - programs need no login

    return SignedIn(name, settings, folder)


def _link(name: str, settings: UpstreamSettings, folder: Path, credentials: Credentials) -> Callable[[], Link]:
    """Return what makes a link; its carrier is loaded with the first one, because lists need none."""

    def make() -> Link:
        if settings.carrier == "stdio":
            from toolyard.providers.upstream.stdio import StdioLink  # noqa: PLC0415 - lists need no carrier

            return StdioLink(name, settings, log=folder / "stderr.log")
        if settings.carrier == "sse":
            from toolyard.providers.upstream.http.sse import SseLink  # noqa: PLC0415 - lists need no carrier

            return SseLink(name, settings, credentials)
        from toolyard.providers.upstream.http.link import HttpLink  # noqa: PLC0415 - lists need no carrier

        return HttpLink(name, settings, credentials)

    return make
