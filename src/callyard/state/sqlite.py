"""The store in an SQLite file: for one machine, shared by its processes, and still there after a restart.

SQLite blocks, so one thread writes and another one reads: a write that waits for another process holds up no read. The
first write makes the file; until then reading finds nothing.

Values and counters expire by the wall clock, because they outlive the machine's uptime. If that clock jumps forward,
they expire early; if it jumps back, they live longer. Leases end by the monotonic clock, which all processes of a
machine share and which does not jump; a restart of the machine ends them all.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from callyard._internal.files import file_system_of, is_network
from callyard._internal.logfmt import log_value
from callyard.state.store import RETRY_AFTER_MS, Clock, Lease, Store, StoreUnavailableError, Subscription

if TYPE_CHECKING:
    from callyard.state.sqlite_file import Connection

__all__ = ["SqliteStore"]

Result = TypeVar("Result")
_MAX_BYTES: Final = 4 * 1024**3
_SWEEP_S: Final = 60.0
_SWEPT: Final = 1000
"""Rows of each table that one sweep deletes, so that it does not hold up other writes."""
_POLL_S: Final = 0.1
_MESSAGE_S: Final = 60.0
"""How long a message stays in the file, for processes that were suspended."""
_MESSAGES: Final = 1000
_LAST_CHARACTER: Final = 0x10FFFF
_SURROGATES: Final = (0xD800, 0xDFFF)
_LIVE: Final = "(expires IS NULL OR expires > ?)"
_PUT: Final = (
    "INSERT INTO entries (key, expires, value) VALUES (?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET expires = excluded.expires, value = excluded.value"
)
_COUNT: Final = (
    "INSERT INTO counters (key, expires, number) VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE "
    "SET expires = excluded.expires, number = excluded.number + CASE WHEN counters.expires <= ?4 THEN 0 ELSE "
    "counters.number END"
)
_KEPT: Final = frozenset({"full", "locked", "read_only"})
"""Failures after which a connection still works, so that reading goes on."""
_log = logging.getLogger(__name__)


def _sqlite() -> ModuleType:
    """Return the module of the file; it loads sqlite3, which takes 1 MB, when a file is opened."""
    from callyard.state import sqlite_file  # noqa: PLC0415 - a database driver

    return sqlite_file


def _drop(_: object) -> None:
    """Drop a cursor in the thread of its connection.

    The end of a cursor resets its statement, which the connection shares: in another thread that breaks the next write.
    """


class SqliteStore(Store):
    """Stores everything in one SQLite file, which several processes of one machine may share.

    A write beyond `max_bytes` fails as on a full disk. What was written survives the end of the process, however
    sudden; the last writes before a power failure may be lost.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_bytes: int = _MAX_BYTES,
        clock: Clock = time.time,
        lease_clock: Clock = time.monotonic,
    ) -> None:
        self.path: Final = Path(path).expanduser().absolute()
        self._clock = clock
        self._lease_clock = lease_clock
        self._writer = _Access(self.path, max_bytes=max_bytes, sweep=self._sweep)
        self._reader = _Access(self.path, max_bytes=max_bytes)
        self._sweep_at = 0.0
        self._poll = _Poll(self._reader)

    async def get(self, key: str) -> bytes | None:
        now = self._clock()
        return await self._read(lambda db: _value(db, key, now), empty=None)

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        now = self._clock()
        return await self._read(lambda db: [_value(db, key, now) for key in keys], empty=[None] * len(keys))

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        await self.put_many({key: value}, ttl=ttl)

    async def put_many(self, values: Mapping[str, bytes], *, ttl: float | None = None) -> None:
        entries = [(key, self._expiry(ttl), value) for key, value in values.items()]
        await self._write(lambda db: _drop(db.executemany(_PUT, entries)))

    async def compare_and_set(
        self,
        key: str,
        expected: bytes | None,
        value: bytes,
        *,
        ttl: float | None = None,
        durable: bool = False,  # noqa: ARG002 - there are no copies
    ) -> bool:
        now, expiry = self._clock(), self._expiry(ttl)

        def work(db: "Connection") -> bool:
            if _value(db, key, now) != expected:
                return False
            db.execute(_PUT, (key, expiry, value))
            return True

        return await self._write(work)

    async def delete(self, key: str) -> None:
        await self._write(lambda db: _drop(db.execute("DELETE FROM entries WHERE key = ?", (key,))))

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        end = _end_of(prefix)
        where = f"key >= ? AND key > ? AND {_LIVE}" + ("" if end is None else " AND key < ?")
        values = [prefix, after, self._clock(), *([] if end is None else [end]), limit]
        query = f"SELECT key FROM entries WHERE {where} ORDER BY key LIMIT ?"  # noqa: S608 - made of constants
        return await self._read(lambda db: [key for (key,) in db.execute(query, values)], empty=[])

    async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
        now, expiry = self._clock(), self._expiry(ttl)

        def number(db: "Connection") -> int:
            row = db.execute(f"SELECT number FROM counters WHERE key = ? AND {_LIVE}", (key, now)).fetchone()  # noqa: S608 - the same
            return 0 if row is None else row[0]

        def work(db: "Connection") -> int:
            db.execute(_COUNT, (key, expiry, by, now))
            return db.execute("SELECT number FROM counters WHERE key = ?", (key,)).fetchone()[0]

        return await self._write(work) if by else await self._read(number, empty=0)

    async def acquire(self, key: str, *, ttl: float) -> Lease | None:
        boot, now = _boot_id(), self._lease_clock()

        def work(db: "Connection") -> Lease | None:
            db.execute("DELETE FROM leases WHERE key = ? AND (boot != ? OR expires <= ?)", (key, boot, now))
            row = (key, boot, now + ttl)
            insert = "INSERT INTO leases (key, boot, expires) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING"
            taken = db.execute(insert, row)
            return Lease(key, taken.lastrowid or 0) if taken.rowcount else None

        return await self._write(work)

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        now = self._lease_clock()
        row = (now + ttl, lease.token, lease.key, _boot_id(), now)
        query = "UPDATE leases SET expires = ? WHERE token = ? AND key = ? AND boot = ? AND expires > ?"
        return await self._write(lambda db: bool(db.execute(query, row).rowcount))

    async def release(self, lease: Lease) -> None:
        row = (lease.token, lease.key)
        await self._write(lambda db: _drop(db.execute("DELETE FROM leases WHERE token = ? AND key = ?", row)))

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to the current subscribers of a topic; those of other processes get it within about 100 ms."""
        row = (topic, self._clock() + _MESSAGE_S, message)
        query = "INSERT INTO messages (topic, expires, value) VALUES (?, ?, ?)"
        await self._write(lambda db: _drop(db.execute(query, row)))
        self._poll.wake()

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Receive the messages of a topic that are published while the context is open, in order."""
        async with self._poll.subscribed(topic) as subscription:
            yield subscription

    async def close(self) -> None:
        """Close the file and end the threads; a later use opens it again."""
        await self._reader.close()
        await self._writer.close()

    async def _read(self, work: "Callable[[Connection], Result]", *, empty: Result) -> Result:
        """Run statements that only read; `empty` is what they find in a new store."""
        return empty if self._reader.is_new() else await self._reader.run(work)

    async def _write(self, work: "Callable[[Connection], Result]") -> Result:
        result = await self._writer.run(work)
        if (now := time.monotonic()) >= self._sweep_at:
            self._sweep_at = now + _SWEEP_S
            self._writer.start(self._sweep)
        return result

    def _sweep(self, db: "Connection") -> None:
        """Delete what has expired, and give free space back to the disk."""
        now = self._clock()
        for table in ("entries", "counters"):
            expired = f"SELECT key FROM {table} WHERE expires <= ? LIMIT ?"  # noqa: S608 - made of constants
            db.execute(f"DELETE FROM {table} WHERE key IN ({expired})", (now, _SWEPT))  # noqa: S608 - the same
        db.execute("DELETE FROM leases WHERE boot != ? OR expires <= ?", (_boot_id(), self._lease_clock()))
        # By number, because those are in order: a message behind one that lives on waits for it.
        db.execute(
            "DELETE FROM messages WHERE id IN (SELECT id FROM messages ORDER BY id LIMIT ?) AND expires <= ?",
            (_SWEPT, now),
        )
        db.execute(f"PRAGMA incremental_vacuum({_SWEPT})").fetchall()

    def _expiry(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._clock() + ttl


class _Access:
    """One connection to the file in a thread of its own, opened when first used; it only reads if it has no `sweep`."""

    def __init__(self, path: Path, *, max_bytes: int, sweep: "Callable[[Connection], object] | None" = None) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._sweep = sweep
        self._name = "read" if sweep is None else "write"
        self._threads: ThreadPoolExecutor | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._in_use = threading.RLock()
        """Held by the thread that uses the connection.

        A new thread may start while the last one closes it, which would crash SQLite.
        """
        self._failure: StoreUnavailableError | None = None
        """Why the last use failed, if it did."""
        self._retry_at = 0.0

    def is_new(self) -> bool:
        """Return whether there is no file yet, but it could be created: in a writable folder on a local disk."""
        try:
            if self._threads is not None or self._path.exists():
                return False
            folder = next(folder for folder in self._path.parents if folder.exists())
            return folder.is_dir() and os.access(folder, os.W_OK) and _is_local(folder)
        except OSError:  # opening the file says what is wrong
            return False

    async def run(self, work: "Callable[[Connection], Result]") -> Result:
        """Run statements in one transaction in the thread.

        Raises:
            StoreUnavailableError: They failed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor(), self._run, work)

    def start(self, work: "Callable[[Connection], object]") -> None:
        """Run statements after those that wait already, without waiting for them; a failure is logged."""
        self._executor().submit(self._run, work)

    async def close(self) -> None:
        """Close the connection after the statements that wait already, and end the thread."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.get_running_loop().run_in_executor(threads, self._close)
            threads.shutdown(wait=False)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"callyard-store-{self._name}")
            return self._threads

    def _run(self, work: "Callable[[Connection], Result]") -> Result:
        with self._in_use:
            last = self._failure
            if last is not None and self._connection is None and time.monotonic() < self._retry_at:
                raise StoreUnavailableError(str(last), reason=last.reason)
            try:
                result = self._transact(self._open(), work)
            except _sqlite().FAILURES as error:
                failure = _sqlite().unavailable(error, self._path)
                self._failed(failure)
                raise failure from None
            if last is not None:
                self._failure = None
                _log.warning("store_available path=%s access=%s", log_value(self._path), self._name)
            return result

    def _transact(self, connection: "Connection", work: "Callable[[Connection], Result]") -> Result:
        if self._sweep is None:
            return _sqlite().read(connection, work)
        try:
            return _sqlite().write(connection, work)
        except Exception as error:
            if not _sqlite().is_full(error):
                raise
        _sqlite().write(connection, self._sweep)  # makes room, unless nothing has expired
        return _sqlite().write(connection, work)

    def _open(self) -> "Connection":
        if self._connection is None:
            connection: Connection = _sqlite().open_connection(
                self._path, max_bytes=self._max_bytes, writes=self._sweep is not None
            )
            self._connection = connection
        return self._connection

    def _failed(self, failure: StoreUnavailableError) -> None:
        """Log a failure unless the last one had the same reason, and open the file anew next time if that may help."""
        if self._failure is None or self._failure.reason != failure.reason:
            path, reason = log_value(self._path), failure.reason
            _log.error(
                "store_unavailable path=%s access=%s reason=%s text=%s", path, self._name, reason, log_value(failure)
            )
        self._failure = failure
        if failure.reason not in _KEPT:
            self._close()
        self._retry_at = time.monotonic() + RETRY_AFTER_MS / 1000

    def _close(self) -> None:
        with self._in_use:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


class _Poll:
    """Delivers messages by polling the file, while there are subscribers."""

    def __init__(self, reader: _Access) -> None:
        self._reader = reader
        self._subscribers: dict[str, list[tuple[int, Subscription]]] = {}
        """For each topic its subscribers, each with the number of the last message before it."""
        self._task: asyncio.Task[None] | None = None
        self._published: asyncio.Event | None = None
        self._last = 0
        self._version: int | None = None

    def wake(self) -> None:
        """Look for messages now, because this process published one."""
        if self._published is not None:
            self._published.set()

    @asynccontextmanager
    async def subscribed(self, topic: str) -> AsyncGenerator[Subscription]:
        """Deliver messages to a new subscriber while the context is open."""
        last = await self._reader.run(_last_message)
        subscription = Subscription()
        entry = (last, subscription)
        self._subscribers.setdefault(topic, []).append(entry)
        if self._task is None:
            self._last, self._version = last, None
            self._task = asyncio.create_task(self._run())
        try:
            yield subscription
        finally:
            await self._remove(topic, entry)

    async def _remove(self, topic: str, entry: tuple[int, Subscription]) -> None:
        self._subscribers[topic].remove(entry)
        if not self._subscribers[topic]:
            del self._subscribers[topic]
        if not self._subscribers and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        published = self._published = asyncio.Event()
        while True:
            published.clear()
            try:
                rows = await self._reader.run(self._new_messages)
            except StoreUnavailableError:  # logged where it was raised
                await asyncio.sleep(RETRY_AFTER_MS / 1000)
                continue
            for number, topic, value in rows:
                for since, subscription in self._subscribers.get(topic, ()):
                    if number > since:
                        subscription.deliver(value)
            if len(rows) < _MESSAGES:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await published.wait()

    def _new_messages(self, db: "Connection") -> list[tuple[int, str, bytes]]:
        """Return the messages since the last look, if another connection has written since."""
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return []
        rows: list[Any] = db.execute(
            "SELECT id, topic, value FROM messages WHERE id > ? ORDER BY id LIMIT ?", (self._last, _MESSAGES)
        ).fetchall()
        self._last = rows[-1][0] if rows else self._last
        self._version = None if len(rows) == _MESSAGES else version
        return rows


def _value(db: "Connection", key: str, now: float) -> bytes | None:
    row = db.execute(f"SELECT value FROM entries WHERE key = ? AND {_LIVE}", (key, now)).fetchone()  # noqa: S608 - made of constants
    return None if row is None else row[0]


def _last_message(db: "Connection") -> int:
    row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'").fetchone()
    return 0 if row is None else row[0]


def _end_of(prefix: str) -> str | None:
    """Return the first text after all those with a prefix, or None if there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index]) + 1
        if point <= _LAST_CHARACTER:
            return prefix[:index] + chr(_SURROGATES[1] + 1 if point == _SURROGATES[0] else point)
    return None


@cache
def _is_local(folder: Path) -> bool:
    return not is_network(file_system_of(folder))


@cache
def _boot_id() -> str:
    """Return a text that differs after each start of the machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""
