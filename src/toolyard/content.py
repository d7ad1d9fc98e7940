"""Content blocks: what a tool returns besides data, such as an image.

A block is no JSON: it rides beside the envelope, and the data says only what kind of block it is and how large.
"""

from typing import Final, Literal

__all__ = ["Audio", "Blob", "Block", "Image", "Text", "block_of"]


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


class Text:
    """A text block, for tools of plain shape."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def describe(self) -> dict[str, object]:
        """Return what the envelope's data says of the block."""
        return {"type": "text", "text": self.text}


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


def block_of(data: bytes) -> Block:
    """Return bytes as the block that their first bytes say they are."""
    for signature, offset, block, mime_type in _SIGNATURES:
        if data.startswith(signature, offset):
            return block(data, mime_type)
    return Blob(data)
