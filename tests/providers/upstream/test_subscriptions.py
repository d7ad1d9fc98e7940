"""An upstream is asked to tell of the resources that somebody here is subscribed to, in the way of its era, and on every connection."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from scripted import MODERN, Script, ScriptedLink
from test_supervisor import TOOLS, Bench, ask

from toolyard.providers.upstream import subscriptions
from toolyard.providers.upstream.link import LinkError
from toolyard.wire.messages import INVALID_PARAMS, Fault
from toolyard.wire.params import SUBSCRIPTION

GONE = LinkError("lost", "It died.", sent=True)
TELLS: dict[str, Any] = {"tools": {}, "resources": {"subscribe": True}}
OLDER: Script = {
    **TOOLS,
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": TELLS, "serverInfo": {"name": "scripted", "version": "1"}},
    "resources/subscribe": {},
    "resources/unsubscribe": {},
    "tools/call": {},
}
NEWER: Script = {
    **TOOLS,
    "server/discover": {**MODERN["server/discover"], "capabilities": TELLS},
    "subscriptions/listen": None,
    "tools/call": {},
}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait long before something is tried again."""
    monkeypatch.setattr(subscriptions, "_RETRY_SECONDS", 0.001)


def said(link: ScriptedLink, method: str) -> list[str]:
    """Return the resources that an upstream of the older era was asked about."""
    return [message["params"]["uri"] for message in link.requests(f"resources/{method}")]


def wanted(link: ScriptedLink) -> list[list[str]]:
    """Return the resources that an upstream of the newer era was asked about, each time."""
    return [message["params"]["notifications"].get("resourceSubscriptions", []) for message in link.requests("subscriptions/listen")]


def one_by_one(answers: list[Any]) -> Callable[[object], Any]:
    """Return what answers with each of these once."""
    return lambda _: answers.pop(0)


async def first_link(bench: Bench) -> ScriptedLink:
    """Return the link that was made first, once it is."""
    await bench.until(lambda: bench.links)
    return bench.links[0]


async def test_one_of_the_older_era_is_asked_once_for_each_resource() -> None:
    bench = Bench(OLDER)
    async with bench.opened(era="2025") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: said(link, "subscribe") == ["a://b"])
        supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: said(link, "subscribe") == ["a://b", "a://c"])
        supervisor.subscribe({"a://c"})
        await link.until(lambda: said(link, "unsubscribe") == ["a://b"])
        supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: said(link, "subscribe") == ["a://b", "a://c", "a://b"])
        link.say("notifications/resources/updated", {"uri": "a://c"})

        assert bench.updated == ["a://c"]


async def test_one_of_the_newer_era_is_asked_anew_and_the_first_request_is_let_go_once_that_holds() -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(wanted(link)) == 1)
        supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: len(wanted(link)) == 2)
        assert link.dropped == []
        link.say(ACKNOWLEDGED, {})
        first, second = (message["id"] for message in link.requests("subscriptions/listen"))
        await bench.until_turn(lambda: link.dropped == [first])
        supervisor.subscribe(frozenset())
        await bench.until_turn(lambda: link.dropped == [first, second])

        assert wanted(link) == [["a://b"], ["a://b", "a://c"]]
        link.say(ACKNOWLEDGED, {})  # too late, and no harm done


async def test_that_an_earlier_request_holds_says_nothing_of_the_newest() -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(wanted(link)) == 1)
        held = supervisor.subscribe({"a://b", "a://c"})
        await link.until(lambda: len(wanted(link)) == 2)
        first, second = (message["id"] for message in link.requests("subscriptions/listen"))
        link.say(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: first}})
        link.say(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: "another"}})
        await asyncio.sleep(0)  # a turn of the loop, in which the first would be let go
        assert held is not None
        assert (held.done(), link.dropped) == (False, [])
        link.say(ACKNOWLEDGED, {"_meta": {SUBSCRIPTION: second}})
        await bench.until_turn(lambda: link.dropped == [first])
        assert held.done()


@pytest.mark.parametrize("unread", [{"_meta": 7}, {"_meta": {SUBSCRIPTION: None}}])
async def test_one_that_does_not_say_which_request_holds_means_the_newest(unread: Any) -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        held = supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: wanted(link))
        link.say(ACKNOWLEDGED, unread)

        assert held is not None
        assert held.done()


@pytest.mark.parametrize("script", [OLDER, NEWER])
async def test_whoever_subscribes_can_wait_until_that_holds(script: Script) -> None:
    bench = Bench({**script, "resources/subscribe": None})
    async with bench.opened(era="2025" if script is OLDER else "2026") as supervisor:
        held, again = supervisor.subscribe({"a://b"}), supervisor.subscribe({"a://b", "a://c"})
        link = await first_link(bench)
        link.script["resources/unsubscribe"] = {}
        await link.until(lambda: said(link, "subscribe") or wanted(link))
        assert held is not None
        assert (held is again, held.done()) == (True, False)
        link.script["resources/subscribe"] = {}
        if script is OLDER:
            link.listener.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % link.requests("resources/subscribe")[0]["id"], None)
        else:
            link.say(ACKNOWLEDGED, {})
        async with asyncio.timeout(5):
            await held


async def test_one_that_never_says_that_a_request_holds_is_believed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_TIMEOUT_SECONDS", 0.01)
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(wanted(link)) == 1)
        supervisor.subscribe({"a://c"})
        await bench.until_turn(lambda: link.dropped)

        assert wanted(link) == [["a://b"], ["a://c"]]


@pytest.mark.parametrize("script", [OLDER, NEWER])
async def test_after_a_crash_it_is_asked_again_and_what_may_have_changed_meanwhile_is_told(script: Script) -> None:
    bench = Bench(script)
    async with bench.opened(era="2025" if script is OLDER else "2026") as supervisor:
        supervisor.subscribe({"a://b"})
        first = await first_link(bench)
        await first.until(lambda: said(first, "subscribe") or wanted(first))
        await bench.until(lambda: bench.fetched)
        first.listener.end(GONE)
        first.say(ACKNOWLEDGED, {})  # too late, and no harm done
        supervisor.ensure_subscribed()
        await bench.until(lambda: len(bench.links) == 2)
        second = bench.links[1]
        await second.until(lambda: said(second, "subscribe") or wanted(second))
        if script is NEWER:
            second.say(ACKNOWLEDGED, {})
        await bench.until_turn(lambda: bench.updated == ["a://b"])


async def test_one_that_ends_the_request_is_asked_again_after_a_while_and_what_may_have_changed_is_told() -> None:
    bench = Bench(NEWER)
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: wanted(link))
        ended = link.requests("subscriptions/listen")[0]["id"]
        link.listener.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % ended, None)
        await link.until(lambda: len(wanted(link)) == 2)
        link.say(ACKNOWLEDGED, {})

        assert bench.updated == ["a://b"]


@pytest.mark.parametrize("script", [OLDER, NEWER])
async def test_a_passing_trouble_is_waited_out(script: Script) -> None:
    answers: list[Any] = [LinkError("unavailable", "Not now."), None]
    bench = Bench({**script, "resources/subscribe": one_by_one(answers), "subscriptions/listen": one_by_one(answers)})
    async with bench.opened(era="2025" if script is OLDER else "2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await link.until(lambda: len(said(link, "subscribe") + wanted(link)) == 2)


async def test_a_session_that_was_forgotten_is_begun_anew() -> None:
    bench = Bench({**OLDER, "resources/subscribe": LinkError("session_lost", "Who are you?")}, OLDER)
    async with bench.opened(era="2025") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await bench.until_turn(lambda: said(link, "subscribe") and not supervisor.is_connected)
        supervisor.ensure_subscribed()
        await bench.until(lambda: len(bench.links) == 2)
        await bench.links[1].until(lambda: said(bench.links[1], "subscribe") == ["a://b"])


async def test_one_that_refuses_or_does_not_answer_is_asked_for_the_others_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_TIMEOUT_SECONDS", 0.01)
    answers: list[Any] = [Fault(INVALID_PARAMS, "No such thing."), None, {}]
    bench = Bench({**OLDER, "resources/subscribe": one_by_one(answers)})
    async with bench.opened(era="2025") as supervisor:
        supervisor.subscribe({"a://b", "a://c", "a://d"})
        link = await first_link(bench)
        await link.until(lambda: said(link, "subscribe") == ["a://b", "a://c", "a://d"])


@pytest.mark.parametrize("refusal", [Fault(INVALID_PARAMS, "No."), LinkError("refused", "No.", status=400)])
async def test_one_that_will_not_be_listened_to_is_left_alone(refusal: Exception) -> None:
    bench = Bench({**NEWER, "subscriptions/listen": refusal})
    async with bench.opened(era="2026") as supervisor:
        supervisor.subscribe({"a://b"})
        link = await first_link(bench)
        await bench.until_turn(lambda: len(asyncio.all_tasks()) == 1)  # but for this test nothing goes on any more
        assert supervisor.subscribe({"a://c"}) is None  # there is nothing to wait for
        assert await ask(supervisor) == b"{}"

        assert (wanted(link), supervisor.is_connected) == ([["a://b"]], True)


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_one_that_tells_subscribers_nothing_is_neither_asked_nor_kept(era: str) -> None:
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

        assert (supervisor.is_connected, len(bench.links), said(bench.links[0], "subscribe")) == (False, 1, [])


async def test_one_that_is_listened_to_is_never_idle_and_one_that_is_not_any_more_is() -> None:
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


async def test_one_that_is_left_alone_or_closed_is_not_started_to_be_listened_to() -> None:
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
