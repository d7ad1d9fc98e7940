"""Servers that do not keep to HTTP or to MCP: each is a clear error, and nothing hangs or grows."""

import asyncio
import socket
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from raw_servers import Connect, Request, Serve, answers, failed_call, request_message, result_message
from table_tests import every_row

from callyard.providers.upstream.http import HttpLink
from callyard.providers.upstream.link import NO_CREDENTIALS, LinkError, Received
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.transports import fastest_loop
from callyard.wire.messages import Id


def sends(*pieces: bytes, close: bool = False) -> Callable[[Request], Any]:
    """Return a behaviour that sends bytes as they are."""

    async def send(request: Request) -> None:
        for piece in pieces:
            await request.write(piece)
        if close:
            request.hang_up()
        else:
            await request.gone()

    return send


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
async def test_garbage_instead_of_http_is_refused(serve: Serve, connect: Connect, answer: bytes) -> None:
    server = await serve(sends(answer))
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent) == ("refused", True)
    assert "not HTTP" in error.message
    assert error.text == "" or error.text[:3] in answer.decode("utf-8", "replace")
    await server.left()


@pytest.mark.parametrize(
    "line",
    [b"x-filler: " + b"y" * 1000 + b"\r\n", b"y" * 1000, b"HTTP/1.1 100 Continue\r\n\r\n" * 40, b""],
    ids=["headers", "one", "interim", "trailers"],
)
async def test_a_head_without_end_is_refused(serve: Serve, connect: Connect, line: bytes) -> None:
    async def endless(request: Request) -> None:
        start = b"" if line.startswith(b"HTTP") else HEAD if line else HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n"
        await request.write(start + (b"x: " if line.startswith(b"y") else b""))
        while True:
            await request.write(line or b"x-filler: yyyyyyyyyyyyyyyyyyyy\r\n" * 40)

    server = await serve(endless)
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent) == ("refused", True)
    await server.left()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_body_over_the_limit_is_refused_and_not_kept(serve: Serve, connect: Connect, kind: str) -> None:
    async def endless(request: Request) -> None:
        await request.write(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n\r\ndata: " % kind.encode())
        while True:
            await request.write(b"x" * 10_000)

    server = await serve(endless)
    link, listener = await connect(server.url, message_bytes=100_000)
    tracemalloc.start()
    try:
        error = await failed_call(link, listener)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (error.kind, error.sent) == ("refused", True)
    assert "100000" in error.message
    assert peak < 5_000_000
    await server.left()


async def test_a_stream_may_be_longer_than_one_message_may(serve: Serve, connect: Connect) -> None:
    async def talk(request: Request) -> None:
        await request.stream()
        for _ in range(100):
            await request.event(b'{"jsonrpc":"2.0","method":"x","params":{"x":"%b"}}' % (b"y" * 500))
        await request.event(result_message(request.id))
        await request.end()

    server = await serve(talk)
    link, listener = await connect(server.url, message_bytes=1000)
    link.send(request_message(1), 1, {})

    for _ in range(100):
        await listener.message(about=1)
    assert (await listener.message(about=1))["id"] == 1


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
    serve: Serve, connect: Connect, pieces: tuple[bytes, ...], when: str
) -> None:
    server = await serve(sends(*pieces, close=True))
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent, len(server.requests)) == ("lost", True, 1)
    assert when in error.message


async def test_a_reset_is_reported_as_a_reset(serve: Serve, connect: Connect) -> None:
    async def reset(request: Request) -> None:
        request.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.writer.transport.abort()

    server = await serve(reset)
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent, len(server.requests)) == ("lost", True, 1)


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
async def test_a_body_that_is_no_answer_is_refused_with_its_beginning(
    serve: Serve, connect: Connect, kind: str, body: bytes
) -> None:
    server = await serve(answers(body, content_type=kind))
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})

    heard = await listener.next()
    if heard[0] == "message":  # one to somebody else, which is not for the link to handle
        heard = await listener.next()

    assert (heard[0], heard[1].kind, heard[1].sent, heard[1].status) == ("lost", "refused", True, 200)
    assert heard[1].text == body.decode("utf-8", "replace")[:500]


async def test_an_answer_by_another_name_is_one(serve: Serve, connect: Connect) -> None:
    server = await serve(answers(content_type="text/plain"))
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})

    assert (await listener.message(about=1))["id"] == 1


async def test_nonsense_on_a_stream_is_passed_over(serve: Serve, connect: Connect) -> None:
    async def talk(request: Request) -> None:
        await request.stream()
        await request.event(b"{nonsense")
        await request.event(b"[")
        await request.event(result_message(request.id))
        await request.end()

    server = await serve(talk)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})

    assert (await listener.message(about=1))["id"] == 1


async def test_an_answer_that_drips_is_read_and_one_that_stops_can_be_dropped(serve: Serve, connect: Connect) -> None:
    async def drip(request: Request) -> None:
        body = result_message(request.id)
        for byte in HEAD + b"content-length: %d\r\n\r\n" % len(body) + (body if request.id == 1 else body[:5]):
            await request.write(bytes([byte]))
            await asyncio.sleep(0)  # one loop iteration, so that it is sent alone
        await request.gone()

    server = await serve(drip)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    assert (await listener.message(about=1))["id"] == 1
    link.send(request_message(2), 2, {})
    link.drop(2)
    await link.close()

    await server.left()
    assert listener.calls.empty()


async def test_a_second_response_is_never_taken_for_the_next(serve: Serve, connect: Connect) -> None:
    async def twice(request: Request) -> None:
        good, evil = result_message(request.id), result_message(request.id + 1, "evil")
        both = b"".join(HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body) for body in (good, evil))
        await request.write(both)

    server = await serve(twice)
    link, listener = await connect(server.url, in_flight=1)
    for number in range(1, 13):
        link.send(request_message(number), number, {})

    answers = [await listener.next() for _ in range(12)]

    assert {message["result"]["value"] for _, message, _ in answers} == {"done"}
    assert server.connections == 12


async def test_an_unsolicited_response_closes_the_connection(serve: Serve, connect: Connect) -> None:
    go = asyncio.Event()

    async def late(request: Request) -> None:
        await request.reply(200, result_message(request.id))
        await go.wait()
        await request.write(HEAD + b"content-length: 2\r\n\r\n{}")
        await request.gone()

    server = await serve(late)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    go.set()
    await server.left()
    link.send(request_message(2), 2, {})

    assert (await listener.message(about=2))["result"] == {"value": "done"}


async def test_a_server_that_is_not_there_is_unavailable(connect: Connect) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    link, listener = await connect(f"http://127.0.0.1:{port}/mcp")

    for number in range(80):
        link.send(request_message(number), number, {})
    errors = [(await listener.next())[1] for _ in range(80)]

    assert {(error.kind, error.sent) for error in errors} == {("unavailable", False)}
    assert "refuses connections" in errors[0].message


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid"])
async def test_an_unknown_host_is_unavailable(connect: Connect, host: str) -> None:
    link, listener = await connect(f"http://{host}/mcp")

    error = await failed_call(link, listener)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "unknown" in error.message


async def test_a_server_that_accepts_no_connection_times_out(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    link, listener = await connect("http://127.0.0.1:9/mcp", connect_seconds=0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "0.05 seconds" in error.message


async def test_any_other_failure_to_connect_is_unavailable_too(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise OSError(113, "No route to host")

    link, listener = await connect("http://127.0.0.1:9/mcp")
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "No route to host" in error.private


FLOODS = {
    "blank lines": b"\n\n",
    "comments": b":\n\n",
    "long comments": b": " + b"x" * 200 + b"\n",
    "events": b"data: {}\n\n",
    "tiny events": b"id\n\n",
}
LAG_S = 0.25
NOISE = 4
"""The factor for a busy machine; the lag was 5 seconds before streams were read in slices."""


def flood(listener: socket.socket, piece: bytes) -> None:
    """Answer the first request with an event stream of nothing but this."""
    with listener, suppress(OSError):
        peer, _ = listener.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            for _ in range(3 if b"d" in piece else 12):
                peer.sendall(piece * (1024 * 1024 // len(piece)))


async def longest_lag(work: "asyncio.Future[Any]") -> float:
    """Return for how long the loop was blocked at most while something goes on."""
    loop, longest = asyncio.get_running_loop(), 0.0
    while not work.done():
        since = loop.time()
        await asyncio.sleep(0)  # one loop iteration, not a wait
        longest = max(longest, loop.time() - since)
    return longest


@every_row("piece", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_on_an_event_stream_blocks_nobody(piece: bytes) -> None:
    async def receive() -> float:
        listener = socket.create_server(("127.0.0.1", 0))
        link = HttpLink(
            "there", UpstreamSettings(url=f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"), NO_CREDENTIALS
        )
        sending = asyncio.ensure_future(asyncio.to_thread(flood, listener, piece))
        await link.open(DroppingListener())
        link.send(request_message(1), 1, {})
        try:
            async with asyncio.timeout(60):
                return await longest_lag(sending)
        finally:
            await link.close()
            await sending

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:  # which reads on while there is more
        assert runner.run(receive()) < LAG_S * NOISE


class DroppingListener:
    """A listener that drops everything."""

    def receive(self, data: bytes, about: Id | None) -> Received:
        """Drop a message."""
        return "message"

    def lose(self, request_id: Id, error: LinkError) -> None:
        """Drop a loss."""

    def end(self, error: LinkError) -> None:
        """Drop the end."""


async def test_one_trailer_without_end_is_refused_before_it_grows(serve: Serve, connect: Connect) -> None:
    async def endless(request: Request) -> None:
        await request.write(HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-filler: ")
        while True:
            await request.write(b"y" * 10_000)

    server = await serve(endless)
    link, listener = await connect(server.url)
    tracemalloc.start()
    try:
        error = await failed_call(link, listener)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (error.kind, error.sent) == ("refused", True)
    assert peak < 5_000_000
    await server.left()


async def test_an_event_of_very_many_lines_is_refused(serve: Serve, connect: Connect) -> None:
    async def talk(request: Request) -> None:
        await request.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: x\n" + b":\n" * 200_000 + b"\n"
        )
        await request.gone()

    server = await serve(talk)
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent) == ("refused", True)
    await server.left()
