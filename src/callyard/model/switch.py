"""Switches: what an operator disabled, until when and why, as data; `policy/switches` keeps them in the store."""

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf
from typing import Any

import msgspec

from callyard.model.profile import METATOOLS, matches_any
from callyard.model.spec import AnySpec, ToolSpec

__all__ = ["Switch", "covering"]


class Switch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Disables a source with all that it publishes, or tools; by name, or by a pattern with `*` and `?`."""

    target: str
    """The name or pattern. It matches sources, and tools by their current and former names."""
    by: str
    """Who disabled it."""
    at: float
    """When, in seconds since the epoch."""
    until: float | None = None
    """When it ends by itself; None is never."""
    reason: str = ""
    """Why; callers get it."""

    def covers_source(self, source: str) -> bool:
        """Return whether it disables everything of a source. Only the whole name of the metatools' source counts."""
        return source == self.target if source == METATOOLS else matches_any(source, (self.target,))

    def covers(self, spec: AnySpec) -> bool:
        """Return whether it disables what has this spec. A metatool is disabled by its whole name only, or its alias's.

        Resources and prompts are disabled with their source only: a pattern would not stop a template that another URI
        leads to.
        """
        if self.covers_source(spec.source):
            return True
        if not isinstance(spec, ToolSpec) or spec.kind != "tool":
            return False
        if spec.source == METATOOLS:
            return self.target in (*spec.known_as, spec.metatool.alias, spec.metatool.alias_of)
        return any(matches_any(name, (self.target,)) for name in spec.known_as)

    def is_active(self, now: float) -> bool:
        """Return whether it has not ended, at a time in seconds since the epoch."""
        return self.until is None or now < self.until

    @property
    def end(self) -> str:
        """Return when it ends, in words; empty if it does not end by itself."""
        if self.until is None:
            return ""
        return datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def why(self) -> str:
        """Return what callers are told."""
        until = f"It comes back at {self.end}." if self.end else "An operator must enable it."
        return f"{until} The operator says: {self.reason}" if self.reason else until

    def view(self) -> dict[str, Any]:
        """Return what operators see of it."""
        facts = {"target": self.target, "by": self.by, "at": self.at}
        return {**facts, "until": self.until, "reason": self.reason}


def covering(switches: Iterable[Switch], spec: AnySpec) -> Switch | None:
    """Return the switch that disables what has this spec for the longest time, or None."""
    found = [switch for switch in switches if switch.covers(spec)]
    return max(found, key=lambda switch: inf if switch.until is None else switch.until, default=None)
