"""The interface of agent runtimes: a runtime runs one turn with an agent SDK.

A runtime knows its SDK, and gets everything else with the `TurnRequest`: the tools, the store and the ways to ask a person. It knows
no HTTP.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from callyard.agents.events import Source, StreamEvent
from callyard.agents.interactions import Decision
from callyard.inject.plain import Conversation
from callyard.state.store import Store

__all__ = ["AgentRuntime", "AskPerson", "Permit", "TurnRequest"]


class Permit(Protocol):
    """Asks whether a tool call may run, as the permission mode says."""

    async def __call__(self, tool: str, arguments: dict[str, Any], *, tool_call_id: str, source: Source) -> Decision:
        """Return the decision."""
        ...


class AskPerson(Protocol):
    """Asks the person to fill in a form."""

    async def __call__(self, text: str, form: Mapping[str, Any], *, tool: str, tool_call_id: str) -> Decision:
        """Return the decision, whose content is the filled form."""
        ...


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One message to an agent, and what its turn may use."""

    content: str
    conversation: Conversation
    """The yard's tools, for the session's caller and scope."""
    permit: Permit
    ask: AskPerson
    remember: Callable[[str], Awaitable[None]]
    """Stores the id by which the SDK finds the conversation again."""
    store: Store
    """Where a runtime keeps the conversation, if its SDK keeps none."""
    store_key: str
    resume: str = ""
    """The id of the SDK's conversation; empty for a new one."""
    permission_mode: str = "default"
    model: str | None = None
    cwd: str | None = None
    servers: Mapping[str, Any] = {}
    """MCP servers of the host, besides the yard."""
    hold_s: float = 0.0
    """How long a tool call may wait for a person."""


class AgentRuntime(Protocol):
    """Runs turns with one agent SDK."""

    @property
    def name(self) -> str:
        """Return the name of the runtime."""
        ...

    @property
    def has_folder(self) -> bool:
        """Return whether its agents work in a folder."""
        ...

    def check_servers(self, names: Iterable[str]) -> None:
        """Check that the host can add MCP servers of these names.

        Raises:
            ValueError: It cannot.
        """
        ...

    def check(self) -> None:
        """Check that the SDK is there.

        Raises:
            ImportError: It is not installed.
        """
        ...

    async def forget(self, sdk_session_id: str) -> None:
        """Delete what the SDK keeps of a conversation."""
        ...

    def run(self, request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        """Run one turn, and yield what happens; closing the generator ends the turn and its processes.

        Raises:
            ToolError: The turn failed, with the code and the sentence for the person.
        """
        ...
