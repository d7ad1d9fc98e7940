"""Two real servers on one Redis: each serves every session, and what it gets for the other reaches it."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis_programs import NEEDS_REDIS, Program, one_server
from replica_programs import Client, Server, client_of, servers_of

pytestmark = NEEDS_REDIS
SOURCE = """
import asyncio, logging, os, sys
from callyard import Call, Yard, serve, tool

logging.basicConfig(level="INFO", format="%(message)s")
gates = {}

@tool(operation="query")
async def whose() -> int:
    "Return the process."
    return os.getpid()

@tool(operation="command")
async def confirm(call: Call) -> bool:
    "Ask for a yes."
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
    return (await call.ask(schema, "Sure?"))["yes"]

@tool(operation="command")
async def wait(call: Call, ticks: int = 0) -> str:
    "Wait until it is cancelled, or report so many ticks."
    for tick in range(ticks):
        await call.progress(tick + 1, ticks)
    await call.progress(ticks + 1, ticks + 1)
    try:
        await asyncio.sleep(0 if ticks else 600)  # what the tool is there for
    except asyncio.CancelledError:
        os.write(2, b"cancelled here\\n")
        raise
    return "done"

yard = Yard(tools=[whose, confirm, wait])
serve(yard, transport="http", port=int(sys.argv[1]), store=sys.argv[2], console=False)
"""


@pytest.fixture
def redis(tmp_path: Path) -> Generator[Program]:
    with one_server(tmp_path / "redis") as program:
        yield program


@pytest.fixture
def servers(tmp_path: Path, redis: Program) -> Generator[list[Server]]:
    with servers_of(tmp_path, SOURCE, redis.url) as found:
        yield found


def bases(servers: list[Server]) -> list[str]:
    return [server.base for server in servers]


async def test_every_replica_serves_a_session(servers: list[Server]) -> None:
    async with client_of(bases(servers)) as client:
        pids = {(await client.call("whose"))["data"] for _ in range(4)}

    assert pids == {server.process.pid for server in servers}


async def test_a_session_that_ended_is_gone_everywhere(servers: list[Server]) -> None:
    async with client_of(bases(servers)) as client:
        for at in (0, 1):
            await client.call("whose", at)
        ended = await client.http.delete(f"{servers[0].base}/mcp", headers=client.headers())
        statuses = {await client.notify("notifications/initialized", {}, at=at) for at in (0, 1)}
        stranger = Client(client.http, client.bases)
        stranger.session = "0" * 32
        statuses.add(await stranger.notify("notifications/initialized", {}, at=1))

    assert (ended.status_code, statuses) == (httpx2.codes.OK, {404})


async def test_an_answer_reaches_the_call_that_asked_elsewhere(servers: list[Server]) -> None:
    async with client_of(bases(servers)) as client:
        answers = [await client.call("confirm", at) for at in (0, 1, 0)]

    assert [answer["data"] for answer in answers] == [True, True, True]


async def test_a_cancellation_reaches_the_call_that_runs_elsewhere(servers: list[Server], until: Any) -> None:
    async with client_of(bases(servers)) as client:
        message = client.message("tools/call", {"name": "wait", "arguments": {}, "_meta": {"progressToken": 1}}, 77)
        async with client.stream(message, at=0) as events:
            assert (await events.next())["method"] == "notifications/progress"
            await client.notify("notifications/cancelled", {"requestId": 77}, at=1)
            await until(lambda: "cancelled here" in servers[0].errors)
