"""The servers for the Claude Agent SDK, asked by the official client in the same process."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp import Client

from callyard import Example, Limits, Profile, Surface, Text, Yard, tool
from callyard.inject import Conversation
from callyard.inject.claude import SERVER_NAME, claude_instructions, claude_options, claude_servers, claude_tool_name
from callyard.transports.memory import Memory


@tool(operation="query")
def add(a: int, b: int = 2) -> int:
    """Add two numbers. The second has a default."""
    return a + b


@tool(operation="query", shape="plain")
def greet() -> list[Text]:
    """Greet."""
    return [Text("Hello.")]


class Counter:
    """Tools of every operation."""

    @tool(operation="destroy", title="Reset", examples=[Example({"to": 1}, "Begin anew")])
    async def reset(self, to: int) -> dict[str, int]:
        """Reset it."""
        return {"to": to}

    @tool(operation="command", idempotent=True, session="optional")
    async def raise_to(self, to: int) -> int:
        """Raise it."""
        return to


MODERN: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def _numbered(number: int, description: str = "Return a number.") -> Any:
    def numbered() -> int:
        return number

    numbered.__name__, numbered.__doc__ = f"tool_{number}", description
    return tool(operation="query")(numbered)


def test_the_name_of_a_tool_has_the_name_of_its_server() -> None:
    assert claude_tool_name("add") == f"mcp__{SERVER_NAME}__add"


async def test_the_server_answers_as_the_yard_does() -> None:
    async with Yard("shop", tools=[add, greet], version="1.2") as yard:
        servers = claude_servers(yard)
        async with Client(servers[SERVER_NAME]["instance"]) as client:
            listed = {item.name: item for item in (await client.list_tools()).tools}
            right, wrong = await client.call_tool("add", {"a": 1}), await client.call_tool("add", {"a": "x"})
            plain = await client.call_tool("greet", {})
        expected = yard.list()

    assert {name: item.input_schema for name, item in listed.items()} == {
        spec.name: spec.input_schema for spec in expected
    }
    assert (right.is_error, right.structured_content["data"]) == (False, 3)
    assert (wrong.is_error, wrong.structured_content["error"]["code"]) == (True, "invalid_input")
    assert (plain.structured_content, [block.model_dump(include={"text"}) for block in plain.content]) == (
        None,
        [{"text": "Hello."}],
    )


async def test_the_server_lists_tools_as_mcp_does_with_the_hints_alone_added() -> None:
    async with Yard(tools=[add, greet, Counter()], packs=["system"]) as yard, Memory().open(yard) as memory:
        memory.send(
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": MODERN}}).encode()
        )
        expected = json.loads(await memory.received.get())["result"]["tools"]
        async with Client(claude_servers(yard, most_tools=100)[SERVER_NAME]["instance"]) as client:
            listed = [item.model_dump(by_alias=True, exclude_none=True) for item in (await client.list_tools()).tools]
    for item in listed:
        assert item["_meta"].pop("anthropic/searchHint")
    plain = [{key: value for key, value in item.items() if key != "_meta" or value} for item in listed]

    assert {item["name"]: item for item in plain} == {item["name"]: item for item in expected}


async def test_search_hints_are_first_sentences_cut_at_a_word() -> None:
    long = _numbered(1, "A description " + "that goes on and on " * 20)
    async with (
        Yard(tools=[add, long]) as yard,
        Client(claude_servers(yard, always_load=["add"])[SERVER_NAME]["instance"]) as client,
    ):
        metas = {item.name: item.meta or {} for item in (await client.list_tools()).tools}

    assert metas["add"]["anthropic/searchHint"] == "Add two numbers."
    assert metas["add"]["anthropic/alwaysLoad"] is True
    hint = metas["tool_1"]["anthropic/searchHint"]
    assert len(hint) <= 120
    assert hint.split()[-1] in {"that", "goes", "on", "and"}
    assert "anthropic/alwaysLoad" not in metas["tool_1"]


async def test_metatools_need_no_search() -> None:
    meta = Profile(name="meta", surface=Surface.META)
    async with Yard(tools=[add], profile=meta) as yard, Client(claude_servers(yard)[SERVER_NAME]["instance"]) as client:
        metas = [item.meta or {} for item in (await client.list_tools()).tools]

    assert all(meta["anthropic/alwaysLoad"] for meta in metas)


@pytest.mark.parametrize(("count", "names"), [(1, [SERVER_NAME]), (9, [SERVER_NAME, f"{SERVER_NAME}_system"])])
async def test_packs_get_a_server_only_if_there_are_many_tools(count: int, names: list[str]) -> None:
    direct = Profile(name="direct", surface=Surface.DIRECT)
    async with Yard(
        "shop", tools=[_numbered(number) for number in range(count)], packs=["system"], profile=direct
    ) as yard:
        servers = claude_servers(yard)
        instructions = claude_instructions(yard)
        listed: list[str] = []
        for name in servers:
            async with Client(servers[name]["instance"]) as client:
                listed += [claude_tool_name(item.name, name) for item in (await client.list_tools()).tools]
        total = len(yard.list())

    assert sorted(servers) == names
    assert len(listed) == total
    assert all(
        name in listed for name in instructions.partition(": ")[2].partition(" and ")[0].partition(".")[0].split(", ")
    )


async def test_a_tool_that_appears_later_is_on_the_first_server() -> None:
    async with Yard(tools=[]) as yard:
        server = claude_servers(yard)[SERVER_NAME]["instance"]
        async with Client(server) as client:
            answer = await client.call_tool("add", {})

    assert answer.structured_content["error"]["code"] == "tool_not_found"


@pytest.mark.parametrize("name", ["yard", "yard_system", "yard.mine"])
async def test_a_reserved_name_is_refused(name: str) -> None:
    async with Yard(tools=[add]) as yard:
        with pytest.raises(ValueError, match="reserved"):
            claude_servers(yard, servers={name: {"type": "stdio", "command": "true"}})


async def test_your_servers_come_first() -> None:
    async with Yard(tools=[add]) as yard:
        servers = claude_servers(Conversation(yard), servers={"yardstick": {"command": "true"}})

    assert list(servers) == ["yardstick", SERVER_NAME]


@dataclass
class Options:
    """The fields of the SDK's options that the adapter changes."""

    mcp_servers: dict[str, Any] = field(default_factory=dict[str, Any])
    env: dict[str, str] = field(default_factory=dict[str, str])


async def test_a_tool_without_a_deadline_gets_the_longest_timeout() -> None:
    async with Yard(tools=[add], limits=Limits(timeout=0)) as yard:
        unlimited = claude_options(Options(), yard)
    async with Yard(tools=[add], limits=Limits(timeout=5)) as yard:
        limited = claude_options(Options(), yard, hold_seconds=10)
        nonsense = claude_options(Options(env={"MCP_TOOL_TIMEOUT": "soon"}), yard)

    assert unlimited.env == {"MCP_TOOL_TIMEOUT": str(2**31 - 1)}
    assert limited.env == {"MCP_TOOL_TIMEOUT": "45000"}
    assert nonsense.env == {"MCP_TOOL_TIMEOUT": "635000"}
