"""Connections to one upstream that are kept for the next request, within bounds."""

import asyncio
import socket
import ssl
from collections import deque
from typing import Any, Final

from toolyard.providers.upstream.http.address import Address
from toolyard.providers.upstream.http.connection import Connection, Taker
from toolyard.providers.upstream.http.tls import tls_context
from toolyard.providers.upstream.link import LinkError

__all__ = ["Pool"]

_SPARE: Final = 32
_SWEEP_SECONDS: Final = 30.0


class Pool:
    """The connections to one upstream; requests that find none free wait for one."""

    def __init__(self, name: str, address: Address, *, bound: int, seconds: float) -> None:
        self.name = name
        self._address = address
        self._bound = bound
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._idle: list[Connection] = []
        self._waiting: deque[tuple[Taker, bytes]] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    def send(self, taker: Taker, data: bytes, *, urgent: bool = False) -> None:
        """Send a request on a connection that is free, or on the next one; what is urgent may go beyond the bound."""
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fit(now):
                connection.send(taker, data)
                return
            connection.abort()
        if not urgent:
            self._waiting.append((taker, data))
            self._provide()
            return
        self._waiting.appendleft((taker, data))
        if len(self._all) + len(self._connecting) < self._bound + _SPARE:
            self._begin_connecting()

    def drop(self, taker: Taker) -> None:
        """Forget a request, and end the connection that it is on."""
        if taker.connection is not None:
            taker.connection.abort()
        else:
            self._waiting = deque(item for item in self._waiting if item[0] is not taker)

    def keep(self, connection: Connection) -> None:
        """Take note of a connection that was made."""
        self._all.add(connection)

    def release(self, connection: Connection) -> None:
        """Take a connection back that can be used again."""
        now = self._loop.time()
        connection.since = now
        if not self._waiting:
            self._store(connection)
        elif connection.is_fit(now):
            connection.send(*self._waiting.popleft())
        else:
            connection.abort()  # once it is gone, another is made for who waits

    def _store(self, connection: Connection) -> None:
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(_SWEEP_SECONDS, self._sweep_idle)

    def forget(self, connection: Connection) -> None:
        """Take note that a connection is gone."""
        self._all.discard(connection)
        if not self._all:
            self._emptied.set()
        if connection in self._idle:
            self._idle.remove(connection)
        self._provide()

    async def close(self) -> None:
        """End all connections, and wait until they are gone."""
        self._waiting.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        self._emptied.clear()
        for connection in self._all:
            connection.abort()
        if self._all:
            await self._emptied.wait()

    def _provide(self) -> None:
        """Begin as many connections as requests wait for one, within the bound."""
        while len(self._connecting) < min(len(self._waiting), self._bound - len(self._all)):
            self._begin_connecting()

    def _begin_connecting(self) -> None:
        task = self._loop.create_task(self._connect())
        self._connecting.add(task)
        task.add_done_callback(self._end_connecting)

    def _end_connecting(self, task: asyncio.Task[None]) -> None:
        self._connecting.discard(task)
        self._provide()

    async def _connect(self) -> None:
        try:
            connection = await self._reach()
        except LinkError as error:
            if self._waiting:
                self._waiting.popleft()[0].fail(error)
            return
        connection.since = self._loop.time()
        if self._waiting:
            connection.send(*self._waiting.popleft())
        else:
            self._store(connection)

    async def _reach(self) -> Connection:
        address = self._address
        secure: Any = {"ssl": tls_context(), "server_hostname": address.host} if address.is_secure else {}
        try:
            async with asyncio.timeout(self._seconds):
                _, connection = await self._loop.create_connection(lambda: Connection(self), address.host, address.port, **secure)
        except TimeoutError:
            raise LinkError("unavailable", f"'{self.name}' took no connection within {self._seconds:g} seconds.") from None
        except (OSError, UnicodeError) as error:
            raise LinkError("unavailable", f"'{self.name}' cannot be reached: {_why(error)}.", text=str(error)[:500]) from None
        if not connection.is_alive:
            raise LinkError("unavailable", f"'{self.name}' closed a new connection at once.")
        return connection

    def _sweep_idle(self) -> None:
        """End what was of no use for long."""
        self._sweep = None
        now = self._loop.time()
        kept = [connection for connection in self._idle if connection.is_fit(now)]
        for connection in set(self._idle).difference(kept):
            connection.abort()
        self._idle = kept
        if kept:
            self._sweep = self._loop.call_later(_SWEEP_SECONDS, self._sweep_idle)


def _why(error: Exception) -> str:
    """Return in words why there is no connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "TLS cannot be spoken with it"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its host is not known"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    return "the connection failed"
