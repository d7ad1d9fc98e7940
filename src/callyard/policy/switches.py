"""What operators disabled: switches in the store, for every process that reads it, and their effects in an open yard.

It does not check who disables: that is the business of its callers. A call that runs goes on; calls that come, or that
still wait for a person or for their turn, find no such tool.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec

from callyard._internal.logfmt import log_exception, log_value
from callyard._internal.tasks import background_task
from callyard.dispatch.registry import Registry
from callyard.dispatch.sessions import Sessions
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.names import did_you_mean
from callyard.model.spec import UNKNOWN_TOOL, ToolSpec
from callyard.model.switch import Switch, covering
from callyard.policy.approvals import Approval, Approvals, Audit, AuditLine
from callyard.state.store import Clock, Store, StoreUnavailableError

__all__ = ["StoredSwitches", "Switches", "withdraw_covered"]

_SWITCH: Final = "disabled/"
"""What the keys of switches in the store begin with; the target follows, so that a damaged one still disables it."""
_LOOK_S: Final = 1.0
"""How often the store is read. Subscribing would read it ten times as often, in servers that nobody uses, too."""
_SETTLED_S: Final = 5.0
"""After so long every process has followed a switch, so what the store has of its sessions is nobody's."""
_MAX_SWITCHES: Final = 1000
_MAX_SECONDS: Final = 366 * 86_400.0
_TARGET_CHARACTERS: Final = 200
_REASON_CHARACTERS: Final = 500
_log = logging.getLogger(__name__)
_audit = logging.getLogger("callyard.audit")


class StoredSwitches:
    """The switches in a store."""

    def __init__(self, store: Store, *, clock: Clock = time.time, audit: Audit | None = None) -> None:
        self._store = store
        self.clock = clock
        self._audit = audit

    async def disable(self, target: str, *, by: str, reason: str = "", seconds: float | None = None) -> Switch:
        """Disable a source or tools by name or pattern, for so long or until they are enabled.

        One that is disabled already is disabled anew: with the new time, person and reason.

        Raises:
            ToolError: `invalid_input` if the target or the time cannot be used, `overloaded` if there are too many.
        """
        if not (0 < len(target) <= _TARGET_CHARACTERS and target.isprintable() and " " not in target):
            message = f"A name or pattern has at most {_TARGET_CHARACTERS} characters, and no space."
            raise ToolError("invalid_input", message, may_have_run=False)
        if seconds is not None and not 0 < seconds <= _MAX_SECONDS:
            message = f"A time is above 0 and at most {_MAX_SECONDS / 86_400:g} days."
            raise ToolError("invalid_input", message, may_have_run=False)
        known = await self._store.keys(_SWITCH, limit=_MAX_SWITCHES)
        if len(known) >= _MAX_SWITCHES and _SWITCH + target not in known:
            raise ToolError("overloaded", "Too much is disabled already.", hint="Use a pattern.", may_have_run=False)
        now = round(self.clock(), 3)
        until = None if seconds is None else round(now + seconds, 3)
        switch = Switch(target=target, by=by, at=now, until=until, reason=reason.strip()[:_REASON_CHARACTERS])
        await self._store.put(_SWITCH + target, encode(switch), ttl=seconds)
        self._note("disabled", switch, by=by)
        return switch

    async def enable(self, target: str, *, by: str) -> Switch:
        """End a switch, which is named as it was disabled.

        Raises:
            ToolError: `not_found` if there is none.
        """
        switches = await self.all()
        found = next((switch for switch in switches if switch.target == target), None)
        if found is None:
            spec = msgspec.structs.replace(UNKNOWN_TOOL, name=target, source=target.partition("__")[0])
            cause = covering(switches, spec)
            targets = [switch.target for switch in switches]
            meant = did_you_mean(target, targets) if cause is None else f" '{cause.target}' is, which covers it."
            message = f"'{target}' is not disabled by that name.{meant}"
            raise ToolError("not_found", message, reason="not_disabled", may_have_run=False)
        await self._store.delete(_SWITCH + target)
        self._note("enabled", found, by=by)
        return found

    async def all(self) -> list[Switch]:
        """Return the switches that have not ended, sorted by target."""
        now, found = self.clock(), list[Switch]()
        keys = list(await self._store.keys(_SWITCH, limit=_MAX_SWITCHES))
        for key, data in zip(keys, await self._store.get_many(keys) if keys else (), strict=True):
            if data is not None:
                found.append(_decoded(key.removeprefix(_SWITCH), data))
        return [switch for switch in found if switch.is_active(now)]

    def _note(self, event: str, switch: Switch, *, by: str) -> None:
        """Write a line to the audit log, and one to the program's log."""
        facts = log_value(switch.target), log_value(by), switch.end or "-"
        _audit.info("%s target=%s by=%s until=%r", event, *facts)
        if self._audit is not None:
            line = {"event": event, "tool": switch.target, "identity": by, "by": by, "reason": switch.reason}
            self._audit(AuditLine(started=self.clock(), **line))


def _decoded(target: str, data: bytes) -> Switch:
    """Return a switch of the store; one that is damaged disables its target all the same, until it is enabled."""
    try:
        return msgspec.structs.replace(msgspec.json.decode(data, type=Switch), target=target)
    except msgspec.DecodeError as error:
        log_exception(_log, "record_damaged kind=Switch", error=error)
        return Switch(target=target, by="unknown", at=0.0)


class Switches(StoredSwitches):
    """The switches of one open yard: it follows those in the store while it is open."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        sessions: Sessions,
        *,
        approvals: Callable[[], Approvals | None],
        is_shared: bool,
        clock: Clock = time.time,
        audit: Audit | None = None,
    ) -> None:
        """Make the switches of a yard; if the store `is_shared`, other processes may change them."""
        super().__init__(store, clock=clock, audit=audit)
        self.active: tuple[Switch, ...] = ()
        """What is disabled now."""
        self._registry = registry
        self._sessions = sessions
        self._approvals = approvals
        self._is_shared = is_shared
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._seen: set[str] = set()
        """The pending approvals that these switches do not disable."""
        self._settled: set[Switch] = set()
        """Those whose sessions in the store are forgotten."""

    @asynccontextmanager
    async def open(self, *, must_read: bool) -> AsyncGenerator[None]:
        """Disable what is switched off in the store, and follow it while the context is open.

        Raises:
            StoreUnavailableError: The store cannot be read, and `must_read`.
        """
        try:
            await self._follow_once()
        except StoreUnavailableError as error:
            if must_read:
                raise
            _log.warning("switches_unknown reason=%s", error.reason)
        async with background_task(self._follow()):
            yield

    async def disable(self, target: str, *, by: str, reason: str = "", seconds: float | None = None) -> Switch:
        """Disable as `StoredSwitches` does; it holds here when this returns."""
        switch = await super().disable(target, by=by, reason=reason, seconds=seconds)
        await self._follow_once()
        self._changed.set()
        return switch

    async def enable(self, target: str, *, by: str) -> Switch:
        """Enable as `StoredSwitches` does; it holds here when this returns."""
        switch = await super().enable(target, by=by)
        await self._follow_once()
        return switch

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._follow_once()
            except StoreUnavailableError:  # logged by the store; what was disabled stays so until its time is over
                self._apply([switch for switch in self.active if switch.is_active(self.clock())])
            except Exception:  # noqa: BLE001 - a store may raise anything, and what follows must still be followed
                log_exception(_log, "switches_not_followed")

    def _pause(self) -> float | None:
        """Return how long to wait until the next look."""
        if not self._is_shared and not self.active:
            return None
        ends = [switch.until - self.clock() for switch in self.active if switch.until is not None]
        return max(min(_LOOK_S, *ends, _LOOK_S), 0.001)

    async def _follow_once(self) -> None:
        async with self._lock:
            is_new = self._apply(await self.all())
            if self.active:
                await self._clean_up(also_approved=is_new)

    def _apply(self, switches: list[Switch]) -> bool:
        """Disable exactly these; return whether something is disabled that was not."""
        before, self.active = self.active, tuple(switches)
        if before == self.active:
            return False
        new = [switch for switch in self.active if switch not in before]
        for switch in new:
            _log.info("disabled target=%s by=%s", log_value(switch.target), log_value(switch.by))
        targets = {switch.target for switch in self.active}
        for switch in before:
            if switch.target not in targets:
                _log.info("enabled target=%s", log_value(switch.target))
        self._registry.use_switches(self.active)
        return bool(new)

    async def _clean_up(self, *, also_approved: bool) -> None:
        """End sessions and withdraw approvals of what is disabled, and again of calls that began before that."""
        self._sessions.end_disabled()
        approvals = self._approvals()
        if approvals is not None:
            if also_approved:
                self._seen.clear()
            for approval in await approvals.usable(self._seen, also_approved=also_approved):
                switch = covering(self.active, self._spec_of(approval))
                if switch is not None:
                    await _withdraw(approvals, approval, switch)
        now = self.clock()
        late = {switch for switch in self.active if now >= switch.at + _SETTLED_S}
        if not late <= self._settled:
            await self._sessions.forget_disabled()
        self._settled = late

    def _spec_of(self, approval: Approval) -> ToolSpec:
        """Return the spec of what an approval is for, as this process knows it."""
        spec = _spec_on_card(approval)
        known = self._registry.published(spec.name) if spec.kind == "tool" else None
        return spec if known is None or known.source != spec.source else known


def _spec_on_card(approval: Approval) -> ToolSpec:
    kind, name = approval.binding.tool.split(":", 1)
    return msgspec.structs.replace(UNKNOWN_TOOL, name=name, source=approval.card.source, kind=kind)


async def _withdraw(approvals: Approvals, approval: Approval, switch: Switch) -> None:
    with suppress(ToolError):  # somebody was faster
        await approvals.decide(approval.id, "withdraw", by=switch.by, reason=f"'{switch.target}' was disabled.")


async def withdraw_covered(approvals: Approvals, switch: Switch) -> None:
    """Withdraw the approvals of what a switch disables, as far as names and sources say so, where no yard is open."""
    for approval in await approvals.usable(set(), also_approved=True):
        if switch.covers(_spec_on_card(approval)):
            await _withdraw(approvals, approval, switch)
