"""Streams that end before their answer, and the one that belongs to no request."""

import asyncio
import json

import pytest
from raw_servers import Asked, Connect, Serve, note, request, result

from toolyard.providers.upstream.http import link as ear
from toolyard.providers.upstream.http.link import delay_before

OLDER = {"MCP-Protocol-Version": "2025-11-25"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make waits short; how long they are is looked at on its own."""
    monkeypatch.setattr(ear, "_FIRST_SECONDS", 0.001)


async def test_a_stream_that_breaks_off_is_asked_for_the_rest(raw: Serve, link: Connect) -> None:
    async def break_off(asked: Asked) -> None:
        if asked.method == "POST":
            await asked.stream(mcp_session_id="s")
            await asked.event(b"", event_id="a-0", retry=1)
            await asked.event(note(step=1), event_id="a-1")
            asked.hang_up()
        elif asked.method == "DELETE":
            await asked.reply(204)
        elif asked.headers["last-event-id"] == "a-1":
            await asked.stream()
            await asked.event(note(step=2), event_id="a-2")
            await asked.end()
        else:
            await asked.stream()
            await asked.event(result(1), event_id="a-3")
            await asked.end()

    server = await raw(break_off)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {**OLDER, "Mcp-Method": "tools/call", "authorization": "Bearer theirs"})

    assert [(await told.message(about=1))["params"]["step"] for _ in range(2)] == [1, 2]
    assert (await told.message(about=1))["id"] == 1
    _, second, third = server.asked[:3]
    assert (second.method, second.headers["accept"], second.body) == ("GET", "text/event-stream", b"")
    assert (third.headers["last-event-id"], third.headers["mcp-session-id"]) == ("a-2", "s")
    assert third.headers["mcp-protocol-version"] == "2025-11-25"
    assert (third.headers["authorization"], "mcp-method" in third.headers) == ("Bearer theirs", False)


async def test_a_stream_without_event_ids_that_breaks_off_is_lost(raw: Serve, link: Connect) -> None:
    async def break_off(asked: Asked) -> None:
        await asked.stream()
        await asked.event(note())
        await (asked.end() if asked.id == 1 else asyncio.sleep(0))  # a turn of the loop, not a wait
        asked.hang_up()

    server = await raw(break_off)
    sender, told = await link(server.url)
    for number in (1, 2):
        sender.send(request(number), number, {})
        await told.message(about=number)

        error = await told.loss(number)

        assert (error.kind, error.sent) == ("lost", True)
    assert len(server.asked) == 2


@pytest.mark.parametrize("how", ["405", "404", "401", "close", "empty", "json"])
async def test_a_rest_that_cannot_be_had_is_lost_after_some_tries(raw: Serve, link: Connect, how: str) -> None:
    async def break_off(asked: Asked) -> None:
        if asked.method == "POST":
            await asked.stream(mcp_session_id="s")
            await asked.event(b"", event_id="a-0", retry=1)
            await asked.end()
        elif how == "close":
            asked.hang_up()
        elif how == "empty":
            await asked.stream()
            await asked.end()
        elif how == "json":
            await asked.reply(200, result(1))
        else:
            await asked.reply(int(how))

    server = await raw(break_off)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})

    error = await told.loss(1)

    troubles = {"404": "session_lost", "401": "unauthenticated", "405": "refused", "json": "refused", "close": "lost", "empty": "lost"}
    assert (error.kind, error.sent) == (troubles[how], True)
    assert len(server.asked) == (6 if how in {"close", "empty"} else 2)


async def test_a_request_that_is_dropped_is_not_asked_after(raw: Serve, link: Connect) -> None:
    ended = asyncio.Event()

    async def break_off(asked: Asked) -> None:
        if asked.id == 1:
            await asked.stream()
            await asked.event(note(), event_id="a-0", retry=600_000)
            await asked.end()
            ended.set()
        else:
            await asked.reply(200, result(2))

    server = await raw(break_off)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await told.message(about=1)
    await ended.wait()

    sender.drop(1)
    sender.send(request(2), 2, {})
    await told.message(about=2)

    assert [asked.method for asked in server.asked] == ["POST", "POST"]
    assert told.told.empty()


async def test_what_an_upstream_says_on_its_own_is_about_no_request(raw: Serve, link: Connect) -> None:
    turns = iter(range(10))

    async def speak(asked: Asked) -> None:
        turn = next(turns)
        await asked.stream()
        await asked.event(b"", event_id=f"e-{turn}", retry=1)
        await asked.event(note(turn=turn))
        if turn == 0:
            await asked.end()
        elif turn == 1:
            asked.hang_up()
        else:
            await asked.event(b"[%b,%b]" % (note(), note()))
            await asked.gone()

    server = await raw(speak)
    sender, told = await link(server.url)
    sender.listen()

    assert [(await told.message())["params"] for _ in range(5)] == [{"turn": 0}, {"turn": 1}, {"turn": 2}, {}, {}]
    assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, "e-0", "e-1"]
    await sender.close()
    await server.left()


@pytest.mark.parametrize("status", [400, 401, 404, 405, 501])
async def test_an_upstream_that_says_nothing_on_its_own_is_left_alone(raw: Serve, link: Connect, status: int) -> None:
    async def refuse(asked: Asked) -> None:
        if asked.method == "GET":
            await asked.reply(status)
        else:
            await asked.reply(200, result(asked.id))

    server = await raw(refuse)
    sender, told = await link(server.url)
    sender.listen()
    for number in range(5):
        sender.send(request(number), number, {})
        await told.message(about=number)

    assert [asked.method for asked in server.asked].count("GET") == 1


async def test_a_stream_that_there_was_and_is_not_any_more_went_with_the_session(raw: Serve, link: Connect) -> None:
    statuses = iter([200, 404])

    async def forget(asked: Asked) -> None:
        if next(statuses) == 200:
            await asked.stream()
            await asked.event(note())
            await asked.end()
        else:
            await asked.reply(404)

    server = await raw(forget)
    sender, told = await link(server.url)
    sender.listen()
    await told.message()
    kind, error, _ = await told.next()

    assert (kind, error.kind, error.sent) == ("ended", "lost", True)


async def test_an_upstream_that_cannot_speak_now_is_asked_again(raw: Serve, link: Connect) -> None:
    statuses = iter([503, 409, 429, 0, 200])

    async def refuse(asked: Asked) -> None:
        status = next(statuses)
        if status == 0:
            asked.hang_up()
        elif status == 200:
            await asked.stream()
            await asked.event(note())
            await asked.gone()
        else:
            await asked.reply(status, b"", retry_after="0")

    server = await raw(refuse)
    sender, told = await link(server.url)
    sender.listen()

    await told.message()
    assert len(server.asked) == 5


def test_waits_grow_within_bounds_and_are_never_shorter_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ear, "_FIRST_SECONDS", 1.0)

    assert delay_before(0, 0) == 1.0
    assert delay_before(0, 250) == 0.25
    assert delay_before(0, 10**9) == 60.0
    for tries in range(1, 100):
        wait = min(2**tries, 60.0)
        assert wait / 2 <= delay_before(tries, 0) <= wait
    assert 5.0 <= delay_before(1, 5000) <= 5.0
    assert delay_before(1, 10**9) == 60.0


async def test_an_event_too_long_ends_listening(raw: Serve, link: Connect) -> None:
    async def speak(asked: Asked) -> None:
        if asked.method == "GET":
            await asked.stream()
            await asked.event(b"x" * 5000)
            await asked.gone()
        else:
            await asked.reply(200, result(json.loads(asked.body)["id"]))

    server = await raw(speak)
    sender, told = await link(server.url, message_bytes=1000)
    sender.listen()
    async with asyncio.timeout(10):
        while not server.ends:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop
    await server.left()
    sender.send(request(1), 1, {})
    await told.message(about=1)

    assert [asked.method for asked in server.asked] == ["GET", "POST"]


async def test_the_stream_of_an_answer_that_is_there_may_break_off(raw: Serve, link: Connect) -> None:
    async def break_off(asked: Asked) -> None:
        await asked.stream()
        await asked.event(result(asked.id), event_id="a-0")
        asked.hang_up()

    server = await raw(break_off)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await told.message(about=1)
    await server.left()
    sender.send(request(2), 2, {})

    assert (await told.message(about=2))["id"] == 2
