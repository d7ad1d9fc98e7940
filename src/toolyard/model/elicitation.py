"""Asks: what a call may want to know of the client, or of the person or model behind it, while it runs.

They are data in the words of MCP; how they reach the client, and in which protocol era, is the door's business.
"""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, cast

import msgspec

from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.schema import SchemaError, SchemaValidator, check_schema

__all__ = [
    "CLIENT_METHODS",
    "OWN_REASONS",
    "ClientMethod",
    "ClientRequest",
    "Confirmation",
    "check_form",
    "content_of",
    "telling_whether_it_ran",
    "unanswerable",
]

ClientMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]

OWN_REASONS: Final = frozenset({"declined", "dismissed"})
"""Reasons of ours, which a tool that asks need not declare."""

_CAPABILITIES: Final[dict[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
CLIENT_METHODS: Final = frozenset(_CAPABILITIES)
"""All that a client can be asked."""


_MODES: Final = ("form", "url")
_FORMATS: Final = ("date", "date-time", "email", "uri")
_USUAL: Final = Limits()


class ClientRequest(msgspec.Struct, frozen=True):
    """One thing asked of the client."""

    method: ClientMethod
    params: dict[str, Any] = {}

    @classmethod
    def person(cls, text: str, schema: Mapping[str, Any]) -> "ClientRequest":
        """Return a form for the person: a text, and the flat object that is wanted.

        Raises:
            ToolError: `internal_error`, because no form can be made of the schema.
        """
        try:
            check_form(schema)
        except SchemaError as error:
            raise ToolError("internal_error", f"The tool has a question that cannot be asked: {error}.", blame="tool") from error
        return cls("elicitation/create", {"mode": "form", "message": text, "requestedSchema": dict(schema)})

    @classmethod
    def model(cls, text: str, *, max_tokens: int, system: str | None = None) -> "ClientRequest":
        """Return a prompt for the client's model."""
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        extra = {} if system is None else {"systemPrompt": system}
        return cls("sampling/createMessage", {"messages": messages, "maxTokens": max_tokens, **extra})

    @classmethod
    def roots(cls) -> "ClientRequest":
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


class Confirmation(msgspec.Struct, frozen=True):
    """A question that a tool always asks before it runs, so that it may be asked again without harm."""

    text: str
    schema: dict[str, Any]
    key: str = "answer"


def check_form(schema: object, limits: Limits = _USUAL) -> None:
    """Check that MCP has a form for a schema: an object whose properties are plain.

    Raises:
        SchemaError: It has none.
    """
    form = _mapping(schema)
    fields = form.get("properties")
    if form.get("type") != "object" or not isinstance(fields, Mapping):
        raise SchemaError("the schema must be of type 'object' and have 'properties'")
    for name, field in cast("Mapping[object, object]", fields).items():
        wrong = _wrong_with(_mapping(field))
        if wrong:
            raise SchemaError(f"the field '{name}' {wrong}")
    check_schema(dict(form), max_bytes=limits.schema_bytes, max_depth=limits.schema_depth)


def _wrong_with(field: Mapping[str, Any]) -> str:
    """Return why there is no such field in a form, or nothing if there is."""
    kind = field.get("type")
    if kind == "array":
        items = _mapping(field.get("items"))
        chosen = _are_texts(items.get("enum")) or _are_titled(items.get("anyOf"))
        return "" if chosen else "is a list of something else than a choice of texts"
    if kind not in ("boolean", "integer", "number", "string"):
        return "is no text, number, boolean or choice of texts"
    if kind == "string" and field.get("format", "uri") not in _FORMATS:
        return f"has a format that is none of {', '.join(repr(known) for known in _FORMATS)}"
    if kind == "string" and not (_are_texts(field.get("enum", [])) and _are_titled(field.get("oneOf", []))):
        return "has choices that are no texts"
    return ""


def _mapping(told: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", told) if isinstance(told, Mapping) else {}


def _are_texts(choices: object) -> bool:
    return isinstance(choices, list | tuple) and all(isinstance(choice, str) for choice in cast("list[object]", choices))


def _are_titled(choices: object) -> bool:
    return isinstance(choices, list | tuple) and _are_texts([_mapping(choice).get("const") for choice in cast("list[object]", choices)])


def unanswerable(
    asks: Mapping[str, ClientRequest], capabilities: Mapping[str, Any] | Collection[str] = (), *, stateless: bool = False
) -> ToolError:
    """Return the failure of asking a client what it does not say it can answer, or cannot be asked here; it names what the client lacks."""
    if stateless:
        message = "The tool has a question, and a stateless server cannot ask a client that begins with a handshake."
        return ToolError("not_supported", message, hint="Use a client of MCP 2026-07-28, or serve without 'stateless'.")
    missing = sorted({lacking for ask in asks.values() if (lacking := ask.lacking(capabilities)) is not None})
    if not missing:
        message = "The tool has a question, and its request leaves no way to ask it: its answer must be plain JSON."
        return ToolError("not_supported", message, hint="Accept 'text/event-stream', and serve without 'json_response'.")
    told = " and ".join(f"'{name}'" for name in missing)
    return ToolError("not_supported", f"The tool has a question, and this client does not say that it has {told}.", capabilities=missing)


def content_of(ask: ClientRequest, result: Mapping[str, Any]) -> dict[str, Any]:
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
