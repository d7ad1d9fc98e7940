"""Content blocks as MCP writes them."""

from base64 import b64encode
from hashlib import sha256
from typing import Any

from toolyard.content import Block, Embedded, Foreign, ResourceLink, Text
from toolyard.envelope import Content
from toolyard.wire.versions import Version

__all__ = ["to_mcp", "understood"]


def to_mcp(block: Content) -> dict[str, Any]:
    """Return a block as an MCP content block."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Foreign):
        return block.told
    if isinstance(block, ResourceLink):
        return {"type": "resource_link", **block.told()}
    if block.kind == "resource":
        return {"type": "resource", "resource": _embedded(block)}
    return {"type": block.kind, "data": b64encode(block.data).decode(), "mimeType": block.mime_type}


def understood(told: dict[str, Any], version: Version) -> dict[str, Any]:
    """Return a block as clients of a version understand it: what came in later is told as text."""
    kind = told.get("type")
    if kind == "audio" and not version.annotations:
        return {"type": "text", "text": f"A sound ({told.get('mimeType')}) that this version of MCP has no block for."}
    if kind == "resource_link" and not version.structured:
        return {"type": "text", "text": f"The resource '{told.get('name')}' is at {told.get('uri')}"}
    return told


def _embedded(block: Block) -> dict[str, Any]:
    if isinstance(block, Embedded):
        return block.told()
    # MCP wants a URI of every resource; equal bytes get an equal one, so that the same answer is the same text
    uri = f"toolyard://blob/{sha256(block.data).hexdigest()[:32]}"
    return {"uri": uri, "mimeType": block.mime_type, "blob": b64encode(block.data).decode()}
