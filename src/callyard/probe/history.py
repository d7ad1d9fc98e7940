"""What a watch keeps of one target: its last report, and its history by minute, hour and day.

It is one value in the store, so that a watcher that was killed goes on where it was.
"""

from typing import Final

import msgspec

from callyard.probe.report import Report

__all__ = ["Bucket", "Sample", "TargetState"]

_SAMPLES: Final = 120
_RESOLUTIONS: Final = (("minutes", 60, 60), ("hours", 3600, 72), ("days", 86_400, 90))
"""The name of each resolution, its seconds, and how many buckets are kept."""


class Bucket(msgspec.Struct, array_like=True):
    """The probes of one minute, hour or day."""

    at: int
    """When it begins, in seconds of the wall clock."""
    probes: int = 0
    failed: int = 0
    ms: float = 0.0
    """The sum of the times that the probes took."""
    longest_ms: float = 0.0


class Sample(msgspec.Struct, array_like=True, frozen=True):
    """One probe: when it began, how long it took, and whether it failed."""

    at: float
    ms: float
    failed: bool


class TargetState(msgspec.Struct, kw_only=True):
    """The state of one target."""

    report: Report | None = None
    failures: int = 0
    """How many probes in a row failed."""
    failing_since: float | None = None
    held_for: str = ""
    """What stood for the credentials when they were refused; until it changes nothing is sent."""
    samples: list[Sample] = []
    minutes: list[Bucket] = []
    hours: list[Bucket] = []
    days: list[Bucket] = []

    def add(self, report: Report, *, failed: bool) -> None:
        """Add a report."""
        self.report = report
        self.failures = self.failures + 1 if failed else 0
        self.failing_since = (self.failing_since or report.at) if failed else None
        self.samples = [*self.samples[1 - _SAMPLES :], Sample(report.at, report.ms, failed)]
        for name, seconds, kept in _RESOLUTIONS:
            buckets: list[Bucket] = getattr(self, name)
            begin = int(report.at // seconds * seconds)
            if not buckets or buckets[-1].at != begin:
                buckets.append(Bucket(begin))
                del buckets[:-kept]
            bucket = buckets[-1]
            bucket.probes += 1
            bucket.failed += failed
            bucket.ms += report.ms
            bucket.longest_ms = max(bucket.longest_ms, report.ms)

    def recent(self, since: float) -> list[Sample]:
        """Return the last samples that began since then."""
        return [sample for sample in self.samples if sample.at >= since]

    def uptime(self) -> float | None:
        """Return the share of the probes of the kept days that did not fail."""
        probes = sum(bucket.probes for bucket in self.days)
        return None if not probes else 1 - sum(bucket.failed for bucket in self.days) / probes
