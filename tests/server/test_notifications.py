import asyncio
import heapq
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from table_tests import every_row

from callyard import Profile, Toolset, Yard, prompt, resource, tool
from callyard._internal.signed_tokens import Signer
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, Caller
from callyard.providers import Publish
from callyard.providers.functions import Functions
from callyard.server import RequestContext, ServerContext, notifications
from callyard.server.lists import Kind, Lists
from callyard.server.notifications import ChangeNotifier, Subscription, listen
from callyard.testing import FakeProvider
from callyard.wire.messages import INVALID_PARAMS, INVALID_REQUEST, Fault
from callyard.wire.params import SUBSCRIPTION, SubscriptionFilter, SubscriptionsListen
from callyard.wire.results import ResultEncoder
from callyard.wire.results import Server as ServerName
from callyard.wire.versions import LATEST

if TYPE_CHECKING:
    from tests.server.conftest import Meet


OLD = "2025-11-25"
MODERN = "2026-07-28"
TOOLS = "notifications/tools/list_changed"
RESOURCES = "notifications/resources/list_changed"
PROMPTS = "notifications/prompts/list_changed"
EVERYTHING = Profile(name="all")
ALL_KINDS: set[Kind] = {"tools", "resources", "templates", "prompts"}


@tool
def one() -> int:
    """Return one."""
    return 1


@tool
def two() -> int:
    """Return two."""
    return 2


@tool
def secret() -> int:
    """Return what nobody may know."""
    return 3


@resource("a://b")
def page() -> str:
    """Return a page."""
    return ""


@resource("b://b")
def other_page() -> str:
    """Return a page of somebody else."""
    return ""


@resource("a://{name}")
def pages(name: str) -> str:
    """Return some page."""
    return name


@prompt
def words() -> str:
    """Return words."""
    return ""


class FakeTimer:
    """A timer of a loop whose time stands still until it is moved."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        """Never run."""
        self.cancelled = True


class FakeLoop:
    """What the notices need of a loop."""

    def __init__(self) -> None:
        self.now = 100.0
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def time(self) -> float:
        """Return the time."""
        return self.now

    def call_at(self, when: float, run: Callable[[], None]) -> FakeTimer:
        """Run something then."""
        timer = FakeTimer(run)
        heapq.heappush(self._timers, (when, len(self._timers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move the time, and run what is due on the way."""
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end + 1e-9:
            self.now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.run()
        self.now = end


class Watched:
    """A yard whose changes are told on a loop that we move."""

    def __init__(self, yard: Yard, provider: FakeProvider, loop: FakeLoop) -> None:
        self.provider = provider
        self.loop = loop
        self.lists = Lists(yard, Serving(), Signer(lambda: b"x"))
        self.encoder = ResultEncoder(LATEST, ServerName("t", "1"))
        self.changes = ChangeNotifier(yard, self.lists)

    def subscribe(self, profile: Profile = EVERYTHING, kinds: set[Kind] | None = None, **more: Any) -> list[str]:
        """Return the list that one more client's notices are put into."""
        notified: list[str] = []
        subscription = Subscription(
            profile,
            lambda message: notified.append(json.loads(message)["method"]),
            kinds=kinds or ALL_KINDS,
            uris=more.pop("uris", set()),
            **more,
        )
        self.changes.add(subscription)
        return notified


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    loop = FakeLoop()
    monkeypatch.setattr(notifications, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
    provider = FakeProvider("p", [one])
    async with Yard(providers=[provider]) as yard:
        known = Watched(yard, provider, loop)
        yield known
        known.changes.close()


def test_a_burst_is_waited_for_as_long_as_is_promised() -> None:
    assert (notifications._DEBOUNCE_S, notifications._LONGEST_WAIT_S) == (0.15, 1.0)  # pyright: ignore[reportPrivateUsage] - the promise


async def test_a_change_is_notified_after_a_quiet_moment(watched: Watched) -> None:
    notified = watched.subscribe()
    watched.provider.change([one, two])
    watched.loop.advance(0.14)
    assert notified == []
    watched.loop.advance(0.02)
    assert notified == [TOOLS]
    watched.loop.advance(10)
    assert notified == [TOOLS]


async def test_a_burst_is_notified_once(watched: Watched) -> None:
    notified = watched.subscribe()
    for count in range(5):
        watched.provider.change([one, two][: 1 + count % 2])
        watched.provider.change([one, two, secret])
        watched.loop.advance(0.1)
    assert notified == []
    watched.loop.advance(0.2)
    assert notified == [TOOLS]


async def test_a_burst_without_end_is_notified_every_second(watched: Watched) -> None:
    times: list[float] = []
    watched.changes.add(Subscription(EVERYTHING, lambda _: times.append(watched.loop.now), kinds={"tools"}, uris=set()))
    every = [one, two, secret]
    for count in range(35):
        watched.provider.change([each for place, each in enumerate(every) if (count + 2) >> place & 1])
        watched.loop.advance(0.1)
    assert len(times) == 3
    assert times[0] == pytest.approx(101)  # pyright: ignore[reportUnknownMemberType] - it has no types
    assert all(0.99 < later - earlier < 1.11 for earlier, later in pairwise(times))


async def test_the_longest_wait_begins_with_the_first_change(watched: Watched) -> None:
    notified = watched.subscribe()
    for _ in range(9):
        watched.provider.change([one, two])
        watched.provider.change([one, secret])
        watched.loop.advance(0.1)
    watched.provider.change([two])
    watched.loop.advance(0.09)
    assert notified == []
    watched.loop.advance(0.02)
    assert notified == [TOOLS]


async def test_a_list_that_is_as_before_is_not_notified(watched: Watched) -> None:
    notified = watched.subscribe()
    watched.provider.change([one, two])
    watched.provider.change([one])
    watched.loop.advance(2)
    assert notified == []


async def test_a_list_that_changed_back_is_notified_if_a_client_got_it_in_between(watched: Watched) -> None:
    notified = watched.subscribe(kinds={"tools"})
    watched.provider.change([one, two])
    watched.lists.page("tools", EVERYTHING, watched.encoder, None)
    watched.provider.change([one])
    watched.loop.advance(2)
    assert notified == [TOOLS]

    watched.lists.page("tools", EVERYTHING, watched.encoder, None)
    watched.provider.change([one, two])
    watched.provider.change([one])
    watched.loop.advance(2)
    assert notified == [TOOLS]


async def test_only_clients_whose_own_list_changed_are_notified(watched: Watched) -> None:
    knows = watched.subscribe()
    denied = watched.subscribe(Profile(name="no", toolsets=(Toolset(name="t", deny=("secret",)),)))
    watched.provider.change([one, secret])
    watched.loop.advance(1)
    assert (knows, denied) == ([TOOLS], [])
    watched.provider.change([two, secret])
    watched.loop.advance(1)
    assert (knows, denied) == ([TOOLS, TOOLS], [TOOLS])


async def test_each_list_has_its_own_notice_and_templates_are_resources(watched: Watched) -> None:
    notified, tools_only = watched.subscribe(), watched.subscribe(kinds={"tools"})
    watched.provider.change([one, two], resources=[page, pages], prompts=[words])
    watched.loop.advance(1)
    assert sorted(notified) == sorted([TOOLS, RESOURCES, PROMPTS])
    assert tools_only == [TOOLS]


async def test_nobody_waits_for_nobody(watched: Watched) -> None:
    watched.provider.change([one, two])
    notified = watched.subscribe()
    watched.loop.advance(1)
    assert notified == []


async def test_a_client_that_left_is_not_notified(watched: Watched) -> None:
    notified: list[bytes] = []
    stop = watched.changes.add(Subscription(EVERYTHING, notified.append, kinds={"tools"}, uris=set()))
    watched.provider.change([one, two])
    stop()
    stop()
    watched.loop.advance(1)
    assert notified == []


async def test_no_notification_is_sent_after_the_end(watched: Watched) -> None:
    notified = watched.subscribe()
    watched.provider.change([one, two])
    watched.changes.close()
    watched.loop.advance(1)
    watched.provider.change([one])
    watched.loop.advance(1)
    assert notified == []


async def test_a_client_that_cannot_be_notified_does_not_block_the_others(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: bytes) -> None:
        raise OSError("gone")

    watched.provider.change([one], resources=[page])
    watched.changes.add(Subscription(EVERYTHING, refuse, kinds={"tools"}, uris={"a://b"}))
    notified = watched.subscribe(uris={"a://b"})
    with caplog.at_level(logging.CRITICAL):
        watched.provider.change([one, two], resources=[page])
        watched.loop.advance(1)
        watched.provider.update("a://b")
    assert notified == [TOOLS, "notifications/resources/updated"]


async def test_an_update_is_notified_at_once_to_its_subscribers(watched: Watched) -> None:
    watched.provider.change([one], resources=[page])
    wants, other = watched.subscribe(uris={"a://b"}), watched.subscribe(uris={"a://c"})
    watched.provider.update("a://b")
    assert (wants, other) == (["notifications/resources/updated"], [])


async def test_an_update_of_a_hidden_resource_is_not_notified(watched: Watched) -> None:
    watched.provider.change([one], resources=[page, pages])
    hidden = watched.subscribe(
        Profile(name="no", toolsets=(Toolset(name="t", deny=("a://*",)),)), uris={"a://b", "a://c"}
    )
    shown = watched.subscribe(uris={"a://b", "a://c"})
    watched.provider.update("a://b")
    watched.provider.update("a://c")
    assert (len(hidden), len(shown)) == (0, 2)


async def test_a_provider_knows_the_subscribed_resources(watched: Watched) -> None:
    provider = watched.provider
    provider.change([one], resources=[page, pages])
    both = Subscription(EVERYTHING, lambda _: None, kinds=set(), uris={"a://b", "a://c"})
    other = Subscription(EVERYTHING, lambda _: None, kinds=set(), uris=set())
    stop, _ = watched.changes.add(both), watched.changes.add(other)
    watched.changes.follow(other, "a://c")
    assert provider.subscribed == {"a://b", "a://c"}
    watched.changes.unfollow(both, "a://c")
    watched.changes.unfollow(both, "a://c")
    assert provider.subscribed == {"a://b", "a://c"}
    stop()
    stop()
    assert provider.subscribed == {"a://c"}
    watched.changes.close()
    assert provider.subscribed == set()


@pytest.mark.parametrize("mounted", [False, True])
async def test_a_provider_gets_all_subscriptions_of_a_request_at_once(*, mounted: bool) -> None:
    provider = Waiting(pages)
    async with Yard(providers=[Yard("inner", providers=[provider]) if mounted else provider]) as yard:
        known = ChangeNotifier(yard, Lists(yard, Serving(), Signer(lambda: b"x")))
        many = Subscription(EVERYTHING, lambda _: None, kinds=set(), uris={f"a://{number}" for number in range(100)})
        stop = known.add(many)
        stop()
        known.close()

    assert [len(uris) for uris in provider.notified] == [0, 100, 0]


async def test_only_what_exists_for_a_client_is_passed_on_and_what_comes_later_as_soon_as_it_does(
    watched: Watched,
) -> None:
    denied = Profile(name="no", toolsets=(Toolset(name="t", deny=("a://*",)),))
    watched.subscribe(denied, uris={"a://c"})
    watched.subscribe(uris={"a://b"})
    assert watched.provider.subscribed == set()
    watched.provider.change([one], resources=[page, pages])
    watched.loop.advance(1)
    assert watched.provider.subscribed == {"a://b"}


async def test_a_notice_names_its_subscription(watched: Watched) -> None:
    said: list[dict[str, Any]] = []
    subscription = Subscription(
        EVERYTHING, lambda message: said.append(json.loads(message)), kinds={"tools"}, uris=set(), subscription_id=7
    )
    subscription.notify(TOOLS)
    subscription.notify(TOOLS, {"uri": "a://b"})

    assert [notice["params"] for notice in said] == [
        {"_meta": {SUBSCRIPTION: 7}},
        {"uri": "a://b", "_meta": {SUBSCRIPTION: 7}},
    ]


class Waiting:
    """A provider that takes a while until it tells of a resource."""

    def __init__(self, *resources: object, name: str = "p") -> None:
        self.name = name
        self.notified: list[AbstractSet[str]] = []
        self.held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resources = resources or (page,)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish what there is."""
        publish.watch_subscriptions(self._follow)
        async with Functions(self.name, [], resources=self._resources).open(publish):
            yield

    def _follow(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        self.notified.append(uris)
        return self.held if uris else None


@every_row("era", ["2025-11-25", "2026-07-28"])
@every_row("mounted", [False, True])
async def test_a_subscription_is_answered_once_it_holds(meet: "Meet", era: str, *, mounted: bool) -> None:
    provider = Waiting()
    async with meet(era=era, providers=[Yard("inner", providers=[provider]) if mounted else provider]) as peer:
        if era == "2026-07-28":
            peer.say(peer.request(1, "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["a://b"]}}))
        else:
            peer.say(peer.request(1, "resources/subscribe", {"uri": "a://b"}))
        await peer.until(lambda: bool(provider.notified[-1]))
        assert peer.left() == []
        provider.held.set_result(None)
        assert await peer.hear()


async def test_a_subscription_in_a_yard_in_a_yard_holds_once_it_does_for_all_who_publish_there(meet: "Meet") -> None:
    providers = [Waiting(page), Waiting(other_page, name="q")]
    wanted = ["a://b", "b://b"]
    async with meet(era=MODERN, providers=[Yard("inner", providers=providers)]) as peer:
        peer.say(peer.request(1, "subscriptions/listen", {"notifications": {"resourceSubscriptions": wanted}}))
        await peer.until(lambda: all(provider.notified[-1] for provider in providers))
        providers[1].held.set_result(None)
        await peer.ask("tools/list")
        assert (peer.notices, peer.left()) == ([], [])
        providers[0].held.set_result(None)
        assert (await peer.hear())["params"]["notifications"]["resourceSubscriptions"] == wanted


async def test_a_subscription_that_does_not_hold_in_time_is_answered_nevertheless(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "_CONFIRM_S", 0.01)
    async with meet(era="2025-11-25", providers=[Waiting()]) as peer:
        assert (await peer.ask("resources/subscribe", {"uri": "a://b"}))["result"] == {}


# The same as clients see it, in the loop's own time
@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait long."""
    monkeypatch.setattr(notifications, "_DEBOUNCE_S", 0.001)
    monkeypatch.setattr(notifications, "_LONGEST_WAIT_S", 0.005)


@pytest.mark.usefixtures("hasty")
async def test_only_who_subscribes_waits_until_that_holds(meet: "Meet", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_CONFIRM_S", 1000)
    late = Waiting()
    async with meet() as peer:
        peer.say(peer.request(1, "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["a://b"]}}))
        assert (await peer.hear())["method"] == "notifications/subscriptions/acknowledged"
        await peer.yard.providers.add(late)
        await peer.until(lambda: bool(late.notified[-1]))

        assert "result" in await peer.ask("tools/list")


@pytest.mark.usefixtures("hasty")
async def test_a_client_of_the_older_era_is_notified(meet: "Meet") -> None:
    provider = FakeProvider("p", [one])
    async with meet(era=OLD, providers=[provider]) as peer:
        assert "result" in await peer.ask("tools/list")
        provider.change([one, two])
        assert await peer.hear() == {"jsonrpc": "2.0", "method": TOOLS}


@pytest.mark.usefixtures("hasty")
async def test_a_client_of_the_newer_era_is_notified_under_its_subscription(meet: "Meet") -> None:
    provider = FakeProvider("p", [one], resources=[page])
    async with meet(providers=[provider]) as peer:
        wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a://b"]}
        peer.say(peer.request("s", "subscriptions/listen", {"notifications": wanted}))
        acknowledged = await peer.hear()
        provider.change([one, two], resources=[page], prompts=[words])
        changed = await peer.hear()
        provider.update("a://b")
        updated = await peer.hear()

    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"] == {"notifications": wanted, "_meta": {SUBSCRIPTION: "s"}}
    assert (changed["method"], changed["params"]) == (TOOLS, {"_meta": {SUBSCRIPTION: "s"}})
    assert (updated["method"], updated["params"]) == (
        "notifications/resources/updated",
        {"uri": "a://b", "_meta": {SUBSCRIPTION: "s"}},
    )


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_a_client_whose_list_is_the_same_hears_nothing(meet: "Meet", era: str) -> None:
    provider = FakeProvider("p", [one])
    caller = Caller(profile=Profile(name="no", toolsets=(Toolset(name="t", deny=("secret",)),)))
    async with meet(era=era, caller=caller, providers=[provider]) as peer:
        if era == MODERN:
            peer.say(peer.request("s", "subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
            await peer.hear()
        provider.change([one, secret])
        provider.change([one, secret, two])
        assert (await peer.hear())["method"] == TOOLS
        provider.change([one, two])
        provider.change([one])
        assert (await peer.hear())["method"] == TOOLS

    assert [message for message in peer.left() if "method" in message] == []


@pytest.mark.usefixtures("hasty")
async def test_changes_that_are_switched_off_are_neither_notified_nor_promised(meet: "Meet") -> None:
    provider = FakeProvider("p", [one], resources=[page], prompts=[words])
    for era in (OLD, MODERN):
        async with meet(era=era, providers=[provider], settings={"notify_changes": False}) as peer:
            if era == OLD:
                capabilities = (await peer.shake_hands())["capabilities"]
            else:
                capabilities = (await peer.ask("server/discover"))["result"]["capabilities"]
                peer.say(peer.request("s", "subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
                assert (await peer.hear())["params"]["notifications"] == {}
            provider.change([one, two], resources=[page], prompts=[words])
            assert len((await peer.ask("tools/list"))["result"]["tools"]) == 2
            later = time.monotonic() + 0.02
            await peer.until(lambda later=later: time.monotonic() > later)
            assert peer.left() == []
        provider.change([one], resources=[page], prompts=[words])
        assert all("listChanged" not in capability for capability in capabilities.values())


async def test_changes_are_promised_where_they_are_notified(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[one], resources=[page], prompts=[words]) as old, meet(tools=[one]) as new:
        capabilities = (await old.shake_hands())["capabilities"]
        discovered = (await new.ask("server/discover"))["result"]["capabilities"]

    assert all(capabilities[kind]["listChanged"] for kind in ("tools", "resources", "prompts"))
    assert capabilities["resources"]["subscribe"]
    assert discovered["tools"] == {"listChanged": True}
    assert {"prompts", "resources", "completions"}.isdisjoint(discovered)


async def test_a_subscription_to_too_many_resources_is_refused(meet: "Meet") -> None:
    async with meet() as peer:
        wanted = {"resourceSubscriptions": [f"a://{number}" for number in range(1001)]}
        answer = await peer.ask("subscriptions/listen", {"notifications": wanted})

    assert answer["error"]["code"] == INVALID_PARAMS


@every_row(
    "wanted",
    [
        {},
        {"toolsListChanged": True},
        {"promptsListChanged": True, "resourcesListChanged": True},
        {"resourceSubscriptions": ["a://b", "a://c"]},
    ],
)
async def test_an_acknowledgement_lists_the_accepted_notifications(meet: "Meet", wanted: dict[str, Any]) -> None:
    async with meet() as peer:
        peer.say(peer.request(5, "subscriptions/listen", {"notifications": wanted}))
        acknowledged = await peer.hear()

    assert acknowledged["params"] == {"notifications": wanted, "_meta": {SUBSCRIPTION: 5}}


async def test_a_listening_request_is_answered_when_the_server_ends(meet: "Meet") -> None:
    async with meet() as peer:
        peer.say(peer.request(5, "subscriptions/listen", {"notifications": {}}))
        await peer.hear()

    ended = peer.left()
    assert [answer["id"] for answer in ended] == [5]
    assert ended[0]["result"]["_meta"][SUBSCRIPTION] == 5


async def test_a_client_that_stops_listening_is_not_notified(meet: "Meet") -> None:
    provider = FakeProvider("p")
    async with meet(providers=[provider]) as peer:
        peer.say(peer.request(5, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        await peer.hear()
        peer.cancel(5)
        assert "result" in await peer.ask("tools/list")
        provider.change([one])
        assert "result" in await peer.ask("tools/list")

    assert peer.left() == []


@every_row(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": "a://b"}},
    ],
)
async def test_invalid_params_of_a_subscription_are_a_fault(meet: "Meet", params: dict[str, Any]) -> None:
    async with meet() as peer:
        assert (await peer.ask("subscriptions/listen", params))["error"]["code"] == INVALID_PARAMS


async def test_a_client_without_a_stream_cannot_listen() -> None:
    async with Yard() as yard:
        server = ServerContext(yard, Serving(), channel="test")
        context = RequestContext(
            server=server, id=1, encoder=server.encoders[LATEST.name], caller=ANYONE, capabilities={}
        )
        with pytest.raises(Fault) as caught:
            await listen(context, SubscriptionsListen(SubscriptionFilter()))
        server.close()

    assert caught.value.code == INVALID_REQUEST


async def test_a_uri_that_is_too_long_to_be_kept_is_refused(meet: "Meet") -> None:
    async with meet() as peer:
        refused = await peer.ask(
            "subscriptions/listen", {"notifications": {"resourceSubscriptions": ["a://" + "x" * 8192]}}
        )

    assert refused["error"]["code"] == INVALID_PARAMS
