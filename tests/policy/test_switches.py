"""What operators disable: who finds it, what ends, what goes on, what other processes see, and when it comes back."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from backends import require

from callyard import (
    Call,
    Caller,
    Envelope,
    EvalRule,
    Limits,
    MemoryStore,
    Operation,
    Profile,
    RuntimeSettings,
    SqliteStore,
    StoreUnavailableError,
    ToolError,
    Toolset,
    Yard,
    prompt,
    resource,
    tool,
)
from callyard.model.profile import EVERYTHING
from callyard.policy.approvals import Approvals, AuditLine
from callyard.policy.settings import QueueSettings, Rule
from callyard.policy.switches import StoredSwitches, withdraw_covered
from callyard.providers import Publish
from callyard.testing import FakeClock, FakeProvider

OPERATOR = "user:op"
ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
NO_SHOP = Profile(name="no_shop", toolsets=(Toolset(name="others", deny_sources=("shop",)),))


@tool(operation="query", aliases=("fetch",))
async def shop_find(words: str = "") -> str:
    """Find a thing."""
    return f"found {words}"


@tool(operation="destroy")
async def shop_burn(name: str) -> str:
    """Burn a thing."""
    return f"burnt {name}"


@tool(operation="command")
async def shop_open(call: Call) -> str:
    """Open a session."""
    session = call.start_session(kind="shop")
    session.data["n"] = 1
    return session.id


@resource("shop://list")
async def shop_list() -> str:
    """List things."""
    return "a, b"


@resource("shop://things/{name}")
async def shop_thing(name: str) -> str:
    """Show a thing."""
    return name


@resource("shop://{+any}")
async def anything(any: str) -> str:  # noqa: A002 - a variable of the template
    """Show anything."""
    return f"any {any}"


@prompt
def shop_words() -> str:
    """Ask for words."""
    return "words"


@tool(operation="query")
async def other() -> int:
    """Return one."""
    return 1


@tool(operation="query", session="required")
async def other_peek(call: Call) -> dict[str, Any]:
    """Look into a session."""
    assert call.session is not None
    return call.session.data


def shop(*tools: Any) -> FakeProvider:
    return FakeProvider(
        "shop",
        tools or (shop_find, shop_burn, shop_open),
        resources=[shop_list, shop_thing],
        prompts=[shop_words],
    )


def yard_of(*providers: FakeProvider, **options: Any) -> Yard:
    return Yard("own", tools=[other, other_peek], providers=providers or [shop()], **options)


def refused(answer: Envelope) -> tuple[str, Any, Any]:
    """Return the code, the reason and the end of a failure."""
    assert answer.error is not None, answer
    return answer.error.code, answer.error.details.get("reason"), answer.error.details.get("until")


def names(yard: Yard, profile: Profile = EVERYTHING) -> list[str]:
    return [spec.name for spec in yard.registry.visible(profile) if spec.name.startswith(("shop", "other"))]


GONE = ("tool_not_found", "disabled", None)
GONE_QUERY = ("not_found", "disabled", None)


async def test_a_disabled_tool_is_not_listed_and_answers_until_when() -> None:
    async with yard_of() as yard:
        switch = await yard.switches.disable("shop_find", by=OPERATOR, reason="It is wrong.", seconds=3600)
        answer = await yard.call("shop_find")
        others = await yard.call("other"), await yard.call("shop_open")
        listed = names(yard)
        await yard.switches.enable("shop_find", by=OPERATOR)
        again = await yard.call("shop_find", {"words": "x"})

    assert switch.until is not None
    assert refused(answer) == ("tool_not_found", "disabled", switch.until)
    assert answer.error is not None
    assert (answer.error.may_have_run, answer.error.details["status"]) == (False, "disabled")
    assert "It is wrong." in answer.error.message
    assert all(one.success for one in others)
    assert listed == ["other", "other_peek", "shop_burn", "shop_open"]
    assert again.data == "found x"


async def test_a_name_is_that_of_a_tool_a_source_or_a_pattern() -> None:
    rows = {
        "shop": {"shop_burn", "shop_find", "shop_open"},
        "fetch": {"shop_find"},
        "shop_[fo]*": {"shop_find", "shop_open"},
        "*": {"other", "other_peek", "shop_burn", "shop_find", "shop_open"},
        "Shop": set[str](),
    }
    async with yard_of() as yard:
        every = set(names(yard))
        for target, gone in rows.items():
            await yard.switches.disable(target, by=OPERATOR)
            assert every - set(names(yard)) == gone, target
            assert yard.registry.resolve("run_tool") is not None, target
            await yard.switches.enable(target, by=OPERATOR)
        assert set(names(yard)) == every


async def test_a_metatool_is_disabled_by_its_whole_name_with_its_alias() -> None:
    async with yard_of() as yard:
        await yard.switches.disable("run_tool", by=OPERATOR)
        answers = [await yard.call(name, {"tool_id": "other"}) for name in ("run_tool", "call_tool")]
        await yard.switches.disable("metatools", by=OPERATOR)
        search = await yard.call("search_tools", {"query": "find"})

    assert [refused(answer) for answer in [*answers, search]] == [GONE] * 3


async def test_former_names_nested_calls_resources_and_prompts_of_a_disabled_source_are_gone() -> None:
    chain = {"steps": [{"tool_id": "other"}, {"tool_id": "shop_find"}]}
    async with yard_of(FakeProvider("any", resources=[anything]), shop()) as yard:
        await yard.switches.disable("shop", by=OPERATOR)
        former = await yard.call("fetch")
        wrapped = [await yard.call("run_tool", {"tool_id": name}) for name in ("shop_find", "fetch")]
        job = await yard.call("run_tool", {"tool_id": "shop_find", "background": True})
        described = await yard.call("describe_tool", {"tool_id": "shop_find"})
        chained = await yard.call("run_chain", chain)
        found = await yard.call("search_tools", {"query": "find a thing"})
        read = [await yard.read(uri) for uri in ("shop://list", "shop://things/a", "shop://things/{name}")]
        asked = await yard.prompt("shop_words")
        with pytest.raises(ToolError) as completed:
            await yard.complete("resource", "shop://things/{name}", argument="name", value="")
        free = await yard.read("shop://free/list")
        lists = [*yard.list_resources(), *yard.list_templates(), *yard.list_prompts()]

    assert [refused(answer) for answer in (former, *wrapped, job, described)] == [GONE] * 5
    assert not chained.success
    assert "shop_find" not in str(found.data)
    assert [refused(answer) for answer in (*read[:2], asked)] == [GONE_QUERY] * 3
    assert completed.value.details["reason"] == "disabled"
    assert free.success
    assert [spec.source for spec in lists] == ["any"]


async def test_a_step_of_a_chain_and_a_call_of_a_program_find_what_was_disabled_meanwhile() -> None:
    await require("bubblewrap")
    settings = RuntimeSettings(enabled=True, backend="bubblewrap")

    @tool(operation="command")
    async def own_stop(call: Call) -> str:
        """Disable the shop."""
        await yard.switches.disable("shop", by=OPERATOR)
        return "stopped"

    async with Yard("own", tools=[own_stop], providers=[shop()], runtime=settings) as yard:
        steps = [{"tool_id": "own_stop"}, {"tool_id": "shop_find"}]
        chained = await yard.call("run_chain", {"steps": steps})
        await yard.switches.enable("shop", by=OPERATOR)
        code = "await call_tool('own_stop')\nawait call_tool('fetch')"
        ran = await yard.call("execute_code", {"code": code})

    assert chained.error is not None
    assert (chained.error.code, chained.error.details["cause_code"]) == ("chain_step_failed", "tool_not_found")
    assert ran.error is not None
    assert "tool_not_found" in str(ran.error.details) + ran.error.message


async def test_a_tool_that_the_profile_denies_looks_as_if_there_were_none() -> None:
    stranger = Caller(identity="guest", profile=NO_SHOP)
    async with yard_of(profiles=[NO_SHOP]) as yard:
        before = await yard.call("shop_find", caller=stranger), await yard.read("shop://list", caller=stranger)
        await yard.switches.disable("shop", by=OPERATOR, reason="A secret reason.")
        after = await yard.call("shop_find", caller=stranger), await yard.read("shop://list", caller=stranger)
        unknown = await yard.call("shop_nothing")

    for was, now in zip(before, after, strict=True):
        assert was.error == now.error
    assert refused(unknown)[1] is None


async def test_enabling_adds_nothing_that_the_yard_does_not_allow() -> None:
    @tool(operation="eval", requires_eval=True, eval=EvalRule("code"))
    async def shop_eval(code: str) -> str:
        """Run code."""
        return code

    async with yard_of(shop(shop_find, shop_eval), profile=NO_SHOP) as yard:
        await yard.switches.disable("shop", by=OPERATOR)
        await yard.switches.enable("shop", by=OPERATOR)
        hidden = await yard.call("shop_find")
        with pytest.raises(ToolError) as gated:
            yard.registry.find("shop_eval", EVERYTHING)
        listed = names(yard, NO_SHOP)

    assert refused(hidden) == ("tool_not_found", None, None)
    assert gated.value.details["status"] == "gated"
    assert listed == ["other", "other_peek"]


async def test_a_tool_that_is_published_while_its_source_is_disabled_is_disabled_too() -> None:
    provider = shop()
    async with yard_of(provider) as yard:
        await yard.switches.disable("shop", by=OPERATOR)
        provider.change([shop_find], resources=[shop_list])
        refusals = [refused(await yard.call(name)) for name in ("shop_find", "fetch")]
        withdrawn = await yard.call("shop_burn", {"name": "a"})
        await yard.switches.enable("shop", by=OPERATOR)
        found = await yard.call("shop_find")

    assert refusals == [GONE, GONE]
    assert withdrawn.error is not None
    assert withdrawn.error.code == "tool_not_found"
    assert found.success


async def test_no_other_source_takes_the_name_of_a_disabled_tool() -> None:
    @tool(operation="query", name="ping")
    async def own_ping() -> str:
        """Return my own word."""
        return "mine"

    async with Yard("own", tools=[own_ping], packs=["system"]) as yard:
        await yard.switches.disable("ping", by=OPERATOR)
        answer = await yard.call("ping")
        await yard.providers.remove("system")
        await yard.switches.enable("ping", by=OPERATOR)
        mine = await yard.call("ping")

    assert refused(answer) == GONE
    assert mine.data == "mine"


async def test_a_source_that_gives_way_returns_disabled_or_not_at_all() -> None:
    @tool(operation="query", name="ping")
    async def late_ping() -> str:
        """Return a word."""
        return "late"

    late = FakeProvider("late", [late_ping])
    async with Yard("own", tools=[other], packs=["system"]) as yard:
        await yard.switches.disable("system", by=OPERATOR)
        await yard.providers.add(late)
        theirs = await yard.call("ping")
        await yard.providers.remove("late")
        ours = await yard.call("ping")
        await yard.switches.enable("system", by=OPERATOR)
        back = await yard.call("ping")

    assert theirs.data == "late"
    assert refused(ours) == GONE
    assert back.data["status"] == "pong"


async def test_running_calls_finish_and_sessions_of_a_disabled_source_end_after_them(
    until: Callable[[Callable[[], object]], Any],
) -> None:
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), list[str]()

    @tool(operation="command")
    async def shop_work(call: Call) -> str:
        """Work for a while."""
        session = call.start_session(kind="work")
        session.on_end(lambda: ended.append(session.id))
        begun.set()
        await go_on.wait()
        late = call.start_session(kind="late")
        late.on_end(lambda: ended.append(late.id))
        return "done"

    async with yard_of(shop(shop_work, shop_open)) as yard:
        idle = (await yard.call("shop_open")).data
        work = asyncio.ensure_future(yard.call("shop_work"))
        await begun.wait()
        await yard.switches.disable("shop", by=OPERATOR)
        await until(lambda: len(yard.sessions) == 1)
        in_it = await yard.call("other_peek", {"session_id": idle})
        assert ended == []
        go_on.set()
        answer = await work
        await until(lambda: not len(yard.sessions))

    assert answer.data == "done"
    assert in_it.error is not None
    assert in_it.error.code == "not_running"
    assert len(ended) == 2


async def test_sessions_of_other_sources_and_of_a_tool_that_alone_is_disabled_go_on() -> None:
    async with yard_of() as yard:
        session = (await yard.call("shop_open")).data
        await yard.switches.disable("shop_find", by=OPERATOR)
        await yard.switches.disable("own_*", by=OPERATOR)
        seen = await yard.call("other_peek", {"session_id": session})

    assert seen.data == {"n": 1}


async def test_a_call_that_waits_for_its_turn_when_its_tool_is_disabled_does_not_run() -> None:
    begun, go_on, ran = asyncio.Event(), asyncio.Event(), list[str]()

    @tool(operation="command")
    async def shop_slow(name: str) -> str:
        """Take a while."""
        ran.append(name)
        begun.set()
        await go_on.wait()
        return name

    waits = asyncio.Event()
    async with yard_of(shop(shop_slow), queue=QueueSettings(calls=1)) as yard:
        first = asyncio.ensure_future(yard.call("shop_slow", {"name": "first"}))
        await begun.wait()
        yard.dispatcher.observe(_Started(waits))
        second = asyncio.ensure_future(yard.call("shop_slow", {"name": "second"}))
        await waits.wait()
        await asyncio.sleep(0)
        await yard.switches.disable("shop", by=OPERATOR)
        go_on.set()
        answers = await asyncio.gather(first, second)

    assert answers[0].data == "first"
    assert refused(answers[1]) == GONE
    assert ran == ["first"]


async def test_a_resource_and_a_prompt_that_wait_when_their_source_is_disabled_are_not_read() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Call) -> None:
        begun.set()
        await go_on.wait()

    async with yard_of(policies=[wait]) as yard:
        calls = [asyncio.ensure_future(yard.read("shop://list")), asyncio.ensure_future(yard.prompt("shop_words"))]
        await begun.wait()
        await asyncio.sleep(0)
        await yard.switches.disable("shop", by=OPERATOR)
        go_on.set()
        answers = await asyncio.gather(*calls)

    assert [refused(answer) for answer in answers] == [GONE_QUERY, GONE_QUERY]


class _Started:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    def started(self, _: Call) -> None:
        """Note that a call began."""
        self._event.set()


async def test_pending_and_unused_approvals_of_what_is_disabled_are_withdrawn() -> None:
    store = MemoryStore(max_bytes=10**6)
    limits = Limits(approval_hold_s=0.001)
    async with yard_of(rules=[ASK], store=store, limits=limits) as yard:
        approvals = Approvals(store)
        ids = [(await yard.call("shop_burn", {"name": name})).data["approval_id"] for name in ("a", "b")]
        await approvals.decide(ids[1], "approve", by=OPERATOR)
        await yard.switches.disable("shop_b*", by=OPERATOR)
        states = [(await approvals.get(one)).status for one in ids]
        left = await approvals.pending()
        refusal = await yard.call("shop_burn", {"name": "b"})
        await yard.switches.enable("shop_b*", by=OPERATOR)
        again = await yard.call("shop_burn", {"name": "b"})

    assert states == ["expired", "expired"]
    assert left == []
    assert refused(refusal) == GONE
    assert again.data["status"] == "approval_required"


async def test_a_call_that_is_held_for_approval_finds_its_tool_disabled(
    until: Callable[[Callable[[], object]], Any],
) -> None:
    async with yard_of(rules=[ASK], limits=Limits(approval_hold_s=60)) as yard:
        assert yard.gate is not None
        approvals = yard.gate.approvals
        held = asyncio.ensure_future(yard.call("shop_burn", {"name": "a"}))
        found = await approvals.watch(set())
        await yard.switches.disable("fetch", by=OPERATOR)
        assert (await approvals.get(found.id)).status == "pending"
        await yard.switches.disable("shop", by=OPERATOR)
        answer = await held

    assert refused(answer) == GONE


async def test_an_approval_that_is_asked_while_its_tool_is_disabled_is_withdrawn(
    until: Callable[[Callable[[], object]], Any],
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(call: Call) -> None:
        if call.spec.name == "shop_burn":
            begun.set()
            await go_on.wait()

    async with yard_of(rules=[ASK], policies=[wait], limits=Limits(approval_hold_s=60)) as yard:
        call = asyncio.ensure_future(yard.call("shop_burn", {"name": "a"}))
        await begun.wait()
        await yard.switches.disable("shop", by=OPERATOR)
        go_on.set()
        answer = await call

    assert refused(answer) == GONE


async def test_a_command_withdraws_approvals_without_a_server() -> None:
    store = MemoryStore(max_bytes=10**6)
    async with yard_of(rules=[ASK], store=store, limits=Limits(approval_hold_s=0.001)) as yard:
        held = (await yard.call("shop_burn", {"name": "a"})).data["approval_id"]
        read = await yard.call("other")
    approvals, switches = Approvals(store), StoredSwitches(store)
    await withdraw_covered(approvals, await switches.disable("elsewhere", by=OPERATOR))
    before = (await approvals.get(held)).status
    await withdraw_covered(approvals, await switches.disable("shop", by=OPERATOR))

    assert read.success
    assert (before, (await approvals.get(held)).status) == ("pending", "expired")


async def test_a_time_that_is_over_brings_a_tool_back_by_itself_in_every_process(
    tmp_path: Path, until: Callable[[Callable[[], object]], Any]
) -> None:
    async with two_yards(tmp_path) as (one, two):
        await one.switches.disable("shop", by=OPERATOR, seconds=1.5)
        await until(lambda: two.registry.resolve("shop_find") is None)
        assert one.registry.resolve("shop_find") is None
        await until(lambda: one.registry.resolve("shop_find") and two.registry.resolve("shop_find"))
        answers = [await yard.call("shop_find") for yard in (one, two)]
        left = await one.switches.all()

    assert all(answer.success for answer in answers)
    assert left == []


@asynccontextmanager
async def two_yards(folder: Path, **options: Any) -> AsyncGenerator[tuple[Yard, Yard]]:
    """Open two yards as two processes would, on one file."""
    first, second = SqliteStore(folder / "store"), SqliteStore(folder / "store")
    async with yard_of(store=first, **options) as one, yard_of(store=second, **options) as two:
        yield one, two


async def test_every_yard_on_the_store_follows_and_no_other(
    tmp_path: Path, until: Callable[[Callable[[], object]], Any]
) -> None:
    store = SqliteStore(tmp_path / "store")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with two_yards(tmp_path) as (one, two), yard_of(store=SqliteStore(elsewhere / "store")) as far:
        session = (await two.call("shop_open")).data
        other_session = (await far.call("shop_open")).data
        await StoredSwitches(store).disable("shop", by=OPERATOR, reason="It is wrong.")
        await until(lambda: not (one.registry.resolve("shop_find") or two.registry.resolve("shop_find")))
        gone = [refused(await yard.call("shop_find")) for yard in (one, two)]
        await until(lambda: not len(two.sessions))
        found = await far.call("shop_find")
        kept = far.sessions.has(other_session, Caller().owner)
        revived = await one.call("other_peek", {"session_id": session})
        await StoredSwitches(store).enable("shop", by=OPERATOR)
        await until(lambda: one.registry.resolve("shop_find") and two.registry.resolve("shop_find"))
    await store.close()

    assert gone == [GONE, GONE]
    assert found.success
    assert kept
    assert revived.error is not None
    assert revived.error.code == "not_running"


async def test_a_disabled_source_stays_so_after_a_restart_and_is_never_listed(tmp_path: Path) -> None:
    path, seen = tmp_path / "store", list[str]()
    async with yard_of(store=SqliteStore(path)) as yard:
        await yard.switches.disable("shop", by=OPERATOR, reason="It is wrong.", seconds=3600)

    class Watching(FakeProvider):
        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            stop = again.registry.watch(lambda change: seen.append(change.name))
            async with super().open(publish):
                stop()
                yield

    again = yard_of(Watching("shop", [shop_find]), store=SqliteStore(path))
    async with again:
        answer, facts = await again.call("shop_find"), [switch.view() for switch in await again.switches.all()]

    assert answer.error is not None
    assert answer.error.details["reason"] == "disabled"
    assert seen == []
    assert [(one["target"], one["by"], one["reason"]) for one in facts] == [("shop", OPERATOR, "It is wrong.")]
    assert facts[0]["until"] - facts[0]["at"] == pytest.approx(3600)


async def test_stored_sessions_that_no_process_has_are_forgotten(
    tmp_path: Path, until: Callable[[Callable[[], object]], Any]
) -> None:
    path = tmp_path / "store"
    async with yard_of(store=SqliteStore(path)) as yard:
        session = (await yard.call("shop_open")).data
    clock = FakeClock(0.0)
    await StoredSwitches(SqliteStore(path), clock=clock).disable("shop", by=OPERATOR)  # long ago
    async with yard_of(store=SqliteStore(path)) as yard:
        await yard.switches.enable("shop", by=OPERATOR)
        answer = await yard.call("other_peek", {"session_id": session})
        left = await yard.store.keys("session/")

    assert answer.error is not None
    assert answer.error.code == "not_running"
    assert left == []


async def test_a_store_that_fails_leaves_disabled_what_is_disabled(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(MemoryStore):
        is_gone = False
        looks = 0

        async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
            self.looks += 1
            if self.is_gone:
                raise StoreUnavailableError("It is gone.", reason="gone")
            return await super().keys(prefix, after=after, limit=limit)

    store = Failing(max_bytes=10**6)
    async with yard_of(store=store) as yard:
        await yard.switches.disable("shop", by=OPERATOR)
        store.is_gone = True
        with pytest.raises(StoreUnavailableError):
            await yard.switches.disable("own", by=OPERATOR)
        answer = await yard.call("shop_find")
    store.is_gone = True
    with pytest.raises(StoreUnavailableError):
        await yard_of(store=store).__aenter__()
    optional = yard_of()
    optional.configure(origins={}, limits={}, default_store=store)
    with caplog.at_level(logging.WARNING):
        async with optional:
            found = await optional.call("shop_find")

    assert refused(answer) == GONE
    assert found.success
    assert any("switches_unknown" in line for line in caplog.messages)


async def test_a_damaged_record_disables_its_name_until_it_is_enabled() -> None:
    store = MemoryStore(max_bytes=10**6)
    await store.put("disabled/shop", b"{")
    async with yard_of(store=store) as yard:
        answer = await yard.call("shop_find")
        await yard.switches.enable("shop", by=OPERATOR)
        found = await yard.call("shop_find")

    assert refused(answer) == GONE
    assert found.success


async def test_the_audit_log_has_the_person_who_disables_or_enables() -> None:
    lines: list[AuditLine] = []
    yard = yard_of()
    yard.audit = lines.append
    async with yard:
        await yard.switches.disable("shop", by=OPERATOR, reason="It is wrong.")
        await yard.switches.enable("shop", by="user:two")

    assert [(line.event, line.tool, line.by, line.reason) for line in lines] == [
        ("disabled", "shop", OPERATOR, "It is wrong."),
        ("enabled", "shop", "user:two", "It is wrong."),
    ]


async def test_a_name_or_time_that_cannot_be_used_is_refused() -> None:
    switches = StoredSwitches(MemoryStore(max_bytes=10**6))
    codes = list[str]()
    for target, seconds in (("", None), ("a b", None), ("a" * 201, None), ("a\n", None), ("a", 0.0), ("a", 1e9)):
        with pytest.raises(ToolError) as refusal:
            await switches.disable(target, by=OPERATOR, seconds=seconds)
        codes.append(refusal.value.code)
    await switches.disable("github", by=OPERATOR)
    for target in ("github__push", "githup", "nothing"):
        with pytest.raises(ToolError) as refusal:
            await switches.enable(target, by=OPERATOR)
        codes.append(refusal.value.code)
    for number in range(999):
        await switches.disable(f"t{number}", by=OPERATOR)
    await switches.disable("t1", by="user:two")
    with pytest.raises(ToolError) as refusal:
        await switches.disable("one_more", by=OPERATOR)

    assert codes == ["invalid_input"] * 6 + ["not_found"] * 3
    assert refusal.value.code == "overloaded"


async def test_the_longest_of_several_switches_counts() -> None:
    async with yard_of() as yard:
        await yard.switches.disable("shop_find", by=OPERATOR, seconds=60)
        switch = await yard.switches.disable("shop", by=OPERATOR, seconds=3600)
        answer = await yard.call("shop_find")
        await yard.switches.enable("shop", by=OPERATOR)
        still = await yard.call("shop_find")

    assert refused(answer)[2] == switch.until
    assert refused(still)[:2] == GONE[:2]


async def test_a_mounted_yard_does_not_show_what_it_disables() -> None:
    inner = Yard("inner", providers=[shop()])
    async with Yard("outer", providers=[inner]) as outer:
        before = await outer.call("shop_find")
        await inner.switches.disable("shop", by=OPERATOR)
        after = await outer.call("shop_find")
        await inner.switches.enable("shop", by=OPERATOR)
        await outer.switches.disable("inner", by=OPERATOR)
        outside = await outer.call("shop_find")

    assert before.success
    assert after.error is not None
    assert after.error.code == "tool_not_found"
    assert refused(outside) == GONE


async def test_instructions_of_a_disabled_source_are_not_given() -> None:
    provider: Any = shop()
    provider.instructions = "Buy nothing."
    async with yard_of(provider) as yard:
        before = yard.instructions_for(EVERYTHING)
        await yard.switches.disable("shop", by=OPERATOR)
        after = yard.instructions_for(EVERYTHING)

    assert "Buy nothing." in before
    assert "Buy nothing." not in after


def test_a_yard_that_is_not_open_has_no_switches() -> None:
    with pytest.raises(RuntimeError):
        _ = yard_of().switches


async def test_the_registry_announces_each_tool_once_and_clients_may_keep_their_lists() -> None:
    seen: list[tuple[str, str]] = []
    async with yard_of() as yard:
        before = yard.registry.hash(EVERYTHING)
        stop = yard.registry.watch(lambda change: seen.append((change.kind, change.name)))
        await yard.switches.disable("shop_[bf]*", by=OPERATOR)
        await yard.switches.disable("shop_burn", by=OPERATOR)
        await yard.switches.enable("shop_burn", by=OPERATOR)
        await yard.switches.enable("shop_[bf]*", by=OPERATOR)
        stop()
        after = yard.registry.hash(EVERYTHING)

    assert seen == [(kind, name) for kind in ("withdrawn", "registered") for name in ("shop_find", "shop_burn")]
    assert before == after


async def test_a_time_that_is_over_brings_a_tool_back_in_a_yard_without_a_store(
    until: Callable[[Callable[[], object]], Any],
) -> None:
    async with yard_of() as yard:
        await yard.switches.disable("shop", by=OPERATOR, seconds=0.2)
        assert yard.registry.resolve("shop_find") is None
        await until(lambda: yard.registry.resolve("shop_find"))
        left = yard.switches.active

    assert left == ()


async def test_a_defect_of_the_store_does_not_stop_the_following(
    until: Callable[[Callable[[], object]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(MemoryStore):
        fault: Exception | None = None

        async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
            if self.fault is not None and prefix.startswith("disabled"):
                raise self.fault
            return await super().keys(prefix, after=after, limit=limit)

    store = Odd(max_bytes=10**6)
    async with yard_of(store=store) as yard:
        await yard.switches.disable("shop", by=OPERATOR, seconds=1.2)
        store.fault = ValueError("odd")
        await until(lambda: any("switches_not_followed" in line for line in caplog.messages))
        store.fault = StoreUnavailableError("It is gone.", reason="gone")
        await until(lambda: yard.registry.resolve("shop_find"))  # the time is over, although nothing can be read
        store.fault = None
        await StoredSwitches(store).disable("own", by=OPERATOR)
        await until(lambda: yard.registry.resolve("other") is None)
