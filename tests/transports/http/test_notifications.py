"""Notifications of changes: on the GET stream of a session, and on a request that stays open."""

from typing import TYPE_CHECKING, Any

import pytest

from callyard import Yard, resource, tool
from callyard.server import notifications

if TYPE_CHECKING:
    from tests.transports.conftest import Extra

ID = "io.modelcontextprotocol/subscriptionId"


@tool
def more() -> int:
    """Be one tool more."""
    return 1


@tool
def still_more() -> int:
    """Be another."""
    return 2


@resource("note://one")
def note() -> str:
    """Return a note."""
    return "one"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_DEBOUNCE_S", 0.01)


async def test_a_session_hears_of_changes_on_its_own_stream(serve: Any, extra: "Extra") -> None:
    server = await serve()
    session = await server.greet()
    stream = await session.stream()
    reply = await stream.head()

    extra.show(more)

    assert (reply.status, reply.is_stream) == (200, True)
    assert await stream.message() == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


async def test_a_notice_waits_until_somebody_listens_and_then_comes_once(serve: Any, extra: "Extra") -> None:
    server = await serve()
    session = await server.greet()
    extra.show(more)

    first = await session.stream()
    await first.head()
    notice = await first.message()
    await first.close()
    extra.show(more, still_more)
    second = await session.stream()
    status = (await second.head()).status
    while status == 409:  # the server has not seen yet that the first one is gone
        second = await session.stream()
        status = (await second.head()).status
    events = [await second.event(), await second.event()]

    assert notice["method"] == "notifications/tools/list_changed"
    assert [event["id"] for event in events if event and event["data"]] == ["0-2"]


async def test_a_lost_stream_of_notices_goes_on_after_the_last_event(serve: Any, extra: "Extra", until: Any) -> None:
    server = await serve()
    session = await server.greet()
    stream = await session.stream()
    await stream.head()
    extra.show(more)
    event = await stream.event()
    while not event["data"]:
        event = await stream.event()
    await stream.close()
    extra.show(more, still_more)
    back = await session.stream(event["id"])
    await back.head()

    assert (await back.event())["id"] == "0-2"


async def test_a_second_reader_of_the_same_stream_is_409(serve: Any) -> None:
    server = await serve()
    session = await server.greet()
    stream = await session.stream()
    await stream.head()

    assert (await (await session.stream()).reply()).status == 409


async def test_a_client_that_comes_back_to_that_stream_takes_it_over(serve: Any, extra: "Extra") -> None:
    server = await serve()
    session = await server.greet()
    first = await session.stream()
    await first.head()

    second = await session.stream("0-0")
    reply = await second.head()
    ended = await first.messages()
    extra.show(more)

    assert (reply.status, ended) == (200, [])
    assert (await second.message())["method"] == "notifications/tools/list_changed"


async def test_a_silent_stream_gets_keep_alives(serve: Any) -> None:
    server = await serve(keep_alive=0.02)
    session = await server.greet()
    stream = await session.stream()
    await stream.head()

    events = [await stream.event() for _ in range(3)]

    assert events[1:] == [{"": "alive"}] * 2


async def test_changes_are_not_notified_where_that_is_switched_off(serve: Any, extra: "Extra") -> None:
    server = await serve(notify_changes=False, keep_alive=0.05)
    session = await server.greet()
    stream = await session.stream()
    await stream.head()

    extra.show(more)
    events = [await stream.event() for _ in range(3)]

    assert "listChanged" not in session.greeting.json["result"]["capabilities"]["tools"]
    assert not [event for event in events if event and event.get("data")]


async def test_a_subscribed_resource_is_notified(serve: Any) -> None:
    yard = Yard(resources=[note])
    server = await serve(yard)
    session = await server.greet()
    stream = await session.stream()
    await stream.head()
    assert (await session.ask("resources/subscribe", {"uri": "note://one"})).status == 200

    yard.notify_updated("note://two")
    yard.notify_updated("note://one")

    assert (await stream.message())["params"] == {"uri": "note://one"}


async def test_listening_is_acknowledged_first_and_then_gets_the_wanted_notifications(
    serve: Any, extra: "Extra"
) -> None:
    server = await serve(Yard(resources=[note], providers=[extra]))
    wanted = {"toolsListChanged": True, "resourceSubscriptions": ["note://one"]}

    wire = await server.modern("subscriptions/listen", {"notifications": wanted}, id="ear")
    reply = await wire.head()
    acknowledged = await wire.message()
    extra.show(more)
    changed = await wire.message()
    server.yard.notify_updated("note://two")
    server.yard.notify_updated("note://one")
    updated = await wire.message()

    assert (reply.status, reply.is_stream) == (200, True)
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"]["toolsListChanged"] is True
    assert acknowledged["params"]["_meta"] == {ID: "ear"}
    assert (changed["method"], changed["params"]["_meta"]) == ("notifications/tools/list_changed", {ID: "ear"})
    assert (updated["params"]["uri"], updated["params"]["_meta"]) == ("note://one", {ID: "ear"})


async def test_a_client_that_did_not_ask_for_tools_is_not_notified_of_tools(serve: Any, extra: "Extra") -> None:
    server = await serve(keep_alive=0.05)
    wire = await server.modern("subscriptions/listen", {"notifications": {"promptsListChanged": True}})
    await wire.head()
    await wire.message()

    extra.show(more)

    assert [await wire.event() for _ in range(3)] == [{"": "alive"}] * 3


async def test_listening_needs_a_client_that_takes_events(serve: Any) -> None:
    server = await serve()
    headers = {"Accept": "application/json"}

    wire = await server.modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, headers=headers)

    assert (await wire.reply()).status == 406


async def test_listening_works_where_everything_else_is_answered_with_json_alone(serve: Any, extra: "Extra") -> None:
    server = await serve(json_response=True)
    wire = await server.modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    await wire.head()

    extra.show(more)

    assert [(await wire.message())["method"] for _ in range(2)] == [
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
    ]


async def test_when_the_server_ends_listeners_get_a_result_and_streams_end(serve: Any) -> None:
    server = await serve()
    session = await server.greet()
    stream = await session.stream()
    wire = await server.modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=3)
    await stream.head()
    await wire.head()
    await wire.message()

    await server.stop()
    ended = await wire.messages()

    assert [message["id"] for message in ended] == [3]
    assert ended[0]["result"]["_meta"][ID] == 3
    assert await stream.messages() == []


async def test_a_listener_that_goes_away_is_forgotten(
    serve: Any, extra: "Extra", monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    alive: list[object] = []
    add = notifications.ChangeNotifier.add

    def counted(self: Any, subscription: Any) -> Any:
        stop = add(self, subscription)
        alive.append(subscription)
        return lambda: (alive.remove(subscription), stop())

    monkeypatch.setattr(notifications.ChangeNotifier, "add", counted)
    server = await serve()
    wire = await server.modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    await wire.head()
    await wire.message()
    assert len(alive) == 1

    await wire.close()

    await until(lambda: not alive)
