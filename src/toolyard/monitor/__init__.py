"""Where records go: sinks, each a function that takes a record."""

from toolyard.monitor.log import log_sink
from toolyard.monitor.ring import Ring

__all__ = ["Ring", "log_sink"]
