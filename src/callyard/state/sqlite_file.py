"""The SQLite file under a store: opens it privately, brings its schema up to date and runs transactions.

Everything here blocks, so it runs in the threads of `callyard.state.sqlite`, the only module that imports it. It is
imported when a store is first used, because it imports sqlite3.
"""

import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from callyard._internal.files import file_system_of, is_network, make_private
from callyard.state.store import StoreUnavailableError

__all__ = ["FAILURES", "Connection", "Work", "is_full", "open_connection", "read", "unavailable", "write"]

Connection = sqlite3.Connection
Result = TypeVar("Result")
Work = Callable[[Connection], Result]

FAILURES: Final = (OSError, sqlite3.Error, StoreUnavailableError)
"""What working with the file raises if the file is to blame."""
BUSY_S: Final = 5.0
"""How long a write waits for the writers of other processes."""
_PROGRAM: Final = 0x54594152
"""The application id that marks a file as ours: 'TYAR'."""
_MAX_LOG_BYTES: Final = 64 * 1024 * 1024
"""The size that the write-ahead log is cut back to."""
_MIGRATIONS: Final = (
    # version 1
    (
        "CREATE TABLE entries (key TEXT PRIMARY KEY NOT NULL, expires REAL, value BLOB NOT NULL)",
        "CREATE INDEX entries_by_expiry ON entries (expires) WHERE expires IS NOT NULL",
        "CREATE TABLE counters (key TEXT PRIMARY KEY NOT NULL, expires REAL, number INTEGER NOT NULL) WITHOUT ROWID",
        # AUTOINCREMENT never gives a number twice, which makes them fencing tokens.
        """CREATE TABLE leases
        (token INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL, boot TEXT NOT NULL, expires REAL NOT
        NULL)""",
        (
            "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, expires REAL NOT "
            "NULL, value BLOB NOT NULL)"
        ),
    ),
)
"""The statements that lead from each version of the schema to the next; never change one that was released."""
_OTHERS: Final = 0o077
_RETRY_S: Final = 0.02
_REASONS: Final = (
    ("SQLITE_FULL", "full"),
    ("SQLITE_READONLY", "read_only"),
    ("SQLITE_PERM", "not_writable"),
    ("SQLITE_CANTOPEN", "not_writable"),
    ("SQLITE_CORRUPT", "corrupt"),
    ("SQLITE_NOTADB", "corrupt"),
    ("SQLITE_BUSY", "locked"),
    ("SQLITE_LOCKED", "locked"),
)
_ERRNOS: Final = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EFBIG: "full", errno.EROFS: "read_only"}
_SENTENCES: Final = {
    "full": "The disk is full. Make room.",
    "read_only": "It is read-only.",
    "not_writable": "It cannot be opened for writing.",
    "corrupt": "It is damaged, or no SQLite file. Restore it, or move it away to start anew.",
    "locked": "Another process has locked it for too long.",
}


def open_connection(path: Path, *, max_bytes: int, writes: bool) -> Connection:
    """Open the file, which is made if it is missing, with the current schema.

    Raises:
        StoreUnavailableError: It cannot be used.
    """
    until = time.monotonic() + BUSY_S
    while True:
        try:
            _prepare(path)
            return _connect(path, max_bytes=max_bytes, writes=writes)
        except (OSError, sqlite3.Error) as error:
            failure = unavailable(error, path)
            # Processes that switch a new file to WAL at the same time do not wait for each other.
            if failure.reason != "locked" or time.monotonic() > until:
                raise failure from error
            time.sleep(_RETRY_S)  # in a thread of the store; nothing tells when the other process is done


def read(connection: Connection, work: Work[Result]) -> Result:
    """Run statements that only read."""
    _check_version(connection)
    return work(connection)


def write(connection: Connection, work: Work[Result]) -> Result:
    """Run statements in one transaction, while no other process writes."""
    with _transaction(connection):
        return work(connection)


@contextmanager
def _transaction(connection: Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        _check_version(connection)
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # some errors have ended it already
            connection.execute("ROLLBACK")
        raise


def unavailable(error: Exception, path: Path) -> StoreUnavailableError:
    """Return an error of the file as the error of the store."""
    if isinstance(error, StoreUnavailableError):
        return error
    if isinstance(error, OSError):
        reason = _ERRNOS.get(error.errno or 0, "not_writable")
        detail = f"{error.strerror or error}."
    else:
        name = getattr(error, "sqlite_errorname", "")
        reason = next((reason for prefix, reason in _REASONS if name.startswith(prefix)), "io_error")
        detail = f"{_SENTENCES.get(reason, 'It cannot be read or written.')} SQLite says: {error}."
    return StoreUnavailableError(f"The store '{path}' cannot be used. {detail}", reason=reason)


def is_full(error: Exception) -> bool:
    """Return whether a write failed because there is no more room."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def _prepare(path: Path) -> None:
    """Make the file if it is missing, accessible to the owner only, and check where it is and whose it is.

    An existing file is not opened here: closing it would drop the locks that SQLite holds on it in this process.
    """
    make_private(path.parent)
    kind = file_system_of(path.parent)
    if is_network(kind):
        why = f"It is on a network file system ('{kind}'), where SQLite may lose data. Use another path."
        raise StoreUnavailableError(f"The store '{path}' cannot be used. {why}", reason="network_file_system")
    if not path.exists():
        with suppress(FileExistsError):  # another process was first
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        if file.exists():
            _make_private(file)
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        number, reason = (errno.EROFS, "It is read-only") if read_only else (errno.EACCES, "It is not writable")
        raise OSError(number, reason, str(path))


def _make_private(file: Path) -> None:
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EISDIR, "It is no file", str(file))
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "Somebody else owns it", str(file))
    if status.st_mode & _OTHERS:
        file.chmod(0o600)


def _connect(path: Path, *, max_bytes: int, writes: bool) -> Connection:
    # Without the check of threads, because closing at the end of the process may happen in another one.
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _check_program(connection)
        _check_version(connection)
        if _number(connection, "user_version") < len(_MIGRATIONS):
            _migrate(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
        connection.execute(f"PRAGMA max_page_count = {max_bytes // _number(connection, 'page_size')}")
        if not writes:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: Connection) -> None:
    """Make or migrate the tables; of several processes one does it, and the others find it done."""
    if not _number(connection, "user_version"):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # works only before the first table
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        message = "The store cannot be used. Its file system has no shared memory."
        raise StoreUnavailableError(message, reason="io_error")
    with _transaction(connection):
        for statements in _MIGRATIONS[_number(connection, "user_version") :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_PROGRAM}")
        connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _check_program(connection: Connection) -> None:
    """Refuse a database of another program, which a wrong path may name."""
    # The tables first: another process commits both at once, perhaps between these two statements.
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and _number(connection, "application_id") != _PROGRAM:
        message = "The store cannot be used. Its file is a database of another program."
        raise StoreUnavailableError(message, reason="not_a_store")


def _check_version(connection: Connection) -> None:
    """Refuse a newer schema; in every transaction, because a newer Callyard may migrate an open file."""
    version = _number(connection, "user_version")
    if version > len(_MIGRATIONS):
        what = f"version {version} of the file, and {len(_MIGRATIONS)} is the last one known"
        message = f"The store was written by a newer Callyard: {what}. Update Callyard, or use another store."
        raise StoreUnavailableError(message, reason="newer_version")


def _number(connection: Connection, pragma: str) -> int:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]
