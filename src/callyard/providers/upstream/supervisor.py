"""The supervisor of one upstream: owns its connection, so that callers need not know whether there is one.

It connects once for all waiting callers, disconnects when idle, and refuses calls while the upstream is failing. It
translates nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

import msgspec

from callyard.providers.upstream.catalogue import Catalogue, endpoint_hash, fetch
from callyard.providers.upstream.handshake import Connection, connect
from callyard.providers.upstream.health import Health, State
from callyard.providers.upstream.link import Credentials, Link, LinkError
from callyard.providers.upstream.pages import OpenPages
from callyard.providers.upstream.session import CallContext, ClientSession
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.subscriptions import Subscriptions, uri_of
from callyard.wire.messages import Fault

__all__ = ["Refresh", "RefreshBackoff", "Supervisor", "Tasks"]

T = TypeVar("T")
_DEBOUNCE_SECONDS: Final = 0.3
"""Several change notifications within this time cause one refresh."""
_LONGEST_PAUSE_SECONDS: Final = 30.0
_PAUSE_FACTOR: Final = 4
"""The pause between refreshes is at least this many times as long as a refresh took."""
_ENDED_SESSIONS: Final = 100
_FRESH_SECONDS: Final = 60.0
"""A catalogue of this age need not be fetched again after a new connection."""
_DRAIN_SECONDS: Final = 5.0
_SERVER_ERROR: Final = 500


class Tasks:
    """Background tasks that are cancelled at the end, and closing tasks that are never cut short."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task that is cancelled by `stop`."""
        return _start(work, self._tasks)

    def close_later(self, closing: Coroutine[Any, Any, None]) -> None:
        """Close something in the background; `stop` waits for it."""
        _start(closing, self._closing)

    async def stop(self) -> None:
        """Cancel all tasks, and wait until everything is closed."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._closing:
            await asyncio.wait(self._closing)


def _start(work: Coroutine[Any, Any, T], tasks: "set[asyncio.Task[T]]") -> "asyncio.Task[T]":
    """Start a task and keep a reference until it is done, because the event loop keeps none."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


class RefreshBackoff:
    """The pause before the next refresh; it grows while an upstream keeps announcing changes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = 0.0
        self._took = 0.0
        self._ended = 0.0

    def record(self, started: float) -> None:
        """Record that a refresh that started then is over."""
        self._ended = self._clock()
        self._took = self._ended - started

    def next_pause(self) -> float:
        """Return the seconds to wait after a new announcement."""
        is_calm = self._clock() - self._ended >= 2 * self._pause
        longer = max(min(2 * self._pause, _LONGEST_PAUSE_SECONDS), _PAUSE_FACTOR * self._took)
        self._pause = _DEBOUNCE_SECONDS if is_calm else longer
        return self._pause


class Refresh:
    """Runs a refresh once for all who ask at the same time, and after change notifications with a pause."""

    def __init__(
        self, fetch: Callable[[], Coroutine[Any, Any, float]], *, tasks: Tasks, clock: Callable[[], float]
    ) -> None:
        self._fetch = fetch
        """Fetches the catalogue and returns when it began to list."""
        self._tasks = tasks
        self._backoff = RefreshBackoff(clock)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed_meanwhile = False
        self._is_stopped = False

    @property
    def running(self) -> "asyncio.Task[None] | None":
        """Return the running refresh, if there is one."""
        return None if self._task is None or self._task.done() else self._task

    def start(self) -> "asyncio.Task[None]":
        """Start a refresh, or return the running one."""
        if self._task is None:
            self._task = self._tasks.spawn(self._run())
            self._task.add_done_callback(self._finished)
        return self._task

    def start_later(self) -> None:
        """Start a refresh after a pause, because the upstream announced a change."""
        if self._task is not None:
            self._changed_meanwhile = True  # the running refresh may already have fetched the list that changed
        elif self._timer is None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(self._backoff.next_pause(), self._pause_over)

    def stop(self) -> None:
        """Start none after a pause any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def _run(self) -> None:
        self._backoff.record(await self._fetch())

    def _pause_over(self) -> None:
        self._timer = None
        self.start()

    def _finished(self, _: "asyncio.Task[None]") -> None:
        self._task = None
        if self._changed_meanwhile:
            self._changed_meanwhile = False
            self.start_later()


class Supervisor:
    """Owns the connection to one upstream.

    It calls `fetched` with each new catalogue, `updated` with the resources whose content changed, and `changed` when
    the health changes.
    """

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        *,
        link: Callable[[], Link],
        credentials: Credentials,
        fetched: Callable[[Catalogue], Awaitable[None]],
        updated: Callable[[str], None],
        changed: Callable[[], None],
        catalogue: Catalogue | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.health = Health(name, credentials, clock=clock, changed=changed, secrets=settings.secrets())
        self._settings = settings
        self._make_link = link
        self._fetched = fetched
        self._updated = updated
        self._clock = clock
        self._slots = asyncio.Semaphore(settings.in_flight)
        self._in_flight = 0
        self._last_used = clock()
        self._connection: Connection | None = None
        self._starting: asyncio.Task[Connection] | None = None
        self._tasks = Tasks()
        self._version = None if catalogue is None else catalogue.version
        """The protocol version spoken last time; None after a restart, so that it is negotiated again."""
        self._connected_at = 0.0
        self.ended_sessions: deque[float] = deque(maxlen=_ENDED_SESSIONS)
        """The durations in seconds of the latest sessions that ended; who counts them takes them out."""
        self._catalogue = catalogue
        self._refresh = Refresh(self._fetch_catalogue, tasks=self._tasks, clock=clock)
        self.pages = OpenPages(name)
        self._subscriptions = Subscriptions(updated=updated, lost=self._discard)

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection now."""
        return self._connection is not None

    @property
    def pid(self) -> int | None:
        """Return the process id of the upstream while it is connected, if it is a program of this machine."""
        return None if self._connection is None else self._connection.session.pid

    @property
    def version(self) -> str | None:
        """Return the protocol version spoken last time."""
        return self._version

    @property
    def is_stale(self) -> bool:
        """Return whether the catalogue is missing or too old, and may be fetched."""
        limit = self._settings.catalogue_seconds
        is_due = self._catalogue is None or bool(limit and self._catalogue.age > limit)
        return is_due and self._refresh.running is None and self.health.allows_attempt

    async def request(
        self, method: str, params: Mapping[str, Any], *, name: str | None, context: CallContext, safe: bool
    ) -> msgspec.Raw:
        """Send a request, connecting first if needed; only a `safe` one is repeated after it may have arrived.

        Raises:
            Fault: The upstream answered with a JSON-RPC error.
            LinkError: The request was not delivered, or there is no response.
        """
        self.health.admit()
        try:
            async with self._slots:
                self.health.calls += 1
                self._in_flight += 1
                try:
                    return await self._request_with_retry(method, params, name=name, context=context, safe=safe)
                finally:
                    self._in_flight -= 1
                    self._last_used = self._clock()
        except (Fault, LinkError):
            raise
        except BaseException:  # a cancelled call says nothing about the upstream, and must not keep the breaker's probe
            self.health.abandon()
            raise

    async def _request_with_retry(
        self, method: str, params: Mapping[str, Any], *, name: str | None, context: CallContext, safe: bool
    ) -> msgspec.Raw:
        """Send a request, and once more if the first attempt surely did no harm."""
        for is_last in (False, True):
            started = self._clock()
            connection = self._connection
            try:
                if connection is None:
                    connection = await self._connected()
                result = await connection.request(method, params, name=name, context=context)
            except Fault:
                self.health.succeed(started)
                raise
            except LinkError as error:
                self._record_failure(started, error, connection=connection, context=context)
                is_harmless = error.kind == "session_lost" or (error.kind == "lost" and (safe or not error.sent))
                if is_last or not is_harmless or connection is None or self.health.wait:
                    raise
                if error.kind == "session_lost":
                    self._discard(connection)
                if context.retried is not None:
                    context.retried()
            else:
                self.health.succeed(started)
                return result
        raise AssertionError  # the last attempt returned or raised

    def _record_failure(
        self, started: float, error: LinkError, *, connection: Connection | None, context: CallContext
    ) -> None:
        """Record a failure of the upstream, unless we closed the session or it refused the caller's headers."""
        is_refused = error.kind == "unauthenticated" and connection is not None
        error.caller_credentials = is_refused and "authorization" in context.headers
        forwarded = {header.lower() for header in self._settings.forward_headers}
        is_forwarded = is_refused and not forwarded.isdisjoint(context.headers)
        # without a connection its start recorded it
        if is_forwarded or connection is None or connection.session.is_closed:
            self.health.abandon()
        else:
            self.health.fail(started, error)

    def record_timeout(self, started: float) -> None:
        """Record that a call that started then ran out of time."""
        self.health.fail(started, LinkError("lost", f"'{self.name}' did not answer in time.", sent=True))

    def start_refresh(self) -> "asyncio.Task[None]":
        """Start to fetch the catalogue, or return the running task; it never raises, errors go into the health."""
        return self._refresh.start()

    async def refresh(self) -> None:
        """Fetch the catalogue and wait for it."""
        await asyncio.shield(self.start_refresh())

    async def _fetch_catalogue(self) -> float:
        """Fetch and publish the catalogue; return when listing began. It never raises, errors go into the health."""
        started = listing = self._clock()
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._settings.list_seconds or None):
                connection = await self._connected()
                listing = self._clock()
                catalogue = await fetch(connection, endpoint_hash=endpoint_hash(self._settings))
        except TimeoutError:
            self.health.fail(started, LinkError("unavailable", f"'{self.name}' did not list what it has in time."))
        except Fault as fault:
            text = f"'{self.name}' did not list what it has: {fault.message}"
            self.health.fail(started, LinkError("refused", text, status=_SERVER_ERROR))
        except LinkError as error:
            # without a connection the start recorded it, and we may have closed it ourselves
            if connection is not None and not connection.session.is_closed:
                self.health.fail(started, error, own_request=True)
                if error.kind == "session_lost":
                    self._discard(connection)
        else:
            if self.health.state != "ready":
                self.health.succeed(started)
            self._catalogue = catalogue
            await self._fetched(catalogue)
        return listing

    def subscribe(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        """Replace the subscribed resources; while there are any the connection is kept open.

        Return a future for the upstream's confirmation, or None if there is nothing to wait for.
        """
        confirmation = self._subscriptions.subscribe(uris)
        self.ensure_subscribed()
        return confirmation if self._needs_connection else None

    @property
    def _needs_connection(self) -> bool:
        return self._subscriptions.needs_connection(self._catalogue)

    def ensure_subscribed(self) -> None:
        """Connect if there are subscriptions and the upstream may be tried."""
        is_wanted = self._connection is None and self._needs_connection
        if is_wanted and self.health.allows_attempt and self.health.state != "stopped":
            self._start_once()

    async def restart(self) -> None:
        """Disconnect and reset the health; the next call connects again."""
        await self._disconnect("cold", "It is being restarted.")
        refresh = self._refresh.running
        if refresh is not None:  # it used the old connection
            await asyncio.wait([refresh])
        self._version = None
        self.health.reset()
        self.health.set_state("cold", "It was restarted.")

    async def stop_if_idle(self) -> None:
        """Disconnect if the upstream was not used for `idle_seconds`."""
        idle = self._settings.idle_seconds
        is_used = self._in_flight or self._needs_connection or self._refresh.running is not None
        if self._connection is not None and idle and not is_used and self._clock() - self._last_used >= idle:
            await self._disconnect("cold", f"Nobody used it for {idle:g} seconds.")

    async def close(self) -> None:
        """Stop everything."""
        self._refresh.stop()
        await self._disconnect("stopped", "The yard is closed.")
        await self._tasks.stop()

    async def _connected(self) -> Connection:
        """Return the connection, which is opened once for all who wait; a caller that gives up does not cancel it."""
        if self._connection is not None:
            return self._connection
        if self.health.state == "stopped":
            raise LinkError("unavailable", f"'{self.name}' is closed.")
        starting = self._start_once()
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():  # the start was cancelled, not the caller
                raise LinkError("unavailable", f"'{self.name}' was stopped while it started.") from None
            raise

    def _start_once(self) -> "asyncio.Task[Connection]":
        if self._starting is None:
            self._starting = self._tasks.spawn(self._start())
            self._starting.add_done_callback(self._started)
        return self._starting

    def _started(self, task: "asyncio.Task[Connection]") -> None:
        if self._starting is task:
            self._starting = None
        if not task.cancelled():
            task.exception()  # retrieved, lest asyncio logs it when no caller waits; the health has it

    async def _start(self) -> Connection:
        self.health.set_state("starting", "It is being started.")
        started = self._clock()
        try:
            connection = await connect(
                self.name,
                self._settings,
                self._make_link,
                last_version=self._version,
                on_notification=self._on_notification,
                on_end=self._on_end,
            )
            if connection.session.link_error is not None:  # it ended between the handshake and now
                await connection.session.close()
                raise connection.session.link_error
        except LinkError as error:
            self.health.fail(started, error, own_request=True)
            raise
        self._connection = connection
        self._connected_at = self._clock()
        self._version = connection.handshake.version.name
        self._last_used = self._clock()
        self.health.set_state("ready", "")
        self._subscriptions.start(connection, self._tasks.spawn)
        listed = self._catalogue
        if listed is None or listed.age > _FRESH_SECONDS or listed.version != self._version:
            self.start_refresh()
        return connection

    def _on_notification(self, method: str, params: msgspec.Raw) -> None:
        if method == "notifications/resources/updated":
            uri = uri_of(params)
            if uri is not None:
                self._updated(uri)
        elif method == "notifications/subscriptions/acknowledged":
            self._subscriptions.acknowledge(params)
        elif method == "notifications/elicitation/complete":
            self.pages.complete(params)
        elif method.endswith("/list_changed"):
            self._refresh.start_later()

    def _on_end(self, session: ClientSession, error: LinkError) -> None:
        """Record that the upstream closed the link; the session fails the pending requests itself."""
        connection = self._connection
        if connection is None or connection.session is not session:
            return  # it ended during its handshake, or is no longer ours
        self._detach()
        self.health.fail(self._clock(), error)
        self._tasks.close_later(session.close())

    def _discard(self, connection: Connection) -> None:
        """Close a connection whose session the upstream forgot, after its pending requests."""
        if self._connection is connection:
            self._detach()
            self._tasks.close_later(connection.session.drain(_DRAIN_SECONDS))

    def _detach(self) -> Connection | None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.ended_sessions.append(self._clock() - self._connected_at)
        self._subscriptions.stop()
        return connection

    async def _disconnect(self, state: State, reason: str) -> None:
        connection = self._detach()
        starting, self._starting = self._starting, None
        self.health.set_state(state, reason)
        if starting is not None:
            starting.cancel()
            await asyncio.wait([starting])
        if connection is not None:
            await connection.session.close()
