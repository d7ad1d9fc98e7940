"""Sinks for the records of calls: logs, metrics and a ring. Names are loaded lazily, because most yards need few of them."""

from typing import TYPE_CHECKING

from callyard._internal.lazy import load_names

if TYPE_CHECKING:
    from callyard.monitor.log_files import AccessLine, AccessLog, AuditLog
    from callyard.monitor.metrics import CallStats, Label, Metrics, Rates, Second, Step, Trend
    from callyard.monitor.prometheus import UpstreamState, render, snapshot_of
    from callyard.monitor.sinks import Ring, log_sink

__all__ = [
    "AccessLine",
    "AccessLog",
    "AuditLog",
    "CallStats",
    "Label",
    "Metrics",
    "Rates",
    "Ring",
    "Second",
    "Step",
    "Trend",
    "UpstreamState",
    "log_sink",
    "render",
    "snapshot_of",
]

if not TYPE_CHECKING:  # a checker that saw it would accept every name
    __getattr__ = load_names(
        "callyard.monitor",
        {
            "log_files": ("AccessLine", "AccessLog", "AuditLog"),
            "metrics": ("CallStats", "Label", "Metrics", "Rates", "Second", "Step", "Trend"),
            "prometheus": ("UpstreamState", "render", "snapshot_of"),
            "sinks": ("Ring", "log_sink"),
        },
    )
