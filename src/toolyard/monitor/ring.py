"""The last records, in memory."""

from collections import deque

from toolyard.record import Record

__all__ = ["Ring"]


class Ring:
    """Keeps the last records and forgets the oldest."""

    def __init__(self, size: int = 1000) -> None:
        self.records: deque[Record] = deque(maxlen=size)

    def __call__(self, record: Record) -> None:
        """Keep a record."""
        self.records.append(record)
