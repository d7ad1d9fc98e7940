"""Content blocks: what a tool returns besides data, such as an image.

A block is no JSON: it rides beside the envelope, and the data says only what kind of block it is and how large.
"""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, Final, Literal, cast

__all__ = ["Audio", "Blob", "Block", "Embedded", "Foreign", "Image", "Message", "ResourceLink", "Role", "Text", "block_of", "to_mcp"]

Role = Literal["user", "assistant"]


class Block:
    """One piece of content that a client shows or hears rather than reads as data."""

    __slots__ = ("data", "mime_type")

    kind: Literal["image", "audio", "resource"]

    def __init__(self, data: bytes, mime_type: str) -> None:
        self.data = bytes(data)
        self.mime_type = mime_type

    def describe(self) -> dict[str, object]:
        """Return what the envelope's data says of the block."""
        return {"type": self.kind, "mime_type": self.mime_type, "bytes": len(self.data)}


class Image(Block):
    """A picture."""

    __slots__ = ()
    kind = "image"

    def __init__(self, data: bytes, mime_type: str = "image/png") -> None:
        super().__init__(data, mime_type)


class Audio(Block):
    """A sound."""

    __slots__ = ()
    kind = "audio"

    def __init__(self, data: bytes, mime_type: str = "audio/wav") -> None:
        super().__init__(data, mime_type)


class Blob(Block):
    """Any other bytes, as an embedded resource."""

    __slots__ = ()
    kind = "resource"

    def __init__(self, data: bytes, mime_type: str = "application/octet-stream") -> None:
        super().__init__(data, mime_type)


class Embedded(Block):
    """A resource with what is in it: its URI, and either text or bytes."""

    __slots__ = ("text", "uri")
    kind = "resource"

    def __init__(self, uri: str, *, text: str | None = None, data: bytes | None = None, mime_type: str | None = None) -> None:
        if (text is None) is (data is None):
            raise ValueError("An embedded resource has either 'text' or 'data'.")
        content = data if data is not None else (text or "").encode("utf-8", "replace")
        super().__init__(content, mime_type or ("application/octet-stream" if text is None else "text/plain"))
        self.uri = uri
        self.text = text

    def describe(self) -> dict[str, object]:
        """Return what the envelope's data says of the block."""
        return {**super().describe(), "uri": self.uri}

    def told(self) -> dict[str, Any]:
        """Return the resource in the words of MCP."""
        content = {"blob": b64encode(self.data).decode()} if self.text is None else {"text": self.text}
        return {"uri": self.uri, "mimeType": self.mime_type, **content}


class Foreign(Block):
    """A block as another MCP server said it, passed on untouched."""

    __slots__ = ("kind", "told")

    def __init__(self, told: dict[str, Any]) -> None:
        resource = told.get("resource")
        holder = cast("dict[str, Any]", resource) if isinstance(resource, dict) else told
        text = holder.get("text")
        encoded = str(holder.get("blob", holder.get("data", "")))
        super().__init__(text.encode("utf-8", "replace") if isinstance(text, str) else _decoded(encoded), str(holder.get("mimeType", "")))
        said = str(told.get("type", "resource"))
        self.kind: Literal["image", "audio", "resource"] = "image" if said == "image" else "audio" if said == "audio" else "resource"
        self.told = told

    def describe(self) -> dict[str, object]:
        """Return what the envelope's data says of the block."""
        resource = self.told.get("resource")
        uri = self.told.get("uri") or (cast("dict[str, Any]", resource).get("uri") if isinstance(resource, dict) else None)
        located = {} if uri is None else {"uri": uri}
        return {**super().describe(), "type": self.told.get("type", "resource"), **located}


class ResourceLink:
    """A resource that the client may read, by its URI."""

    __slots__ = ("description", "mime_type", "name", "size", "title", "uri")

    def __init__(
        self,
        uri: str,
        name: str,
        *,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
    ) -> None:
        self.uri = uri
        self.name = name
        self.title = title
        self.description = description
        self.mime_type = mime_type
        self.size = size

    def describe(self) -> dict[str, object]:
        """Return what the envelope's data says of the block."""
        return {"type": "resource_link", "uri": self.uri, "name": self.name}

    def told(self) -> dict[str, Any]:
        """Return the link in the words of MCP, without what is not known."""
        known = {
            "uri": self.uri,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
            "size": self.size,
        }
        return {key: value for key, value in known.items() if value is not None}


class Text:
    """A text block, for tools of plain shape."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def describe(self) -> dict[str, object]:
        """Return what the envelope's data says of the block."""
        return {"type": "text", "text": self.text}


class Message:
    """One message of a prompt: who says it, and a text or a block."""

    __slots__ = ("content", "role")

    def __init__(self, role: Role, content: "str | Block | Text | ResourceLink") -> None:
        if role not in _ROLES:
            raise ValueError(f"A message is said by 'user' or 'assistant', not by '{role}'.")
        if not isinstance(cast("object", content), str | Block | Text | ResourceLink):
            raise TypeError(f"A message holds a text or a block, not something of type '{type(content).__name__}'.")
        self.role: Role = role
        self.content = Text(content) if isinstance(content, str) else content


_ROLES: Final = ("user", "assistant")
_SIGNATURES: Final[tuple[tuple[bytes, int, type[Image | Audio], str], ...]] = (
    (b"\x89PNG\r\n\x1a\n", 0, Image, "image/png"),
    (b"\xff\xd8\xff", 0, Image, "image/jpeg"),
    (b"GIF8", 0, Image, "image/gif"),
    (b"WEBP", 8, Image, "image/webp"),
    (b"WAVE", 8, Audio, "audio/wav"),
    (b"OggS", 0, Audio, "audio/ogg"),
    (b"fLaC", 0, Audio, "audio/flac"),
    (b"ID3", 0, Audio, "audio/mpeg"),
)


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text)
    except ValueError:
        return b""  # what others say wrongly is passed on as they said it, and counts for nothing here


def block_of(data: bytes) -> Block:
    """Return bytes as the block that their first bytes say they are."""
    for signature, offset, block, mime_type in _SIGNATURES:
        if data.startswith(signature, offset):
            return block(data, mime_type)
    return Blob(data)


def to_mcp(block: Block | Text | ResourceLink) -> dict[str, Any]:
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
