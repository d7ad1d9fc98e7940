"""HTTP sessions that all replicas serve: in the store, with a copy in each replica that has served one.

A replica that ends or changes a session tells the others. A message for a call of another replica is sent there.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Caller
from callyard.server import ServerContext
from callyard.state.replicas import Asked, Replica, ReplicaError
from callyard.state.store import Store, StoreUnavailableError
from callyard.transports.http.request import RefusedError
from callyard.transports.http.response import GAP
from callyard.transports.http.sessions import HttpSession, HttpSessions, Stream
from callyard.wire.messages import Message, decode
from callyard.wire.params import Cancelled, decode_params
from callyard.wire.sse import KEEP_ALIVE, encode_event

__all__ = ["SharedSessions"]

_SESSIONS: Final = "mcp_session/"
_CHANGED: Final = "session changed"
_ENDED: Final = "session ended"
_MESSAGE: Final = "client message"
_STREAM: Final = "stream"
_STREAMS: Final = "mcp_stream/"
_STREAM_S: Final = 300.0
_ASK: Final = "ask-"
_log = logging.getLogger(__name__)


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session in the store."""

    identity: str
    profile: str | None
    scope: str
    """The scope of a caller without an identity."""
    version: str
    capabilities: dict[str, Any]
    client: str
    level: int
    uris: tuple[str, ...] = ()


class _Ended(msgspec.Struct, frozen=True):
    """The end of a session, and the owner whose tool sessions end with it."""

    session_id: str
    owner: str = ""


class _ClientMessage(msgspec.Struct, frozen=True):
    """A notification or response of a client."""

    session_id: str
    message: msgspec.Raw


class _Resume(msgspec.Struct, frozen=True):
    """The event after which a client resumes a stream."""

    session_id: str
    event_id: str


class _StoredStream(msgspec.Struct, frozen=True):
    """A stream that lost its client."""

    events: tuple[tuple[int, str], ...]
    is_over: bool
    lost: str
    """The response for the case that its replica died before the answer."""


class SharedSessions:
    """The sessions of one endpoint, for all replicas."""

    def __init__(self, server: ServerContext, replica: Replica, sessions: HttpSessions) -> None:
        self._server = server
        self._store: Store = server.yard.store
        self._replica = replica
        self._sessions = sessions
        self._ttl = server.serving.session_timeout or None
        self._tasks: set[asyncio.Task[None]] = set()
        sessions.on_end = self._end
        replica.on_news |= {
            _CHANGED: self._take_change,
            _ENDED: self._take_end,
            _MESSAGE: self._take_message,
        }
        replica.on_request[_STREAM] = self._serve_stream
        self._keeping: set[Stream] = set()
        """The streams that are being stored."""
        replica.on_wiped.append(sessions.drop_all)

    async def store(self, http_session: HttpSession) -> None:
        """Store a session after its handshake.

        Raises:
            RefusedError: The store cannot be used.
        """
        session = http_session.session
        assert session.version is not None  # noqa: S101 - it was negotiated
        record = _Record(
            identity=http_session.identity,
            profile=None if http_session.profile is None else http_session.profile.name,
            scope=session.caller.scope if session.has_own_scope else "",
            version=session.version.name,
            capabilities=dict(session.capabilities),
            client=session.caller.client,
            level=session.level,
        )
        try:
            await self._store.put(_SESSIONS + http_session.id, msgspec.json.encode(record), ttl=self._ttl)
        except StoreUnavailableError:
            self._sessions.drop(http_session, goes_on=False)
            raise _store_away() from None
        self._attend(http_session)

    async def restore(self, session_id: str, caller: Caller) -> None:
        """Take a copy of a session that another replica started, unless it is here; renew its time in the store.

        Raises:
            RefusedError: The store cannot be read, or there are too many sessions.
        """
        known = self._sessions.find(session_id)
        if known is not None and (self._ttl is None or not known.is_due(self._ttl / 2)):
            return
        try:
            text = await self._read(session_id)
        except StoreUnavailableError:
            if known is not None:
                return  # what needs no store goes on
            raise _store_away() from None
        known = self._sessions.find(session_id)
        if known is not None:
            known.note_stored()
        if text is None:
            if known is not None:
                self._sessions.drop(known, goes_on=False)
            return
        record = msgspec.json.decode(text, type=_Record)
        if known is None and self._belongs_to(record, caller):
            self._copy(session_id, caller, record)

    async def _read(self, session_id: str) -> bytes | None:
        """Return the record of a session, whose time begins anew."""
        key = _SESSIONS + session_id
        text = await self._store.get(key)
        if text is not None and self._ttl is not None:
            await self._store.compare_and_set(key, text, text, ttl=self._ttl)  # it may have ended meanwhile
        return text

    def _belongs_to(self, record: _Record, caller: Caller) -> bool:
        profile = None if caller.profile is None else caller.profile.name
        return (record.identity, record.profile) == (caller.identity, profile)

    def _copy(self, session_id: str, caller: Caller, record: _Record) -> None:
        copy = self._sessions.restore(session_id, caller, record.scope)
        if copy is None:
            raise RefusedError(503, "There are too many sessions, and none of them is idle.", ((b"retry-after", b"1"),))
        copy.session.restore(record.version, record.capabilities, record.client)
        copy.session.follow(record.level, record.uris)
        self._attend(copy)

    def _attend(self, http_session: HttpSession) -> None:
        http_session.note_stored()
        http_session.keep_lost = partial(self._keep_stream, http_session.id)
        http_session.session.keep = partial(self._keep, http_session)
        http_session.session.pass_on = partial(self._pass_on, http_session)

    async def flush(self) -> None:
        """Wait until the messages of clients are on their way to the replicas that they are for.

        Raises:
            RefusedError: The store cannot be used.
        """
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
            await self._replica.flush()
        except StoreUnavailableError:
            raise _store_away() from None

    async def _keep(self, http_session: HttpSession, method: str, uri: str) -> None:
        """Store what a method changed, whatever others changed meanwhile."""
        key = _SESSIONS + http_session.id
        while (text := await self._store.get(key)) is not None:
            record = msgspec.json.decode(text, type=_Record)
            if method == "logging/setLevel":
                record = msgspec.structs.replace(record, level=http_session.session.level)
            else:
                uris = {**dict.fromkeys(record.uris), uri: None}
                if method == "resources/unsubscribe":
                    del uris[uri]
                record = msgspec.structs.replace(record, uris=tuple(uris))
            if await self._store.compare_and_set(key, text, msgspec.json.encode(record), ttl=self._ttl):
                await self._replica.tell_all(_CHANGED, http_session.id)
                return

    def _take_change(self, content: msgspec.Raw) -> None:
        session_id = msgspec.json.decode(content, type=str)
        if self._sessions.find(session_id) is not None:
            self._start(self._follow(session_id))

    async def _follow(self, session_id: str) -> None:
        text = await self._store.get(_SESSIONS + session_id)
        copy = self._sessions.find(session_id)
        if text is not None and copy is not None:
            record = msgspec.json.decode(text, type=_Record)
            copy.session.follow(record.level, record.uris)

    def _end(self, http_session: HttpSession) -> None:
        session = http_session.session
        ended = _Ended(http_session.id, session.caller.owner if session.has_own_scope else "")

        async def end() -> None:
            await self._store.delete(_SESSIONS + http_session.id)
            await self._replica.tell_all(_ENDED, ended)

        self._start(end())

    def _take_end(self, content: msgspec.Raw) -> None:
        ended = msgspec.json.decode(content, type=_Ended)
        copy = self._sessions.find(ended.session_id)
        if copy is not None:
            self._sessions.drop(copy, goes_on=False)
        elif ended.owner:
            self._server.yard.sessions.release(ended.owner)

    def _pass_on(self, http_session: HttpSession, message: Message) -> bool:
        """Send a response to the replica that asked, and a cancellation to all."""
        if message.method is not None:
            self._start(self._replica.tell_all(_MESSAGE, _ClientMessage(http_session.id, _encoded(message))))
            return False
        home, _, _ = str(message.id).removeprefix(_ASK).partition("-")
        if home == self._replica.id or not str(message.id).startswith(_ASK):
            return False
        self._replica.tell(home, _MESSAGE, _ClientMessage(http_session.id, _encoded(message)))
        return True

    def _take_message(self, content: msgspec.Raw) -> None:
        news = msgspec.json.decode(content, type=_ClientMessage)
        copy = self._sessions.find(news.session_id)
        if copy is None:
            return
        message = decode(bytes(news.message))
        if message.method is None:
            copy.session.client_requests.settle(message)
        else:
            copy.session.cancel(decode_params(message.params, Cancelled).request_id)

    async def resume(self, http_session: HttpSession, event_id: str) -> AsyncGenerator[bytes] | None:
        """Return the rest of another replica's stream as events; None if it is nowhere.

        It comes from that replica, or from the store if that is dead.
        """
        home = event_id.partition("-")[0].partition(".")[0]
        events: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def read() -> bool:
            """Read the stream until its end, and return whether there is one."""
            wanted, found = _Resume(http_session.id, event_id), b"false"
            try:
                with suppress(ReplicaError, StoreUnavailableError):
                    found = await self._replica.ask(home, _STREAM, wanted, on_note=events.put_nowait)
            finally:
                events.put_nowait(None)
            return found == b"true"

        if home == self._replica.id:
            return None
        reading = asyncio.ensure_future(read())
        try:
            first = await events.get()
        except asyncio.CancelledError:
            reading.cancel()
            raise
        if first is None and not await reading:
            return await self._stored(http_session.id, event_id)
        return _read_queue(first, events, reading, http_session.serving.keep_alive)

    async def _stored(self, session_id: str, event_id: str) -> AsyncGenerator[bytes] | None:
        name, _, after = event_id.partition("-")
        text = await self._store.get(f"{_STREAMS}{session_id}/{name}")
        if text is None or not after.isdecimal():
            return None
        return _stored_events(msgspec.json.decode(text, type=_StoredStream), name, int(after[:18]))

    async def _serve_stream(self, asked: Asked) -> bytes:
        """Send the rest of a stream to the replica that its client came to."""
        wanted = msgspec.json.decode(asked.content, type=_Resume)
        http_session = self._sessions.find(wanted.session_id)
        position = None if http_session is None else http_session.find_event(wanted.event_id)
        if http_session is None or position is None:
            return b"false"
        stream, after = position

        def report_gap(dropped: int) -> bytes | None:
            return http_session.session.encode_log("warning", GAP, {"dropped": dropped})

        http_session.attach(stream)
        try:
            async for event in stream.read(after, keep_alive=0, primed=False, report_gap=report_gap):
                asked.note(msgspec.json.encode(event.decode()))
        finally:
            http_session.detach(stream)
        return b"true"

    def _keep_stream(self, session_id: str, stream: Stream) -> None:
        """Store a stream whose client is away, and again after each message."""
        if stream not in self._keeping:
            self._keeping.add(stream)
            self._start(self._store_stream(session_id, stream))

    async def _store_stream(self, session_id: str, stream: Stream) -> None:
        try:
            stored: _StoredStream | None = None
            while True:
                events = tuple((number, message.decode()) for number, message in stream.events)
                now = _StoredStream(events, stream.is_over, stream.refuse_lost().decode())
                if now == stored:
                    return
                await self._store.put(f"{_STREAMS}{session_id}/{stream.name}", msgspec.json.encode(now), ttl=_STREAM_S)
                stored = now
        finally:
            self._keeping.discard(stream)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _logged(work: Coroutine[Any, Any, None]) -> None:
    """Await work that nobody waits for; without the store, others learn of it when the session expires."""
    try:
        await work
    except StoreUnavailableError:  # logged by the store
        return
    except Exception:  # noqa: BLE001 - nobody else would log it
        log_exception(_log, "session_news_failed")


def _encoded(message: Message) -> msgspec.Raw:
    """Return a message as JSON, as far as it matters."""
    parts = {"params": message.params, "result": message.result, "error": message.error}
    frame: dict[str, Any] = {"jsonrpc": "2.0", **{name: part for name, part in parts.items() if part}}
    frame |= {"id": message.id} if message.method is None else {"method": message.method}
    return msgspec.Raw(msgspec.json.encode(frame))


async def _read_queue(
    first: bytes | None, events: "asyncio.Queue[bytes | None]", reading: "asyncio.Future[bool]", keep_alive: float
) -> AsyncGenerator[bytes]:
    """Yield the events that another replica sends, until it ends the stream; an empty one is a keep-alive."""
    event = first
    try:
        while event is not None:
            yield msgspec.json.decode(event, type=str).encode() if event else KEEP_ALIVE
            try:
                async with asyncio.timeout(keep_alive or None):
                    event = await events.get()
            except TimeoutError:
                event = b""
    finally:
        reading.cancel()
        await asyncio.wait({reading})


async def _stored_events(stream: _StoredStream, name: str, after: int) -> AsyncGenerator[bytes]:
    """Yield the events of a stream of a dead replica, and the response that it did not get to."""
    last = after
    for number, message in stream.events:
        last = max(last, number)
        if number > after:
            yield encode_event(message.encode(), event_id=f"{name}-{number}")
    if not stream.is_over:
        yield encode_event(stream.lost.encode(), event_id=f"{name}-{last + 1}")


def _store_away() -> RefusedError:
    return RefusedError(503, "The store of the sessions cannot be used now.", ((b"retry-after", b"1"),))
