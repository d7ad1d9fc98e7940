from typing import TYPE_CHECKING, Any

import pytest
from table_tests import every_row

from callyard import Profile, Toolset, Yard, prompt, resource, tool
from callyard._internal.signed_tokens import Signer
from callyard.config.settings import Serving
from callyard.server import lists as module
from callyard.server.lists import Lists
from callyard.testing import FakeProvider
from callyard.wire.messages import INVALID_PARAMS
from callyard.wire.results import ResultEncoder, Server
from callyard.wire.versions import LATEST, LATEST_HANDSHAKE

if TYPE_CHECKING:
    from tests.server.conftest import Meet, Peer

OLD = "2025-11-25"


def numbered(count: int) -> list[Any]:
    """Return so many tools."""

    def make(number: int) -> Any:
        @tool(name=f"tool_{number:03}")
        def numbered_tool() -> int:
            """Return a number."""
            return number

        return numbered_tool

    return [make(number) for number in range(count)]


@resource("a://b")
def page() -> str:
    """Return a page."""
    return ""


@resource("a://{name}")
def pages(name: str) -> str:
    """Return some page."""
    return name


@prompt
def words() -> str:
    """Return words."""
    return ""


async def walk(peer: "Peer", method: str = "tools/list", key: str = "tools") -> list[list[str]]:
    """Return the names on each page."""
    found: list[list[str]] = []
    cursor: dict[str, Any] = {}
    while True:
        result = (await peer.ask(method, cursor))["result"]
        found.append([item["name"] for item in result[key]])
        if "nextCursor" not in result:
            return found
        cursor = {"cursor": result["nextCursor"]}


@every_row("era", [OLD, "2026-07-28"])
@every_row("count", [1, 2, 3, 4, 5])
async def test_a_list_comes_in_pages(meet: "Meet", era: str, count: int) -> None:
    async with meet(era=era, tools=numbered(count), settings={"page_size": 2}) as peer:
        found = await walk(peer)

    assert [name for names in found for name in names] == [f"tool_{number:03}" for number in range(count)]
    assert [len(names) for names in found] == [2] * (count // 2) + [1] * (count % 2)


async def test_every_kind_has_its_list(meet: "Meet") -> None:
    async with meet(tools=numbered(1), resources=[page, pages], prompts=[words]) as peer:
        assert await walk(peer, "resources/list", "resources") == [["page"]]
        assert await walk(peer, "resources/templates/list", "resourceTemplates") == [["pages"]]
        assert await walk(peer, "prompts/list", "prompts") == [["words"]]
        assert await walk(peer, "tools/list", "tools") == [["tool_000"]]


async def test_a_cursor_of_a_list_that_changed_is_a_fault(meet: "Meet") -> None:
    provider = FakeProvider("p", numbered(5))
    async with meet(providers=[provider], settings={"page_size": 2}) as peer:
        cursor = (await peer.ask("tools/list"))["result"]["nextCursor"]
        assert "result" in await peer.ask("tools/list", {"cursor": cursor})
        provider.change(numbered(6))
        assert (await peer.ask("tools/list", {"cursor": cursor}))["error"]["code"] == INVALID_PARAMS
        provider.change(numbered(5))
        assert "result" in await peer.ask("tools/list", {"cursor": cursor})


@every_row("cursor", ["", "x", "ä", "5", "AAAA", "x" * 10_000])
async def test_a_cursor_that_is_none_of_ours_is_a_fault(meet: "Meet", cursor: str) -> None:
    async with meet(tools=numbered(5), settings={"page_size": 2}) as peer:
        assert (await peer.ask("tools/list", {"cursor": cursor}))["error"]["code"] == INVALID_PARAMS


@every_row("cursor", [5, [], {}, True])
async def test_a_cursor_that_is_no_text_is_a_fault(meet: "Meet", cursor: object) -> None:
    async with meet(tools=numbered(5)) as peer:
        assert (await peer.ask("tools/list", {"cursor": cursor}))["error"]["code"] == INVALID_PARAMS


async def test_a_cursor_of_another_list_is_a_fault(meet: "Meet") -> None:
    async with meet(tools=numbered(5), prompts=[words], settings={"page_size": 2}) as peer:
        cursor = (await peer.ask("tools/list"))["result"]["nextCursor"]
        assert (await peer.ask("prompts/list", {"cursor": cursor}))["error"]["code"] == INVALID_PARAMS


async def test_a_cursor_of_pages_of_another_size_is_a_fault(meet: "Meet") -> None:
    async with meet(tools=numbered(5), settings={"page_size": 2}) as one:
        cursor = (await one.ask("tools/list"))["result"]["nextCursor"]
    async with meet(tools=numbered(5), settings={"page_size": 3}) as other:
        assert (await other.ask("tools/list", {"cursor": cursor}))["error"]["code"] == INVALID_PARAMS


async def test_a_cursor_is_good_in_another_process_that_knows_the_secret(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch
) -> None:
    async with meet(tools=numbered(3), settings={"page_size": 2}) as one:
        cursor = (await one.ask("tools/list"))["result"]["nextCursor"]
    async with meet(tools=numbered(3), settings={"page_size": 2}) as other:
        assert "result" in await other.ask("tools/list", {"cursor": cursor})
    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    async with meet(tools=numbered(3), settings={"page_size": 2}) as stranger:
        assert "error" in await stranger.ask("tools/list", {"cursor": cursor})
    async with (
        meet(tools=numbered(3), settings={"page_size": 2}) as one,
        meet(tools=numbered(3), settings={"page_size": 2}) as other,
    ):
        cursor = (await one.ask("tools/list"))["result"]["nextCursor"]
        assert "result" in await other.ask("tools/list", {"cursor": cursor})


async def test_the_same_list_is_encoded_once() -> None:
    provider = FakeProvider("p", numbered(2))
    async with Yard(providers=[provider]) as yard:
        lists = Lists(yard, Serving(), Signer(lambda: b"x"))
        new, old = (ResultEncoder(version, Server("s", "1")) for version in (LATEST, LATEST_HANDSHAKE))
        profile = yard.profile
        first = lists.page("tools", profile, new, None)
        assert lists.page("tools", profile, new, None) is first
        assert lists.page("tools", profile, old, None) != first
        provider.change(numbered(2), prompts=[words])
        assert lists.page("tools", profile, new, None) is first
        provider.change(numbered(3))
        assert lists.page("tools", profile, new, None) != first


async def test_the_cache_of_pages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 5)
    async with Yard(tools=numbered(1)) as yard:
        lists = Lists(yard, Serving(), Signer(lambda: b"x"))
        answers = ResultEncoder(LATEST, Server("s", "1"))
        for number in range(30):
            profile = Profile(name=f"p{number}", toolsets=(Toolset(name="t", names=("tool_*",)),))
            assert b"tool_000" in lists.page("tools", profile, answers, None)
        assert len(lists._cache) < 8  # pyright: ignore[reportPrivateUsage] - memory is what is tested
        assert len(lists._fingerprints) < 8  # pyright: ignore[reportPrivateUsage] - the same


async def test_output_schemas_are_shown_if_they_are_wanted(meet: "Meet") -> None:
    for shown in (True, False):
        async with meet(tools=numbered(1), settings={"output_schemas": shown}) as peer:
            item = (await peer.ask("tools/list"))["result"]["tools"][0]
        assert ("outputSchema" in item) is shown


async def test_a_list_of_the_newer_era_says_how_long_it_is_current(meet: "Meet") -> None:
    async with meet(tools=numbered(1)) as peer:
        result = (await peer.ask("tools/list"))["result"]

    assert (result["ttlMs"], result["cacheScope"]) == (60_000, "private")


async def test_a_change_that_no_list_shows_does_not_change_a_list(meet: "Meet") -> None:
    def timed(seconds: float) -> Any:
        @tool(timeout=seconds, name="timed")
        def one() -> None:
            """Do nothing."""

        return one

    provider = FakeProvider("p", [timed(1), *numbered(2)])
    async with meet(providers=[provider], settings={"page_size": 2}) as peer:
        before = (await peer.ask("tools/list"))["result"]
        provider.change([timed(2), *numbered(2)])
        assert (await peer.ask("tools/list"))["result"] == before
        assert "result" in await peer.ask("tools/list", {"cursor": before["nextCursor"]})
