"""The runtime of the Claude Agent SDK: the only file that calls its `query`.

The SDK runs Claude Code as a subprocess for each turn, which keeps the conversation in files of its own.
"""

import asyncio
import logging
import os
import re
import subprocess
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final, cast

from callyard._internal.logfmt import log_value
from callyard._internal.mask import mask_text
from callyard._internal.programs import is_inherited
from callyard.agents.events import Source, StreamEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from callyard.agents.interactions import RULES_MODE
from callyard.agents.turn import TurnRequest
from callyard.inject.claude import SERVER_NAME, check_server_names, claude_instructions, claude_options
from callyard.inject.plain import Conversation, import_sdk
from callyard.model.errors import CodeName, ToolError, refused, shortened

__all__ = ["ASK_TOOL", "ClaudeRuntime"]

ASK_TOOL: Final = "AskUserQuestion"
"""The SDK's own tool by which the model asks the person; it is answered here, and runs nothing."""
_MAX_MESSAGE: Final = 500
_STDERR_LINES: Final = 20
_LOST: Final = "No conversation found"
_TOO_LONG: Final = "is too long"
_FAILURES: Final[Mapping[str, tuple[CodeName, str]]] = {
    "authentication_failed": (
        "unauthenticated",
        "Set ANTHROPIC_API_KEY in the environment of the server, or log in with 'claude'.",
    ),
    "billing_error": ("budget_exceeded", "Look at the account of the model's provider."),
    "rate_limit": ("rate_limited", "Send the message again later."),
    _TOO_LONG: ("too_large", "Send a shorter message, or begin another session."),
}
"""The code and the hint for what the model fails with, by the SDK's word, or by a part of its text."""
_OTHER_FAILURE: Final[tuple[CodeName, str]] = ("upstream_error", "Send the message again, or another one.")
_OLDEST: Final = (2, 1, 248)
"""The first version of Claude Code that takes a message literally.

An older one reads any file that the message names.
"""
_VERSION_S: Final = 60.0
_DOCUMENTED: Final = (
    *("ANTHROPIC_", "CLAUDE_CODE_", "CLAUDE_CONFIG_DIR", "CLAUDE_AGENT_SDK_", "DISABLE_", "IS_SANDBOX"),
    *("MCP_TIMEOUT", "MCP_TOOL_TIMEOUT", "MAX_MCP_OUTPUT_TOKENS", "MAX_THINKING_TOKENS"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "NODE_EXTRA_CA_CERTS"),
)
"""How the variables begin that Claude Code documents."""
_CLOUDS: Final[Mapping[str, tuple[str, ...]]] = {
    "CLAUDE_CODE_USE_BEDROCK": ("AWS_",),
    "CLAUDE_CODE_USE_VERTEX": ("GOOGLE_", "GCLOUD_", "CLOUD_ML_REGION", "VERTEX_"),
    "CLAUDE_CODE_USE_FOUNDRY": ("AZURE_",),
}
"""The credentials of a cloud, by the variable that switches it on."""
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_log = logging.getLogger(__name__)


class ClaudeRuntime:
    """Runs turns with the Claude Agent SDK."""

    name = "claude"
    has_folder = True

    def __init__(self, options: Any = None) -> None:
        """Take `ClaudeAgentOptions` as the base of every query.

        By default the agent has only the tools of the yard, and can ask.

        Raises:
            ValueError: The options have a permission callback: the manager asks the person itself.
        """
        if options is not None and options.can_use_tool is not None:
            raise ValueError("The manager asks the person itself: leave 'can_use_tool' out.")
        self._options = options
        self._has_checked = False

    def check(self) -> None:
        """Check that the SDK is there.

        Raises:
            ImportError: It is not installed.
        """
        import_sdk("claude_agent_sdk", extra="claude")
        import_sdk("mcp.server", extra="claude")

    def check_servers(self, names: Iterable[str]) -> None:
        """Check that the host can add MCP servers of these names.

        Raises:
            ValueError: One is reserved for the yard.
        """
        check_server_names(names)

    async def forget(self, sdk_session_id: str) -> None:
        """Delete the files in which Claude Code keeps a conversation."""
        sdk = import_sdk("claude_agent_sdk", extra="claude")
        with suppress(FileNotFoundError):
            await asyncio.to_thread(sdk.delete_session, sdk_session_id)

    async def run(self, request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        """Run one turn, and yield what happens.

        Raises:
            ToolError: The turn failed.
        """
        sdk = import_sdk("claude_agent_sdk", extra="claude")
        stderr: list[str] = []
        options = self._query_options(sdk, request, stderr)
        await self._check_version(options)
        reader = _Messages(request.conversation)
        has_started = False
        try:
            async with aclosing(sdk.query(prompt=_prompt(request.content), options=options)) as messages:
                async for message in messages:
                    has_started = True
                    kind = type(message).__name__
                    if kind == "SystemMessage" and message.subtype == "init":  # of the program that the SDK found
                        _check_number(message.data.get("claude_code_version"))
                        await request.remember(message.data["session_id"])
                    elif kind == "ResultMessage":
                        await self._end(request, message, reader.failure)
                    for event in reader.read(kind, message):
                        yield event
        except Exception as error:
            if type(error) is not Exception and not isinstance(error, sdk.ClaudeSDKError):  # the SDK raises both
                raise
            await self._explain(request, error, stderr, has_started=has_started)

    async def _check_version(self, options: Any) -> None:
        """Check that a program of the host takes messages as they are written; the SDK's own does.

        Raises:
            ToolError: `runtime_unavailable`: It is too old, or does not start.
        """
        if options.cli_path is None or self._has_checked:
            return
        try:
            said = await asyncio.to_thread(_run_version, str(options.cli_path))
        except (OSError, subprocess.SubprocessError) as error:
            _log.warning("claude_failed error=%s", log_value(mask_text(str(error)[:_MAX_MESSAGE])))
            raise _not_started() from error
        _check_number(said)
        self._has_checked = True

    def _query_options(self, sdk: Any, request: TurnRequest, stderr: list[str]) -> Any:
        """Return the options of one query: the host's, and what belongs to this turn."""
        base = self._options or sdk.ClaudeAgentOptions()
        _check_bypass(request.permission_mode, base.env)
        own: Any = base.mcp_servers
        if not isinstance(own, Mapping):
            raise TypeError("Give 'mcp_servers' as a dict, so that the yard's servers can be added.")

        def keep(line: str) -> None:
            stderr.append(line)
            del stderr[:-_STDERR_LINES]

        options = replace(
            base,
            # Without these two, the SDK offers Bash, Edit and Write, and reads settings of the folder.
            tools=[ASK_TOOL] if base.tools is None else base.tools,
            setting_sources=base.setting_sources or [],
            env={**_withheld(os.environ, base.env), **base.env},
            cwd=request.cwd or base.cwd,
            include_partial_messages=True,
            # Claude Code asks about every tool then, and the callback decides
            permission_mode="default" if request.permission_mode == RULES_MODE else request.permission_mode,
            model=request.model or base.model,
            resume=request.resume or None,
            can_use_tool=_permission_callback(sdk, request),
            system_prompt=base.system_prompt or claude_instructions(request.conversation),
            mcp_servers={**cast("Mapping[str, Any]", own), **request.servers},
            stderr=base.stderr or keep,
            # else the CLI reads each file that the person names as '@path', and obeys '/clear' and others
            verbatim_prompts=True,
        )
        return claude_options(options, request.conversation, hold_seconds=request.hold_s)

    async def _end(self, request: TurnRequest, message: Any, failure: str) -> None:
        """Take the last message of a query; `failure` is the SDK's word for what the model failed with.

        Raises:
            ToolError: It says that the turn failed.
        """
        if not message.is_error:
            await request.remember(message.session_id)
            return
        text = "; ".join(message.errors or ()) or message.result or message.subtype
        await self._check_lost(request, text)
        is_too_long = failure not in _FAILURES and _TOO_LONG in text.lower()
        code, hint = _FAILURES.get(_TOO_LONG if is_too_long else failure, _OTHER_FAILURE)
        reason = failure or message.subtype
        raise ToolError(code, shortened(text), hint=hint, may_have_run=True, reason=reason, blame="upstream")

    async def _explain(self, request: TurnRequest, error: Exception, stderr: list[str], *, has_started: bool) -> None:
        """Raise what a person reads of a failure of the SDK; the log has what the program said."""
        said = log_value(mask_text(str(error)[:_MAX_MESSAGE])), log_value(mask_text(" ".join(stderr)[-_MAX_MESSAGE:]))
        _log.warning("claude_failed error=%s stderr=%s", *said)
        await self._check_lost(request, " ".join([str(error), *stderr]))
        if not has_started:
            raise _not_started() from error
        status = getattr(error, "exit_code", None)
        ended = f" with the status {status}" if status is not None else ""
        message = f"Claude Code ended{ended} before the answer was complete."
        hint = "Send another message: the conversation goes on where Claude Code last saved it."
        raise ToolError(
            "upstream_unavailable", message, hint=hint, may_have_run=True, reason="process_ended"
        ) from error

    async def _check_lost(self, request: TurnRequest, text: str) -> None:
        """Forget a conversation that Claude Code no longer has, and say so."""
        if request.resume and _LOST in text:
            await request.remember("")
            hint = "Send the message again, which begins a new one."
            message = "Claude Code no longer has this conversation."
            raise ToolError("state_error", message, reason="conversation_lost", hint=hint)


def _withheld(ours: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server that Claude Code must not see, emptied: the SDK hands over all of them."""
    prefixes = [*_DOCUMENTED]
    for switch, names in _CLOUDS.items():
        is_on = configured.get(switch, ours.get(switch, "")).lower() not in _OFF
        prefixes += names if is_on else ()
    return {name: "" for name in ours if not is_inherited(name) and not name.startswith(tuple(prefixes))}


def _not_started() -> ToolError:
    hint = "The log of the server says why. See 'agents.cli_path', and whether the folder of the session still exists."
    return refused("runtime_unavailable", "Claude Code did not start.", hint=hint, reason="not_started")


def _check_number(version: object) -> None:
    """Refuse a version of Claude Code that is too old, or unknown.

    Raises:
        ToolError: `runtime_unavailable`.
    """
    number = re.match(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", str(version))
    if number is None or tuple(map(int, number.groups())) < _OLDEST:
        _log.warning("claude_too_old version=%s", log_value(str(version)[:_MAX_MESSAGE]))
        oldest = ".".join(map(str, _OLDEST))
        message = f"This Claude Code is older than {oldest}, and would read files that a message names."
        hint = "Update it, or leave 'agents.cli_path' out to use the one in the SDK."
        raise refused("runtime_unavailable", message, hint=hint, reason="too_old")


def _run_version(program: str) -> str:
    """Return what a program says to '--version'; one that cannot be run, fails or hangs raises an error."""
    ran = subprocess.run(  # noqa: S603 - the operator chose it
        [program, "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_VERSION_S,
        check=False,
        env={name: value for name, value in os.environ.items() if is_inherited(name)},
    )
    if ran.returncode:
        lines = ran.stderr.strip().splitlines() or [""]
        raise subprocess.SubprocessError(f"It ended with the status {ran.returncode}: {lines[-1]}")
    return ran.stdout.strip()


def _check_bypass(mode: str, env: Mapping[str, str]) -> None:
    """Refuse what Claude Code refuses, in plainer words.

    Raises:
        ToolError: It is to bypass permissions as root.
    """
    sandbox = env.get("IS_SANDBOX", os.environ.get("IS_SANDBOX"))
    if mode == "bypassPermissions" and os.geteuid() == 0 and sandbox != "1":
        hint = "Run the server as another user, or set IS_SANDBOX=1 in its environment if it runs in a sandbox."
        raise refused("not_supported", "Claude Code does not bypass permissions as root.", hint=hint)


async def _prompt(content: str) -> AsyncGenerator[dict[str, Any]]:
    """Yield the message as the SDK takes it beside in-process servers."""
    message = {"role": "user", "content": content}
    yield {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "default"}


def _permission_callback(sdk: Any, request: TurnRequest) -> Any:
    """Return the SDK's permission callback, which asks the person; cancelling it denies."""

    async def can_use_tool(name: str, arguments: dict[str, Any], context: Any) -> Any:
        call_id = context.tool_use_id or ""
        if name == ASK_TOOL:
            return await _ask_questions(sdk, request, arguments, call_id)
        tool, source = _tool_of(name, request.conversation)
        decision = await request.permit(tool, arguments, tool_call_id=call_id, source=source)
        if decision.is_yes:
            return sdk.PermissionResultAllow(updated_input=arguments)
        return sdk.PermissionResultDeny(message=decision.sentence())

    return can_use_tool


async def _ask_questions(sdk: Any, request: TurnRequest, arguments: dict[str, Any], call_id: str) -> Any:
    """Show the questions of the model as one form, and return them with the answers."""
    questions = cast("list[dict[str, Any]]", arguments.get("questions") or [])
    fields = {f"answer_{number}": _field(question) for number, question in enumerate(questions, 1)}
    form = {"type": "object", "properties": fields, "required": list(fields)}
    text = "\n".join(str(question.get("question", "")) for question in questions)
    decision = await request.ask(text, form, tool=ASK_TOOL, tool_call_id=call_id)
    if not decision.is_yes:
        return sdk.PermissionResultDeny(message=decision.sentence())
    given = [decision.content[name] for name in fields]
    texts = [", ".join(cast("list[str]", answer)) if isinstance(answer, list) else str(answer) for answer in given]
    answers = {str(question.get("question", "")): answer for question, answer in zip(questions, texts, strict=True)}
    return sdk.PermissionResultAllow(updated_input={**arguments, "answers": answers})


def _field(question: dict[str, Any]) -> dict[str, Any]:
    title = {"title": str(question.get("question", ""))}
    labels = [str(option.get("label", "")) for option in cast("list[dict[str, Any]]", question.get("options") or [])]
    if question.get("multiSelect"):
        return {"type": "array", "items": {"type": "string", "enum": labels}, **title}
    return {"type": "string", **({"enum": labels} if labels else {}), **title}


def _tool_of(name: str, conversation: Conversation) -> tuple[str, Source]:
    """Return the yard's name of a tool that the model calls, and whose tool it is."""
    if not name.startswith(f"mcp__{SERVER_NAME}_"):
        return name, "agent"
    known = [spec.name for spec in conversation.specs() if name.endswith(f"__{spec.name}")]
    return max(known, key=len, default=name.rpartition("__")[2]), "yard"


class _Messages:
    """Reads the SDK's messages as events: each text, call and result once."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._blocks: dict[tuple[str, int], str] = {}
        """The tool call of each content block that is streamed, by its agent and place."""
        self._tools: dict[str, str] = {}
        self._seen: set[tuple[str, str]] = set()
        """What came: the ids of messages whose text came in parts, and of calls with their arguments or results."""
        self.failure = ""
        """What the model failed with, in the SDK's words."""

    def read(self, kind: str, message: Any) -> Iterator[StreamEvent]:
        """Yield the events of a message."""
        if kind == "StreamEvent":
            yield from self._read_part(message.event, message.parent_tool_use_id or "")
        elif kind == "AssistantMessage" and message.error is not None:
            self.failure = message.error  # the last message has the text
        elif kind == "AssistantMessage":
            yield from self._read_whole(message, message.parent_tool_use_id or "")
        elif kind == "UserMessage" and isinstance(message.content, list):
            for block in cast("list[Any]", message.content):
                if type(block).__name__ == "ToolResultBlock":
                    yield from self._read_result(block)

    def _read_part(self, event: dict[str, Any], parent_id: str) -> Iterator[StreamEvent]:
        kind = event["type"]
        if kind == "message_start":
            self._seen.add(("text", event["message"].get("id", "")))
        elif kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
            block = event["content_block"]
            self._blocks[parent_id, event["index"]] = block["id"]
            yield from self._start(block["id"], block["name"], parent_id)
        elif kind == "content_block_delta":
            delta = event["delta"]
            call_id = self._blocks.get((parent_id, event["index"]))
            if delta["type"] == "text_delta":
                yield TextDelta(text=delta["text"], parent_id=parent_id)
            elif delta["type"] == "input_json_delta" and delta["partial_json"] and call_id is not None:
                yield ToolCallDelta(tool_call_id=call_id, arguments=delta["partial_json"])

    def _read_whole(self, message: Any, parent_id: str) -> Iterator[StreamEvent]:
        """Read a message that is complete: what was not streamed, and the arguments of calls."""
        for block in message.content:
            kind = type(block).__name__
            if kind == "TextBlock" and ("text", message.message_id) not in self._seen:
                yield TextDelta(text=block.text, parent_id=parent_id)
            elif kind == "ToolUseBlock":
                yield from self._start(block.id, block.name, parent_id)
                if self._is_new("arguments", block.id):
                    yield ToolCallEnd(tool_call_id=block.id, arguments=block.input)

    def _start(self, call_id: str, name: str, parent_id: str) -> Iterator[StreamEvent]:
        if call_id not in self._tools:
            tool, source = _tool_of(name, self._conversation)
            self._tools[call_id] = tool
            yield ToolCallStart(tool_call_id=call_id, tool=tool, source=source, parent_id=parent_id)

    def _read_result(self, block: Any) -> Iterator[StreamEvent]:
        """Read a result; one of a call that this turn did not make is a replay of an earlier turn."""
        call_id = block.tool_use_id
        if call_id in self._tools and self._is_new("result", call_id):
            tool, text = self._tools[call_id], _text(block.content)
            yield ToolResult(tool_call_id=call_id, tool=tool, text=text, is_error=block.is_error is True)

    def _is_new(self, kind: str, call_id: str) -> bool:
        is_new = (kind, call_id) not in self._seen
        self._seen.add((kind, call_id))
        return is_new


def _text(content: object) -> str:
    if isinstance(content, list):
        blocks = cast("list[dict[str, Any]]", content)
        return "\n".join(str(block.get("text", f"[{block.get('type')}]")) for block in blocks)
    return "" if content is None else str(content)
