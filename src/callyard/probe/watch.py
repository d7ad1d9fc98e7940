"""A watch over many targets: probes them on schedules, gently, and reports what is wrong as incidents.

Of the watchers of one name on one store, the one that leads probes and alerts; the others wait to take over.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from callyard._internal.logfmt import log_exception, log_value
from callyard._internal.tasks import background_task
from callyard.monitor.incidents import Incidents, Problem
from callyard.probe.history import TargetState
from callyard.probe.probe import Target, probe
from callyard.probe.report import Report
from callyard.probe.rules import counts_as_down, problems_of
from callyard.providers.upstream.oauth.credentials import open_vault
from callyard.state.store import Clock, Store, StoreUnavailableError, owner_key

__all__ = ["Control", "Prober", "Watch", "control_of"]

_TICK_S: Final = 0.25
_AT_ONCE: Final = 50
_HOST_GAP_S: Final = 1.0
"""The least time between two probes of one host."""
_JUMP_S: Final = 5.0
"""A tick that is so late, or a clock that moved by so much, means that this machine slept or its clock was set."""
_JUMP_SHOWN_S: Final = 60.0
_SPREAD_S: Final = 30.0
_CONTROL_S: Final = 3.0
_CONTROL_FRESH_S: Final = 5.0
_LONGEST_S: Final = 900.0
_DOUBLINGS: Final = 4
_JITTER: Final = 0.1
_FRESH_S: Final = 5.0
"""A report of this age answers a request for a probe."""
_STATE_TTL_S: Final = 100 * 86_400.0
_OF_NETWORK: Final = frozenset({"dns", "refused", "unreachable", "timeout", "tls_invalid"})
"""Failures that our own network can cause."""
_log = logging.getLogger(__name__)


class Prober(Protocol):
    """Probes a target once."""

    def __call__(self, target: Target, *, last_version: str | None = None) -> Awaitable[Report]:
        """Return the report."""
        ...


Control = Callable[[], Awaitable[bool]]
"""Returns whether an address answers that has nothing to do with the targets."""


def control_of(host: str, port: int) -> Control:
    """Return the check of a control address: whether a connection to it comes about."""

    async def check() -> bool:
        try:
            async with asyncio.timeout(_CONTROL_S):
                writer = (await asyncio.open_connection(host, port))[1]
        except (OSError, TimeoutError):
            return False
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        return True

    return check


class _Watched:
    """One target: its state, and when it is probed next."""

    def __init__(self, target: Target, every: float) -> None:
        self.target = target
        self.every = every
        self.state = TargetState()
        self.host = urlsplit(target.settings.url or "").netloc.lower() or f"program:{target.name}"
        self.due = 0.0
        self.may_save = True
        self.vault = open_vault(target.vaults, target.name, target.settings, target.folder)

    @property
    def credentials(self) -> str:
        """Return what stands for the credentials: it changes when a person signs in or changes a header."""
        settings = self.target.settings
        facts = [settings.url, sorted(settings.headers.items()), settings.command, settings.args, settings.env]
        stamp = self.vault.stamp
        return sha256(msgspec.json.encode([*facts, stamp])).hexdigest()

    @property
    def is_held(self) -> bool:
        """Return whether its credentials were refused, and nobody has done anything about it."""
        return bool(self.state.held_for) and self.state.held_for == self.credentials

    def delay(self) -> float:
        """Return the seconds until the next probe: sooner to confirm a first failure, later while it fails."""
        failures, report = self.state.failures, self.state.report
        seconds = self.every
        if failures == 1:
            seconds = self.every / 2
        elif failures > 1:
            seconds = max(self.every, min(self.every * 2.0 ** min(failures - 2, _DOUBLINGS), _LONGEST_S))
        seconds *= random.uniform(1 - _JITTER, 1)  # noqa: S311 - spreads load, hides nothing
        asked = None if report is None else report.retry_after
        return seconds if asked is None else max(seconds, asked)


class Watch:
    """Probes targets while it is open."""

    def __init__(
        self,
        targets: Sequence[Target],
        incidents: Incidents,
        store: Store,
        *,
        name: str,
        every: float,
        control: Control | None = None,
        prober: Prober = probe,
        clock: Clock = time.time,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self.incidents = incidents
        self.is_offline = False
        """Whether the control address did not answer when a probe failed."""
        self._watched = {target.name: _Watched(target, target.checks.every or every) for target in targets}
        self._store = store
        self._prefix = f"probe_watch/{owner_key(name)}/"
        self._control = control
        self._controlled: tuple[float, bool] = (-_CONTROL_FRESH_S, True)
        self._prober = prober
        self._clock = clock
        self._monotonic = monotonic
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._hosts: dict[str, float] = {}
        """When each host may be probed again; infinite while it is."""
        self._is_loaded = False
        self._is_away = False
        self._jumps = 0
        self._jumped = -_JUMP_SHOWN_S
        self._ticked = (self._clock(), self._monotonic())

    @property
    def targets(self) -> "dict[str, tuple[Target, TargetState]]":
        """Return the targets with their states, by name."""
        return {name: (one.target, one.state) for name, one in self._watched.items()}

    def is_held(self, name: str) -> bool:
        """Return whether a target is not probed until a person has changed its credentials."""
        return self._watched[name].is_held

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Probe, judge and alert while the context is open."""
        self._ticked = (self._clock(), self._monotonic())
        async with self.incidents.open(), background_task(self._repeat()):
            try:
                yield
            finally:
                tasks = [*self._tasks.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for one in self._watched.values():
                    await one.vault.close()

    async def _repeat(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:  # noqa: BLE001 - the next round must come, whatever this one met
                log_exception(_log, "watch_failed")
            await asyncio.sleep(_TICK_S)

    async def step(self) -> None:
        """Start the probes that are due, and judge; only the watcher that leads does."""
        self._note_jump()
        if not self.incidents.leads:
            self._is_loaded = False
            return
        if not self._is_loaded:
            await self._load()
        if self.is_offline:
            await self._check_control()
        else:
            for name in self.due():
                self._start(name)
        self.incidents.replace(self._problems())

    def due(self) -> list[str]:
        """Return the targets whose time has come and whose hosts are free, the longest due first."""
        now, hosts = self._monotonic(), dict(self._hosts)
        found: list[str] = []
        for one in sorted(self._watched.values(), key=lambda one: one.due):
            if one.due > now or len(self._tasks) + len(found) >= _AT_ONCE:
                break
            if one.target.name in self._tasks or hosts.get(one.host, 0.0) > now:
                continue
            if one.is_held:
                one.due = now + one.every
                continue
            hosts[one.host] = float("inf")
            found.append(one.target.name)
        return found

    async def probe_now(self, name: str) -> Report | None:
        """Probe a target once more, unless that would not be gentle; return the last report."""
        one = self._watched[name]
        report = one.state.report
        is_fresh = report is not None and self._clock() - report.at < _FRESH_S
        asked = (report and report.retry_after) or 0.0
        must_wait = report is not None and self._clock() - report.at < asked
        if not (is_fresh or must_wait or one.is_held) and self.incidents.leads and not self.is_offline:
            if name not in self._tasks and self._hosts.get(one.host, 0.0) <= self._monotonic():
                self._start(name)
            if name in self._tasks:
                await asyncio.wait({self._tasks[name]})
        return one.state.report

    def _start(self, name: str) -> None:
        task = asyncio.create_task(self.run(name))
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def run(self, name: str) -> None:
        """Probe a target now, and keep what was found."""
        one, jumps = self._watched[name], self._jumps
        self._hosts[one.host] = float("inf")
        last = one.state.report
        try:
            report = await self._prober(one.target, last_version=None if last is None else last.version or None)
        except Exception:  # noqa: BLE001 - one target must not end the watch over the others
            log_exception(_log, "probe_failed")
            report = None
        finally:
            self._hosts[one.host] = self._monotonic() + _HOST_GAP_S
            one.due = self._monotonic() + one.delay()
        if report is None or await self._is_our_fault(report, jumps):
            return
        await self._keep(one, report)

    async def _is_our_fault(self, report: Report, jumps: int) -> bool:
        """Return whether a failure says nothing about the target: we slept, or our own network is gone."""
        if report.code is None:
            self.is_offline = False
            return False
        self._note_jump()  # the deadline of a probe may pass before the next step
        if jumps != self._jumps:
            return True
        if self._control is not None and report.code in _OF_NETWORK:
            await self._check_control()
        return self.is_offline

    async def _check_control(self) -> None:
        """Ask the control address, at most every few seconds."""
        at, answers = self._controlled
        if self._control is not None and self._monotonic() - at >= _CONTROL_FRESH_S:
            answers = await self._control()
            self._controlled = (self._monotonic(), answers)
        if self.is_offline is answers:
            self.is_offline = not answers
            _log.warning("watch_offline" if self.is_offline else "watch_online")

    async def _keep(self, one: _Watched, report: Report) -> None:
        """Take a report into the state of its target, and store that."""
        state = one.state
        before, code = state.report and state.report.code, report.code
        state.report = report
        state.add(report, failed=counts_as_down(state))
        state.held_for = one.credentials if code == "auth" else ""
        one.due = self._monotonic() + one.delay()
        if code != before:
            _log.info("target_changed target=%s code=%s before=%s", log_value(report.target), code, before)
        try:
            if self.incidents.leads:
                await self._store.put(self._prefix + report.target, msgspec.json.encode(state), ttl=_STATE_TTL_S)
            self._is_away = False
        except StoreUnavailableError as error:
            if not self._is_away:
                _log.warning("watch_in_memory reason=%s", error.reason)
            self._is_away = True

    async def _load(self) -> None:
        """Read the states that an earlier watcher left, and spread the probes."""
        names = [*self._watched]
        try:
            values = await self._store.get_many([self._prefix + name for name in names])
        except StoreUnavailableError:
            values = [None] * len(names)
        for name, value in zip(names, values, strict=True):
            one = self._watched[name]
            with suppress(msgspec.DecodeError):
                stored = None if value is None else msgspec.json.decode(value, type=TargetState)
                if stored is not None and _is_newer(stored, one.state):
                    one.state = stored
        self._is_loaded = True
        self._spread()

    def _spread(self) -> None:
        """Spread the probes over some time, lest all targets are due at once."""
        now = self._monotonic()
        for number, one in enumerate(self._watched.values()):
            seconds = min(one.every, _SPREAD_S) * number / len(self._watched)
            report = one.state.report
            passed = one.every if report is None else max(self._clock() - report.at, 0.0)
            one.due = now + max(seconds, min(one.delay() - passed, one.every))

    def _note_jump(self) -> None:
        """Notice that this machine slept, was stopped, or that its clock was set."""
        before, now = self._ticked, (self._clock(), self._monotonic())
        self._ticked = now
        passed, shown = now[1] - before[1], now[0] - before[0]
        if passed > _JUMP_S or abs(shown - passed) > _JUMP_S:
            self._jumps += 1
            self._jumped = now[1]
            _log.warning("watch_jumped seconds=%.1f late=%.1f", shown - passed, passed)
            self._spread()

    def _problems(self) -> list[Problem]:
        now = self._clock()
        found = [
            problem
            for one in self._watched.values()
            for problem in problems_of(one.target, one.state, every=one.every, now=now)
        ]
        if self.is_offline:
            text = "The control address does not answer: the network of the watcher is gone. Nothing is probed."
            found.append(Problem(rule="watcher", subject="network", text=text, severity="critical"))
        if self._monotonic() - self._jumped < _JUMP_SHOWN_S:
            text = "The watcher slept, or its clock was set. Probes that failed meanwhile do not count."
            found.append(Problem(rule="watcher", subject="clock", text=text))
        return found


def _is_newer(stored: TargetState, known: TargetState) -> bool:
    if stored.report is None or known.report is None:
        return known.report is None
    return stored.report.at > known.report.at
