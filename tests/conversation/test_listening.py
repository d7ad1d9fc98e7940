from typing import TYPE_CHECKING, Any

import pytest

from toolyard import Yard, tool
from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE
from toolyard.server import Exchange, Front
from toolyard.server.notifications import listen
from toolyard.testing import FakeProvider
from toolyard.wire.messages import INVALID_PARAMS, INVALID_REQUEST, Fault
from toolyard.wire.params import SUBSCRIPTION, Listen, Wanted
from toolyard.wire.versions import LATEST

if TYPE_CHECKING:
    from tests.conversation.conftest import Meet


@tool
def one() -> int:
    """Return one."""
    return 1


async def test_who_wants_to_hear_of_too_much_is_refused(meet: "Meet") -> None:
    async with meet() as peer:
        wanted = {"resourceSubscriptions": [f"a://{number}" for number in range(1001)]}
        answer = await peer.ask("subscriptions/listen", {"notifications": wanted})

    assert answer["error"]["code"] == INVALID_PARAMS


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"toolsListChanged": True},
        {"promptsListChanged": True, "resourcesListChanged": True},
        {"resourceSubscriptions": ["a://b", "a://c"]},
    ],
)
async def test_a_client_is_told_what_it_will_hear_of(meet: "Meet", wanted: dict[str, Any]) -> None:
    async with meet() as peer:
        peer.say(peer.request(5, "subscriptions/listen", {"notifications": wanted}))
        acknowledged = await peer.hear()

    assert acknowledged["params"] == {"notifications": wanted, "_meta": {SUBSCRIPTION: 5}}


async def test_who_listens_is_answered_when_the_server_ends(meet: "Meet") -> None:
    async with meet() as peer:
        peer.say(peer.request(5, "subscriptions/listen", {"notifications": {}}))
        await peer.hear()

    ended = peer.left()
    assert [answer["id"] for answer in ended] == [5]
    assert ended[0]["result"]["_meta"][SUBSCRIPTION] == 5


async def test_who_stops_listening_is_told_nothing_more(meet: "Meet") -> None:
    provider = FakeProvider("p")
    async with meet(providers=[provider]) as peer:
        peer.say(peer.request(5, "subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        await peer.hear()
        peer.cancel(5)
        assert "result" in await peer.ask("tools/list")
        provider.change([one])
        assert "result" in await peer.ask("tools/list")

    assert peer.left() == []


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"notifications": None},
        {"notifications": []},
        {"notifications": {"toolsListChanged": 1}},
        {"notifications": {"resourceSubscriptions": "a://b"}},
    ],
)
async def test_a_wish_that_is_none_is_a_fault(meet: "Meet", params: dict[str, Any]) -> None:
    async with meet() as peer:
        assert (await peer.ask("subscriptions/listen", params))["error"]["code"] == INVALID_PARAMS


async def test_who_cannot_be_told_cannot_listen() -> None:
    async with Yard() as yard:
        front = Front(yard, Serving(), door="test")
        exchange = Exchange(front=front, id=1, answers=front.answers(LATEST), caller=ANYONE, capabilities={})
        with pytest.raises(Fault) as caught:
            await listen(exchange, Listen(Wanted()))
        front.close()

    assert caught.value.code == INVALID_REQUEST


async def test_a_uri_that_is_too_long_to_be_kept_is_refused(meet: "Meet") -> None:
    async with meet() as peer:
        refused = await peer.ask("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["a://" + "x" * 8192]}})

    assert refused["error"]["code"] == INVALID_PARAMS
