"""A supervisor: owns the connection to one upstream, so that whoever calls need not know whether there is one.

It starts what is needed, once for all who wait; it stops what is idle; and it keeps callers away from what is sick. It translates
nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from toolyard.providers.upstream.catalogue import Catalogue, fetch, reached_by
from toolyard.providers.upstream.handshake import Connection, connect
from toolyard.providers.upstream.health import Health, State
from toolyard.providers.upstream.link import Credentials, Link, LinkError
from toolyard.providers.upstream.session import CallContext, ClientSession
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.subscriptions import Following, uri_of
from toolyard.wire.messages import Fault

__all__ = ["Looks", "Observer", "Restraint", "Supervisor", "Tasks"]


_BURST: Final = 0.3
"""Seconds in which several notes of changes become one look."""
_LONGEST: Final = 30.0
_SHARE: Final = 4
"""How many times as long as a look took an upstream that does not calm down is left alone."""
_FRESH: Final = 60.0
"""Seconds in which a catalogue need not be made again because the upstream started."""
_SERVER_ERROR: Final = 500
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class Restraint:
    """How long to wait before the next look: longer each time, for as long as an upstream does not stop saying that it changed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = 0.0
        self._took = 0.0
        self._ended = 0.0

    def looked(self, began: float) -> None:
        """Take note that a look that began then is over."""
        self._ended = self._clock()
        self._took = self._ended - began

    def pause(self) -> float:
        """Return the seconds to wait, now that it says so again."""
        is_calm = self._clock() - self._ended >= 2 * self._pause
        self._pause = _BURST if is_calm else max(min(2 * self._pause, _LONGEST), _SHARE * self._took)
        return self._pause


class Looks:
    """The looks at one upstream."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        *,
        health: Health,
        connected: Callable[[], Awaitable[Connection]],
        forget: Callable[[Connection], None],
        fetched: Callable[[Catalogue], None],
        spawn: Spawn,
        clock: Callable[[], float],
    ) -> None:
        self.known: Catalogue | None = None
        """What it offered when it was last looked at."""
        self._name = name
        self._settings = settings
        self._health = health
        self._connected = connected
        self._forget = forget
        self._fetched = fetched
        self._spawn = spawn
        self._clock = clock
        self._restraint = Restraint(clock)
        self._look: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed_meanwhile = False

    @property
    def under_way(self) -> "asyncio.Task[None] | None":
        """Return the look that is not over yet, if there is one."""
        return None if self._look is None or self._look.done() else self._look

    @property
    def is_due(self) -> bool:
        """Return whether what is known is too old, or nothing is."""
        limit = self._settings.catalogue_seconds
        return self.known is None or bool(limit and time.time() - self.known.seen > limit)

    def fits(self, connection: Connection) -> bool:
        """Return whether what is known was seen just now, and of an upstream that speaks as this one does."""
        known = self.known
        return known is not None and time.time() - known.seen <= _FRESH and known.version == connection.greeting.version.name

    def begin(self) -> "asyncio.Task[None]":
        """Look, if nobody does already; whatever goes wrong shows in the state."""
        if self._look is None:
            self._look = self._spawn(self._fetch())
            self._look.add_done_callback(self._looked)
        return self._look

    def begin_soon(self) -> None:
        """Look after a while, because the upstream says that it changed."""
        if self._look is not None:
            self._changed_meanwhile = True  # what was listed already may be what changed
        elif self._timer is None and self._health.state != "stopped":
            self._timer = asyncio.get_running_loop().call_later(self._restraint.pause(), self._notice)

    def stop(self) -> None:
        """Look no more for what was noted."""
        if self._timer is not None:
            self._timer.cancel()

    def _notice(self) -> None:
        self._timer = None
        self.begin()

    def _looked(self, _: "asyncio.Task[None]") -> None:
        self._look = None
        if self._changed_meanwhile:
            self._changed_meanwhile = False
            self.begin_soon()

    async def _fetch(self) -> None:
        began = listed = self._clock()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._settings.list_seconds or None):
                connection = await self._connected()
                listed = self._clock()
                catalogue = await fetch(connection.peer, connection.greeting, reached_by=reached_by(self._settings))
        except TimeoutError:
            self._health.fail(began, LinkError("unavailable", f"'{self._name}' did not list what it has in time."))
        except Fault as fault:
            said = f"'{self._name}' did not list what it has: {fault.message}"
            self._health.fail(began, LinkError("refused", said, status=_SERVER_ERROR))
        except LinkError as error:
            if connection is not None and not connection.peer.is_closed:
                self._health.fail(began, error, alone=True)
                if error.trouble == "session_lost":
                    self._forget(connection)
        else:
            if self._health.state != "ready":
                self._health.succeed(began)
            self.known = catalogue
            self._fetched(catalogue)
        finally:
            self._restraint.looked(listed)


T = TypeVar("T")


class Tasks:
    """Work that is stopped at the end, and links that are closed, which is never cut short."""

    def __init__(self) -> None:
        self._works: set[asyncio.Task[Any]] = set()
        self._closings: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work on something that nobody waits for, or several do."""
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return task

    def let_go(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close something, without waiting for that."""
        task = asyncio.get_running_loop().create_task(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def end(self) -> None:
        """Stop all work, and wait until everything is closed."""
        works = tuple(self._works)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        if self._closings:
            await asyncio.wait(self._closings)


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

    async def request(self, method: str, params: Mapping[str, Any], *, name: str | None, behalf: CallContext, safe: bool) -> msgspec.Raw:
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

    async def _tried(self, method: str, params: Mapping[str, Any], *, name: str | None, behalf: CallContext, safe: bool) -> msgspec.Raw:
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

    def _take_note(self, began: float, error: LinkError, *, connection: Connection | None, behalf: CallContext) -> None:
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

    def _ended(self, peer: ClientSession, error: LinkError) -> None:
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
