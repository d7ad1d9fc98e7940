"""Requests to the client while a call runs: elicitation, sampling and roots.

They are data in MCP's own format. How they reach the client, and in which protocol version, is up to the channel.
"""

import os
import re
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, Protocol, TypeVar, cast, get_args, runtime_checkable

import msgspec

from callyard._internal.converted import as_object
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.schema import SchemaError, SchemaValidator, check_schema

__all__ = [
    "APPROVAL_REQUIRED",
    "CLIENT_METHODS",
    "OWN_REASONS",
    "STORE_UNAVAILABLE",
    "ClientMethod",
    "ClientRequest",
    "Confirmation",
    "RefusalReason",
    "check_accepted",
    "check_form",
    "form_content",
    "form_of",
    "host_of",
    "instance_of",
    "require_support",
    "set_may_have_run",
    "unsupported_by_client",
    "url_required",
]

T = TypeVar("T")
ClientMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]

APPROVAL_REQUIRED: Final = "approval_required"
"""The status of a call that waits for the decision of a person."""
STORE_UNAVAILABLE: Final = "store_unavailable"
"""The reason of `overloaded` while the store cannot be used, and of `state_error` if only a person can mend it."""
RefusalReason = Literal[
    "queue_full",
    "not_started",
    "rate_of_all",
    "rate_of_caller",
    "rate_of_tool",
    "session_calls",
    "session_tokens",
    "caller_calls",
    "caller_tokens",
    "store_unavailable",
]
"""Why a call was refused by a limit, in `details.reason` and in the log."""
OWN_REASONS: Final = frozenset(
    {
        "declined",
        "dismissed",
        "session_changed",
        "already_used",
        "arguments_changed",
        "url_required",
        "not_here",
        "replica_gone",
        *get_args(RefusalReason),
    }
)
"""Reasons that a tool need not declare, because the yard sets them."""

CLIENT_METHODS: Final[frozenset[str]] = frozenset(get_args(ClientMethod))

_MODES: Final = ("form", "url")
_URL: Final = re.compile(
    r"(?i:https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*)?"
)
"""An address without a user name, a backslash, spaces and letters outside ASCII, in all of which a host can hide."""
_URL_CHARACTERS: Final = 8192
_ID_BYTES: Final = 8
_FORMATS: Final = ("date", "date-time", "email", "uri")
_DEFAULT_LIMITS: Final = Limits()


class ClientRequest(msgspec.Struct, frozen=True):
    """One request to the client."""

    method: ClientMethod
    params: dict[str, Any] = {}
    approval_id: str = ""
    """The approval that the yard's gate asks about. Only the gate sets it, and clients do not get it."""

    @classmethod
    def person(cls, text: str, schema: Mapping[str, Any]) -> "ClientRequest":
        """Return an elicitation: a text for the person, and the schema of the form to fill in.

        Raises:
            ToolError: `internal_error`: the schema cannot be shown as a form.
        """
        try:
            check_form(schema)
        except SchemaError as error:
            message = f"The tool has a question that cannot be asked: {error}."
            raise ToolError("internal_error", message, blame="tool") from error
        return cls("elicitation/create", {"mode": "form", "message": text, "requestedSchema": dict(schema)})

    @classmethod
    def page(cls, url: str, text: str, *, elicitation_id: str = "") -> "ClientRequest":
        """Return an elicitation by URL: a text for the person, and the address of a page to open.

        Raises:
            ToolError: `internal_error`: the address is none that a person may be asked to open.
        """
        if not host_of(url):
            message = "The tool asks to open an address that is no plain 'http' or 'https' one."
            raise ToolError("internal_error", message, blame="tool")
        page_id = elicitation_id or os.urandom(_ID_BYTES).hex()
        return cls("elicitation/create", {"mode": "url", "message": text, "url": url, "elicitationId": page_id})

    @classmethod
    def model(cls, text: str, *, max_tokens: int, system: str | None = None) -> "ClientRequest":
        """Return a sampling request: a prompt for the client's model."""
        messages = [{"role": "user", "content": {"type": "text", "text": text}}]
        extra = {} if system is None else {"systemPrompt": system}
        return cls("sampling/createMessage", {"messages": messages, "maxTokens": max_tokens, **extra})

    @classmethod
    def roots(cls) -> "ClientRequest":
        """Return the request for the folders that the client works in."""
        return cls("roots/list")

    @property
    def capability(self) -> str:
        """Return the capability that a client must declare to be asked this."""
        return self.method.partition("/")[0]

    def missing_capability(self, capabilities: Mapping[str, Any] | Collection[str]) -> str | None:
        """Return the capability, or the mode of one such as `elicitation.form`, that the client lacks, if any.

        A client that declares elicitation without a mode supports forms, the only mode of older versions. Where the
        capabilities are names, `elicitation` stands for forms and `elicitation.url` for pages.
        """
        name, mode = self.capability, self.params.get("mode", "form")
        if not isinstance(capabilities, Mapping):
            needed = name if name != "elicitation" or mode == "form" else f"{name}.{mode}"
            return None if needed in capabilities else needed
        if name not in capabilities:
            return name
        if name != "elicitation":
            return None
        declared = cast("object", capabilities[name])
        modes = [known for known in _MODES if isinstance(declared, dict) and known in declared]
        return None if mode in (modes or ("form",)) else f"{name}.{mode}"


class Confirmation(msgspec.Struct, frozen=True):
    """A question that a tool always asks before it runs; asking it twice does no harm."""

    text: str
    schema: dict[str, Any]
    key: str = "answer"


def check_form(schema: object, limits: Limits = _DEFAULT_LIMITS) -> None:
    """Check that MCP can show a schema as a form: an object of strings, numbers, booleans and choices.

    Raises:
        SchemaError: It cannot.
    """
    form = as_object(dict(cast("Mapping[str, Any]", schema)) if isinstance(schema, Mapping) else None)
    if form.get("type") != "object" or not isinstance(form.get("properties"), dict):
        raise SchemaError("the schema must be of type 'object' and have 'properties'")
    for name, field in form["properties"].items():
        fault = _field_fault(as_object(field))
        if fault:
            raise SchemaError(f"the field '{name}' {fault}")
    check_schema(form, max_bytes=limits.schema_bytes)


@runtime_checkable
class _Model(Protocol):
    """A class that describes its own form, as the models of pydantic do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]: ...

    @classmethod
    def model_validate(cls, obj: object) -> object: ...


def form_of(kind: type) -> dict[str, Any]:
    """Return the form of a type: a dataclass, a struct, a TypedDict or a model of pydantic."""
    if isinstance(kind, _Model):
        schema = kind.model_json_schema()
    else:
        schema = msgspec.json.schema(kind)
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        schema = {**schema.get("$defs", {}).get(name, schema)}
    return {key: value for key, value in schema.items() if key in {"type", "properties", "required"}}


def instance_of(kind: type[T], content: Mapping[str, Any]) -> T:
    """Return the content of a form as an instance of the type that the form was made of."""
    if isinstance(kind, _Model):
        return cast("T", kind.model_validate(dict(content)))
    return msgspec.convert(dict(content), kind)


def _field_fault(field: Mapping[str, Any]) -> str:
    """Return why a form cannot have such a field; empty if it can."""
    kind = field.get("type")
    if kind == "array":
        items = as_object(field.get("items"))
        is_choice = _are_texts(items.get("enum")) or _are_titled(items.get("anyOf"))
        return "" if is_choice else "is a list of something else than a choice of texts"
    if kind not in ("boolean", "integer", "number", "string"):
        return "is no text, number, boolean or choice of texts"
    if kind == "string" and field.get("format", "uri") not in _FORMATS:
        return f"has a format that is none of {', '.join(map(repr, _FORMATS))}"
    if kind == "string" and not (_are_texts(field.get("enum", [])) and _are_titled(field.get("oneOf", []))):
        return "has choices that are no texts"
    return ""


def _are_texts(choices: object) -> bool:
    return isinstance(choices, list | tuple) and all(
        isinstance(choice, str) for choice in cast("list[object]", choices)
    )


def _are_titled(choices: object) -> bool:
    return isinstance(choices, list | tuple) and _are_texts(
        [as_object(choice).get("const") for choice in cast("list[object]", choices)]
    )


def require_support(asks: Mapping[str, ClientRequest], capabilities: Mapping[str, Any] | Collection[str]) -> None:
    """Check that a client can be asked all of this.

    Raises:
        ToolError: `not_supported` names the capabilities that it lacks.
    """
    if any(ask.missing_capability(capabilities) is not None for ask in asks.values()):
        raise unsupported_by_client(asks, capabilities)


def host_of(url: object) -> str:
    """Return the host of an address that a person may be asked to open; empty if it is none."""
    matched = _URL.fullmatch(url) if isinstance(url, str) and len(url) <= _URL_CHARACTERS else None
    return "" if matched is None else matched[1].lower()


def url_required(pages: Collection[ClientRequest], why: str) -> ToolError:
    """Return the failure of a call that needs pages opened and says why they are not: the person gets the address.

    The message of an upstream is not in it: the agent would read it as ours.
    """
    addresses = " and ".join(f"{page.params['url']} (at '{host_of(page.params['url'])}')" for page in pages)
    return ToolError(
        "state_error",
        f"A person must open a page before this call can go on, {why}.",
        hint="Tell the person what 'what_to_do' says. Do not open the page yourself.",
        reason="url_required",
        what_to_do=f"Ask the person to open {addresses} in a browser, and call again when that is done.",
    )


def unsupported_by_client(
    asks: Mapping[str, ClientRequest],
    capabilities: Mapping[str, Any] | Collection[str] = (),
    *,
    stateless: bool = False,
) -> ToolError:
    """Return the failure of a question: the client lacks a capability, or its request leaves no way to ask it.

    It is `not_supported`, or for a page to open `state_error` with its address.
    """
    pages = [ask for ask in asks.values() if ask.params.get("mode") == "url"]
    if pages:
        return url_required(pages, "and the client cannot show it")
    if stateless:
        message = "The tool has a question, and a stateless server cannot ask a client that starts with a handshake."
        return ToolError("not_supported", message, hint="Use a client of MCP 2026-07-28, or serve without 'stateless'.")
    lacks = sorted({missing for ask in asks.values() if (missing := ask.missing_capability(capabilities)) is not None})
    if not lacks:
        message = "The tool has a question, and the response to this request must be one JSON object, "
        hint = "Accept 'text/event-stream', and serve without 'json_response'."
        return ToolError("not_supported", f"{message}so the question cannot be sent.", hint=hint)
    names = " and ".join(f"'{name}'" for name in lacks)
    message = f"The tool has a question, and this client does not declare {names}."
    return ToolError("not_supported", message, capabilities=lacks)


def check_accepted(result: Mapping[str, Any]) -> None:
    """Check that a person accepted an elicitation.

    Raises:
        ToolError: `approval_denied` if declined, `cancelled` if dismissed.
    """
    action = result.get("action")
    if action == "decline":
        raise ToolError("approval_denied", "The person declined to answer.", reason="declined")
    if action != "accept":
        raise ToolError("cancelled", "The question was dismissed without an answer.", reason="dismissed")


def form_content(ask: ClientRequest, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the form that a person filled in.

    Raises:
        ToolError: `approval_denied` if declined, `cancelled` if dismissed, `invalid_input` if the content does not fit.
    """
    check_accepted(result)
    filled = as_object(result.get("content"))
    issues = SchemaValidator(ask.params["requestedSchema"]).issues(filled)
    if issues:
        raise ToolError("invalid_input", f"The answer to the question does not fit: {issues[0].message}", issues=issues)
    return filled


@contextmanager
def set_may_have_run(*, running: bool) -> Generator[None]:
    """Set `may_have_run` on a failure raised inside, unless it is set already."""
    try:
        yield
    except ToolError as error:
        if error.may_have_run is None:
            error.may_have_run = running
        raise
