"""Where a key is: on one Redis server, on the master that Sentinels name, or on a node of a cluster.

It sends again only what a server refused before it ran, because the key is elsewhere.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, cast

from redis.asyncio.connection import Connection as TcpConnection
from redis.asyncio.connection import SSLConnection
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoPermissionError, ReadOnlyError, RedisError

from callyard.state.redis_link import ANSWER_S, Command, Connect, Connection, Server, next_reply, unavailable
from callyard.state.redis_url import RedisUrl
from callyard.state.store import StoreUnavailableError

__all__ = ["Servers", "open_servers"]

Address = tuple[str, int]
_REDIRECTIONS: Final = 5
_SLOTS: Final = 16384
_SENTINEL_S: Final = 1.0
"""How long one Sentinel may take, so that there is time for the next one."""


class Servers(Protocol):
    """The servers of a store."""

    async def execute(self, tag: bytes, *commands: Command, waits_for_replicas: bool = False) -> list[Any]:
        """Send commands to the server that has the keys of a hash tag, and return their replies.

        Raises:
            StoreUnavailableError: The server cannot be reached, or the answers were lost.
        """
        ...

    async def find(self, tag: bytes) -> Server:
        """Return the server that has the keys of a hash tag."""
        ...

    async def masters(self) -> list[Server]:
        """Return every server that has keys."""
        ...

    async def look_again(self) -> None:
        """Forget where the keys were."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def open_servers(url: RedisUrl) -> Servers:
    """Return the servers of a URL; they are connected to when first used."""
    if url.kind == "cluster":
        return _Cluster(url.hosts, partial(_connect, url))
    if url.kind == "sentinel":
        return _One(partial(_connect_to_master, url))
    return _One(partial(_connect, url, url.hosts[0]))


def _connection(url: RedisUrl, address: Address, *, seconds: float = ANSWER_S, **options: Any) -> Connection:
    kind = SSLConnection if url.tls else TcpConnection
    tls = cast("dict[str, Any]", url.ssl) if url.tls else {}
    host, port = address
    # RESP2, in which messages of topics are ordinary replies; without CLIENT SETINFO, which needs a right of its own.
    return kind(
        host=host,
        port=port,
        protocol=2,
        driver_info=None,
        socket_timeout=seconds,
        socket_connect_timeout=seconds,
        **options,
        **tls,
    )


async def _connect(url: RedisUrl, address: Address) -> Connection:
    """Return an open connection, which is ours alone and never repeats a command."""
    connection = _connection(url, address, username=url.username, password=url.password, db=url.db)
    await connection.connect()
    # From here on we keep the time: with a limit, redis-py sends by 'asyncio.wait_for', which in Python 3.11 loses a
    # cancellation that comes as it ends.
    connection.socket_timeout = None
    return connection


async def _connect_to_master(url: RedisUrl) -> Connection:
    """Return an open connection to the master that the first Sentinel in reach names."""
    failure: Exception = ConnectionError("no Sentinel is named")
    for address in url.hosts:
        try:
            master = await _ask_sentinel(url, address)
        except (RedisError, OSError) as error:
            failure = error
            continue
        if master is None:
            failure = ConnectionError(f"Sentinels know no master '{url.service}'")
            continue
        connection = await _connect(url, master)
        with suppress(NoPermissionError):  # then a write says that it is a replica
            await connection.send_command("ROLE")
            if (await next_reply(connection))[0] != b"master":
                await connection.disconnect()
                raise unavailable(ReadOnlyError("Sentinels name a server that is no master yet"))
        return connection
    raise failure


async def _ask_sentinel(url: RedisUrl, address: Address) -> Address | None:
    credentials = {"username": url.sentinel_username, "password": url.sentinel_password}
    sentinel = _connection(url, address, seconds=_SENTINEL_S, **credentials)
    try:
        await sentinel.connect()
        await sentinel.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.service)
        found = cast("Any", await sentinel.read_response())
    finally:
        await sentinel.disconnect()
    return (found[0].decode(), int(found[1])) if found else None


class _One(Servers):
    """One server, which may have another address with each connection."""

    def __init__(self, connect: Connect) -> None:
        self._server = Server(connect)

    async def execute(
        self,
        tag: bytes,  # noqa: ARG002 - it has all keys
        *commands: Command,
        waits_for_replicas: bool = False,
    ) -> list[Any]:
        replies = await self._server.execute(*commands, waits_for_replicas=waits_for_replicas)
        if not isinstance(replies[0], ReadOnlyError):
            return replies
        await self._server.drop()  # it has become a replica
        return await self._server.execute(*commands, waits_for_replicas=waits_for_replicas)

    async def find(self, tag: bytes) -> Server:  # noqa: ARG002 - it has all keys
        return self._server

    async def masters(self) -> list[Server]:
        return [self._server]

    async def look_again(self) -> None:
        """Do nothing: each new connection looks for the server."""

    async def close(self) -> None:
        await self._server.drop()


class _Cluster(Servers):
    """The masters of a cluster, by the slots of keys."""

    def __init__(self, seeds: tuple[Address, ...], connect: Callable[[Address], Any]) -> None:
        self._seeds = seeds
        self._connect = connect
        self._servers: dict[Address, Server] = {}
        self._slots: list[Address | None] = []
        self._lock = asyncio.Lock()

    async def execute(self, tag: bytes, *commands: Command, waits_for_replicas: bool = False) -> list[Any]:
        server, asks = await self.find(tag), False
        replies: list[Any] = []
        for _ in range(_REDIRECTIONS):
            sent = (("ASKING",), *commands) if asks else commands
            replies = (await self._try(server, sent, waits_for_replicas=waits_for_replicas))[asks:]
            refusal = replies[0]
            if isinstance(refusal, MovedError):  # other nodes may not know it yet
                await self.find(tag)
                self._slots[key_slot(tag)] = cast("Address", refusal.node_addr)
                server, asks = await self.find(tag), False
            elif isinstance(refusal, AskError):
                server, asks = self._at(cast("Address", refusal.node_addr)), True
            elif isinstance(refusal, ReadOnlyError):  # it has become a replica
                await self.look_again()
                server, asks = await self.find(tag), False
            else:
                break
        return replies

    async def _try(self, server: Server, commands: tuple[Command, ...], *, waits_for_replicas: bool) -> list[Any]:
        try:
            return await server.execute(*commands, waits_for_replicas=waits_for_replicas)
        except StoreUnavailableError:
            await self.look_again()  # another node may have taken over its slots
            raise

    async def find(self, tag: bytes) -> Server:
        if not self._slots:
            async with self._lock:
                if not self._slots:
                    self._slots = await self._read_slots()
        address = self._slots[key_slot(tag)]
        if address is None:
            self._slots = []
            raise StoreUnavailableError("No node of the cluster has the slot of a key.", reason="not_ready")
        return self._at(address)

    async def masters(self) -> list[Server]:
        await self.find(b"")
        return [self._at(address) for address in dict.fromkeys(self._slots) if address is not None]

    async def look_again(self) -> None:
        self._slots = []

    async def close(self) -> None:
        servers, self._servers, self._slots = list(self._servers.values()), {}, []
        for server in servers:
            await server.drop()

    def _at(self, address: Address) -> Server:
        if address not in self._servers:
            self._servers[address] = Server(partial(self._connect, address))
        return self._servers[address]

    async def _read_slots(self) -> list[Address | None]:
        """Return the address of each slot, as the first node in reach knows it."""
        failure: Exception = ConnectionError("no node is known")
        for address in dict.fromkeys([*self._servers, *self._seeds]):
            try:
                (reply,) = await self._at(address).execute(("CLUSTER", "SLOTS"))
            except StoreUnavailableError as error:
                failure = error
                continue
            if isinstance(reply, Exception):
                raise unavailable(reply)
            slots: list[Address | None] = [None] * _SLOTS
            for first, last, master, *_ in reply:
                place = (master[0].decode() or address[0], int(master[1]))
                slots[first : last + 1] = [place] * (last + 1 - first)
            return slots
        raise unavailable(failure)
