"""The monitor of a served yard: '/metrics' and its readers, the audit log, the access log, and the facts they omit."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from callyard import Call, Caller, Yard, tool
from callyard.config import read_config
from callyard.launch.errors import LaunchError
from callyard.launch.monitor import Monitor
from callyard.launch.serve import serve_forever
from callyard.model.limits import Limits
from callyard.monitor import Label
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Rule
from callyard.state.memory import MemoryStore
from callyard.transports import Transport
from callyard.transports.auth import ApiKey, ApiKeys, Authenticator, digest_of
from callyard.transports.http.app import Mount
from callyard.transports.http.request import Request
from callyard.transports.http.response import ResponseWriter

CALLERS_KEY, METRICS_KEY = "cy_caller", "cy_scraper"
META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
KEYS = f'metrics_keys = [{{ name = "prometheus", digest = "{digest_of(METRICS_KEY)}" }}]\n'


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool
async def talk(call: Call) -> str:
    """Report progress before the answer."""
    await call.log("error", "Listen.")
    return "done"


@tool
async def wait() -> None:
    """Wait until it is cancelled."""
    await asyncio.Event().wait()


def monitor_of(yard: Yard, tmp_path: Path, text: str, *, is_authenticated: bool = False) -> tuple[Monitor, Any]:
    path = tmp_path / "callyard.toml"
    path.write_text(text)
    config = read_config({"serve.transport": "http", "serve.port": "0"}, path=str(path), environment={})
    return Monitor(yard, config, is_authenticated=is_authenticated), config.settings.serve


@asynccontextmanager
async def served(
    tmp_path: Path, text: str = "", authenticator: Authenticator | None = None
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve a yard with these settings, and yield a client of it."""
    yard = Yard("shop", tools=[echo, talk, wait])
    monitor, serving = monitor_of(yard, tmp_path, text, is_authenticated=authenticator is not None)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(transport: Transport) -> None:
        listening.set_result(transport.info().address.removesuffix("/mcp"))

    server = asyncio.ensure_future(serve_forever(yard, serving, authenticator, monitor=monitor, ready=ready))
    try:
        async with httpx2.AsyncClient(base_url=await listening, trust_env=False) as client:
            yield client
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


async def call(client: Any, name: str, arguments: object, **headers: str) -> Any:
    said: dict[str, Any] = {
        f"{META}logLevel": "debug",
        f"{META}protocolVersion": VERSION,
        f"{META}clientCapabilities": {},
        f"{META}clientInfo": {"name": "t", "version": "1"},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments, "_meta": said},
    }
    usual = {
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
        "Accept": "application/json, text/event-stream",
    }
    return await client.post("/mcp", json=message, headers={**usual, **headers})


def calls_in(page: str) -> dict[str, float]:
    families = text_string_to_metric_families(page)
    return {
        sample.labels["tool"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "callyard_calls_total"
    }


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_server_over_http_counts_calls_and_shows_them_to_prometheus(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        await call(client, "echo", {"text": "x"})
        await call(client, "echo", {"text": 5})
        page = await client.get("/metrics")
        posted = await client.post("/metrics")
        below = await client.get("/metrics/below")
        elsewhere = await client.get("/metrics", headers={"Host": "evil.example"})

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/plain")
    assert calls_in(page.text) == {"echo": 2}
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET, HEAD")
    assert (below.status_code, elsewhere.status_code) == (404, 421)


async def test_metrics_can_be_switched_off(tmp_path: Path) -> None:
    async with served(tmp_path, "[monitor]\nmetrics = false\n") as client:
        assert (await client.get("/metrics")).status_code == 404


async def test_the_key_of_a_caller_does_not_open_the_metrics(tmp_path: Path) -> None:
    callers = ApiKeys([ApiKey("ada", digest_of(CALLERS_KEY))])
    async with served(tmp_path, f"[monitor]\n{KEYS}", callers) as client:
        tried = [
            {},
            {"Authorization": f"Bearer {CALLERS_KEY}"},
            {"X-API-Key": CALLERS_KEY},
            {"Authorization": f"Bearer {METRICS_KEY}"},
        ]
        statuses = [(await client.get("/metrics", headers=headers)).status_code for headers in tried]
        challenge = (await client.get("/metrics")).headers["www-authenticate"]
        answered = await call(client, "echo", {"text": "x"}, Authorization=f"Bearer {METRICS_KEY}")

    assert statuses == [401, 401, 401, 200]
    assert challenge.startswith("Bearer")
    assert answered.status_code == 401


async def test_with_authentication_and_without_a_key_for_metrics_nobody_reads_them(tmp_path: Path) -> None:
    callers = ApiKeys([ApiKey("ada", digest_of(CALLERS_KEY))])
    async with served(tmp_path, "", callers) as client:
        assert (await client.get("/metrics")).status_code == 403
        assert (await client.get("/metrics", headers={"X-API-Key": CALLERS_KEY})).status_code == 403


async def test_keys_for_metrics_also_count_where_callers_need_none(tmp_path: Path) -> None:
    async with served(tmp_path, f"[monitor]\n{KEYS}") as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"X-API-Key": METRICS_KEY})).status_code == 200


async def test_each_request_is_a_line_of_the_access_log_and_each_call_one_of_the_audit_log(tmp_path: Path) -> None:
    text = '[monitor]\naudit_log = "logs/audit.jsonl"\naccess_log = "logs/access.jsonl"\n'
    callers = ApiKeys([ApiKey("ada", digest_of(CALLERS_KEY))])
    async with served(tmp_path, text, callers) as client:
        answer = await call(client, "echo", {"text": "x"}, Authorization=f"Bearer {CALLERS_KEY}")
        await call(client, "echo", {"text": "x"})
        await client.get("/nowhere?token=hunter2", headers={"Authorization": f"Bearer {CALLERS_KEY}"})
        await client.get("/healthz")

    access, audit = lines_of(tmp_path / "logs" / "access.jsonl"), lines_of(tmp_path / "logs" / "audit.jsonl")
    assert [(line["method"], line["path"], line["status"], line["caller"]) for line in access] == [
        ("POST", "/mcp", 200, "key:ada"),
        ("POST", "/mcp", 401, None),
        ("GET", "/nowhere", 404, None),
        ("GET", "/healthz", 200, None),
    ]
    assert access[0]["bytes"] == len(answer.content)
    assert all(line["elapsed_ms"] > 0 and line["started"] > 0 for line in access)
    assert [(line["tool"], line["identity"], line["channel"], line["decision"]) for line in audit] == [
        ("echo", "key:ada", "http", "allow")
    ]


async def test_approvals_are_counted_by_tool_whoever_decides_and_their_lines_name_the_call(tmp_path: Path) -> None:
    @tool(operation="destroy")
    async def wipe(disk: str) -> str:
        """Wipe a disk."""
        return disk

    store = MemoryStore()
    limits = Limits(approval_hold_s=0.0, approval_ttl_s=60.0)
    yard = Yard("shop", tools=[wipe], rules=[Rule(decision="ask", tools=("wipe",))], store=store, limits=limits)
    monitor, _ = monitor_of(yard, tmp_path, '[monitor]\naudit_log = "audit.jsonl"\n')
    async with monitor.open(), yard:
        assert yard.gate is not None
        ids = [(await yard.call("wipe", {"disk": str(number)})).data["approval_id"] for number in range(4)]
        await yard.gate.approvals.decide(ids[0], "approve", by="ada")
        ran = await yard.call("wipe", {"disk": "0"})
        await yard.gate.approvals.decide(ids[1], "deny", by="ada")
        of_a_command = Approvals(store)
        await of_a_command.decide(ids[2], "approve", by="user:eve")
        assert monitor.page is not None
        await monitor.page.settle_approvals()
        await monitor.page.settle_approvals()
        assert monitor.metrics is not None
        counted = {**monitor.metrics.tools[Label("shop", "wipe")].approvals}
        await store.delete(f"approval/{ids[3]}")  # as when it has expired
        await monitor.page.settle_approvals()

    assert counted == {"asked": 4, "approved": 2, "denied": 1}
    assert monitor.metrics.tools[Label("shop", "wipe")].approvals == {**counted, "expired": 1}
    assert not monitor.metrics.open_approvals
    lines = lines_of(tmp_path / "audit.jsonl")
    spent = [line for line in lines if line.get("event") == "approval_spent"]
    assert [(line["approval_id"], line["call_id"], line["source"]) for line in spent] == [
        (ids[0], ran.meta.call_id, "shop")
    ]
    asked = [line["call_id"] for line in lines if line.get("event") == "approval_asked"]
    assert asked == [line["call_id"] for line in lines if line.get("decision") == "ask"]


async def test_a_response_is_the_same_with_an_access_log(tmp_path: Path) -> None:
    answers: list[Any] = []
    for text in ("", '[monitor]\naccess_log = "access.jsonl"\n'):
        async with served(tmp_path, text) as client:
            origin = str(client.base_url).rstrip("/")
            answer = await call(client, "echo", {"text": "x"}, Accept="text/event-stream", Origin=origin)
            assert answer.headers.pop("access-control-allow-origin") == origin
            streamed = await call(client, "talk", {}, Origin=origin)
            preflight = await client.options("/mcp", headers={"Origin": origin})
            headers = {name: value for name, value in answer.headers.items() if name not in {"date", "content-length"}}
            answers.append(
                (headers, streamed.headers["content-type"], streamed.text.count("data:"), preflight.status_code)
            )

    assert answers[0][0]["content-type"] == "text/event-stream"
    assert answers[0][1:] == ("text/event-stream", 2, 200)
    assert answers[0] == answers[1]
    assert [(line["method"], line["status"]) for line in lines_of(tmp_path / "access.jsonl")] == [
        ("POST", 200),
        ("POST", 200),
        ("OPTIONS", 200),
    ]


async def test_one_identity_has_only_so_many_connections_with_an_access_log_too(tmp_path: Path) -> None:
    text = '[serve]\nconnections_per_identity = 1\n[monitor]\naccess_log = "access.jsonl"\n'
    keys = ApiKeys([ApiKey("ada", digest_of(CALLERS_KEY))])
    async with (
        served(tmp_path, text, keys) as client,
        httpx2.AsyncClient(base_url=client.base_url, trust_env=False) as other,
    ):
        answers = [
            await call(one, "echo", {"text": "x"}, Authorization=f"Bearer {CALLERS_KEY}") for one in (client, other)
        ]

    assert [answer.status_code for answer in answers] == [200, 503]
    assert [line["status"] for line in lines_of(tmp_path / "access.jsonl")] == [200, 503]


async def test_a_client_that_goes_away_has_the_status_499_in_the_access_log_and_its_call_is_cancelled(
    tmp_path: Path,
) -> None:
    text = '[monitor]\naudit_log = "audit.jsonl"\naccess_log = "access.jsonl"\n'
    async with served(tmp_path, text) as client:
        waiting = asyncio.ensure_future(call(client, "wait", {}))
        while "callyard_calls_in_flight{" not in (await client.get("/metrics")).text:
            pass
        waiting.cancel()
        while "callyard_calls_in_flight{" in (await client.get("/metrics")).text:
            pass

    assert [line["status"] for line in lines_of(tmp_path / "access.jsonl") if line["path"] == "/mcp"] == [499]
    assert [(line["tool"], line["code"], line["decision"]) for line in lines_of(tmp_path / "audit.jsonl")] == [
        ("wait", "cancelled", "allow")
    ]


async def test_a_log_file_that_cannot_be_written_keeps_the_server_from_starting(tmp_path: Path) -> None:
    yard = Yard(tools=[echo])
    (tmp_path / "file").touch()
    monitor, serving = monitor_of(yard, tmp_path, '[monitor]\naudit_log = "file/audit.jsonl"\n')

    with pytest.raises(OSError, match="file"):
        await serve_forever(yard, serving, monitor=monitor)


def test_several_workers_have_no_metrics_because_each_would_show_its_own(tmp_path: Path) -> None:
    text = "[serve]\nworkers = 2\nstateless = true\n"
    assert monitor_of(Yard(), tmp_path, text)[0].page is None
    with pytest.raises(LaunchError, match="one worker"):
        monitor_of(Yard(), tmp_path, f"{text}[monitor]\nmetrics = true\n")


def test_a_key_for_metrics_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="digest"):
        monitor_of(Yard(), tmp_path, '[monitor]\nmetrics_keys = [{ name = "x", digest = "y" }]\n')


async def test_a_mount_gets_the_whole_request_decides_who_calls_and_streams_until_the_client_or_the_server_goes(
    tmp_path: Path,
) -> None:
    seen: list[Any] = []
    ended = asyncio.Event()

    async def handle(request: Request, writer: ResponseWriter) -> None:
        seen.append(
            (
                request.method,
                request.subpath,
                request.query,
                request.headers[b"x-page"],
                request.body,
                request.caller.identity,
            )
        )
        if request.method == "POST":
            await writer.respond(201, b"done", ((b"content-type", b"text/plain"),))
            return
        await writer.start_stream()
        await writer.write(b"data: 1\n\n")
        await writer.wait_for_disconnect()
        ended.set()

    async def authenticate(request: Request) -> Any:
        return Caller(identity=request.text(b"x-page"))

    class WithPage(Monitor):
        @property
        def transport_options(self) -> dict[str, Any]:
            page = Mount(handle=handle, has_subpaths=True, authenticate=authenticate)
            return {**super().transport_options, "mounts": {"/page": page}}

    yard = Yard(tools=[echo])
    monitor_of(yard, tmp_path, '[monitor]\naccess_log = "access.jsonl"\n')
    config = read_config(
        {"serve.transport": "http", "serve.port": "0"}, path=str(tmp_path / "callyard.toml"), environment={}
    )
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(transport: Transport) -> None:
        listening.set_result(transport.info().address.removesuffix("/mcp"))

    monitor = WithPage(yard, config, is_authenticated=False)
    server = asyncio.ensure_future(serve_forever(yard, config.settings.serve, monitor=monitor, ready=ready))
    async with httpx2.AsyncClient(base_url=await listening, trust_env=False, headers={"X-Page": "ada"}) as client:
        posted = await client.post("/page/a/b?c=d", content=b"body")
        async with client.stream("GET", "/page") as stream:
            assert await anext(stream.aiter_lines()) == "data: 1"
        await asyncio.wait_for(ended.wait(), 60)
        ended.clear()
        async with client.stream("GET", "/page/again") as stream:
            assert await anext(stream.aiter_lines()) == "data: 1"
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
            await asyncio.wait_for(ended.wait(), 60)

    assert (posted.status_code, posted.text) == (201, "done")
    assert seen == [
        ("POST", "/a/b", b"c=d", b"ada", b"body", "ada"),
        ("GET", "", b"", b"ada", b"", "ada"),
        ("GET", "/again", b"", b"ada", b"", "ada"),
    ]
    assert [(line["path"], line["status"], line["bytes"]) for line in lines_of(tmp_path / "access.jsonl")] == [
        ("/page/a/b", 201, 4),
        ("/page", 200, 9),
        ("/page/again", 200, 9),
    ]


YARD = '''
from callyard import Call, ToolError, Yard, tool

@tool(operation="query")
async def own(text: str, call: Call) -> dict:
    """Answer with what was given and what came along."""
    if text.startswith("fail"):
        raise ToolError("upstream_error", f"The database says {text}.", text=text)
    return {"text": text, "headers": dict(call.channel.headers)}

yard = Yard("shop", tools=[own])
'''


@contextmanager
def started(folder: Path, *arguments: str) -> "Generator[subprocess.Popen[str]]":
    program = [sys.executable, "-c", "import sys; from callyard.cli import main; sys.exit(main())", "serve", *arguments]
    with (
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(program, stderr=stderr, cwd=folder, text=True) as process,  # noqa: S603 - our own
    ):
        try:
            yield process
        finally:
            process.kill()


def address_in(path: Path) -> str:
    """Return where a server listens, once its log says so."""
    pause = threading.Event()
    for _ in range(600):
        if " serving yard=" in (text := path.read_text()):
            return text.partition("address=")[2].split()[0].removesuffix("/mcp")
        pause.wait(0.05)  # the file of another process tells of no change
    raise AssertionError(path.read_text())


def test_the_last_lines_are_written_when_a_signal_ends_the_server(tmp_path: Path, write: Callable[..., Path]) -> None:
    write(YARD, "yard.py")
    with started(tmp_path, "yard.py", "--transport", "http", "--port", "0", "--audit-log", "audit.jsonl") as process:
        address = address_in(tmp_path / "stderr")

        async def call_many() -> None:
            async with httpx2.AsyncClient(base_url=address, trust_env=False) as client:
                for _ in range(50):
                    await call(client, "own", {"text": "x"})

        asyncio.run(call_many())
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)

    assert len(lines_of(tmp_path / "audit.jsonl")) == 50
