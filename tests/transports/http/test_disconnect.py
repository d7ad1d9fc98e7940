"""Clients that go away: what becomes of their calls."""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.transports.conftest import Gates

CALL: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "wait", "arguments": {}}}


@pytest.mark.parametrize("settings", [{}, {"hold_back": 0.0}, {"json_response": True}])
async def test_in_the_newer_era_a_client_that_goes_cancels_its_call(
    serve: Any, gates: "Gates", until: Any, settings: Any
) -> None:
    server = await serve(**settings)
    wire = await server.call("wait")
    await until(lambda: gates.running)

    await wire.close()
    await until(lambda: server.records)

    assert [(record.tool, record.code) for record in server.records] == [("wait", "cancelled")]
    assert gates.running == 0


async def test_in_the_newer_era_a_client_that_goes_while_it_reads_events_cancels_its_call(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve()
    wire = await server.call("step", token=1)
    gates.steps.put_nowait(None)
    await wire.head()
    await wire.message()

    await wire.close()
    await until(lambda: server.records)

    assert server.records[0].code == "cancelled"


async def test_a_stateless_server_cancels_the_call_of_a_client_that_goes(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve(stateless=True)
    wire = await server.send("POST", "/mcp", {"MCP-Protocol-Version": "2025-11-25"}, CALL)
    await until(lambda: gates.running)

    await wire.close()
    await until(lambda: server.records)

    assert server.records[0].code == "cancelled"


@pytest.mark.parametrize("settings", [{}, {"hold_back": 0.0}, {"json_response": True}])
async def test_in_a_session_the_call_of_a_client_that_goes_is_not_cancelled(
    serve: Any, gates: "Gates", until: Any, settings: Any
) -> None:
    server = await serve(**settings)
    session = await server.greet()
    wire = await session.call("wait")
    await until(lambda: gates.running)

    await wire.close()
    assert (await session.ask("ping", id=2)).status == 200
    assert gates.running == 1
    gates.go.set()
    await until(lambda: server.records)

    assert [(record.tool, record.code) for record in server.records] == [("wait", None)]


async def test_a_client_that_only_closes_its_sending_half_is_gone_too(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve()
    wire = await server.call("wait")
    await until(lambda: gates.running)

    wire.writer.write_eof()
    await until(lambda: server.records)

    assert server.records[0].code == "cancelled"


async def test_a_client_that_goes_in_the_middle_of_its_body_leaves_nothing_behind(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve()
    wire = await server.connect()
    await wire.write(
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        b'100\r\n\r\n{"jsonrpc"'
    )

    await wire.close()

    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]


async def test_a_hundred_clients_that_go_at_once_leave_a_server_that_answers(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve()
    wires = [await server.call("wait") for _ in range(100)]
    await until(lambda: gates.running == 100)

    for wire in wires:
        wire.writer.transport.abort()
    await until(lambda: len(server.records) == 100)

    assert {record.code for record in server.records} == {"cancelled"}
    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3
