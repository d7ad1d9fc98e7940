"""Results of MCP's methods as bytes, in the format of each protocol version.

The constant parts of a result are encoded once, so that a call costs one encoding of its envelope and a few joins.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from callyard._internal.converted import as_object
from callyard.model.content import to_mcp
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Content, Envelope, UpstreamResult, encode, encode_unchecked
from callyard.model.schema import resolve
from callyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from callyard.wire.params import SERVER
from callyard.wire.versions import MODERN, Version

__all__ = ["ResultEncoder", "Server", "downgrade_block", "prompt_item", "resource_item", "tool_item"]


def downgrade_block(block: dict[str, Any], version: Version) -> dict[str, Any]:
    """Return a content block for a version: a block type that the version lacks becomes a text."""
    kind = block.get("type")
    if kind == "audio" and not version.annotations:
        return {"type": "text", "text": f"Audio ({block.get('mimeType')}), which this version of MCP has no block for."}
    if kind == "resource_link" and not version.structured:
        return {"type": "text", "text": f"The resource '{block.get('name')}' is at {block.get('uri')}"}
    return block


_ENVELOPE_PROPERTIES: Final = {
    "success": {"type": "boolean"},
    "error": {"type": ["object", "null"]},
    "_meta": {"type": "object"},
}
Fit = Callable[[dict[str, Any]], Mapping[str, Any]]
_TEXT_CONTENT: Final = b'{"content":[{"type":"text","text":'


class Server(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name and version of a server."""

    name: str
    version: str
    title: str | None = None


class ResultEncoder:
    """Encodes the results of one server for one protocol version."""

    def __init__(self, version: Version, server: Server, *, ttl_ms: int = 0) -> None:
        self.version = version
        self._server = server
        self._end = self._cacheable_end = b"}"
        if version.modern:
            self._end = b',"resultType":"complete","_meta":%b}' % encode({SERVER: server})
            self._cacheable_end = b',"ttlMs":%d,"cacheScope":"private"%b' % (ttl_ms, self._end)
        self._success_end = b',"isError":false' + self._end
        self._error_end = b',"isError":true' + self._end
        self.empty = self.complete(b"{}")

    def task(self, result: Mapping[str, Any]) -> bytes:
        """Return the result of a call that became a task, in every version: the extension defines its `resultType`."""
        meta = {"_meta": {SERVER: self._server}} if self.version.modern else {}
        return encode({**result, "resultType": "task", **meta})

    def complete(self, result: bytes, *, cacheable: bool = False, meta: Mapping[str, Any] | None = None) -> bytes:
        """Return a result, a JSON object, with the common fields and with more `_meta`, if there is any."""
        end = self._cacheable_end if cacheable else self._end
        if meta is not None:
            own: dict[str, Any] = {SERVER: self._server} if self.version.modern else {}
            kind = b',"resultType":"complete"' if self.version.modern else b""
            end = b'%b,"_meta":%b}' % (kind, encode({**meta, **own}))
        inner = result[:-1]
        return inner + (end.removeprefix(b",") if inner == b"{" else end)

    def envelope(self, envelope: Envelope) -> bytes:
        """Return an envelope as text and, if the version has it, as structured content."""
        large = envelope.encoded_data
        text = encode_unchecked(envelope) if large is None else _encode_large(envelope, large)
        blocks = b""
        if envelope.content:
            blocks = b"".join(b"," + encode(block) for block in self._blocks(envelope.content))
        structured = b',"structuredContent":' + text if self.version.structured else b""
        end = self._success_end if envelope.success else self._error_end
        return b"".join((_TEXT_CONTENT, b'"', _escape(text), b'"}', blocks, b"]", structured, end))

    def outcome(self, envelope: Envelope) -> bytes:
        """Return the answer of a call in the shape of its tool; a failure is always an envelope."""
        return self.plain(envelope) if envelope.has_plain_shape and envelope.error is None else self.envelope(envelope)

    def plain(self, envelope: Envelope) -> bytes:
        """Return a success of a tool with the shape `plain`: its blocks, or its data as text.

        An object is structured content as well.
        """
        if envelope.passthrough is not None:
            return self._upstream_result(envelope.passthrough, envelope.meta.warnings)
        data = envelope.data
        if envelope.content:
            blocks = self._blocks(envelope.content)
            if not _is_only_blocks(envelope):
                blocks.insert(0, {"type": "text", "text": encode_unchecked(data).decode()})
            return b"".join((b'{"content":', encode(blocks), self._success_end))
        text = envelope.encoded_data or encode_unchecked(data)
        quoted = text if isinstance(data, str) else b'"%b"' % _escape(text)
        structured = b',"structuredContent":' + text if self.version.structured and isinstance(data, dict) else b""
        return b"".join((_TEXT_CONTENT, quoted, b"}]", structured, self._success_end))

    def _upstream_result(self, passed: UpstreamResult, warnings: tuple[str, ...]) -> bytes:
        result = passed.handshake_result if passed.handshake_result and not self.version.modern else passed.result
        if not self.version.structured:
            decoded = msgspec.json.decode(result)
            blocks = [downgrade_block(block, self.version) for block in decoded["content"]]
            result = encode({**decoded, "content": blocks})
        meta = {**passed.meta, "warnings": warnings} if warnings else passed.meta
        return self.complete(result[:-1] + b',"isError":false}', meta=meta or None)

    def messages(self, data: dict[str, Any]) -> bytes:
        """Return the messages of a prompt."""
        if not self.version.structured:
            data = {**data, "messages": [self._message(message) for message in data["messages"]]}
        return self.complete(encode(data))

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        content = as_object(message.get("content"))  # an upstream may send anything
        return {**message, "content": downgrade_block(content, self.version)} if content else message

    def _blocks(self, content: Iterable[Content]) -> list[dict[str, Any]]:
        return [downgrade_block(to_mcp(block), self.version) for block in content]

    def initialize(self, capabilities: Mapping[str, Any], instructions: str) -> bytes:
        """Return the result of `initialize`."""
        result: dict[str, Any] = {
            "protocolVersion": self.version.name,
            "capabilities": capabilities,
            "serverInfo": self._server,
        }
        return encode({**result, "instructions": instructions} if instructions else result)

    def discover(self, capabilities: Mapping[str, Any], instructions: str) -> bytes:
        """Return the result of `server/discover`."""
        result: dict[str, Any] = {"supportedVersions": list(MODERN), "capabilities": capabilities}
        return self.complete(
            encode({**result, "instructions": instructions} if instructions else result), cacheable=True
        )

    def page(self, key: str, items: Iterable[bytes], cursor: str | None) -> bytes:
        """Return one page of a list; its items are JSON already."""
        next_cursor = b',"nextCursor":%b' % encode(cursor) if cursor is not None else b""
        return self.complete(
            b"".join((b'{"', key.encode(), b'":[', b",".join(items), b"]", next_cursor, b"}")), cacheable=True
        )

    def input_required(self, asks: Mapping[str, ClientRequest], state: str) -> bytes:
        """Return the result that asks the client for input first."""
        requests = {key: {"method": ask.method, "params": ask.params} for key, ask in asks.items()}
        result = {"resultType": "input_required", "inputRequests": requests, "requestState": state}
        return encode({**result, "_meta": {SERVER: self._server}})


def _encode_large(envelope: Envelope, data: bytes) -> bytes:
    """Return an envelope as JSON, of which the data are encoded already."""
    success, error, meta = (encode_unchecked(part) for part in (envelope.success, envelope.error, envelope.meta))
    return b"".join((b'{"success":', success, b',"data":', data, b',"error":', error, b',"_meta":', meta, b"}"))


def _escape(text: bytes) -> bytes:
    """Return JSON escaped for use inside a JSON string; encoded JSON has no other characters to escape."""
    return text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _is_only_blocks(envelope: Envelope) -> bool:
    """Return whether the data of an answer are its content blocks and nothing else."""
    described = [block.describe() for block in envelope.content]
    return envelope.data is None or envelope.data in (described, described[0])


def tool_item(
    spec: ToolSpec, version: Version, *, schemas: bool = False, plain: bool = False, fit: Fit | None = None
) -> bytes:
    """Return a tool as an item of `tools/list`, with its output schema only if `schemas` is set.

    `plain` says that the profile or the yard makes the tool answer without an envelope, and `fit` makes its input
    schema one that the client accepts.
    """
    shown: Mapping[str, Any] = spec.input_schema if fit is None else fit(spec.input_schema)
    item: dict[str, Any] = {"name": spec.name, "description": spec.description, "inputSchema": shown}
    if version.annotations:
        item["annotations"] = spec.hints()
    if version.structured:
        if spec.title is not None:
            item["title"] = spec.title
        schema = None
        if schemas:
            schema = _object_schema(spec) if plain and spec.shape != "plain" else _output_schema(spec)
        if schema is not None and (version.modern or schema.get("type") == "object"):
            item["outputSchema"] = schema
    return encode({**item, **spec.extra} if spec.extra else item)


def _object_schema(spec: ToolSpec) -> dict[str, Any] | None:
    """Return the output schema of a tool whose results are objects, which alone are sent as structured content."""
    schema = spec.output_schema
    if schema is None or as_object(resolve(schema, schema)).get("type") != "object":
        return None
    return {"type": "object", **schema}


def _output_schema(spec: ToolSpec) -> dict[str, Any] | None:
    """Return the schema of the structured content: an envelope whose data may also be a status or a handle.

    A plain tool without a schema gets none: clients then accept answers without structured content.
    """
    if spec.shape == "plain":
        return spec.output_schema
    declared = spec.output_schema or {}
    data = {
        "anyOf": [
            {key: value for key, value in declared.items() if key not in {"$defs", "$schema"}},
            {"type": ["object", "null"]},
        ]
    }
    definitions = {"$defs": declared["$defs"]} if "$defs" in declared else {}
    return {
        "type": "object",
        "properties": {**_ENVELOPE_PROPERTIES, "data": data},
        "required": ["success", "data", "error"],
        **definitions,
    }


def resource_item(spec: ResourceSpec, version: Version) -> bytes:
    """Return a resource or a template as an item of its list."""
    mime_type = {"mimeType": spec.mime_type} if spec.mime_type else {}
    key = "uriTemplate" if spec.is_template else "uri"
    return encode({key: spec.uri, **_common_fields(spec, version), **mime_type, **spec.extra})


def prompt_item(spec: PromptSpec, version: Version) -> bytes:
    """Return a prompt as an item of `prompts/list`."""
    return encode({**_common_fields(spec, version), "arguments": spec.arguments, **spec.extra})


def _common_fields(spec: ResourceSpec | PromptSpec, version: Version) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": spec.name}
    if spec.title is not None and version.structured:
        fields["title"] = spec.title
    return {**fields, "description": spec.description} if spec.description else fields
