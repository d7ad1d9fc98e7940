"""Secrets that pass through a server are found in no log, record, metric, state or answer to somebody else."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from callyard.transports.auth import digest_of

CALLERS_KEY, OTHERS_KEY, METRICS_KEY = "cy_caller", "cy_other", "cy_scraper"
META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
SECRET = "s3cr3t-hunter2"  # noqa: S105 - planted to be looked for
FETCHED = "deh" + "ctef-terces"
"""Reversed, a secret that a tool gets from elsewhere, so that nothing can know it."""
UPSTREAM = '''
import os, sys
from callyard import ToolError, serve, tool, Yard

print("starting with", os.environ["TOKEN"], file=sys.stderr, flush=True)

@tool(operation="query")
async def fail(text: str) -> str:
    """Fail with what was given."""
    raise ToolError("state_error", f"{text} {os.environ['TOKEN']} is refused.", secret=text)

@tool(operation="query")
async def reveal(text: str) -> dict:
    """Answer with what was given and what is known."""
    return {"text": text, "token": os.environ["TOKEN"]}

@tool
async def die(text: str) -> str:
    """End with last words."""
    print("password:", text, os.environ["TOKEN"], sys.argv[2], file=sys.stderr, flush=True)
    os._exit(3)

serve(Yard("up", tools=[fail, reveal, die]), transport="stdio")
'''
BROKEN = """
import os, sys
url = "postgres://ada:" + os.environ["TOKEN"] + "@db"
print("cannot start:", os.environ["PLAIN"], url, file=sys.stderr, flush=True)
sys.exit(5)
"""
YARD = '''
import os
from pydantic import SecretStr
from callyard import Call, ToolError, Yard, tool

@tool(operation="query")
async def own(text: str, call: Call) -> dict:
    """Answer with what was given and what came along."""
    if text.startswith("fail"):
        raise ToolError("upstream_error", f"The database says {text}.", text=text)
    return {"text": text, "headers": dict(call.channel.headers)}

@tool(operation="query")
async def crash(text: str, call: Call) -> dict:
    """Raise with what was given and what is known."""
    try:
        raise KeyError(text)
    except KeyError as error:
        secrets = [text, os.environ["DB_PASSWORD"], dict(call.channel.headers)]
        raise RuntimeError(f"Cannot connect with {secrets}") from error

@tool(operation="query")
def fetch() -> dict:
    """Raise with what nobody knows."""
    raise RuntimeError("FETCHED"[::-1])

@tool(operation="query")
async def many(text: str) -> list:
    """Answer with a lot."""
    return [text] * 20_000

@tool(operation="destroy")
async def wipe(password: SecretStr, note: SecretStr) -> str:
    """Wipe what the password opens."""
    return password.get_secret_value()

yard = Yard("shop", tools=[own, crash, fetch, many, wipe])
'''
CONFIG = """
target = "yard.py"
state_dir = "state"

[serve]
transport = "http"
port = 0
request_headers = ["x-secret"]

[runtime]
enabled = true

[limits]
approval_hold_s = 0.0

[auth]
api_keys = [{{ name = "ada", digest = "{ada}" }}, {{ name = "eve", digest = "{eve}" }}]

[approvals]
webhook = "http://127.0.0.1:{closed}/{secret}-path?token={secret}-hook"
webhook_secret = "{secret}-signs"

[monitor]
metrics_keys = [{{ name = "prometheus", digest = "{metrics}" }}]
audit_log = "audit.jsonl"
access_log = "access.jsonl"

[upstreams.up]
command = "{python}"
args = ["up.py", "--api-key", "{secret}-flag"]
cwd = "{folder}"
env = {{ TOKEN = "{secret}-env" }}

[upstreams.broken]
command = "{python}"
args = ["broken.py"]
cwd = "{folder}"
env = {{ PLAIN = "{secret}-env1", TOKEN = "{secret}-env2" }}

[upstreams.web]
url = "{web}/mcp?key={secret}-query"
headers = {{ Authorization = "Bearer {secret}-bearer", X-Api-Key = "{secret}-apikey" }}
"""


def callyard(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from callyard.cli import main; sys.exit(main())", *arguments]


def address_in(path: Path) -> str:
    """Return where a server listens, once its log says so."""
    pause = threading.Event()
    for _ in range(600):
        if " serving yard=" in (text := path.read_text()):
            return text.partition("address=")[2].split()[0].removesuffix("/mcp")
        pause.wait(0.05)  # the file of another process tells of no change
    raise AssertionError(path.read_text())


async def call(client: Any, name: str, arguments: object, key: str = CALLERS_KEY) -> Any:
    said: dict[str, Any] = {
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
    headers = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": name}
    headers |= {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {key}"}
    if key == CALLERS_KEY:
        headers |= {"X-Secret": f"{SECRET}-header", "Cookie": f"a={SECRET}-cookie", "X-Unknown": f"{SECRET}-unknown"}
    return await client.post("/mcp", json=message, headers=headers)


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request of the yard with an error that repeats its line and credentials."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(
        b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (len(head), head)
    )
    await writer.drain()
    writer.close()


ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("own", {"text": SECRET}),
    ("own", {"text": f"fail {SECRET}"}),
    ("own", {"text": [SECRET]}),
    ("own", {SECRET: SECRET}),
    ("crash", {"text": SECRET}),
    ("fetch", {}),
    ("many", {"text": SECRET}),
    ("up__reveal", {"text": SECRET}),
    ("up__fail", {"text": SECRET}),
    ("run_tool", {"tool_id": "up__reveal", "args": {"text": SECRET}}),
    ("run_tool", {"tool_id": SECRET, "args": {}}),
    (SECRET, {"text": SECRET}),
    ("run_tool", {"tool_id": "crash", "args": {"text": SECRET}, "background": True}),
    (
        "run_chain",
        {"steps": [{"tool_id": "own", "args": {"text": SECRET}}, {"tool_id": "crash", "args": {"text": SECRET}}]},
    ),
    ("execute_code", {"code": f"raise ValueError({SECRET!r})"}),
    ("wipe", {"password": SECRET, "note": "use sk-ant-api03-A1b2C3d4E5f6 for it"}),
    ("up__die", {"text": SECRET}),
)


def write_project(folder: Path, web: str, closed: int) -> None:
    (folder / "up.py").write_text(UPSTREAM)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "yard.py").write_text(YARD.replace("FETCHED", FETCHED))
    digests = {"ada": digest_of(CALLERS_KEY), "eve": digest_of(OTHERS_KEY), "metrics": digest_of(METRICS_KEY)}
    text = CONFIG.format(**digests, python=sys.executable, folder=folder, secret=SECRET, web=web, closed=closed)
    (folder / "callyard.toml").write_text(text)


async def use(client: Any) -> tuple[list[str], dict[str, str]]:
    """Make calls with secrets; return their answers, and what others may read."""
    async with asyncio.timeout(60):
        while f"{SECRET}-env" not in (await call(client, "up__reveal", {"text": "x"})).text:
            pass  # the upstream starts
    answers = [(await call(client, name, arguments)).text for name, arguments in ASKED]
    await client.get(f"/mcp?token={SECRET}", headers={"Authorization": f"Bearer {SECRET}"})
    others = [
        await call(client, name, {"text": "x"}, OTHERS_KEY)
        for name in ("up__fail", "web__x", "broken__x", "crash", "fetch")
    ]
    others += [
        await call(client, "get_job", {"job_id": "j_1"}, OTHERS_KEY),
        await client.get("/healthz"),
        await client.get("/readyz"),
    ]
    metrics = (await client.get("/metrics", headers={"Authorization": f"Bearer {METRICS_KEY}"})).text
    # the upstream itself puts its variable into the answer, which is a result like any other
    return answers, {
        "others": "".join(answer.text for answer in others).replace(f"{SECRET}-env", ""),
        "metrics": metrics,
    }


def commands(folder: Path) -> dict[str, str]:
    """Return what commands of an operator print about the project, while its server runs."""
    found: dict[str, str] = {}
    listed = (
        ("upstreams",),
        ("upstreams", "--json"),
        ("list", "yard.py"),
        ("config",),
        ("logs", "up"),
        ("logs", "broken"),
        ("approvals",),
    )
    for arguments in listed:
        done = subprocess.run(callyard(*arguments), cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own
        found[" ".join(arguments)] = done.stdout + done.stderr
    return found


@pytest.mark.parametrize("verbosity", ["-v", "-vv"])
async def test_a_secret_is_in_no_log_record_metric_state_command_or_answer_to_somebody_else(
    tmp_path: Path, verbosity: str
) -> None:
    web = await asyncio.start_server(refuse, "127.0.0.1", 0)
    closed = await asyncio.start_server(refuse, "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (web, closed)]
    closed.close()
    await asyncio.to_thread(write_project, tmp_path, f"http://127.0.0.1:{ports[0]}", ports[1])
    environment = {**os.environ, "DB_PASSWORD": f"{SECRET}-db"}
    with (
        (tmp_path / "stderr").open("w") as stderr,
        subprocess.Popen(callyard("serve", verbosity), stderr=stderr, cwd=tmp_path, env=environment) as process,  # noqa: ASYNC220, S603 - our own, and it starts at once
    ):
        try:
            base_url = await asyncio.to_thread(address_in, tmp_path / "stderr")
            async with httpx2.AsyncClient(base_url=base_url, trust_env=False, timeout=60) as client:
                answers, seen = await use(client)
            seen |= await asyncio.to_thread(commands, tmp_path)
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 30)
        finally:
            process.kill()
            web.close()

    seen |= {name: (tmp_path / name).read_text() for name in ("audit.jsonl", "access.jsonl", "stderr")}
    for path in (
        path
        for path in (tmp_path / "state").rglob("*")
        if path.is_file() and path.name not in {"stderr.log", "store.sqlite3"}
    ):
        seen[str(path)] = path.read_bytes().decode(errors="replace")
    _check_that_it_passed(answers, seen)
    fetched = [FETCHED[::-1]] if verbosity == "-v" else []  # with -vv, an exception may say what nothing here knows
    for name, text in seen.items():
        for secret in (SECRET, CALLERS_KEY, METRICS_KEY, "A1b2C3d4E5f6", *fetched):
            assert secret not in text, (name, [line for line in text.splitlines() if secret in line])


def _check_that_it_passed(answers: list[str], seen: dict[str, str]) -> None:
    """Check that the secrets passed through the yard, so that not finding them says something."""
    assert sum(SECRET in answer for answer in answers) >= 6
    assert sum(f"{SECRET}-header" in answer for answer in answers) >= 1
    tools = {json.loads(line).get("tool") for line in seen["audit.jsonl"].splitlines()}
    assert {
        "own",
        "crash",
        "fetch",
        "up__reveal",
        "up__fail",
        "up__die",
        "run_chain",
        "execute_code",
        "wipe",
        "?",
    } <= tools
    assert "defect tool=crash" in seen["stderr"]
    assert "RuntimeError" in seen["stderr"]
    assert "yard.py" in seen["stderr"]
    assert "approval_asked" in seen["stderr"]
    assert "'up' ended with exit code 3." in seen["stderr"]
    assert (
        "cannot start: *** postgres://***@db" in seen["upstreams --json"]
    )  # its last error, whatever its state is by now
    assert "starting with ***" in seen["logs up"]
    assert "password: ***" in seen["logs up"]
    assert f'"password":"*** ({len(SECRET)} characters' in seen["approvals"]  # the schema marks it
    assert "http://127.0.0.1" in seen["config"]
    assert 'tool="crash"' in seen["metrics"]
