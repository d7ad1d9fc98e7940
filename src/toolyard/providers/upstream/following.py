"""Following: which resources of an upstream somebody here wants to hear of, over all the connections it has in its life."""

import asyncio
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from toolyard.providers.upstream.catalogue import Catalogue
from toolyard.providers.upstream.connecting import Connection
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.listening import Listening, tells_subscribers

__all__ = ["Following"]

_NOTHING: Final[frozenset[str]] = frozenset()


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
