"""A server of FastMCP as an upstream, over both carriers and in both eras."""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import msgspec
import pytest
from fronts import NEW, OLD, in_front, opened, refusal, until
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult

from callyard import Yard
from callyard.providers.upstream.settings import UpstreamSettings

every_way = pytest.mark.parametrize(
    ("carrier", "era"), [(carrier, era) for carrier in ("stdio", "http") for era in ("2025", "2026")]
)


def settings_of(reached: dict[str, Any], era: str) -> UpstreamSettings:
    """Return the settings that say how it is reached, and in which era."""
    return msgspec.convert({**reached, "era": era}, UpstreamSettings)


async def answer(context: Any, params: Any) -> ElicitResult:
    """Answer as a person would."""
    assert params.message.endswith(" asks: Who is there?")
    return ElicitResult(action="accept", content={"value": "Ada"})


@every_way
async def test_everything_it_offers_passes_through(tmp_path: Path, fastmcp: Any, carrier: str, era: str) -> None:
    async with (
        opened(tmp_path, fast=settings_of(fastmcp(carrier), era)) as (yard, upstreams),
        in_front(yard, OLD, elicitation_callback=answer) as older,
        in_front(yard, NEW, elicitation_callback=answer) as newer,
    ):
        status = upstreams["fast"].status()
        assert (status.version[:4], status.server, upstreams["fast"].instructions) == (era, "fast", "Use 'add' to add.")
        await use_as_a_library(yard)
        for client in (older, newer):
            await use_as_a_client(client, asks=era == "2025")  # in the newer era it does not ask while a call runs
        await learn_another(yard)


async def use_as_a_library(yard: Yard) -> None:
    """Call, read and ask for what there is, and see that it comes as envelopes."""
    added = await yard.call("fast__add", {"a": 2, "b": 3})
    listed = await yard.call("fast__listed", {"count": 2})
    failed = refusal(await yard.call("fast__fail", {"text": "No luck."}))
    broke = refusal(await yard.call("fast__break_down"))
    wrong = refusal(await yard.call("fast__add", {"a": "many"}))
    contents = [(await yard.read(f"fast+notes://{name}")).data["contents"][0] for name in ("all", "monday")]
    made: Any = await yard.prompt("fast__review", {"topic": "tea"})

    assert (added.data, listed.data) == ({"result": 5}, {"result": ["word", "word"]})
    assert (failed.code, "No luck." in failed.details["text"], broke.code) == ("upstream_error", True, "upstream_error")
    assert (wrong.code, wrong.may_have_run) == ("invalid_input", False)
    assert [part["text"] for part in contents] == ["Water the plants.", "Note of monday."]
    assert made.data["messages"][0]["content"]["text"] == "Review tea."


async def use_as_a_client(client: Any, *, asks: bool) -> None:
    """Call what there is, and see that it comes as the server said it."""
    progressed: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        progressed.append(message)

    measured = await client.call_tool("fast__measure", {"place": "here"})
    picture = await client.call_tool("fast__picture")
    stepped = await client.call_tool("fast__step", {"count": 3}, progress_callback=hear)
    failed = await client.call_tool("fast__fail", {"text": "No luck."})

    assert (
        json.loads(measured.content[0].text)
        == measured.structured_content
        == {"place": "here", "degrees": [7, 8.5], "rain": None}
    )
    assert (picture.content[0].mime_type, base64.b64decode(picture.content[0].data)) == ("image/png", b"\x89PNG")
    assert (stepped.content[0].text, progressed) == ("done", ["step 1", "step 2", "step 3"])
    assert (failed.is_error, failed.structured_content["error"]["code"]) == (True, "upstream_error")
    if asks:
        assert (await client.call_tool("fast__greet")).content[0].text == "Hello Ada"


async def learn_another(yard: Yard) -> None:
    """Have it learn a tool, which is there soon."""
    name = f"t{uuid4().hex[:8]}"
    assert (await yard.call("fast__learn", {"name": name})).success
    await until(lambda: yard.registry.get(f"fast__{name}") is not None)

    assert (await yard.call(f"fast__{name}")).data == name


async def test_the_configuration_file_of_a_client_is_served_as_it_is(tmp_path: Path, fastmcp: Any) -> None:
    servers = {"pipe": fastmcp("stdio"), "web": fastmcp("http")}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    arguments = ["-m", "callyard", "serve", str(tmp_path / "mcp.json")]
    program = StdioServerParameters(command=sys.executable, args=arguments, env=environment)
    changed = anyio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            changed.set()

    with anyio.fail_after(30):
        async with Client(program, mode=OLD, message_handler=hear) as client:
            while not {tool.name for tool in (await client.list_tools()).tools} >= {f"{name}__add" for name in servers}:
                await changed.wait()
                changed = anyio.Event()
            added: list[Any] = [await client.call_tool(f"{name}__add", {"a": 1}) for name in servers]

    assert [one.structured_content for one in added] == [{"result": 2}, {"result": 2}]
