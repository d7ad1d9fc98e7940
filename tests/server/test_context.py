from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from pydantic import Field

from toolyard import Profile, Toolset, Yard, prompt, resource, tool
from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE, Caller
from toolyard.server import ServerContext
from toolyard.server import context as module
from toolyard.testing import FakeProvider
from toolyard.wire.versions import VERSIONS


@tool
def one() -> int:
    """Return one."""
    return 1


@resource("a://{name}")
def pages(name: str) -> str:
    """Return some page."""
    return name


@prompt
def words() -> str:
    """Return words."""
    return ""


@pytest.fixture
async def front() -> AsyncGenerator[ServerContext]:
    async with Yard(tools=[one], resources=[pages], prompts=[words], instructions="Be kind.") as yard:
        known = ServerContext(yard, Serving(), channel="test")
        yield known
        known.close()


async def test_a_client_keeps_its_name_and_nothing_else_changes(front: ServerContext) -> None:
    base = Caller(identity="ada", scope="s", claims={"a": 1}, profile=Profile(name="p"))
    named = front.caller(base, {"name": "client", "version": "1"})

    assert (named.client, named.identity, named.scope, named.claims, named.profile) == (
        "client",
        "ada",
        "s",
        base.claims,
        base.profile,
    )
    assert front.caller(base, {"name": "client"}) is named


@pytest.mark.parametrize("client", [None, 5, [], "name", {}, {"name": None}, {"name": 5}, {"name": ""}])
async def test_a_client_without_a_name_is_the_caller(front: ServerContext, client: object) -> None:
    assert front.caller(ANYONE, client) is ANYONE


async def test_callers_are_never_mixed_up(front: ServerContext) -> None:
    ada, bob = Caller(identity="ada", claims={"a": 1}), Caller(identity="ada", claims={"a": 2})
    scoped = Caller(identity="ada", scope="other", claims=ada.claims)

    assert front.caller(ada, {"name": "x"}).claims == {"a": 1}
    assert front.caller(bob, {"name": "x"}).claims == {"a": 2}
    assert front.caller(scoped, {"name": "x"}).scope == "other"
    assert front.caller(ada, {"name": "x"}).scope == ""


async def test_long_names_are_cut_and_not_kept(front: ServerContext) -> None:
    caller = front.caller(ANYONE, {"name": "x" * 1_000_000})

    assert len(caller.client) == 100
    assert all(len(part) <= 100 for key in front._callers for part in key if isinstance(part, str))  # pyright: ignore[reportPrivateUsage, reportUnnecessaryIsInstance] - memory is what is tested


async def test_what_is_remembered_is_bounded(front: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CALLERS", 5)
    for number in range(20):
        assert front.caller(ANYONE, {"name": f"c{number}"}).client == f"c{number}"

    assert len(front._callers) <= 5  # pyright: ignore[reportPrivateUsage] - memory is what is tested


async def test_the_headers_of_a_tool_follow_its_schema() -> None:
    def wanting(header: str) -> Any:
        @tool(aliases=("sooner",))
        def later(a: Annotated[str, Field(json_schema_extra={"x-mcp-header": header})]) -> str:
            """Want a header."""
            return a

        return later

    provider = FakeProvider("more", [wanting("A")])
    async with Yard(tools=[one], providers=[provider]) as yard:
        front = ServerContext(yard, Serving(), channel="test")
        name = next(spec.name for spec in yard.list() if "later" in spec.name)
        blind = Caller(profile=Profile(name="blind", toolsets=(Toolset(name="none", names=("one",)),)))
        assert front.wanted_headers(name, ANYONE) == {("a",): ("A", "string")}
        assert front.wanted_headers("sooner", ANYONE) == {("a",): ("A", "string")}
        assert front.wanted_headers(name, blind) is None
        assert front.wanted_headers("sooner", blind) is None
        assert front.wanted_headers("one", ANYONE) is None
        assert front.wanted_headers("nobody", ANYONE) is None

        provider.change([wanting("B")])
        assert front.wanted_headers(name, ANYONE) == {("a",): ("B", "string")}
        front.close()


async def test_what_can_be_done_depends_on_what_there_is(front: ServerContext) -> None:
    everything = front.capabilities(front.profile_of(ANYONE))

    assert set(everything) == {"tools", "resources", "prompts", "completions", "logging"}
    assert front.instructions(front.profile_of(ANYONE)) == "Be kind."
    async with Yard(tools=[one]) as yard:
        bare = ServerContext(yard, Serving(), channel="test")
        assert set(bare.capabilities(yard.profile)) == {"tools", "logging"}
        bare.close()


async def test_nothing_is_promised_to_who_cannot_be_told(front: ServerContext) -> None:
    told = front.capabilities(front.profile_of(ANYONE), notifies=False)

    assert all("listChanged" not in capability for capability in told.values())
    assert "subscribe" not in told["resources"]


async def test_every_version_has_its_answers(front: ServerContext) -> None:
    assert [front.answers(version).version for version in VERSIONS.values()] == list(VERSIONS.values())


async def test_a_caller_has_its_own_profile_or_that_of_the_yard(front: ServerContext) -> None:
    own = Profile(name="own")

    assert front.profile_of(Caller(profile=own)) is own
    assert front.profile_of(ANYONE) is front.yard.profile
