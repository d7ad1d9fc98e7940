"""What only the Claude Agent SDK has: its subprocess, its files, its own tools and its questions."""

import ast
import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, Host, approve, back, children, make_runtime, of_type

from callyard.agents import AgentManager, AgentSession
from callyard.agents.claude import ClaudeRuntime
from callyard.agents.events import ApprovalRequired, Question
from callyard.inject.claude import claude_tool_name
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.testing.models import Fault, ScriptedAnthropic, ToolUse, Turn

Hosting = Callable[..., AbstractAsyncContextManager[Host]]
WAIT, LOOK = ToolUse(claude_tool_name("wait")), ToolUse(claude_tool_name("look"))


async def written(home: Path, text: str) -> None:
    """Wait until a transcript of Claude Code has a text; the program writes it at times that it does not announce."""
    while not any(text in transcript.read_text() for transcript in (home / "config").rglob("*.jsonl")):  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.02)


async def test_a_killed_process_ends_the_turn_with_an_error_and_the_session_resumes(hosting: Hosting) -> None:
    async with hosting([LOOK, WAIT, "Never."]) as host, asyncio.timeout(TIMEOUT):
        before = set(children())
        turn = asyncio.create_task(host.send(decide=approve))
        await host.tools.started.wait()
        [process] = set(children()) - before
        await written(host.home, claude_tool_name("look"))
        os.kill(process, signal.SIGKILL)
        events = await turn
        await host.tools.stopped.wait()
        host.model.script_for = back
        again = await host.send("Again.")
        resumed = json.dumps(host.model.requests[-1])

        assert set(children()) == before
    [error] = of_type(events, "error")
    assert (error.code, events[-1].status) == ("upstream_unavailable", "failed")
    assert [event.text for event in of_type(again, "text_delta")] == ["Back."]
    assert claude_tool_name("look") in resumed  # the conversation goes on where it was


async def test_no_process_is_left_after_a_turn_or_a_cancelled_one(hosting: Hosting) -> None:
    async with hosting([WAIT, "Never."]) as host, asyncio.timeout(TIMEOUT):
        before = set(children())
        turn = asyncio.create_task(host.send(decide=approve))
        await host.tools.started.wait()
        [session] = await host.manager.sessions.all()
        await host.manager.cancel(session)
        await turn
        assert set(children()) == before
        host.model.script_for = back
        await host.send("Again.")

        assert set(children()) == before


async def test_closing_the_stream_early_cancels_the_turn(hosting: Hosting) -> None:
    async with hosting([WAIT, "Never."]) as host, asyncio.timeout(TIMEOUT):
        before = set(children())
        events = host.manager.send_message("chat", "Go.")
        async for event in events:
            if isinstance(event, ApprovalRequired):
                break
        await events.aclose()

        assert set(children()) == before
        assert host.manager.interactions.pending() == []


QUESTION = {
    "questions": [
        {
            "question": "Which colour?",
            "header": "Colour",
            "multiSelect": False,
            "options": [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}],
        },
        {
            "question": "Which sizes?",
            "header": "Sizes",
            "multiSelect": True,
            "options": [{"label": "S", "description": "s"}, {"label": "L", "description": "l"}],
        },
    ]
}


async def test_a_request_that_claude_code_makes_for_itself_is_no_turn_of_the_script(hosting: Hosting) -> None:
    script = [ToolUse("mcp__yard__look"), "Done."]
    env = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": ""}
    async with hosting(script, runtime={"env": env}) as host:
        events = await host.send("Look around in the shop, and tell me what is there.", decide=approve)

    assert [event.text for event in of_type(events, "text_delta")] == ["Done."]
    assert len(host.model.requests) == len(script)
    assert host.model.asides != []


async def test_in_the_mode_rules_only_the_rules_of_the_yard_ask_also_for_root(hosting: Hosting) -> None:
    script = [ToolUse("mcp__yard__look"), ToolUse("mcp__yard__burn", {"what": "tea"}), "Done."]
    async with hosting(script, runtime={"env": {"IS_SANDBOX": ""}}) as host:
        events = await host.send(decide=approve, permission_mode="rules")

    assert [event.tool for event in of_type(events, "approval_required")] == ["burn"]
    assert [event.tool for event in of_type(events, "tool_result")] == ["look", "burn"]
    assert (host.tools.burnt, events[-1].status) == (["tea"], "completed")


@pytest.mark.parametrize("mode", ["default", "bypassPermissions"])
async def test_a_question_of_the_model_is_answered_by_the_person(hosting: Hosting, mode: str) -> None:
    def decide(manager: AgentManager, event: ApprovalRequired | Question) -> None:
        manager.interactions.answer(event.interaction_id, {"answer_1": "Red", "answer_2": ["S", "L"]}, by="local")

    async with hosting([ToolUse("AskUserQuestion", QUESTION), "Done."]) as host:
        events = await host.send(decide=decide, permission_mode=mode)

    [question] = of_type(events, "question")
    assert question.form["properties"]["answer_1"]["enum"] == ["Red", "Blue"]
    assert '"Which colour?"="Red"' in host.model.results[0].text
    assert '"Which sizes?"="S, L"' in host.model.results[0].text
    assert of_type(events, "approval_required") == []


async def test_a_question_that_the_person_declines_reaches_the_model_with_the_reason(hosting: Hosting) -> None:
    def decide(manager: AgentManager, event: ApprovalRequired | Question) -> None:
        manager.interactions.decide(event.interaction_id, approve=False, by="local", reason="Choose yourself.")

    async with hosting([ToolUse("AskUserQuestion", QUESTION), "Done."]) as host:
        events = await host.send(decide=decide)

    assert of_type(events, "approval_resolved")[0].outcome == "declined"
    assert "Choose yourself." in host.model.results[0].text


async def test_a_tool_of_the_sdk_itself_is_asked_about(hosting: Hosting, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("42")
    write = ToolUse("Write", {"file_path": str(tmp_path / "new.txt"), "content": "x"})
    async with hosting([write, "Done."], runtime={"tools": ["Write"]}) as host:
        events = await host.send(
            decide=lambda manager, event: manager.interactions.decide(event.interaction_id, approve=False, by="local")
        )

    [asked] = of_type(events, "approval_required")
    assert (asked.tool, asked.source, asked.arguments["content"]) == ("Write", "agent", "x")
    assert not (tmp_path / "new.txt").exists()


async def test_a_call_without_arguments_has_an_end_and_no_deltas(hosting: Hosting) -> None:
    async with hosting([LOOK, "Done."]) as host:
        events = await host.send(decide=approve)

    assert of_type(events, "tool_call_delta") == []
    assert [event.arguments for event in of_type(events, "tool_call_end")] == [{}]


async def test_a_call_of_a_sub_agent_has_its_parent(hosting: Hosting) -> None:
    class WithSubAgent(ScriptedAnthropic):
        def script_for(self, body: dict[str, Any]) -> list[Turn]:
            if "SUBTASK" in json.dumps(body["messages"][0]):
                return [LOOK, "Looked."]
            launch = {"description": "Look", "prompt": "SUBTASK", "subagent_type": "helper"}
            return [ToolUse("Agent", launch), "Waiting.", "Done.", "Done."]

    sdk = import_module("claude_agent_sdk")
    helper = sdk.AgentDefinition(description="Looks.", prompt="You look.")
    options: dict[str, Any] = {"tools": ["Agent"], "agents": {"helper": helper}, "env": {"ENABLE_TOOL_SEARCH": "false"}}
    async with hosting(WithSubAgent([]), runtime=options) as host:
        events = await host.send(decide=approve)

    starts = {event.tool: event for event in of_type(events, "tool_call_start")}
    assert starts["look"].parent_id == starts["Agent"].tool_call_id
    results = [event for event in of_type(events, "tool_result") if event.tool == "look"]
    assert [Envelope.from_json(event.text).data for event in results] == ["nothing"]


async def test_the_options_of_the_host_are_kept_and_the_turns_own_are_set(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = import_module("claude_agent_sdk")
    seen: list[Any] = []
    query = sdk.query

    def observe(*, prompt: Any, options: Any) -> Any:
        seen.append((prompt, options))
        return query(prompt=prompt, options=options)

    monkeypatch.setattr(sdk, "query", observe)
    async with hosting(["Done."], runtime={"max_turns": 7, "add_dirs": ["/"]}) as host:
        host.manager.set_mcp_servers(
            lambda session: {f"of_{session.id}": {"type": "stdio", "command": "false", "args": []}}
        )
        await host.send(model="claude-opus-5", permission_mode="plan", cwd=str(host.home))

    [(prompt, options)] = seen
    assert hasattr(prompt, "__aiter__")
    assert (options.max_turns, options.add_dirs, options.setting_sources, options.cwd) == (7, ["/"], [], str(host.home))
    assert (options.permission_mode, options.model, options.allowed_tools) == ("plan", "claude-opus-5", [])
    assert (options.include_partial_messages, options.resume) == (True, None)
    assert list(options.mcp_servers) == ["of_chat", "yard", "yard_system"]
    assert options.env["MCP_TOOL_TIMEOUT"] == str(int((120 + host.manager.interactions.hold_s + 30) * 1000))
    assert claude_tool_name("look") in options.system_prompt


def test_a_callback_of_the_host_is_refused() -> None:
    sdk = import_module("claude_agent_sdk")

    async def allow(*_: Any) -> Any:
        return sdk.PermissionResultAllow()

    with pytest.raises(ValueError, match="can_use_tool"):
        ClaudeRuntime(sdk.ClaudeAgentOptions(can_use_tool=allow))


async def test_a_server_of_the_host_cannot_take_the_yards_name(hosting: Hosting) -> None:
    false: dict[str, Any] = {"yard": {"type": "stdio", "command": "false", "args": []}}
    async with hosting(["Done."]) as host:
        with pytest.raises(ValueError, match="reserved"):
            host.manager.set_mcp_servers(false)
        host.manager.set_mcp_servers(lambda _: false)
        events = await host.send()

    assert (of_type(events, "error")[0].code, events[-1].status) == ("internal_error", "failed")


async def test_a_conversation_that_is_lost_begins_anew_after_saying_so(hosting: Hosting, tmp_path: Path) -> None:
    async with hosting(["First.", "Never."]) as host:
        await host.send()
        for transcript in (tmp_path / "config").rglob("*.jsonl"):
            transcript.unlink()
        lost = await host.send("Again.")
        anew = await host.send("Once more.")

    [error] = of_type(lost, "error")
    assert (error.code, lost[-1].status) == ("state_error", "failed")
    assert [event.text for event in of_type(anew, "text_delta")] == ["First."]


async def test_deleting_a_session_deletes_the_conversation(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    async with hosting(["Done."]) as host:
        await host.send("Remember the word heliotrope.")
        [session] = await host.manager.sessions.all()
        assert [path for path in (tmp_path / "config").rglob("*.jsonl") if "heliotrope" in path.read_text()]
        await host.manager.delete(session)
        left = [
            path
            for path in (tmp_path / "config" / "projects").rglob("*")
            if path.is_file() and "heliotrope" in path.read_text()
        ]

        assert (await host.manager.sessions.all(), left) == ([], [])


async def test_root_is_refused_to_bypass_permissions_without_a_sandbox(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    async with hosting(["Never."], runtime={"env": {"IS_SANDBOX": "0"}}) as host:
        events = await host.send(permission_mode="bypassPermissions")

    assert of_type(events, "error")[0].code == "not_supported"
    assert host.model.requests == []


async def test_a_file_that_a_message_names_is_not_read(hosting: Hosting, tmp_path: Path) -> None:
    secret = tmp_path / "outside" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("heliotrope")
    (tmp_path / "inside").mkdir()
    async with hosting(["Done."], runtime={"cwd": str(tmp_path / "inside")}) as host:
        events = await host.send(f"What is in @{secret}?")
        sent = json.dumps(host.model.requests)

    assert ("heliotrope" in sent, f"@{secret}" in sent) == (False, True)
    assert (events[-1].status, of_type(events, "approval_required")) == ("completed", [])


async def test_a_message_that_looks_like_a_command_is_a_message(hosting: Hosting) -> None:
    async with hosting(["Done."]) as host:
        host.model.script_for = back
        for message in ("My name is Heliotrope.", "/clear", "Who am I?"):
            await host.send(message)
        [session] = await host.manager.sessions.all()
        sent = json.dumps(host.model.requests[-1]["messages"])

    assert ("Heliotrope" in sent, "/clear" in sent, len(session.sdk_session_ids)) == (True, True, 1)


FAILS = """#!/bin/sh
echo "cannot find heliotrope.so" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (None, "not_started"),
        ("no program", "not_started"),
        (FAILS, "not_started"),
        ("#!/bin/sh\nexec sleep 60\n", "not_started"),
        (
            '#!/bin/sh\n[ "$1" = --version ] && exec echo 9.9.9\necho "cannot find heliotrope.so" >&2\nexit 1\n',
            "not_started",
        ),
        ("#!/bin/sh\necho '2.1.247 (Claude Code)'\n", "too_old"),
        ("#!/bin/sh\necho heliotrope\n", "too_old"),
    ],
)
async def test_a_program_that_does_not_start_or_is_too_old_is_refused(
    hosting: Hosting,
    tmp_path: Path,
    *,
    program: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("callyard.agents.claude._VERSION_S", 1.0)
    path = tmp_path / "claude"
    if program is not None:
        path.write_text(program)
        path.chmod(0o700)
    async with hosting(["Never."], runtime={"cli_path": str(path)}) as host:
        events = await host.send()

        assert host.model.requests == []
    [error] = of_type(events, "error")
    assert (error.code, events[-1].status, "agents.cli_path" in error.hint) == ("runtime_unavailable", "failed", True)
    assert str(tmp_path) not in error.message + error.hint
    assert "heliotrope" not in error.message + error.hint
    assert ("claude_too_old" in caplog.text) == (reason == "too_old")
    assert ("heliotrope" in caplog.text) == ("heliotrope" in (program or ""))


async def test_a_program_that_is_found_to_be_too_old_only_later_is_refused(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.agents.claude._OLDEST", (999, 0, 0))
    async with hosting(["Never.", "Never."]) as host:
        events = await host.send()

    assert of_type(events, "error")[0].code == "runtime_unavailable"


TOO_LONG = "prompt is too long: 300000 tokens > 200000 maximum"


@pytest.mark.parametrize(
    ("status", "kind", "message", "code"),
    [
        (401, "authentication_error", "invalid x-api-key", "unauthenticated"),
        (429, "rate_limit_error", "Slow down.", "rate_limited"),
        (400, "invalid_request_error", TOO_LONG, "too_large"),
        (500, "api_error", "Ill.", "upstream_error"),
    ],
)
async def test_each_failure_of_the_model_has_its_own_hint(
    hosting: Hosting, monkeypatch: pytest.MonkeyPatch, *, status: int, kind: str, message: str, code: str
) -> None:
    def body(_: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    monkeypatch.setattr("callyard.testing.models._error", body)
    async with hosting([Fault("status", status=status)]) as host:
        events = await host.send()

    [error] = of_type(events, "error")
    assert error.code == code
    words = {
        "unauthenticated": "ANTHROPIC_API_KEY",
        "rate_limited": "later",
        "too_large": "shorter",
        "upstream_error": "again",
    }
    assert words[code] in error.hint


async def test_a_missing_key_is_said_to_be_missing(hosting: Hosting) -> None:
    async with hosting(["Never."], runtime={"env": {"ANTHROPIC_API_KEY": ""}}) as host:
        events = await host.send()

    [error] = of_type(events, "error")
    assert (error.code, "ANTHROPIC_API_KEY" in error.hint, of_type(events, "text_delta")) == (
        "unauthenticated",
        True,
        [],
    )


async def test_the_servers_of_the_host_may_be_a_mapping(hosting: Hosting) -> None:
    async with hosting(["Done."]) as host:
        host.manager.set_mcp_servers({"other": {"type": "stdio", "command": "false", "args": []}})
        events = await host.send()

    assert events[-1].status == "completed"


async def test_a_message_for_another_folder_is_refused(hosting: Hosting, tmp_path: Path) -> None:
    async with hosting(["Done."]) as host:
        await host.send(cwd=str(tmp_path))
        with pytest.raises(ToolError) as refused:
            await host.send(cwd="/")

    assert (refused.value.code, refused.value.details["reason"]) == ("state_error", "other_folder")


async def test_a_session_of_another_runtime_is_refused(hosting: Hosting) -> None:
    async with hosting(["Done."]) as host:
        await host.send()
        [session] = await host.manager.sessions.all()
        await host.manager.sessions.save(session, runtime="openai")
        with pytest.raises(ToolError) as refused:
            await host.send()

    assert refused.value.details["reason"] == "other_runtime"
    assert isinstance(session, AgentSession)


def test_the_runtime_checks_that_its_sdk_is_there(tmp_path: Path) -> None:
    with ScriptedAnthropic([]) as model:
        make_runtime("claude", model, tmp_path).check()


async def test_the_example_of_the_guide_runs(hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[3] / "docs" / "guides" / "agents.md"
    [block] = re.findall(r"^```py\n(.*?)^```$", guide.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    compiled = compile(block, str(guide), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    async with hosting([ToolUse(claude_tool_name("burn"), {"what": "tea"}), "Done."]) as host:
        variables = {
            "ANTHROPIC_BASE_URL": host.model.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(tmp_path),
        }
        variables["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        await eval(compiled, {"yard": host.manager.yard})  # noqa: S307 - our own page

    assert host.tools.burnt == ["tea"]


async def test_the_program_gets_no_secrets_of_the_server(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "heliotrope")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "heliotrope")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x: documented")
    path, seen = tmp_path / "claude", tmp_path / "seen"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 99.0.0 && exit\nenv > {seen}\nexit 1\n')
    path.chmod(0o700)
    async with hosting(["Never."], runtime={"cli_path": str(path), "env": {"CONFIGURED": "yes"}}) as host:
        await host.send()

    variables = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert "heliotrope" not in seen.read_text()
    assert variables["ANTHROPIC_CUSTOM_HEADERS"] == "x: documented"
    assert variables["CONFIGURED"] == "yes"
    assert variables["PATH"]


async def test_cloud_credentials_are_handed_over_where_that_cloud_is_switched_on(
    hosting: Hosting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the cloud")
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    path, seen = tmp_path / "claude", tmp_path / "seen"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 99.0.0 && exit\nenv > {seen}\nexit 1\n')
    path.chmod(0o700)
    async with hosting(["Never."], runtime={"cli_path": str(path)}) as host:
        await host.send()

    assert "AWS_SECRET_ACCESS_KEY=of the cloud" in seen.read_text()


async def test_only_tools_of_the_yard_are_offered_unless_the_options_name_others(hosting: Hosting) -> None:
    for tools, offers in ((None, False), (["Bash"], True)):
        async with hosting(["Done."], runtime={"tools": tools, "setting_sources": None}) as host:
            await host.send()
            offered = {tool["name"] for request in host.model.requests for tool in request.get("tools", [])}
        assert ("Bash" in offered) is offers
        assert not {"Edit", "Write"} & offered
