"""Stream events: what happens in one turn of an agent, the same for every runtime.

Each is a frozen struct that is written as one JSON object; `type` says which. The last event of a turn is always
`done`.
"""

import re
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "ApprovalRequired",
    "ApprovalResolved",
    "Decision",
    "Done",
    "Error",
    "Question",
    "StreamEvent",
    "TextDelta",
    "ToolCallDelta",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolProgress",
    "ToolResult",
    "encode_stream_event",
    "type_of",
]

Outcome = Literal["approved", "denied", "answered", "declined", "expired", "cancelled"]
Source = Literal["yard", "agent"]
"""Whose tool it is: the yard's, or one that the agent SDK brings itself."""
Status = Literal["completed", "failed", "cancelled"]
_REFUSALS: Final = {
    "expired": "Nobody answered in time, so the call was refused.",
    "cancelled": "The turn was cancelled, so the call was refused.",
}


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


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
    source: Source = "yard"
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


class ToolProgress(_Event, frozen=True, kw_only=True):
    """A tool of the yard says how far it is."""

    tool_call_id: str
    done: float
    total: float | None = None
    text: str = ""


class ToolResult(_Event, frozen=True, kw_only=True):
    """The result of a tool call, as the model reads it; each call has one at most."""

    tool_call_id: str
    tool: str
    text: str
    """The envelope of the call as JSON for a tool of the yard."""
    is_error: bool = False


class _Interaction(_Event, frozen=True, kw_only=True):
    interaction_id: str
    tool_call_id: str
    tool: str
    text: str
    """What is asked, in a few lines for a person."""
    parks_at: float
    """When the countdown ends, in seconds since the epoch; after that the call waits without one."""
    expires_at: float
    """When the call is refused, or the question is withdrawn."""


class ApprovalRequired(_Interaction, frozen=True, kw_only=True):
    """A person must approve or deny a tool call, which waits."""

    arguments: dict[str, Any]
    source: Source = "yard"


class Question(_Interaction, frozen=True, kw_only=True):
    """The agent or a tool asks the person to fill in a form."""

    form: dict[str, Any]
    """The JSON Schema of the answer, as MCP's elicitation has it."""


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
    message: str
    hint: str = ""
    retryable: bool = False


class Done(_Event, frozen=True, kw_only=True):
    """The turn is over; no event follows."""

    status: Status
    elapsed_ms: int = 0


StreamEvent = (
    TextDelta
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | ToolProgress
    | ToolResult
    | ApprovalRequired
    | ApprovalResolved
    | Question
    | Error
    | Done
)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How an interaction ended."""

    outcome: Outcome
    reason: str = ""
    by: str = ""
    content: dict[str, Any] = {}

    @property
    def is_yes(self) -> bool:
        """Return whether the call may run, or the question is answered."""
        return self.outcome in {"approved", "answered"}

    def sentence(self) -> str:
        """Return what the model reads of a refusal."""
        return _REFUSALS.get(self.outcome) or f"The person refused. {self.reason}".rstrip()


def encode_stream_event(event: StreamEvent) -> bytes:
    """Return an event as JSON."""
    return msgspec.json.encode(event, enc_hook=str)


def type_of(event: StreamEvent) -> str:
    """Return the value of `type` of an event."""
    return str(event.__struct_config__.tag)
