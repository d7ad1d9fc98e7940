"""The page 'Overview': the state of the yard, and what needs attention."""

import time
from collections import Counter
from typing import Any, ClassVar, Final, NamedTuple

from callyard.console.page import Page, View, url
from callyard.model.profile import METATOOLS, Profile
from callyard.monitor.metrics import CallStats, Label, Second
from callyard.state.store import StoreUnavailableError

__all__ = ["Overview"]

_CHART_S: Final = 900
_NOW_S: Final = 60
_SPAN_S: Final = 15
"""Seconds of one point of a chart: single seconds of a quiet server are noise."""
_TOP: Final = 8
_MIN_CALLS: Final = 5
_BAD_SHARE: Final = 0.2
_GATED: Final = frozenset({"degraded", "backing_off", "auth_needed"})


class Attention(NamedTuple):
    """Something that a person should look at, and where."""

    kind: str
    text: str
    action: str
    to: str


class Overview(Page):
    """The state of the yard."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = "Overview"
    template: ClassVar[str] = "overview"

    async def context(self, view: View) -> dict[str, Any]:
        """Return the charts, the busiest tools and what needs attention."""
        now, rates = time.time(), self.parts.metrics.rates
        spans = rates.last(_CHART_S, now=now, step=_SPAN_S)
        is_first_run = not self.parts.metrics.tools
        return {
            "is_first_run": is_first_run,
            "numbers": self._numbers(spans, rates.total(int(now) - _NOW_S + 1, _NOW_S)),
            "errors": _errors(spans).most_common(),
            "attention": await self._attention(),
            "tools": self._busiest(),
            "endpoint": self.yard.address or "",
            **(self._first_tools(self.profile_of(view)) if is_first_run else {}),
        }

    def _first_tools(self, profile: Profile) -> dict[str, str]:
        """Return the links of the first steps: to a tool that only reads, or else to all, and to one that destroys, if there is any."""
        names = {spec.operation: spec.name for spec in reversed(self.yard.registry.visible(profile)) if spec.source != METATOOLS}
        links = {str(operation): url("tools", open=name) for operation, name in names.items()}
        return {"first_tool": links.get("query", url("tools")), "destroy_tool": links.get("destroy", "")}

    def _numbers(self, spans: list[Second], recent: Second) -> dict[str, Any]:
        errors = sum(recent.errors.values())
        return {
            "rate": recent.calls / _NOW_S,
            "rates": [span.calls / _SPAN_S for span in spans],
            "p95": recent.quantile_ms(0.95),
            "p50": recent.quantile_ms(0.5),
            "p95s": [span.quantile_ms(0.95) for span in spans],
            "errors": errors,
            "error_share": errors / recent.calls if recent.calls else 0.0,
            "error_rates": [sum(span.errors.values()) / _SPAN_S for span in spans],
            "running": self.yard.calls_in_flight,
            "calls": sum(stats.calls for stats in self.parts.metrics.tools.values()),
        }

    async def _attention(self) -> list[Attention]:
        """Return what needs a person now, the most urgent first."""
        found: list[Attention] = []
        gate = self.yard.gate
        try:
            pending = 0 if gate is None else await gate.approvals.count()
        except StoreUnavailableError as error:
            pending = 0
            found.append(Attention("bad", f"The store cannot be used: {error}", "Settings", url("settings", q="store")))
        if pending:
            text = f"{pending} {'call waits' if pending == 1 else 'calls wait'} for approval."
            found.append(Attention("warn", text, "Decide", url("approvals")))
        upstreams: list[Any] = [provider for provider in self.yard.providers if hasattr(provider, "supervisor")]
        for status in (upstream.status() for upstream in upstreams):
            if status.state in _GATED:
                reason = status.reason or status.last_error or status.state
                found.append(
                    Attention("bad", f"The upstream '{status.name}' does not work: {reason}", "Look", url("upstreams", open=status.name))
                )
            elif status.withheld:
                text = f"{status.withheld} changed definitions of '{status.name}' are withheld."
                found.append(Attention("warn", text, "Review", url("upstreams", open=status.name)))
        found += [
            Attention("bad", f"{share:.0%} of the latest calls of '{label.tool}' failed.", "Look", url("calls", tool=label.tool))
            for label, stats in self.parts.metrics.tools.items()
            if stats.errors and (share := _share_of_failures(stats)) >= _BAD_SHARE
        ]
        return found[:_TOP]

    def _busiest(self) -> list[tuple[Label, CallStats, int]]:
        busiest = sorted(self.parts.metrics.tools.items(), key=lambda item: -item[1].calls)[:_TOP]
        return [(label, stats, sum(stats.errors.values())) for label, stats in busiest]


def _share_of_failures(stats: CallStats) -> float:
    """Return which share of the calls of the last 15 minutes failed, not by a fault of the caller; 0 if they were few."""
    steps = stats.trend.last(now=time.time())
    calls = sum(step.calls for step in steps)
    return sum(step.failed for step in steps) / calls if calls >= _MIN_CALLS else 0.0


def _errors(seconds: list[Second]) -> Counter[str]:
    counts = Counter[str]()
    for second in seconds:
        counts.update(second.errors)
    return counts
