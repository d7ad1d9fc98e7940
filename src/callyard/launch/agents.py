"""Agents of a server: the manager, its runtime and its HTTP API, as the section `[agents]` says."""

import warnings
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from callyard.agents.api import AgentApi
from callyard.agents.claude import ClaudeRuntime
from callyard.agents.manager import AgentManager, AgentOptions
from callyard.agents.openai import OpenAIRuntime
from callyard.agents.turn import AgentRuntime
from callyard.config import Config
from callyard.config.settings import AgentSettings
from callyard.inject.plain import import_sdk
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.mounts import need_token
from callyard.transports.http.app import Mount
from callyard.yard import Yard

__all__ = ["Agents"]

_CLAUDE_ONLY: Final = ("tools", "setting_sources", "cli_path", "roots")


class Agents:
    """What `callyard serve --agents` mounts beside '/mcp'."""

    def __init__(self, yard: Yard, config: Config, *, token: str = "") -> None:
        """Check the settings and load the SDK; with a token, callers of the API must have it.

        Raises:
            LaunchError: The SDK is not installed, a root is no folder, or the server cannot run agents.
        """
        settings, serving = config.settings.agents, config.settings.serve
        if serving.transport != "http":
            raise LaunchError(f"'--agents' needs '--transport http': '{serving.transport}' has no place for its API.")
        if serving.workers > 1:
            raise LaunchError("'--agents' needs one worker, because a turn belongs to one process.")
        useless = [f"'agents.{name}'" for name in _CLAUDE_ONLY if f"agents.{name}" in config.origins]
        if settings.runtime == "openai" and useless:
            raise LaunchError(f"The runtime 'openai' has no use for {useless[0]}.")
        with as_launch_error(ImportError):
            runtime = _make_runtime(settings)
            runtime.check()
        options = AgentOptions(
            permission_mode=settings.permission_mode,
            model=settings.model,
            countdown_s=settings.countdown_seconds,
            park_s=settings.park_seconds,
            turn_s=settings.turn_seconds,
            turns=settings.turns,
            ask_before_destroy=serving.ask_before_destroy,
        )
        self.manager = AgentManager(yard, runtime, options)
        api = AgentApi(self.manager, roots=_roots(settings), keep_alive=serving.keep_alive)
        self.mounts: Mapping[str, Mount] = need_token(api.mounts, token) if token else api.mounts
        self.api = api
        """For the console, whose people are known already."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Run agents while the context is open."""
        async with self.manager:
            yield


def _make_runtime(settings: AgentSettings) -> AgentRuntime:
    if settings.runtime == "openai":
        return OpenAIRuntime()
    sdk: Any = import_sdk("claude_agent_sdk", extra="claude")
    # The callback is for questions, too, which Claude Code asks in every mode.
    warnings.filterwarnings("ignore", category=sdk.CanUseToolShadowedWarning)
    options = sdk.ClaudeAgentOptions(
        tools=list(settings.tools),
        setting_sources=list(settings.setting_sources),
        cli_path=settings.cli_path,
        strict_mcp_config=True,
    )
    return ClaudeRuntime(options)


def _roots(settings: AgentSettings) -> list[Path]:
    """Return the folders that agents may work in.

    Raises:
        LaunchError: One does not exist.
    """
    roots = [Path(root).expanduser() for root in settings.roots] or [Path.cwd()]
    for root in roots:
        if not root.is_dir():
            raise LaunchError(f"The root '{root}' of agents is no folder.")
    return roots
