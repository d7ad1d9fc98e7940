"""The upstream provider: publishes an upstream's catalogue, at first the stored one, and maintains its connection."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callyard._internal.files import find_state_dir
from callyard._internal.logfmt import log_exception, log_fields, log_value
from callyard._internal.project import PROJECTS, find_project, project_dir
from callyard.dispatch.call import Call
from callyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from callyard.dispatch.tool import Tool
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.spec import Kind, Operation, PromptSpec, ToolSpec
from callyard.providers import Publish
from callyard.providers.upstream.calls import Calls
from callyard.providers.upstream.catalogue import (
    Catalogue,
    UpstreamTool,
    folder_of,
    load,
    prefix_of,
    prompts_of,
    published_uri,
    resources_of,
    save,
    tools_of,
    upstream_uri,
)
from callyard.providers.upstream.diff import Comparison, accept_reviewed, compare_catalogue
from callyard.providers.upstream.health import (
    Health,
    Status,
    Supervised,
    read_status,
    restart_requested_at,
    write_status,
)
from callyard.providers.upstream.link import NO_CREDENTIALS, Credentials, Link, LinkError
from callyard.providers.upstream.pins import Definition, Key, LockError, PinCheck, Pins, Settled, settle
from callyard.providers.upstream.process_log import LOG_FILE, last_lines, log_failure
from callyard.providers.upstream.settings import ResolvedUpstream, UpstreamSettings
from callyard.providers.upstream.supervisor import Supervisor
from callyard.providers.upstream.tasks import offers_tasks
from callyard.providers.upstream.unsettled import UnsettledTool, unsettled_tools
from callyard.wire.headers import has_invalid_param_headers
from callyard.wire.versions import MODERN

if TYPE_CHECKING:
    from callyard.providers.upstream.oauth.vault import Vaults

__all__ = ["Upstream", "make_credentials", "make_link", "make_upstream"]

_INVALID_HEADERS: Final = (
    "Its schema names headers for some arguments in an invalid way, so that it must not be called."
)
_SPREAD: Final = 32
_TOKENS: Final = "tokens.json"
_log = logging.getLogger(__name__)


class Upstream(Supervised):
    """The provider of one upstream."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        *,
        link: Callable[[], Link],
        folder: Path,
        credentials: Credentials = NO_CREDENTIALS,
        pins: Pins | None = None,
        longest: int = 48,
        interval: float = 1.0,
        problem: str = "",
        vaults: "Vaults | None" = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.problem = problem
        self.instructions = ""
        self.forward_headers = tuple(header.lower() for header in settings.forward_headers)
        self._make_link = link
        self._folder = folder
        self._vaults = vaults
        self._credentials = credentials
        self._pins = pins
        self.prefix = prefix_of(name, settings)
        """What is in front of the names of its tools; empty if they keep their own."""
        self._longest = longest
        self._interval = interval
        self._catalogue: Catalogue | None = None
        self._withheld: WithheldReasons = NONE_WITHHELD
        self._warned = 0
        self._tools: Sequence[UpstreamTool] = ()
        self._supervisor: Supervisor | None = None
        self._settled = asyncio.Event()
        self._restarted_at = 0.0
        self._written_status: Status | None = None
        self._maintenance: asyncio.Task[None] | None = None

    @property
    def resolved(self) -> ResolvedUpstream:
        """Return the settings that it was made of."""
        return ResolvedUpstream(self.settings, self.problem)

    @property
    def supervisor(self) -> Supervisor:
        """Return the owner of the connection.

        Raises:
            RuntimeError: The upstream is not open.
        """
        if self._supervisor is None:
            raise RuntimeError(f"The upstream '{self.name}' is not open.")
        return self._supervisor

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the stored catalogue, and maintain the connection until the end."""
        self._restarted_at = time.time()
        self._publish = publish
        self._settled = asyncio.Event()
        stored = load(self._folder, self.settings)
        self._supervisor = Supervisor(
            self.name,
            self.settings,
            link=self._make_link,
            credentials=self._credentials,
            fetched=self._fetched,
            updated=self._updated,
            changed=self._health_changed,
            catalogue=stored,
        )
        if stored is not None:
            await self._show(stored)
        unwatch = publish.watch_subscriptions(self._subscribe)
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain())
        try:
            yield
        finally:
            unwatch()
            await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connection for good."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        await self.supervisor.close()
        await self._credentials.close()

    @property
    def is_settled(self) -> bool:
        """Return whether `wait_ready` returns at once."""
        return self._settled.is_set()

    async def wait_ready(self) -> None:
        """Wait until something is published for the first time, or a failure shows that nothing can be for now."""
        await self._settled.wait()

    @property
    def health(self) -> Health:
        """Return the health of the connection."""
        return self.supervisor.health

    async def refresh(self) -> None:
        """Connect if necessary, and fetch the catalogue."""
        await self.supervisor.refresh()

    async def restart(self) -> None:
        """Restart the upstream, forget its failures and fetch its catalogue."""
        await self.supervisor.restart()
        await self.refresh()

    @property
    def can_sign_in(self) -> bool:
        """Return whether a person can log in at it."""
        return self.settings.url is not None and not self.settings.authorizes and not self.problem

    async def sign_in(self, show: Callable[[str], None], *, seconds: float) -> None:
        """Have a person sign in, whose browser opens the address that `show` gets, and use the login.

        Raises:
            LoginError: It failed, or nobody signed in within so many seconds.
        """
        from callyard.providers.upstream.oauth.credentials import open_vault, sign_in_and_store  # noqa: PLC0415 - few upstreams need it

        vault = open_vault(self._vaults, self.name, self.settings, self._folder)
        await sign_in_and_store(self.name, self.settings, vault, show=show, seconds=seconds)
        await self.restart()

    def unlisted_tool(self, upstream_name: str, schema: dict[str, Any], *, name: str) -> Tool:
        """Return a tool of the upstream that it does not list, such as a metatool of another yard."""
        text = f"The tool '{upstream_name}' of '{self.name}'."
        spec = ToolSpec(name=name, description=text, input_schema=schema, operation=Operation.COMMAND)
        return Calls(self.name, self.settings, self.supervisor).tool(UpstreamTool(spec, upstream_name, {}, schema))

    async def ask_yard(self, call: Call, name: str, arguments: Mapping[str, Any]) -> Envelope:
        """Call a metatool of an upstream that is a yard, as a part of a call.

        Raises:
            ToolError: It failed, or the upstream is no yard.
        """
        return await Calls(self.name, self.settings, self.supervisor).ask_yard(call, name, arguments)

    def unavailable_reason(self) -> str | None:
        """Return why there is no catalogue, or None if there is one."""
        return None if self._catalogue is not None else self.supervisor.health.reason or None

    def status(self) -> Status:
        """Return the current status."""
        health, catalogue = self.supervisor.health, self._catalogue
        listed: dict[str, Any] = {}
        if catalogue is not None:
            listed = {
                "tools": len(catalogue.tools),
                "resources": len(catalogue.resources) + len(catalogue.templates),
                "prompts": len(catalogue.prompts),
                "version": catalogue.version,
                "server": str(catalogue.server.get("name", "")),
                "seen": catalogue.seen,
            }
        return Status(
            name=self.name,
            state=health.state,
            reason=health.reason,
            since=health.since,
            withheld=len(self._withheld),
            unsettled=len(self.unsettled()),
            warned=self._warned,
            calls=health.calls,
            failures=health.failures,
            latency_ms=health.latency_ms,
            last_error=health.last_error,
            failed=health.failed,
            retry_at=time.time() + health.wait if health.wait else None,
            pid=self.supervisor.pid,
            yard_pid=os.getpid(),
            **listed,
        )

    def compare(self) -> Comparison | None:
        """Compare what it offers with what was accepted; None if nothing is known of it or nothing is compared.

        Raises:
            LockError: The lock is invalid.
        """
        return compare_catalogue(self.name, self._catalogue, self._pins, self.settings, folder=self._folder)

    async def accept(self, keys: Sequence[Key], *, seen: str) -> list[Key]:
        """Accept and publish differences that a person reviewed, and return them; without keys, all of them.

        Raises:
            ToolError: `state_error` if something else differs now than when it was reviewed, or the lock cannot be
            written.
        """
        chosen = accept_reviewed(
            self.name, self._catalogue, self._pins, self.settings, keys=keys, seen=seen, folder=self._folder
        )
        if self._catalogue is not None:
            await self._show(self._catalogue)
        return chosen

    def unsettled(self) -> list[UnsettledTool]:
        """Return the published tools of which neither the upstream nor a person has said what they do."""
        if self._catalogue is None or self._pins is None:
            return []
        return unsettled_tools(self._tools, self._pins.definitions_of(self.name, self._catalogue))

    async def settle(self, operations: Mapping[str, Settled], *, seen: Mapping[str, str], by: str) -> None:
        """Put into the lock what a person says that tools do, and publish them so.

        Both mappings have the upstream's own names; `seen` has the hashes of the definitions that the person saw.

        Raises:
            ToolError: `state_error` if a tool is settled already or has another definition, or the lock cannot be
            written.
        """
        catalogue, pins = self._catalogue, self._pins
        current = {tool.name: tool.hash for tool in self.unsettled()}
        if catalogue is None or pins is None or any(current.get(name) != seen.get(name, "") for name in operations):
            message = f"The tools of '{self.name}' have changed since you looked. Look at them again."
            raise ToolError("state_error", message, reason="changed_since", may_have_run=False)
        definitions = pins.definitions_of(self.name, catalogue)
        said: list[tuple[Definition, Settled]] = []
        for name, operation in operations.items():
            said.append((definitions[Key("tool", name)], operation))
        try:
            settle(pins.path, self.name, said, unpinned=self.settings.pin == "off")
        except (LockError, OSError) as error:
            message = f"The lock cannot be written: {error}"
            raise ToolError("state_error", message, reason="not_written", may_have_run=False) from error
        _log.info("tools_settled upstream=%s count=%d by=%s", self.name, len(said), log_value(by))
        await self._show(catalogue)

    def last_log_lines(self, count: int) -> list[str]:
        """Return the last lines that its program wrote to stderr; none if it is no program of this machine."""
        return last_lines(self._folder / LOG_FILE, count) if self.settings.carrier == "stdio" else []

    async def _maintain(self) -> None:
        """Refresh a stale catalogue, stop an idle upstream, and restart one on request, all at short intervals."""
        supervisor = self.supervisor
        if self._catalogue is not None:
            spread = 1 + hash(self.name) % _SPREAD / _SPREAD  # not all upstreams should start at the same moment
            # the first answers use the stored catalogue, and should not be delayed
            await asyncio.sleep(self._interval * spread)
        while True:
            try:
                if self._is_restart_requested():
                    await supervisor.restart()
                    self._start_refresh()
                elif supervisor.is_stale:
                    self._start_refresh()
                elif self._catalogue is not None and self._pins is not None and self._pins.changed(self.name):
                    await self._show(self._catalogue)
                supervisor.ensure_subscribed()
                await supervisor.stop_if_idle()
            except Exception:  # noqa: BLE001 - one failed round must not end the maintenance
                log_exception(_log, "upstream_care_failed upstream=%s", self.name)
            self._write_status()
            await asyncio.sleep(self._interval)  # a poll, because other processes leave requests as files

    def _start_refresh(self) -> None:
        """Start a refresh without waiting for it: an upstream that hangs must still be restartable."""
        self.supervisor.start_refresh().add_done_callback(lambda _: self._settled.set())

    def _is_restart_requested(self) -> bool:
        """Return whether another process requested a restart, by a file, since the last one."""
        requested_at = restart_requested_at(self._folder)
        is_newer, self._restarted_at = requested_at > self._restarted_at, max(requested_at, self._restarted_at)
        return is_newer

    async def _fetched(self, catalogue: Catalogue) -> None:
        # first, because a catalogue that cannot be published must not come back with every start
        await self._show(catalogue)
        try:
            save(self._folder, catalogue)
        except OSError as error:
            _log.warning("catalogue_not_kept upstream=%s why=%s", self.name, error.strerror)

    async def _show(self, catalogue: Catalogue) -> None:
        """Publish a catalogue, with the items that must not be used withheld; scan what is new, in a thread."""
        unscanned = [] if self._pins is None else self._pins.unscanned(self.name, catalogue, self.settings)
        if self._pins is not None and unscanned:
            await asyncio.to_thread(self._pins.scan, self.name, unscanned)
        self._catalogue = catalogue
        has_tasks = catalogue.version in MODERN and offers_tasks(catalogue.capabilities)
        calls = Calls(self.name, self.settings, self.supervisor, has_tasks=has_tasks)
        check = PinCheck() if self._pins is None else self._pins.check(self.name, catalogue, self.settings)
        settled: Mapping[str, Operation] = {} if self._pins is None else self._pins.settled(self.name, catalogue)
        tools = tools_of(self.name, catalogue, self.settings, longest=self._longest, settled=settled)
        prompts = prompts_of(self.name, catalogue, self.settings, longest=self._longest)
        completes = "completions" in catalogue.capabilities
        self._withheld = self._withhold(catalogue, check, tools, prompts)
        differing = {**check.withheld, **check.warned}
        accepted = [tool for tool in tools if Key("tool", tool.upstream_name) not in differing]
        self._tools = [tool for tool in accepted if ("tool", tool.spec.name) not in self._withheld]
        self._publish(
            [calls.tool(tool) for tool in tools],
            resources=[
                calls.resource(spec, completes=completes) for spec in resources_of(self.name, catalogue, self.settings)
            ],
            prompts=[calls.prompt(spec, name, completes=completes) for spec, name in prompts],
            withheld=self._withheld,
            foreign=True,
        )
        self._settled.set()

    def _withhold(
        self,
        catalogue: Catalogue,
        check: PinCheck,
        tools: Sequence[UpstreamTool],
        prompts: Sequence[tuple[PromptSpec, str]],
    ) -> dict[tuple[Kind, str], str]:
        """Return the items that must not be used, by published name, with the reason; drop withheld instructions."""
        reasons, self._warned = check.withheld, len(check.warned)
        self.instructions = "" if Key("instructions", "") in reasons else catalogue.instructions
        published: dict[Key, tuple[Kind, str]] = {
            **{Key("tool", tool.upstream_name): ("tool", tool.spec.name) for tool in tools},
            **{Key("prompt", name): ("prompt", spec.name) for spec, name in prompts},
            **{
                key: ("resource", published_uri(self.prefix, key.name))
                for key in reasons
                if key.kind in {"resource", "template"}
            },
        }
        withheld = {published[key]: reason for key, reason in reasons.items() if key in published}
        if self.settings.carrier == "http" and catalogue.version in MODERN:
            withheld |= {
                ("tool", tool.spec.name): _INVALID_HEADERS for tool in tools if has_invalid_param_headers(tool.schema)
            }
        return withheld

    def _updated(self, uri: str) -> None:
        self._publish.updated(published_uri(self.prefix, uri))

    def _subscribe(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        return self.supervisor.subscribe(frozenset(upstream_uri(self.prefix, uri) for uri in uris))

    def _health_changed(self) -> None:
        if self.supervisor.health.state in {"degraded", "backing_off", "auth_needed"}:
            self._settled.set()
        self._write_status()

    def _write_status(self) -> None:
        """Write the status for other processes, if it changed; at the end, do not overwrite that of a running yard."""
        status, stored = self.status(), read_status(self._folder)
        is_foreign = stored is not None and stored.yard_pid != status.yard_pid
        if (status == self._written_status and stored is not None) or (status.state == "stopped" and is_foreign):
            return
        self._written_status = status
        try:
            write_status(self._folder, status)
        except OSError as error:
            _log.debug("status_not_kept upstream=%s why=%s", self.name, error.strerror)


def make_upstream(
    name: str,
    settings: UpstreamSettings,
    *,
    state: Path | None = None,
    pins: Pins | None = None,
    longest: int = 48,
    problem: str = "",
    vaults: "Vaults | None" = None,
) -> Upstream:
    """Return the provider of an upstream; `state` is its folder, by default in the current folder's project.

    With a `problem`, a sentence about its settings, it is never started, and every call answers that it cannot be.
    """
    folder = folder_of(state or project_dir(find_state_dir(), find_project()), name)
    credentials = NO_CREDENTIALS if problem else make_credentials(name, settings, folder, vaults)
    _tell_of_old_login(name, settings, folder)

    def link() -> Link:
        if problem:
            sentence = f"'{name}' cannot be used, because its settings are incomplete."
            error = LinkError("unavailable", sentence, private=problem)
            log_failure(folder / LOG_FILE, error)
            raise error
        return make_link(name, settings, folder, credentials)

    return Upstream(
        name,
        settings,
        link=link,
        folder=folder,
        credentials=credentials,
        pins=pins,
        longest=longest,
        problem=problem,
        vaults=vaults,
    )


def make_link(name: str, settings: UpstreamSettings, folder: Path, credentials: Credentials) -> Link:
    """Return a new link to an upstream, which is not open yet; a program logs to its folder."""
    # The transport is imported by the first link, because listing needs none.
    if settings.carrier == "stdio":
        from callyard.providers.upstream.stdio import StdioLink  # noqa: PLC0415 - see above

        return StdioLink(name, settings, log=folder / LOG_FILE)
    from callyard.providers.upstream.http import HttpLink, SseLink  # noqa: PLC0415 - see above

    return (SseLink if settings.carrier == "sse" else HttpLink)(name, settings, credentials)


def _tell_of_old_login(name: str, settings: UpstreamSettings, folder: Path) -> None:
    """Log that a login from before each project had its own is not used: nobody can tell whose it is."""
    state = folder.parents[1]
    old = folder_of(state.parents[1], name) if state.parent.name == PROJECTS else folder
    if settings.url is not None and old != folder and (old / _TOKENS).exists() and not (folder / _TOKENS).exists():
        _log.warning("login_not_taken_over upstream=%s%s", name, log_fields({"do": f"callyard login {name}"}))


def make_credentials(
    name: str, settings: UpstreamSettings, folder: Path, vaults: "Vaults | None" = None
) -> Credentials:
    """Return the credentials for a URL whose headers have no 'Authorization' yet."""
    if settings.url is None or settings.authorizes:
        return NO_CREDENTIALS
    from callyard.providers.upstream.oauth.credentials import OAuthCredentials, open_vault  # noqa: PLC0415 - programs need no login

    return OAuthCredentials(name, settings, open_vault(vaults, name, settings, folder))
