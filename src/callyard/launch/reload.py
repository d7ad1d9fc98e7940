"""Reloads what changed on disk: the settings of an open yard, or the whole server.

Live settings apply after a change of their files or SIGHUP. The supervisor of `--reload` runs its own program as a
server, and again after every change of a file.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

from msgspec.structs import replace

from callyard._internal.tasks import background_task
from callyard.config import Config, Key, known_settings, stamp_of
from callyard.launch.build import check_profiles, make_authenticator, make_providers, policy_options, resolve_sources
from callyard.launch.errors import LaunchError, explain_cause
from callyard.launch.hangup import Hangup
from callyard.launch.notices import Notices, Part
from callyard.launch.signals import run, success_on_sigterm
from callyard.model.limits import LIVE
from callyard.packs.pack import PackError
from callyard.providers.openapi.settings import ResolvedApi
from callyard.providers.upstream.settings import ResolvedUpstream
from callyard.transports.auth import Authenticator, ReplaceableAuthenticator
from callyard.yard import Yard

__all__ = ["LiveSettings", "Start", "is_supervisor", "read_port", "read_start", "run_supervisor", "stop"]

_POLL_S: Final = 0.5
"""How often files are compared; the standard library has no file notifications."""
_START: Final = "_CALLYARD_RELOAD"
_PORT: Final = "_CALLYARD_RELOAD_PORT"
_KILL_DELAY_S: Final = 10.0
"""How long a supervised server may take to end after its calls had their time."""
_SUFFIXES: Final = (".py", ".toml")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
Start = Literal["", "first", "again"]
"""Whether a supervisor started this process, for the first time or again; empty without a supervisor."""
Snapshot = dict[str, int]
"""Modification times of files by path."""
_LIVE: Final = {f"limits.{name}" for name in LIVE}


def read_start() -> Start:
    """Return how this process was started, and remove the variable, lest a child process inherits it."""
    return cast("Start", os.environ.pop(_START, ""))


def read_port() -> int:
    """Return the port that the supervisor chose for all starts, or 0, and remove the variable."""
    return int(os.environ.pop(_PORT, "0"))


def is_supervisor(config: Config, start: Start) -> bool:
    """Return whether this process supervises the server, which runs in another one and restarts when a file changes.

    Raises:
        LaunchError: The settings contradict each other.
    """
    serving = config.settings.serve
    if serving.reload and serving.transport == "stdio":
        raise LaunchError("'--reload' needs '--transport http': over stdio a restart would disconnect the client.")
    if serving.reload and serving.workers > 1:
        raise LaunchError(
            "'--reload' and '--workers' contradict each other: one is for development, the other for production."
        )
    return serving.reload and not start


def run_supervisor(folder: Path, config: Config, notices: Notices) -> None:
    """Run the server in another process, and restart it after each change to a file of the folder."""
    serving = config.settings.serve
    port = 0 if serving.port or serving.socket is not None else _free_port(serving.host)
    with success_on_sigterm():
        run(_supervise(folder, notices, kill_delay_s=serving.shutdown_seconds + _KILL_DELAY_S, port=port))


def _free_port(host: str) -> int:
    """Return a free port, which stays the same over restarts; 0 if the address is wrong.

    The server reports a wrong address itself.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, suppress(OSError):
        probe.bind((host, 0))
        return probe.getsockname()[1]
    return 0


async def _supervise(folder: Path, notices: Notices, *, kill_delay_s: float, port: int = 0) -> None:
    """Run this program as a server and restart it after every change, on the same port, until cancelled."""
    start: Start = "first"
    while True:
        seen = _snapshot(folder)
        server = await _start_server(start, port)
        try:
            changed = await _wait_for_change(folder, seen, server=server, notices=notices)
        finally:
            await stop(server, kill_delay_s)
        notices.inform(f"'{changed}' changed: restarting the server.")
        start = "again"


async def _start_server(start: Start, port: int) -> asyncio.subprocess.Process:
    # A process group of its own keeps Ctrl-C away: the supervisor ends the server, and once is enough.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *sys.orig_argv[1:],
        stdin=asyncio.subprocess.PIPE,
        process_group=0,
        env={**os.environ, _START: start, **({_PORT: str(port)} if port else {})},
    )


async def _wait_for_change(
    folder: Path, seen: Snapshot, *, server: asyncio.subprocess.Process, notices: Notices
) -> str:
    """Wait until a file is changed, added or removed, and return its path.

    Logs once if the server ends meanwhile.
    """
    is_reported = False
    while True:
        await asyncio.sleep(_POLL_S)
        now = _snapshot(folder)
        if now != seen:
            return str(Path(min(dict(seen.items() ^ now.items()))).relative_to(folder))
        if server.returncode is not None and not is_reported:
            is_reported = True
            notices.say(f"The server ended with status {server.returncode}; it restarts when a file changes.")


async def stop(server: asyncio.subprocess.Process, kill_delay_s: float) -> None:
    """Terminate a process, and kill it if it has not ended after so many seconds."""
    if server.returncode is not None:
        return
    server.terminate()
    try:
        async with asyncio.timeout(kill_delay_s):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def _snapshot(folder: Path) -> Snapshot:
    found: Snapshot = {}
    for path in _files(folder):
        with suppress(FileNotFoundError):  # removed since it was listed
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - faster than pathlib, and runs twice a second over many files
    return found


def _files(folder: Path) -> Iterator[str]:
    for place, inside, files in os.walk(folder):
        inside[:] = [
            name
            for name in inside
            if not name.startswith(".")
            and name not in _SKIPPED
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - the same
        ]
        yield from (os.path.join(place, name) for name in files if name.endswith(_SUFFIXES))  # noqa: PTH118 - the same


@runtime_checkable
class _FromSettings(Protocol):
    """A provider that was made from the settings of an upstream or an API."""

    name: str

    @property
    def resolved(self) -> "ResolvedUpstream | ResolvedApi":
        """Return the settings that it was made of."""
        ...


class _Unheard(Notices):
    """Drops every notice."""

    def say(self, *parts: Part) -> None:
        """Write nothing."""


class LiveSettings:
    """Applies changed settings to an open yard, or to one that other processes are forked with."""

    def __init__(
        self,
        yard: Yard,
        config: Config,
        notices: Notices,
        *,
        read: Callable[[], Config],
        authenticator: ReplaceableAuthenticator | None = None,
        use_metrics_keys: Callable[[Sequence[Key]], None] | None = None,
    ) -> None:
        self._yard = yard
        self._config = config
        self._notices = notices
        self._read_settings = read
        self._authenticator = authenticator
        self._use_metrics_keys = use_metrics_keys
        self._changing_upstreams = asyncio.Lock()
        self._requested = asyncio.Event()
        self._seen = self._before = config.files
        """The stamps of the files when the settings were last read, and at the last comparison."""
        self._unsteady = 0
        """How many comparisons in a row found a change."""
        self._opened_names = (*config.upstreams, *config.apis)
        self._upstreams: dict[str, ResolvedUpstream | ResolvedApi] | None = None
        """The upstreams and APIs that are open, once they may have changed."""

    @asynccontextmanager
    async def watch(self, hangup: Hangup) -> AsyncGenerator[None]:
        """Reload while the context is open: when a file changes, and on SIGHUP, also if that came before."""
        loop = asyncio.get_running_loop()
        receives_signals = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGHUP)

        def request() -> None:
            hangup.note()
            if hangup.take():
                self._requested.set()

        changes: Sequence[str] | None = None
        if any(stamp_of(path) != stamp for path, stamp in self._config.files.items()):
            # before anybody is served: a key may have been removed since this process, or the one that forked it, began
            changes = await self._reload_settings()
        if hangup.take():
            self._requested.set()
        if receives_signals:
            loop.add_signal_handler(signal.SIGHUP, request)
        try:
            async with background_task(self._poll(changes)):
                yield
        finally:
            if receives_signals:
                loop.remove_signal_handler(signal.SIGHUP)
                signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)  # None: set by C code

    def follow(self) -> None:
        """Apply changed files in a process that opens no yard but forks others, which begin with what holds then.

        It writes nothing, because those processes do.
        """
        if not self._is_written():
            return
        notices, self._notices = self._notices, _Unheard()
        try:
            asyncio.run(self._reload_settings())  # which leaves the signals to those who fork
        finally:
            self._notices = notices
        self._requested.set()  # a new process has the upstreams of the first settings

    def _is_written(self) -> bool:
        """Return whether a file was written since the settings were read.

        One that still changes may be incomplete, so it is left for later once.
        """
        now = {path: stamp_of(path) for path in self._config.files}
        self._unsteady = 0 if now == self._before else self._unsteady + 1
        self._before = now
        return now != self._seen and self._unsteady != 1

    async def _poll(self, changes: Sequence[str] | None) -> None:
        async with asyncio.TaskGroup() as upstreams:
            if changes is not None:  # they were applied before anybody was served
                upstreams.create_task(self._reload_upstreams(self._config, changes))
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._requested.wait()
                if self._is_written() or self._requested.is_set():
                    self._requested.clear()
                    changes = await self._reload_settings()
                    if changes is not None:  # a slow upstream must not delay the next change of a key
                        upstreams.create_task(self._reload_upstreams(self._config, changes))

    async def reload(self) -> bool:
        """Read the settings again and apply the differences; return false, with nothing changed, if they are wrong."""
        changes = await self._reload_settings()
        if changes is not None:
            await self._reload_upstreams(self._config, changes)
        return changes is not None

    async def _reload_settings(self) -> Sequence[str] | None:
        """Apply what takes no time, and return what changed in words; None if the settings are wrong."""
        self._seen = self._before
        try:
            config, authenticator = await asyncio.to_thread(self._read)
            self._yard.adopt(config.profiles.values(), profile=config.settings.profile)
        except (LaunchError, KeyError) as error:
            self._notices.say(f"The settings are unchanged: {error.args[0]}")
            return None
        await self._apply_keys(config, authenticator)
        changes = [*self._apply_settings(config)]
        if config.rules != self._config.rules:
            self._yard.use_rules(config.rules, instead_of=self._config.rules)
            changes.insert(0, "the rules changed")
        self._config, self._seen = config, config.files
        return changes

    async def _reload_upstreams(self, config: Config, changes: Sequence[str]) -> None:
        """Apply the upstreams of the settings, one change after the other, and say what changed."""
        async with self._changing_upstreams:
            resolved = await asyncio.to_thread(resolve_sources, config, self._notices)
            changes = [*changes, *await self._apply_upstreams(config, resolved), *await self._apply_packs(config)]
        if changes:
            self._notices.inform(f"The settings were reloaded: {', '.join(changes)}.")

    def _read(self) -> tuple[Config, Authenticator | None]:
        config = self._read_settings()
        if config.path != self._config.path:
            raise LaunchError(f"The file '{self._config.path}' no longer exists.")
        check_profiles(self._yard, config)
        policy_options(config, self._notices)  # raises if a rule is wrong
        auth = config.settings.auth
        accepts_nobody = not auth.api_keys and auth.issuer is None
        has_changed = self._authenticator is not None and auth != self._config.settings.auth
        return config, make_authenticator(config) if has_changed and not accepts_nobody else None

    async def _apply_keys(self, config: Config, authenticator: Authenticator | None) -> None:
        """Accept the credentials that the settings name now; without any, nobody is admitted."""
        before, now = self._config.settings, config.settings
        if self._authenticator is not None and now.auth != before.auth:
            only_keys = replace(now.auth, api_keys=()) == replace(before.auth, api_keys=())
            await self._authenticator.replace(authenticator, only_keys=only_keys)
            if authenticator is None:
                self._notices.say("The settings name no credentials any more, so every caller is refused.")
            names = {key.name for key in now.auth.api_keys}
            if _operators(now.auth.api_keys) != _operators(before.auth.api_keys) & names:
                self._notices.say("The operators among the API keys changed, which takes effect at the next start.")
        if self._use_metrics_keys is not None and now.monitor.metrics_keys != before.monitor.metrics_keys:
            self._use_metrics_keys(now.monitor.metrics_keys)

    def _apply_settings(self, config: Config) -> Sequence[str]:
        """Apply the settings that can change at run time, say which cannot, and return what changed in words."""
        changed = [key for key in known_settings() if config.value(key) != self._config.value(key)]
        live = [key for key in changed if self._is_live(key, config)]
        for key in live:
            if key.startswith("limits."):
                setattr(self._yard.limits, key.partition(".")[2], config.value(key))
        later = [key for key in changed if key not in live]
        if later:
            self._notices.say(f"{_listed(later)} changed, which takes effect at the next start.")
        return [f"{_listed(live)} changed"] if live else []

    def _is_live(self, key: str, config: Config) -> bool:
        if key.startswith("auth."):
            return self._authenticator is not None
        if key == "monitor.metrics_keys":
            return self._use_metrics_keys is not None
        return key in {"profile", "packs"} or (key in _LIVE and key in config.origins)

    async def _apply_upstreams(
        self, config: Config, upstreams: "dict[str, ResolvedUpstream | ResolvedApi]"
    ) -> Sequence[str]:
        """Close removed and changed upstreams, open added and changed ones, and return what changed in words."""
        before = self._open_upstreams() if self._upstreams is None else self._upstreams
        removed = [name for name in before if name not in upstreams]
        added = [name for name in upstreams if name not in before]
        changed = [name for name in upstreams if name in before and upstreams[name] != before[name]]
        await asyncio.gather(*(self._close(name) for name in (*removed, *changed)))
        pending = {name: upstreams[name] for name in (*changed, *added)}
        opened = [new.name for new in make_providers(self._yard, config, pending) if await self._open(new)]
        self._upstreams = {name: found for name, found in upstreams.items() if name not in pending or name in opened}
        parts = (
            ("added", [name for name in added if name in opened]),
            ("restarted", [name for name in changed if name in opened]),
            ("removed", removed),
        )
        return [f"{_listed(names)} {change}" for change, names in parts if names]

    async def _apply_packs(self, config: Config) -> Sequence[str]:
        """Open and close packs as the settings name them now, and return what changed in words."""
        try:
            changes = await self._yard.packs.change(self._yard, config.settings.packs, config.pack_tables)
        except PackError as error:
            self._notices.say(f"The packs are unchanged: {error}")
            return ()
        self._yard.adopt(config.profiles.values(), profile=config.settings.profile)  # with the toolsets of new packs
        try:
            self._yard.packs.check_profiles(self._yard.profiles)
        except PackError as error:
            self._notices.say(str(error))
        for problem in changes.problems:
            self._notices.say(problem)
        parts = (("added", changes.added), ("restarted", changes.restarted), ("removed", changes.removed))
        return [f"{_listed(names)} {change}" for change, names in parts if names]

    def _open_upstreams(self) -> dict[str, ResolvedUpstream | ResolvedApi]:
        """Return the upstreams and APIs of the first settings that are open."""
        found = {one.name: one.resolved for one in self._yard.providers if isinstance(one, _FromSettings)}
        return {name: found[name] for name in self._opened_names if name in found}

    async def _close(self, name: str) -> None:
        try:
            await self._yard.providers.remove(name)
        except Exception as error:  # noqa: BLE001 - one failure must not stop the other changes
            self._notices.say(f"The upstream '{name}' did not close cleanly: {explain_cause(error)}")

    async def _open(self, provider: Any) -> bool:
        try:
            await self._yard.providers.add(provider)
        except Exception as error:  # noqa: BLE001 - one failure must not stop the other changes
            self._notices.say(f"The upstream '{provider.name}' cannot be opened: {explain_cause(error)}")
            return False
        return True


def _operators(keys: Iterable[Key]) -> set[str]:
    """Return the names of keys whose owners decide about approvals."""
    return {key.name for key in keys if key.operator}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
