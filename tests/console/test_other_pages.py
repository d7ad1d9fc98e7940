"""A page on another loopback port, in a real browser: it calls nothing, reads nothing and approves nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from playwright.async_api import Page, expect

from callyard import Yard, tool

NOT_HELD: Final = "[limits]\napproval_hold_s = 0\n"
VERSION: Final = "2026-07-28"
ATTACK: Final = """
async ([base, approval]) => {
  const prefix = "io.modelcontextprotocol/";
  const meta = { [`${prefix}protocolVersion`]: "VERSION", [`${prefix}clientCapabilities`]: {} };
  const params = { name: "note", arguments: { text: "evil" }, _meta: meta };
  const call = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "tools/call", params });
  const routing = { "MCP-Protocol-Version": "VERSION", "Mcp-Method": "tools/call", "Mcp-Name": "note" };
  const headers = { "Content-Type": "application/json", ...routing };
  const form = new URLSearchParams({ decision: "approve", csrf: "" });
  const tries = [
    ["/mcp", { method: "POST", body: call, headers }],
    ["/mcp", { method: "POST", body: call, headers: { "Content-Type": "text/plain" } }],
    ["/mcp", { method: "POST", body: call, headers: { "Content-Type": "text/plain" }, mode: "no-cors" }],
    ["/mcp", { headers: { Accept: "text/event-stream" } }],
    ["/console", {}],
    ["/console/approvals", {}],
    ["/console/live/approvals", {}],
    [`/console/approvals/decide/${approval}`, { method: "POST", body: form }],
    [`/console/approvals/decide/${approval}`, { method: "POST", body: form, mode: "no-cors" }],
    ["/console/login", { method: "POST", body: new URLSearchParams({ credentials: "x" }) }],
    ["/console/chat/api/sessions", {}],
    ["/api/sessions", { method: "POST", body: "{}", headers: { "Content-Type": "application/json" } }],
    ["/metrics", {}],
  ];
  const read = [];
  for (const [path, options] of tries) {
    try {
      const response = await fetch(base + path, { credentials: "include", ...options });
      const text = response.type === "opaque" ? "" : await response.text();
      if (text) read.push([path, text.slice(0, 100)]);
    } catch { /* the browser shows nothing */ }
  }
  await new Promise((done) => {
    const frame = Object.assign(document.createElement("iframe"), { src: `${base}/console/approvals` });
    frame.onload = () => {
      try { if (frame.contentDocument.body.innerText) read.push(["frame"]); } catch {}
      done();
    };
    document.body.append(frame);
  });
  return read;
}
""".replace("VERSION", VERSION)
FORM: Final = """
([base, approval]) => {
  const action = `${base}/console/approvals/decide/${approval}`;
  const form = Object.assign(document.createElement("form"), { method: "post", action });
  const field = Object.assign(document.createElement("input"), { name: "decision", value: "approve" });
  form.append(field);
  document.body.append(form);
  form.submit();
}
"""


@asynccontextmanager
async def other_page(host: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """Serve an empty page on another port, and yield its URL and the cookies that browsers send to it."""
    cookies: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        cookies.extend(line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("cookie:"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<body>x</body>")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://{host}:{server.sockets[0].getsockname()[1]}/console", cookies


@pytest.mark.parametrize("is_logged_in", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_page_on_another_port_calls_nothing_reads_nothing_and_approves_nothing(
    serve: Any, look: Any, host: str, *, is_logged_in: bool
) -> None:
    notes: list[str] = []

    @tool(operation="command")
    async def note(text: str) -> None:
        """Note a text."""
        notes.append(text)

    @tool(operation="destroy")
    async def wipe(place: str) -> None:
        """Wipe a place."""
        notes.append(place)

    async with serve(Yard("shop", tools=[note, wipe]), NOT_HELD) as served, other_page(host) as (site, cookies):
        await served.call("wipe", {"place": "moon-731"})
        approval = (await served.yard.gate.approvals.pending())[0]
        page: Page = await look(served.login_to("approvals") if is_logged_in else site)
        if is_logged_in:
            await expect(page.get_by_role("article")).to_contain_text("moon-731")
        other = await page.context.new_page()
        await other.goto(site)
        read = await other.evaluate(ATTACK, [served.base, approval.id])
        await other.evaluate(FORM, [served.base, approval.id])
        await other.wait_for_url(f"{served.base}/**")
        shown = await other.inner_text("body")
        pending = [one.id for one in await served.yard.gate.approvals.pending()]
        stolen = await thief(served, cookies, approval.id)

    assert bool(cookies) is (is_logged_in and host == "127.0.0.1")  # browsers do send them to other ports
    assert read == []
    assert "731" not in shown
    assert notes == []
    assert pending == [approval.id]
    assert not [text for text in stolen if "731" in text]


async def thief(served: Any, cookies: list[str], approval_id: str) -> list[str]:
    """Use the cookies as a program that got them, without a browser and its origins; return what it reads."""
    headers = {"Cookie": "; ".join(cookies)}
    pages = [
        await served.client.get(path, headers=headers)
        for path in ("/console", "/console/approvals", f"/console/approvals?open={approval_id}")
    ]
    for decision in ("approve", "deny"):
        answer = await served.client.post(
            f"/console/approvals/decide/{approval_id}", data={"decision": decision, "csrf": ""}, headers=headers
        )
        assert answer.status_code == 403
    assert [one.id for one in await served.yard.gate.approvals.pending()] == [approval_id]
    return [page.text for page in pages]
