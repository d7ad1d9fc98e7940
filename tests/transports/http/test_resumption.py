"""Streams that a client of a session loses and comes back to."""

from typing import TYPE_CHECKING, Any

import pytest

from toolyard import Call, Yard, tool
from toolyard.transports.http import visits

if TYPE_CHECKING:
    from tests.transports.conftest import Gates


async def _until_step(wire: Any, count: int) -> list[dict[str, str]]:
    """Return events of a stream until so many hold a message."""
    found: list[dict[str, str]] = []
    while sum(bool(event["data"]) for event in found) < count:
        found.append(await wire.event())
    return found


async def _lost(session: Any) -> str:
    """Call a tool that tells nine things, lose its stream after the first, and return where that was."""
    wire = await session.call("tell", {"count": 9})
    await wire.head()
    last = (await _until_step(wire, 1))[-1]["id"]
    await wire.close()
    return last


async def test_a_stream_begins_with_an_event_to_come_back_to(serve: Any, gates: "Gates") -> None:
    server = await serve(hold_back=0.0)
    session = await server.greet("2025-11-25")

    wire = await session.call("wait")
    await wire.head()
    event = await wire.event()
    gates.go.set()

    assert (event["id"], event["data"], int(event["retry"]) > 0) == ("1-0", "", True)
    assert (await wire.event())["id"] == "1-1"


async def test_an_older_client_is_not_sent_an_event_without_a_message(serve: Any, gates: "Gates") -> None:
    server = await serve(hold_back=0.0)
    session = await server.greet("2025-06-18")
    wire = await session.call("wait")
    await wire.head()
    gates.go.set()

    assert (await wire.event())["data"].startswith('{"jsonrpc"')


async def test_a_call_goes_on_without_its_connection_and_the_rest_comes_exactly_once(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve()
    session = await server.greet()
    wire = await session.call("step", {"count": 4}, token=1)
    gates.steps.put_nowait(None)
    await wire.head()
    last = (await _until_step(wire, 1))[-1]["id"]
    await wire.close()
    for _ in range(4):
        gates.steps.put_nowait(None)
    await until(lambda: server.records)

    back = await session.stream(last)
    reply = await back.head()
    messages = await back.messages()

    assert (reply.status, reply.is_stream) == (200, True)
    assert [message["params"]["progress"] for message in messages[:-1]] == [2, 3, 4]
    assert (messages[-1]["id"], messages[-1]["result"]["structuredContent"]["data"]) == (1, "stepped")
    assert server.records[0].code is None


async def test_a_client_may_come_back_while_the_call_still_runs_and_more_than_once(serve: Any, gates: "Gates") -> None:
    server = await serve()
    session = await server.greet()
    wire = await session.call("step", {"count": 3}, token=1)
    seen: list[str] = []
    for _ in range(3):
        gates.steps.put_nowait(None)
        await wire.head()
        seen += [event["id"] for event in await _until_step(wire, 1) if event["data"]]
        await wire.close()
        wire = await session.stream(seen[-1])
    gates.steps.put_nowait(None)
    await wire.head()
    answer = await wire.event()

    assert [*seen, answer["id"]] == ["1-1", "1-2", "1-3", "1-4"]
    assert await wire.event() is None


async def test_an_answer_that_nobody_read_is_still_there(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(hold_back=0.0)
    session = await server.greet()
    wire = await session.call("wait")
    await wire.head()
    first = await wire.event()
    await wire.close()
    gates.go.set()
    await until(lambda: server.records)

    back = await session.stream(first["id"])
    await back.head()

    assert [message["id"] for message in await back.messages()] == [1]


async def test_only_so_many_events_are_kept_and_the_answer_is_one_of_them(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(event_count=3)
    session = await server.greet()
    last = await _lost(session)
    gates.go.set()
    await until(lambda: server.records)

    back = await session.stream(last)
    await back.head()
    messages = await back.messages()

    assert messages[0]["params"]["level"] == "warning"
    assert messages[0]["params"]["data"]["dropped"] == 7
    assert [message["params"]["data"]["n"] for message in messages[1:-1]] == [7, 8]
    assert messages[-1]["id"] == 1


async def test_a_client_that_wants_no_warnings_is_not_told_of_a_gap(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(event_count=1)
    session = await server.greet()
    last = await _lost(session)
    await session.ask("logging/setLevel", {"level": "error"}, id=2)
    gates.go.set()
    await until(lambda: any(record.tool == "tell" for record in server.records))

    back = await session.stream(last)
    await back.head()

    assert [message.get("id") for message in await back.messages()] == [1]


async def test_a_gap_is_told_once(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(event_count=3)
    session = await server.greet()
    last = await _lost(session)
    gates.go.set()
    await until(lambda: server.records)
    back = await session.stream(last)
    await back.head()
    told = await back.event()
    await back.close()

    again = await session.stream(told["id"])
    await again.head()

    assert "dropped" in told["data"]
    assert all("dropped" not in str(message) for message in await again.messages())


async def test_events_are_kept_for_a_while_only(serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any) -> None:
    monkeypatch.setattr(visits, "_SWEEP", 0.01)
    forgotten = spy(visits.Visit, "forget")
    server = await serve(event_seconds=0.02, hold_back=0.0)
    session = await server.greet()
    wire = await session.call("wait")
    await wire.head()
    await wire.close()
    gates.go.set()
    await until(lambda: forgotten)

    reply = await (await session.stream("1-0")).reply()

    assert (reply.status, reply.json["error"]["code"]) == (400, -32600)


async def test_what_was_never_an_event_is_400_because_404_would_end_the_session(serve: Any) -> None:
    server = await serve()
    session = await server.greet()

    for made_up in ("7-1", "x", "1", "1-", "-1", "1-x", "9" * 5000 + "-1", "\u00b2-1"):
        reply = await (await session.stream(made_up)).reply()
        assert (made_up, reply.status) == (made_up, 400)


async def test_events_of_another_session_cannot_be_read(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(hold_back=0.0)
    mine, other = await server.greet(), await server.greet()
    wire = await mine.call("wait")
    await wire.head()
    await wire.close()
    gates.go.set()
    await until(lambda: server.records)

    assert (await (await other.stream("1-0")).reply()).status == 400


async def test_a_tool_can_hang_up_and_the_client_comes_back_for_the_answer(serve: Any, gates: "Gates") -> None:
    @tool
    async def ring(call: Call, talks: bool) -> str:  # noqa: FBT001 - an argument on the wire
        """Hang up, and answer later."""
        if talks:
            call.progress(1, 2)
        call.hang_up()
        await gates.go.wait()
        return "later"

    server = await serve(Yard(tools=[ring]))
    session = await server.greet()
    for number, talks in enumerate((True, False), start=1):
        gates.go.clear()
        wire = await session.call("ring", {"talks": talks}, id=number, token=1)
        await wire.head()
        events = await _all_events(wire)
        gates.go.set()

        back = await session.stream(events[-1]["id"])
        await back.head()

        assert [message["id"] for message in await back.messages()] == [number]


async def _all_events(wire: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    while (event := await wire.event()) is not None:
        found.append(event)
    return found
