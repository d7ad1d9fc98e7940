import asyncio
import json

import pytest

from callyard import Call, Yard, tool
from callyard.config.settings import Serving
from callyard.dispatch.call import Caller
from callyard.testing import FakeSink
from callyard.transports.memory import Memory

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
META: dict[str, object] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def test_a_client_in_the_same_process_speaks_the_protocol() -> None:
    async with Yard() as yard, Memory().open(yard) as memory:
        memory.send(PING)
        assert json.loads(await memory.received.get()) == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_nobody_hears_before_and_after() -> None:
    memory = Memory()
    assert (memory.info().name, memory.info().address) == ("memory", "memory")
    with pytest.raises(RuntimeError):
        memory.send(PING)
    async with Yard() as yard, memory.open(yard):
        pass
    with pytest.raises(RuntimeError):
        memory.send(PING)


async def test_the_caller_is_who_it_is_said_to_be() -> None:
    @tool
    async def who(call: Call) -> str:
        """Say who calls, and by which door."""
        return f"{call.caller.identity} by {call.channel.name}"

    async with Yard(tools=[who]) as yard, Memory(caller=Caller(identity="ada")).open(yard) as memory:
        memory.send(
            json.dumps(
                {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "who", "_meta": META}}
            ).encode()
        )
        answer = json.loads(await memory.received.get())

    assert answer["result"]["structuredContent"]["data"] == "ada by memory"


async def test_calls_that_do_not_end_are_interrupted_at_the_end_and_answered() -> None:
    sink = FakeSink()
    entered = asyncio.Event()

    @tool
    async def hang() -> None:
        """Take for ever."""
        entered.set()
        await asyncio.Event().wait()

    async with Yard(tools=[hang], sinks=[sink]) as yard, Memory(Serving(shutdown_seconds=0.01)).open(yard) as memory:
        for number in range(3):
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "hang", "_meta": META}}
            memory.send(json.dumps(call).encode())
        await entered.wait()

    answers = [json.loads(memory.received.get_nowait()) for _ in range(3)]
    assert sink.codes == ["cancelled"] * 3
    assert sorted(answer["id"] for answer in answers) == [0, 1, 2]
    assert {answer["result"]["structuredContent"]["error"]["code"] for answer in answers} == {"cancelled"}
    assert memory.received.empty()


async def test_two_clients_do_not_hear_each_other() -> None:
    async with Yard() as yard, Memory().open(yard) as one, Memory().open(yard) as other:
        one.send(PING)
        await one.received.get()
        assert other.received.empty()
