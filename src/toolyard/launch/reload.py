"""Reloading: a server in a process of its own, started anew when a file beside the yard changes.

It knows no yard: what it starts is the program that it is part of, once more.
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
from toolyard.launch.build import check_profiles, make_providers, settled_upstreams
from toolyard.launch.errors import LaunchError, cause_of
from toolyard.launch.notices import Notices
from toolyard.model.limits import LIVE
from toolyard.yard import Yard, background_task

if TYPE_CHECKING:
    from toolyard.providers.upstream.settings import UpstreamSettings  # a yard without upstreams starts sooner

__all__ = ["Beginning", "Live", "Reread", "beginning_of", "end_with_supervisor", "kept_port", "stop", "supervise"]


Reread = Callable[[], Config]
"""Reads the settings once more; raises `LaunchError` if they are wrong."""
_SETTLE_SECONDS: Final = 0.5
_AT_ONCE: Final = {"profile", *(f"limits.{name}" for name in LIVE)}


class Live:
    """The settings of a yard that is open, and what becomes of them."""

    def __init__(self, yard: Yard, config: Config, notices: Notices, *, reread: Reread) -> None:
        self._yard = yard
        self._config = config
        self._notices = notices
        self._reread = reread
        self._told = asyncio.Event()
        reached = {provider.name: settings for provider in yard.providers if (settings := getattr(provider, "settings", None))}
        self._upstreams: dict[str, UpstreamSettings] = {name: reached[name] for name in config.upstreams if name in reached}

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Look at the files meanwhile, and hear SIGHUP."""
        loop = asyncio.get_running_loop()
        hears = threading.current_thread() is threading.main_thread()
        attended, before = self._notices.attended, signal.getsignal(signal.SIGHUP)
        if hears:
            loop.add_signal_handler(signal.SIGHUP, lambda: _end() if attended and _is_alone() else self._told.set())
        try:
            async with background_task(self._follow()):
                yield
        finally:
            if hears:
                loop.remove_signal_handler(signal.SIGHUP)
                signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)  # none of Python's: it cannot be put back

    async def _follow(self) -> None:
        seen = before = self._config.files
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS):  # files are looked at, since nothing here tells of their changes
                    await self._told.wait()
            now = self._stamps()
            is_written = now != seen and now == before  # what still changes may be half of it
            before = now
            if self._told.is_set() or is_written:
                self._told.clear()
                seen = self._config.files if await self.take_over() else now

    async def take_over(self) -> bool:
        """Read the settings once more and let the yard have what differs; what is wrong changes nothing; return whether all was well."""
        try:
            config, upstreams = await asyncio.to_thread(self._read)
            self._yard.adopt(config.profiles.values(), profile=config.settings.profile)
        except (LaunchError, KeyError) as error:
            self._notices.say(f"The settings stay as they were: {error.args[0]}")
            return False
        done = [*self._take_settings(config), *await self._take_upstreams(config, upstreams)]
        if done and not self._notices.quiet:
            self._notices.say(f"The settings were read anew: {', '.join(done)}.")
        self._config = config
        return True

    def _read(self) -> "tuple[Config, dict[str, UpstreamSettings]]":
        config = self._reread()
        if config.path != self._config.path:
            raise LaunchError(f"The file '{self._config.path}' is gone.")
        check_profiles(self._yard, config)
        return config, settled_upstreams(config, self._notices)

    def _take_settings(self, config: Config) -> Sequence[str]:
        """Let the yard have the settings that it can change while it runs, say which it cannot, and return what was done."""
        changed = [key for key in known_settings() if config.value(key) != self._config.value(key)]
        at_once = [key for key in changed if key in _AT_ONCE and (key == "profile" or key in config.origins)]
        for key in at_once:
            if key != "profile":
                setattr(self._yard.limits, key.partition(".")[2], config.value(key))
        later = [key for key in changed if key not in at_once]
        if later:
            self._notices.say(f"{_named(later)} changed, which takes effect at the next start.")
        return [f"{_named(at_once)} changed"] if at_once else []

    async def _take_upstreams(self, config: Config, upstreams: "dict[str, UpstreamSettings]") -> Sequence[str]:
        """Close what is gone or different, open what is new or different, and return what was done."""
        gone = [name for name in self._upstreams if name not in upstreams]
        added = [name for name in upstreams if name not in self._upstreams]
        changed = [name for name in upstreams if name in self._upstreams and upstreams[name] != self._upstreams[name]]
        await asyncio.gather(*(self._closed(name) for name in (*gone, *changed)))
        wanted = {name: upstreams[name] for name in (*changed, *added)}
        opened = [provider.name for provider in make_providers(self._yard, config, wanted) if await self._opened(provider)]
        kept = {name: settings for name, settings in upstreams.items() if name not in wanted}
        self._upstreams = {**kept, **{name: wanted[name] for name in opened}}
        parts = (("added", added), ("restarted", changed), ("removed", gone))
        return [
            f"{_named(names)} {what}" for what, known in parts if (names := [name for name in known if what == "removed" or name in opened])
        ]

    async def _closed(self, name: str) -> None:
        try:
            await self._yard.providers.remove(name)
        except Exception as error:  # noqa: BLE001 - one that does not close well must not keep the others from changing
            self._notices.say(f"The upstream '{name}' did not close well: {cause_of(error)}")

    async def _opened(self, provider: Any) -> bool:
        try:
            await self._yard.providers.add(provider)
        except Exception as error:  # noqa: BLE001 - the same
            self._notices.say(f"The upstream '{provider.name}' cannot be opened: {cause_of(error)}")
            return False
        return True

    def _stamps(self) -> Mapping[Path, Stamp]:
        return {path: stamp_of(path) for path in self._config.files}


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _is_alone() -> bool:
    """Return whether the terminal that was there at the start is gone, which SIGHUP tells, too."""
    return not os.isatty(2)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


_MARK: Final = "_TOOLYARD_RELOAD"
_PORT: Final = "_TOOLYARD_RELOAD_PORT"
_WATCH_SECONDS: Final = 0.5
_ENDINGS: Final = (".py", ".toml")
_STRANGE: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
Beginning = Literal["", "first", "again"]
"""Whether a process that watches has started this one, for the first time or anew."""
Snapshot = dict[str, int]


def beginning_of() -> Beginning:
    """Return who has started this process, and forget how it was told, so that no program it starts takes it for its own."""
    marked = os.environ.pop(_MARK, "")
    return "first" if marked == "first" else "again" if marked else ""


def kept_port() -> int:
    """Return the port that stays the same from one start to the next where any is wanted, or 0, and forget how it was told."""
    return int(os.environ.pop(_PORT, "0"))


def end_with_supervisor() -> None:
    """End this process when the one that watches is gone, however that went."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(0)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(0, end)  # nothing is ever written there, so it can only be closed


async def supervise(folder: Path, notices: Notices, *, patience: float, port: int = 0) -> None:
    """Start this program once more as a server, and anew after every change, until cancelled; a port is for all of them."""
    beginning: Beginning = "first"
    while True:
        seen = _snapshot(folder)
        server = await _start(beginning, port)
        try:
            changed = await _change(folder, seen, server=server, notices=notices)
        finally:
            await stop(server, patience)
        if not notices.quiet:
            notices.say(f"'{changed}' changed: starting anew.")
        beginning = "again"


async def _start(beginning: Beginning, port: int) -> asyncio.subprocess.Process:
    # In a group of its own it does not hear Ctrl-C, which reaches it once, from here.
    told: dict[str, str] = {_MARK: beginning, **({_PORT: str(port)} if port else {})}
    return await asyncio.create_subprocess_exec(
        sys.executable, *sys.orig_argv[1:], stdin=asyncio.subprocess.PIPE, process_group=0, env={**os.environ, **told}
    )


async def _change(folder: Path, seen: Snapshot, *, server: asyncio.subprocess.Process, notices: Notices) -> str:
    """Wait until a file is changed, added or removed, and return its name."""
    told = False
    while True:
        await asyncio.sleep(_WATCH_SECONDS)  # files are looked at, since nothing here tells of their changes
        now = _snapshot(folder)
        if now != seen:
            changed = min(dict(seen.items() ^ now.items()))
            return str(Path(changed).relative_to(folder))
        if server.returncode is not None and not told:
            told = True
            notices.say(f"The server ended with status {server.returncode}; it starts anew when a file changes.")


async def stop(server: asyncio.subprocess.Process, patience: float) -> None:
    """End a process, with force if it has not ended after so many seconds."""
    if server.returncode is not None:
        return
    server.terminate()
    try:
        async with asyncio.timeout(patience):
            await server.wait()
    except TimeoutError:
        server.kill()
        await server.wait()


def _snapshot(folder: Path) -> Snapshot:
    """Return when each file was last changed."""
    found: Snapshot = {}
    for path in _files(folder):
        try:
            found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - it runs twice a second over many files
        except FileNotFoundError:  # removed meanwhile
            continue
    return found


def _files(folder: Path) -> Iterator[str]:
    for place, inside, files in os.walk(folder):
        inside[:] = [name for name in inside if not name.startswith(".") and name not in _STRANGE and not _is_environment(place, name)]
        yield from (os.path.join(place, name) for name in files if name.endswith(_ENDINGS))  # noqa: PTH118 - the same


def _is_environment(place: str, name: str) -> bool:
    return os.path.exists(os.path.join(place, name, "pyvenv.cfg"))  # noqa: PTH110, PTH118 - the same
