"""Where records go: sinks, each a function that takes a record."""

from toolyard.monitor.sinks import Ring, log_sink

__all__ = ["Ring", "log_sink"]
