"""Content blocks as MCP writes them."""

from base64 import b64encode
from hashlib import sha256
from typing import Any

from toolyard.content import Block, Embedded, Foreign, ResourceLink, Text
from toolyard.envelope import Content

__all__ = ["to_mcp"]


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


def _embedded(block: Block) -> dict[str, Any]:
    if isinstance(block, Embedded):
        return block.told()
    # MCP wants a URI of every resource; equal bytes get an equal one, so that the same answer is the same text
    uri = f"toolyard://blob/{sha256(block.data).hexdigest()[:32]}"
    return {"uri": uri, "mimeType": block.mime_type, "blob": b64encode(block.data).decode()}
