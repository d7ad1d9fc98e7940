"""Replicas: the processes that serve one yard on one store, their records, and the mail between them.

A replica is alive while its record is in the store: that is its lease. Mail is an entry in the store and a wake-up; an
entry for a dead replica expires. This module does not know what the contents mean.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from typing import Final, Self

import msgspec

from callyard._internal.logfmt import log_exception, log_value
from callyard._internal.signed_tokens import Signer, environment_secret
from callyard._internal.tasks import background_task
from callyard.state.store import RETRY_AFTER_MS, Store, StoreUnavailableError

__all__ = ["Asked", "Note", "Replica", "ReplicaError", "ReplicaRecord", "share_secret"]

_SIGNING_KEY: Final = "signing_key"
_NO_KEY: Final = "nothing"
"""A key that is never set; to delete it only shows whether the store can be written."""
_LEASE_S: Final = 15.0
_BEAT_S: Final = 3.0
_KEPT_S: Final = 120.0
"""How long mail waits for its replica, such as one that cannot reach the store for a while."""
_TAKEN_S: Final = 1.0
_RECORDS: Final = "replica/"
_MAIL: Final = "mail/"
_TELL: Final = "tell"
_ASK: Final = "ask"
_NOTE: Final = "note"
_ANSWER: Final = "answer"
_REFUSE: Final = "refuse"
_CANCEL: Final = "cancel"
_NOTHING: Final = msgspec.Raw(b"null")
_log = logging.getLogger(__name__)
Note = Callable[[bytes], None]
"""Sends JSON ahead of an answer."""


class ReplicaError(Exception):
    """A replica gives no answer; `may_have_run` says whether it had taken what it was asked."""

    def __init__(self, replica: str, *, is_gone: bool, may_have_run: bool) -> None:
        super().__init__(f"The replica '{replica}' is gone." if is_gone else f"The replica '{replica}' failed.")
        self.is_gone = is_gone
        self.may_have_run = may_have_run


class ReplicaRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replica says about itself."""

    id: str
    place: str
    """Its host and the id of its process."""
    version: str
    configuration: str
    """The hash of its settings."""
    started: float
    """Seconds since the epoch."""
    load: int = 0
    """How many calls run."""

    def differs(self, other: "ReplicaRecord") -> bool:
        """Return whether another replica has another version or configuration."""
        return (self.version, self.configuration) != (other.version, other.configuration)


class _Mail(msgspec.Struct, frozen=True, omit_defaults=True):
    sender: str
    kind: str
    name: str = ""
    """What it is about, for those who handle it."""
    exchange: str = ""
    """The request that it belongs to."""
    content: msgspec.Raw = _NOTHING


class Asked(msgspec.Struct, frozen=True):
    """A request of another replica."""

    sender: str
    exchange: str
    content: msgspec.Raw
    note: Note


class _Entry(msgspec.Struct, eq=False):
    """A piece of mail on its way; its number is its place in the order of posting."""

    to: str
    data: bytes
    key: str = ""


class _Pending(msgspec.Struct, eq=False):
    """A request to another replica that has no answer yet."""

    sent: _Entry
    answer: "asyncio.Future[bytes]"
    on_note: Note | None

    def fail(self, *, is_gone: bool, may_have_run: bool) -> None:
        """End it without an answer."""
        if not self.answer.done():
            self.answer.set_exception(ReplicaError(self.sent.to, is_gone=is_gone, may_have_run=may_have_run))


class _Serving(msgspec.Struct, eq=False):
    """A request of another replica that is being answered."""

    sender: str
    task: "asyncio.Task[None]"


_decode: Final = msgspec.json.Decoder(_Mail).decode
_encode: Final = msgspec.json.encode


class Replica:
    """This process among the replicas of its store."""

    def __init__(self, store: Store, version: str, configuration: str, load: Callable[[], int]) -> None:
        self.id: Final = os.urandom(5).hex()
        self.peers: dict[str, ReplicaRecord] = {}
        """The other replicas that were alive a moment ago."""
        self.on_news: dict[str, Callable[[msgspec.Raw], None]] = {}
        """What handles news, by name; it must be quick."""
        self.on_request: dict[str, Callable[[Asked], Awaitable[bytes]]] = {}
        """What answers requests, by name."""
        self.on_wiped: list[Callable[[], None]] = []
        """Called when the store has lost everything."""
        self._store = store
        self._load = load
        place = f"{os.uname().nodename}:{os.getpid()}"
        self._record = ReplicaRecord(self.id, place, version, configuration, started=time.time())
        self._numbers = count(1)
        self._exchanges = count(1)
        self._seen: dict[str, int] = {}
        """The number of the last mail of each sender: what is posted again after a lost answer comes once."""
        self._outbox: list[_Entry] = []
        self._has_mail = asyncio.Event()
        self._posting = asyncio.Lock()
        self._pending: dict[str, _Pending] = {}
        self._serving: dict[str, _Serving] = {}
        self._named: set[str] = set()
        """The peers whose difference was logged."""
        self._written_at: float | None = None

    @property
    def record(self) -> ReplicaRecord:
        """Return what this replica says about itself."""
        return msgspec.structs.replace(self._record, load=self._load())

    @property
    def differing(self) -> list[ReplicaRecord]:
        """Return the peers of another version or configuration."""
        return [peer for peer in self.peers.values() if peer.differs(self._record)]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Self]:
        """Be a replica while the context is open.

        Raises:
            StoreUnavailableError: The store cannot be used.
        """
        await self._beat()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._leave)
            wakes = await stack.enter_async_context(self._store.subscribe(_MAIL + self.id))
            for work in (self._collect_forever(wakes), self._beat_forever(), self._post_forever()):
                await stack.enter_async_context(background_task(work))
            yield self

    def tell(self, to: str, name: str, content: object) -> None:
        """Send news to a replica; it is sent soon, and again while the store is away."""
        self._send(to, _Mail(self.id, _TELL, name, content=msgspec.Raw(_encode(content))))

    async def tell_all(self, name: str, content: object) -> None:
        """Send news to all other replicas.

        Raises:
            StoreUnavailableError: The store cannot be used, so nobody knows them.
        """
        await self._look()
        for peer in self.peers:
            self.tell(peer, name, content)

    async def flush(self) -> None:
        """Wait until what was sent is stored.

        Raises:
            StoreUnavailableError: It cannot be; it is sent later.
        """
        await self._post()

    async def is_alive(self, replica: str) -> bool:
        """Return whether a replica has its lease."""
        return replica == self.id or await self._store.get(_RECORDS + replica) is not None

    async def ask(self, to: str, name: str, content: object, *, on_note: Note | None = None) -> bytes:
        """Send a request to a replica and return its answer; if this is cancelled, the request is cancelled there.

        Raises:
            ReplicaError: It is dead, or failed.
            StoreUnavailableError: The request could not be sent.
        """
        if not await self.is_alive(to):
            raise ReplicaError(to, is_gone=True, may_have_run=False)
        exchange = f"{self.id}-{next(self._exchanges)}"
        sent = _Entry(to, _encode(_Mail(self.id, _ASK, name, exchange, msgspec.Raw(_encode(content)))))
        pending = _Pending(sent, asyncio.get_running_loop().create_future(), on_note)
        self._pending[exchange] = pending
        try:
            self._outbox.append(sent)
            try:
                await self._post()
            except StoreUnavailableError:
                self._outbox.remove(sent)
                raise
            return await pending.answer
        except asyncio.CancelledError:
            self._send(to, _Mail(self.id, _CANCEL, exchange=exchange))
            raise
        finally:
            del self._pending[exchange]

    def _send(self, to: str, mail: _Mail) -> None:
        self._outbox.append(_Entry(to, _encode(mail)))
        self._has_mail.set()

    async def _post(self) -> None:
        """Store the mail of the outbox and wake its replicas; what cannot be stored stays there."""
        async with self._posting:
            batch = list(self._outbox)
            if not batch:
                return
            for entry in batch:
                entry.key = entry.key or f"{_MAIL}{entry.to}/{self.id}/{next(self._numbers):012d}"
            await self._store.put_many({entry.key: entry.data for entry in batch}, ttl=_KEPT_S)
            self._outbox = [entry for entry in self._outbox if entry not in batch]
            await asyncio.gather(*(self._store.publish(_MAIL + to, b"") for to in {entry.to for entry in batch}))

    async def _post_forever(self) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            try:
                await self._post()
            except StoreUnavailableError:  # logged by the store
                await asyncio.sleep(RETRY_AFTER_MS / 1000)
                self._has_mail.set()

    async def _collect_forever(self, wakes: AsyncIterator[bytes]) -> None:
        while True:
            with suppress(TimeoutError):  # a wake-up may get lost
                async with asyncio.timeout(_BEAT_S):
                    await anext(wakes)
            try:
                await self._collect()
            except StoreUnavailableError:  # logged by the store
                continue
            except Exception:  # noqa: BLE001 - one damaged entry must not keep all others out
                log_exception(_log, "mail_failed")

    async def _collect(self) -> None:
        """Take the mail of this replica and handle it, each sender's in order."""
        while keys := await self._store.keys(f"{_MAIL}{self.id}/"):
            found = zip(keys, await self._store.get_many(keys), strict=True)
            mails = [(key, data, _decode(data)) for key, data in found if data]
            taken = await asyncio.gather(*(self._take(*mail) for mail in mails))
            for (key, _, mail), is_taken in zip(mails, taken, strict=True):
                number = int(key.rpartition("/")[2])
                if number > self._seen.get(mail.sender, 0):
                    self._seen[mail.sender] = number
                    if is_taken:
                        self._handle(mail)
            if not mails:  # only what was taken back, which expires
                return

    async def _take(self, key: str, data: bytes, mail: _Mail) -> bool:
        """Take mail, so that its sender cannot take it back any more; return False if it did."""
        try:
            if mail.kind == _ASK:
                return await self._store.compare_and_set(key, data, b"", ttl=_TAKEN_S)
            await self._store.delete(key)
        except StoreUnavailableError:
            if mail.kind == _ASK:  # nobody knows who has it
                self._send(mail.sender, _Mail(self.id, _REFUSE, exchange=mail.exchange))
                return False
        return True

    def _handle(self, mail: _Mail) -> None:
        pending, serving = self._pending.get(mail.exchange), self._serving.get(mail.exchange)
        try:
            if mail.kind == _TELL:
                if mail.name in self.on_news:
                    self.on_news[mail.name](mail.content)
            elif mail.kind == _ASK:
                task = asyncio.create_task(self._answer(mail))
                self._serving[mail.exchange] = _Serving(mail.sender, task)
            elif mail.kind == _CANCEL:
                if serving is not None:
                    serving.task.cancel()
            elif pending is not None and not pending.answer.done():
                self._continue(pending, mail)
        except Exception:  # noqa: BLE001 - what one mail breaks must not keep others out
            log_exception(_log, "mail_failed")

    def _continue(self, pending: _Pending, mail: _Mail) -> None:
        if mail.kind == _NOTE:
            if pending.on_note is not None:
                pending.on_note(bytes(mail.content))
        elif mail.kind == _ANSWER:
            pending.answer.set_result(bytes(mail.content))
        else:
            pending.fail(is_gone=False, may_have_run=True)

    async def _answer(self, mail: _Mail) -> None:
        def note(content: bytes) -> None:
            self._send(mail.sender, _Mail(self.id, _NOTE, exchange=mail.exchange, content=msgspec.Raw(content)))

        kind, content = _REFUSE, b"null"
        try:
            handler = self.on_request[mail.name]
            content = await handler(Asked(mail.sender, mail.exchange, mail.content, note))
            kind = _ANSWER
        except Exception:  # noqa: BLE001 - whoever asked gets an answer
            log_exception(_log, "mail_failed")
        finally:
            del self._serving[mail.exchange]
            self._send(mail.sender, _Mail(self.id, kind, exchange=mail.exchange, content=msgspec.Raw(content)))

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            with suppress(StoreUnavailableError):  # logged by the store
                await self._beat()
                await self._give_up()

    async def _beat(self) -> None:
        """Renew the lease, and look who else is there."""
        key, now = _RECORDS + self.id, time.monotonic()
        is_leased = self._written_at is not None and now < self._written_at + _LEASE_S - _BEAT_S
        if is_leased and await self._store.get(key) is None:
            _log.error("store_wiped replica=%s", self.id)
            for wiped in self.on_wiped:
                wiped()
            for pending in self._pending.values():
                pending.fail(is_gone=False, may_have_run=True)
        await self._store.put(key, _encode(self.record), ttl=_LEASE_S)
        self._written_at = now
        await self._look()

    async def _look(self) -> None:
        keys = [key for key in await self._store.keys(_RECORDS) if key != _RECORDS + self.id]
        entries = await self._store.get_many(keys) if keys else []
        records = [msgspec.json.decode(entry, type=ReplicaRecord) for entry in entries if entry]
        self.peers = {record.id: record for record in records}
        for peer in self.differing:
            if peer.id not in self._named:
                self._named.add(peer.id)
                facts = (peer.id, log_value(peer.place), log_value(peer.version), log_value(peer.configuration))
                _log.warning("replica_differs replica=%s place=%s version=%s configuration=%s", *facts)

    async def _give_up(self) -> None:
        """End the requests to and of replicas that are dead."""
        for pending in list(self._pending.values()):
            sent = pending.sent
            if sent.key and sent.to not in self.peers and not pending.answer.done():
                took_back = await self._store.compare_and_set(sent.key, sent.data, b"", ttl=_TAKEN_S)
                pending.fail(is_gone=True, may_have_run=not took_back)
        for serving in self._serving.values():
            if serving.sender not in self.peers:
                serving.task.cancel()
        self._seen = {sender: number for sender, number in self._seen.items() if sender in self.peers}

    async def _leave(self) -> None:
        """Send what is left, and end the lease."""
        for serving in self._serving.values():
            serving.task.cancel()
        await asyncio.gather(*(serving.task for serving in self._serving.values()), return_exceptions=True)
        with suppress(StoreUnavailableError):
            await self._post()
            await self._store.delete(_RECORDS + self.id)


async def share_secret(store: Store, signer: Signer, *, name: str, is_optional: bool) -> None:
    """Take the signing key from the store, or put it there, which also shows whether the store can be used.

    An optional store is not written to, so that a yard that stores nothing makes no file: whoever shares that store
    also shares the state directory, which has the key, too.

    Raises:
        StoreUnavailableError: It cannot, and it was asked for.
    """
    try:
        secret = await store.get(_SIGNING_KEY)
        if secret is None and not is_optional:
            if environment_secret():
                await store.delete(_NO_KEY)
            else:
                await store.compare_and_set(_SIGNING_KEY, None, signer.load_secret())
                secret = await store.get(_SIGNING_KEY)
    except StoreUnavailableError as error:
        if not is_optional:
            raise
        _log.warning("yard_without_store yard=%s reason=%s", log_value(name), error.reason)
    else:
        if secret is not None and not environment_secret():
            signer.use_secret(secret)
