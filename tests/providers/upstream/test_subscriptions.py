"""Subscriptions are made in the way of the upstream's era, and renewed on every connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from scripted import MODERN, Script, ScriptedLink
from test_supervisor import TOOLS, Bench, ask

from callyard.providers.upstream import subscriptions
from callyard.providers.upstream.link import LinkError
from callyard.wire.messages import INVALID_PARAMS, Fault
from callyard.wire.params import SUBSCRIPTION

LINK_LOST = LinkError("lost", "It died.", sent=True)
CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {"subscribe": True}}
OLDER: Script = {
    **TOOLS,
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "scripted", "version": "1"},
    },
    "resources/subscribe": {},
    "resources/unsubscribe": {},
    "tools/call": {},
}
NEWER: Script = {
    **TOOLS,
    "server/discover": {**MODERN["server/discover"], "capabilities": CAPABILITIES},
    "subscriptions/listen": None,
    "tools/call": {},
}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@pytest.fixture(autouse=True)
def short_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry almost at once."""
    monkeypatch.setattr(subscriptions, "_RETRY_SECONDS", 0.001)


def requested_uris(link: ScriptedLink, method: str) -> list[str]:
    """Return the resources of the requests to an older upstream."""
    return [message["params"]["uri"] for message in link.requests(f"resources/{method}")]


def listened_uris(link: ScriptedLink) -> list[list[str]]:
    """Return the resources of each request to a modern upstream."""
    return [
        message["params"]["notifications"].get("resourceSubscriptions", [])
        for message in link.requests("subscriptions/listen")
    ]


def each_once(answers: list[Any]) -> Callable[[object], Any]:
    """Return a function that answers with each of these once."""
    return lambda _: answers.pop(0)


async def first_link(bench: Bench) -> ScriptedLink:
    """Wait for the first link and return it."""
    await bench.until(lambda: bench.links)
    return bench.links[0]


async def test_an_older_upstream_gets_one_request_for_each_resource() -> None:
    bench = Bench(OLDER)
    async with bench.opened(era="2025") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: requested_uris(link, "subscribe") == ["a://b"])
        supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: requested_uris(link, "subscribe") == ["a://b", "a://c"])
        supervisor.subscribe({"a://c"})
        await link.until(lambda: requested_uris(link, "unsubscribe") == ["a://b"])
        supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: requested_uris(link, "subscribe") == ["a://b", "a://c", "a://b"])
        link.notify("notifications/resources/updated", {"uri": "a://c"})

        assert bench.updated == ["a://c"]


async def test_a_modern_upstream_gets_a_new_request_and_the_first_is_cancelled_after_its_acknowledgement() -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(listened_uris(link)) == 1)
        supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: len(listened_uris(link)) == 2)
        assert link.dropped == []
        link.notify(ACKNOWLEDGED, {})
        first, second = (message["id"] for message in link.requests("subscriptions/listen"))
        await bench.until_turn(lambda: link.dropped == [first])
        supervisor.subscribe(frozenset())
        await bench.until_turn(lambda: link.dropped == [first, second])

        assert listened_uris(link) == [["a://b"], ["a://b", "a://c"]]
        link.notify(ACKNOWLEDGED, {})  # too late, and no harm done


async def test_the_acknowledgement_of_an_earlier_request_does_not_confirm_the_newest() -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(listened_uris(link)) == 1)
        confirmation = supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: len(listened_uris(link)) == 2)
        first, second = (message["id"] for message in link.requests("subscriptions/listen"))
        link.notify(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: first}})
        link.notify(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: "another"}})
        await asyncio.sleep(0)  # a turn of the loop, in which the first would be let go
        assert confirmation is not None
        assert (confirmation.done(), link.dropped) == (False, [])
        link.notify(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: second}})
        await bench.until_turn(lambda: link.dropped == [first])
        assert confirmation.done()


@pytest.mark.parametrize("unread", [{"_meta": 7}, {"_meta": {SUBSCRIPTION: None}}])
async def test_an_acknowledgement_without_an_id_confirms_the_newest_request(unread: Any) -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        confirmation = supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: listened_uris(link))
        link.notify(ACKNOWLEDGED, unread)

        assert confirmation is not None
        assert confirmation.done()


@pytest.mark.parametrize("script", [OLDER, NEWER])
async def test_a_subscriber_can_wait_for_the_confirmation(script: Script) -> None:
    bench = Bench({**script, "resources/subscribe": None})
    async with bench.opened(era="2025" if script is OLDER else "2026") as supervisor:
        confirmation, again = supervisor.subscribe({"a://b"}), supervisor.subscribe({"a://b", "a://c"})
        link = await first_link(bench)
        link.script["resources/unsubscribe"] = {}
        await link.until(lambda: requested_uris(link, "subscribe") or listened_uris(link))
        assert confirmation is not None
        assert (confirmation is again, confirmation.done()) == (True, False)
        link.script["resources/subscribe"] = {}
        if script is OLDER:
            link.listener.receive(
                b'{"jsonrpc":"2.0","id":%d,"result":{}}' % link.requests("resources/subscribe")[0]["id"], None
            )
        else:
            link.notify(ACKNOWLEDGED, {})
        async with asyncio.timeout(60):
            await confirmation


async def test_a_missing_acknowledgement_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_TIMEOUT_SECONDS", 0.01)
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(listened_uris(link)) == 1)
        supervisor.subscribe({"a://c"})
        await bench.until_turn(lambda: link.dropped)

        assert listened_uris(link) == [["a://b"], ["a://c"]]


@pytest.mark.parametrize("script", [OLDER, NEWER])
async def test_after_a_crash_subscriptions_are_renewed_and_missed_changes_reported(script: Script) -> None:
    bench = Bench(script)
    async with bench.opened(era="2025" if script is OLDER else "2026") as supervisor:
        supervisor.subscribe({"a://b"})
        first = await first_link(bench)
        await first.until(lambda: requested_uris(first, "subscribe") or listened_uris(first))
        await bench.until(lambda: bench.fetched)
        first.listener.end(LINK_LOST)
        first.notify(ACKNOWLEDGED, {})  # too late, and no harm done
        supervisor.ensure_subscribed()
        await bench.until(lambda: len(bench.links) == 2)
        second = bench.links[1]
        await second.until(lambda: requested_uris(second, "subscribe") or listened_uris(second))
        if script is NEWER:
            second.notify(ACKNOWLEDGED, {})
        await bench.until_turn(lambda: bench.updated == ["a://b"])


async def test_a_request_that_the_upstream_ends_is_renewed_and_missed_changes_reported() -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: listened_uris(link))
        ended = link.requests("subscriptions/listen")[0]["id"]
        link.listener.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % ended, None)
        await link.until(lambda: len(listened_uris(link)) == 2)
        link.notify(ACKNOWLEDGED, {})

        assert bench.updated == ["a://b"]


@pytest.mark.parametrize("script", [OLDER, NEWER])
async def test_a_transient_error_is_retried(script: Script) -> None:
    answers: list[Any] = [LinkError("unavailable", "Not now."), None]
    bench = Bench({**script, "resources/subscribe": each_once(answers), "subscriptions/listen": each_once(answers)})
    async with bench.opened(era="2025" if script is OLDER else "2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(requested_uris(link, "subscribe") + listened_uris(link)) == 2)


async def test_subscriptions_are_renewed_after_a_lost_session() -> None:
    bench = Bench({**OLDER, "resources/subscribe": LinkError("session_lost", "Who are you?")}, OLDER)
    async with bench.opened(era="2025") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await bench.until_turn(lambda: requested_uris(link, "subscribe") and not supervisor.is_connected)
        supervisor.ensure_subscribed()
        await bench.until(lambda: len(bench.links) == 2)
        await bench.links[1].until(lambda: requested_uris(bench.links[1], "subscribe") == ["a://b"])


async def test_a_refused_subscription_does_not_prevent_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_TIMEOUT_SECONDS", 0.01)
    answers: list[Any] = [Fault(INVALID_PARAMS, "No such thing."), None, {}]
    bench = Bench({**OLDER, "resources/subscribe": each_once(answers)})
    async with bench.opened(era="2025") as supervisor:
        supervisor.subscribe({"a://b", "a://c", "a://d"})
        link = await first_link(bench)
        await link.until(lambda: requested_uris(link, "subscribe") == ["a://b", "a://c", "a://d"])


@pytest.mark.parametrize("refusal", [Fault(INVALID_PARAMS, "No."), LinkError("refused", "No.", status=400)])
async def test_an_upstream_that_refuses_subscriptions_is_not_asked_again(refusal: Exception) -> None:
    bench = Bench({**NEWER, "subscriptions/listen": refusal})
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await bench.until_turn(lambda: len(asyncio.all_tasks()) == 1)  # but for this test nothing goes on any more
        assert supervisor.subscribe({"a://c"}) is None  # there is nothing to wait for
        assert await ask(supervisor) == b"{}"

        assert (listened_uris(link), supervisor.is_connected) == ([["a://b"]], True)


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_an_upstream_without_subscriptions_is_neither_asked_nor_kept_running(era: str) -> None:
    capabilities = {"tools": {"listChanged": True}, "resources": {}}
    script = {**OLDER, **NEWER}
    script["initialize"] = {**OLDER["initialize"], "capabilities": capabilities}
    script["server/discover"] = {**NEWER["server/discover"], "capabilities": capabilities}
    bench = Bench(script)
    async with bench.opened(era=era, idle_seconds=1) as supervisor:
        supervisor.subscribe({"a://b"})
        await bench.until(lambda: bench.fetched)
        await bench.until_turn(lambda: supervisor.is_connected)
        bench.now += 2
        await supervisor.stop_if_idle()
        supervisor.ensure_subscribed()

        assert (supervisor.is_connected, len(bench.links), requested_uris(bench.links[0], "subscribe")) == (
            False,
            1,
            [],
        )


async def test_an_upstream_with_subscriptions_is_never_idle() -> None:
    bench = Bench(OLDER)
    async with bench.opened(era="2025", idle_seconds=1) as supervisor:
        supervisor.subscribe({"a://b"})
        await bench.until(lambda: bench.fetched)
        bench.now += 2
        await asyncio.sleep(0)  # a turn of the loop, in which the look ends
        await supervisor.stop_if_idle()
        assert supervisor.is_connected
        supervisor.subscribe(frozenset())
        await supervisor.stop_if_idle()
        assert not supervisor.is_connected


async def test_subscriptions_do_not_start_a_failing_or_closed_upstream() -> None:
    bench = Bench(OLDER, cannot_open=LinkError("unavailable", "It is not there."))
    async with bench.opened(era="2025") as supervisor:
        for number in (1, 2, 3):
            bench.now += 0.01
            supervisor.subscribe({"a://b"})
            await bench.until_turn(lambda number=number: supervisor.health.failures == number)
            await asyncio.sleep(0)  # a turn of the loop, in which the start ends
        supervisor.ensure_subscribed()
        await supervisor.close()
        bench.now += 1000
        supervisor.subscribe({"a://c"})
        await asyncio.sleep(0)  # a turn of the loop, in which it would start

        assert len(bench.links) == 3
