"""Live settings: a server takes over what its files say when they change, or when SIGHUP comes, and restarts only what differs."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolyard.assembly import running
from toolyard.cli.cause import cause_of
from toolyard.cli.exits import CommandError
from toolyard.cli.settings import check_profiles, make_providers, settled_upstreams
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, Stamp, known_settings, stamp_of
from toolyard.limits import LIVE, change_limits
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.providers.upstream.settings import UpstreamSettings  # a yard without upstreams starts sooner

__all__ = ["Live", "Reread"]

Reread = Callable[[], Config]
"""Reads the settings once more; raises `CommandError` if they are wrong."""

_SECONDS: Final = 0.5
_AT_ONCE: Final = {"profile", *(f"limits.{name}" for name in LIVE)}


class Live:
    """The settings of a yard that is open, and what becomes of them."""

    def __init__(self, yard: Yard, config: Config, terminal: Terminal, *, reread: Reread) -> None:
        self._yard = yard
        self._config = config
        self._terminal = terminal
        self._reread = reread
        self._told = asyncio.Event()
        reached = {provider.name: settings for provider in yard.providers if (settings := getattr(provider, "settings", None))}
        self._upstreams: dict[str, UpstreamSettings] = {name: reached[name] for name in config.upstreams if name in reached}

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Look at the files meanwhile, and hear SIGHUP."""
        loop = asyncio.get_running_loop()
        hears = threading.current_thread() is threading.main_thread()
        attended, before = self._terminal.attended, signal.getsignal(signal.SIGHUP)
        if hears:
            loop.add_signal_handler(signal.SIGHUP, lambda: _end() if attended and _is_alone() else self._told.set())
        try:
            async with running(self._follow()):
                yield
        finally:
            if hears:
                loop.remove_signal_handler(signal.SIGHUP)
                signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)  # none of Python's: it cannot be put back

    async def _follow(self) -> None:
        seen = before = self._config.files
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SECONDS):  # files are looked at, since nothing here tells of their changes
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
        except (CommandError, KeyError) as error:
            self._terminal.say(f"The settings stay as they were: {error.args[0]}")
            return False
        done = [*self._take_settings(config), *await self._take_upstreams(config, upstreams)]
        if done and not self._terminal.quiet:
            self._terminal.say(f"The settings were read anew: {', '.join(done)}.")
        self._config = config
        return True

    def _read(self) -> "tuple[Config, dict[str, UpstreamSettings]]":
        config = self._reread()
        if config.path != self._config.path:
            raise CommandError(f"The file '{self._config.path}' is gone.")
        check_profiles(self._yard, config)
        return config, settled_upstreams(config, self._terminal)

    def _take_settings(self, config: Config) -> Sequence[str]:
        """Let the yard have the settings that it can change while it runs, say which it cannot, and return what was done."""
        changed = [key for key in known_settings() if config.value(key) != self._config.value(key)]
        at_once = [key for key in changed if key in _AT_ONCE and (key == "profile" or key in config.origins)]
        change_limits(self._yard.limits, {key.partition(".")[2]: config.value(key) for key in at_once if key != "profile"})
        later = [key for key in changed if key not in at_once]
        if later:
            self._terminal.say(f"{_named(later)} changed, which takes effect at the next start.")
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
            self._terminal.say(f"The upstream '{name}' did not close well: {cause_of(error)}")

    async def _opened(self, provider: Any) -> bool:
        try:
            await self._yard.providers.add(provider)
        except Exception as error:  # noqa: BLE001 - the same
            self._terminal.say(f"The upstream '{provider.name}' cannot be opened: {cause_of(error)}")
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
