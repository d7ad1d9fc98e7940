"""Streams that a client of a session loses and comes back to."""

from typing import TYPE_CHECKING, Any

import pytest

from callyard import Call, Yard, tool
from callyard.transports.http import sessions as http_sessions

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


async def test_a_call_goes_on_without_its_connection_and_the_rest_comes_exactly_once(
    serve: Any, gates: "Gates", until: Any
) -> None:
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


async def test_only_so_many_events_are_kept_and_the_answer_is_one_of_them(
    serve: Any, gates: "Gates", until: Any
) -> None:
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


async def test_a_client_without_warnings_gets_no_report_of_a_gap(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(event_count=1)
    session = await server.greet()
    last = await _lost(session)
    await session.ask("logging/setLevel", {"level": "error"}, id=2)
    gates.go.set()
    await until(lambda: any(record.tool == "tell" for record in server.records))

    back = await session.stream(last)
    await back.head()

    assert [message.get("id") for message in await back.messages()] == [1]


async def test_a_gap_is_reported_once(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(event_count=3)
    session = await server.greet()
    last = await _lost(session)
    gates.go.set()
    await until(lambda: server.records)
    back = await session.stream(last)
    await back.head()
    notice = await back.event()
    await back.close()

    again = await session.stream(notice["id"])
    await again.head()

    assert "dropped" in notice["data"]
    assert all("dropped" not in str(message) for message in await again.messages())


async def test_events_are_kept_for_a_while_only(
    serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_SWEEP_SECONDS", 0.01)
    forgotten = spy(http_sessions.HttpSession, "forget")
    server = await serve(event_seconds=0.02, hold_back=0.0)
    session = await server.greet()
    wire = await session.call("wait")
    await wire.head()
    await wire.close()
    gates.go.set()
    await until(lambda: forgotten)

    reply = await (await session.stream("1-0")).reply()

    assert (reply.status, reply.json["error"]["code"]) == (400, -32600)


async def test_an_expired_event_is_gone_before_any_sweep(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(event_seconds=0.0, hold_back=0.0)
    session = await server.greet()
    wire = await session.call("wait")
    await wire.head()
    await wire.close()
    gates.go.set()
    await until(lambda: server.records)

    assert (await (await session.stream("1-0")).reply()).status == 400


async def test_a_stream_that_was_read_to_its_end_is_kept_only_until_its_last_bytes_have_arrived(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve()
    session = await server.greet()
    replies: list[Any] = []
    for number, seconds in enumerate((1000.0, 0.0), start=1):
        monkeypatch.setattr(http_sessions, "_READ_SECONDS", seconds)
        wire = await session.call("chatter", id=number, token=1)
        await wire.head()
        assert len(await wire.messages()) == 4
        replies.append(await (await session.stream(f"{number}-3")).reply())

    assert [reply.status for reply in replies] == [200, 400]


async def _lost_by_each(server: Any, sessions: list[Any], gates: "Gates", until: Any, left: list[Any]) -> None:
    """Let each session call a tool that tells a lot, and lose its stream before it does."""
    for number, session in enumerate(sessions, start=1):
        wire = await session.call("tell", {"count": 20, "size": 200})
        await wire.head()
        await wire.close()
        await until(lambda number=number: len(left) == number)
    gates.go.set()
    await until(lambda: len(server.records) == len(sessions))


async def test_the_buffer_of_all_sessions_is_bounded_and_the_oldest_goes_first(
    serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_BUFFERED_MESSAGES", 4)
    left = spy(http_sessions.HttpSession, "detach")
    server = await serve(message_bytes=4000)
    sessions = [await server.greet() for _ in range(4)]
    await _lost_by_each(server, sessions, gates, until, left)

    assert [(await (await session.stream("1-0")).reply()).status for session in sessions] == [400, 400, 200, 200]


async def test_a_session_that_is_deleted_leaves_room_for_what_others_keep(
    serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_BUFFERED_MESSAGES", 4)
    left = spy(http_sessions.HttpSession, "detach")
    server = await serve(message_bytes=4000)
    sessions = [await server.greet() for _ in range(3)]
    await _lost_by_each(server, sessions[:2], gates, until, left)
    await server.request("DELETE", "/mcp", Mcp_Session_Id=sessions[1].id)
    left.clear()
    server.records.clear()
    gates.go.clear()
    await _lost_by_each(server, sessions[2:], gates, until, left)

    assert [(await (await session.stream("1-0")).reply()).status for session in sessions] == [200, 404, 200]


async def test_of_the_requests_of_one_session_that_are_over_only_so_many_are_kept(
    serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    monkeypatch.setattr(http_sessions, "_MAX_STREAMS", 2)
    left = spy(http_sessions.HttpSession, "detach")
    server = await serve()
    session = await server.greet()
    for number in range(1, 4):
        gates.go.clear()
        wire = await session.call("tell", {"count": 1}, id=number)
        await wire.head()
        await wire.close()
        await until(lambda number=number: len(left) == number)
        gates.go.set()
        await until(lambda number=number: len(server.records) == number)

    assert [(await (await session.stream(f"{number}-0")).reply()).status for number in (1, 2, 3)] == [400, 200, 200]


async def test_a_client_that_reads_gets_all_of_what_is_said_at_once(serve: Any) -> None:
    @tool
    async def count(call: Call) -> str:
        """Tell three hundred things without a pause."""
        for number in range(300):
            call.log("info", "row", n=number)
        return "counted"

    server = await serve(Yard(tools=[count]), event_count=3)
    session = await server.greet()
    wire = await session.call("count")
    await wire.head()
    messages = await wire.messages()

    assert [message["params"]["data"]["n"] for message in messages[:-1]] == list(range(300))
    assert messages[-1]["id"] == 1
    back = await (await session.stream("1-0")).reply()
    assert b'"dropped":298' in back.body


async def test_a_client_that_comes_back_takes_its_stream_over_from_the_connection_it_had(
    serve: Any, gates: "Gates"
) -> None:
    server = await serve()
    session = await server.greet()
    first = await session.call("step", {"count": 3}, token=1)
    gates.steps.put_nowait(None)
    await first.head()
    last = (await _until_step(first, 1))[-1]["id"]

    second = await session.stream(last)
    await second.head()
    rest = await first.messages()
    for _ in range(3):
        gates.steps.put_nowait(None)
    messages = await second.messages()

    assert rest == []
    assert [message["params"]["progress"] for message in messages[:-1]] == [2, 3]
    assert messages[-1]["id"] == 1


async def test_an_invented_event_id_is_400_because_404_would_end_the_session(serve: Any) -> None:
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
