"""Heads that come again: what is remembered of one must not show in any answer."""

import json
from typing import Any

import pytest

from callyard.transports.http.protocol import Connection

START = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2025-11-25\r\n"
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


def adding(number: int) -> bytes:
    """Return a call as long as any other of its kind."""
    arguments = {"a": number, "b": 2}
    return json.dumps(
        {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "add", "arguments": arguments}}
    ).encode()


def whole(number: int, head: bytes = START) -> bytes:
    """Return a whole request of a call."""
    body = adding(number)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(number: int) -> bytes:
    """Return the same in another encoding."""
    body = adding(number)
    return START + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@pytest.fixture(name="wire")
async def open_wire(serve: Any) -> Any:
    """Return a connection to a server that knows no sessions."""
    server = await serve(stateless=True, json_response=True)
    return await server.connect()


async def test_a_head_that_comes_again_is_not_parsed_again_and_has_its_own_body(wire: Any, spy: Any) -> None:
    parsed = spy(Connection, "_parse")

    for number in (4, 5, 6, 7):
        await wire.write(whole(number))
        reply = await wire.reply()
        assert (reply.json["id"], reply.data) == (number, number + 2)

    assert len(parsed) == 2  # the first one on a connection is not remembered


async def test_a_request_in_two_pieces_is_known_by_no_head(wire: Any) -> None:
    request = whole(5)
    for cut in (1, 40, len(request) - 40, len(request) - 1):
        await wire.write(whole(4))
        assert (await wire.reply()).data == 6
        await wire.write(request[:cut])
        await wire.write(request[cut:])
        assert (cut, (await wire.reply()).data) == (cut, 7)


async def test_requests_in_one_piece_are_answered_one_by_one(wire: Any) -> None:
    for _ in range(2):
        await wire.write(whole(4))
        await wire.write(whole(5) + whole(6))
        assert [(await wire.reply()).data for _ in range(3)] == [6, 7, 8]


async def test_a_head_with_another_body_behind_it_is_read_as_what_it_is(wire: Any) -> None:
    for _ in range(2):
        await wire.write(whole(4))
        assert (await wire.reply()).data == 6

    shorter, longer = whole(4)[:-1], whole(4) + b"x"
    await wire.write(shorter)
    await wire.write(b"}")
    assert (await wire.reply()).data == 6
    await wire.write(longer)
    assert (await wire.reply()).data == 6
    assert await wire.ends() == b""


async def test_a_body_in_chunks_is_read_anew_each_time(wire: Any) -> None:
    for number in (4, 5, 6):
        await wire.write(chunked(number))
        assert (await wire.reply()).data == number + 2


async def test_a_client_that_expects_100_continue_for_each_body_gets_it_each_time(wire: Any) -> None:
    for number in (4, 5, 6):
        await wire.write(whole(number, START + b"Expect: 100-continue\r\n"))
        assert (await wire.head()).status == 100
        assert (await wire.reply()).data == number + 2


async def test_an_upgrade_header_may_come_again(wire: Any) -> None:
    for number in (4, 5, 6):
        await wire.write(whole(number, START + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"))
        assert (await wire.reply()).data == number + 2


async def test_a_request_without_a_body_may_come_again(wire: Any, spy: Any) -> None:
    parsed = spy(Connection, "_parse")

    for _ in range(4):
        await wire.write(HEALTH + b"\r\n")
        assert (await wire.reply()).json == {"status": "ok"}

    assert len(parsed) == 2


async def test_a_head_that_may_mean_something_else_next_time_is_not_remembered(wire: Any, spy: Any) -> None:
    parsed = spy(Connection, "_parse")

    for request in (
        HEALTH + b"Content-Length: 00\r\n\r\n",
        HEALTH + b"X: " + b"x" * 5000 + b"\r\n\r\n",
        HEALTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ):
        parsed.clear()
        for _ in range(4):
            await wire.write(request)
            assert (await wire.reply()).json == {"status": "ok"}
        assert (request, len(parsed)) == (request, 4)


async def test_an_upgrade_header_is_ignored_wherever_its_head_is_cut(wire: Any) -> None:
    request = whole(4, START + b"Connection: Upgrade, HTTP2-Settings\r\nUPGRADE: h2c\r\n")
    for cut in range(1, request.index(b"{") + 1):
        await wire.write(request[:cut])
        await wire.write(request[cut:])
        assert (cut, (await wire.reply()).data) == (cut, 6)
