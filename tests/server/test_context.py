from collections.abc import AsyncGenerator
from typing import Annotated, Any

import pytest
from pydantic import Field

from callyard import Profile, Toolset, Yard, prompt, resource, tool
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, Caller
from callyard.server import ServerContext
from callyard.server import context as module
from callyard.testing import FakeProvider
from callyard.wire.versions import VERSIONS


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
async def server() -> AsyncGenerator[ServerContext]:
    async with Yard(tools=[one], resources=[pages], prompts=[words], instructions="Be kind.") as yard:
        known = ServerContext(yard, Serving(), channel="test")
        yield known
        known.close()


async def test_a_client_keeps_its_name_and_nothing_else_changes(server: ServerContext) -> None:
    base = Caller(identity="ada", scope="s", claims={"a": 1}, profile=Profile(name="p"))
    named = server.caller(base, {"name": "client", "version": "1"})

    assert (named.client, named.identity, named.scope, named.claims, named.profile) == (
        "client",
        "ada",
        "s",
        base.claims,
        base.profile,
    )
    assert server.caller(base, {"name": "client"}) is named


@pytest.mark.parametrize("client", [None, 5, [], "name", {}, {"name": None}, {"name": 5}, {"name": ""}])
async def test_a_client_without_a_name_is_the_caller(server: ServerContext, client: object) -> None:
    assert server.caller(ANYONE, client) is ANYONE


async def test_callers_are_never_mixed_up(server: ServerContext) -> None:
    ada, bob = Caller(identity="ada", claims={"a": 1}), Caller(identity="ada", claims={"a": 2})
    scoped = Caller(identity="ada", scope="other", claims=ada.claims)

    assert server.caller(ada, {"name": "x"}).claims == {"a": 1}
    assert server.caller(bob, {"name": "x"}).claims == {"a": 2}
    assert server.caller(scoped, {"name": "x"}).scope == "other"
    assert server.caller(ada, {"name": "x"}).scope == ""


async def test_long_names_are_cut_and_not_kept(server: ServerContext) -> None:
    caller = server.caller(ANYONE, {"name": "x" * 1_000_000})

    assert len(caller.client) == 100
    assert all(len(part) <= 100 for key in server._callers for part in key if isinstance(part, str))  # pyright: ignore[reportPrivateUsage, reportUnnecessaryIsInstance] - memory is what is tested


async def test_the_cache_of_callers_is_bounded(server: ServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CALLERS", 5)
    for number in range(20):
        assert server.caller(ANYONE, {"name": f"c{number}"}).client == f"c{number}"

    assert len(server._callers) <= 5  # pyright: ignore[reportPrivateUsage] - memory is what is tested


async def test_the_headers_of_a_tool_follow_its_schema() -> None:
    def wanting(header: str) -> Any:
        @tool(aliases=("sooner",))
        def later(a: Annotated[str, Field(json_schema_extra={"x-mcp-header": header})]) -> str:
            """Want a header."""
            return a

        return later

    provider = FakeProvider("more", [wanting("A")])
    async with Yard(tools=[one], providers=[provider]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        name = next(spec.name for spec in yard.list() if "later" in spec.name)
        blind = Caller(profile=Profile(name="blind", toolsets=(Toolset(name="none", names=("one",)),)))
        assert server.param_headers(name, ANYONE) == {("a",): ("A", "string")}
        assert server.param_headers("sooner", ANYONE) == {("a",): ("A", "string")}
        assert server.param_headers(name, blind) is None
        assert server.param_headers("sooner", blind) is None
        assert server.param_headers("one", ANYONE) is None
        assert server.param_headers("nobody", ANYONE) is None

        provider.change([wanting("B")])
        assert server.param_headers(name, ANYONE) == {("a",): ("B", "string")}
        server.close()


async def test_capabilities_depend_on_the_contents_of_the_yard(server: ServerContext) -> None:
    everything = server.capabilities(server.profile_of(ANYONE))

    assert set(everything) == {"tools", "resources", "prompts", "completions", "logging", "extensions"}
    assert server.yard.instructions_for(server.profile_of(ANYONE)) == "Be kind."
    async with Yard(tools=[one]) as yard:
        bare = ServerContext(yard, Serving(), channel="test")
        assert set(bare.capabilities(yard.profile)) == {"tools", "logging", "extensions"}
        bare.close()


async def test_no_notifications_are_promised_to_a_client_without_a_stream(server: ServerContext) -> None:
    promised = server.capabilities(server.profile_of(ANYONE), notifies=False)

    assert all("listChanged" not in capability for capability in promised.values())
    assert "subscribe" not in promised["resources"]


async def test_every_version_has_its_answers(server: ServerContext) -> None:
    assert [server.encoders[version.name].version for version in VERSIONS.values()] == list(VERSIONS.values())


async def test_a_caller_has_its_own_profile_or_that_of_the_yard(server: ServerContext) -> None:
    own = Profile(name="own")

    assert server.profile_of(Caller(profile=own)) is own
    assert server.profile_of(ANYONE) is server.yard.profile
