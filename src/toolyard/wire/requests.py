"""Requests: what a client sends, in the shape that each version has it; the other half of `answers`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from toolyard.wire.headers import encode_value
from toolyard.wire.messages import Id, encode_request
from toolyard.wire.params import CAPABILITIES, CLIENT, PROTOCOL_VERSION
from toolyard.wire.versions import Version

__all__ = ["NOTHING", "Client", "Requests"]

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
