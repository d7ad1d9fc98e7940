"""Change notifications: a client learns that one of its own lists changed, once for each burst of changes."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.server.lists import Kind, Lists
from callyard.server.tasks import follow_task, known_tasks
from callyard.wire.messages import INVALID_PARAMS, INVALID_REQUEST, Fault, Id, encode_notification
from callyard.wire.params import SUBSCRIPTION, SubscriptionFilter, SubscriptionsListen
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.server.context import RequestContext

__all__ = ["MAX_URIS", "ChangeNotifier", "Subscription", "check_uri", "listen"]


MAX_URIS: Final = 1000
"""Resources that one session, or one `subscriptions/listen`, may subscribe to."""
_URI_CHARACTERS: Final = 8192
_DEBOUNCE_S: Final = 0.15
_LONGEST_WAIT_S: Final = 1.0
_CONFIRM_S: Final = 2.0
_METHODS: Final[dict[Kind, str]] = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "templates": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}
_log = logging.getLogger(__name__)


class Subscription(msgspec.Struct, eq=False):
    """The lists and resources that one client follows, and how to notify it."""

    profile: Profile
    send: Callable[[bytes], None]
    kinds: set[Kind]
    uris: set[str]
    subscription_id: Id | None = None
    sources: dict[str, str] = {}
    """By URI the provider that was asked to report changes of the resource."""
    pending: set[asyncio.Future[None]] = set()
    """Done once the providers report changes of these resources."""
    seen: dict[Kind, str] = {}
    """The fingerprints of the lists as the client knows them."""

    def changed(self, lists: Lists) -> set[str]:
        """Return the notification methods of the lists that changed since the last time."""
        methods: set[str] = set()
        for kind in self.kinds:
            fingerprint = lists.fingerprint(kind, self.profile)
            # A list that changed and changed back is news for a client that got it in between.
            if self.seen.get(kind, fingerprint) != fingerprint or lists.was_sent(
                kind, self.profile, other_than=fingerprint
            ):
                methods.add(_METHODS[kind])
            self.seen[kind] = fingerprint
        return methods

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification, with the subscription's id if it has one."""
        if self.subscription_id is not None:
            params = {**(params or {}), "_meta": {SUBSCRIPTION: self.subscription_id}}
        self.send(encode_notification(method, params))


class ChangeNotifier:
    """Watches the registry of a yard and notifies the subscriptions."""

    def __init__(self, yard: Yard, lists: Lists) -> None:
        self._lists = lists
        self._registry = yard.registry
        self._subscriptions: set[Subscription] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._latest = 0.0
        self._unwatch = [yard.registry.watch(lambda _: self._schedule()), yard.registry.watch_updates(self._updated)]

    def add(self, subscription: Subscription) -> Callable[[], None]:
        """Notify a subscription from now on; return a function that removes it."""
        subscription.changed(self._lists)
        self._subscriptions.add(subscription)
        subscription.pending.update(self._subscribe(subscription, subscription.uris))
        return lambda: self._remove(subscription)

    def follow(self, subscription: Subscription, uri: str) -> None:
        """Add a resource to a subscription."""
        subscription.uris.add(uri)
        subscription.pending.update(self._subscribe(subscription, {uri}))

    def unfollow(self, subscription: Subscription, uri: str) -> None:
        """Remove a resource from a subscription."""
        subscription.uris.discard(uri)
        source = subscription.sources.pop(uri, None)
        if source is not None:
            self._registry.subscriptions.remove({uri: source})

    async def settle(self, subscription: Subscription) -> None:
        """Wait a short time until the providers report changes of the subscription's resources."""
        pending, subscription.pending = subscription.pending, set()
        if pending:
            await asyncio.wait(pending, timeout=_CONFIRM_S)

    def close(self) -> None:
        """Remove all subscriptions, and stop watching the registry."""
        for unwatch in self._unwatch:
            unwatch()
        if self._timer is not None:
            self._timer.cancel()
        for subscription in tuple(self._subscriptions):
            self._remove(subscription)

    def _remove(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        sources, subscription.sources = subscription.sources, {}
        self._registry.subscriptions.remove(sources)

    def _subscribe(self, subscription: Subscription, uris: set[str]) -> "tuple[asyncio.Future[None], ...]":
        """Ask the providers to report changes of resources; return the futures of their confirmations."""
        subscribed = self._registry.subscribe(uris - subscription.sources.keys(), subscription.profile)
        subscription.sources.update(subscribed.sources)
        return subscribed.ready

    def _schedule(self) -> None:
        """Notify once no change has come for a moment, and at the latest after `_LONGEST_WAIT_S`."""
        if not self._subscriptions:
            return
        self._lists.note_sent(enabled=True)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._timer is None:
            self._latest = now + _LONGEST_WAIT_S
        else:
            self._timer.cancel()
        self._timer = loop.call_at(min(now + _DEBOUNCE_S, self._latest), self._notify_all)

    def _notify_all(self) -> None:
        self._timer = None
        for subscription in tuple(self._subscriptions):
            # Resources may have appeared; nobody waits for their confirmation.
            self._subscribe(subscription, subscription.uris)
            for method in sorted(subscription.changed(self._lists)):
                _notify_safely(subscription, method, None)
        self._lists.note_sent(enabled=False)

    def _updated(self, uri: str) -> None:
        for subscription in tuple(self._subscriptions):
            if uri in subscription.uris:
                with suppress(ToolError):  # it does not exist for this client
                    self._registry.find_resource(uri, subscription.profile)
                    _notify_safely(subscription, "notifications/resources/updated", {"uri": uri})


def _notify_safely(subscription: Subscription, method: str, params: dict[str, Any] | None) -> None:
    try:
        subscription.notify(method, params)
    except Exception:  # noqa: BLE001 - a client that cannot be notified must not keep the others from it
        log_exception(_log, "notice_failed method=%s", method)


async def listen(context: "RequestContext", params: SubscriptionsListen) -> bytes:
    """Send notifications until the request is cancelled; return a result when the server shuts down."""
    server = context.server
    if context.notify is None:
        raise Fault(INVALID_REQUEST, "Notifications need a stream: accept 'text/event-stream'.")
    filters = params.notifications
    if len(filters.resource_subscriptions) > MAX_URIS:
        raise Fault(INVALID_PARAMS, f"At most {MAX_URIS} resources can be subscribed to.")
    for uri in filters.resource_subscriptions:
        check_uri(uri)
    tasks = await known_tasks(context, filters.task_ids) if filters.task_ids else []
    filters = msgspec.structs.replace(filters, task_ids=tasks)
    if not server.serving.notify_changes:
        filters = SubscriptionFilter(resource_subscriptions=filters.resource_subscriptions, task_ids=tasks)
    subscription = Subscription(
        profile=server.profile_of(context.caller),
        send=context.notify,
        kinds=_kinds(filters),
        uris=set(filters.resource_subscriptions),
        subscription_id=context.id,
    )
    remove = server.notifier.add(subscription)
    try:
        await server.notifier.settle(subscription)
        subscription.notify("notifications/subscriptions/acknowledged", {"notifications": filters})
        following = [
            asyncio.get_running_loop().create_task(follow_task(context, task_id, subscription.notify))
            for task_id in tasks
        ]
        try:
            await server.closing.wait()
        finally:
            for follower in following:
                follower.cancel()
            await asyncio.gather(*following, return_exceptions=True)
    finally:
        remove()
    return context.encoder.complete(b"{}", meta={SUBSCRIPTION: context.id})


def check_uri(uri: str) -> None:
    """Check the length of a URI that will be stored.

    Raises:
        Fault: It is too long.
    """
    if len(uri) > _URI_CHARACTERS:
        raise Fault(INVALID_PARAMS, f"A URI that is subscribed to has at most {_URI_CHARACTERS} characters.")


def _kinds(filters: SubscriptionFilter) -> set[Kind]:
    wanted: dict[Kind, bool] = {
        "tools": filters.tools_list_changed,
        "prompts": filters.prompts_list_changed,
        "resources": filters.resources_list_changed,
        "templates": filters.resources_list_changed,
    }
    return {kind for kind, is_wanted in wanted.items() if is_wanted}
