from base64 import b64encode

import pytest

from toolyard import Audio, Blob, Embedded, Image, ResourceLink, Text
from toolyard.model.content import to_mcp
from toolyard.model.envelope import Content
from toolyard.wire.results import understood
from toolyard.wire.versions import VERSIONS

DATA = b64encode(b"abc").decode()


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (Text("hello"), {"type": "text", "text": "hello"}),
        (Image(b"abc"), {"type": "image", "data": DATA, "mimeType": "image/png"}),
        (Audio(b"abc", "audio/ogg"), {"type": "audio", "data": DATA, "mimeType": "audio/ogg"}),
        (
            Embedded("a://b", text="abc"),
            {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "abc"}},
        ),
        (
            Embedded("a://b", data=b"abc", mime_type="x/y"),
            {"type": "resource", "resource": {"uri": "a://b", "mimeType": "x/y", "blob": DATA}},
        ),
        (ResourceLink("a://b", "b"), {"type": "resource_link", "uri": "a://b", "name": "b"}),
        (
            ResourceLink("a://b", "b", title="B", description="It is b.", mime_type="x/y", size=3),
            {
                "type": "resource_link",
                "uri": "a://b",
                "name": "b",
                "title": "B",
                "description": "It is b.",
                "mimeType": "x/y",
                "size": 3,
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_block_is_written_as_mcp_does(block: Content, expected: dict[str, object]) -> None:
    assert to_mcp(block) == expected


def test_bytes_that_have_no_uri_get_the_same_one_every_time() -> None:
    first, again, other = (to_mcp(Blob(data))["resource"] for data in (b"abc", b"abc", b"abd"))

    assert first == again
    assert first["uri"] != other["uri"]
    assert first["uri"].startswith("toolyard://blob/")
    assert (first["mimeType"], first["blob"]) == ("application/octet-stream", DATA)


@pytest.mark.parametrize(
    ("version", "kinds"),
    [
        ("2024-11-05", ["text", "text", "image"]),
        ("2025-03-26", ["audio", "text", "image"]),
        ("2025-06-18", ["audio", "resource_link", "image"]),
        ("2026-07-28", ["audio", "resource_link", "image"]),
    ],
)
def test_a_block_that_a_version_does_not_have_is_told_as_text(version: str, kinds: list[str]) -> None:
    blocks = [to_mcp(block) for block in (Audio(b"abc"), ResourceLink("a://b", "b"), Image(b"abc"))]
    told = [understood(block, VERSIONS[version]) for block in blocks]

    assert [block["type"] for block in told] == kinds
    assert all("a://b" in block["text"] or "audio/wav" in block["text"] for block in told if block["type"] == "text")
