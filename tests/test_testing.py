from typing import Any

from callyard import Call, Caller, Operation, Profile, Tool, Toolset, ToolSpec, Yard, tool
from callyard.dispatch.tool import check_by_schema
from callyard.testing import FakeClock, FakeProvider, FakeSink, connect

EMPTY: dict[str, Any] = {"type": "object", "additionalProperties": False}


@tool(operation="query")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def made(name: str) -> Tool:
    async def handler(call: Call) -> object:
        return call.spec.name

    spec = ToolSpec(name=name, description="It does.", input_schema=EMPTY, operation=Operation.QUERY)
    return Tool(spec=spec, handler=handler, check=check_by_schema(EMPTY))


async def test_a_tool_is_tested_in_three_lines() -> None:
    async with connect(Yard(tools=[add])) as client:
        answer = await client.call("add", a=2, b=3)
    assert answer.data == 5


async def test_a_client_sees_what_its_profile_lists() -> None:
    nothing = Profile(name="nothing", toolsets=(Toolset(name="none", deny=("*",)),))
    yard = Yard(tools=[add])

    async with connect(yard) as client:
        assert [spec.name for spec in client.list()] == ["add"]
    async with connect(yard, caller=Caller(profile=nothing)) as client:
        assert client.list() == []
        answer = await client.call("add", a=1)

    assert answer.error is not None
    assert answer.error.code == "tool_not_found"


async def test_a_client_remembers_every_notification() -> None:
    @tool
    async def work(call: Call) -> str:
        """Work."""
        await call.progress(1, 2, "half")
        await call.log("info", "working", rows=3)
        answer = await call.ask({"type": "object", "properties": {}}, "Sure?")
        return answer["sure"]

    async with connect(Yard(tools=[work]), answers=[{"sure": "yes"}]) as client:
        answer = await client.call("work")

    assert answer.data == "yes"
    assert [(note.done, note.total, note.text) for note in client.notes] == [(1, 2, "half")]
    assert client.lines == [("info", "working", {"rows": 3})]
    assert client.questions == ["Sure?"]


async def test_a_client_without_answers_cannot_be_asked() -> None:
    @tool
    async def ask(call: Call) -> object:
        """Ask."""
        return await call.ask({"type": "object", "properties": {}}, "Sure?")

    async with connect(Yard(tools=[ask])) as client:
        answer = await client.call("ask")

    assert answer.error is not None
    assert (answer.error.code, client.questions) == ("not_supported", [])


async def test_a_client_calls_as_whom_it_is() -> None:
    @tool
    async def who(call: Call) -> list[str]:
        """Tell who calls."""
        return [call.caller.identity, call.caller.scope, call.channel.name]

    async with connect(Yard(tools=[who]), caller=Caller(identity="me", scope="chat")) as client:
        answer = await client.call("who")

    assert answer.data == ["me", "chat", "test"]


async def test_an_argument_may_have_any_name() -> None:
    @tool
    async def take(name: str, self: int) -> list[object]:
        """Take."""
        return [name, self]

    async with connect(Yard(tools=[take])) as client:
        answer = await client.call("take", name="n", self=1)

    assert answer.data == ["n", 1]


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(5)

    assert clock() == clock() == 5
    clock.advance(2.5)
    assert clock() == 7.5


async def test_a_fake_sink_remembers_every_record() -> None:
    sink = FakeSink()
    async with Yard(tools=[add], sinks=[sink]) as yard:
        await yard.call("add", {"a": 1})
        await yard.call("add")

    assert sink.codes == [None, "invalid_input"]
    assert [record.success for record in sink.records] == [True, False]


async def test_a_fake_provider_publishes_changes_while_it_is_open() -> None:
    provider = FakeProvider("p", [made("a")])
    yard = Yard(providers=[provider])
    provider.change([made("b")])
    assert not provider.is_open

    async with yard:
        assert provider.is_open
        assert [spec.name for spec in yard.list()] == ["b"]
        provider.change([made("c"), made("d")])
        assert [spec.name for spec in yard.list()] == ["c", "d"]

    assert not provider.is_open
    provider.change([made("e")])
    assert len(yard.registry) == 0
