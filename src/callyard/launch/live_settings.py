"""Live settings: applies what changed in the files of an open yard, after a change or after SIGHUP."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from callyard.config import Config, Stamp, known_settings, stamp_of
from callyard.launch.build import check_profiles, make_providers, resolve_upstreams
from callyard.launch.errors import LaunchError, explain_cause
from callyard.launch.notices import Notices
from callyard.launch.policy import policy_options
from callyard.model.limits import LIVE
from callyard.yard import ResolvedUpstream, Yard, background_task

__all__ = ["LiveSettings"]

_POLL_S: Final = 0.5
"""How often files are compared; the standard library has no file notifications."""
_LIVE: Final = {"profile", *(f"limits.{name}" for name in LIVE)}


class LiveSettings:
    """Applies changed settings to an open yard."""

    def __init__(self, yard: Yard, config: Config, notices: Notices, *, read: Callable[[], Config]) -> None:
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
        except Exception as error:  # noqa: BLE001 - one failure must not stop the other changes
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
