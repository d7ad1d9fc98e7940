"""Listening: an upstream is asked to tell of its lists, and of those resources that somebody here is subscribed to.

One of the older era tells of its lists unasked, and wants a request for each resource. One of the newer era tells of everything on
one request that stays open; when something else is wanted another takes its place, and the first is let go once the other holds.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

import msgspec

from toolyard._internal.logfmt import log_value
from toolyard.providers.upstream.catalogue import Catalogue
from toolyard.providers.upstream.handshake import Connection
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.session import ALONE, read
from toolyard.wire.messages import Fault, Id
from toolyard.wire.params import SUBSCRIPTION

__all__ = ["Following", "Listening", "tells_subscribers", "uri_of"]


_PAUSE: Final = 5.0
_LONGEST: Final = 60.0
_PATIENCE: Final = 5.0
"""Seconds that a request of the newer era may take until it is acknowledged."""
_PASSING: Final = frozenset({"unavailable", "lost", "rate_limited"})
"""Troubles after which it is tried again on the same connection."""
_LISTS: Final = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
_NOTHING: Final[frozenset[str]] = frozenset()
_log = logging.getLogger(__name__)


class _Updated(msgspec.Struct):
    uri: str


class _Acknowledged(msgspec.Struct):
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


class Listening:
    """What one connection is asked to tell of."""

    def __init__(
        self,
        connection: Connection,
        uris: AbstractSet[str],
        *,
        missed: AbstractSet[str],
        updated: Callable[[str], None],
        held: Callable[[], None],
    ) -> None:
        capabilities = connection.greeting.capabilities
        self._connection = connection
        self._uris = uris
        """The resources that are wanted now, as the upstream calls them."""
        self._missed = missed
        """Those that nobody could be told of for a while, so that they may have changed."""
        self._updated = updated
        self._held = held
        self._is_modern = connection.requests.version.modern
        self._lists = _lists_told(capabilities) if self._is_modern else {}
        self._tells_subscribers = tells_subscribers(capabilities)
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._requests: list[asyncio.Task[msgspec.Raw]] = []
        self._newest: Id | None = None

    def want(self, uris: AbstractSet[str]) -> None:
        """Have the upstream tell of these resources from now on."""
        self._uris = uris
        self._changed.set()

    def acknowledge(self, params: msgspec.Raw) -> None:
        """Take note that the newest request holds, if it is that one; an upstream that does not say which can mean no other."""
        if _subscription_of(params) in {self._newest, None}:
            self._acknowledged.set()
            self._catch_up()

    async def run(self) -> None:
        """Listen for as long as the upstream cares to tell.

        Raises:
            LinkError: The connection can no longer be used.
        """
        if not self._lists and not self._tells_subscribers:
            return
        clock, pause = asyncio.get_running_loop().time, _PAUSE
        while True:
            began = clock()
            try:
                await (self._listen() if self._is_modern else self._subscribe())
            except Fault as fault:
                self._log(fault.message)
                return
            except LinkError as error:
                self._log(error.message)
                if error.trouble not in _PASSING or self._connection.peer.is_over is not None:
                    raise
            self._missed = self._uris
            pause = _PAUSE if clock() - began > _LONGEST else pause
            await asyncio.sleep(pause)  # an upstream that ends what it is asked is not asked again at once
            pause = min(2 * pause, _LONGEST)

    async def _subscribe(self) -> None:
        """Ask for each resource that is wanted, and say of each that is not any more that it is not."""
        told: set[str] = set()
        while True:
            self._changed.clear()
            for uri in sorted(self._uris - told):
                await self._say("resources/subscribe", uri)
                told.add(uri)
            for uri in sorted(told - self._uris):
                await self._say("resources/unsubscribe", uri)
                told.discard(uri)
            self._catch_up()
            await self._changed.wait()

    async def _say(self, method: str, uri: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._connection.request(method, {"uri": uri}, name=uri, behalf=ALONE)
        except Fault as fault:
            self._log(fault.message)
        except TimeoutError:
            self._log(f"It did not answer '{method}' in time.")

    async def _listen(self) -> None:
        """Keep one request open on which all that is wanted is told, until the upstream ends it."""
        try:
            while True:
                self._changed.clear()
                await self._ask()
                await self._until(self._changed)
                if self._requests and self._requests[-1].done():
                    self._requests[-1].result()
                    return
        finally:
            await self._let_go(*self._requests)

    async def _ask(self) -> None:
        """Ask for what is wanted now; what was asked for before is let go once that holds."""
        before = tuple(self._requests)
        wanted: dict[str, Any] = dict(self._lists)
        if self._uris and self._tells_subscribers:
            wanted["resourceSubscriptions"] = sorted(self._uris)
        if wanted:
            self._acknowledged.clear()
            self._newest = self._connection.peer.next_id()
            request = self._connection.request(
                "subscriptions/listen", {"notifications": wanted}, name=None, behalf=ALONE, request_id=self._newest
            )
            self._requests.append(asyncio.get_running_loop().create_task(request))
        if wanted and before:
            await self._until(self._acknowledged, seconds=_PATIENCE)
        await self._let_go(*before)

    async def _until(self, event: asyncio.Event, *, seconds: float | None = None) -> None:
        """Wait for an event, or until the newest request is over."""
        waiting = asyncio.get_running_loop().create_task(event.wait())
        try:
            await asyncio.wait({waiting, *self._requests[-1:]}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _let_go(self, *requests: "asyncio.Task[msgspec.Raw]") -> None:
        for request in requests:
            self._requests.remove(request)
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def _catch_up(self) -> None:
        """Tell of what may have changed while nobody could, and that from now on nothing is missed."""
        missed, self._missed = self._missed & self._uris, _NOTHING
        for uri in sorted(missed):
            self._updated(uri)
        if not self._changed.is_set():
            self._held()

    def _log(self, why: str) -> None:
        _log.info("upstream_tells_no_changes upstream=%s why=%s", self._connection.peer.name, log_value(why))


def uri_of(params: msgspec.Raw) -> str | None:
    """Return which resource a note of a change is about, if it says so."""
    told = read(params, _Updated)
    return None if told is None else told.uri


def _subscription_of(params: msgspec.Raw) -> object:
    """Return the request that an acknowledgement is about, if it says so."""
    told = read(params, _Acknowledged)
    said = None if told is None else told.meta.get(SUBSCRIPTION)
    return said if isinstance(said, int | str) else None


def tells_subscribers(capabilities: Mapping[str, Any]) -> bool:
    """Return whether an upstream says that it tells of resources that are subscribed to."""
    return _says(capabilities, "resources", "subscribe")


def _lists_told(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """Return the lists whose changes an upstream says that it tells of."""
    return {key: True for kind, key in _LISTS.items() if _says(capabilities, kind, "listChanged")}


def _says(capabilities: Mapping[str, Any], kind: str, what: str) -> bool:
    told = capabilities.get(kind)
    return isinstance(told, dict) and bool(cast("dict[str, Any]", told).get(what))


class Following:
    """What an upstream is asked to tell of, whenever there is a connection."""

    def __init__(self, *, updated: Callable[[str], None], lost: Callable[[Connection], None]) -> None:
        self._updated = updated
        self._lost = lost
        self._uris: AbstractSet[str] = _NOTHING
        self._missed: AbstractSet[str] = _NOTHING
        self._listening: Listening | None = None
        self._task: asyncio.Task[None] | None = None
        self._held: asyncio.Future[None] | None = None

    def needs(self, known: Catalogue | None) -> bool:
        """Return whether there must be a connection: something is wanted, and the upstream, as far as it is known, tells of it."""
        return bool(self._uris) and (known is None or tells_subscribers(known.capabilities))

    def want(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        """Have the upstream tell of these resources from now on; return what is done once it does, unless it never will."""
        self._uris = uris
        if self._listening is not None:
            self._listening.want(uris)
        if self._task is not None and self._task.done():
            return None
        if self._held is None:
            self._held = asyncio.get_running_loop().create_future()
        return self._held

    def begin(self, connection: Connection, spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]) -> None:
        """Listen on a connection."""
        self._listening = Listening(connection, self._uris, missed=self._missed, updated=self._updated, held=self._hold)
        self._task = spawn(self._run(connection, self._listening))

    def acknowledge(self, params: msgspec.Raw) -> None:
        """Take note that something that the upstream was asked to tell of holds."""
        if self._listening is not None:
            self._listening.acknowledge(params)

    def end(self) -> None:
        """Listen no longer; what is told from now on is missed."""
        if self._task is not None:
            self._task.cancel()
            self._missed = self._uris
        self._listening = self._task = None

    def _hold(self) -> None:
        """Let those go on who wait until all that is wanted is told."""
        held, self._held = self._held, None
        if held is not None and not held.done():
            held.set_result(None)

    async def _run(self, connection: Connection, listening: Listening) -> None:
        try:
            await listening.run()
        except LinkError as error:
            if error.trouble == "session_lost":
                self._lost(connection)
                return
        self._hold()
