"""Listening: a client of the newer era hears of changes on a request that stays open."""

from typing import Final

from toolyard.conversation.changes import URIS, Subscription
from toolyard.conversation.exchange import Exchange
from toolyard.conversation.lists import Kind
from toolyard.wire.faults import INVALID_PARAMS, INVALID_REQUEST, Fault
from toolyard.wire.params import SUBSCRIPTION, Listen, Wanted

__all__ = ["check_uri", "listen"]

_LONGEST: Final = 8192


async def listen(exchange: Exchange, params: Listen) -> bytes:
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
        wanted = Wanted(resource_subscriptions=wanted.resource_subscriptions)
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
    if len(uri) > _LONGEST:
        raise Fault(INVALID_PARAMS, f"A URI that is subscribed to has at most {_LONGEST} characters.")


def _kinds(wanted: Wanted) -> set[Kind]:
    kinds: set[Kind] = set()
    if wanted.tools_list_changed:
        kinds.add("tools")
    if wanted.prompts_list_changed:
        kinds.add("prompts")
    if wanted.resources_list_changed:
        kinds |= {"resources", "templates"}
    return kinds
