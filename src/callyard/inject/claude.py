"""The yard in the Claude Agent SDK: in-process MCP servers, made anew for each query.

The SDK forwards neither progress nor log lines nor elicitation of such servers to its CLI. They go to the host instead,
by the options of the conversation.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Unpack, cast

import msgspec

from callyard.inject.plain import Conversation, ConversationOptions, import_sdk
from callyard.model.profile import METATOOLS
from callyard.model.spec import ToolSpec
from callyard.wire.params import custom_meta
from callyard.wire.results import ResultEncoder, Server, tool_item
from callyard.wire.versions import LATEST_HANDSHAKE
from callyard.yard import Yard

__all__ = [
    "SERVER_NAME",
    "check_server_names",
    "claude_instructions",
    "claude_options",
    "claude_servers",
    "claude_tool_name",
]

SERVER_NAME: Final = "yard"
"""The server's name, which is part of the name of every tool.

It, and names that begin with it and '_', are reserved.
"""
_CLIENT: Final = "claude-agent-sdk"
_MOST_TOOLS: Final = 10
_HOLD_S: Final = 600.0
_GRACE_S: Final = 30.0
_TIMEOUT: Final = "MCP_TOOL_TIMEOUT"
_MAX_TIMEOUT_MS: Final = 2**31 - 1  # the CLI takes no more
_HINT_LENGTH: Final = 120
_SOURCE_LENGTH: Final = 40  # a whole name has at most 128 characters: the CLI drops a tool with a longer one silently
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def claude_tool_name(tool: str, server: str = SERVER_NAME) -> str:
    """Return the name by which the model calls a tool: the bare one cannot be called."""
    return f"mcp__{server}__{tool}"


def claude_servers(
    yard: Yard | Conversation,
    *,
    servers: Mapping[str, Any] | None = None,
    most_tools: int = _MOST_TOOLS,
    always_load: Iterable[str] = (),
    **options: Unpack[ConversationOptions],
) -> dict[str, Any]:
    """Return the value of `mcp_servers` for one query: your own servers, and the yard's, which none of them can shadow.

    If more than `most_tools` tools are listed, those of packs and upstreams get a server for each source. The CLI's
    tool search gets a hint for each tool; the tools in `always_load` and the metatools need no search.

    Raises:
        ValueError: One of your servers has a reserved name.
    """
    conversation = Conversation.of(yard, _CLIENT, options)
    check_server_names(servers or ())
    groups = _groups(conversation, most_tools)
    loaded = frozenset(always_load)
    return {
        **(servers or {}),
        **{name: _server(name, conversation, groups, loaded) for name in sorted(set(groups.values()))},
    }


def check_server_names(names: Iterable[str]) -> None:
    """Check that none of your servers has a name that is reserved for the yard.

    Raises:
        ValueError: One has.
    """
    for name in names:
        safe = _UNSAFE.sub("_", name)
        if safe == SERVER_NAME or safe.startswith(f"{SERVER_NAME}_"):
            raise ValueError(f"The name '{name}' of an MCP server is reserved for the yard.")


def claude_options(
    options: Any,
    yard: Yard | Conversation,
    *,
    most_tools: int = _MOST_TOOLS,
    always_load: Iterable[str] = (),
    hold_seconds: float = _HOLD_S,
    **conversation: Unpack[ConversationOptions],
) -> Any:
    """Return a copy of `ClaudeAgentOptions` for one query, with the yard's servers and a long enough timeout.

    Everything else stays as it is; nothing is added to `allowed_tools`, which is a list of tools that nobody is asked
    about. `hold_seconds` is how long a call may wait for a person. `MCP_TOOL_TIMEOUT` is raised in the query's own
    environment only.

    Raises:
        TypeError: The MCP servers of the options are in a file, where the yard's cannot be added.
    """
    if not isinstance(options.mcp_servers, Mapping):
        raise TypeError("Give 'mcp_servers' as a dict, so that the yard's servers can be added.")
    chat = Conversation.of(yard, _CLIENT, conversation)
    own = cast("Mapping[str, Any]", options.mcp_servers)
    servers = claude_servers(chat, servers=own, most_tools=most_tools, always_load=always_load)
    inherited = options.env.get(_TIMEOUT, os.environ.get(_TIMEOUT, ""))
    timeout = max(_timeout_ms(chat, hold_seconds), int(inherited) if inherited.isdecimal() else 0)
    return replace(options, mcp_servers=servers, env={**options.env, _TIMEOUT: str(min(timeout, _MAX_TIMEOUT_MS))})


def claude_instructions(
    yard: Yard | Conversation, *, most_tools: int = _MOST_TOOLS, **options: Unpack[ConversationOptions]
) -> str:
    """Return a short text for the system prompt, which names the tools as the model must call them."""
    conversation = Conversation.of(yard, _CLIENT, options)
    groups = _groups(conversation, most_tools)
    return conversation.instructions(lambda tool: claude_tool_name(tool, groups.get(tool, SERVER_NAME)))


def _groups(conversation: Conversation, most_tools: int) -> dict[str, str]:
    """Return the server of each listed tool."""
    specs = conversation.specs()
    own = {conversation.yard.name, METATOOLS}
    if len(specs) <= most_tools:
        return {spec.name: SERVER_NAME for spec in specs} or {"": SERVER_NAME}
    return {spec.name: SERVER_NAME if spec.source in own else _source_server(spec.source) for spec in specs}


def _source_server(source: str) -> str:
    return f"{SERVER_NAME}_{_UNSAFE.sub('_', source)[:_SOURCE_LENGTH].strip('_')}"


def _timeout_ms(conversation: Conversation, hold_seconds: float) -> int:
    """Return the longest time that a call of a listed tool may take, with the wait for a person.

    The yard itself ends the call sooner.
    """
    default = conversation.yard.limits.timeout
    timeouts = [default if spec.timeout is None else spec.timeout for spec in conversation.specs()] or [default]
    return _MAX_TIMEOUT_MS if 0 in timeouts else int((max(timeouts) + hold_seconds + _GRACE_S) * 1000)


def _server(
    name: str, conversation: Conversation, groups: Mapping[str, str], always_load: frozenset[str]
) -> dict[str, Any]:
    """Return one server as the SDK takes it; `mcp` calls it in tasks that a cancelled request cancels."""
    types, lowlevel = import_sdk("mcp.types", extra="claude"), import_sdk("mcp.server", extra="claude")
    yard = conversation.yard
    encoder = ResultEncoder(LATEST_HANDSHAKE, Server(yard.name, yard.version))

    async def list_tools(_: Any, __: Any) -> Any:
        mine = [spec for spec in conversation.specs() if groups.get(spec.name, SERVER_NAME) == name]
        return types.ListToolsResult.model_validate({"tools": _items(mine, always_load)})

    async def call_tool(_: Any, params: Any) -> Any:
        meta = custom_meta(params.meta) if params.meta else None  # the CLI's id of the call is in it
        envelope = await conversation.call(params.name, params.arguments, meta=meta)
        return types.CallToolResult.model_validate_json(encoder.outcome(envelope))

    server = lowlevel.Server(
        yard.name,
        version=yard.version,
        instructions=yard.instructions_for(conversation.profile) if name == SERVER_NAME else None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    return {"type": "sdk", "name": name, "instance": server}


def _items(specs: Sequence[ToolSpec], always_load: frozenset[str]) -> list[dict[str, Any]]:
    """Return tools as MCP lists them, with what the CLI's tool search reads."""
    items: list[dict[str, Any]] = []
    for spec in specs:
        item = msgspec.json.decode(tool_item(spec, LATEST_HANDSHAKE))
        loaded = {"anthropic/alwaysLoad": True} if spec.source == METATOOLS or spec.name in always_load else {}
        items.append({**item, "_meta": {**item.get("_meta", {}), "anthropic/searchHint": _hint(spec), **loaded}})
    return items


def _hint(spec: ToolSpec) -> str:
    """Return the first sentence of a description, cut at a word."""
    sentence = re.split(r"(?<=[.!?])\s|\n", spec.description.strip(), maxsplit=1)[0] or spec.name
    return sentence if len(sentence) <= _HINT_LENGTH else sentence[: _HINT_LENGTH + 1].rsplit(" ", 1)[0][:_HINT_LENGTH]
