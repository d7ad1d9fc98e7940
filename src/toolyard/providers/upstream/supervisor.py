"""A supervisor: owns the connection to one upstream, so that whoever calls need not know whether there is one.

It starts what is needed, once for all who wait; it stops what is idle; and it keeps callers away from what is sick. It translates
nothing.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from toolyard.providers.upstream.catalogue import Catalogue
from toolyard.providers.upstream.connecting import Connection, connect
from toolyard.providers.upstream.following import Following
from toolyard.providers.upstream.health import Health
from toolyard.providers.upstream.link import Credentials, Link, LinkError
from toolyard.providers.upstream.listening import uri_of
from toolyard.providers.upstream.looking import Looks
from toolyard.providers.upstream.peer import Behalf, Peer
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.status import State
from toolyard.providers.upstream.tasks import Tasks
from toolyard.wire.faults import Fault

__all__ = ["Observer", "Supervisor"]

_RETIRING: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Who is told what a supervisor learns."""

    fetched: Callable[[Catalogue], None]
    updated: Callable[[str], None]
    """The content of a resource is another."""
    changed: Callable[[], None]
    """The state is another."""


class Supervisor:
    """The connection to one upstream, while it is open."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        *,
        link: Callable[[], Link],
        credentials: Credentials,
        observer: Observer,
        known: Catalogue | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.health = Health(name, credentials, clock=clock, changed=observer.changed)
        self._settings = settings
        self._make_link = link
        self._observer = observer
        self._clock = clock
        self._room = asyncio.Semaphore(settings.in_flight)
        self._busy = 0
        self._used = clock()
        self._connection: Connection | None = None
        self._starting: asyncio.Task[Connection] | None = None
        self._tasks = Tasks()
        self._version = None if known is None else known.version
        """What it spoke last time, unless that is to be found out anew."""
        self._looks = Looks(
            name,
            settings,
            health=self.health,
            connected=self._connected,
            forget=self._forget,
            fetched=observer.fetched,
            spawn=self._tasks.spawn,
            clock=clock,
        )
        self._looks.known = known
        self._following = Following(updated=observer.updated, lost=self._forget)

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        return self._connection is not None

    @property
    def is_stale(self) -> bool:
        """Return whether what it offers should be looked at anew, and may be."""
        return self._looks.is_due and self._looks.under_way is None and self.health.may_be_looked_at

    async def request(self, method: str, params: Mapping[str, Any], *, name: str | None, behalf: Behalf, safe: bool) -> msgspec.Raw:
        """Send a request, starting the upstream if need be; only what is safe is sent again if it may have arrived.

        Raises:
            Fault: The upstream answered with an error of JSON-RPC.
            LinkError: It did not get through, or there is no answer.
        """
        self.health.admit()
        try:
            async with self._room:
                self.health.calls += 1
                self._busy += 1
                try:
                    return await self._tried(method, params, name=name, behalf=behalf, safe=safe)
                finally:
                    self._busy -= 1
                    self._used = self._clock()
        except (Fault, LinkError):
            raise
        except BaseException:  # whoever gave up, or could not send it, has found out nothing
            self.health.abandon()
            raise

    async def _tried(self, method: str, params: Mapping[str, Any], *, name: str | None, behalf: Behalf, safe: bool) -> msgspec.Raw:
        """Send a request, and once more if it surely did no harm the first time."""
        for last in (False, True):
            began = self._clock()
            connection = self._connection
            try:
                if connection is None:
                    connection = await self._connected()
                result = await connection.request(method, params, name=name, behalf=behalf)
            except Fault:
                self.health.succeed(began)
                raise
            except LinkError as error:
                self._take_note(began, error, connection=connection, behalf=behalf)
                harmless = error.trouble == "session_lost" or (error.trouble == "lost" and (safe or not error.sent))
                if last or not harmless or connection is None or self.health.wait:
                    raise
                if error.trouble == "session_lost":
                    self._forget(connection)
            else:
                self.health.succeed(began)
                return result
        raise AssertionError  # the last try returned or raised

    def _take_note(self, began: float, error: LinkError, *, connection: Connection | None, behalf: Behalf) -> None:
        """Hold a failure against the upstream, unless we stopped it ourselves, or what it refuses is what the caller showed."""
        refused = error.trouble == "unauthenticated" and connection is not None
        error.of_caller = refused and "authorization" in behalf.headers
        may_be_his = refused and any(header.lower() in behalf.headers for header in self._settings.forward_headers)
        if may_be_his or connection is None or connection.peer.is_closed:  # without a connection its start took note
            self.health.abandon()
        else:
            self.health.fail(began, error)

    def time_out(self, began: float) -> None:
        """Take note that a call that began then was given up because its time was over."""
        self.health.fail(began, LinkError("lost", f"'{self.name}' did not answer in time.", sent=True))

    def look(self) -> "asyncio.Task[None]":
        """Begin to look at what the upstream offers, unless somebody does already; whatever goes wrong shows in the state."""
        return self._looks.begin()

    async def refresh(self) -> None:
        """Look at what the upstream offers, and wait until that is over."""
        await asyncio.shield(self.look())

    def follow(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        """Have the upstream tell of these resources from now on, whenever it is there; as long as there are any it is kept there.

        What is returned, if there is anything to wait for, is done once it does.
        """
        held = self._following.want(uris)
        self.keep_up()
        return held if self._following.needs(self._looks.known) else None

    def keep_up(self) -> None:
        """Start the upstream if somebody wants to hear of it and nothing stands against it."""
        wanted = self._following.needs(self._looks.known) and self._connection is None
        if wanted and self.health.may_be_looked_at and self.health.state != "stopped":
            self._begin_start()

    async def restart(self) -> None:
        """Let go of the connection and of what is held against the upstream; the next call starts it anew."""
        await self._drop("cold", "It is being restarted.")
        look = self._looks.under_way
        if look is not None:  # it looked at what is gone now
            await asyncio.wait([look])
        self._version = None
        self.health.forgive()
        self.health.become("cold", "It was restarted.")

    async def stop_if_idle(self) -> None:
        """Stop the upstream if nobody has used it for as long as its settings say."""
        idle = self._settings.idle_seconds
        is_used = self._busy or self._following.needs(self._looks.known) or self._looks.under_way is not None
        if self._connection is not None and idle and not is_used and self._clock() - self._used >= idle:
            await self._drop("cold", f"Nobody used it for {idle:g} seconds.")

    async def close(self) -> None:
        """Stop everything."""
        self._looks.stop()
        await self._drop("stopped", "The yard is closed.")
        await self._tasks.end()

    async def _connected(self) -> Connection:
        """Return the connection, which is made once for all who wait; that one of them gives up is no reason to end it."""
        if self._connection is not None:
            return self._connection
        if self.health.state == "stopped":
            raise LinkError("unavailable", f"'{self.name}' is closed.")
        starting = self._begin_start()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():  # not whoever waits was stopped, but what he waits for
                raise LinkError("unavailable", f"'{self.name}' was stopped while it started.") from None
            raise

    def _begin_start(self) -> "asyncio.Task[Connection]":
        if self._starting is None:
            self._starting = self._tasks.spawn(self._start())
            self._starting.add_done_callback(self._started)
        return self._starting

    def _started(self, task: "asyncio.Task[Connection]") -> None:
        if self._starting is task:
            self._starting = None
        if not task.cancelled():
            task.exception()  # whoever waits is told; if nobody does, the state says it

    async def _start(self) -> Connection:
        self.health.become("starting", "It is being started.")
        began = self._clock()
        try:
            made = await connect(self.name, self._settings, self._make_link, known=self._version, heard=self._hear, ended=self._ended)
            if made.peer.is_over is not None:  # between its greeting and now
                await made.peer.close()
                raise made.peer.is_over
        except LinkError as error:
            self.health.fail(began, error, alone=True)
            raise
        self._connection = made
        self._version = made.greeting.version.name
        self._used = self._clock()
        self.health.become("ready", "")
        self._following.begin(made, self._tasks.spawn)
        if not self._looks.fits(made):
            self.look()
        return made

    def _hear(self, method: str, params: msgspec.Raw) -> None:
        if method == "notifications/resources/updated":
            uri = uri_of(params)
            if uri is not None:
                self._observer.updated(uri)
        elif method == "notifications/subscriptions/acknowledged":
            self._following.acknowledge(params)
        elif method.endswith("/list_changed"):
            self._looks.begin_soon()

    def _ended(self, peer: Peer, error: LinkError) -> None:
        """Take note that the link is gone; what was under way is told by the peer."""
        connection = self._connection
        if connection is None or connection.peer is not peer:
            return  # it was still being greeted, or is no longer ours
        self._part()
        self.health.fail(self._clock(), error)
        self._tasks.let_go(peer.close())

    def _forget(self, connection: Connection) -> None:
        if self._connection is connection:
            self._part()
            self._tasks.let_go(connection.peer.retire(_RETIRING))

    def _part(self) -> Connection | None:
        """Have no connection any more, and return the one there was."""
        connection, self._connection = self._connection, None
        self._following.end()
        return connection

    async def _drop(self, state: State, reason: str) -> None:
        connection = self._part()
        starting, self._starting = self._starting, None
        self.health.become(state, reason)
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
        if connection is not None:
            await connection.peer.close()
