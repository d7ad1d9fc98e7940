"""Credentials of whoever calls us stay here: an upstream gets those headers alone that its settings name."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest
from fronts import NEW, OLD
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from callyard import Call, Serving, Yard, tool
from callyard.launch.serve import serve_forever
from callyard.providers.upstream.provider import make_upstream
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.state.sqlite import SqliteStore

SENT: Final = {
    "Authorization": "Bearer of-the-caller",
    "X-API-Key": "key-of-the-caller",
    "Cookie": "id=of-the-caller",
    "X-Tenant": "tea",
}


@asynccontextmanager
async def served(yard: Yard, *shown: str) -> AsyncGenerator[str]:
    """Serve a yard whose handlers may see these headers, and return its address."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(transport="http", port=0, request_headers=shown)
    task = asyncio.create_task(
        serve_forever(yard, serving, ready=lambda transport: ready.set_result(transport.info().address))
    )
    try:
        async with asyncio.timeout(60):
            yield await ready
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("mode", [OLD, NEW])
@pytest.mark.parametrize(
    ("named", "shown"), [((), SENT), (("X-Tenant",), SENT), (("authorization",), SENT), (("Authorization",), ())]
)
async def test_an_upstream_gets_only_the_forwarded_headers_of_its_settings(
    tmp_path: Path, sdk_url: str, era: Any, mode: str, named: tuple[str, ...], *, shown: Iterable[str]
) -> None:
    settings = UpstreamSettings(url=sdk_url, era=era, forward_headers=named, headers={"X-Ours": "yes"})
    upstream = make_upstream("shed", settings, state=tmp_path)
    with anyio.fail_after(30):
        async with (
            served(Yard("gate", providers=[upstream], metatools=False), *shown) as address,
            httpx2.AsyncClient(headers=SENT) as http,
            Client(streamable_http_client(address, http_client=http), mode=mode) as client,
        ):
            await upstream.wait_ready()
            headers: Any = (await client.call_tool("shed__headers")).structured_content

    wanted = {name.lower(): value for name, value in SENT.items() if name.lower() in {one.lower() for one in named}}
    assert {name: headers[name] for name in map(str.lower, SENT) if name in headers} == wanted
    assert headers["x-ours"] == "yes"
    assert "of-the-caller" not in str({name: value for name, value in headers.items() if name not in wanted})


@tool
def seen(call: Call) -> dict[str, str]:
    """Return the headers that a handler sees."""
    return dict(call.channel.headers)


@pytest.mark.parametrize("mode", [OLD, NEW])
@pytest.mark.parametrize("mounted", [False, True])
async def test_a_forwarded_header_is_hidden_from_handlers_and_sent_once_the_upstream_is_ready(
    tmp_path: Path, sdk_url: str, mode: str, *, mounted: bool
) -> None:
    upstream = make_upstream("shed", UpstreamSettings(url=sdk_url, forward_headers=("Authorization",)), state=tmp_path)
    gate, inner = Yard("gate", tools=[seen], metatools=False), Yard("inner", metatools=False)
    with anyio.fail_after(30):
        async with (
            served(gate, "X-Tenant") as address,
            httpx2.AsyncClient(headers=SENT) as http,
            Client(streamable_http_client(address, http_client=http), mode=mode) as client,
        ):
            await gate.providers.add(inner)
            await (inner if mounted else gate).providers.add(upstream)
            await upstream.wait_ready()
            own: Any = (await client.call_tool("seen")).structured_content
            headers: Any = (await client.call_tool("shed__headers")).structured_content
            await gate.providers.remove("inner")
            await gate.providers.remove("shed")
            left = gate.providers.forward_headers

    assert own["data"] == {"x-tenant": "tea"}
    assert (headers.get("data") or headers)["authorization"] == SENT["Authorization"]
    assert list(left) == []


def written(path: Path) -> bytes:
    """Return all that is in a store."""
    return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))


@pytest.mark.parametrize("mounted", [False, True])
async def test_a_job_that_needs_forwarded_credentials_is_refused_and_they_are_not_stored(
    tmp_path: Path, sdk_url: str, *, mounted: bool
) -> None:
    upstream = make_upstream("shed", UpstreamSettings(url=sdk_url, forward_headers=("Authorization",)), state=tmp_path)
    path = tmp_path / "store.sqlite3"
    inner = Yard("inner", providers=[upstream], metatools=False)
    gate = Yard("gate", providers=[inner if mounted else upstream], store=SqliteStore(path))
    chain = {"steps": [{"tool_id": "shed__headers"}]}
    with anyio.fail_after(30):
        async with (
            served(gate) as address,
            httpx2.AsyncClient(headers=SENT) as http,
            Client(streamable_http_client(address, http_client=http), mode=NEW) as client,
        ):
            await upstream.wait_ready()
            direct: Any = (
                await client.call_tool("run_tool", {"tool_id": "shed__headers", "background": True})
            ).structured_content
            started: Any = await client.call_tool(
                "run_tool", {"tool_id": "run_chain", "args": chain, "background": True}
            )
            job_id = started.structured_content["data"]["job_id"]
            job: Any = (await client.call_tool("wait_job", {"job_id": job_id})).structured_content

    assert direct["error"]["code"] == "not_supported"
    assert direct["error"]["may_have_run"] is False
    assert job["data"]["result"]["error"]["details"]["cause_code"] == "not_supported"
    assert b"of-the-caller" not in written(path)
