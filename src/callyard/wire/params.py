"""Params of MCP's methods and the `_meta` of requests: decoding for servers, encoding for clients."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from callyard._internal.converted import as_object
from callyard.wire.headers import encode_value
from callyard.wire.messages import (
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    Fault,
    Id,
    encode_request,
)
from callyard.wire.versions import MODERN, VERSIONS, Version

__all__ = [
    "CAPABILITIES",
    "CLIENT",
    "EMPTY",
    "LEVELS",
    "LOG_LEVEL",
    "PROTOCOL_VERSION",
    "RESULT_SIZE",
    "SERVER",
    "SUBSCRIPTION",
    "TASKS_EXTENSION",
    "CallTool",
    "Cancelled",
    "Client",
    "Complete",
    "GetPrompt",
    "Initialize",
    "Page",
    "ReadResource",
    "Requests",
    "SetLevel",
    "SubscriptionFilter",
    "SubscriptionsListen",
    "TaskParams",
    "UpdateTask",
    "custom_meta",
    "declares",
    "decode_params",
    "has_only_protocol_keys",
    "version_of",
]


PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
RESULT_SIZE: Final = "anthropic/maxResultSizeChars"
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_PROTOCOL_KEYS: Final = frozenset(
    {PROTOCOL_VERSION, CLIENT, CAPABILITIES, LOG_LEVEL, SERVER, SUBSCRIPTION, "progressToken"}
)
_STANDARD_KEYS: Final = _PROTOCOL_KEYS | {"traceparent", "tracestate", "baggage"}
_RESERVED_LABELS: Final = frozenset({"modelcontextprotocol", "mcp"})
P = TypeVar("P", bound=msgspec.Struct)


class Page(msgspec.Struct, gc=False):
    """Params of the list methods: the page."""

    cursor: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class _WithInput(msgspec.Struct, rename="camel"):
    """Params of methods that may ask for input, and are then sent again with the responses."""

    input_responses: dict[str, dict[str, Any]] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class CallTool(_WithInput, kw_only=True):
    """Params of `tools/call`; the arguments stay JSON."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ReadResource(_WithInput, kw_only=True):
    """Params of `resources/read`."""

    uri: str


class GetPrompt(_WithInput, kw_only=True):
    """Params of `prompts/get`."""

    name: str
    arguments: dict[str, str] | None = None


class TaskParams(msgspec.Struct, rename="camel"):
    """Params of `tasks/get` and `tasks/cancel`."""

    task_id: str
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class UpdateTask(TaskParams):
    """Params of `tasks/update`: the client's answers by the key of each question."""

    input_responses: dict[str, dict[str, Any]] | None = None


class Initialize(msgspec.Struct, rename="camel"):
    """Params of `initialize`, all optional: a client of the other era must learn that there is no such method."""

    protocol_version: str = ""
    capabilities: dict[str, Any] = {}
    client_info: dict[str, Any] = {}
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class SetLevel(msgspec.Struct):
    """Params of `logging/setLevel`; optional for the same reason."""

    level: str = ""
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class SubscriptionFilter(msgspec.Struct, rename="camel", omit_defaults=True):
    """Which notifications a client subscribes to."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []
    task_ids: list[str] = []


class SubscriptionsListen(msgspec.Struct):
    """Params of `subscriptions/listen`."""

    notifications: SubscriptionFilter
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class Cancelled(msgspec.Struct, rename="camel"):
    """Params of `notifications/cancelled`."""

    request_id: int | str
    reason: str | None = None


class _Reference(msgspec.Struct):
    """A prompt by its name, or a resource template by its URI."""

    type: str
    name: str | None = None
    uri: str | None = None


class _Argument(msgspec.Struct):
    """The argument to complete, and its value so far."""

    name: str
    value: str


class _Context(msgspec.Struct):
    """The arguments that are filled in already."""

    arguments: dict[str, str] = {}


class Complete(msgspec.Struct):
    """Params of `completion/complete`."""

    ref: _Reference
    argument: _Argument
    context: _Context | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


@cache
def _decoder(kind: type[P]) -> "msgspec.json.Decoder[P]":
    return msgspec.json.Decoder(kind)


def decode_params(params: msgspec.Raw, kind: type[P]) -> P:
    """Return the decoded params of a message.

    Raises:
        Fault: They do not fit the method; the fault names the field.
    """
    try:
        return _decoder(kind).decode(params or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(INVALID_PARAMS, f"The params do not fit the method: {error}.") from error


def version_of(meta: dict[str, Any] | None) -> Version:
    """Return the protocol version of a stateless request.

    Raises:
        Fault: A required key is missing from `_meta`, or the version is not supported.
    """
    missing = [key for key in (PROTOCOL_VERSION, CAPABILITIES) if meta is None or key not in meta]
    if meta is None or missing:
        raise Fault(INVALID_PARAMS, f"The request's '_meta' lacks {' and '.join(repr(key) for key in missing)}.")
    version = meta[PROTOCOL_VERSION]
    if not isinstance(version, str) or not isinstance(meta[CAPABILITIES], dict):
        raise Fault(INVALID_PARAMS, "The protocol version in '_meta' must be a string and the capabilities an object.")
    if version not in MODERN:
        known = {"supported": list(MODERN), "requested": version}
        raise Fault(UNSUPPORTED_VERSION, f"Version '{version}' is not supported.", known)
    return VERSIONS[version]


def declares(capabilities: Mapping[str, Any], extension: str) -> bool:
    """Return whether capabilities of a client have an extension."""
    return extension in as_object(capabilities.get("extensions"))


def custom_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `_meta` that are not reserved by the protocol."""
    return {key: value for key, value in meta.items() if key not in _STANDARD_KEYS and not _is_reserved(key)}


has_only_protocol_keys: Final = _PROTOCOL_KEYS.issuperset
"""Returns whether `_meta` has no key that a handler could use."""


def _is_reserved(key: str) -> bool:
    """Return whether the second label of a key's prefix, or in older versions the last but one, is reserved."""
    prefix, slash, _ = key.partition("/")
    labels = prefix.split(".")
    return bool(slash) and not _RESERVED_LABELS.isdisjoint([*labels[1:2], *labels[-2:-1]])


EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class Client(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name and version of a client."""

    name: str
    version: str
    title: str | None = None


class Requests:
    """Encodes the requests of one client in one protocol version."""

    def __init__(self, version: Version, client: Client) -> None:
        self.version = version
        self.client = client
        self._common_meta: dict[str, Any] = {PROTOCOL_VERSION: version.name, CLIENT: client} if version.modern else {}

    def encode(
        self,
        request_id: Id,
        method: str,
        params: Mapping[str, Any],
        *,
        capabilities: Mapping[str, Any] = EMPTY,
        meta: Mapping[str, Any] = EMPTY,
    ) -> bytes:
        """Return a request; in a stateless version its `_meta` carries the client's capabilities."""
        if self.version.modern:
            meta = {**self._common_meta, CAPABILITIES: dict(capabilities), **meta}
        elif not meta:
            return encode_request(request_id, method, dict(params) if params else None)
        return encode_request(request_id, method, {**params, "_meta": dict(meta)})

    def initialize(self, request_id: Id, capabilities: Mapping[str, Any]) -> bytes:
        """Return the request `initialize`."""
        params = {"protocolVersion": self.version.name, "capabilities": dict(capabilities), "clientInfo": self.client}
        return encode_request(request_id, "initialize", params)

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        """Return the HTTP headers of a request: the version and, in a stateless version, the method and the name."""
        if not self.version.modern:
            return {"MCP-Protocol-Version": self.version.name}
        headers = {"MCP-Protocol-Version": self.version.name, "Mcp-Method": method}
        return headers if name is None else {**headers, "Mcp-Name": encode_value(name)}
