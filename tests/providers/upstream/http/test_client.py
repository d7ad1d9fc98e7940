"""Connections that are kept: which are used again, and which never."""

import asyncio
from typing import Any

import pytest
from raw_servers import Asked, Connect, Serve, note, plain, request, result

from toolyard.providers.upstream.http import client as pool
from toolyard.providers.upstream.http import exchange as courier


async def call(sender: Any, told: Any, *numbers: int) -> None:
    for number in numbers:
        sender.send(request(number), number, {})
        await told.message(about=number)


@pytest.mark.parametrize(("alive", "connections"), [("timeout=60", 1), ("timeout=5, max=100", 1), ("timeout=1", 2), ("max=5", 1)])
async def test_a_connection_is_not_used_for_longer_than_the_server_keeps_it(
    raw: Serve, link: Connect, alive: str, connections: int
) -> None:
    server = await raw(plain(keep_alive=alive))
    sender, told = await link(server.url)

    await call(sender, told, 1, 2)

    assert server.connections == connections


@pytest.mark.parametrize("how", ["header", "version", "eof"])
async def test_a_connection_that_the_server_will_close_is_not_used_again(raw: Serve, link: Connect, how: str) -> None:
    async def last(asked: Asked) -> None:
        body = result(asked.id)
        version, length = ("1.0" if how == "version" else "1.1"), ("" if how == "eof" else f"content-length: {len(body)}\r\n")
        closes = "connection: close\r\n" if how == "header" else ""
        await asked.write(f"HTTP/{version} 200 OK\r\ncontent-type: application/json\r\n{length}{closes}\r\n".encode() + body)
        if how == "eof":
            asked.hang_up()

    server = await raw(last)
    sender, told = await link(server.url)

    await call(sender, told, 1, 2)

    assert server.connections == 2


async def test_a_connection_that_was_closed_while_idle_is_not_used_even_before_the_loop_has_noticed(raw: Serve, link: Connect) -> None:
    async def leave(asked: Asked) -> None:
        await asked.reply(200, result(asked.id))
        asked.hang_up()

    server = await raw(leave)
    sender, told = await link(server.url)

    await call(sender, told, *range(20))

    assert len(server.asked) == server.connections == 20


async def test_idle_connections_are_closed_after_a_while(raw: Serve, link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SWEEP_SECONDS", 0.001)
    server = await raw(plain())
    sender, told = await link(server.url)
    await call(sender, told, 1)
    kept = server.connections
    sender._courier._pool._idle[0]._kept = 0.0

    await server.left()
    await call(sender, told, 2)

    assert (kept, server.connections) == (1, 2)


async def test_a_connection_that_is_still_fit_stays(raw: Serve, link: Connect) -> None:
    server = await raw(plain())
    sender, told = await link(server.url)
    await call(sender, told, 1)

    sender._courier._pool._sweep_idle()
    await call(sender, told, 2)

    assert server.connections == 1


async def test_an_idle_connection_that_ends_is_forgotten(raw: Serve, link: Connect) -> None:
    async def leave(asked: Asked) -> None:
        await asked.reply(200, result(asked.id))
        asked.hang_up()

    server = await raw(leave)
    sender, told = await link(server.url)
    await call(sender, told, 1)
    await server.left()
    async with asyncio.timeout(10):
        while sender._courier._pool._all:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop

    assert not sender._courier._pool._idle


async def test_what_wants_no_answer_finds_a_connection_when_all_are_taken(raw: Serve, link: Connect) -> None:
    taken: list[Asked] = []
    noted = asyncio.Event()

    async def hold(asked: Asked) -> None:
        if asked.id is None:
            noted.set()
            await asked.reply(202)
        else:
            taken.append(asked)
            await asked.gone()

    server = await raw(hold)
    sender, _ = await link(server.url, in_flight=1)
    for number in range(20):
        sender.send(request(number), number, {})
    async with asyncio.timeout(10):
        while len(taken) < 9:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop

    sender.send(note(), None, {})
    await asyncio.wait_for(noted.wait(), 10)

    assert len(taken) == 9 or server.connections == 10


async def test_notices_beyond_all_bounds_wait(raw: Serve, link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_SPARE", 0)
    monkeypatch.setattr(courier, "_LONG_LIVED", 0)
    server = await raw(plain(b"", 202))
    sender, _ = await link(server.url, in_flight=1)
    for _ in range(5):
        sender.send(note(), None, {})
    async with asyncio.timeout(10):
        while len(server.asked) < 5:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop

    assert server.connections == 1


async def test_a_place_that_was_lost_is_taken_by_who_waits(raw: Serve, link: Connect) -> None:
    async def reset(asked: Asked) -> None:
        asked.hang_up()

    server = await raw(reset)
    sender, told = await link(server.url, in_flight=1)
    for number in range(30):
        sender.send(request(number), number, {})

    lost = {(await told.next())[2] for _ in range(30)}

    assert lost == set(range(30))
    assert len(server.asked) == 30


async def test_a_server_that_hangs_up_at_once_is_told_as_it_is(link: Connect) -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        sender, told = await link(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        for number in range(20):
            sender.send(request(number), number, {})

        errors = [(await told.next())[1] for _ in range(20)]

        assert {(error.kind, error.sent) for error in errors} <= {("lost", True), ("unavailable", False)}
        await sender.close()


async def test_a_connection_that_is_dead_before_it_is_used_is_not(raw: Serve, link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await raw(plain())
    sender, told = await link(server.url)
    loop = asyncio.get_running_loop()
    connect: Any = loop.create_connection

    async def die(*given: Any, **more: Any) -> Any:
        transport, protocol = await connect(*given, **more)
        transport.abort()
        return transport, protocol

    monkeypatch.setattr(loop, "create_connection", die)
    sender.send(request(1), 1, {})

    error = await told.loss(1)
    assert (error.kind, error.sent) == ("unavailable", False)
    assert "at once" in error.message


async def test_who_waits_is_not_given_a_connection_that_has_just_ended(raw: Serve, link: Connect) -> None:
    async def leave(asked: Asked) -> None:
        await asked.reply(200, result(asked.id))
        asked.hang_up()

    server = await raw(leave)
    sender, told = await link(server.url, in_flight=1)
    for number in range(40):
        sender.send(request(number), number, {})

    answered = {(await told.next())[0] for _ in range(40)}

    assert answered == {"message"}
    assert server.connections == 40
