"""Secrets of calls, requests, settings and upstreams are on no page for readers, and masked on pages behind a login."""

import asyncio
import sys
from pathlib import Path
from typing import Any

from callyard import Call, Yard, tool

SECRET = "sk-planted-9f31c7aa52e84d06b1"  # noqa: S105 - nothing opens with it
PLAIN = "plainly planted words 7731"
"""A secret that does not look like one: only those who may see the contents of a call may see it."""
PAGES = ("", "tools", "calls", "approvals", "jobs", "sessions", "upstreams", "runtimes", "settings", "chat")
UPSTREAM = """
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "initialize":
        server = {"name": "leaky", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("leak", "die")]}
    elif message["method"] == "tools/call" and message["params"]["name"] == "die":
        print("Traceback: token=" + os.environ["LEAKY_TOKEN"], file=sys.stderr, flush=True)
        sys.exit(3)
    elif message["method"] == "tools/call":
        text = "Unauthorized: " + os.environ["LEAKY_TOKEN"]
        result = {"content": [{"type": "text", "text": text}], "isError": True}
    else:
        error = {"code": -32601, "message": "unknown"}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@tool(operation="query")
async def echo(text: str, password: str = "") -> dict[str, str]:
    """Answer with the text."""
    return {"text": text, "password": password}


@tool(operation="query")
async def break_down(text: str) -> str:
    """Fail with words of the caller."""
    raise RuntimeError(text)


@tool(operation="destroy")
async def wipe(text: str, api_key: str) -> str:
    """Delete everything."""
    return text + api_key


@tool(operation="command", job="always")
async def work(text: str, call: Call) -> str:
    """Work for a while."""
    await call.progress(1, 2, "half way")
    return text


async def pages_of(served: Any, headers: dict[str, str]) -> dict[str, str]:
    """Return the text of every page and of its open items."""
    texts: dict[str, str] = {}
    queries = [f"/console/{page}" for page in PAGES]
    queries += [f"/console/tools?open={name}" for name in ("echo", "break_down", "wipe", "leaky__leak")]
    queries += ["/console/upstreams?open=leaky", "/console/calls?code=internal_error", "/metrics"]
    calls = await served.client.get("/console/calls", headers=headers)
    ids = {part.partition('"')[0].partition("&")[0] for part in calls.text.split("open=")[1:]}
    jobs = await served.client.get("/console/jobs", headers=headers)
    job_ids = {part.partition('"')[0].partition("&")[0] for part in jobs.text.split("open=")[1:]}
    queries += [f"/console/calls?open={one}" for one in ids] + [f"/console/jobs?open={one}" for one in job_ids]
    for query in queries:
        texts[query] = (await served.client.get(query, headers=headers)).text
    return texts


async def test_a_planted_secret_is_on_no_page(serve: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LEAKY_TOKEN", SECRET)
    program = tmp_path / "leaky.py"
    program.write_text(UPSTREAM)
    settings = f"""
[upstreams.leaky]
command = "{sys.executable}"
args = ["{program}"]
env = {{ LEAKY_TOKEN = "${{LEAKY_TOKEN}}" }}
unannotated = "allow"

[limits]
approval_hold_s = 0
"""
    headers = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}
    async with serve(Yard("shop", tools=[echo, break_down, wipe, work]), settings) as served:
        async with asyncio.timeout(60):
            while served.yard.registry.get("leaky__leak") is None:  # noqa: ASYNC110 - the upstream connects in the background
                await asyncio.sleep(0.02)
        for text in (SECRET, PLAIN):
            await served.call("echo", {"text": text, "password": text}, **headers)
            await served.call("break_down", {"text": text}, **headers)
            await served.call("wipe", {"text": text, "api_key": text}, **headers)
            await served.call("work", {"text": text}, **headers)
            await served.call(f"no_{text}", {"text": text}, **headers)
        leaked = await served.call("run_tool", {"tool_id": "leaky__leak", "arguments": {}})
        await served.call("run_tool", {"tool_id": "leaky__die", "arguments": {}})
        reader = await pages_of(served, {})
        cookie, _ = await served.person()
        person = await pages_of(served, cookie)

    assert leaked["error"]["code"] == "upstream_error"  # the upstream did leak it, to the caller whose call it was
    assert len(reader) > len(PAGES) + 10
    assert [page for page, text in reader.items() if SECRET in text or PLAIN in text] == []
    assert [page for page, text in person.items() if SECRET in text] == []
    # The card of an approval shows arguments to people who decide, apart from those that look like secrets.
    assert [page for page, text in person.items() if PLAIN in text] == ["/console/approvals"]
    assert "wipe" in person["/console/approvals"]
