"""Sinks for the records of calls: logs, metrics and a ring.

Its files:

- `blocked_loop`: a thread that sees when the event loop is blocked, and by which line
- `conventions`: the names of OpenTelemetry's conventions
- `incidents`: what rules see wrong, kept in the store from its beginning to its recovery, with one alert for each
- `log_files`: log files of JSON lines: the audit log of calls and the access log of HTTP requests
- `metrics`: sinks without a file: counters of calls by tool, source and caller with their rates, a ring, and lines of
  the log
- `notifiers`: a webhook and a command that get alerts and recoveries, with what is needed to try again
- `otlp`: sends spans and counts to a collector of OpenTelemetry
- `prometheus`: metrics in the text formats of Prometheus
- `rules`: what judges the real calls of a yard: hung, slow, failing, missing or waiting for too long
- `tracing`: spans of OpenTelemetry for requests, calls, requests to upstreams and jobs
"""

from callyard.monitor.log_files import AuditLog
from callyard.monitor.metrics import Label, Metrics, Ring, log_sink
from callyard.monitor.prometheus import UpstreamState, render, snapshot_of

__all__ = ["AuditLog", "Label", "Metrics", "Ring", "UpstreamState", "log_sink", "render", "snapshot_of"]
