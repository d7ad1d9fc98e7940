"""Stream events: what happens in one turn of an agent, the same for every runtime.

Each is a frozen struct that is written as one JSON object; `type` says which. The last event of a turn is always `done`.
"""

import re
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "ApprovalRequired",
    "ApprovalResolved",
    "Done",
    "Error",
    "Question",
    "StreamEvent",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolResult",
    "encode_stream_event",
    "type_of",
]

Outcome = Literal["approved", "denied", "answered", "declined", "expired", "cancelled"]
"""How an interaction ended."""
Source = Literal["yard", "agent"]
"""Whose tool it is: the yard's, or one that the agent SDK brings itself."""
Status = Literal["completed", "failed", "cancelled"]
_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


def _tag(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_tag):
    """What every event has."""


class TextDelta(_Event, frozen=True, kw_only=True):
    """A part of the text that the model writes."""

    text: str
    parent_id: str = ""
    """The tool call whose sub-agent writes it; empty for the agent itself."""


class ToolCallStart(_Event, frozen=True, kw_only=True):
    """The model begins a tool call."""

    tool_call_id: str
    tool: str
    """The name of the tool: in the yard, or in the SDK."""
    source: Source = "yard"
    """Whether it is a tool of the yard or of the agent SDK."""
    parent_id: str = ""
    """The tool call whose sub-agent makes it; empty for the agent itself."""


class ToolCallDelta(_Event, frozen=True, kw_only=True):
    """A part of the arguments, as JSON text; a call without arguments has none."""

    tool_call_id: str
    arguments: str


class ToolCallEnd(_Event, frozen=True, kw_only=True):
    """The arguments are complete; the tool has not run yet."""

    tool_call_id: str
    arguments: dict[str, Any]
    """All arguments, also if there were no deltas."""


class ToolResult(_Event, frozen=True, kw_only=True):
    """The result of a tool call, as the model reads it; each call has one at most."""

    tool_call_id: str
    tool: str
    text: str
    """The envelope of the call as JSON for a tool of the yard."""
    is_error: bool = False


class ApprovalRequired(_Event, frozen=True, kw_only=True):
    """A person must approve or deny a tool call, which waits."""

    interaction_id: str
    tool_call_id: str
    tool: str
    arguments: dict[str, Any]
    text: str
    """What is asked, in a few lines for a person."""
    source: Source = "yard"
    """Whether it is a tool of the yard or of the agent SDK."""
    parks_at: float
    """When the countdown ends, in seconds since the epoch; after that the call waits without one."""
    expires_at: float
    """When the call is refused."""


class Question(_Event, frozen=True, kw_only=True):
    """The agent or a tool asks the person to fill in a form."""

    interaction_id: str
    tool_call_id: str
    tool: str
    text: str
    form: dict[str, Any]
    """The JSON Schema of the answer, as MCP's elicitation has it."""
    parks_at: float
    """When the countdown ends, in seconds since the epoch."""
    expires_at: float
    """When the question is withdrawn."""


class ApprovalResolved(_Event, frozen=True, kw_only=True):
    """An approval or a question is settled."""

    interaction_id: str
    outcome: Outcome
    reason: str = ""
    """What the person said."""
    by: str = ""
    """The identity that decided; empty if nobody did."""


class Error(_Event, frozen=True, kw_only=True):
    """The turn failed, or events are missing."""

    code: str
    """One of the codes of failures."""
    message: str
    hint: str = ""
    retryable: bool = False
    """Whether the same message may succeed later."""


class Done(_Event, frozen=True, kw_only=True):
    """The turn is over; no event follows."""

    status: Status
    elapsed_ms: int = 0


StreamEvent = (
    TextDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | ToolResult | ApprovalRequired | ApprovalResolved | Question | Error | Done
)
"""Any event of a turn."""
_encode = msgspec.json.Encoder(enc_hook=str).encode


def encode_stream_event(event: StreamEvent) -> bytes:
    """Return an event as JSON."""
    return _encode(event)


def type_of(event: StreamEvent) -> str:
    """Return the value of `type` of an event."""
    return str(event.__struct_config__.tag)
