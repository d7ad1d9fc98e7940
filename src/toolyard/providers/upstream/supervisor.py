"""A supervisor: owns the connection to one upstream, so that whoever calls need not know whether there is one.

It starts what is needed, once for all who wait; it stops what is idle; and it keeps callers away from what is sick. It translates
nothing.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from toolyard.providers.upstream.catalogue import Catalogue, reached_by
from toolyard.providers.upstream.connecting import Connection, connect
from toolyard.providers.upstream.fetching import fetch
from toolyard.providers.upstream.health import Health
from toolyard.providers.upstream.link import Credentials, Link, LinkError
from toolyard.providers.upstream.listening import hear_changes, uri_of
from toolyard.providers.upstream.peer import Behalf, Peer
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.status import State
from toolyard.wire.faults import Fault

__all__ = ["Supervisor", "Watcher"]

T = TypeVar("T")

_FRESH: Final = 60.0
"""Seconds in which a catalogue need not be made again because the upstream started."""
_CHANGES: Final = 0.3
"""Seconds in which several notes of changes become one look."""
_RETIRING: Final = 5.0
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
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
        watcher: Watcher,
        known: Catalogue | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.health = Health(name, credentials, clock=clock, changed=watcher.changed)
        self._settings = settings
        self._make_link = link
        self._watcher = watcher
        self._known = known
        self._clock = clock
        self._room = asyncio.Semaphore(settings.in_flight)
        self._busy = 0
        self._used = clock()
        self._connection: Connection | None = None
        self._starting: asyncio.Task[Connection] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._noticing: asyncio.TimerHandle | None = None
        self._changed_meanwhile = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        return self._connection is not None

    @property
    def is_stale(self) -> bool:
        """Return whether what it offers should be looked at anew, and may be."""
        known, limit = self._known, self._settings.catalogue_seconds
        old = known is None or bool(limit and time.time() - known.seen > limit)
        return old and self._fetching is None and self.health.may_be_looked_at

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
                self._take_note(began, error, connection, behalf)
                harmless = error.trouble == "session_lost" or (error.trouble == "lost" and (safe or not error.sent))
                if last or not harmless or connection is None or self.health.wait:
                    raise
                if error.trouble == "session_lost":
                    self._forget(connection)
            else:
                self.health.succeed(began)
                return result
        raise AssertionError  # the last try returned or raised

    def _take_note(self, began: float, error: LinkError, connection: Connection | None, behalf: Behalf) -> None:
        """Hold a failure against the upstream, unless we stopped it ourselves, or what it refuses is what the caller showed."""
        shown = error.trouble == "unauthenticated" and any(header.lower() in behalf.headers for header in self._settings.forward_headers)
        if shown or connection is None or connection.peer.is_closed:  # without a connection its start took note
            self.health.abandon()
        else:
            self.health.fail(began, error)

    def time_out(self, began: float) -> None:
        """Take note that a call that began then was given up because its time was over."""
        self.health.fail(began, LinkError("lost", f"'{self.name}' did not answer in time.", sent=True))

    async def refresh(self) -> None:
        """Look at what the upstream offers, once for all who ask; whatever goes wrong shows in the state."""
        if self._fetching is None:
            self._fetching = self._spawn(self._fetch())
            self._fetching.add_done_callback(self._looked)
        await asyncio.shield(self._fetching)

    def _looked(self, _: "asyncio.Task[None]") -> None:
        self._fetching = None
        if self._changed_meanwhile:
            self._changed_meanwhile = False
            self._look_soon()

    async def restart(self) -> None:
        """Let go of the connection and of what is held against the upstream; the next call starts it anew."""
        await self._drop("cold", "It is being restarted.")
        if self._fetching is not None:  # it looked at what is gone now
            await asyncio.wait([self._fetching])
        self.health.forgive()
        self.health.become("cold", "It was restarted.")

    async def stop_if_idle(self) -> None:
        """Stop the upstream if nobody has used it for as long as its settings say."""
        idle = self._settings.idle_seconds
        is_used = self._busy or (self._fetching is not None and not self._fetching.done())
        if self._connection is not None and idle and not is_used and self._clock() - self._used >= idle:
            await self._drop("cold", f"Nobody used it for {idle:g} seconds.")

    async def close(self) -> None:
        """Stop everything."""
        if self._noticing is not None:
            self._noticing.cancel()
        await self._drop("stopped", "The yard is closed.")
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self) -> Connection:
        """Return the connection, which is made once for all who wait; that one of them gives up is no reason to end it."""
        if self.health.state == "stopped":
            raise LinkError("unavailable", f"'{self.name}' is closed.")
        if self._starting is None:
            self._starting = self._spawn(self._start())
            self._starting.add_done_callback(self._started)
        starting = self._starting
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():  # not whoever waits was stopped, but what he waits for
                raise LinkError("unavailable", f"'{self.name}' was stopped while it started.") from None
            raise

    def _started(self, task: "asyncio.Task[Connection]") -> None:
        if self._starting is task:
            self._starting = None
        if not task.cancelled():
            task.exception()  # whoever waits is told; if nobody does, the state says it

    async def _start(self) -> Connection:
        self.health.become("starting", "It is being started.")
        began = self._clock()
        known = None if self._known is None else self._known.version
        try:
            made = await connect(self.name, self._settings, self._make_link, known=known, note=self._hear, ended=self._ended)
            if made.peer.is_over is not None:  # between its greeting and now
                await made.peer.close()
                raise made.peer.is_over
        except LinkError as error:
            self.health.fail(began, error, alone=True)
            raise
        self._connection = made
        self._used = self._clock()
        self.health.become("ready", "")
        self._spawn(hear_changes(made))
        if self._known is None or time.time() - self._known.seen > _FRESH or self._known.version != made.greeting.version.name:
            self._spawn(self.refresh())
        return made

    async def _fetch(self) -> None:
        began = self._clock()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._settings.list_seconds or None):
                connection = self._connection or await self._connected()
                catalogue = await fetch(connection.peer, connection.greeting, reached_by=reached_by(self._settings))
        except TimeoutError:
            self.health.fail(began, LinkError("unavailable", f"'{self.name}' did not list what it has in time."))
        except Fault as fault:
            self.health.fail(began, LinkError("refused", f"'{self.name}' did not list what it has: {fault.message}", status=_SERVER_ERROR))
        except LinkError as error:
            if connection is not None and not connection.peer.is_closed:
                self.health.fail(began, error, alone=True)
                if error.trouble == "session_lost":
                    self._forget(connection)
        else:
            if self.health.state != "ready":
                self.health.succeed(began)
            self._known = catalogue
            self._watcher.fetched(catalogue)

    def _hear(self, method: str, params: msgspec.Raw) -> None:
        if method == "notifications/resources/updated":
            uri = uri_of(params)
            if uri is not None:
                self._watcher.updated(uri)
        elif method.endswith("/list_changed"):
            self._look_soon()

    def _look_soon(self) -> None:
        if self._fetching is not None:
            self._changed_meanwhile = True  # what was listed already may be what changed
        elif self._noticing is None and self.health.state != "stopped":
            self._noticing = asyncio.get_running_loop().call_later(_CHANGES, self._notice)

    def _notice(self) -> None:
        self._noticing = None
        self._spawn(self.refresh())

    def _ended(self, peer: Peer, error: LinkError) -> None:
        """Take note that the link is gone; what was under way is told by the peer."""
        connection = self._connection
        if connection is None or connection.peer is not peer:
            return  # it was still being greeted, or is no longer ours
        self._connection = None
        self.health.fail(self._clock(), error)
        self._spawn(peer.close())

    def _forget(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._spawn(connection.peer.retire(_RETIRING))

    async def _drop(self, state: State, reason: str) -> None:
        connection, self._connection = self._connection, None
        starting, self._starting = self._starting, None
        self.health.become(state, reason)
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
        if connection is not None:
            await connection.peer.close()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
