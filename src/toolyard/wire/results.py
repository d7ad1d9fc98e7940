"""Answers: the results of MCP's methods, as bytes, in the shape that each version has them.

What is the same in every answer is encoded once, so that a call costs one encoding of its envelope and a few joins.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.model.content import to_mcp
from toolyard.model.elicitation import ClientRequest
from toolyard.model.envelope import Content, Envelope, encode, encode_plain
from toolyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from toolyard.wire.params import SERVER
from toolyard.wire.versions import MODERN, Version

__all__ = ["ResultEncoder", "Server", "prompt_item", "resource_item", "template_item", "tool_item", "understood"]


def understood(told: dict[str, Any], version: Version) -> dict[str, Any]:
    """Return a block as clients of a version understand it: what came in later is told as text."""
    kind = told.get("type")
    if kind == "audio" and not version.annotations:
        return {"type": "text", "text": f"A sound ({told.get('mimeType')}) that this version of MCP has no block for."}
    if kind == "resource_link" and not version.structured:
        return {"type": "text", "text": f"The resource '{told.get('name')}' is at {told.get('uri')}"}
    return told


_DATA_SCHEMA: Final = {"success": {"type": "boolean"}, "error": {"type": ["object", "null"]}, "_meta": {"type": "object"}}
_TEXT: Final = b'{"content":[{"type":"text","text":'


class Server(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server says of itself."""

    name: str
    version: str
    title: str | None = None


class ResultEncoder:
    """The results of one server for clients of one version."""

    def __init__(self, version: Version, server: Server, *, ttl_ms: int = 0) -> None:
        self.version = version
        self._server = server
        tail = b""
        if version.modern:
            tail = b',"resultType":"complete","_meta":%b' % encode({SERVER: server})
        self._done = tail + b"}"
        self._cached = b',"ttlMs":%d,"cacheScope":"private"' % ttl_ms + self._done if version.modern else self._done
        self._good = b',"isError":false' + self._done
        self._bad = b',"isError":true' + self._done
        self.empty = self.whole(b"{}")

    def whole(self, result: bytes, *, cacheable: bool = False, meta: Mapping[str, Any] | None = None) -> bytes:
        """Return a result, which is an object as JSON, with what every result has, and with more to say beside it if there is."""
        end = self._cached if cacheable else self._done
        if meta is not None:
            own: dict[str, Any] = {SERVER: self._server} if self.version.modern else {}
            kind = b',"resultType":"complete"' if self.version.modern else b""
            end = b'%b,"_meta":%b}' % (kind, encode({**meta, **own}))
        inner = result[:-1]
        return inner + (end.removeprefix(b",") if inner == b"{" else end)

    def envelope(self, envelope: Envelope) -> bytes:
        """Return the answer of a tool whose shape is the envelope: as text and, where the version has it, as structured content."""
        text = encode_plain(envelope)
        said = _inside_text(text)
        content = envelope.content
        blocks = b"".join([b"," + encode(block) for block in self._blocks(content)]) if content else b""
        end = self._good if envelope.success else self._bad
        if not self.version.structured:
            return b"".join((_TEXT, b'"', said, b'"}', blocks, b"]", end))
        return b"".join((_TEXT, b'"', said, b'"}', blocks, b'],"structuredContent":', text, end))

    def plain(self, envelope: Envelope) -> bytes:
        """Return the good answer of a plain tool: its blocks, or its data as text; data that is an object is structured content, too."""
        passed = envelope.passthrough
        if passed is not None:
            warnings = envelope.meta.warnings
            beside = {**passed.meta, **({"warnings": warnings} if warnings else {})} if passed.meta or warnings else None
            said = passed.handshake_result if passed.handshake_result and not self.version.modern else passed.result
            if not self.version.structured:
                said = self._older(said)
            return self.whole(said[:-1] + b',"isError":false}', meta=beside)
        if envelope.content:
            return b"".join((b'{"content":', encode(self._blocks(envelope.content)), self._good))
        data = envelope.data
        text = encode_plain(data)
        said = text if isinstance(data, str) else b'"%b"' % _inside_text(text)
        if self.version.structured and isinstance(data, dict):
            return b"".join((_TEXT, said, b'}],"structuredContent":', text, self._good))
        return b"".join((_TEXT, said, b"}]", self._good))

    def messages(self, data: dict[str, Any]) -> bytes:
        """Return the messages of a prompt."""
        if not self.version.structured:
            data = {**data, "messages": [self._message(message) for message in data["messages"]]}
        return self.whole(encode(data))

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        known = isinstance(content, dict)  # another server may say anything
        return {**message, "content": understood(cast("dict[str, Any]", content), self.version)} if known else message

    def _blocks(self, content: Iterable[Content]) -> list[dict[str, Any]]:
        return [understood(to_mcp(block), self.version) for block in content]

    def _older(self, said: bytes) -> bytes:
        """Return what another server answered as clients of an early version understand it."""
        told = msgspec.json.decode(said)
        return encode({**told, "content": [understood(block, self.version) for block in told["content"]]})

    def initialize(self, capabilities: Mapping[str, Any], instructions: str) -> bytes:
        """Return what a handshake is answered with."""
        result: dict[str, Any] = {"protocolVersion": self.version.name, "capabilities": capabilities, "serverInfo": self._server}
        return encode({**result, "instructions": instructions} if instructions else result)

    def discover(self, capabilities: Mapping[str, Any], instructions: str) -> bytes:
        """Return what a client of the newer era is told first."""
        result: dict[str, Any] = {"supportedVersions": list(MODERN), "capabilities": capabilities}
        return self.whole(encode({**result, "instructions": instructions} if instructions else result), cacheable=True)

    def with_meta(self, key: str, value: object) -> bytes:
        """Return a result that says nothing but this."""
        return encode({"resultType": "complete", "_meta": {SERVER: self._server, key: value}})

    def listed(self, key: str, items: Iterable[bytes], cursor: str | None) -> bytes:
        """Return one page of a list, whose items are JSON already."""
        following = b',"nextCursor":%b' % encode(cursor) if cursor is not None else b""
        return self.whole(b"".join((b'{"', key.encode(), b'":[', b",".join(items), b"]", following, b"}")), cacheable=True)

    def asked(self, asks: Mapping[str, ClientRequest], state: str) -> bytes:
        """Return the answer that wants something answered first."""
        requests = {key: {"method": ask.method, "params": ask.params} for key, ask in asks.items()}
        return encode({"resultType": "input_required", "inputRequests": requests, "requestState": state, "_meta": {SERVER: self._server}})


def _inside_text(text: bytes) -> bytes:
    """Return JSON as a text has it inside: there are no other characters in it that must be escaped."""
    return text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def tool_item(spec: ToolSpec, version: Version, *, schemas: bool = False) -> bytes:
    """Return a tool as lists show it; its output schema only if those are to be shown."""
    item: dict[str, Any] = {"name": spec.name, "description": spec.description, "inputSchema": spec.input_schema}
    if version.annotations:
        item["annotations"] = spec.hints()
    if version.structured:
        if spec.title is not None:
            item["title"] = spec.title
        schema = _output_schema(spec) if schemas else None
        if schema is not None and (version.modern or schema.get("type") == "object"):
            item["outputSchema"] = schema
    return encode({**item, **spec.extra} if spec.extra else item)


def _output_schema(spec: ToolSpec) -> dict[str, Any] | None:
    """Return what a tool's structured content fits: the envelope around its data, which may be a status or a handle instead.

    A plain tool without a schema may answer without structured content, which clients refuse of a tool that has one.
    """
    if spec.shape == "plain":
        return spec.output_schema
    declared = spec.output_schema or {}
    data = {"anyOf": [{key: value for key, value in declared.items() if key not in {"$defs", "$schema"}}, {"type": ["object", "null"]}]}
    definitions = {"$defs": declared["$defs"]} if "$defs" in declared else {}
    return {"type": "object", "properties": {**_DATA_SCHEMA, "data": data}, "required": ["success", "data", "error"], **definitions}


def resource_item(spec: ResourceSpec, version: Version) -> bytes:
    """Return a resource as lists show it."""
    return encode({"uri": spec.uri, **_told(spec, version), **_mime_type(spec), **spec.extra})


def template_item(spec: ResourceSpec, version: Version) -> bytes:
    """Return a template of resources as lists show it."""
    return encode({"uriTemplate": spec.uri, **_told(spec, version), **_mime_type(spec), **spec.extra})


def prompt_item(spec: PromptSpec, version: Version) -> bytes:
    """Return a prompt as lists show it."""
    return encode({**_told(spec, version), "arguments": spec.arguments, **spec.extra})


def _told(spec: ResourceSpec | PromptSpec, version: Version) -> dict[str, Any]:
    told: dict[str, Any] = {"name": spec.name}
    if spec.title is not None and version.structured:
        told["title"] = spec.title
    return {**told, "description": spec.description} if spec.description else told


def _mime_type(spec: ResourceSpec) -> dict[str, Any]:
    return {"mimeType": spec.mime_type} if spec.mime_type else {}
