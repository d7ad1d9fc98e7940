"""The store in Redis: for several machines, which share it.

A method takes one round trip. No write is sent twice: one whose answer was lost is looked for, and if it cannot be
found, the failure says that it may have happened. Values, counters and leases expire by the clock of Redis.
"""

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from callyard._internal.logfmt import log_value
from callyard.state import redis_scripts as scripts
from callyard.state.redis_url import parse_redis_url
from callyard.state.store import ANSWER_LOST, RETRY_AFTER_MS, Lease, Store, StoreUnavailableError

if TYPE_CHECKING:
    from callyard.state.redis_servers import Servers
    from callyard.state.redis_topics import Topics

__all__ = ["RedisStore"]

Result = TypeVar("Result")
_OWNED: Final = frozenset({"result", "session", "budget", "rate"})
"""Families of callers' data, which are spread over the nodes of a cluster by their owners."""
_OLDEST: Final = 7
_CONFIRM_MS: Final = 2000
"""How long a durable write waits for replicas."""
_ROUNDED_MS: Final = 10
"""How much two clocks in milliseconds may differ over the time of one command."""
_NOT_INSTALLED: Final = "It needs packages that are not installed: run pip install 'callyard[redis]'."
_log = logging.getLogger(__name__)


def _modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Return the modules that load redis-py, which takes 0.1 s, when a store is opened."""
    try:
        from callyard.state import redis_link, redis_servers, redis_topics  # noqa: PLC0415 - a database driver
    except ModuleNotFoundError:
        raise StoreUnavailableError(_NOT_INSTALLED, reason="not_installed") from None
    return redis_link, redis_servers, redis_topics


class _Place:
    """Where the entries of a key are: all names of one hash tag are on one server, so that a script can use them."""

    def __init__(self, prefix: str, key: str) -> None:
        self.key: Final = key.encode()
        word, _, rest = key.partition("/")
        self.family: Final = word.partition("_")[0]
        owner = f"/{rest.partition('/')[0]}" if self.family in _OWNED else ""
        tag = quote(self.family + owner, safe="/") or "-"
        self.tag: Final = f"{prefix}:{{{tag}}}:".encode()
        self.names: Final = self.tag + b"names"
        self.expiries: Final = self.tag + b"expiries"
        self.value: Final = self.tag + b"value:" + self.key
        self.counter: Final = self.tag + b"counter:" + self.key
        self.lease: Final = self.tag + b"lease:" + self.key
        self.bucket: Final = self.tag + b"bucket:" + self.key
        self.last_token: Final = self.tag + b"token"
        self.topic: Final = self.tag + b"topic:" + self.key


class RedisStore(Store):
    """Stores everything in a Redis from version 7.0, or a Valkey: one server, a cluster, or what Sentinels watch.

    `durable` writes wait until so many `replicas` have them. Keys of results, sessions and budgets are found only by
    prefixes that include their owner.
    """

    is_shared = True

    def __init__(self, url: str, *, replicas: int = 0) -> None:
        if replicas < 0:
            raise ValueError("The number of replicas must not be negative.")
        self.url: Final = parse_redis_url(url)
        self.name: Final = self.url.name
        self._replicas = replicas
        self._open: tuple[Servers, Topics] | None = None
        self._lock = asyncio.Lock()
        self._families = set[str]()
        """The families that this process has listed as existing."""
        self._failure: StoreUnavailableError | None = None
        """Why the last use failed, if it did."""
        self._retry_at = 0.0

    async def get(self, key: str) -> bytes | None:
        place = self._place(key)
        return _content(await self._read(place.tag, "GET", place.value))

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        values = dict[str, bytes | None]()

        async def read(tag: bytes, places: list[_Place]) -> None:
            found = await self._read(tag, "MGET", *(place.value for place in places))
            values.update((place.key.decode(), value) for place, value in zip(places, found, strict=True))

        await asyncio.gather(*(read(tag, places) for tag, places in self._by_tag(keys)))
        return [_content(values[key]) for key in keys]

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        await self.put_many({key: value}, ttl=ttl)

    async def put_many(self, values: Mapping[str, bytes], *, ttl: float | None = None) -> None:
        mark = os.urandom(scripts.MARK)
        for tag, places in self._by_tag(values):
            wheres = [place.value for place in places]
            entries = [item for place in places for item in (place.key, mark + values[place.key.decode()])]

            async def is_written(tag: bytes = tag, wheres: Sequence[bytes] = wheres) -> int | None:
                found = await self._read(tag, "MGET", *wheres)
                return 1 if all((value or b"").startswith(mark) for value in found) else None

            await self._register(places[0].family)
            keys = [places[0].names, places[0].expiries, *wheres]
            await self._settled(self._run(scripts.PUT, tag, keys, [_ms(ttl), *entries]), is_written)

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
    ) -> bool:
        place, mark = self._place(key), os.urandom(scripts.MARK)

        async def is_written() -> int | None:
            # With `durable`, the answer would also have said whether the replicas have it.
            found = await self._read(place.tag, "GET", place.value)
            return 1 if not durable and (found or b"").startswith(mark) else None

        await self._register(place.family)
        keys = [place.names, place.expiries, place.value]
        wanted = ["none"] if expected is None else ["some", expected]
        arguments = [_ms(ttl), place.key, mark + value, *wanted]
        durable = durable and self._replicas > 0
        write = self._run(scripts.COMPARE_AND_SET, place.tag, keys, arguments, durable=durable)
        return bool(await self._settled(write, is_written))

    async def delete(self, key: str) -> None:
        place = self._place(key)

        async def is_gone() -> int | None:
            return None if await self._read(place.tag, "EXISTS", place.value) else 1

        keys = [place.names, place.expiries, place.value]
        await self._settled(self._run(scripts.DELETE, place.tag, keys, [place.key]), is_gone)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        if limit <= 0:
            return []
        first = f"({after}" if after >= prefix and after else f"[{prefix}"
        last = b"(" + prefix.encode() + b"\xff" if prefix else b"+"  # no UTF-8 has this byte
        tags = [self._place(prefix)] if "/" in prefix else await self._all_families()

        async def page(place: _Place) -> list[bytes]:
            keys = [place.names, place.expiries]
            return await self._run(scripts.LIST, place.tag, keys, [first, last, limit], reads=True)

        pages = await asyncio.gather(*map(page, tags))
        return sorted(name.decode() for names in pages for name in names)[:limit]

    async def count(self, key: str, *, by: int = 1, ttl: float | None = None) -> int:
        place = self._place(key)
        if not by:
            return int(await self._read(place.tag, "GET", place.counter) or 0)
        return await self._settled(self._run(scripts.COUNT, place.tag, [place.counter], [by, _ms(ttl)]), _nowhere)

    async def take_tokens(self, key: str, wanted: int, *, per_s: float, burst: int) -> tuple[int, float]:
        """Take tokens by the clock of Redis; if the answer is lost, so are the tokens."""
        place = self._place(key)
        take = self._run(scripts.TAKE, place.tag, [place.bucket], [wanted, per_s, burst])
        taken, wait_ms = await self._settled(take, _nowhere)
        return taken, wait_ms / 1000

    async def acquire(self, key: str, *, ttl: float) -> Lease | None:
        place, mark = self._place(key), os.urandom(scripts.MARK)

        async def holder() -> bytes | None:
            """Return the token if the lease is ours, nothing if it is another's, or None if nobody has it."""
            held = await self._read(place.tag, "GET", place.lease)
            token, _, name = (held or b"").partition(b" ")
            return None if held is None else token * (name == mark)

        keys = [place.lease, place.last_token]
        token = await self._settled(self._run(scripts.ACQUIRE, place.tag, keys, [mark, _ms(ttl)]), holder)
        return Lease(key, int(token)) if token else None

    async def renew(self, lease: Lease, *, ttl: float) -> bool:
        place, sent_at = self._place(lease.key), time.monotonic()

        async def is_renewed() -> int | None:
            if not await self._holds(place, lease):
                return 0
            left = await self._read(place.tag, "PTTL", place.lease)
            return 1 if left >= (ttl - (time.monotonic() - sent_at)) * 1000 - _ROUNDED_MS else None

        write = self._run(scripts.RENEW, place.tag, [place.lease], [lease.token, _ms(ttl)])
        return bool(await self._settled(write, is_renewed))

    async def release(self, lease: Lease) -> None:
        place = self._place(lease.key)

        async def is_released() -> int | None:
            return None if await self._holds(place, lease) else 1

        await self._settled(self._run(scripts.RELEASE, place.tag, [place.lease], [lease.token]), is_released)

    async def publish(self, topic: str, message: bytes) -> None:
        """Send a message to the current subscribers of a topic; it may get lost with a connection."""
        place = self._place(topic)
        try:
            await self._execute(place.tag, ("SPUBLISH", place.topic, message))
        except StoreUnavailableError as error:
            if error.reason != ANSWER_LOST:  # then it is lost as any message may be
                raise

    @asynccontextmanager
    async def subscribe(self, topic: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Receive the messages of a topic that are published while the context is open, in order.

        After a gap in the connection there is an empty message.
        """
        place = self._place(topic)
        async with AsyncExitStack() as stack:
            with self._noted():
                _, topics = await self._opened()
                subscription = await stack.enter_async_context(topics.subscribed(place.tag, place.topic))
            yield subscription

    async def close(self) -> None:
        """Close the connections; a later use opens them again."""
        opened, self._open = self._open, None
        if opened is not None:
            servers, topics = opened
            await topics.close()
            await servers.close()

    def _place(self, key: str) -> _Place:
        return _Place(self.url.prefix, key)

    def _by_tag(self, keys: Iterable[str]) -> Iterable[tuple[bytes, list[_Place]]]:
        """Return the places of keys by tag, in the order of the keys."""
        places = defaultdict[bytes, list[_Place]](list)
        for key in keys:
            place = self._place(key)
            places[place.tag].append(place)
        return places.items()

    async def _register(self, family: str) -> None:
        """List a family as existing, before this process writes the first of its values."""
        if family in self._families or family in _OWNED:
            return
        tag = self._families_key()
        await self._execute(tag, ("SADD", tag, family), reads=True)  # to add it twice changes nothing
        self._families.add(family)

    async def _all_families(self) -> list[_Place]:
        tag = self._families_key()
        return [self._place(family.decode()) for family in await self._read(tag, "SMEMBERS", tag)]

    def _families_key(self) -> bytes:
        return f"{self.url.prefix}:{{families}}".encode()

    async def _holds(self, place: _Place, lease: Lease) -> bool:
        held = await self._read(place.tag, "GET", place.lease)
        return (held or b"").startswith(b"%d " % lease.token)

    async def _read(self, tag: bytes, *command: Any) -> Any:
        return await self._execute(tag, command, reads=True)

    async def _run(
        self,
        script: scripts.Script,
        tag: bytes,
        keys: Sequence[bytes],
        arguments: Sequence[Any],
        *,
        durable: bool = False,
        reads: bool = False,
    ) -> Any:
        """Run a script, by its source if Redis does not know it yet: then it did not run."""
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._execute(tag, ("EVALSHA", script.sha, *rest), durable=durable, reads=reads)
        except _UnknownScriptError:
            return await self._execute(tag, ("EVAL", script.source, *rest), durable=durable, reads=reads)

    async def _settled(self, write: Awaitable[Result], find: Callable[[], Awaitable[Result | None]]) -> Result:
        """Return what a write returned; if its answer was lost, look for what it wrote instead of sending it again.

        Raises:
            StoreUnavailableError: It failed, or nobody knows whether it happened.
        """
        try:
            return await write
        except StoreUnavailableError as error:
            if error.reason != ANSWER_LOST:
                raise
            with suppress(StoreUnavailableError):
                found = await find()
                if found is not None:
                    return found
            self._note(error)
            raise

    async def _execute(self, tag: bytes, command: Any, *, durable: bool = False, reads: bool = False) -> Any:
        """Send a command and return its reply; one that only `reads` is sent once more if its answer was lost."""
        commands = (command, ("WAIT", self._replicas, _CONFIRM_MS)) if durable else (command,)
        for is_last in (not reads, True):
            try:
                with self._noted():
                    servers, _ = await self._opened()
                    reply, *confirmed = await servers.execute(tag, *commands, waits_for_replicas=durable)
                    return self._checked(reply, confirmed)
            except StoreUnavailableError as error:
                if error.reason == ANSWER_LOST and not is_last:
                    continue
                if error.reason == ANSWER_LOST and reads:  # that of a write may still be found out
                    self._note(error)
                raise
        raise AssertionError  # the last time returns or raises

    def _checked(self, reply: Any, confirmed: Sequence[Any]) -> Any:
        """Return a reply.

        Raises:
            StoreUnavailableError: It is an error, or too few replicas have what was written.
        """
        if getattr(reply, "status_code", None) == "NOSCRIPT":
            raise _UnknownScriptError
        if isinstance(reply, Exception):
            raise _modules()[0].unavailable(reply)
        if confirmed and reply and not (isinstance(confirmed[0], int) and confirmed[0] >= self._replicas):
            message = f"A write waits for {self._replicas} replicas, and Redis says: {confirmed[0]}."
            raise StoreUnavailableError(message, reason="unconfirmed", may_have_run=True)
        return reply

    async def _opened(self) -> "tuple[Servers, Topics]":
        """Return the servers, which are checked when they are opened; after a failure, try at most once a second."""
        if self._open is not None:
            return self._open
        async with self._lock:
            if self._open is not None:
                return self._open
            last = self._failure
            if last is not None and time.monotonic() < self._retry_at:
                raise last
            _, redis_servers, redis_topics = _modules()
            servers: Servers = redis_servers.open_servers(self.url)
            topics: Topics = redis_topics.Topics(servers)
            try:
                await self._check(servers)
                await self._check_rights(servers, topics)
            except BaseException as error:
                await topics.close()
                await servers.close()
                if isinstance(error, StoreUnavailableError) and error.reason == ANSWER_LOST:  # nobody's write
                    raise StoreUnavailableError("Redis gives no answer.", reason="unreachable") from None
                raise
            self._open = servers, topics
            return self._open

    async def _check(self, servers: "Servers") -> None:
        """Check the version and the settings of each server."""
        for server in await servers.masters():
            facts = dict[str, str]()
            for section in ("server", "memory", "replication"):
                (reply,) = await server.execute(("INFO", section))
                if isinstance(reply, bytes):
                    lines = reply.decode(errors="replace").splitlines()
                    facts |= {name: value for name, _, value in (line.partition(":") for line in lines)}
                elif getattr(reply, "status_code", None) != "NOPERM":
                    raise _modules()[0].unavailable(reply)
            self._check_facts(facts)

    def _check_facts(self, facts: Mapping[str, str]) -> None:
        version = facts.get("redis_version", str(_OLDEST))
        if int(version.partition(".")[0]) < _OLDEST:
            message = f"It is Redis {version}, and {_OLDEST}.0 is the oldest that is supported."
            raise StoreUnavailableError(message, reason="old_version")
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            _log.warning("store_evicts store=%s policy=%s", log_value(self.name), log_value(policy))
        connected = int(facts.get("connected_slaves", self._replicas))
        if connected < self._replicas:
            facts_of = (log_value(self.name), connected, self._replicas)
            _log.warning("store_lacks_replicas store=%s connected=%d wanted=%d", *facts_of)

    async def _check_rights(self, servers: "Servers", topics: "Topics") -> None:
        """Run each command that is used, on keys that nobody else has, so that a missing right shows at the start."""
        place, mark, second = self._place(f"check/{os.urandom(8).hex()}"), bytes(scripts.MARK), "1000"
        index, token = (place.names, place.expiries), "0"
        runs: tuple[tuple[scripts.Script, Sequence[bytes], Sequence[Any]], ...] = (
            (scripts.PUT, (*index, place.value), (second, place.key, mark)),
            (scripts.COMPARE_AND_SET, (*index, place.value), (second, place.key, mark, "some", b"")),
            (scripts.LIST, index, ("-", "+", 1)),
            (scripts.DELETE, (*index, place.value), (place.key,)),
            (scripts.COUNT, (place.counter,), (1, second)),
            (scripts.ACQUIRE, (place.lease, place.last_token), (mark, second)),
            (scripts.RENEW, (place.lease,), (token, second)),
            (scripts.RELEASE, (place.lease,), (token,)),
        )
        commands: list[Any] = [("EVAL", run.source, len(keys), *keys, *rest) for run, keys, rest in runs]
        commands += [("EXISTS", place.value), ("MGET", place.value), ("PTTL", place.lease), ("GET", place.counter)]
        commands += [("SPUBLISH", place.topic, b""), ("WAIT", 0, 1)]
        families = self._families_key()
        replies = await servers.execute(place.tag, *commands)
        replies += await servers.execute(families, ("SADD", families, place.family), ("SMEMBERS", families))
        for reply in replies:
            if isinstance(reply, Exception):
                raise _modules()[0].unavailable(reply)
        async with topics.subscribed(place.tag, place.topic):
            pass

    @contextmanager
    def _noted(self) -> Generator[None]:
        """Name the store in failures, and log each change."""
        try:
            yield
        except StoreUnavailableError as error:
            if not isinstance(error, _NamedError):
                message = f"The store '{self.name}' cannot be used. {error}"
                error = _NamedError(message, reason=error.reason, may_have_run=error.may_have_run)
            if error.reason != ANSWER_LOST and error is not self._failure:  # a lost answer may still be found out
                self._note(error)
            raise error from None
        if self._failure is not None:
            self._failure = None
            _log.warning("store_available store=%s", log_value(self.name))

    def _note(self, failure: StoreUnavailableError) -> None:
        if self._failure is None or self._failure.reason != failure.reason:
            facts = (log_value(self.name), failure.reason, log_value(failure))
            _log.error("store_unavailable store=%s reason=%s text=%s", *facts)
        self._failure = failure
        self._retry_at = time.monotonic() + RETRY_AFTER_MS / 1000


class _NamedError(StoreUnavailableError):
    """A failure whose message names the store."""


class _UnknownScriptError(Exception):
    """Redis does not know a script, so it did not run."""


async def _nowhere() -> None:
    """Find nothing: a counter does not show who added to it."""


def _content(value: bytes | None) -> bytes | None:
    return None if value is None else value[scripts.MARK :]


def _ms(ttl: float | None) -> str:
    return "" if ttl is None else str(max(int(ttl * 1000), 1))
