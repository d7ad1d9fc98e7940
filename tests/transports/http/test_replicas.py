"""Two real servers on one Redis: each serves every session, and what it gets for the other reaches it."""

import asyncio
import json
import os
import signal
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis_programs import NEEDS_REDIS, Program, one_server
from redis_programs import client_of as redis_client
from replica_programs import NEEDS_NGINX, Client, Server, balanced, client_of, servers_of
from table_tests import every_row

pytestmark = NEEDS_REDIS
ROUNDS = int(os.environ.get("REPLICA_ROUNDS", "1"))
"""Rounds of 50 calls, 5 questions and 10 calls of a session in each era; 10 in 'make soak'."""
_numbers = count(1)
SOURCE = """
import asyncio, logging, os, sys
from callyard import Call, Yard, serve, tool
from callyard.transports.auth import ApiKey, ApiKeys, digest_of

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

@tool(operation="query")
async def tell(call: Call, count: int) -> int:
    "Say so many lines."
    for number in range(count):
        await call.progress(number + 1, count)
        await asyncio.sleep(0.01)  # so that a client can lose the stream in between
    os.write(2, b"told %d\\n" % count)
    return count

@tool(operation="command", session="optional")
async def open_counter(call: Call) -> str:
    "Start a session with a live object."
    session = call.start_session(kind="counter")
    session.state["counts"] = []
    return session.id

@tool(operation="command", session="required")
async def count(call: Call, ask: bool = False, size: int = 0, nap: float = 0) -> dict[str, object]:
    "Count in the session."
    counts = call.session.state["counts"]
    await call.progress(1, 2)
    if ask:
        schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}}
        if not (await call.ask(schema, "Sure?"))["yes"]:
            return {"n": -1}
    os.write(2, b"counting\\n")
    await asyncio.sleep(nap)  # what the tool is there for
    counts.append(1)
    return {"n": len(counts), "pid": os.getpid(), "text": "x" * size}

yard = Yard(tools=[whose, confirm, wait, tell, open_counter, count])
options = {"access_log": None, "audit_log": "audit.jsonl"}
if "KEYS" in os.environ:
    keys = ApiKeys(ApiKey(name, digest_of(name * 8)) for name in os.environ["KEYS"].split())
    options["authenticator"] = keys
serve(yard, transport="http", port=int(sys.argv[1]), store=sys.argv[2], console=False, **options)
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with one_server(tmp_path_factory.mktemp("redis")) as program:
        yield program


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, redis: Program) -> Generator[list[Server]]:
    with servers_of(tmp_path_factory.mktemp("servers"), SOURCE, redis.url) as found:
        yield found


@pytest.fixture
def mortal(tmp_path: Path, redis: Program) -> Generator[list[Server]]:
    """Start servers for one test, which may kill them."""
    with servers_of(tmp_path, SOURCE, f"{redis.url}?prefix=mortal{next(_numbers)}") as found:
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


def records(servers: list[Server], word: str) -> list[Any]:
    """Return the records with a word, such as the name of a tool, of all servers."""
    lines = [line for server in servers for line in (server.folder / "audit.jsonl").read_text().splitlines()]
    return [json.loads(line) for line in lines if f'"{word}"' in line]


@every_row("modern", (False, True))
async def test_a_call_runs_where_its_session_lives_and_is_recorded_once(
    *, modern: bool, servers: list[Server], until: Any
) -> None:
    async with client_of(bases(servers), modern=modern) as client:
        session = (await client.call("open_counter", 0))["data"]
        counted = [await client.call("count", at, session_id=session) for at in (1, 0, 1)]
        asked = await client.call("count", 1, session_id=session, ask=True)
        large = await client.call("count", 1, session_id=session, size=200_000)
        read = await client.call("read_result", 0, handle=large["data"]["handle"])

    assert [answer["data"]["n"] for answer in (*counted, asked)] == [1, 2, 3, 4]
    assert {answer["data"]["pid"] for answer in counted} == {servers[0].process.pid}
    assert {answer["_meta"]["session_id"] for answer in counted} == {session}
    assert read["success"], (large, read)
    await until(lambda: len(records(servers, session)) >= 6)
    assert len(records(servers, session)) == 6  # five calls, and the one that started it


async def test_progress_of_a_call_elsewhere_reaches_its_client(servers: list[Server]) -> None:
    async with client_of(bases(servers)) as client:
        session = (await client.call("open_counter", 0))["data"]
        arguments = {"name": "count", "arguments": {"session_id": session}, "_meta": {"progressToken": 7}}
        async with client.stream(client.message("tools/call", arguments), at=1) as events:
            messages = [message async for message in events]

    assert [message.get("method") for message in messages] == ["notifications/progress", None]


async def test_a_call_without_the_id_of_its_session_finds_it_elsewhere(servers: list[Server]) -> None:
    async with client_of(bases(servers)) as client:
        await client.call("open_counter", 0)
        found = await client.call("count", 1)
        await client.call("open_counter", 1)
        ambiguous = await client.call("count", 0)

    assert found["data"]["n"] == 1
    assert ambiguous["error"]["code"] == "invalid_input"


async def test_a_call_for_a_session_of_a_dead_replica_fails_and_says_whether_it_may_have_run(
    mortal: list[Server], until: Any
) -> None:
    async with client_of([mortal[1].base]) as client:
        other = Client(client.http, [mortal[0].base])
        other.session = client.session
        session = (await other.call("open_counter"))["data"]
        running = asyncio.ensure_future(client.call("count", session_id=session, nap=600))
        await until(lambda: "counting" in mortal[0].errors)
        mortal[0].end(signal.SIGKILL)
        cut, later = await running, await client.call("count", session_id=session)

    assert [answer["error"]["code"] for answer in (cut, later)] == ["not_running", "not_running"]
    assert [answer["error"]["details"]["reason"] for answer in (cut, later)] == ["replica_gone", "replica_gone"]
    assert [answer["error"]["may_have_run"] for answer in (cut, later)] == [True, False]


async def test_answers_of_the_newer_era_reach_the_call_that_waits_elsewhere(servers: list[Server], until: Any) -> None:
    before = len(records(servers, "confirm"))
    async with client_of(bases(servers), modern=True) as client:
        answers = [await client.call("confirm") for _ in range(4)]

    assert [answer["data"] for answer in answers] == [True] * 4
    await until(lambda: len(records(servers, "confirm")) >= before + 4)
    assert len(records(servers, "confirm")) == before + 4


async def test_an_answer_for_a_dead_replica_is_gone(mortal: list[Server]) -> None:
    async with client_of([mortal[0].base], modern=True) as client:
        asked = await client.request("tools/call", {"name": "confirm", "arguments": {}})
        mortal[0].end(signal.SIGKILL)
        client.bases = [mortal[1].base]
        result = asked["result"]
        answers = {key: {"action": "accept", "content": {"yes": True}} for key in result["inputRequests"]}
        retried = {"inputResponses": answers, "requestState": result["requestState"]}
        answer = await client.request("tools/call", {"name": "confirm", "arguments": {}, **retried})

    assert answer["result"]["structuredContent"]["error"]["details"]["reason"] == "call_gone"


async def test_sessions_and_questions_of_another_caller_are_refused_by_every_replica(
    tmp_path: Path, redis: Program
) -> None:
    keys = {"ada": "ada" * 8, "bob": "bob" * 8}
    with servers_of(tmp_path, SOURCE, f"{redis.url}?prefix=keys", KEYS=" ".join(keys)) as two:
        async with (
            client_of(bases(two), key=keys["ada"]) as ada,
            client_of(bases(two), key=keys["bob"]) as bob,
            client_of(bases(two), modern=True, key=keys["ada"]) as newer,
            client_of(bases(two), modern=True, key=keys["bob"]) as thief,
        ):
            session = (await ada.call("open_counter", 0))["data"]
            used = [await bob.call("count", at, session_id=session) for at in (0, 1)]
            question = await newer.request("tools/call", {"name": "confirm", "arguments": {}}, at=0)
            state = question["result"]["requestState"]
            answers = {
                key: {"action": "accept", "content": {"yes": True}} for key in question["result"]["inputRequests"]
            }
            retried = {"name": "confirm", "arguments": {}, "inputResponses": answers, "requestState": state}
            bob.session = ada.session
            stolen = {await bob.notify("notifications/cancelled", {"requestId": 1}, at=at) for at in (0, 1)}
            async with thief.stream(thief.message("tools/call", retried), at=1) as events:
                refused = events.response.status_code
            own = await newer.request("tools/call", retried, at=1)
            mine = await ada.call("count", 1, session_id=session)

    assert {answer["error"]["code"] for answer in used} == {"not_running"}
    assert (stolen, refused) == ({404}, 400)
    assert own["result"]["structuredContent"]["data"] is True
    assert mine["data"]["n"] == 1


async def lost_at(client: Client, count: int) -> tuple[int, str]:
    """Begin a call at the first server that says so many things, lose its stream, and return how much came."""
    message = client.message(
        "tools/call", {"name": "tell", "arguments": {"count": count}, "_meta": {"progressToken": 1}}
    )
    async with client.stream(message, at=0) as events:
        first = await events.next()
        assert events.last_event, first
        return 1, events.last_event


def stored(redis: Program, session: str) -> list[bytes]:
    """Return the streams of a session in the store, in their order."""
    with redis_client(redis) as client:
        keys = sorted(client.scan_iter(f"mortal*mcp_stream/{session}/*", count=1000))
        return [client.get(key)[8:] for key in keys]


async def rest_of(client: Client, last: str, at: int) -> list[Any]:
    async with client.stream(None, at=at, last_event=last) as events:
        return [message async for message in events]


async def test_a_stream_that_lost_its_client_is_resumed_at_another_replica(servers: list[Server]) -> None:
    async with client_of(bases(servers)) as client:
        for at in (1, 0):
            seen, last = await lost_at(client, 30)
            rest = await rest_of(client, last, at)
            done = [message["params"]["progress"] for message in rest[:-1]]
            assert done == sorted(set(done))
            assert done[0] > seen
            assert rest[-1]["result"]["structuredContent"]["data"] == 30


async def test_the_answer_of_a_call_is_read_after_its_replica_died(
    mortal: list[Server], redis: Program, until: Any
) -> None:
    async with client_of(bases(mortal)) as client:
        _, done = await lost_at(client, 3)
        _, cut = await lost_at(client, 10_000)
        await until(lambda: "told 3" in mortal[0].errors)
        await until(lambda: [b'"is_over":true' in text for text in stored(redis, client.session)] == [True, False])
        mortal[0].end(signal.SIGKILL)
        answer, failure = (await rest_of(client, done, 1))[-1], (await rest_of(client, cut, 1))[-1]
        async with client.stream(None, at=1, last_event="0123456789.7-1") as events:
            unknown = events.response.status_code

    assert answer["result"]["structuredContent"]["data"] == 3
    error = failure["result"]["structuredContent"]["error"]
    assert (error["code"], error["may_have_run"], unknown) == ("cancelled", True, 400)


@NEEDS_NGINX
@every_row("modern", (False, True))
async def test_many_calls_behind_a_balancer_lose_nothing(
    *, modern: bool, servers: list[Server], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with balanced(tmp_path_factory.mktemp("nginx"), servers) as base:
        async with client_of([base], modern=modern) as client:
            session = (await client.call("open_counter"))["data"]
            pids: set[int] = set()
            for _ in range(5 * ROUNDS):
                called = await asyncio.gather(*(client.call("whose") for _ in range(10)))
                pids |= {answer["data"] for answer in called}
                confirmed = await client.call("confirm")
                counted = await asyncio.gather(*(client.call("count", session_id=session) for _ in range(2)))
                assert confirmed["data"] is True
                assert {answer["error"] for answer in (*called, *counted)} == {None}
            last = await client.call("count", session_id=session)

    assert pids == {server.process.pid for server in servers}
    assert last["data"]["n"] == 10 * ROUNDS + 1
