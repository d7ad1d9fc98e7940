from typing import Any

import pytest
from table_tests import every_row

from callyard import Audio, Blob, Embedded, Image, ResourceLink, Text, Yard, tool
from callyard.model.content import Block, block_from_bytes

PNG = b"\x89PNG\r\n\x1a\n...."


@every_row(
    ("block", "kind", "mime_type"),
    [
        (Image(PNG), "image", "image/png"),
        (Image(PNG, "image/webp"), "image", "image/webp"),
        (Audio(b"sound"), "audio", "audio/wav"),
        (Blob(b"bytes"), "resource", "application/octet-stream"),
    ],
)
def test_a_block_says_what_it_is_and_how_large_and_nothing_of_what_is_in_it(
    block: Block, kind: str, mime_type: str
) -> None:
    assert block.describe() == {"type": kind, "mime_type": mime_type, "bytes": len(block.data)}


def test_a_text_is_described_as_it_is() -> None:
    assert Text("hello").describe() == {"type": "text", "text": "hello"}


@every_row(
    ("data", "kind", "mime_type"),
    [
        (PNG, Image, "image/png"),
        (b"\xff\xd8\xff\xe0", Image, "image/jpeg"),
        (b"GIF89a", Image, "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", Image, "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", Audio, "audio/wav"),
        (b"OggS\x00", Audio, "audio/ogg"),
        (b"fLaC\x00", Audio, "audio/flac"),
        (b"ID3\x03", Audio, "audio/mpeg"),
        (b"", Blob, "application/octet-stream"),
        (b"anything", Blob, "application/octet-stream"),
    ],
)
def test_bytes_become_the_block_that_their_beginning_says(data: bytes, kind: type[Block], mime_type: str) -> None:
    block = block_from_bytes(data)

    assert type(block) is kind
    assert (block.data, block.mime_type) == (data, mime_type)


def test_a_block_keeps_its_own_copy_of_what_can_change() -> None:
    changing: Any = bytearray(b"abc")
    block = Blob(changing)
    changing[0] = 0

    assert block.data == b"abc"


def test_an_embedded_resource_has_either_text_or_bytes() -> None:
    for given in ({}, {"text": "a", "data": b"a"}):
        with pytest.raises(ValueError, match="either"):
            Embedded("a://b", **given)  # pyright: ignore[reportArgumentType] - that is the point


async def test_links_and_embedded_resources_ride_beside_the_answer_of_a_tool() -> None:
    link, embedded = ResourceLink("a://b", "b"), Embedded("a://c", text="see")

    @tool(operation="query")
    async def give() -> list[ResourceLink | Embedded]:
        """Give both."""
        return [link, embedded]

    async with Yard(tools=[give]) as yard:
        answer = await yard.call("give")

    assert answer.content == (link, embedded)
    assert answer.data == [
        {"type": "resource_link", "uri": "a://b", "name": "b"},
        {"type": "resource", "mime_type": "text/plain", "bytes": 3, "uri": "a://c"},
    ]
