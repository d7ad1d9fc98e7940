"""OpenTelemetry: spans, their context and their attributes, histograms, and collectors that fail."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from otlp_receiver import Point, Receiver, receiving
from redis_programs import NEEDS_REDIS, one_server

from callyard import Call, ToolError, Yard, prompt, resource, tool
from callyard.config import read_config
from callyard.jobs.job import WORKERS
from callyard.jobs.worker import JobWorker
from callyard.launch.errors import LaunchError
from callyard.launch.monitor import Monitor
from callyard.launch.notices import Notices, logging_to
from callyard.launch.serve import serve_forever
from callyard.monitor import conventions as names
from callyard.monitor import log_sink
from callyard.monitor.otlp import sampling
from callyard.monitor.tracing import context_of
from callyard.policy.settings import QueueSettings, Rule
from callyard.state.redis import RedisStore
from callyard.state.sqlite import SqliteStore
from callyard.transports import Transport

META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
SECRET = "hunter2hunter2"  # noqa: S105 - no real one
TRACE, PARENT, AROUND = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "b7ad6b7169203331"


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool(operation="query")
async def fail(text: str) -> str:
    """Fail."""
    raise ToolError("not_found", f"There is no {text}.")


@tool(operation="query")
async def nest(text: str, call: Call) -> str:
    """Call another tool."""
    return str((await call.invoke("echo", {"text": text})).data)


@tool(operation="query")
def ask_context() -> str:
    """Answer with the current span, as a library of the handler sees it."""
    return f"{trace.get_current_span().get_span_context().span_id:016x}"


@tool(operation="query", job="always")
async def slow(text: str, call: Call) -> str:
    """Run as a job, and call another tool in it."""
    return str((await call.invoke("echo", {"text": text})).data)


STUCK = asyncio.Event()
HELD, RELEASED = asyncio.Event(), asyncio.Event()


@tool(operation="query", job="always")
async def stuck() -> None:
    """Run until the process ends."""
    STUCK.set()
    await asyncio.Event().wait()


@tool(operation="query")
async def hold(number: int) -> int:
    """Wait until the test goes on."""
    HELD.set()
    await RELEASED.wait()
    return number


@tool(operation="query")
async def warn() -> None:
    """Write a line to the log."""
    logging.getLogger("shop").warning("no apples")


@tool(operation="query")
async def mark() -> None:
    """Write into the current span, as a library does."""
    span = trace.get_current_span()
    span.set_attributes({"shop.shelf": 3})
    span.add_event("looked", {"shop.far": True})
    span.record_exception(ValueError(SECRET))
    span.set_status(trace.StatusCode.ERROR)
    span.update_name("tools/call marked")


DIES = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "tools/call" and os.path.exists(sys.argv[1] + "1") and not os.path.exists(sys.argv[1] + "2"):
        open(sys.argv[1] + "2", "w").close()
        sys.exit(1)
    if method == "tools/call":
        open(sys.argv[1] + "1", "w").close()
        result = {"content": []}
    elif method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                  "serverInfo": {"name": "dies", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "once", "inputSchema": {"type": "object"},
                             "annotations": {"readOnlyHint": True}}]}
    elif "id" in message:
        error = {"code": -32601, "message": "no"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        continue
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
PLAIN = """
import asyncio, sys
from callyard import Yard, tool
from callyard.config import read_config
from callyard.launch.monitor import Monitor
@tool(operation="query")
async def echo(text: str) -> str:
    'Answer.'
    return text
async def main() -> None:
    yard = Yard("shop", tools=[echo])
    config = read_config({"serve.transport": "http", "serve.port": "0"}, environment={})
    async with Monitor(yard, config, is_authenticated=False).open(), yard:
        answer = await yard.call("echo", {"text": "a"})
    print("ok" if answer.success else answer, [name for name in sys.modules if name.startswith("opentelemetry")])
asyncio.run(main())
"""
OWN_PROVIDER = """
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from callyard import Yard, tool
from callyard.config import read_config
from callyard.launch.monitor import Monitor
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
@tool(operation="query")
async def echo(text: str) -> str:
    'Answer.'
    return text
async def main() -> None:
    yard = Yard("shop", tools=[echo])
    config = read_config({"serve.transport": "http", "serve.port": "0"}, environment={})
    async with Monitor(yard, config, is_authenticated=False).open(), yard:
        await yard.call("echo", {"text": "a"})
    spans = exporter.get_finished_spans()
    print([span.name for span in spans], spans[0].resource is provider.resource)
asyncio.run(main())
"""


@prompt
def greet(name: str) -> str:
    """Greet."""
    return f"Say hello to {name}."


@resource("shop://list")
def listed() -> str:
    """List."""
    return "apples"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Generator[Receiver]:
    """A collector that the environment names."""
    with receiving() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        yield found


def shop(**options: Any) -> Yard:
    return Yard("shop", tools=[echo, fail, nest, ask_context, slow], prompts=[greet], resources=[listed], **options)


class Client:
    """A client over HTTP, of either era."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def send(
        self, method: str, params: dict[str, Any], *, headers: dict[str, str] | None = None, **meta: str
    ) -> Any:
        """Send a request of the 2026-07-28 era."""
        own: dict[str, Any] = {f"{META}protocolVersion": VERSION, f"{META}clientCapabilities": {}, **meta}
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": own}}
        name = {"mcp-name": str(params.get("name") or params["uri"])} if {"name", "uri"} & params.keys() else {}
        sent = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION, "mcp-method": method}
        response = await self.http.post("/mcp", json=body, headers={**sent, **name, **(headers or {})})
        return response.json()

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool."""
        return (await self.send("tools/call", {"name": name, "arguments": arguments}))["result"]["structuredContent"]


@asynccontextmanager
async def served(tmp_path: Path, yard: Yard, text: str = "", notices: Notices | None = None) -> AsyncGenerator[Client]:
    """Serve a yard over HTTP with the monitor of a launched server; leaving ends it, and sends what is left."""
    path = tmp_path / f"{yard.name}.toml"
    path.write_text(text)
    config = read_config({"serve.transport": "http", "serve.port": "0"}, path=str(path), environment={})
    monitor = Monitor(yard, config, is_authenticated=False, notices=notices)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(transport: Transport) -> None:
        listening.set_result(transport.info().address.removesuffix("/mcp"))

    parts = (monitor.upstreams,)
    serving = serve_forever(yard, config.settings.serve, monitor=monitor, mounted=parts, ready=ready)
    server = asyncio.ensure_future(serving)
    try:
        await asyncio.wait({server, listening}, return_when=asyncio.FIRST_COMPLETED)
        if server.done():
            await server
        async with httpx2.AsyncClient(base_url=await listening, timeout=60) as http:
            yield Client(http)
    finally:
        server.cancel()
        await asyncio.wait({server})


async def test_a_call_is_one_span_with_the_attributes_of_the_conventions(tmp_path: Path, receiver: Receiver) -> None:
    async with served(tmp_path, shop()) as client:
        await client.call("echo", text=SECRET)
        await client.call("fail", text=SECRET)
        await client.call("echo", text=[])
        await client.send("tools/list", {})
        await client.send("resources/read", {"uri": "shop://nothing"})
        await client.send("prompts/get", {"name": "greet", "arguments": {"name": SECRET}})
        await client.send("no/such", {})

    found = {span.name for span in receiver.spans}
    failed = receiver.named("tools/call fail")
    read = receiver.named("resources/read")
    echoed = [span for span in receiver.spans if span.name == "tools/call echo"]
    call_id = echoed[0].attributes.pop(names.CALL_ID)
    assert found == {
        *("tools/call echo", "tools/call fail", "tools/list", "resources/read", "prompts/get greet", "_OTHER"),
    }
    assert echoed[0].kind == "server"
    assert echoed[0].attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "mcp.protocol.version": VERSION,
        "jsonrpc.request.id": "7",
        "network.transport": "tcp",
    }
    assert call_id.startswith("c_")
    assert (failed.attributes["error.type"], failed.attributes["callyard.error.code"]) == ("tool_error", "not_found")
    assert failed.is_error
    assert "error.type" in echoed[1].attributes
    assert (read.attributes["rpc.response.status_code"], read.is_error) == ("-32602", False)
    assert receiver.named("_OTHER").attributes["rpc.response.status_code"] == "-32601"
    assert receiver.named("prompts/get greet").attributes["gen_ai.prompt.name"] == "greet"
    assert echoed[0].resource["service.name"] == "shop"
    assert echoed[0].resource["deployment.environment"] == "test"
    assert SECRET not in repr(receiver.spans)


async def test_the_parent_comes_from_meta_and_the_http_request_is_a_link(tmp_path: Path, receiver: Receiver) -> None:
    around = {"traceparent": f"00-{TRACE}-{AROUND}-01"}
    echoed = {"name": "echo", "arguments": {"text": "a"}}
    async with served(tmp_path, shop()) as client:
        await client.send("tools/call", echoed, traceparent=f"00-{TRACE}-{PARENT}-01", headers=around)
        await client.send("tools/list", {}, headers=around)
        await client.send("prompts/list", {}, traceparent="00-nonsense")

    called, listed_tools, prompts = (receiver.named(name) for name in ("tools/call echo", "tools/list", "prompts/list"))
    assert (called.trace_id, called.parent, called.links) == (TRACE, PARENT, (AROUND,))
    assert (listed_tools.trace_id, listed_tools.parent, listed_tools.links) == (TRACE, AROUND, ())
    assert (prompts.parent, prompts.links) == ("", ())


async def test_inner_calls_and_spans_of_handlers_belong_to_the_call(tmp_path: Path, receiver: Receiver) -> None:
    async with served(tmp_path, shop()) as client:
        await client.call("nest", text="a")
        seen = (await client.call("ask_context"))["data"]
        await client.call("run_tool", tool_id="ask_context", arguments={})

    outer, inner = receiver.named("tools/call nest"), receiver.named("execute_tool echo")
    run = receiver.named("tools/call run_tool")
    assert (inner.kind, inner.parent, inner.trace_id) == ("internal", outer.span_id, outer.trace_id)
    assert inner.attributes["gen_ai.tool.name"] == "echo"
    assert seen == receiver.named("tools/call ask_context").span_id
    assert receiver.named("execute_tool ask_context").parent == run.span_id


async def test_a_trace_through_two_yards_and_a_job_is_one_tree(tmp_path: Path, receiver: Receiver) -> None:
    async with served(tmp_path, shop()) as behind:
        upstreams = {"back": {"url": f"{str(behind.http.base_url).rstrip('/')}/mcp"}}
        async with served(tmp_path, Yard("front", upstreams=upstreams, state_dir=str(tmp_path))) as client:
            params = {"name": "back__slow", "arguments": {"text": "a"}}
            answer = await client.send("tools/call", params, traceparent=f"00-{TRACE}-{PARENT}-01")
            await _ended(behind, answer)

    front, sent = receiver.named("tools/call back__slow"), receiver.named_kind("tools/call slow", "client")
    back, job = receiver.named_kind("tools/call slow", "server"), receiver.named("job slow")
    inner = receiver.named("execute_tool echo")
    assert [span.parent for span in (front, sent, back, job, inner)] == [
        *(PARENT, front.span_id, sent.span_id, back.span_id, job.span_id),
    ]
    assert job.links == (back.span_id,)
    assert {span.trace_id for span in (front, sent, back, job, inner)} == {TRACE}
    assert sent.attributes["server.address"] == "127.0.0.1"
    assert sent.attributes["callyard.source"] == "back"
    assert (front.resource["service.name"], back.resource["service.name"]) == ("front", "shop")


async def _ended(client: Client, answer: Any) -> None:
    """Wait until the job that an answer names has ended."""
    started = json.loads(answer["result"]["content"][0]["text"])["data"]
    seen = await client.call("wait_job", job_id=started["job_id"].rpartition(":")[2], timeout_s=60)
    assert seen["success"], seen
    assert seen["data"]["status"] == "completed"


async def test_the_span_of_a_job_that_another_process_runs_is_linked_to_its_call(
    tmp_path: Path, receiver: Receiver
) -> None:
    options: dict[str, Any] = {"store": SqliteStore(tmp_path / "store.sqlite3"), "state_dir": str(tmp_path)}
    async with served(tmp_path, Yard("shop", tools=[stuck], **options)) as client:
        params: dict[str, Any] = {"name": "stuck", "arguments": {}}
        await client.send("tools/call", params, traceparent=f"00-{TRACE}-{PARENT}-01")
        await asyncio.wait_for(STUCK.wait(), 60)
    STUCK.clear()
    options["store"] = SqliteStore(tmp_path / "store.sqlite3")
    async with served(tmp_path, Yard("shop", tools=[stuck], **options)):
        await asyncio.wait_for(STUCK.wait(), 60)

    call = receiver.named("tools/call stuck")
    jobs = [span for span in receiver.spans if span.name == "job stuck"]
    assert [(job.trace_id, job.parent, job.links) for job in jobs] == [(TRACE, call.span_id, (call.span_id,))] * 2
    assert len({job.attributes["callyard.job.id"] for job in jobs}) == 1
    assert call.attributes["callyard.job.id"] == jobs[0].attributes["callyard.job.id"]


@NEEDS_REDIS
async def test_a_trace_goes_on_in_a_worker(tmp_path: Path, receiver: Receiver) -> None:
    with one_server(tmp_path / "redis") as redis:
        async with served(tmp_path, Yard("shop", tools=[slow, echo], store=RedisStore(redis.url))) as client:
            yard = Yard("shop", tools=[slow, echo], store=RedisStore(redis.url))
            config = read_config({"monitor.otel": True}, environment={})
            async with Monitor(yard, config, is_authenticated=False).open(), yard:
                worker = asyncio.create_task(JobWorker(yard.jobs).run(drain_s=1))
                while not await yard.store.keys(WORKERS, limit=1):  # noqa: ASYNC110 - the store gives no sign
                    await asyncio.sleep(0.01)
                params: dict[str, Any] = {"name": "slow", "arguments": {"text": "a"}}
                answer = await client.send("tools/call", params, traceparent=f"00-{TRACE}-{PARENT}-01")
                await _ended(client, answer)
                worker.cancel()
                await asyncio.wait({worker})

    call, job, inner = (receiver.named(name) for name in ("tools/call slow", "job slow", "execute_tool echo"))
    places = {span.resource["service.instance.id"] for span in (job, inner)}
    assert [span.parent for span in (call, job, inner)] == [PARENT, call.span_id, job.span_id]
    assert job.links == (call.span_id,)
    assert len(places) == 1
    assert call.resource["service.instance.id"] not in places  # the worker ran it


async def test_waits_for_a_place_and_for_a_person_are_events(tmp_path: Path, receiver: Receiver) -> None:
    yard = Yard("shop", tools=[hold], queue=QueueSettings(calls=1), rules=[Rule(tools=("hold",), decision="ask")])
    async with served(tmp_path, yard) as client:
        calls = [asyncio.ensure_future(client.call("hold", number=number)) for number in (1, 2)]
        approvals = yard.gate.approvals if yard.gate is not None else None
        assert approvals is not None
        async with asyncio.timeout(60):
            while len(waiting := await approvals.pending()) < 2:  # noqa: ASYNC110 - two calls; no event says it
                await asyncio.sleep(0.01)
        for approval in waiting:
            await approvals.decide(approval.id, "approve", by="test")
        await asyncio.wait_for(HELD.wait(), 60)
        await asyncio.sleep(0)
        RELEASED.set()
        await asyncio.gather(*calls)

    kinds = [[event[1]["callyard.wait.kind"] for event in span.events] for span in receiver.spans]
    assert all("approval" in found for found in kinds)
    assert any("queue" in found for found in kinds)
    assert all(event[1]["callyard.wait.seconds"] >= 0 for span in receiver.spans for event in span.events)


async def test_a_request_that_is_sent_twice_has_an_event(tmp_path: Path, receiver: Receiver) -> None:
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    upstreams = {"back": {"command": sys.executable, "args": [str(program), str(tmp_path / "died")]}}
    async with served(tmp_path, Yard("front", upstreams=upstreams, state_dir=str(tmp_path))) as client:
        await client.send("tools/call", {"name": "back__once", "arguments": {}})
        answer = (await client.send("tools/call", {"name": "back__once", "arguments": {}}))["result"]

    sent = [span for span in receiver.spans if span.kind == "client"]
    assert not answer.get("isError"), answer
    assert [name for span in sent for name, _ in span.events] == ["callyard.retry"]
    assert {span.attributes["network.transport"] for span in sent} == {"pipe"}
    assert [point.attributes for point in receiver.metrics["mcp.client.session.duration"]] == [
        {"callyard.source": "back"}
    ]
    assert sum(point.count for point in receiver.metrics["mcp.client.session.duration"]) == 2


async def test_the_histograms_have_the_buckets_of_the_conventions_and_our_counts(
    tmp_path: Path, receiver: Receiver
) -> None:
    async with served(tmp_path, shop()) as behind:
        upstreams = {"back": {"url": f"{str(behind.http.base_url).rstrip('/')}/mcp"}}
        yard = Yard("front", tools=[echo, fail, nest], upstreams=upstreams, state_dir=str(tmp_path))
        async with served(tmp_path, yard) as client:
            for name in ("echo", "echo", "fail", "nest", "back__echo", "back__fail"):
                await client.call(name, text="a")
            await client.send("tools/list", {})
            await client.send("no/such", {})
        found = {name: {_key(point): point.count for point in points} for name, points in receiver.metrics.items()}
        bounds = {point.bounds for points in receiver.metrics.values() for point in points}
        assert all(sum(one.buckets) == one.count for points in receiver.metrics.values() for one in points)

    assert bounds == {tuple(map(float, names.BOUNDS_S))}
    assert receiver.units == {"s"}
    assert found["mcp.server.operation.duration"] == {
        ("tools/call", "echo", ""): 2,  # the call inside 'nest' came from no client
        ("tools/call", "fail", "tool_error"): 1,
        ("tools/call", "nest", ""): 1,
        ("tools/call", "back__echo", ""): 1,
        ("tools/call", "back__fail", "tool_error"): 1,
        ("tools/list", "", ""): 1,
        ("_OTHER", "", "-32601"): 1,
    }
    assert found["mcp.client.operation.duration"] == {
        ("tools/call", "back__echo", ""): 1,
        ("tools/call", "back__fail", "tool_error"): 1,
    }
    assert receiver.sums["callyard.spans.dropped"] == 0


def _key(point: Point) -> tuple[str, ...]:
    return tuple(str(point.attributes.get(key, "")) for key in (names.METHOD, names.TOOL, names.ERROR_TYPE))


async def test_a_session_with_a_handshake_is_named_and_counted(tmp_path: Path, receiver: Receiver) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    accept = {"accept": "application/json, text/event-stream"}
    async with served(tmp_path, shop()) as client:
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        session = (await client.http.post("/mcp", json=begin, headers=accept)).headers["mcp-session-id"]
        headers = {**accept, "mcp-session-id": session, "traceparent": f"00-{TRACE}-{AROUND}-01"}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
        await client.http.post(
            "/mcp", json={**call, "params": {"name": "echo", "arguments": {"text": "a"}}}, headers=headers
        )
        await client.http.delete("/mcp", headers=headers)

    called = receiver.named("tools/call echo")
    (point,) = receiver.metrics["mcp.server.session.duration"]
    assert called.attributes["mcp.session.id"].startswith("conversation ")
    assert session not in repr(receiver.spans)  # the id alone lets somebody in
    assert (called.trace_id, called.parent) == (TRACE, AROUND)
    assert (point.attributes, point.count) == ({"mcp.protocol.version": "2025-06-18", "network.transport": "tcp"}, 1)


@pytest.mark.parametrize("status", [500, 400])
async def test_spans_that_do_not_arrive_are_counted_and_logged(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    receiver.status = status
    async with served(tmp_path, shop()) as client:
        assert (await client.call("echo", text="a"))["success"]

    assert [record.getMessage() for record in caplog.records if "spans_dropped" in record.getMessage()] == [
        "spans_dropped count=1 total=1"
    ]


async def test_no_call_waits_for_a_collector_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hole = socket.create_server(("127.0.0.1", 0))  # accepts, and never reads
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{hole.getsockname()[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with hole:
        async with served(tmp_path, shop()) as client:
            for number in range(40):
                assert (await client.call("echo", text=str(number)))["success"]

    totals = [record.getMessage() for record in caplog.records if "spans_dropped" in record.getMessage()]
    assert totals[-1].endswith("total=40")


async def test_lines_of_the_log_carry_the_ids_of_the_trace(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    notices = Notices()
    yard = shop(sinks=[log_sink])
    audit = tmp_path / "audit.jsonl"
    with logging_to(notices, verbose=1, quiet=False):
        text = f"[monitor]\naudit_log = '{audit}'\n"
        async with served(tmp_path, yard, text, notices) as client:
            await client.call("nest", text="a")

    outer, inner = receiver.named("tools/call nest"), receiver.named("execute_tool echo")
    lines = [line for line in capsys.readouterr().err.splitlines() if "callyard.calls" in line]
    records = [json.loads(line) for line in audit.read_text().splitlines()]
    for found, span in zip(lines, (inner, outer), strict=True):
        assert found.endswith(f"trace={span.trace_id} span={span.span_id}")
    assert [(one["trace_id"], one["span_id"]) for one in records] == [
        (span.trace_id, span.span_id) for span in (inner, outer)
    ]


async def test_log_lines_of_a_handler_carry_the_ids_of_its_call(
    tmp_path: Path, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    notices = Notices()
    with logging_to(notices, verbose=0, quiet=False):
        async with served(tmp_path, Yard("shop", tools=[warn]), "", notices) as client:
            await client.call("warn")
    logging.getLogger("shop").warning("outside")

    span = receiver.named("tools/call warn")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "apples" in line]
    assert line.endswith(f"no apples trace={span.trace_id} span={span.span_id}")


def test_a_yard_that_is_not_traced_loads_no_module_of_opentelemetry(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(PLAIN)
    run = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )

    assert run.stdout.strip() == "ok []"


@pytest.mark.parametrize(
    ("variables", "setting"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, "otel = true"),
        ({}, "otel = false"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"}, ""),
    ],
)
async def test_nothing_is_sent_where_it_is_switched_off(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], setting: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with served(tmp_path, shop(), f"[monitor]\n{setting}\n") as client:
        assert (await client.call("echo", text="a"))["success"]

    assert (receiver.spans, receiver.metrics) == ([], {})


async def test_a_setting_that_cannot_be_kept_is_refused(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(LaunchError, match="http/protobuf"):
        async with served(tmp_path, shop(), "[monitor]\notel = true\n"):
            raise AssertionError
    monkeypatch.setattr("callyard.launch.monitor.find_spec", _missing)
    with pytest.raises(LaunchError, match="callyard\\[otel\\]"):
        async with served(tmp_path, shop(), "[monitor]\notel = true\n"):
            raise AssertionError
    assert receiver.spans == []


def _missing(_: str) -> None:
    """Find nothing."""


async def test_counts_are_sent_at_intervals_while_the_yard_is_served(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    async with served(tmp_path, shop()) as client:
        await client.call("echo", text="a")
        async with asyncio.timeout(60):
            while "mcp.server.operation.duration" not in receiver.metrics:  # noqa: ASYNC110 - another thread brings it
                await asyncio.sleep(0.01)


async def test_spans_go_to_the_provider_that_the_program_has_set(tmp_path: Path, receiver: Receiver) -> None:
    program = tmp_path / "own.py"
    program.write_text(OWN_PROVIDER)
    run = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(run.communicate(), 60)

    assert out.decode().strip() == "['execute_tool echo'] True"
    assert receiver.spans == []


@pytest.mark.parametrize("flags", ["00", "01"])
async def test_an_upstream_learns_whether_the_trace_is_sampled(tmp_path: Path, receiver: Receiver, flags: str) -> None:
    params = {"name": "back__echo", "arguments": {"text": "a"}}
    async with served(tmp_path, shop()) as behind:
        upstreams = {"back": {"url": f"{str(behind.http.base_url).rstrip('/')}/mcp"}}
        async with served(tmp_path, Yard("front", upstreams=upstreams, state_dir=str(tmp_path))) as client:
            parent = f"00-{TRACE}-{PARENT}-{flags}"
            await client.send("tools/call", params, traceparent=parent, tracestate="a=1")

    seen = [span for span in receiver.spans if span.trace_id == TRACE]
    assert len(seen) == (0 if flags == "00" else 3)


async def test_a_handler_can_write_into_the_span_of_its_call(tmp_path: Path, receiver: Receiver) -> None:
    async with served(tmp_path, Yard("shop", tools=[mark])) as client:
        await client.send("tools/call", {"name": "mark", "arguments": {}})

    span = receiver.named("tools/call marked")
    assert span.attributes["shop.shelf"] == 3
    assert span.events == (("looked", {"shop.far": True}), ("exception", {"exception.type": "ValueError"}))
    assert span.is_error


async def test_requests_that_are_not_sampled_have_no_span_and_are_counted(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    async with served(tmp_path, shop(queue=QueueSettings(calls=1))) as client:
        for name in ("nest", "fail"):
            await client.call(name, text="a")
        await _ended(client, await client.send("tools/call", {"name": "slow", "arguments": {"text": "a"}}))
        await client.send("tools/list", {}, tracestate="a=1")
        await client.send("no/such", {})

    counted = {_key(point)[0]: point.count for point in receiver.metrics["mcp.server.operation.duration"]}
    assert receiver.spans == []
    assert (counted["tools/list"], counted["_OTHER"]) == (1, 1)


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("", "", (True, True, False)),
        ("always_off", "", (False, False, False)),
        ("traceidratio", "0.5", (True, False, False)),
        ("parentbased_traceidratio", "0.5", (True, True, False)),
        ("traceidratio", "often", None),
        ("of_a_package", "", None),
    ],
)
def test_the_usual_samplers_decide(
    monkeypatch: pytest.MonkeyPatch, name: str, argument: str, expected: tuple[bool, ...] | None
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    samples, low, high = sampling(), 1, (1 << 64) - 1
    sampled, dropped = (context_of({"traceparent": f"00-{TRACE}-{PARENT}-0{flag}"}) for flag in (1, 0))

    if samples is None:
        assert expected is None
    else:
        always = name in {"", "always_off"}
        assert expected is not None
        assert (samples(None, low), samples(sampled, high)) == expected[:2]
        assert samples(dropped, high) is expected[2]
        assert always or samples(None, high) is False


async def test_a_sampler_of_a_package_is_left_to_the_sdk(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "of_a_package")  # the SDK takes its default instead, and logs it
    async with served(tmp_path, shop()) as client:
        await client.call("nest", text="a")

    assert {span.name for span in receiver.spans} == {"tools/call nest", "execute_tool echo"}
