"""Content blocks: images, sounds, resources and texts that a tool returns besides data.

A block is sent after the envelope. The envelope's data has only a description of it: its kind and its size.
"""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal, cast, get_args

from callyard._internal.converted import as_object

__all__ = [
    "MAX_BLOCKS",
    "Audio",
    "Blob",
    "Block",
    "Embedded",
    "Image",
    "Message",
    "ResourceLink",
    "Role",
    "Text",
    "UpstreamBlock",
    "block_from_bytes",
    "to_mcp",
]

Role = Literal["user", "assistant"]
MAX_BLOCKS: Final = 10_000
"""Most content blocks of one answer: each takes microseconds, during which other callers wait."""


class Block:
    """One piece of content that a client shows or plays instead of reading it as data."""

    __slots__ = ("data", "mime_type")

    kind: Literal["image", "audio", "resource"]
    default_mime_type: ClassVar = "application/octet-stream"

    def __init__(self, data: bytes, mime_type: str | None = None) -> None:
        self.data = bytes(data)
        self.mime_type = self.default_mime_type if mime_type is None else mime_type

    def describe(self) -> dict[str, object]:
        """Return the description of the block for the envelope's data."""
        return {"type": self.kind, "mime_type": self.mime_type, "bytes": len(self.data)}


class Image(Block):
    """A picture."""

    __slots__ = ()
    kind = "image"
    default_mime_type = "image/png"


class Audio(Block):
    """A sound."""

    __slots__ = ()
    kind = "audio"
    default_mime_type = "audio/wav"


class Blob(Block):
    """Any other bytes, as an embedded resource."""

    __slots__ = ()
    kind = "resource"


class Embedded(Block):
    """A resource with its content: a URI, and either text or bytes."""

    __slots__ = ("text", "uri")
    kind = "resource"

    def __init__(
        self, uri: str, *, text: str | None = None, data: bytes | None = None, mime_type: str | None = None
    ) -> None:
        if (text is None) is (data is None):
            raise ValueError("An embedded resource has either 'text' or 'data'.")
        content = data if data is not None else (text or "").encode("utf-8", "replace")
        super().__init__(content, mime_type or (None if text is None else "text/plain"))
        self.uri = uri
        self.text = text

    def describe(self) -> dict[str, object]:
        """Return the description of the block for the envelope's data."""
        return {**super().describe(), "uri": self.uri}

    def to_mcp(self) -> dict[str, Any]:
        """Return the resource as MCP's resource contents."""
        content = {"blob": b64encode(self.data).decode()} if self.text is None else {"text": self.text}
        return {"uri": self.uri, "mimeType": self.mime_type, **content}


_SHOWN: Final[dict[str, Literal["image", "audio"]]] = {"image": "image", "audio": "audio"}


class UpstreamBlock(Block):
    """A block from an upstream, passed on unchanged."""

    __slots__ = ("kind", "raw")

    def __init__(self, raw: dict[str, Any]) -> None:
        contents = as_object(raw.get("resource")) or raw
        text = contents.get("text")
        encoded = str(contents.get("blob", contents.get("data", "")))
        data = text.encode("utf-8", "replace") if isinstance(text, str) else _decode_base64(encoded)
        super().__init__(data, str(contents.get("mimeType", "")))
        self.kind: Literal["image", "audio", "resource"] = _SHOWN.get(str(raw.get("type")), "resource")
        self.raw = raw

    def describe(self) -> dict[str, object]:
        """Return the description of the block for the envelope's data."""
        uri = self.raw.get("uri") or as_object(self.raw.get("resource")).get("uri")
        return {**super().describe(), "type": self.raw.get("type", "resource"), **({} if uri is None else {"uri": uri})}


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
        """Return the description of the block for the envelope's data."""
        return {"type": "resource_link", "uri": self.uri, "name": self.name}

    def to_mcp(self) -> dict[str, Any]:
        """Return the link as MCP's resource link, without fields that are not set."""
        fields = {
            "uri": self.uri,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
            "size": self.size,
        }
        return {key: value for key, value in fields.items() if value is not None}


class Text:
    """A text block, for tools whose shape is `plain`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def describe(self) -> dict[str, object]:
        """Return the description of the block for the envelope's data."""
        return {"type": "text", "text": self.text}


class Message:
    """One message of a prompt: its role, and a text or a block."""

    __slots__ = ("content", "role")

    def __init__(self, role: Role, content: "str | Block | Text | ResourceLink") -> None:
        if role not in get_args(Role):
            raise ValueError(f"The role of a message is 'user' or 'assistant', not '{role}'.")
        if not isinstance(cast("object", content), str | Block | Text | ResourceLink):
            raise TypeError(
                f"The content of a message is a text or a block, not a value of type '{type(content).__name__}'."
            )
        self.role: Role = role
        self.content = Text(content) if isinstance(content, str) else content


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


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text)
    except ValueError:
        return b""  # an upstream's invalid base64 is passed on as it is, and counts as no bytes


def block_from_bytes(data: bytes) -> Block:
    """Return bytes as a block of the type that their signature shows."""
    known = (block(data, kind) for signature, offset, block, kind in _SIGNATURES if data.startswith(signature, offset))
    return next(known, None) or Blob(data)


def to_mcp(block: Block | Text | ResourceLink) -> dict[str, Any]:
    """Return a block as an MCP content block."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, UpstreamBlock):
        return block.raw
    if isinstance(block, ResourceLink):
        return {"type": "resource_link", **block.to_mcp()}
    if isinstance(block, Embedded):
        return {"type": "resource", "resource": block.to_mcp()}
    data = b64encode(block.data).decode()
    if block.kind != "resource":
        return {"type": block.kind, "data": data, "mimeType": block.mime_type}
    # MCP requires a URI; it is a hash of the bytes, so that equal answers are equal texts.
    uri = f"callyard://blob/{sha256(block.data).hexdigest()[:32]}"
    return {"type": "resource", "resource": {"uri": uri, "mimeType": block.mime_type, "blob": data}}
