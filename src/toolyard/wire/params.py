"""Params: what each method of MCP takes, and the `_meta` that every request may bring."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import msgspec

from toolyard.wire.headers import encode_value
from toolyard.wire.messages import INVALID_PARAMS, UNSUPPORTED_VERSION, Fault, Id, encode_request
from toolyard.wire.versions import LATEST, MODERN, VERSIONS, Version

__all__ = [
    "CAPABILITIES",
    "CLIENT",
    "LEVELS",
    "LOG_LEVEL",
    "NOTHING",
    "PROTOCOL_VERSION",
    "RESULT_SIZE",
    "SERVER",
    "SUBSCRIPTION",
    "CallMessage",
    "CallTool",
    "Cancelled",
    "Client",
    "Complete",
    "GetPrompt",
    "Initialize",
    "Listen",
    "Page",
    "ReadResource",
    "Requests",
    "SetLevel",
    "Wanted",
    "decode_call",
    "decoder_of",
    "is_quiet",
    "misfit",
    "read",
    "unreserved",
    "version_of",
]


PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT: Final = "io.modelcontextprotocol/clientInfo"
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
RESULT_SIZE: Final = "anthropic/maxResultSizeChars"
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_KNOWN: Final = frozenset(
    {
        PROTOCOL_VERSION,
        CLIENT,
        CAPABILITIES,
        LOG_LEVEL,
        SERVER,
        SUBSCRIPTION,
        "progressToken",
        "traceparent",
        "tracestate",
        "baggage",
    }
)
_QUIET: Final = _KNOWN - {"traceparent", "tracestate", "baggage"}
_RESERVED: Final = frozenset({"modelcontextprotocol", "mcp"})
P = TypeVar("P", bound=msgspec.Struct)


class Page(msgspec.Struct, gc=False):
    """Which page of a list is wanted."""

    cursor: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class _Answered(msgspec.Struct, rename="camel"):
    """What may be asked back, and so may come again with the answers."""

    input_responses: dict[str, dict[str, Any]] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class CallTool(_Answered, kw_only=True):
    """Which tool is called, and with what; the arguments stay JSON."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ReadResource(_Answered, kw_only=True):
    """Which resource is read."""

    uri: str


class GetPrompt(_Answered, kw_only=True):
    """Which prompt is wanted, and with what filled in."""

    name: str
    arguments: dict[str, str] | None = None


class Initialize(msgspec.Struct, rename="camel"):
    """What a client says of itself when it shakes hands."""

    protocol_version: str
    capabilities: dict[str, Any] = {}
    client_info: dict[str, Any] = {}


class SetLevel(msgspec.Struct):
    """From which level on a client wants to be told."""

    level: str


class Wanted(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a client wants to hear of."""

    tools_list_changed: bool = False
    prompts_list_changed: bool = False
    resources_list_changed: bool = False
    resource_subscriptions: list[str] = []


class Listen(msgspec.Struct):
    """A client that wants to hear of changes."""

    notifications: Wanted
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


class Cancelled(msgspec.Struct, rename="camel"):
    """Which request nobody waits for any more."""

    request_id: int | str
    reason: str | None = None


class _Reference(msgspec.Struct):
    """A prompt by its name, or a resource by its template."""

    type: str
    name: str | None = None
    uri: str | None = None


class _Argument(msgspec.Struct):
    """What was typed so far."""

    name: str
    value: str


class _Context(msgspec.Struct):
    """What was filled in before."""

    arguments: dict[str, str] = {}


class Complete(msgspec.Struct):
    """What is to be completed."""

    ref: _Reference
    argument: _Argument
    context: _Context | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_DECODERS: Final[dict[type[msgspec.Struct], Callable[[bytes], Any]]] = {}


def decoder_of(kind: type[P]) -> Callable[[bytes], P]:
    """Return what reads params of a kind; if they are something else, `misfit` says so."""
    decode = _DECODERS.get(kind)
    if decode is None:
        decode = _DECODERS[kind] = msgspec.json.Decoder(kind).decode
    return decode


def misfit(error: Exception) -> Fault:
    """Return the fault of params that cannot be read; it names the field."""
    return Fault(INVALID_PARAMS, f"The params do not fit the method: {error}.")


def read(params: msgspec.Raw, kind: type[P]) -> P:
    """Return the params of a message as what its method takes.

    Raises:
        Fault: They are something else; the fault names the field.
    """
    try:
        return decoder_of(kind)(params or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise misfit(error) from error


def version_of(meta: dict[str, Any] | None) -> Version:
    """Return the version that a request of the newer era says it is of.

    Raises:
        Fault: It does not say what every such request must, or a version that is not spoken here.
    """
    if meta is not None and meta.get(PROTOCOL_VERSION) == LATEST.name and type(meta.get(CAPABILITIES)) is dict:
        return LATEST  # the everyday case
    missing = [key for key in (PROTOCOL_VERSION, CAPABILITIES) if meta is None or key not in meta]
    if meta is None or missing:
        raise Fault(INVALID_PARAMS, f"The request's '_meta' lacks {' and '.join(repr(key) for key in missing)}.")
    wanted = meta[PROTOCOL_VERSION]
    if not isinstance(wanted, str) or not isinstance(meta[CAPABILITIES], dict):
        raise Fault(INVALID_PARAMS, "The protocol version in '_meta' must be a string and the capabilities an object.")
    if wanted not in MODERN:
        raise Fault(UNSUPPORTED_VERSION, f"Version '{wanted}' is not spoken here.", {"supported": list(MODERN), "requested": wanted})
    return VERSIONS[wanted]


def unreserved(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `_meta` says that is not the protocol's own."""
    if _KNOWN.issuperset(meta):
        return {}
    return {key: value for key, value in meta.items() if key not in _KNOWN and not _is_reserved(key)}


def is_quiet(meta: Mapping[str, Any]) -> bool:
    """Return whether `_meta` says nothing that a handler could want to know."""
    return _QUIET.issuperset(meta)


def _is_reserved(key: str) -> bool:
    """Return whether the protocol keeps a key for itself: by the second label of its prefix or, in older versions, the last but one."""
    prefix, slash, _ = key.partition("/")
    labels = prefix.split(".")
    return bool(slash) and not _RESERVED.isdisjoint([*labels[1:2], *labels[-2:-1]])


class CallMessage(msgspec.Struct):
    """A `tools/call` as it should be."""

    method: Literal["tools/call"]
    id: Id
    jsonrpc: Literal["2.0"]
    params: CallTool


_decode: Final = msgspec.json.Decoder(CallMessage).decode


def decode_call(data: bytes, *, depth: int) -> CallMessage | None:
    """Return the call that a message is, or nothing if it is something else or must be looked at more closely first."""
    size = len(data)
    # as in 'decode': what is so short cannot be too deep, and what is ASCII needs no look at its characters
    if not data.isascii() or (size > 2 * depth and (size > 5 * depth or data.find(b"[") >= 0)):
        return None
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Client(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client says of itself."""

    name: str
    version: str
    title: str | None = None


class Requests:
    """The requests of one client to servers of one version."""

    def __init__(self, version: Version, client: Client) -> None:
        self.version = version
        self.client = client
        self._standing: dict[str, Any] = {PROTOCOL_VERSION: version.name, CLIENT: client} if version.modern else {}

    def encode(
        self,
        request_id: Id,
        method: str,
        params: Mapping[str, Any],
        *,
        capabilities: Mapping[str, Any] = NOTHING,
        meta: Mapping[str, Any] = NOTHING,
    ) -> bytes:
        """Return a request; in the newer era it says what the client can be asked, in the older one the handshake did."""
        if self.version.modern:
            meta = {**self._standing, CAPABILITIES: dict(capabilities), **meta}
        elif not meta:
            return encode_request(request_id, method, dict(params) if params else None)
        return encode_request(request_id, method, {**params, "_meta": dict(meta)})

    def initialize(self, request_id: Id, capabilities: Mapping[str, Any]) -> bytes:
        """Return the request that a handshake begins with."""
        params = {"protocolVersion": self.version.name, "capabilities": dict(capabilities), "clientInfo": self.client}
        return encode_request(request_id, "initialize", params)

    def headers(self, method: str, name: str | None) -> dict[str, str]:
        """Return what HTTP wants beside a request: the version and, in the newer era, the method and what it is about."""
        if not self.version.modern:
            return {"MCP-Protocol-Version": self.version.name}
        named = {} if name is None else {"Mcp-Name": encode_value(name)}
        return {"MCP-Protocol-Version": self.version.name, "Mcp-Method": method, **named}
