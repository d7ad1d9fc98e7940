"""Subscriptions at an upstream: to changes of its lists, and to the resources that our clients subscribe to.

An upstream of the 2025 era announces list changes by itself, and takes one request for each resource. One of the 2026
era announces everything on one open `subscriptions/listen` request. To change it, a second request replaces the first
once it is acknowledged.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

import msgspec

from callyard._internal.logfmt import log_value
from callyard.providers.upstream.catalogue import Catalogue
from callyard.providers.upstream.handshake import Connection
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import decode_or_none
from callyard.wire.messages import Fault, Id
from callyard.wire.params import SUBSCRIPTION

__all__ = ["ActiveSubscriptions", "Subscriptions", "supports_subscriptions", "uri_of"]

_RETRY_SECONDS: Final = 5.0
_LONGEST_RETRY_SECONDS: Final = 60.0
_TIMEOUT_SECONDS: Final = 5.0
"""How long an upstream may take to answer or acknowledge a subscription."""
_TRANSIENT: Final = frozenset({"unavailable", "lost", "rate_limited"})
"""Errors after which the same connection is tried again."""
_LISTS: Final = ("tools", "prompts", "resources")
_NOTHING: Final[frozenset[str]] = frozenset()
_log = logging.getLogger(__name__)


class _AcknowledgedParams(msgspec.Struct):
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


class ActiveSubscriptions:
    """The subscriptions on one connection."""

    def __init__(
        self,
        connection: Connection,
        uris: AbstractSet[str],
        *,
        missed: AbstractSet[str],
        updated: Callable[[str], None],
        confirmed: Callable[[], None],
    ) -> None:
        capabilities = connection.handshake.capabilities
        self._connection = connection
        self._uris = uris
        """The subscribed resources, by the upstream's own URIs."""
        self._missed = missed
        """Resources that may have changed while there was no subscription."""
        self._updated = updated
        self._confirmed = confirmed
        self._is_modern = connection.requests.version.modern
        self._lists = _list_filters(capabilities) if self._is_modern else {}
        self._supports_resources = supports_subscriptions(capabilities)
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._requests: list[asyncio.Task[msgspec.Raw]] = []
        self._newest: Id | None = None

    def subscribe(self, uris: AbstractSet[str]) -> None:
        """Replace the set of subscribed resources."""
        self._uris = uris
        self._changed.set()

    def acknowledge(self, params: msgspec.Raw) -> None:
        """Handle an acknowledgement of the newest request; one without a request id counts as that."""
        if _subscription_of(params) in {self._newest, None}:
            self._acknowledged.set()
            self._confirm()

    async def run(self) -> None:
        """Keep the subscriptions until the upstream refuses them.

        Raises:
            LinkError: The connection can no longer be used.
        """
        if not self._lists and not self._supports_resources:
            return
        clock, pause = asyncio.get_running_loop().time, _RETRY_SECONDS
        while True:
            started = clock()
            try:
                await (self._run_modern() if self._is_modern else self._run_handshake_era())
            except Fault as fault:
                self._log(fault.message)
                return
            except LinkError as error:
                self._log(error.message)
                if error.kind not in _TRANSIENT or self._connection.session.link_error is not None:
                    raise
            self._missed = self._uris
            pause = _RETRY_SECONDS if clock() - started > _LONGEST_RETRY_SECONDS else pause
            await asyncio.sleep(pause)  # an upstream that ends every request at once must not be asked in a tight loop
            pause = min(2 * pause, _LONGEST_RETRY_SECONDS)

    async def _run_handshake_era(self) -> None:
        subscribed: set[str] = set()
        while True:
            self._changed.clear()
            for uri in sorted(self._uris - subscribed):
                await self._request("resources/subscribe", uri)
                subscribed.add(uri)
            for uri in sorted(subscribed - self._uris):
                await self._request("resources/unsubscribe", uri)
                subscribed.discard(uri)
            self._confirm()
            await self._changed.wait()

    async def _request(self, method: str, uri: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await self._connection.request(method, {"uri": uri}, name=uri)
        except Fault as fault:
            self._log(fault.message)
        except TimeoutError:
            self._log(f"It did not answer '{method}' in time.")

    async def _run_modern(self) -> None:
        """Keep one `subscriptions/listen` request open until the upstream ends it."""
        try:
            while True:
                self._changed.clear()
                await self._listen()
                await self._wait_for(self._changed)
                if self._requests and self._requests[-1].done():
                    self._requests[-1].result()
                    return
        finally:
            await self._cancel(*self._requests)

    async def _listen(self) -> None:
        """Send a request for the current set, and cancel the previous one after the acknowledgement."""
        previous = tuple(self._requests)
        notifications: dict[str, Any] = dict(self._lists)
        if self._uris and self._supports_resources:
            notifications["resourceSubscriptions"] = sorted(self._uris)
        if notifications:
            self._acknowledged.clear()
            self._newest = self._connection.session.next_id()
            params = {"notifications": notifications}
            request = self._connection.request("subscriptions/listen", params, request_id=self._newest)
            self._requests.append(asyncio.get_running_loop().create_task(request))
            if previous:
                await self._wait_for(self._acknowledged, seconds=_TIMEOUT_SECONDS)
        await self._cancel(*previous)

    async def _wait_for(self, event: asyncio.Event, *, seconds: float | None = None) -> None:
        """Wait for an event, or until the newest request is over."""
        waiting = asyncio.get_running_loop().create_task(event.wait())
        try:
            await asyncio.wait({waiting, *self._requests[-1:]}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _cancel(self, *requests: "asyncio.Task[msgspec.Raw]") -> None:
        for request in requests:
            self._requests.remove(request)
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def _confirm(self) -> None:
        """Report the resources that may have changed, and confirm the subscriptions unless they changed again."""
        missed, self._missed = self._missed & self._uris, _NOTHING
        for uri in sorted(missed):
            self._updated(uri)
        if not self._changed.is_set():
            self._confirmed()

    def _log(self, why: str) -> None:
        _log.info("upstream_tells_no_changes upstream=%s why=%s", self._connection.session.name, log_value(why))


def uri_of(params: msgspec.Raw) -> str | None:
    """Return the resource that `notifications/resources/updated` is about, if it names one."""
    uri = (decode_or_none(params, dict[str, Any]) or {}).get("uri")
    return uri if isinstance(uri, str) else None


def _subscription_of(params: msgspec.Raw) -> object:
    decoded = decode_or_none(params, _AcknowledgedParams)
    request_id = None if decoded is None else decoded.meta.get(SUBSCRIPTION)
    return request_id if isinstance(request_id, int | str) else None


def supports_subscriptions(capabilities: Mapping[str, Any]) -> bool:
    """Return whether an upstream supports subscriptions to resources."""
    return _has(capabilities, "resources", "subscribe")


def _list_filters(capabilities: Mapping[str, Any]) -> dict[str, bool]:
    """Return the lists whose changes an upstream announces, as `subscriptions/listen` names them."""
    return {f"{kind}ListChanged": True for kind in _LISTS if _has(capabilities, kind, "listChanged")}


def _has(capabilities: Mapping[str, Any], kind: str, feature: str) -> bool:
    features = capabilities.get(kind)
    return isinstance(features, dict) and bool(cast("dict[str, Any]", features).get(feature))


class Subscriptions:
    """The subscriptions at an upstream, renewed on each of its connections."""

    def __init__(self, *, updated: Callable[[str], None], lost: Callable[[Connection], None]) -> None:
        self._updated = updated
        self._lost = lost
        self._uris: AbstractSet[str] = _NOTHING
        self._missed: AbstractSet[str] = _NOTHING
        self._active: ActiveSubscriptions | None = None
        self._task: asyncio.Task[None] | None = None
        self._confirmation: asyncio.Future[None] | None = None

    def needs_connection(self, catalogue: Catalogue | None) -> bool:
        """Return whether resources are subscribed and the upstream, as far as we know, supports that."""
        return bool(self._uris) and (catalogue is None or supports_subscriptions(catalogue.capabilities))

    def subscribe(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        """Replace the subscribed resources; return a future for the confirmation, or None if there will be none."""
        self._uris = uris
        if self._active is not None:
            self._active.subscribe(uris)
        if self._task is not None and self._task.done():
            return None
        if self._confirmation is None:
            self._confirmation = asyncio.get_running_loop().create_future()
        return self._confirmation

    def start(self, connection: Connection, spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]) -> None:
        """Subscribe on a new connection."""
        self._active = ActiveSubscriptions(
            connection, self._uris, missed=self._missed, updated=self._updated, confirmed=self._confirm
        )
        self._task = spawn(self._run(connection, self._active))

    def acknowledge(self, params: msgspec.Raw) -> None:
        """Handle `notifications/subscriptions/acknowledged`."""
        if self._active is not None:
            self._active.acknowledge(params)

    def stop(self) -> None:
        """Stop, because the connection is gone; changes from now on count as missed."""
        if self._task is not None:
            self._task.cancel()
            self._missed = self._uris
        self._active = self._task = None

    def _confirm(self) -> None:
        confirmation, self._confirmation = self._confirmation, None
        if confirmation is not None and not confirmation.done():
            confirmation.set_result(None)

    async def _run(self, connection: Connection, active: ActiveSubscriptions) -> None:
        try:
            await active.run()
        except LinkError as error:
            if error.kind == "session_lost":
                self._lost(connection)
                return
        self._confirm()
