"""Looking: what an upstream offers is listed once for all who ask, and again, in good time, when it says that it changed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from toolyard.providers.upstream.catalogue import Catalogue, reached_by
from toolyard.providers.upstream.connecting import Connection
from toolyard.providers.upstream.fetching import fetch
from toolyard.providers.upstream.health import Health
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.faults import Fault

__all__ = ["Looks", "Restraint"]

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
