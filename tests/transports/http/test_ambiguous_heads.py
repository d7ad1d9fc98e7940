"""Heads that another reader might understand differently are refused before their body is read."""

from typing import Any

import pytest

MESSAGE = b'{"jsonrpc":"2.0","id":1,"method":"server/discover"}'


def head(first: bytes = b"POST /mcp HTTP/1.1", *lines: bytes) -> bytes:
    """Return a request with these lines besides the usual ones."""
    usual = (b"Content-Type: application/json", b"MCP-Protocol-Version: 2025-11-25")
    return b"\r\n".join((first, *usual, *lines, b"", b""))


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/healthz", b"localhost", 200),
        (b"http://LOCALHOST/healthz", b"localhost", 200),
        (b"http://evil.example/healthz", b"localhost", 400),
        (b"http://localhost:1/healthz", b"localhost", 400),
        (b"http://evil@localhost/healthz", b"localhost", 400),
        (b"https://evil.example?/healthz", b"localhost", 400),
    ],
)
async def test_an_absolute_target_must_name_the_host_of_the_header(
    serve: Any, target: bytes, host: bytes, status: int
) -> None:
    wire = await (await serve()).connect()

    await wire.write(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")

    assert (await wire.reply()).status == status


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"chunked, chunked", b"x-unknown, chunked", b"gzip", b"identity"])
async def test_only_the_transfer_encoding_chunked_is_taken(serve: Any, coding: bytes) -> None:
    wire = await (await serve()).connect()

    await wire.write(head(b"POST /mcp HTTP/1.1", b"Host: localhost", b"Transfer-Encoding: " + coding) + b"0\r\n\r\n")

    assert (await wire.reply()).status in {400, 501}
    assert await wire.ends() == b""


async def test_two_transfer_encodings_are_refused(serve: Any) -> None:
    wire = await (await serve()).connect()

    await wire.write(
        head(b"POST /mcp HTTP/1.1", b"Host: localhost", b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked")
        + b"0\r\n\r\n"
    )

    assert (await wire.reply()).status in {400, 501}


@pytest.mark.parametrize(("value", "status"), [(b"200-ok", 417), (b"100-continue, other", 417), (b"", 417)])
async def test_an_unknown_expectation_is_refused(serve: Any, value: bytes, status: int) -> None:
    wire = await (await serve()).connect()

    await wire.write(head(b"POST /mcp HTTP/1.1", b"Host: localhost", b"Expect: " + value, b"Content-Length: 5"))

    assert (await wire.reply()).status == status


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
async def test_the_known_expectation_is_met(serve: Any, value: bytes) -> None:
    wire = await (await serve()).connect()

    await wire.write(
        head(b"POST /mcp HTTP/1.1", b"Host: localhost", b"Expect: " + value, b"Content-Length: %d" % len(MESSAGE))
    )

    assert (await wire.head()).status == 100


@pytest.mark.parametrize(("value", "status"), [("gzip", 415), ("br", 415), ("x", 415), ("identity", 200)])
async def test_a_body_in_another_encoding_is_refused(serve: Any, value: str, status: int) -> None:
    server = await serve()

    reply = await server.ask("add", {"a": 1, "b": 2}, headers={"Content-Encoding": value})

    assert reply.status == status


@pytest.mark.parametrize("version", [b"HTTP/2.0", b"HTTP/3.0", b"HTTP/0.9", b"HTTP/1.2", b"HTTP/9.9"])
async def test_another_version_of_http_is_refused(serve: Any, version: bytes) -> None:
    wire = await (await serve()).connect()

    await wire.write(b"GET /healthz " + version + b"\r\nHost: localhost\r\n\r\n")

    assert (await wire.reply()).status in {400, 505}


@pytest.mark.parametrize(("count", "status"), [(253, 200), (254, 431), (2500, 431)])
async def test_a_request_may_have_256_headers(serve: Any, count: int, status: int) -> None:
    wire = await (await serve()).connect()
    more = [b"X-%d: 1" % number for number in range(count)]

    await wire.write(head(b"GET /healthz HTTP/1.1", b"Host: localhost", *more))

    assert (await wire.reply()).status == status
