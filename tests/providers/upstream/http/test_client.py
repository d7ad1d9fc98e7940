"""The connection pool: which connections are reused, and which are not."""

import asyncio
from typing import Any

import pytest
from raw_servers import Connect, Request, Serve, answers, notification, request_message, result_message, until

from callyard.providers.upstream.http import client, exchange


async def call(link: Any, listener: Any, *numbers: int) -> None:
    for number in numbers:
        link.send(request_message(number), number, {})
        await listener.message(about=number)


@pytest.mark.parametrize(
    ("alive", "connections"), [("timeout=60", 1), ("timeout=5, max=100", 1), ("timeout=1", 2), ("max=5", 1)]
)
async def test_a_connection_is_not_used_for_longer_than_the_server_keeps_it(
    serve: Serve, connect: Connect, alive: str, connections: int
) -> None:
    server = await serve(answers(keep_alive=alive))
    link, listener = await connect(server.url)

    await call(link, listener, 1, 2)

    assert server.connections == connections


@pytest.mark.parametrize("how", ["header", "version", "eof"])
async def test_a_connection_that_the_server_will_close_is_not_reused(serve: Serve, connect: Connect, how: str) -> None:
    async def last(request: Request) -> None:
        body = result_message(request.id)
        version, length = (
            ("1.0" if how == "version" else "1.1"),
            ("" if how == "eof" else f"content-length: {len(body)}\r\n"),
        )
        closes = "connection: close\r\n" if how == "header" else ""
        await request.write(
            f"HTTP/{version} 200 OK\r\ncontent-type: application/json\r\n{length}{closes}\r\n".encode() + body
        )
        if how == "eof":
            request.hang_up()

    server = await serve(last)
    link, listener = await connect(server.url)

    await call(link, listener, 1, 2)

    assert server.connections == 2


async def test_a_connection_closed_while_idle_is_not_used_before_the_loop_notices(
    serve: Serve, connect: Connect
) -> None:
    async def leave(request: Request) -> None:
        await request.reply(200, result_message(request.id))
        request.hang_up()

    server = await serve(leave)
    link, listener = await connect(server.url)

    await call(link, listener, *range(20))

    assert len(server.requests) == server.connections == 20


async def test_idle_connections_are_closed_after_a_while(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SWEEP_SECONDS", 0.001)
    server = await serve(answers())
    link, listener = await connect(server.url)
    await call(link, listener, 1)
    kept = server.connections
    link._sender._pool._idle[0]._idle_limit = 0.0

    await server.left()
    await call(link, listener, 2)

    assert (kept, server.connections) == (1, 2)


async def test_a_reusable_idle_connection_survives_the_sweep(serve: Serve, connect: Connect) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url)
    await call(link, listener, 1)

    link._sender._pool._sweep_idle()
    await call(link, listener, 2)

    assert server.connections == 1


async def test_an_idle_connection_that_ends_is_forgotten(serve: Serve, connect: Connect) -> None:
    async def leave(request: Request) -> None:
        await request.reply(200, result_message(request.id))
        request.hang_up()

    server = await serve(leave)
    link, listener = await connect(server.url)
    await call(link, listener, 1)
    await server.left()
    await until(lambda: not link._sender._pool._all)

    assert not link._sender._pool._idle


async def test_a_notification_gets_a_connection_when_all_are_busy(serve: Serve, connect: Connect) -> None:
    taken: list[Request] = []
    noted = asyncio.Event()

    async def hold(request: Request) -> None:
        if request.id is None:
            noted.set()
            await request.reply(202)
        else:
            taken.append(request)
            await request.gone()

    server = await serve(hold)
    link, _ = await connect(server.url, in_flight=1)
    for number in range(20):
        link.send(request_message(number), number, {})
    await until(lambda: len(taken) >= 9)

    link.send(notification(), None, {})
    await asyncio.wait_for(noted.wait(), 60)

    assert len(taken) == 9 or server.connections == 10


async def test_notifications_beyond_the_spare_connections_queue(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_SPARE", 0)
    monkeypatch.setattr(exchange, "_STREAMS", 0)
    server = await serve(answers(b"", 202))
    link, _ = await connect(server.url, in_flight=1)
    for _ in range(5):
        link.send(notification(), None, {})
    await until(lambda: len(server.requests) >= 5)

    assert server.connections == 1


async def test_a_lost_connection_is_replaced_for_queued_requests(serve: Serve, connect: Connect) -> None:
    async def reset(request: Request) -> None:
        request.hang_up()

    server = await serve(reset)
    link, listener = await connect(server.url, in_flight=1)
    for number in range(30):
        link.send(request_message(number), number, {})

    lost = {(await listener.next())[2] for _ in range(30)}

    assert lost == set(range(30))
    assert len(server.requests) == 30


async def test_a_server_that_hangs_up_at_once_is_lost_or_unavailable(connect: Connect) -> None:
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        link, listener = await connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        for number in range(20):
            link.send(request_message(number), number, {})

        errors = [(await listener.next())[1] for _ in range(20)]

        assert {(error.kind, error.sent) for error in errors} <= {("lost", True), ("unavailable", False)}
        await link.close()


async def test_a_connection_that_died_at_once_is_not_used(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url)
    loop = asyncio.get_running_loop()
    create_connection: Any = loop.create_connection

    async def die(*arguments: Any, **options: Any) -> Any:
        transport, protocol = await create_connection(*arguments, **options)
        transport.abort()
        return transport, protocol

    monkeypatch.setattr(loop, "create_connection", die)
    link.send(request_message(1), 1, {})

    error = await listener.loss(1)
    assert (error.kind, error.sent) == ("unavailable", False)
    assert "at once" in error.message


async def test_a_queued_request_is_not_sent_on_a_connection_that_just_ended(serve: Serve, connect: Connect) -> None:
    async def leave(request: Request) -> None:
        await request.reply(200, result_message(request.id))
        request.hang_up()

    server = await serve(leave)
    link, listener = await connect(server.url, in_flight=1)
    for number in range(40):
        link.send(request_message(number), number, {})

    answered = {(await listener.next())[0] for _ in range(40)}

    assert answered == {"message"}
    assert server.connections == 40
