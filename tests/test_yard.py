import asyncio
from collections import ChainMap, OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import pytest
from table_tests import every_row

from callyard import (
    Call,
    Caller,
    Envelope,
    Limits,
    Operation,
    Profile,
    PublishError,
    Session,
    Tool,
    ToolError,
    Toolset,
    ToolSpec,
    Yard,
    tool,
)
from callyard.dispatch.tool import check_by_schema
from callyard.model.envelope import Failure
from callyard.providers import Publish
from callyard.state.memory import MemoryStore
from callyard.testing import FakeProvider, FakeSink

EMPTY: dict[str, Any] = {"type": "object", "additionalProperties": False}
READ_ONLY = Profile(name="read_only", toolsets=(Toolset(name="queries", operations=(Operation.QUERY,)),))


@tool(operation="query")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="destroy")
async def wipe() -> str:
    """Delete everything."""
    return "gone"


def made(name: str, **given: Any) -> Tool:
    async def handler(call: Call) -> object:
        return call.spec.name

    spec = ToolSpec(name=name, description="It does.", input_schema=EMPTY, operation=Operation.QUERY, **given)
    return Tool(spec=spec, handler=handler, check=check_by_schema(EMPTY))


def failure(answer: Envelope) -> Failure:
    assert answer.error is not None
    return answer.error


def names(yard: Yard, profile: Profile | str | None = None) -> list[str]:
    return [spec.name for spec in yard.list(profile)]


async def test_a_yard_answers_while_it_is_open_and_not_before_or_after() -> None:
    yard = Yard(tools=[add])
    with pytest.raises(RuntimeError, match="'yard'"):
        await yard.call("add")
    async with yard:
        assert (await yard.call("add", {"a": 1})).data == 2
    with pytest.raises(RuntimeError, match="'yard'"):
        await yard.call("add")


@every_row(
    "arguments",
    [{"a": 1}, MappingProxyType({"a": 1}), ChainMap({"a": 1}), OrderedDict({"a": 1})],
    ids=lambda given: type(given).__name__,
)
async def test_arguments_may_be_any_mapping(arguments: Mapping[str, int]) -> None:
    async with Yard(tools=[add]) as yard:
        answer = await yard.call("add", arguments)

    assert answer.data == 2


async def test_a_yard_may_be_opened_again_once_it_is_closed() -> None:
    yard = Yard(tools=[add])
    for _ in range(2):
        async with yard:
            assert (await yard.call("add", {"a": 1})).data == 2
    assert len(yard.registry) == 0


async def test_opening_a_yard_twice_fails_and_leaves_it_open() -> None:
    async with Yard(tools=[add]) as yard:
        with pytest.raises(RuntimeError, match="'yard'"):
            await yard.__aenter__()
        assert (await yard.call("add", {"a": 1})).success


async def test_opening_a_yard_twice_at_the_same_time_fails_once() -> None:
    opened: list[int] = []

    @asynccontextmanager
    async def lifespan(_: Yard) -> AsyncGenerator[None]:
        opened.append(1)
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        yield
        opened.pop()

    yard = Yard(lifespan=lifespan)
    outcomes = await asyncio.gather(yard.__aenter__(), yard.__aenter__(), return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes].count("RuntimeError") == 1
    await yard.__aexit__(None, None, None)

    assert opened == []


async def test_closing_a_yard_that_is_not_open_does_nothing() -> None:
    await Yard().__aexit__(None, None, None)


async def test_the_value_of_the_lifespan_is_there_for_every_call_and_is_closed_last() -> None:
    steps: list[str] = []

    class Watching:
        name = "watching"

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            steps.append("provider opens")
            publish([])
            yield
            steps.append("provider closes")

    @asynccontextmanager
    async def lifespan(yard: Yard) -> AsyncGenerator[dict[str, str]]:
        steps.append(f"lifespan of {yard.name} opens")
        yield {"database": "there"}
        steps.append("lifespan closes")

    @tool
    async def look(call: Call) -> str:
        """Look."""
        session = call.start_session()
        session.on_end(lambda: steps.append("session ends"))
        return call.state["database"]

    async with Yard("depot", tools=[look], providers=[Watching()], lifespan=lifespan) as yard:
        assert (await yard.call("look")).data == "there"

    assert steps == ["lifespan of depot opens", "provider opens", "session ends", "provider closes", "lifespan closes"]


async def test_without_a_lifespan_there_is_no_state() -> None:
    @tool
    async def look(call: Call) -> object:
        """Look."""
        return call.state

    async with Yard(tools=[look]) as yard:
        answer = await yard.call("look")

    assert (answer.success, answer.data) == (True, None)


async def test_a_yard_that_cannot_be_opened_closes_what_it_opened() -> None:
    provider = FakeProvider("good", [made("a")])
    closed: list[int] = []

    @asynccontextmanager
    async def lifespan(_: Yard) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            closed.append(1)

    yard = Yard(providers=[provider, FakeProvider("bad", [made("Bad")])], lifespan=lifespan)
    with pytest.raises(PublishError):
        async with yard:
            raise AssertionError

    assert (provider.is_open, closed, len(yard.registry)) == (False, [1], 0)
    with pytest.raises(RuntimeError):
        _ = yard.dispatcher


async def test_a_wrong_function_fails_when_the_yard_opens_and_names_the_tool_and_its_parameter() -> None:
    @tool
    async def take(what: Any = object()) -> int:  # noqa: B008 - the default is the fault
        """Take."""
        return 1

    with pytest.raises(PublishError, match=r"'take'.*'what'"):
        async with Yard(tools=[take]):
            raise AssertionError


async def test_two_tools_of_one_name_fail_when_the_yard_opens() -> None:
    for yard in (
        Yard(tools=[add, add]),
        Yard(tools=[add], providers=[FakeProvider("p", [made("add")])]),
        Yard(providers=[FakeProvider("p", [made("a")]), FakeProvider("q", [made("b", aliases=("a",))])]),
    ):
        with pytest.raises(PublishError):
            async with yard:
                raise AssertionError


def test_two_providers_of_one_name_fail_at_once() -> None:
    for given in (
        {"providers": [FakeProvider("p"), FakeProvider("p")]},
        {"tools": [add], "providers": [FakeProvider("yard")]},
        {"providers": [FakeProvider("system")], "packs": ["system"]},
        {"name": "system", "tools": [add], "packs": ["system"]},
        {"packs": ["system", "system"]},
    ):
        options: dict[str, Any] = given
        with pytest.raises(ValueError, match="Two providers"):
            Yard(**options)


def test_a_pack_nobody_knows_fails_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'sistem'.*system"):
        Yard(packs=["sistem"])


async def test_a_yard_lists_by_profile_object_or_name() -> None:
    nothing = Profile(name="nothing", toolsets=(Toolset(name="none", deny=("*",)),))
    async with Yard(tools=[add, wipe], profile=READ_ONLY, profiles=[nothing]) as yard:
        assert names(yard) == names(yard, "read_only") == names(yard, READ_ONLY) == ["add"]
        assert names(yard, "nothing") == []
        assert names(yard, Profile(name="other")) == ["add", "wipe"]
        with pytest.raises(KeyError):
            yard.list("no such profile")
        assert [profile.name for profile in yard.profiles] == ["read_only", "nothing"]


async def test_the_yards_own_profile_holds_for_callers_without_one() -> None:
    everything = Profile(name="everything")
    async with Yard(tools=[add, wipe], profile=READ_ONLY) as yard:
        answers = [
            await yard.call("wipe"),
            await yard.call("wipe", caller=Caller(identity="me")),
            await yard.call("wipe", caller=Caller(profile=everything)),
        ]

    assert [answer.success for answer in answers] == [False, False, True]
    assert failure(answers[0]).code == "tool_not_found"


async def test_two_yards_in_one_process_are_independent() -> None:
    @tool
    async def begin(call: Call) -> str:
        """Start a session."""
        return call.start_session().id

    one_sink, other_sink = FakeSink(), FakeSink()
    async with (
        Yard("one", tools=[add, begin], sinks=[one_sink]) as one,
        Yard("other", tools=[begin], sinks=[other_sink]) as other,
    ):
        session = (await one.call("begin")).data
        assert names(other) == ["begin"]
        assert (await other.call("add", {"a": 1})).success is False
        assert one.sessions.ids(Caller().owner) == [session]
        assert other.sessions.ids(Caller().owner) == []

    assert one_sink.codes == [None]
    assert other_sink.codes == ["tool_not_found"]


async def test_a_sink_may_be_added_and_removed_while_the_yard_is_open() -> None:
    sink = FakeSink()
    async with Yard(tools=[add]) as yard:
        stop = yard.add_sink(sink)
        await yard.call("add", {"a": 1})
        stop()
        stop()
        await yard.call("add", {"a": 1})

    assert len(sink.records) == 1


async def test_a_yard_keeps_large_results_in_the_store_it_is_given() -> None:
    store = MemoryStore()
    async with Yard(tools=[wipe], store=store, limits=Limits(result_characters=1)) as yard:
        answer = await yard.call("wipe")

    assert answer.data["status"] == "stored"
    assert len(await store.keys("result/")) == 1


async def test_the_settings_tell_what_is_not_default() -> None:
    settings = Yard("depot", limits=Limits(depth=1)).settings()

    assert settings["name"] == {"value": "depot", "from": "code"}
    assert settings["depth"] == {"value": 1, "from": "code"}
    assert settings["allow_eval"] == {"value": False, "from": "default"}


async def test_a_yard_may_be_a_provider_of_another() -> None:
    inner_sink, outer_sink = FakeSink(), FakeSink()
    inner = Yard("inner", tools=[add], sinks=[inner_sink])
    async with Yard("outer", providers=[inner], sinks=[outer_sink]) as outer:
        answer = await outer.call("add", {"a": 2, "b": 3})
        bad = await outer.call("add", {"a": "many"})
        [spec] = outer.list()

    assert answer.data == 5
    assert spec.source == "inner"
    [outside, refused], [inside] = outer_sink.records, inner_sink.records
    assert (outside.tool, inside.tool) == ("add", "add")
    assert (inside.parent_id, inside.depth, outside.depth) == (outside.call_id, 1, 0)
    assert (refused.code, failure(bad).code) == ("invalid_input", "invalid_input")
    with pytest.raises(RuntimeError):
        await inner.call("add", {"a": 1})


async def test_a_yard_that_holds_somebody_elses_tools_can_be_held_itself() -> None:
    loose = ToolSpec(
        name="loose", description="Takes anything.", input_schema={"type": "object"}, operation=Operation.QUERY
    )

    async def handler(call: Call) -> object:
        return call.arguments

    class Elsewhere:
        name = "elsewhere"

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            publish([Tool(spec=loose, handler=handler, check=check_by_schema(loose.input_schema))], foreign=True)
            yield

    async with Yard("outer", providers=[Yard("inner", providers=[Elsewhere()])]) as outer:
        assert (await outer.call("loose", {"x": 1})).data == {"x": 1}


async def test_every_call_of_an_inner_yard_passes_both_funnels() -> None:
    passed: list[str] = []

    def note(where: str) -> Any:
        def wrap(handler: Any) -> Any:
            async def noted(call: Call) -> object:
                passed.append(where)
                return await handler(call)

            return noted

        return wrap

    inner = Yard("inner", tools=[add], middleware=[note("inner")])
    async with Yard("outer", providers=[inner], middleware=[note("outer")]) as outer:
        await outer.call("add", {"a": 1})

    assert passed == ["outer", "inner"]


async def test_the_profile_of_an_inner_yard_holds_whatever_the_callers_allows() -> None:
    inner = Yard("inner", tools=[add, wipe], profile=READ_ONLY)
    async with Yard("outer", providers=[inner]) as outer:
        answer = await outer.call("wipe", caller=Caller(profile=Profile(name="everything")))
        assert names(outer) == ["add"]

    assert failure(answer).code == "tool_not_found"


async def test_the_profile_of_the_outer_yard_holds_too() -> None:
    inner = Yard("inner", tools=[add, wipe])
    async with Yard("outer", providers=[inner], profile=READ_ONLY) as outer:
        answer = await outer.call("wipe")

    assert failure(answer).code == "tool_not_found"


async def test_a_change_inside_shows_outside() -> None:
    provider = FakeProvider("p", [made("a")])
    async with Yard("outer", providers=[Yard("inner", providers=[provider])]) as outer:
        before = outer.registry.hash(outer.profile)
        assert names(outer) == ["a"]
        provider.change([made("b")])
        assert names(outer) == ["b"]
        assert (await outer.call("b")).data == "b"
        assert outer.registry.hash(outer.profile) != before
        assert failure(await outer.call("a")).details["status"] == "withdrawn"
        provider.change([])
        assert names(outer) == []


async def test_a_session_of_an_inner_yard_can_be_used_from_outside() -> None:
    @tool
    async def begin(call: Call) -> str:
        """Start a session."""
        session = call.start_session()
        session.state["n"] = 0
        return session.id

    @tool
    async def count(session: Session) -> int:
        """Count up."""
        session.state["n"] += 1
        return session.state["n"]

    inner = Yard("inner", tools=[begin, count])
    async with Yard("outer", providers=[inner]) as outer:
        none = await outer.call("count")
        session = (await outer.call("begin")).data
        answers = [await outer.call("count"), await outer.call("count", session=session)]
        stranger = await outer.call("count", session=session, caller=Caller(identity="you"))

    assert [answer.data for answer in answers] == [1, 2]
    assert answers[0].meta.session_id == session
    assert (failure(none).code, failure(stranger).code) == ("not_running", "not_running")


async def test_a_failure_inside_is_the_same_outside() -> None:
    @tool(reasons=("closed",))
    async def fail() -> int:
        """Fail."""
        raise ToolError("state_error", "…", reason="closed", data=[1])

    async with Yard("outer", providers=[Yard("inner", tools=[fail])]) as outer:
        answer = await outer.call("fail")

    assert (failure(answer).code, failure(answer).details, answer.data) == ("state_error", {"reason": "closed"}, [1])
    assert failure(answer).may_have_run


async def test_arguments_put_right_outside_are_said_once() -> None:
    async with Yard("outer", providers=[Yard("inner", tools=[add])]) as outer:
        answer = await outer.call("add", {"a": "2"})

    assert (answer.data, answer.meta.coerced) == (3, ("a",))


async def test_a_warning_of_an_inner_yard_appears_once() -> None:
    @tool(deprecated="Use 'newer'.", aliases=["older"])
    async def old() -> int:
        """Do it."""
        return 1

    async with Yard("outer", providers=[Yard("inner", tools=[old])]) as outer:
        by_name, by_alias = await outer.call("old"), await outer.call("older")

    assert len(by_name.meta.warnings) == 1
    assert len(by_alias.meta.warnings) == 2


async def test_a_large_result_from_inside_is_kept_outside() -> None:
    @tool
    async def make() -> str:
        """Make much."""
        return "x" * 1000

    limits = Limits(result_characters=100)
    async with Yard("outer", providers=[Yard("inner", tools=[make, add], limits=limits)], limits=limits) as outer:
        answer = await outer.call("make")
        again = await outer.call("add", {"a": {"$ref": answer.data["handle"]}})

    assert answer.data["status"] == "stored"
    assert failure(again).code == "invalid_input"


async def test_eval_must_be_allowed_in_both_yards() -> None:
    @tool(operation="eval")
    async def run(code: str) -> str:
        """Run code."""
        return code

    for inside, outside in ((True, False), (False, True), (True, True)):
        inner = Yard("inner", tools=[run], allow_eval=inside)
        async with Yard("outer", providers=[inner], allow_eval=outside) as outer:
            answer = await outer.call("run", {"code": "1"})
        assert answer.success is (inside and outside)


async def test_a_name_that_both_yards_have_fails_when_the_outer_opens() -> None:
    inner = Yard("inner", tools=[add])
    with pytest.raises(PublishError):
        async with Yard("outer", tools=[add], providers=[inner]):
            raise AssertionError
    with pytest.raises(RuntimeError):
        await inner.call("add")


async def test_calls_inside_calls_may_cross_both_yards() -> None:
    @tool
    async def twice(call: Call) -> int:
        """Call inside."""
        first = await call.invoke("add", {"a": 1})
        return (await call.invoke("add", {"a": first.data})).data

    inner_sink = FakeSink()
    inner = Yard("inner", tools=[add, twice], sinks=[inner_sink])
    async with Yard("outer", providers=[inner]) as outer:
        answer = await outer.call("twice")

    assert answer.data == 3
    assert [record.tool for record in inner_sink.records] == ["add", "add", "twice"]
    assert [record.depth for record in inner_sink.records] == [2, 2, 1]


async def test_how_busy_a_yard_is_can_be_asked() -> None:
    async with Yard() as yard:
        assert (yard.calls_in_flight, yard.abandoned_threads) == (0, 0)


def test_the_public_names_are_there_and_no_others() -> None:
    import callyard  # noqa: PLC0415 - the module is what is tested

    assert dir(callyard) == sorted(callyard.__all__)
    assert all(getattr(callyard, name) is not None for name in callyard.__all__)
    with pytest.raises(AttributeError):
        _ = getattr(callyard, "nothing")  # noqa: B009 - a name that type checkers would refuse
