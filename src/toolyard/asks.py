"""Asks: what a call may want to know of the client, or of the person or model behind it, while it runs.

They are data in the words of MCP; how they reach the client, and in which protocol era, is the door's business.
"""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, cast

import msgspec

from toolyard.errors import ToolError
from toolyard.schema import SchemaValidator

__all__ = ["ASK_METHODS", "OWN_REASONS", "Ask", "AskMethod", "Question", "content_of", "telling_whether_it_ran", "unanswerable"]

AskMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]

OWN_REASONS: Final = frozenset({"declined", "dismissed"})
"""Reasons of ours, which a tool that asks need not declare."""

_CAPABILITIES: Final[dict[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
ASK_METHODS: Final = frozenset(_CAPABILITIES)
"""All that a client can be asked."""


_MODES: Final = ("form", "url")


class Ask(msgspec.Struct, frozen=True):
    """One thing asked of the client."""

    method: AskMethod
    params: dict[str, Any] = {}

    @classmethod
    def person(cls, text: str, schema: Mapping[str, Any]) -> "Ask":
        """Return a form for the person: a text, and the flat object that is wanted."""
        return cls("elicitation/create", {"mode": "form", "message": text, "requestedSchema": dict(schema)})

    @classmethod
    def model(cls, text: str, *, max_tokens: int, system: str | None = None) -> "Ask":
        """Return a prompt for the client's model."""
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        extra = {} if system is None else {"systemPrompt": system}
        return cls("sampling/createMessage", {"messages": messages, "maxTokens": max_tokens, **extra})

    @classmethod
    def roots(cls) -> "Ask":
        """Return the question which folders the client works in."""
        return cls("roots/list")

    @property
    def capability(self) -> str:
        """Return what a client must have declared to be asked this."""
        return _CAPABILITIES[self.method]

    def lacking(self, capabilities: Mapping[str, Any] | Collection[str]) -> str | None:
        """Return what a client lacks to be asked this, if anything: a capability, or a mode of it, such as `elicitation.form`.

        A client that has elicitation and names no mode has forms, as all had before there were others.
        """
        name = self.capability
        if name not in capabilities:
            return name
        told = cast("object", capabilities[name]) if isinstance(capabilities, Mapping) else None
        modes = [mode for mode in _MODES if isinstance(told, dict) and mode in told] if name == "elicitation" else []
        mode = self.params.get("mode", "form") if name == "elicitation" else None
        return None if mode is None or mode in (modes or ("form",)) else f"{name}.{mode}"


class Question(msgspec.Struct, frozen=True):
    """A question that a tool always asks before it runs, so that it may be asked again without harm."""

    text: str
    schema: dict[str, Any]
    key: str = "answer"


def unanswerable(asks: Mapping[str, Ask], capabilities: Mapping[str, Any] | Collection[str] = ()) -> ToolError:
    """Return the failure of asking a client what it does not say it can answer, or cannot be asked here; it names what the client lacks."""
    missing = sorted({lacking for ask in asks.values() if (lacking := ask.lacking(capabilities)) is not None})
    if not missing:
        message = "The tool has a question, and its request leaves no way to ask it: its answer must be plain JSON."
        return ToolError("not_supported", message, hint="Accept 'text/event-stream', and serve without 'json_response'.")
    told = " and ".join(f"'{name}'" for name in missing)
    return ToolError("not_supported", f"The tool has a question, and this client does not say that it has {told}.", capabilities=missing)


def content_of(ask: Ask, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a person filled in.

    Raises:
        ToolError: `approval_denied` if the person declined, `cancelled` if it was dismissed, `invalid_input` if it does not fit.
    """
    action = result.get("action")
    if action == "decline":
        raise ToolError("approval_denied", "The person declined to answer.", reason="declined")
    if action != "accept":
        raise ToolError("cancelled", "The question was dismissed without an answer.", reason="dismissed")
    content = result.get("content")
    filled = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    issues = SchemaValidator(ask.params["requestedSchema"]).issues(filled)
    if issues:
        raise ToolError("invalid_input", f"The answer to the question does not fit: {issues[0].message}", issues=issues)
    return filled


@contextmanager
def telling_whether_it_ran(*, running: bool) -> Generator[None]:
    """Let a question that fails say whether its tool had begun, if it does not itself."""
    try:
        yield
    except ToolError as error:
        if error.may_have_run is None:
            error.may_have_run = running
        raise
