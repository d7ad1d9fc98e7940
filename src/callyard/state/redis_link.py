"""One connection to a Redis server: many commands in flight, each sent at most once.

It is imported when a Redis store is first used, because redis-py takes 0.1 s. It knows no keys and no store.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from callyard.state.store import ANSWER_LOST, RETRY_AFTER_MS, StoreUnavailableError

__all__ = ["ANSWER_S", "Command", "Connect", "Connection", "Link", "Server", "next_reply", "unavailable"]

Result = TypeVar("Result")
Connection = AbstractConnection
Command = tuple[str | bytes | int, ...]
Connect = Callable[[], Awaitable[Connection]]
ANSWER_S: Final = 5.0
"""How long an answer, or a connection, may take."""
_REPLIES: Final = (ResponseError, AuthenticationError, BusyLoadingError)
"""Errors that the server answers with; redis-py takes some of them for errors of the connection."""
_REASONS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (AuthenticationError, "wrong_password"),
    (NoPermissionError, "no_permission"),
    (OutOfMemoryError, "full"),
    (ReadOnlyError, "replica"),
    (BusyLoadingError, "not_ready"),
    (ClusterDownError, "not_ready"),
    (TryAgainError, "not_ready"),
)
_TEXTS: Final = (
    ("MISCONF", "io_error"),
    ("The user executing the script", "no_permission"),
    ("ACL failure in script", "no_permission"),
)
"""Errors that redis-py has no class for, by how they begin."""
_SENTENCES: Final = {
    "wrong_password": "Redis refuses the user or the password of its URL.",
    "no_permission": "The user of its URL lacks a right: see the guide for the rights it needs.",
    "full": "Redis is full. Raise its 'maxmemory'.",
    "replica": "This Redis is a replica, which cannot be written.",
    "not_ready": "Redis is not ready.",
    "io_error": "Redis cannot write its own file.",
    "refused": "Redis refuses a command.",
    "unreachable": "Redis cannot be reached.",
}


class _UnsentError(Exception):
    """The connection ended before a command was sent."""


async def next_reply(connection: Connection) -> Any:
    """Return the next reply of an open connection, however long it takes."""
    return cast("Any", await connection.read_response(timeout=math.inf, disconnect_on_error=False))


def unavailable(error: Exception) -> StoreUnavailableError:
    """Return an error of Redis, or of the way to it, as the error of the store."""
    if isinstance(error, StoreUnavailableError):
        return error
    found = (reason for kind, reason in _REASONS if isinstance(error, kind))
    default = "refused" if isinstance(error, ResponseError) else "unreachable"
    default = next((reason for start, reason in _TEXTS if str(error).startswith(start)), default)
    reason = next(found, default)
    detail = " ".join(str(error).split()).removesuffix(".")
    said = f" The reason: {detail}." if detail else ""
    return StoreUnavailableError(_SENTENCES[reason] + said, reason=reason)


def _lost_answer() -> StoreUnavailableError:
    """Return the failure of a command that was sent, and the answer of which did not come."""
    return StoreUnavailableError("Redis gave no answer.", reason=ANSWER_LOST, may_have_run=True)


class Link:
    """One open connection. The commands of one turn of the event loop are sent together, and answered in order."""

    def __init__(self, connection: Connection) -> None:
        self.is_open = True
        self._connection = connection
        self._waiting: list[tuple[Command, asyncio.Future[Any]]] = []
        self._sent = deque[asyncio.Future[Any]]()
        self._wake = asyncio.Event()
        self._tasks = [asyncio.create_task(self._until_end(work)) for work in (self._send(), self._receive())]
        self._closing: asyncio.Task[None] | None = None

    async def execute(self, *commands: Command, seconds: float = ANSWER_S) -> list[Any]:
        """Send commands one after another, and return their replies; an error that Redis answers is one, too.

        Raises:
            StoreUnavailableError: The answers were lost: the commands may have run.
        """
        futures = [asyncio.get_running_loop().create_future() for _ in commands]
        if not self.is_open:
            raise _UnsentError
        self._waiting += zip(commands, futures, strict=True)
        self._wake.set()
        try:
            async with asyncio.timeout(seconds):
                replies = [await future for future in futures]
        except TimeoutError:
            self.end()
            raise _lost_answer() from None
        for reply in replies:
            if isinstance(reply, StoreUnavailableError | _UnsentError):
                raise reply
        return replies

    def end(self) -> None:
        """End the connection: what was sent may have run, and what still waits was not sent."""
        if not self.is_open:
            return
        self.is_open = False
        for task in self._tasks:
            task.cancel()
        for future in self._sent:
            if not future.done():
                future.set_result(_lost_answer())
        for _, future in self._waiting:
            if not future.done():
                future.set_result(_UnsentError())
        self._closing = asyncio.create_task(self._connection.disconnect(nowait=True))

    async def close(self) -> None:
        """End the connection and wait until it is closed."""
        self.end()
        assert self._closing is not None  # noqa: S101 - 'end' made it
        await asyncio.gather(self._closing, *self._tasks, return_exceptions=True)

    async def _until_end(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            with suppress(RedisError, OSError):
                await work
        finally:
            self.end()

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch = [entry for entry in self._waiting if not entry[1].cancelled()]
            self._waiting = []
            self._sent.extend(future for _, future in batch)
            packed = self._connection.pack_commands([command for command, _ in batch])
            await self._connection.send_packed_command(packed, check_health=False)

    async def _receive(self) -> None:
        while True:
            try:
                reply = await next_reply(self._connection)
            except _REPLIES as error:
                reply = error
            future = self._sent.popleft()
            if not future.done():
                future.set_result(reply)


class Server:
    """One Redis server: a connection for all commands, and one for those that wait for replicas."""

    def __init__(self, connect: Connect) -> None:
        self.connect: Final = connect
        self._links: dict[bool, Link] = {}
        self._lock = asyncio.Lock()
        self._failure: StoreUnavailableError | None = None
        self._retry_at = 0.0

    async def execute(self, *commands: Command, waits_for_replicas: bool = False) -> list[Any]:
        """Send commands one after another, and return their replies; an error that Redis answers is one, too.

        Raises:
            StoreUnavailableError: The server cannot be reached, or the answers were lost.
        """
        for _ in range(2):
            link = await self._link(waits_for_replicas)
            with suppress(_UnsentError):  # a connection that ended just now
                return await link.execute(*commands)
        raise unavailable(ConnectionError("Connections end at once"))

    async def drop(self) -> None:
        """Close the connections, so that the next use opens new ones."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close()

    async def _link(self, waits_for_replicas: bool) -> Link:  # noqa: FBT001 - a key of the table
        link = self._links.get(waits_for_replicas)
        if link is not None and link.is_open:
            return link
        async with self._lock:
            link = self._links.get(waits_for_replicas)
            if link is None or not link.is_open:
                link = self._links[waits_for_replicas] = Link(await self._connected())
            return link

    async def _connected(self) -> Connection:
        """Return a new connection; after a failure, try at most once a second."""
        last = self._failure
        if last is not None and time.monotonic() < self._retry_at:
            raise StoreUnavailableError(str(last), reason=last.reason)
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self.connect()
        except (RedisError, OSError, StoreUnavailableError) as error:
            self._failure = unavailable(error)
            self._retry_at = time.monotonic() + RETRY_AFTER_MS / 1000
            raise self._failure from None
        self._failure = None
        return connection
