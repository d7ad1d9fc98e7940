"""Sinks: functions that take the record of each finished call."""

import logging
from collections import deque

from callyard.dispatch.outcome import Record

__all__ = ["Ring", "log_sink"]


_log = logging.getLogger("callyard.calls")


def log_sink(record: Record) -> None:
    """Log one line for a call."""
    if not _log.isEnabledFor(logging.INFO):
        return
    facts = [
        f"tool={record.tool}",
        f"code={record.code or 'ok'}",
        f"ms={record.elapsed_ms:.0f}",
        f"depth={record.depth}",
        f"id={record.call_id}",
    ]
    facts += [f"session={record.session_id}"] if record.session_id else []
    facts += [f"parent={record.parent_id}"] if record.parent_id else []
    _log.info("call %s", " ".join(facts))


class Ring:
    """Keeps the latest records in memory."""

    def __init__(self, size: int = 1000) -> None:
        self.records: deque[Record] = deque(maxlen=size)

    def __call__(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)
