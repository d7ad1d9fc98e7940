from typing import TYPE_CHECKING, Any

import pytest

from toolyard import Call, tool
from toolyard.server.methods import Bare, is_modern
from toolyard.wire.messages import INVALID_PARAMS, UNSUPPORTED_VERSION

if TYPE_CHECKING:
    from tests.conversation.conftest import Meet

PREFIX = "io.modelcontextprotocol/"
MODERN = "2026-07-28"


@tool
async def say(level: str, call: Call) -> None:
    """Say something at a level."""
    call.log(level, "words")


def test_a_request_is_of_the_newer_era_if_it_says_so() -> None:
    assert is_modern("tools/list", Bare(meta={PREFIX + "protocolVersion": "?"}))
    assert is_modern("server/discover", Bare())
    assert is_modern("subscriptions/listen", Bare(meta={}))
    assert not is_modern("tools/list", Bare())
    assert not is_modern("tools/list", Bare(meta={"progressToken": 1}))


async def test_a_discovery_tells_what_there_is(meet: "Meet") -> None:
    async with meet(tools=[say], instructions="Be kind.") as peer:
        result = (await peer.ask("server/discover"))["result"]

    assert result["supportedVersions"] == [MODERN]
    assert result["instructions"] == "Be kind."
    assert result["_meta"][PREFIX + "serverInfo"]["name"] == "met"
    assert result["capabilities"]["tools"] == {"listChanged": True}


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({}, INVALID_PARAMS),
        ({"protocolVersion": MODERN}, INVALID_PARAMS),
        ({"clientCapabilities": {}}, INVALID_PARAMS),
        ({"protocolVersion": 1, "clientCapabilities": {}}, INVALID_PARAMS),
        ({"protocolVersion": MODERN, "clientCapabilities": 5}, INVALID_PARAMS),
        ({"protocolVersion": "2025-11-25", "clientCapabilities": {}}, UNSUPPORTED_VERSION),
        ({"protocolVersion": MODERN, "clientCapabilities": {}, "logLevel": "loud"}, INVALID_PARAMS),
        ({"protocolVersion": MODERN, "clientCapabilities": {}, "logLevel": []}, INVALID_PARAMS),
    ],
)
async def test_a_request_must_say_what_a_server_must_know(meet: "Meet", meta: dict[str, Any], code: int) -> None:
    async with meet() as peer:
        said = {PREFIX + key: value for key, value in meta.items()}
        peer.say({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": said}})
        refused = await peer.hear()

    assert (refused["id"], refused["error"]["code"]) == (1, code)


async def test_a_client_that_wants_no_log_hears_none(meet: "Meet") -> None:
    async with meet(tools=[say]) as peer:
        await peer.ask("tools/call", {"name": "say", "arguments": {"level": "error"}})
        assert peer.notices == []
        for level, heard in (("info", False), ("warning", True), ("error", True)):
            peer.notices.clear()
            await peer.ask("tools/call", {"name": "say", "arguments": {"level": level}}, {PREFIX + "logLevel": "warning"})
            assert bool(peer.notices) is heard


async def test_a_client_that_is_named_strangely_is_served_all_the_same(meet: "Meet") -> None:
    async with meet(tools=[say]) as peer:
        for client in (None, 5, {}, {"name": 5}, {"name": ""}, {"name": "x" * 100_000}):
            assert "result" in await peer.ask("tools/list", meta={PREFIX + "clientInfo": client})
