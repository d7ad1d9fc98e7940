"""The product: appointments in an SQLite file. It knows no agent and no tool."""

import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta

__all__ = ["Appointment", "OverlapError", "Scheduler", "UnknownAppointmentError"]

_TABLE = """
CREATE TABLE IF NOT EXISTS appointments
    (id INTEGER PRIMARY KEY, title TEXT NOT NULL, start TEXT NOT NULL, finish TEXT NOT NULL)
"""
_COLUMNS = "id, title, start, finish"


@dataclass(frozen=True, slots=True)
class Appointment:
    """One appointment, in local time."""

    id: int
    title: str
    start: datetime
    finish: datetime


class UnknownAppointmentError(Exception):
    """There is no appointment of that id."""


class OverlapError(Exception):
    """Another appointment is at that time."""

    def __init__(self, other: Appointment) -> None:
        super().__init__(f"'{other.title}' is at that time.")
        self.other = other


class Scheduler:
    """Appointments that never overlap; its methods block, and may be called from any thread and any process."""

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute(_TABLE)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def on(self, day: date) -> list[Appointment]:
        """Return the appointments of a day, the earliest first."""
        with self._lock:
            return self._find(
                "start < ? AND finish > ?", _text(_midnight(day + timedelta(days=1))), _text(_midnight(day))
            )

    def add(self, title: str, start: datetime, minutes: int) -> Appointment:
        """Add an appointment.

        Raises:
            OverlapError: Another one is at that time.
        """
        finish = start + timedelta(minutes=minutes)
        with self._transaction() as database:
            self._check(start, finish)
            row = database.execute(
                "INSERT INTO appointments (title, start, finish) VALUES (?, ?, ?)", (title, _text(start), _text(finish))
            ).lastrowid
            return self._get(row or 0)

    def move(self, appointment_id: int, start: datetime) -> Appointment:
        """Move an appointment to another time.

        Raises:
            UnknownAppointmentError: There is none of that id.
            OverlapError: Another one is at that time.
        """
        with self._transaction() as database:
            old = self._get(appointment_id)
            finish = start + (old.finish - old.start)
            self._check(start, finish, moved=appointment_id)
            database.execute(
                "UPDATE appointments SET start = ?, finish = ? WHERE id = ?",
                (_text(start), _text(finish), appointment_id),
            )
            return self._get(appointment_id)

    def remove(self, appointment_id: int) -> Appointment:
        """Remove an appointment, and return what it was.

        Raises:
            UnknownAppointmentError: There is none of that id.
        """
        with self._transaction() as database:
            removed = self._get(appointment_id)
            database.execute("DELETE FROM appointments WHERE id = ?", (appointment_id,))
            return removed

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        """Begin with the lock of the file, so that nobody takes a time between the check and the change."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield self._database

    def _check(self, start: datetime, finish: datetime, *, moved: int = 0) -> None:
        others = self._find("start < ? AND finish > ? AND id != ?", _text(finish), _text(start), moved)
        if others:
            raise OverlapError(others[0])

    def _get(self, appointment_id: int) -> Appointment:
        found = self._find("id = ?", appointment_id)
        if not found:
            raise UnknownAppointmentError(appointment_id)
        return found[0]

    def _find(self, condition: str, *values: str | int) -> list[Appointment]:
        query = f"SELECT {_COLUMNS} FROM appointments WHERE {condition} ORDER BY start"  # noqa: S608 - the conditions are written above
        rows = self._database.execute(query, values).fetchall()
        return [
            Appointment(row[0], row[1], datetime.fromisoformat(row[2]), datetime.fromisoformat(row[3])) for row in rows
        ]


def _midnight(day: date) -> datetime:
    return datetime.combine(day, datetime.min.time())


def _text(moment: datetime) -> str:
    """Return a time as text that sorts in the order of time."""
    return moment.isoformat(timespec="minutes")
