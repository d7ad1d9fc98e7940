"""What becomes of records: logs and other sinks."""

from toolyard.monitor.sinks import Ring, log_sink

__all__ = ["Ring", "log_sink"]
