"""What clients do that mean no good: too much, too slowly, too many, and never reading."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callyard.transports.http import server as server_module
from callyard.transports.http.protocol import Connection

if TYPE_CHECKING:
    from tests.transports.conftest import Gates

MEGABYTE = 1024 * 1024
HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"


async def pour(wire: Any, piece: bytes, count: int) -> int:
    """Send a piece again and again until the server has enough; return how many bytes went out."""
    sent = 0
    try:
        for _ in range(count):
            await wire.write(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


async def test_a_body_that_is_said_to_be_too_long_is_refused_before_it_is_sent(serve: Any) -> None:
    server = await serve(message_bytes=1000)
    wire = await server.connect()

    await wire.write(HEAD + b"Content-Length: 1001\r\n\r\n")
    reply = await wire.reply()

    assert reply.status == 413
    assert await wire.ends() == b""


@pytest.mark.parametrize("length", [b"99999999999999999999999999", b"4194305"])
async def test_a_length_that_is_absurd_is_refused(serve: Any, length: bytes) -> None:
    server = await serve()
    wire = await server.connect()

    await wire.write(HEAD + b"Content-Length: " + length + b"\r\n\r\n")

    assert (await wire.reply()).status in {400, 413}


@pytest.mark.parametrize(
    "headers", [b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"]
)
async def test_a_body_whose_length_is_said_in_two_ways_is_refused(serve: Any, headers: bytes) -> None:
    server = await serve()
    wire = await server.connect()

    await wire.write(HEAD + headers + b"\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert (await wire.reply()).status == 400
    assert await wire.ends() == b""


async def test_a_message_may_be_as_long_as_the_limit_and_no_longer(serve: Any) -> None:
    server = await serve(message_bytes=1000)
    message = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}'

    fits = await server.request("POST", "/mcp", message.ljust(1000))
    chunked = await server.connect()
    await chunked.write(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n3e8\r\n" + message.ljust(1000) + b"\r\n1\r\n \r\n0\r\n\r\n"
    )

    assert fits.status == 200
    assert (await chunked.reply()).status == 413


async def test_a_client_that_sends_all_of_a_body_that_is_too_long_still_reads_why(serve: Any) -> None:
    server = await serve(message_bytes=1000)

    for size in (2000, 5 * MEGABYTE):
        wire = await server.connect()
        await wire.write(HEAD + b"Content-Length: %d\r\n\r\n" % size + b" " * size)
        assert (await wire.reply()).status == 413


async def test_a_body_without_an_end_is_cut_off_and_costs_no_more_than_the_limit(serve: Any, memory: Any) -> None:
    server = await serve()
    before = memory()
    wire = await server.connect()
    await wire.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")

    sent = await pour(wire, CHUNK, 1600)

    assert sent < 50 * MEGABYTE
    assert memory() - before < 40 * MEGABYTE
    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3


async def test_a_head_without_an_end_is_cut_off(serve: Any, memory: Any) -> None:
    server = await serve()
    before = memory()
    wire = await server.connect()
    await wire.write(HEAD)

    sent = await pour(wire, b"X-Filler: " + b"x" * 65_536 + b"\r\n", 1600)

    assert sent < 40 * MEGABYTE
    assert memory() - before < 40 * MEGABYTE
    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3


async def test_one_header_or_one_address_without_an_end_is_cut_off(serve: Any) -> None:
    server = await serve()

    for begin in (b"GET /", HEAD + b"X-Filler: "):
        wire = await server.connect()
        await wire.write(begin)
        assert await pour(wire, b"x" * 65_536, 800) < 40 * MEGABYTE


async def test_a_head_of_a_reasonable_size_is_taken(serve: Any) -> None:
    server = await serve()

    assert (await server.ask("add", {"a": 1, "b": 2}, headers={"X-Long": "x" * 8000})).data == 3


@pytest.mark.parametrize("begin", [b"POST /mcp HT", HEAD])
async def test_a_head_that_is_not_finished_in_time_is_refused_and_ends_the_connection(serve: Any, begin: bytes) -> None:
    server = await serve(head_seconds=0.05)
    wire = await server.connect()
    await wire.write(begin)
    reply = await wire.reply()

    assert (reply.status, reply.body) == (408, b"The request did not come whole in time.\n")
    assert await wire.ends() == b""


async def test_a_client_that_says_nothing_in_time_is_let_go_without_a_word(serve: Any) -> None:
    server = await serve(head_seconds=0.05)
    wire = await server.connect()

    assert await wire.ends() == b""


async def test_the_head_has_its_bound_even_if_it_comes_in_one_piece(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()

    await wire.write(HEAD + b"X-Filler: " + b"x" * 66_000 + b"\r\n\r\n")

    assert (await wire.reply()).status == 431


async def test_a_second_head_on_a_connection_has_the_same_deadline(serve: Any) -> None:
    server = await serve(head_seconds=0.2)
    wire = await server.connect()
    await wire.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await wire.reply()).status == 200

    await wire.write(b"GET /healthz HT")

    assert (await wire.reply()).status == 408
    assert await wire.ends() == b""


async def test_a_second_head_that_comes_later_has_the_same_deadline(serve: Any, until: Any, spy: Any) -> None:
    looked = spy(Connection, "check_progress")
    server = await serve(head_seconds=0.05)
    wire = await server.connect()
    await wire.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await wire.reply()).status == 200
    await until(lambda: looked)

    await wire.write(b"GET /healthz HT")

    assert (await wire.reply()).status == 408
    assert await wire.ends() == b""


async def test_a_body_that_is_not_finished_in_time_ends_the_connection(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_BODY_SECONDS", 0.1)
    server = await serve(head_seconds=0.5)
    wire = await server.connect()

    await wire.write(HEAD + b"Content-Length: 100\r\n\r\n{")

    assert (await wire.reply()).status == 408
    assert await wire.ends() == b""


async def test_a_connection_that_is_idle_for_long_is_closed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_IDLE_SECONDS", 0.1)
    server = await serve(head_seconds=0.05)
    wire = await server.connect()
    await wire.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert (await wire.reply()).status == 200
    assert await wire.ends() == b""


async def test_a_call_may_take_longer_than_the_deadlines_of_its_request(
    serve: Any, gates: "Gates", monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    looked = spy(Connection, "check_progress")
    for name in ("_BODY_SECONDS", "_IDLE_SECONDS"):
        monkeypatch.setattr(server_module, name, 0.02)
    server = await serve(head_seconds=0.02)
    wire = await server.call("wait", headers={"Accept": "application/json"})

    await until(lambda: len(looked) > 3)
    gates.go.set()

    assert (await wire.reply()).data == "done"


async def test_a_client_that_never_reads_costs_little_and_keeps_nobody_waiting(
    serve: Any, gates: "Gates", until: Any, memory: Any
) -> None:
    server = await serve()
    before = memory()
    deaf = await server.call(
        "tell", {"count": 20_000, "size": 10_000}, meta={"io.modelcontextprotocol/logLevel": "info"}
    )
    deaf.writer.transport.pause_reading()
    await until(lambda: gates.running)
    gates.go.set()

    for number in range(20):
        assert (await server.ask("add", {"a": number, "b": 1})).data == number + 1
    await until(lambda: [record for record in server.records if record.tool == "tell"])

    assert next(record.code for record in server.records if record.tool == "tell") is None
    assert memory() - before < 60 * MEGABYTE


async def test_a_client_in_a_session_that_never_reads_costs_little(
    serve: Any, gates: "Gates", until: Any, memory: Any
) -> None:
    server = await serve()
    session = await server.greet()
    before = memory()
    deaf = await session.call("tell", {"count": 10_000, "size": 10_000})
    deaf.writer.transport.pause_reading()
    await until(lambda: gates.running)
    gates.go.set()

    await until(lambda: server.records)

    assert memory() - before < 60 * MEGABYTE
    assert (await session.ask("ping", id=2)).status == 200


async def test_a_client_that_does_not_take_its_answer_is_dropped(
    serve: Any, monkeypatch: pytest.MonkeyPatch, until: Any, spy: Any
) -> None:
    lost = spy(Connection, "connection_lost")
    monkeypatch.setattr(server_module, "_UNREAD_SECONDS", 0.05)
    server = await serve(message_bytes=20 * MEGABYTE)
    deaf = await server.connect()
    deaf.writer.transport.pause_reading()
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    long: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": "x" * 18 * MEGABYTE,
        "method": "server/discover",
        "params": {"_meta": meta},
    }
    routing = {
        "Host": "localhost",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "server/discover",
        "Content-Type": "application/json",
    }

    await deaf.send("POST", "/mcp", routing, json.dumps(long).encode())
    await until(lambda: lost)

    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3
    deaf.writer.transport.resume_reading()
    assert len(await deaf.ends()) < 18 * MEGABYTE


async def test_thousands_of_connections_that_say_nothing_keep_nobody_waiting(serve: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 12_000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    count = min(3000, wanted // 2 - 500)
    server = await serve()
    idle: list[socket.socket] = []
    try:
        for number in range(count):
            one = socket.socket()
            one.settimeout(0)
            idle.append(one)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", server.port))
            if number % 500 == 0:
                assert (await server.ask("add", {"a": number, "b": 1})).data == number + 1
        replies = await asyncio.gather(*(server.ask("add", {"a": number, "b": 1}) for number in range(50)))
    finally:
        for one in idle:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert count >= 2000
    assert [reply.data for reply in replies] == list(range(1, 51))


async def test_a_trailer_is_no_header(serve: Any) -> None:
    server = await serve()
    wire = await server.connect()
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

    await wire.write(head + b"2\r\n{}\r\n0\r\nContent-Type: application/json\r\nMcp-Session-Id: x\r\n\r\n")

    assert (await wire.reply()).status == 415


async def test_trailers_are_bounded(serve: Any, memory: Any) -> None:
    server = await serve(message_bytes=1000)
    wire = await server.connect()
    before = memory()
    await wire.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")

    with contextlib.suppress(OSError):
        for number in range(2000):
            await wire.write(b"X-%d: %b\r\n" % (number, b"y" * 1000))

    assert memory() - before < 5 * MEGABYTE


async def test_the_client_with_the_largest_bodies_makes_room_for_the_others(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_MAX_BODIES", 2)
    server = await serve(message_bytes=100_000)
    head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99000\r\n\r\n"
    greedy = [await server.connect() for _ in range(3)]
    for number, wire in enumerate(greedy):
        await wire.write(head + b"x" * (90_000 + number))

    refused = await greedy[2].reply()
    answered = await server.ask("add", {"a": 1, "b": 2})

    assert (refused.status, answered.data) == (503, 3)


SERVER = """
import sys
from callyard import Yard, serve, tool

@tool(operation="query")
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

serve(Yard(tools=[add]), transport="http", port=0, connections=200)
"""
WORK_S = 1.5
"""How long a server may compute before it answers another client while an attack runs: usually a few milliseconds; the
attacks took seconds to minutes before they were bounded."""
STATELESS = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def trailer_without_end(sock: socket.socket) -> None:
    """Send one trailer for as long as the server takes it."""
    sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: ")
    for _ in range(8_000):
        sock.sendall(b"a" * 4096)


def trailers_after_a_body(sock: socket.socket) -> None:
    """Send a body as large as it may be, and trailers without end."""
    sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 60 + b"0\r\n")
    for _ in range(8_000):
        sock.sendall(b"X-A: " + b"a" * 4000 + b"\r\n")


def tiny_chunks(sock: socket.socket) -> None:
    """Send a body in chunks of one byte."""
    sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    for _ in range(200):
        sock.sendall(b"1\r\n \r\n" * 40_000)


def chunk_extension_without_end(sock: socket.socket) -> None:
    """Send the size of a chunk, and an extension of it without end."""
    sock.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;x=")
    for _ in range(500):
        sock.sendall(b"a" * 65_536)


def silent_connections(sock: socket.socket) -> None:
    """Open many connections, and send nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(sock.getpeername()))


def pipelined_requests(sock: socket.socket) -> None:
    """Send small requests, and read no answer."""
    sock.settimeout(1)
    for _ in range(200):
        sock.sendall(STATELESS * 1000)


def attack(port: int, send: Any) -> None:
    """Run one attack until it is over, or the server has enough of it."""
    for _ in range(3):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
            send(sock)


def processor_seconds(process: int) -> float:
    """Return how long a process has computed: unlike the time on a clock, other programs do not change it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def longest_work(port: int, process: int, attacks: "asyncio.Future[Any]") -> float:
    """Return the longest time that the server computed before it answered another client while the attacks run."""
    longest = 0.0
    while not attacks.done():
        since, answer = processor_seconds(process), b""
        while not answer.startswith(b"HTTP/1.1 200 "):  # one whose connection had to make room comes again
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                writer.write(STATELESS)
                answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
        longest = max(longest, processor_seconds(process) - since)
    return longest


def peak_memory(process: int) -> int:
    """Return how many bytes a process ever had."""
    line = next(line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    "send",
    [
        trailer_without_end,
        trailers_after_a_body,
        tiny_chunks,
        chunk_extension_without_end,
        silent_connections,
        pipelined_requests,
    ],
)
async def test_while_an_attack_runs_others_are_answered_and_the_server_can_be_ended(program: Any, send: Any) -> None:
    running = await program(SERVER)
    port = int((await running.said(b"address=")).split(b"127.0.0.1:")[1].partition(b"/")[0])
    attacks = asyncio.gather(*(asyncio.to_thread(attack, port, send) for _ in range(4)))

    async with asyncio.timeout(60):
        longest = await longest_work(port, running.process.pid, attacks)
        await attacks
    again = asyncio.gather(*(asyncio.to_thread(attack, port, send) for _ in range(4)))
    memory = peak_memory(running.process.pid)
    running.process.send_signal(signal.SIGTERM)
    status, _, _ = await running.end()
    await again

    assert longest < WORK_S
    assert memory < 400 * MEGABYTE
    assert status == 0
