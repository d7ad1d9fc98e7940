"""The Claude Agent SDK with its real CLI: permissions, names, options, sub-agents and resumed conversations."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import Shop
from drivers import claude_query, import_module

from callyard.inject import Conversation
from callyard.inject.claude import SERVER_NAME, claude_options, claude_servers, claude_tool_name
from callyard.testing.models import ScriptedAnthropic, ToolUse, Turn

TIMEOUT = 60.0
PING = claude_tool_name("ping", f"{SERVER_NAME}_system")
ORDER = ToolUse(claude_tool_name("order"), {"item": "tea"})
CLEAR = ToolUse(claude_tool_name("clear"), {"shelf": "A"})


def make_options(**fields: Any) -> Any:
    return import_module("claude_agent_sdk").ClaudeAgentOptions(tools=[], **fields)


async def allow(_: str, arguments: dict[str, Any], __: Any) -> Any:
    return import_module("claude_agent_sdk").PermissionResultAllow(updated_input=arguments)


async def refuse(_: str, __: Mapping[str, Any]) -> None:
    return None


async def test_a_yard_with_more_than_ten_tools_has_a_server_for_each_source(shop: Shop, tmp_path: Path) -> None:
    options = claude_options(make_options(can_use_tool=allow), shop.yard)

    with ScriptedAnthropic([[ORDER, ToolUse(PING)], "Done."]) as model:
        await claude_query(options, model, home=str(tmp_path))

    assert sorted(options.mcp_servers) == [SERVER_NAME, f"{SERVER_NAME}_system"]
    assert [result.envelope.success for result in model.results] == [True, True]
    assert PING in model.tools


async def test_the_permission_callback_is_asked_and_its_reason_reaches_the_model(shop: Shop, tmp_path: Path) -> None:
    asked: list[str] = []

    async def deny(name: str, _: dict[str, Any], __: Any) -> Any:
        asked.append(name)
        return import_module("claude_agent_sdk").PermissionResultDeny(message="Not on a Sunday.")

    with ScriptedAnthropic([ORDER, "Done."]) as model:
        await claude_query(claude_options(make_options(can_use_tool=deny), shop.yard), model, home=str(tmp_path))

    assert asked == [ORDER.name]
    assert "Not on a Sunday." in model.results[0].text
    assert shop.sink.records == []


async def test_nothing_is_approved_for_a_host_that_has_no_callback(shop: Shop, tmp_path: Path) -> None:
    with ScriptedAnthropic([ORDER, "Done."]) as model:
        await claude_query(claude_options(make_options(), shop.yard), model, home=str(tmp_path))

    assert model.results[0].is_error
    assert shop.sink.records == []


async def test_bypassing_permissions_does_not_bypass_the_yard(shop: Shop, tmp_path: Path) -> None:
    options = make_options(
        permission_mode="bypassPermissions", env={"IS_SANDBOX": "1"}
    )  # the CLI refuses that to root otherwise

    with ScriptedAnthropic([ORDER, CLEAR, "Done."]) as model:
        await claude_query(claude_options(options, shop.yard, elicit=refuse), model, home=str(tmp_path))

    order, clear = [result.envelope for result in model.results]
    assert order.success
    assert clear.error is not None
    assert (clear.error.code, shop.cleared) == ("approval_denied", [])


async def test_the_sdk_knows_the_id_of_the_call(shop: Shop, tmp_path: Path) -> None:
    metas: list[Any] = []

    class Observer:
        def started(self, call: Any) -> None:
            metas.append(call.channel.meta)

    stop = shop.yard.dispatcher.observe(Observer())
    with ScriptedAnthropic([ORDER, "Done."]) as model:
        await claude_query(claude_options(make_options(can_use_tool=allow), shop.yard), model, home=str(tmp_path))
    stop()

    assert metas[0]["claudecode/toolUseId"] in json.dumps(model.requests[-1])


def test_the_options_of_the_host_are_kept(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCP_TOOL_TIMEOUT", "1000")
    other = {"type": "stdio", "command": "true"}
    mine = make_options(
        cwd="/",
        include_partial_messages=True,
        setting_sources=["project"],
        cli_path="/bin/claude",
        resume="id",
        permission_mode="plan",
        model="m",
        can_use_tool=allow,
        mcp_servers={"other": other},
        env={"A": "b"},
    )

    options = claude_options(mine, shop.yard)

    names = [field.name for field in fields(mine)]
    changed = {name for name in names if getattr(mine, name) != getattr(options, name)}
    assert changed == {"mcp_servers", "env"}
    assert next(iter(options.mcp_servers)) == "other"
    assert options.allowed_tools == []
    assert options.env == {"A": "b", "MCP_TOOL_TIMEOUT": str(750_000)}
    assert (mine.env, os.environ["MCP_TOOL_TIMEOUT"]) == ({"A": "b"}, "1000")


def test_a_longer_timeout_of_the_host_is_kept(shop: Shop) -> None:
    options = claude_options(make_options(env={"MCP_TOOL_TIMEOUT": "900000"}), shop.yard)

    assert options.env["MCP_TOOL_TIMEOUT"] == "900000"


async def test_the_clis_timeout_is_the_variable_that_the_adapter_sets(shop: Shop, tmp_path: Path) -> None:
    options = claude_options(make_options(can_use_tool=allow), shop.yard)
    options.env["MCP_TOOL_TIMEOUT"] = "1000"  # against the adapter, to see that the CLI obeys it

    with ScriptedAnthropic([ToolUse(claude_tool_name("wait")), "Done."]) as model:
        async with asyncio.timeout(TIMEOUT):
            await claude_query(options, model, home=str(tmp_path))
            await shop.stopped.wait()

    assert model.results[0].is_error
    assert shop.sink.codes == ["cancelled"]


def test_servers_in_a_file_cannot_be_joined(shop: Shop) -> None:
    with pytest.raises(TypeError):
        claude_options(make_options(mcp_servers="servers.json"), shop.yard)


async def test_a_server_of_the_same_name_in_the_hosts_files_does_not_shadow_the_yard(
    shop: Shop, tmp_path: Path
) -> None:
    false: dict[str, Any] = {"mcpServers": {SERVER_NAME: {"type": "stdio", "command": "false", "args": []}}}
    (tmp_path / ".mcp.json").write_text(json.dumps(false))
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text('{"enableAllProjectMcpServers": true}')

    with ScriptedAnthropic([ORDER, "Done."]) as model:
        options = claude_options(make_options(can_use_tool=allow), shop.yard)
        await claude_query(options, model, home=str(tmp_path), sources=["user", "project", "local"])

    assert model.results[0].envelope.success


async def test_a_resumed_conversation_keeps_its_session(shop: Shop, tmp_path: Path) -> None:
    script = [
        ToolUse(claude_tool_name("open_cart")),
        "Opened.",
        ToolUse(claude_tool_name("get_session_count", f"{SERVER_NAME}_system")),
        "Done.",
    ]
    with ScriptedAnthropic(script) as model:
        first = claude_options(make_options(can_use_tool=allow), Conversation(shop.yard, scope="chat 7"))
        ended = await claude_query(first, model, home=str(tmp_path))
        resumed = make_options(can_use_tool=allow, resume=ended[-1].session_id)
        again = await claude_query(
            claude_options(resumed, Conversation(shop.yard, scope="chat 7")), model, home=str(tmp_path), prompt="Again."
        )

    assert again[-1].session_id == ended[-1].session_id
    assert [result.envelope.data for result in model.results] == ["cart", 1]


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"tools": [ORDER.name, CLEAR.name]},
        {"tools": [f"mcp__{SERVER_NAME}"]},
        {"mcpServers": [SERVER_NAME], "background": False},
    ],
    ids=["everything", "named tools", "a whole server", "a named server"],
)
async def test_a_sub_agent_uses_the_yard_of_its_conversation(
    shop: Shop, tmp_path: Path, limits: dict[str, Any]
) -> None:
    class WithSubAgent(ScriptedAnthropic):
        def script_for(self, body: dict[str, Any]) -> list[Turn]:
            if "SUBTASK" in json.dumps(body["messages"][0]):
                return [ORDER, CLEAR, "Ordered."]
            launch = {"description": "Order", "prompt": "SUBTASK", "subagent_type": "helper"}
            return [ToolUse("Agent", launch), "Waiting.", "Done.", "Done."]

    sdk = import_module("claude_agent_sdk")
    helper = sdk.AgentDefinition(description="Orders things.", prompt="You order things.", **limits)
    options = sdk.ClaudeAgentOptions(
        tools=["Agent"], agents={"helper": helper}, can_use_tool=allow, env={"ENABLE_TOOL_SEARCH": "false"}
    )
    with WithSubAgent([]) as model:
        await claude_query(claude_options(options, shop.yard, scope="chat", elicit=refuse), model, home=str(tmp_path))

    order, clear = [result.envelope for result in model.results if result.name in {ORDER.name, CLEAR.name}]
    assert order.data["item"] == "tea"
    assert clear.error is not None
    assert clear.error.code == "approval_denied"
    assert [record.scope for record in shop.sink.records] == ["chat", "chat"]


@pytest.mark.parametrize("query", [f"select:{ORDER.name}", "order something"])
async def test_the_clis_tool_search_finds_a_deferred_tool(shop: Shop, tmp_path: Path, query: str) -> None:
    sdk = import_module("claude_agent_sdk")
    options = sdk.ClaudeAgentOptions(tools={"type": "preset", "preset": "claude_code"}, can_use_tool=allow)
    search = ToolUse("ToolSearch", {"query": query, "max_results": 3})

    with ScriptedAnthropic([search, ORDER, "Done."]) as model:
        await claude_query(claude_options(options, shop.yard, always_load=["greet"]), model, home=str(tmp_path))

    first = {
        tool["name"] for tool in model.requests[0]["tools"] if "input_schema" in tool and not tool.get("defer_loading")
    }
    assert claude_tool_name("greet") in first
    assert ORDER.name not in first
    assert model.results[-1].envelope.success


def test_each_query_has_servers_of_its_own(shop: Shop) -> None:
    conversation = Conversation(shop.yard)

    assert (
        claude_servers(conversation)[SERVER_NAME]["instance"]
        is not claude_servers(conversation)[SERVER_NAME]["instance"]
    )


MANY_TOOLS = """
from callyard import Profile, Surface, Yard, tool

@tool(operation="query")
def greet(name: str) -> str:
    "Greet somebody."
    return name

yard = Yard("many", tools=[greet], profile=Profile(name="meta", surface=Surface.META))
"""


def test_claude_code_shows_the_metatools_of_a_server_in_its_first_request(tmp_path: Path) -> None:
    """Its own search of tools, which hides what servers offer, is on."""
    (tmp_path / "many.py").write_text(MANY_TOOLS)
    serve = ["-m", "callyard", "serve", str(tmp_path / "many.py"), "--transport", "stdio"]
    path = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    server = {"type": "stdio", "command": sys.executable, "args": serve, "env": path}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"many": server}}))
    program = Path(str(import_module("claude_agent_sdk").__file__)).parent / "_bundled" / "claude"
    with ScriptedAnthropic(["Hello."], repeat_last=True) as model:
        settings = {
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "ENABLE_TOOL_SEARCH": "true",
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
        }
        command = [str(program), "-p", "Hello.", "--mcp-config", str(tmp_path / "mcp.json"), "--strict-mcp-config"]
        subprocess.run(command, cwd=tmp_path, env=settings, stdin=subprocess.DEVNULL, capture_output=True, check=True)  # noqa: S603 - our own
        offered = {tool["name"] for tool in next(body for body in model.requests if body.get("tools"))["tools"]}

    assert "ToolSearch" in offered
    assert {f"mcp__many__{name}" for name in ("search_tools", "describe_tool", "run_tool", "run_chain")} <= offered
