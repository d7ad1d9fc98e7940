"""Topics of a Redis store: sharded pub/sub, on one connection for each server that has topics with subscribers.

Messages are sent at most once. After a gap every subscriber gets an empty one, so that it reads again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from redis.exceptions import RedisError

from callyard.state.redis_link import ANSWER_S, Connection, Server, next_reply, unavailable
from callyard.state.redis_servers import Servers
from callyard.state.store import RETRY_AFTER_MS, StoreUnavailableError, Subscription

__all__ = ["Topics"]

_FAILURES: Final = (RedisError, OSError, StoreUnavailableError)


class Topics:
    """The subscribers of this process."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._listeners: dict[Server, _Listener] = {}
        self._tasks = set[asyncio.Task[None]]()
        self._subscribers: dict[bytes, list[Subscription]] = {}

    @asynccontextmanager
    async def subscribed(self, tag: bytes, channel: bytes) -> AsyncGenerator[Subscription]:
        """Deliver the messages of a channel while the context is open.

        Raises:
            StoreUnavailableError: The server of the channel cannot be reached.
        """
        subscription = Subscription()
        self._subscribers.setdefault(channel, []).append(subscription)
        try:
            await self._listen(tag, channel)
            yield subscription
        finally:
            self._subscribers[channel].remove(subscription)
            if not self._subscribers[channel]:
                del self._subscribers[channel]
                for listener in self._listeners.values():
                    listener.leave(channel)

    def deliver(self, channel: bytes, message: bytes) -> None:
        """Deliver a message to the subscribers of a channel."""
        for subscription in self._subscribers.get(channel, ()):
            subscription.deliver(message)

    def has(self, channel: bytes) -> bool:
        """Return whether a channel has subscribers."""
        return channel in self._subscribers

    async def move(self, channels: dict[bytes, bytes]) -> None:
        """Subscribe anew to channels that were lost, where they are now, and wake their subscribers."""
        with suppress(*_FAILURES):
            await self._servers.look_again()
        while channels:
            for channel, tag in list(channels.items()):
                with suppress(*_FAILURES):
                    if self.has(channel):
                        await self._listen(tag, channel)
                        self.deliver(channel, b"")
                    del channels[channel]
            if channels:
                await asyncio.sleep(RETRY_AFTER_MS / 1000)

    async def close(self) -> None:
        """Close the connections."""
        self._listeners = {}
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, tag: bytes, channel: bytes) -> None:
        server = await self._servers.find(tag)
        listener = self._listeners.get(server)
        if listener is None or not listener.is_open:
            listener = self._listeners[server] = _Listener(self, server)
            self._tasks.add(listener.task)
            listener.task.add_done_callback(self._tasks.discard)
        await listener.join(channel, tag)


class _Listener:
    """One connection that only receives messages; it ends with its connection, and its channels move to another."""

    def __init__(self, topics: Topics, server: Server) -> None:
        self.is_open = True
        self._topics = topics
        self._server = server
        self._channels: dict[bytes, tuple[bytes, asyncio.Future[None]]] = {}
        """For each channel its tag, and whether the server has confirmed it."""
        self._wake = asyncio.Event()
        self._commands: list[tuple[str, bytes]] = []
        self.task: Final = asyncio.create_task(self._run())

    async def join(self, channel: bytes, tag: bytes) -> None:
        """Subscribe to a channel, and wait for the confirmation."""
        if channel not in self._channels:
            self._channels[channel] = tag, asyncio.get_running_loop().create_future()
            self._queue("SSUBSCRIBE", channel)
        confirmed = self._channels[channel][1]
        try:
            async with asyncio.timeout(ANSWER_S):
                await asyncio.shield(confirmed)
        except TimeoutError:
            raise unavailable(TimeoutError("no answer")) from None

    def leave(self, channel: bytes) -> None:
        """Unsubscribe from a channel that nobody listens to any more."""
        if self._channels.pop(channel, None) is not None:
            self._queue("SUNSUBSCRIBE", channel)

    def _queue(self, command: str, channel: bytes) -> None:
        self._commands.append((command, channel))
        self._wake.set()

    async def _run(self) -> None:
        failure: Exception = ConnectionError("The connection ended")
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await self._server.connect()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send(connection))
                    group.create_task(self._receive(connection))
            finally:
                await connection.disconnect(nowait=True)
        except* _FAILURES as group:
            failure = group.exceptions[0]
        finally:
            self.is_open = False
        await self._hand_over(failure)

    async def _hand_over(self, failure: Exception) -> None:
        """Fail those who wait for a confirmation, and move the channels that had one."""
        while isinstance(failure, ExceptionGroup):
            failure = cast("ExceptionGroup[Exception]", failure).exceptions[0]
        lost: dict[bytes, bytes] = {}
        for channel, (tag, confirmed) in self._channels.items():
            if confirmed.done():
                lost[channel] = tag
            else:
                confirmed.set_exception(unavailable(failure))
                confirmed.exception()  # seen, also if nobody waits any more
        await self._topics.move(lost)

    async def _send(self, connection: Connection) -> None:
        while True:
            commands, self._commands = self._commands, []
            self._wake.clear()
            for command in commands:
                await connection.send_command(*command, check_health=False)
            await self._wake.wait()

    async def _receive(self, connection: Connection) -> None:
        """Deliver messages, until a channel has left the server."""
        while True:
            kind, channel, content = await next_reply(connection)
            if kind == b"smessage":
                self._topics.deliver(channel, content)
            elif kind == b"ssubscribe":
                self._confirm(channel)
            elif channel in self._channels and self._channels[channel][1].done():
                raise ConnectionError("A channel has left the server")

    def _confirm(self, channel: Any) -> None:
        entry = self._channels.get(channel)
        if entry is not None and not entry[1].done():
            entry[1].set_result(None)
