"""Alerts of a served yard: its rules, its incidents and its notifiers, as the section `[alerts]` says."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from callyard._internal.logfmt import log_exception
from callyard._internal.tasks import background_task
from callyard.config import Config
from callyard.dispatch.execution import RunningHandler
from callyard.launch.build import post_json, webhook_secret
from callyard.launch.notices import Notices
from callyard.model.profile import EVERYTHING
from callyard.monitor.blocked_loop import LoopWatch
from callyard.monitor.incidents import Incidents
from callyard.monitor.metrics import Metrics
from callyard.monitor.notifiers import CommandNotifier, Notifier, WebhookNotifier
from callyard.monitor.prometheus import UpstreamState
from callyard.monitor.rules import Rules, Thresholds, Waiting
from callyard.providers.upstream.health import supervised
from callyard.state.replicas import ReplicaRecord
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.transports.http.app import Mount  # servers over stdio start sooner without

__all__ = ["Alerts", "make_notifiers"]

_TICK_S: Final = 1.0
_READ_TICKS: Final = 15
"""How many judgements the jobs and approvals that were read from the store serve."""
_READ: Final = 200
_log = logging.getLogger(__name__)


def make_notifiers(config: Config, notices: Notices) -> Iterator[Notifier]:
    """Yield the notifiers of the section `[alerts]`.

    Raises:
        LaunchError: The webhook cannot be used.
    """
    settings = config.settings.alerts
    if settings.webhook is not None:
        yield WebhookNotifier(settings.webhook, webhook_secret("alerts", settings.webhook, config, notices), post_json)
    if settings.command:
        yield CommandNotifier(settings.command)


class Alerts:
    """Judges the calls of a yard while it is served."""

    mounts: Mapping[str, "Mount"] = {}

    def __init__(self, yard: Yard, config: Config, notices: Notices, metrics: Metrics) -> None:
        """Judge by these metrics, which somebody else counts.

        Raises:
            LaunchError: The webhook cannot be used.
        """
        settings = config.settings.alerts
        thresholds = Thresholds(error_share=settings.error_share, slow_ms=settings.slow_ms, wait_s=settings.wait_s)
        self._yard = yard
        self._watch = LoopWatch()
        self._facts = _Facts(yard)
        self._rules = Rules(
            metrics,
            self._facts,
            thresholds=thresholds,
            blocks=self._watch.blocks,
            off=settings.off,
        )
        self.incidents = Incidents(yard.store, scope=yard.name, notifiers=[*make_notifiers(config, notices)])

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Judge and notify while the yard is open."""
        self._yard.dispatcher.watch_expired(self._rules.note_expired)
        remove = self._yard.add_sink(self._rules)
        try:
            with self._watch.open():
                async with self.incidents.open(), background_task(self._judge()):
                    yield
        finally:
            remove()

    async def _judge(self) -> None:
        ticks = 0
        while True:
            try:
                self._facts.refresh()
                if ticks % _READ_TICKS == 0:
                    self._rules.waiting = [one async for one in self._read_waiting()]
                self.incidents.replace(self._rules.judge())
            except StoreUnavailableError:  # what waits is not known now; it is read again soon
                self._rules.waiting = ()
            except Exception:  # noqa: BLE001 - the next judgement must come, whatever this one met
                log_exception(_log, "rules_failed")
            ticks += 1
            await asyncio.sleep(_TICK_S)

    async def _read_waiting(self) -> AsyncGenerator[Waiting]:
        """Yield the approvals that wait for a person, and the jobs that wait for their client or their turn."""
        if self._yard.gate is not None:
            for approval in await self._yard.gate.approvals.pending(limit=_READ):
                tool = approval.binding.tool.partition(":")[2]
                yield Waiting(kind="approval", tool=tool, since=approval.created_at, call_id=approval.call_id)
        for job in await self._yard.jobs.unfinished(limit=_READ):
            if job.status == "input_required" or (job.status == "working" and not job.claimed):
                yield Waiting(kind="job", tool=job.tool, since=job.updated_at, call_id=job.id)


class _Facts:
    """What the rules see of the yard."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._version = -1
        self._there: set[str] = set()
        self._known: set[str] = set()

    def refresh(self) -> None:
        """Note the names of the tools that are there, if they changed."""
        registry = self._yard.registry
        if registry.version != self._version:
            self._there = {spec.name for spec in registry.all_specs()}
            self._known |= {spec.name for spec in registry.visible(EVERYTHING)}
            self._version = registry.version

    def handlers(self, least_s: float) -> Sequence[RunningHandler]:
        return self._yard.dispatcher.handlers(least_s)

    def upstreams(self) -> Iterable[UpstreamState]:
        statuses = [provider.status() for provider in supervised(self._yard.providers)]
        return [UpstreamState(one.name, one.state, is_open=one.retry_at is not None) for one in statuses]

    def has(self, name: str) -> bool:
        return name in self._there or self._yard.registry.published(name) is not None

    def had(self, name: str) -> bool:
        return name in self._known

    def differing(self) -> Sequence[ReplicaRecord]:
        return () if self._yard.replica is None else self._yard.replica.differing
