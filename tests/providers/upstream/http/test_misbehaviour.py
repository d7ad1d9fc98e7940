"""Servers that do not keep to HTTP or to MCP: each is a clear error, and nothing hangs or grows."""

import asyncio
import socket
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from raw_servers import Asked, Connect, Listening, Serve, plain, request, result

from toolyard.providers.upstream.link import LinkError


async def ask(sender: Any, told: Listening, number: int = 1) -> LinkError:
    sender.send(request(number), number, {})
    return await told.loss(number)


def says(*pieces: bytes, close: bool = False) -> Callable[[Asked], Any]:
    """Return a behaviour that sends bytes as they are."""

    async def say(asked: Asked) -> None:
        for piece in pieces:
            await asked.write(piece)
        if close:
            asked.hang_up()
        else:
            await asked.gone()

    return say


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x16\x03\x01 nonsense \xff\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header at all\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_garbage_instead_of_http_is_refused(raw: Serve, link: Connect, answer: bytes) -> None:
    server = await raw(says(answer))
    sender, told = await link(server.url)

    error = await ask(sender, told)

    assert (error.kind, error.sent) == ("refused", True)
    assert "no HTTP" in error.message
    assert error.text == "" or error.text[:3] in answer.decode("utf-8", "replace")
    await server.left()


@pytest.mark.parametrize(
    "line",
    [b"x-filler: " + b"y" * 1000 + b"\r\n", b"y" * 1000, b"HTTP/1.1 100 Continue\r\n\r\n" * 40, b""],
    ids=["headers", "one", "interim", "trailers"],
)
async def test_a_head_without_end_is_refused(raw: Serve, link: Connect, line: bytes) -> None:
    async def endless(asked: Asked) -> None:
        start = b"" if line.startswith(b"HTTP") else HEAD if line else HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n"
        await asked.write(start + (b"x: " if line.startswith(b"y") else b""))
        while True:
            await asked.write(line or b"x-filler: yyyyyyyyyyyyyyyyyyyy\r\n" * 40)

    server = await raw(endless)
    sender, told = await link(server.url)

    error = await ask(sender, told)

    assert (error.kind, error.sent) == ("refused", True)
    await server.left()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_body_over_the_limit_is_refused_and_not_kept(raw: Serve, link: Connect, kind: str) -> None:
    async def endless(asked: Asked) -> None:
        await asked.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\ndata: " % kind.encode())
        while True:
            await asked.write(b"x" * 10_000)

    server = await raw(endless)
    sender, told = await link(server.url, message_bytes=100_000)
    tracemalloc.start()
    try:
        error = await ask(sender, told)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (error.kind, error.sent) == ("refused", True)
    assert "100000" in error.message
    assert peak < 5_000_000
    await server.left()


async def test_a_stream_may_be_longer_than_one_message_may(raw: Serve, link: Connect) -> None:
    async def talk(asked: Asked) -> None:
        await asked.stream()
        for _ in range(100):
            await asked.event(b'{"jsonrpc":"2.0","method":"x","params":{"x":"%b"}}' % (b"y" * 500))
        await asked.event(result(asked.id))
        await asked.end()

    server = await raw(talk)
    sender, told = await link(server.url, message_bytes=1000)
    sender.send(request(1), 1, {})

    for _ in range(100):
        await told.message(about=1)
    assert (await told.message(about=1))["id"] == 1


@pytest.mark.parametrize(
    ("pieces", "when"),
    [
        ((), "before it answered"),
        ((b"HTTP/1.1 200 OK\r\nconte",), "before it answered"),
        ((HEAD + b"content-length: 100\r\n\r\n", b'{"jsonrpc":'), "in the middle"),
        ((HEAD + b"transfer-encoding: chunked\r\n\r\n", b'a\r\n{"jsonrpc'), "in the middle"),
    ],
)
async def test_half_an_answer_is_none_and_the_message_is_not_sent_again(
    raw: Serve, link: Connect, pieces: tuple[bytes, ...], when: str
) -> None:
    server = await raw(says(*pieces, close=True))
    sender, told = await link(server.url)

    error = await ask(sender, told)

    assert (error.kind, error.sent, len(server.asked)) == ("lost", True, 1)
    assert when in error.message


async def test_a_reset_is_told_as_it_is(raw: Serve, link: Connect) -> None:
    async def reset(asked: Asked) -> None:
        asked.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        asked.writer.transport.abort()

    server = await raw(reset)
    sender, told = await link(server.url)

    error = await ask(sender, told)

    assert (error.kind, error.sent, len(server.asked)) == ("lost", True, 1)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", b"<html>Welcome!</html>"),
        ("application/json", b""),
        ("application/json", b"{"),
        ("application/json", b"[]"),
        ("application/json", b'"text"'),
        ("application/json", b'{"jsonrpc":"2.0","id":99,"result":{}}'),
        ("application/json", b"\xff\xfe"),
        ("application/json", b"[" * 100_000),
    ],
)
async def test_what_is_no_answer_is_refused_with_its_beginning(raw: Serve, link: Connect, kind: str, body: bytes) -> None:
    server = await raw(plain(body, content_type=kind))
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})

    heard = await told.next()
    if heard[0] == "message":  # one to somebody else, which is not for the link to judge
        heard = await told.next()

    assert (heard[0], heard[1].kind, heard[1].sent, heard[1].status) == ("lost", "refused", True, 200)
    assert heard[1].text == body.decode("utf-8", "replace")[:500]


async def test_an_answer_by_another_name_is_one(raw: Serve, link: Connect) -> None:
    server = await raw(plain(content_type="text/plain"))
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})

    assert (await told.message(about=1))["id"] == 1


async def test_nonsense_on_a_stream_is_passed_over(raw: Serve, link: Connect) -> None:
    async def talk(asked: Asked) -> None:
        await asked.stream()
        await asked.event(b"{nonsense")
        await asked.event(b"[")
        await asked.event(result(asked.id))
        await asked.end()

    server = await raw(talk)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})

    assert (await told.message(about=1))["id"] == 1


async def test_an_answer_that_drips_is_read_and_one_that_stops_can_be_dropped(raw: Serve, link: Connect) -> None:
    async def drip(asked: Asked) -> None:
        body = result(asked.id)
        for byte in HEAD + b"content-length: %d\r\n\r\n" % len(body) + (body if asked.id == 1 else body[:5]):
            await asked.write(bytes([byte]))
            await asyncio.sleep(0)  # a turn of the loop, so that it is sent alone
        await asked.gone()

    server = await raw(drip)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    assert (await told.message(about=1))["id"] == 1
    sender.send(request(2), 2, {})
    sender.drop(2)
    await sender.close()

    await server.left()
    assert told.told.empty()


async def test_a_second_answer_that_nobody_asked_for_is_never_taken_for_the_next(raw: Serve, link: Connect) -> None:
    async def twice(asked: Asked) -> None:
        good, evil = result(asked.id), result(asked.id + 1, "evil")
        both = b"".join(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body) for body in (good, evil))
        await asked.write(both)

    server = await raw(twice)
    sender, told = await link(server.url, in_flight=1)
    for number in range(1, 13):
        sender.send(request(number), number, {})

    answers = [await told.next() for _ in range(12)]

    assert {message["result"]["value"] for _, message, _ in answers} == {"done"}
    assert server.connections == 12


async def test_who_speaks_unasked_is_hung_up_on(raw: Serve, link: Connect) -> None:
    go = asyncio.Event()

    async def late(asked: Asked) -> None:
        await asked.reply(200, result(asked.id))
        await go.wait()
        await asked.write(HEAD + b"content-length: 2\r\n\r\n{}")
        await asked.gone()

    server = await raw(late)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await told.message(about=1)
    go.set()
    await server.left()
    sender.send(request(2), 2, {})

    assert (await told.message(about=2))["result"] == {"value": "done"}


async def test_a_server_that_is_not_there_is_unavailable(link: Connect) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sender, told = await link(f"http://127.0.0.1:{port}/mcp")

    for number in range(80):
        sender.send(request(number), number, {})
    errors = [(await told.next())[1] for _ in range(80)]

    assert {(error.kind, error.sent) for error in errors} == {("unavailable", False)}
    assert "nobody listens" in errors[0].message


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid"])
async def test_a_host_that_is_not_known_is_unavailable(link: Connect, host: str) -> None:
    sender, told = await link(f"http://{host}/mcp")

    error = await ask(sender, told)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "not known" in error.message


async def test_a_server_that_takes_no_connection_is_unavailable_in_time(link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    sender, told = await link("http://127.0.0.1:9/mcp", connect_seconds=0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)

    error = await ask(sender, told)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "0.05 seconds" in error.message


async def test_any_other_failure_to_connect_is_unavailable_too(link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise OSError(113, "No route to host")

    sender, told = await link("http://127.0.0.1:9/mcp")
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)

    error = await ask(sender, told)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "No route to host" in error.text
