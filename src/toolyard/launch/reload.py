"""Reloading after files change: settings of an open yard, or with `--reload` the whole server.

The supervisor of `--reload` knows no yard: it runs its own program again.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from toolyard.config import Config, Stamp, known_settings, stamp_of
from toolyard.launch.build import check_profiles, make_providers, resolve_upstreams
from toolyard.launch.errors import LaunchError, explain_cause
from toolyard.launch.notices import Notices
from toolyard.launch.policy import policy_options
from toolyard.model.limits import LIVE
from toolyard.yard import ResolvedUpstream, Yard, background_task

if TYPE_CHECKING:
    pass  # a yard without upstreams starts sooner

__all__ = ["LiveSettings", "ReadSettings", "Start", "read_port", "read_start", "stop", "supervise"]


ReadSettings = Callable[[], Config]
"""Reads the settings again; raises `LaunchError` if they are wrong."""
_POLL_S: Final = 0.5
"""How often files are compared; the standard library has no file notifications."""
_LIVE: Final = {"profile", *(f"limits.{name}" for name in LIVE)}


class LiveSettings:
    """Applies changed settings to an open yard."""

    def __init__(self, yard: Yard, config: Config, notices: Notices, *, read: ReadSettings) -> None:
        self._yard = yard
        self._config = config
        self._notices = notices
        self._read_settings = read
        self._requested = asyncio.Event()
        open_upstreams = {
            provider.name: ResolvedUpstream(settings, getattr(provider, "problem", ""))
            for provider in yard.providers
            if (settings := getattr(provider, "settings", None))
        }
        self._upstreams = {name: open_upstreams[name] for name in config.upstreams if name in open_upstreams}

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[None]:
        """Reload while the context is open: when a file changes, and on SIGHUP."""
        loop = asyncio.get_running_loop()
        receives_signals = threading.current_thread() is threading.main_thread()
        had_terminal, before = self._notices.stderr_is_terminal, signal.getsignal(signal.SIGHUP)
        if receives_signals:
            loop.add_signal_handler(signal.SIGHUP, lambda: _terminate() if had_terminal and _lost_terminal() else self._requested.set())
        try:
            async with background_task(self._poll()):
                yield
        finally:
            if receives_signals:
                loop.remove_signal_handler(signal.SIGHUP)
                signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)  # None: set by C code

    async def _poll(self) -> None:
        seen = before = self._config.files
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._requested.wait()
            now = self._stamps()
            is_written = now != seen and now == before  # a file that still changes may be incomplete
            before = now
            if self._requested.is_set() or is_written:
                self._requested.clear()
                seen = self._config.files if await self.reload() else now

    async def reload(self) -> bool:
        """Read the settings again and apply the differences; return false, with nothing changed, if they are wrong."""
        try:
            config, upstreams = await asyncio.to_thread(self._read)
            self._yard.adopt(config.profiles.values(), profile=config.settings.profile)
        except (LaunchError, KeyError) as error:
            self._notices.say(f"The settings are unchanged: {error.args[0]}")
            return False
        changes = [*self._apply_rules(config), *self._apply_settings(config), *await self._apply_upstreams(config, upstreams)]
        if changes:
            self._notices.inform(f"The settings were reloaded: {', '.join(changes)}.")
        self._config = config
        return True

    def _read(self) -> tuple[Config, dict[str, ResolvedUpstream]]:
        config = self._read_settings()
        if config.path != self._config.path:
            raise LaunchError(f"The file '{self._config.path}' no longer exists.")
        check_profiles(self._yard, config)
        policy_options(config, self._notices)  # raises if a rule is wrong
        return config, resolve_upstreams(config, self._notices)

    def _apply_rules(self, config: Config) -> Sequence[str]:
        """Replace the rules of the file, if they changed."""
        if config.rules == self._config.rules:
            return []
        self._yard.use_rules(config.rules, instead_of=self._config.rules)
        return ["the rules changed"]

    def _apply_settings(self, config: Config) -> Sequence[str]:
        """Apply the settings that can change at run time, say which cannot, and return what changed in words."""
        changed = [key for key in known_settings() if config.value(key) != self._config.value(key)]
        live = [key for key in changed if key in _LIVE and (key == "profile" or key in config.origins)]
        for key in live:
            if key != "profile":
                setattr(self._yard.limits, key.partition(".")[2], config.value(key))
        later = [key for key in changed if key not in live]
        if later:
            self._notices.say(f"{_listed(later)} changed, which takes effect at the next start.")
        return [f"{_listed(live)} changed"] if live else []

    async def _apply_upstreams(self, config: Config, upstreams: dict[str, ResolvedUpstream]) -> Sequence[str]:
        """Close removed and changed upstreams, open added and changed ones, and return what changed in words."""
        removed = [name for name in self._upstreams if name not in upstreams]
        added = [name for name in upstreams if name not in self._upstreams]
        changed = [name for name in upstreams if name in self._upstreams and upstreams[name] != self._upstreams[name]]
        await asyncio.gather(*(self._close(name) for name in (*removed, *changed)))
        pending = {name: upstreams[name] for name in (*changed, *added)}
        opened = [provider.name for provider in make_providers(self._yard, config, pending) if await self._open(provider)]
        self._upstreams = {name: settings for name, settings in upstreams.items() if name not in pending or name in opened}
        parts = (
            ("added", [name for name in added if name in opened]),
            ("restarted", [name for name in changed if name in opened]),
            ("removed", removed),
        )
        return [f"{_listed(names)} {change}" for change, names in parts if names]

    async def _close(self, name: str) -> None:
        try:
            await self._yard.providers.remove(name)
        except Exception as error:  # noqa: BLE001 - one failure must not stop the other changes
            self._notices.say(f"The upstream '{name}' did not close cleanly: {explain_cause(error)}")

    async def _open(self, provider: Any) -> bool:
        try:
            await self._yard.providers.add(provider)
        except Exception as error:  # noqa: BLE001 - the same
            self._notices.say(f"The upstream '{provider.name}' cannot be opened: {explain_cause(error)}")
            return False
        return True

    def _stamps(self) -> Mapping[Path, Stamp]:
        return {path: stamp_of(path) for path in self._config.files}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _lost_terminal() -> bool:
    """Return whether the terminal of the start was closed, which sends SIGHUP, too."""
    return not os.isatty(2)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


_START: Final = "_TOOLYARD_RELOAD"
_PORT: Final = "_TOOLYARD_RELOAD_PORT"
_SUFFIXES: Final = (".py", ".toml")
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
Start = Literal["", "first", "again"]
"""Whether a supervisor started this process, for the first time or again; empty without a supervisor."""
Snapshot = dict[str, int]
"""Modification times of files by path."""


def read_start() -> Start:
    """Return how this process was started, and remove the variable, lest a child process inherits it."""
    start = os.environ.pop(_START, "")
    return "first" if start == "first" else "again" if start else ""


def read_port() -> int:
    """Return the port that the supervisor chose for all starts, or 0, and remove the variable."""
    return int(os.environ.pop(_PORT, "0"))


async def supervise(folder: Path, notices: Notices, *, kill_delay_s: float, port: int = 0) -> None:
    """Run this program again as a server and restart it after every change, until cancelled; every start gets the port."""
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
    variables: dict[str, str] = {_START: start, **({_PORT: str(port)} if port else {})}
    return await asyncio.create_subprocess_exec(
        sys.executable, *sys.orig_argv[1:], stdin=asyncio.subprocess.PIPE, process_group=0, env={**os.environ, **variables}
    )


async def _wait_for_change(folder: Path, seen: Snapshot, *, server: asyncio.subprocess.Process, notices: Notices) -> str:
    """Wait until a file is changed, added or removed, and return its path; say once if the server has ended meanwhile."""
    is_reported = False
    while True:
        await asyncio.sleep(_POLL_S)
        now = _snapshot(folder)
        if now != seen:
            changed = min(dict(seen.items() ^ now.items()))
            return str(Path(changed).relative_to(folder))
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
    """Return the modification time of each watched file."""
    found: Snapshot = {}
    for path in _files(folder):
        try:
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - faster than pathlib, and runs twice a second over many files
        except FileNotFoundError:  # removed since it was listed
            continue
    return found


def _files(folder: Path) -> Iterator[str]:
    for place, inside, files in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".") and name not in _SKIPPED and not _is_environment(place, name)]
        yield from (os.path.join(place, name) for name in files if name.endswith(_SUFFIXES))  # noqa: PTH118 - the same


def _is_environment(place: str, name: str) -> bool:
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - the same
