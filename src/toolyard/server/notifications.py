"""Changes: clients are told that their own list changed, once for each burst of changes."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from toolyard.model.errors import ToolError
from toolyard.model.profile import Profile
from toolyard.server.lists import Kind, Lists
from toolyard.server.request import RequestContext
from toolyard.wire.messages import INVALID_PARAMS, INVALID_REQUEST, Fault, Id, encode_notification
from toolyard.wire.params import SUBSCRIPTION, SubscriptionFilter, SubscriptionsListen
from toolyard.yard import Yard

__all__ = ["URIS", "ChangeNotifier", "Subscription", "check_uri", "listen"]


URIS: Final = 1000
"""How many resources one client of the older era may subscribe to, and one of the newer era with each request."""
_DEBOUNCE: Final = 0.15
_LONGEST_WAIT: Final = 1.0
_SETTLED: Final = 2.0
_METHODS: Final[dict[Kind, str]] = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "templates": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}
_log = logging.getLogger(__name__)


class Subscription:
    """One client that wants to hear of changes: of which, and how it is told."""

    __slots__ = ("_seen", "kinds", "pending", "profile", "send", "sources", "subscription_id", "uris")

    def __init__(
        self, profile: Profile, send: Callable[[bytes], None], *, kinds: set[Kind], uris: set[str], subscription_id: Id | None = None
    ) -> None:
        self.profile = profile
        self.send = send
        self.kinds = kinds
        self.uris = uris
        self.sources: dict[str, str] = {}
        """By URI who publishes the resource, if he is told of the subscription."""
        self.subscription_id = subscription_id
        self.pending: set[asyncio.Future[None]] = set()
        """What is done once whoever publishes them tells of all of these resources."""
        self._seen: dict[Kind, str] = {}

    def changed(self, lists: Lists) -> set[str]:
        """Return what this client must be told now: the methods of the lists that changed since it was last told."""
        told: set[str] = set()
        for kind in self.kinds:
            fingerprint = lists.fingerprint(kind, self.profile)
            if self._seen.get(kind, fingerprint) != fingerprint:
                told.add(_METHODS[kind])
            self._seen[kind] = fingerprint
        return told

    def tell(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification, under the subscription's id if it has one."""
        if self.subscription_id is not None:
            params = {**(params or {}), "_meta": {SUBSCRIPTION: self.subscription_id}}
        self.send(encode_notification(method, params))


class ChangeNotifier:
    """Watches the registry of a yard and tells whoever wants to know."""

    def __init__(self, yard: Yard, lists: Lists) -> None:
        self._lists = lists
        self._registry = yard.registry
        self._subscriptions: set[Subscription] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0
        self._stops = [yard.registry.watch(lambda _: self._note()), yard.registry.watch_updates(self._updated)]

    def add(self, subscription: Subscription) -> Callable[[], None]:
        """Tell this client from now on; return what stops that."""
        subscription.changed(self._lists)
        self._subscriptions.add(subscription)
        subscription.pending.update(self._pass_on(subscription, subscription.uris))
        return lambda: self._remove(subscription)

    def follow(self, subscription: Subscription, uri: str) -> None:
        """Tell a client of one more resource."""
        subscription.uris.add(uri)
        subscription.pending.update(self._pass_on(subscription, {uri}))

    def unfollow(self, subscription: Subscription, uri: str) -> None:
        """Tell a client no more of a resource."""
        subscription.uris.discard(uri)
        source = subscription.sources.pop(uri, None)
        if source is not None:
            self._registry.subscriptions.remove({uri: source})

    async def settle(self, subscription: Subscription) -> None:
        """Wait, but not for long, until all that a client subscribed to is told to it."""
        pending, subscription.pending = subscription.pending, set()
        if pending:
            await asyncio.wait(pending, timeout=_SETTLED)

    def close(self) -> None:
        """Tell nobody any more."""
        for stop in self._stops:
            stop()
        if self._timer is not None:
            self._timer.cancel()
        for subscription in tuple(self._subscriptions):
            self._remove(subscription)

    def _remove(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        sources, subscription.sources = subscription.sources, {}
        self._registry.subscriptions.remove(sources)

    def _pass_on(self, subscription: Subscription, uris: set[str]) -> "tuple[asyncio.Future[None], ...]":
        """Tell whoever publishes them of the resources that somebody subscribed to; return what is done once that holds."""
        subscribed = self._registry.subscribe(uris - subscription.sources.keys(), subscription.profile)
        subscription.sources.update(subscribed.sources)
        return subscribed.ready

    def _note(self) -> None:
        """Wait until the burst is over, but not for ever."""
        if not self._subscriptions:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is None:
            self._latest = now + _LONGEST_WAIT
        else:
            self._timer.cancel()
        self._timer = loop.call_at(min(now + _DEBOUNCE, self._latest), self._tell)

    def _tell(self) -> None:
        self._timer = None
        for subscription in tuple(self._subscriptions):
            self._pass_on(subscription, subscription.uris)  # what was not there yet may be now, and nobody waits for that
            for method in sorted(subscription.changed(self._lists)):
                _quietly(subscription, method, None)

    def _exists(self, uri: str, profile: Profile) -> bool:
        try:
            self._registry.find_resource(uri, profile)
        except ToolError:
            return False
        return True

    def _updated(self, uri: str) -> None:
        for subscription in tuple(self._subscriptions):
            if uri in subscription.uris and self._exists(uri, subscription.profile):
                _quietly(subscription, "notifications/resources/updated", {"uri": uri})


def _quietly(subscription: Subscription, method: str, params: dict[str, Any] | None) -> None:
    try:
        subscription.tell(method, params)
    except Exception:  # noqa: BLE001 - one client that cannot be told must not keep the others from it
        _log.exception("notice_failed method=%s", method)


_URI_CHARACTERS: Final = 8192


async def listen(exchange: RequestContext, params: SubscriptionsListen) -> bytes:
    """Tell a client of changes for as long as it listens; the answer comes only when the server ends first."""
    front = exchange.front
    if exchange.notify is None:
        raise Fault(INVALID_REQUEST, "This request needs a way to be told of changes: accept 'text/event-stream'.")
    wanted = params.notifications
    if len(wanted.resource_subscriptions) > URIS:
        raise Fault(INVALID_PARAMS, f"At most {URIS} resources can be subscribed to.")
    for uri in wanted.resource_subscriptions:
        check_uri(uri)
    if not front.serving.notify_changes:
        wanted = SubscriptionFilter(resource_subscriptions=wanted.resource_subscriptions)
    subscription = Subscription(
        front.profile_of(exchange.caller),
        exchange.notify,
        kinds=_kinds(wanted),
        uris=set(wanted.resource_subscriptions),
        subscription_id=exchange.id,
    )
    stop = front.changes.add(subscription)
    try:
        await front.changes.settle(subscription)
        subscription.tell("notifications/subscriptions/acknowledged", {"notifications": wanted})
        await front.closing.wait()
    finally:
        stop()
    return exchange.answers.with_meta(SUBSCRIPTION, exchange.id)


def check_uri(uri: str) -> None:
    """Check that a URI is not too long to be kept.

    Raises:
        Fault: It is.
    """
    if len(uri) > _URI_CHARACTERS:
        raise Fault(INVALID_PARAMS, f"A URI that is subscribed to has at most {_URI_CHARACTERS} characters.")


def _kinds(wanted: SubscriptionFilter) -> set[Kind]:
    kinds: set[Kind] = set()
    if wanted.tools_list_changed:
        kinds.add("tools")
    if wanted.prompts_list_changed:
        kinds.add("prompts")
    if wanted.resources_list_changed:
        kinds |= {"resources", "templates"}
    return kinds
