"""Response streams that break off, and the stream that belongs to no request."""

import asyncio
import json

import pytest
from raw_servers import Connect, Request, Serve, notification, request_message, result_message, until

from callyard.providers.upstream.http import link as http_link
from callyard.providers.upstream.http.link import delay_before

OLDER = {"MCP-Protocol-Version": "2025-11-25"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays; another test checks their length."""
    monkeypatch.setattr(http_link, "_FIRST_SECONDS", 0.001)


async def test_a_stream_that_breaks_off_is_resumed(serve: Serve, connect: Connect) -> None:
    async def break_off(request: Request) -> None:
        if request.method == "POST":
            await request.stream(mcp_session_id="s")
            await request.event(b"", event_id="a-0", retry=1)
            await request.event(notification(step=1), event_id="a-1")
            request.hang_up()
        elif request.method == "DELETE":
            await request.reply(204)
        elif request.headers["last-event-id"] == "a-1":
            await request.stream()
            await request.event(notification(step=2), event_id="a-2")
            await request.end()
        else:
            await request.stream()
            await request.event(result_message(1), event_id="a-3")
            await request.end()

    server = await serve(break_off)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {**OLDER, "Mcp-Method": "tools/call", "authorization": "Bearer theirs"})

    assert [(await listener.message(about=1))["params"]["step"] for _ in range(2)] == [1, 2]
    assert (await listener.message(about=1))["id"] == 1
    _, second, third = server.requests[:3]
    assert (second.method, second.headers["accept"], second.body) == ("GET", "text/event-stream", b"")
    assert (third.headers["last-event-id"], third.headers["mcp-session-id"]) == ("a-2", "s")
    assert third.headers["mcp-protocol-version"] == "2025-11-25"
    assert (third.headers["authorization"], "mcp-method" in third.headers) == ("Bearer theirs", False)


async def test_a_stream_without_event_ids_that_breaks_off_is_lost(serve: Serve, connect: Connect) -> None:
    async def break_off(request: Request) -> None:
        await request.stream()
        await request.event(notification())
        await (request.end() if request.id == 1 else asyncio.sleep(0))  # one loop iteration, not a wait
        request.hang_up()

    server = await serve(break_off)
    link, listener = await connect(server.url)
    for number in (1, 2):
        link.send(request_message(number), number, {})
        await listener.message(about=number)

        error = await listener.loss(number)

        assert (error.kind, error.sent) == ("lost", True)
    assert len(server.requests) == 2


@pytest.mark.parametrize("how", ["405", "404", "401", "close", "empty", "json"])
async def test_a_stream_that_cannot_be_resumed_is_lost(serve: Serve, connect: Connect, how: str) -> None:
    async def break_off(request: Request) -> None:
        if request.method == "POST":
            await request.stream(mcp_session_id="s")
            await request.event(b"", event_id="a-0", retry=1)
            await request.end()
        elif how == "close":
            request.hang_up()
        elif how == "empty":
            await request.stream()
            await request.end()
        elif how == "json":
            await request.reply(200, result_message(1))
        else:
            await request.reply(int(how))

    server = await serve(break_off)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})

    error = await listener.loss(1)

    troubles = {
        "404": "session_lost",
        "401": "unauthenticated",
        "405": "refused",
        "json": "refused",
        "close": "lost",
        "empty": "lost",
    }
    assert (error.kind, error.sent) == (troubles[how], True)
    assert len(server.requests) == (6 if how in {"close", "empty"} else 2)


async def test_a_dropped_request_is_not_resumed(serve: Serve, connect: Connect) -> None:
    ended = asyncio.Event()

    async def break_off(request: Request) -> None:
        if request.id == 1:
            await request.stream()
            await request.event(notification(), event_id="a-0", retry=600_000)
            await request.end()
            ended.set()
        else:
            await request.reply(200, result_message(2))

    server = await serve(break_off)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    await ended.wait()

    link.drop(1)
    link.send(request_message(2), 2, {})
    await listener.message(about=2)

    assert [request.method for request in server.requests] == ["POST", "POST"]
    assert listener.calls.empty()


async def test_messages_of_the_general_stream_belong_to_no_request(serve: Serve, connect: Connect) -> None:
    turns = iter(range(10))

    async def speak(request: Request) -> None:
        turn = next(turns)
        await request.stream()
        await request.event(b"", event_id=f"e-{turn}", retry=1)
        await request.event(notification(turn=turn))
        if turn == 0:
            await request.end()
        elif turn == 1:
            request.hang_up()
        else:
            await request.event(b"[%b,%b]" % (notification(), notification()))
            await request.gone()

    server = await serve(speak)
    link, listener = await connect(server.url)
    link.listen()

    assert [(await listener.message())["params"] for _ in range(5)] == [{"turn": 0}, {"turn": 1}, {"turn": 2}, {}, {}]
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "e-0", "e-1"]
    await link.close()
    await server.left()


@pytest.mark.parametrize("status", [400, 401, 404, 405, 501])
async def test_an_upstream_without_a_general_stream_is_asked_once(serve: Serve, connect: Connect, status: int) -> None:
    async def refuse(request: Request) -> None:
        if request.method == "GET":
            await request.reply(status)
        else:
            await request.reply(200, result_message(request.id))

    server = await serve(refuse)
    link, listener = await connect(server.url)
    link.listen()
    for number in range(5):
        link.send(request_message(number), number, {})
        await listener.message(about=number)

    assert [request.method for request in server.requests].count("GET") == 1


async def test_a_general_stream_that_is_not_found_any_more_ended_with_the_session(
    serve: Serve, connect: Connect
) -> None:
    statuses = iter([200, 404])

    async def forget(request: Request) -> None:
        if next(statuses) == 200:
            await request.stream()
            await request.event(notification())
            await request.end()
        else:
            await request.reply(404)

    server = await serve(forget)
    link, listener = await connect(server.url)
    link.listen()
    await listener.message()
    kind, error, _ = await listener.next()

    assert (kind, error.kind, error.sent) == ("ended", "lost", True)


async def test_a_transient_refusal_of_the_general_stream_is_retried(serve: Serve, connect: Connect) -> None:
    statuses = iter([503, 409, 429, 0, 200])

    async def refuse(request: Request) -> None:
        status = next(statuses)
        if status == 0:
            request.hang_up()
        elif status == 200:
            await request.stream()
            await request.event(notification())
            await request.gone()
        else:
            await request.reply(status, b"", retry_after="0")

    server = await serve(refuse)
    link, listener = await connect(server.url)
    link.listen()

    await listener.message()
    assert len(server.requests) == 5


def test_delays_grow_within_bounds_and_are_never_shorter_than_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "_FIRST_SECONDS", 1.0)

    assert delay_before(0, 0) == 1.0
    assert delay_before(0, 250) == 0.25
    assert delay_before(0, 10**9) == 60.0
    for tries in range(1, 100):
        wait = min(2**tries, 60.0)
        assert wait / 2 <= delay_before(tries, 0) <= wait
    assert 5.0 <= delay_before(1, 5000) <= 5.0
    assert delay_before(1, 10**9) == 60.0


async def test_too_long_an_event_ends_the_general_stream(serve: Serve, connect: Connect) -> None:
    async def speak(request: Request) -> None:
        if request.method == "GET":
            await request.stream()
            await request.event(b"x" * 5000)
            await request.gone()
        else:
            await request.reply(200, result_message(json.loads(request.body)["id"]))

    server = await serve(speak)
    link, listener = await connect(server.url, message_bytes=1000)
    link.listen()
    await until(lambda: server.ends)
    await server.left()
    link.send(request_message(1), 1, {})
    await listener.message(about=1)

    assert [request.method for request in server.requests] == ["GET", "POST"]


async def test_a_stream_may_break_off_after_its_response(serve: Serve, connect: Connect) -> None:
    async def break_off(request: Request) -> None:
        await request.stream()
        await request.event(result_message(request.id), event_id="a-0")
        request.hang_up()

    server = await serve(break_off)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    await server.left()
    link.send(request_message(2), 2, {})

    assert (await listener.message(about=2))["id"] == 2
