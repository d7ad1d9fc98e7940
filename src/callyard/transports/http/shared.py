"""HTTP sessions that all replicas serve: in the store, with a copy in each replica that has served one.

A replica that ends or changes a session tells the others. A message for a call of another replica is sent there.
"""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Caller
from callyard.server import ServerContext
from callyard.state.replicas import Replica
from callyard.state.store import Store, StoreUnavailableError
from callyard.transports.http.request import RefusedError
from callyard.transports.http.sessions import HttpSession, HttpSessions
from callyard.wire.messages import Message, decode
from callyard.wire.params import Cancelled, decode_params

__all__ = ["SharedSessions"]

_SESSIONS: Final = "mcp_session/"
_CHANGED: Final = "session changed"
_ENDED: Final = "session ended"
_MESSAGE: Final = "client message"
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


def _store_away() -> RefusedError:
    return RefusedError(503, "The store of the sessions cannot be used now.", ((b"retry-after", b"1"),))
