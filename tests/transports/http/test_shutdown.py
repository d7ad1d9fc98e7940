"""The end of a server that is told to end while calls are in flight: each is answered."""

import asyncio
import json
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from callyard import Serving, Yard
from callyard.launch.serve import make_transport

if TYPE_CHECKING:
    from tests.transports.conftest import Gates, Stubborn

SOURCE = """
import asyncio, sys
from callyard import Yard, tool, serve

@tool
async def nap(seconds: float) -> str:
    "Take a nap."
    print("napping", file=sys.stderr, flush=True)
    await asyncio.sleep(seconds)  # what the tool is there for
    return "rested"

serve(Yard(tools=[nap]), transport="http", port=0, shutdown_seconds=0.4, socket=sys.argv[1])
"""
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def test_quick_calls_are_finished_and_slow_ones_are_interrupted(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(shutdown_seconds=0.05)
    wires = [await server.call("wait") for _ in range(20)]
    await until(lambda: gates.running == 20)

    await server.stop()
    replies = [await wire.reply() for wire in wires]

    assert {reply.json["result"]["structuredContent"]["error"]["code"] for reply in replies} == {"cancelled"}
    assert {reply.json["result"]["structuredContent"]["error"]["blame"] for reply in replies} == {"yard"}


async def test_calls_of_a_session_are_answered_at_the_end_even_in_one_piece(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve(shutdown_seconds=0.05, json_response=True)
    session = await server.greet()
    wires = [await session.call("wait", id=number) for number in range(1, 21)]
    await until(lambda: gates.running == 20)

    await server.stop()
    replies = [await wire.reply() for wire in wires]

    assert {(reply.status, reply.json["result"]["structuredContent"]["error"]["code"]) for reply in replies} == {
        (200, "cancelled")
    }


@pytest.mark.parametrize("way", ["json", "stream", "session", "older"])
async def test_a_call_that_does_not_listen_to_its_interruption_is_answered_in_its_place(
    serve: Any, until: Any, stubborn: "Stubborn", way: str
) -> None:
    yard = Yard(tools=[stubborn])
    server = await serve(
        yard, shutdown_seconds=0.05, cleanup=0.05, hold_back=0.0 if way == "stream" else 2.0, stateless=way == "older"
    )
    if way == "session":
        wire = await (await server.greet()).call("stubborn")
    elif way == "older":
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "stubborn"}}
        said = {"Content-Type": "application/json", "MCP-Protocol-Version": "2025-11-25", "Accept": "application/json"}
        wire = await server.send("POST", "/mcp", {"Host": "localhost", **said}, message)
    else:
        wire = await server.call("stubborn")
    await until(lambda: stubborn.is_running)

    await server.stop()
    reply = await wire.reply()

    error = (json.loads(reply.body.partition(b"data: ")[2]) if way == "stream" else reply.json)["result"][
        "structuredContent"
    ]["error"]
    assert (error["code"], error["blame"], error["may_have_run"], error["tool_id"]) == (
        "cancelled",
        "yard",
        True,
        "stubborn",
    )


async def test_an_ending_server_waits_for_calls_that_are_nearly_done(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(shutdown_seconds=10)
    session = await server.greet()
    wires = [await server.call("wait"), await session.call("wait")]
    await until(lambda: gates.running == 2)

    ending = asyncio.create_task(server.stop())
    await until(lambda: server.transport.listeners[0].fileno() < 0)
    gates.go.set()
    replies = [await wire.reply() for wire in wires]
    await ending

    assert [reply.data for reply in replies] == ["done", "done"]


async def test_a_stream_that_is_open_gets_its_answer_at_the_end(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(shutdown_seconds=0.05, hold_back=0.0)
    session = await server.greet()
    wires = [await server.call("wait"), await session.call("wait")]
    for wire in wires:
        assert (await wire.head()).is_stream

    await server.stop()

    for wire in wires:
        answer = (await wire.messages())[-1]
        assert answer["result"]["structuredContent"]["error"]["code"] == "cancelled"


async def test_an_ending_server_is_not_ready(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(shutdown_seconds=10)
    idle, busy = await server.connect(), await server.call("wait")
    await idle.send("GET", "/readyz", {"Host": "localhost"})
    assert (await idle.reply()).status == 200
    await until(lambda: gates.running)

    ending = asyncio.create_task(server.stop())
    await until(lambda: server.transport.listeners[0].fileno() < 0)
    await idle.send("GET", "/readyz", {"Host": "localhost"})
    status = (await idle.reply()).status
    gates.go.set()
    await busy.reply()
    await ending

    assert status == 503


async def _post(server: Any, port: int, name: str) -> Any:
    """Call a tool on another port than the server's own."""
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}, "_meta": META}}
    ).encode()
    wire = await server.connect(port=port)
    headers = {"Host": "localhost", "Content-Type": "application/json", "MCP-Protocol-Version": "2026-07-28"}
    await wire.send("POST", "/mcp", {**headers, "Mcp-Method": "tools/call", "Mcp-Name": name}, body)
    return wire


async def test_a_transport_that_ends_interrupts_its_own_calls_and_nobody_elses(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve()
    second = make_transport(Serving(transport="http", port=0, shutdown_seconds=0.05))
    serving = asyncio.create_task(second.serve(server.yard))
    address = second.info().address
    other = await server.call("wait")
    own = await _post(server, int(address.rpartition(":")[2].partition("/")[0]), "wait")
    within = asyncio.create_task(server.yard.call("wait"))
    await until(lambda: gates.running == 3)

    await second.close()
    interrupted = (await own.reply()).json["result"]["structuredContent"]["error"]
    await serving
    later = await server.yard.call("add", {"a": 1, "b": 2})
    gates.go.set()

    assert (interrupted["code"], interrupted["blame"]) == ("cancelled", "yard")
    assert (later.data, (await within).data, (await other.reply()).data) == (3, "done", "done")
    assert second.info().address == address


def _refuses(path: str) -> bool:
    """Return whether nobody listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) != 0


async def test_sigterm_during_a_hundred_calls_answers_every_one(program: Any, tmp_path: Path, until: Any) -> None:
    path = str(tmp_path / "yard.sock")
    running = await program(SOURCE, path)
    await until(lambda: not _refuses(str(tmp_path / "yard.sock")))
    wires: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    for number in range(100):
        reader, writer = await asyncio.open_unix_connection(path)
        params: dict[str, Any] = {"name": "nap", "arguments": {"seconds": 0.1 if number % 2 else 60}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        head = (
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\n"
        )
        writer.write(
            f"{head}Mcp-Method: tools/call\r\nMcp-Name: nap\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wires.append((reader, writer))
    for _ in range(100):
        await running.said(b"napping")

    running.process.send_signal(signal.SIGTERM)
    answers = [json.loads((await reader.read()).partition(b"\r\n\r\n")[2]) for reader, _ in wires]
    for _, writer in wires:
        writer.close()
    status, _, err = await running.end()

    envelopes = [answer["result"]["structuredContent"] for answer in answers]
    assert [answer["id"] for answer in answers] == list(range(100))
    assert {envelope["data"] for envelope in envelopes[1::2]} == {"rested"}
    assert {(envelope["error"]["code"], envelope["error"]["blame"]) for envelope in envelopes[::2]} == {
        ("cancelled", "yard")
    }
    assert (status, b"Traceback" in err) == (0, False)
    assert not (tmp_path / "yard.sock").exists()


async def test_sigint_ends_a_server_and_leaves_nothing_behind(program: Any, tmp_path: Path, until: Any) -> None:
    running = await program(SOURCE, str(tmp_path / "yard.sock"))
    await until(lambda: not _refuses(str(tmp_path / "yard.sock")))

    running.process.send_signal(signal.SIGINT)
    status, _, err = await running.end()

    assert status in {130, -signal.SIGINT}
    assert b"CancelledError" not in err
    assert not (tmp_path / "yard.sock").exists()


async def test_requests_in_one_piece_are_all_answered_when_the_server_ends(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve()
    wire = await server.call("wait")
    await until(lambda: gates.running == 1)
    await wire.write(HEALTH * 3)
    await asyncio.sleep(0)  # a turn of the loop, in which the server reads them
    await asyncio.sleep(0)

    stopping = asyncio.ensure_future(server.stop())
    await asyncio.sleep(0)
    gates.go.set()
    replies = [(await wire.reply()).status for _ in range(4)]
    await stopping

    assert replies == [200] * 4
    assert await wire.ends() == b""


async def test_a_connection_that_the_kernel_has_accepted_is_served_before_the_server_ends(serve: Any) -> None:
    server = await serve()
    with socket.create_connection(("127.0.0.1", server.port)) as late:
        late.sendall(HEALTH)
        await server.stop()
        answer = late.recv(65_536)

    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))


async def test_a_request_that_has_not_come_whole_is_refused_when_the_server_ends(serve: Any, until: Any) -> None:
    server = await serve()
    wire = await server.connect()
    await wire.write(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert (await server.request("GET", "/healthz")).status == 200  # the server has read what came before

    await server.stop()
    reply = await wire.reply()

    assert (reply.status, reply.headers["retry-after"]) == (503, "1")


async def test_an_answer_during_shutdown_says_that_the_connection_closes(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve(shutdown_seconds=5)
    busy, idle = await server.call("wait"), await server.connect()
    await until(lambda: gates.running == 1)
    stopping = asyncio.ensure_future(server.stop())
    for _ in range(20):
        await asyncio.sleep(0)  # turns of the loop, in which the server begins to end

    await idle.write(HEALTH)
    reply = await idle.reply()
    gates.go.set()
    await stopping

    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert (await busy.reply()).status == 200


async def test_a_server_that_is_cancelled_while_it_starts_closes_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "yard.sock"
    transport: Any = make_transport(Serving(transport="http", socket=str(path)))
    async with Yard() as yard:
        starting = asyncio.create_task(transport.serve(yard))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    assert (transport.listeners[0].fileno(), path.exists()) == (-1, False)


async def test_a_shutdown_that_is_cancelled_again_closes_every_socket() -> None:
    async def left_open(turns: int) -> list[str]:
        transport: Any = make_transport(Serving(transport="http", port=0, shutdown_seconds=0.05))
        async with Yard() as yard:
            server = asyncio.ensure_future(transport.serve(yard))
            reader, writer = await asyncio.open_connection(*transport.listeners[0].getsockname()[:2])
            writer.write(HEALTH)
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(2):
                server.cancel()
                for _ in range(turns):  # in each of them something else is being closed
                    await asyncio.sleep(0)
            await asyncio.gather(server, return_exceptions=True)
            async with asyncio.timeout(60):
                await reader.read()  # until the server closes the connection
            writer.close()
            await writer.wait_closed()
        return [str(listener) for listener in transport.listeners if listener.fileno() != -1]

    assert [turns for turns in range(25) if await left_open(turns)] == []
