import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import ref

import msgspec
import pytest

from callyard import Call, Limits, Rule, Yard, tool
from callyard.agents import AgentManager, AgentOptions, StreamEvent, TurnRequest
from callyard.agents.claude import _withheld  # pyright: ignore[reportPrivateUsage] - the SDK starts the program with it
from callyard.agents.events import (
    Done,
    Error,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    encode_stream_event,
    type_of,
)
from callyard.agents.history import AgentMessage, AgentMessages
from callyard.agents.sessions import SessionFacts
from callyard.agents.turn import Turn
from callyard.dispatch.call import Caller, InvokeOptions
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import ToolError
from callyard.policy.approvals import AuditLine
from callyard.state.memory import MemoryStore
from callyard.state.store import Lease, StoreUnavailableError

TIMEOUT = 60.0
Decide = Callable[[Any], None]
FAST = Limits(approval_hold_s=0.01)


@tool(operation="destroy")
def burn(what: str, count: int = 1) -> str:
    """Burn something."""
    return f"burnt {what} {count}"


@tool(operation="command")
async def paint(call: Call) -> str:
    """Paint, in a colour that the person chooses."""
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    return "painted " + (await call.ask(schema, "Which colour?"))["colour"]


@tool(operation="command")
async def sample(call: Call) -> str:
    """Ask the client's model, which it has none of."""
    return str(await call.ask_all({"a": ClientRequest.model("Hello", max_tokens=1)}))


@tool(operation="command")
async def prepare(call: Call) -> str:
    """Have a call approved that is made later, as a chain does with its steps."""
    yard: Yard = call.state
    gate, later = yard.gate, yard.registry.get("burn")
    assert gate is not None
    assert later is not None
    await gate.obtain(call, later, InvokeOptions(text=b'{"what": "tea", "count": 1}'))
    return "prepared"


@tool(operation="query")
async def relay(key: str, approval_id: str, call: Call) -> str:
    """Ask with a key of its own, as an upstream does."""
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    ask = msgspec.structs.replace(ClientRequest.person("Your name?", form), approval_id=approval_id)
    return (await call.ask_all({key: ask}))[key]["content"]["name"]


@tool(operation="query")
async def march(call: Call) -> str:
    """Walk one half of the way."""
    await call.progress(1, 2, "half")
    return "arrived"


@asynccontextmanager
async def lend_itself(yard: Yard) -> AsyncGenerator[Yard]:
    yield yard


@asynccontextmanager
async def managed(runtime: Any, *, yard: Any = None, **options: Any) -> AsyncGenerator[AgentManager]:
    settings: dict[str, Any] = {"store": MemoryStore(), **(yard or {})}
    yard = Yard("shop", tools=[burn, paint, sample, prepare, relay, march], lifespan=lend_itself, **settings)
    async with asyncio.timeout(TIMEOUT), yard, AgentManager(yard, runtime, AgentOptions(**options)) as manager:
        yield manager


async def send(
    manager: AgentManager, content: str = "Go.", *, decide: Decide | None = None, session: str = "chat", **options: Any
) -> list[Any]:
    events: list[Any] = []
    async for event in manager.send_message(session, content, **options):
        events.append(event)
        if type_of(event) in {"approval_required", "question"} and decide is not None:
            decide(event)
    return events


def calling(name: str, arguments: dict[str, Any], *, permitted: dict[str, Any] | None = None, **found: Any) -> Any:
    """Return a turn that asks for permission, unless there is none to ask for, and makes a call."""

    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        if permitted is not None:
            found["decision"] = await request.permit(name, permitted, tool_call_id="t1", source="yard")
        envelope = await request.conversation.call(name, arguments, meta={"claudecode/toolUseId": "t1"})
        yield TextDelta(text=str(envelope.data if envelope.error is None else envelope.error.code))

    return play


def deciding(manager: AgentManager, *, approve: bool, by: str = "local", reason: str = "") -> Decide:
    def decide(event: Any) -> None:
        manager.interactions.decide(event.interaction_id, approve=approve, by=by, reason=reason)

    return decide


def said(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def asked(events: list[Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(event.tool, event.arguments) for event in events if type_of(event) == "approval_required"]


async def test_a_turn_ends_with_done_and_the_session_is_kept(runtime: Any) -> None:
    async with managed(runtime) as manager:
        events = await send(manager, "  Hello\n world " + "x" * 100)
        [session] = await manager.sessions.all("local")
        await send(manager)

    assert (said(events), events[-1].status) == (["Hello."], "completed")
    assert (session.title, session.turns, session.sdk_session_id) == (("Hello world " + "x" * 100)[:80], 1, "sdk-1")
    assert [request.resume for request in runtime.requests] == ["", "sdk-1"]
    assert "sdk_session_id" not in SessionFacts.__struct_fields__


async def wait_for_ever(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
    yield TextDelta(text="I think.")
    await asyncio.Event().wait()


async def test_a_second_message_is_refused_while_one_runs(runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with managed(runtime) as manager:
        turn = await manager.start_turn("chat", "Go.")
        with pytest.raises(ToolError) as refused:
            await manager.start_turn("chat", "Go.")
        others = await manager.start_turn(
            "chat", "Go.", caller=Caller(identity="bob")
        )  # the same name, and another session
        assert turn.session is not None
        assert manager.is_running(turn.session)
        await manager.cancel(turn.session)
        runtime.play = type(runtime)().play
        again = await send(manager)

    assert (refused.value.code, refused.value.details["reason"]) == ("state_error", "turn_running")
    assert (others.session is not turn.session, again[-1].status) == (True, "completed")


async def test_two_messages_at_once_start_one_turn(runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with managed(runtime) as manager:
        started = await asyncio.gather(*(manager.start_turn("chat", "Go.") for _ in range(5)), return_exceptions=True)

    assert sorted(type(one).__name__ for one in started) == ["ToolError"] * 4 + ["Turn"]


async def test_one_identity_takes_no_more_than_its_share_of_the_turns(runtime: Any) -> None:
    runtime.play = wait_for_ever
    ada, bob = Caller(identity="ada"), Caller(identity="bob")
    async with managed(runtime, turns=8) as manager:
        for name in ("a", "b"):
            await manager.start_turn(name, "Go.", caller=ada)
        with pytest.raises(ToolError) as refused:
            await manager.start_turn("c", "Go.", caller=ada)
        await manager.start_turn("c", "Go.", caller=bob)

    assert (refused.value.code, refused.value.details["reason"]) == ("overloaded", "turns_full")


async def test_too_many_turns_are_refused(runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with managed(runtime, turns=2) as manager:
        for name in ("a", "b"):
            await manager.start_turn(name, "Go.")
        with pytest.raises(ToolError) as refused:
            await manager.start_turn("c", "Go.")

    assert (refused.value.code, refused.value.details["reason"]) == ("overloaded", "turns_full")


async def test_finished_turns_are_kept_for_the_last_hundred_sessions(runtime: Any) -> None:
    async with managed(runtime) as manager:
        for number in range(105):
            await send(manager, session=f"chat {number}")
        sessions = await manager.sessions.all()
        kept = [session.id for session in sessions if manager.turn_of(session) is not None]

    assert (len(sessions), len(kept), "chat 104" in kept, "chat 0" in kept) == (105, 100, True, False)


async def test_a_finished_turn_is_dropped_after_some_minutes(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.agents.manager._KEPT_S", 0.0)
    async with managed(runtime) as manager:
        await send(manager)
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.0, later.set)
        await later.wait()
        [session] = await manager.sessions.all()

        assert manager.turn_of(session) is None


@pytest.mark.parametrize(
    ("content", "code"), [("", "invalid_input"), (" \n", "invalid_input"), ("x" * 1_000_001, "too_large")]
)
async def test_a_message_that_is_empty_or_too_long_is_refused(runtime: Any, content: str, code: str) -> None:
    async with managed(runtime) as manager:
        with pytest.raises(ToolError) as refused:
            await send(manager, content)

        assert await manager.sessions.all() == []
    assert refused.value.code == code


@pytest.mark.parametrize("session_id", ["a/b", "x" * 129, "a\x00b"])
async def test_an_id_that_the_store_cannot_have_is_refused(runtime: Any, session_id: str) -> None:
    async with managed(runtime) as manager:
        with pytest.raises(ToolError) as refused:
            await send(manager, session=session_id)
        events = await send(manager)

    assert (refused.value.code, events[-1].status) == ("invalid_input", "completed")


async def test_a_defect_of_a_runtime_is_an_error_event_and_not_a_hang(
    runtime: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text="I think.")
        raise KeyError("secret")

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager)

    assert [type_of(event) for event in events] == ["text_delta", "error", "done"]
    assert (events[1].code, "secret" in events[1].message, events[-1].status) == ("internal_error", False, "failed")
    assert "turn_failed" in caplog.text


async def test_a_store_that_fails_during_a_turn_ends_it_with_a_code(runtime: Any) -> None:
    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        raise StoreUnavailableError("The disk is full.", reason="full")
        yield  # what makes it a generator

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager)

    assert (events[0].code, events[-1].status) == ("overloaded", "failed")


async def test_a_failure_with_a_code_keeps_it(runtime: Any) -> None:
    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        raise ToolError("upstream_error", "The model is ill.", hint="Wait.")
        yield  # what makes it a generator

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager)

    assert (events[0].code, events[0].message, events[0].hint) == ("upstream_error", "The model is ill.", "Wait.")


async def test_a_turn_that_takes_too_long_is_ended(runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with managed(runtime, turn_s=0.01) as manager:
        events = await send(manager)

    assert ([event.code for event in events if isinstance(event, Error)], events[-1].status) == (["timeout"], "failed")
    assert runtime.ended.is_set()


async def test_the_clock_of_a_turn_stands_still_while_a_person_is_asked() -> None:
    turn = Turn(seconds=100.0)
    async with asyncio.timeout(100.0) as timeout:
        await asyncio.sleep(0)
        with turn.limited(timeout):
            with turn.waiting():
                with turn.waiting():
                    pass
                during = timeout.when()
            after = timeout.when()

    assert (during, after is not None) == (None, True)


async def test_closing_the_manager_ends_every_turn(runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with managed(runtime) as manager:
        turn = await manager.start_turn("chat", "Go.")
        manager.cancel_all()
        events: list[Any] = [event async for event in turn.events()]
        with pytest.raises(ToolError) as refused:
            await manager.start_turn("other", "Go.")

    assert [type_of(event) for event in events] == ["error", "done"]
    assert (events[0].retryable, refused.value.code) == (True, "overloaded")


async def test_a_turn_that_is_cancelled_before_it_begins_still_ends(runtime: Any) -> None:
    async with managed(runtime) as manager:
        turn = await manager.start_turn("chat", "Go.")
        turn.cancel("client")
        events = [event async for event in turn.events()]

    assert isinstance(events[-1], Done)
    assert events[-1].status == "cancelled"


async def test_a_deleted_session_is_gone_everywhere(runtime: Any) -> None:
    async with managed(runtime) as manager:
        await send(manager)
        [session] = await manager.sessions.all()
        await manager.delete(session)

        assert (await manager.sessions.all(), runtime.forgotten, manager.turn_of(session)) == ([], ["sdk-1"], None)
        with pytest.raises(ToolError):
            await manager.sessions.get("local", "chat")


async def test_every_conversation_that_a_session_had_is_forgotten_with_it(runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        for name in ("sdk-1", "", "sdk-2"):
            await request.remember(name)
        yield TextDelta(text="I began anew.")

    runtime.play = play
    async with managed(runtime) as manager:
        await send(manager)
        [session] = await manager.sessions.all()
        await manager.delete(session)

    assert runtime.forgotten == ["sdk-1", "sdk-2"]
    assert "sdk_session_ids" not in SessionFacts.__struct_fields__


async def test_a_message_during_a_deletion_is_refused_and_the_session_stays_deleted(runtime: Any) -> None:
    runtime.play = wait_for_ever
    deletes, goes_on = asyncio.Event(), asyncio.Event()

    class SlowToDelete(MemoryStore):
        async def delete(self, key: str) -> None:
            deletes.set()
            await goes_on.wait()
            await super().delete(key)

    async with managed(runtime, yard={"store": SlowToDelete()}) as manager:
        turn = await manager.start_turn("chat", "Go.")
        assert turn.session is not None
        deletion = asyncio.create_task(manager.delete(turn.session))
        await deletes.wait()
        with pytest.raises(ToolError) as refused:
            await manager.start_turn("chat", "Go.")
        goes_on.set()
        await deletion

        assert (await manager.sessions.all(), turn.is_over, manager.turn_of(turn.session)) == ([], True, None)
        with pytest.raises(ToolError) as unknown:
            await manager.start_turn("chat", "Go.", create=False)
    assert (refused.value.code, unknown.value.code) == ("state_error", "not_found")


async def test_two_deletions_and_a_message_at_once_leave_one_turn_or_none(runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with managed(runtime) as manager:
        turn = await manager.start_turn("chat", "Go.")
        session = turn.session
        assert session is not None
        done = await asyncio.gather(
            manager.delete(session), manager.start_turn("chat", "Go."), manager.delete(session), return_exceptions=True
        )
        left = await manager.sessions.all()

    assert (done[0], isinstance(done[1], ToolError), done[2], left) == (None, True, None, [])


async def test_two_servers_on_one_store_never_work_in_one_session_at_once(runtime: Any) -> None:
    store = MemoryStore()
    runtime.play = wait_for_ever
    async with managed(runtime, yard={"store": store}) as one, managed(runtime, yard={"store": store}) as other:
        turn = await one.start_turn("chat", "Go.")
        assert turn.session is not None
        with pytest.raises(ToolError) as refused:
            await other.start_turn("chat", "Go.")
        with pytest.raises(ToolError) as kept:
            await other.delete(turn.session)
        await one.cancel(turn.session)
        await other.start_turn("chat", "Go.")

    assert (refused.value.code, kept.value.code) == ("state_error", "state_error")


async def test_a_turn_whose_session_another_server_took_over_ends(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.agents.sessions._LEASE_S", 0.03)
    lost = asyncio.Event()

    class LosesLeases(MemoryStore):
        async def renew(self, lease: Lease, *, ttl: float) -> bool:
            if lost.is_set():
                await self.release(lease)
                await self.acquire(lease.key, ttl=100)
                return False
            return await super().renew(lease, ttl=ttl)

    runtime.play = wait_for_ever
    async with managed(runtime, yard={"store": LosesLeases()}) as manager:
        turn = await manager.start_turn("chat", "Go.")
        lost.set()
        events: list[Any] = [event async for event in turn.events()]

    assert [type_of(event) for event in events][-2:] == ["error", "done"]
    assert (events[-2].code, events[-1].status) == ("cancelled", "cancelled")


async def test_a_call_that_a_person_permitted_is_not_asked_about_again_by_the_yard(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"}, permitted={"what": "tea"})
    async with managed(runtime) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert (asked(events), said(events)) == ([("burn", {"what": "tea"})], ["burnt tea 1"])


@pytest.mark.parametrize("arguments", [{"what": "milk"}, {"what": "tea", "count": 2}, {"count": 1, "what": "Tea"}])
async def test_other_arguments_than_the_permitted_ones_are_asked_about(runtime: Any, arguments: dict[str, Any]) -> None:
    runtime.play = calling("burn", arguments, permitted={"what": "tea", "count": 1})
    async with managed(runtime) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert [shown for _, shown in asked(events)] == [{"what": "tea", "count": 1}, {"count": 1, **arguments}]


async def test_a_permission_counts_once(runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        await request.permit("burn", {"what": "tea"}, tool_call_id="t1", source="yard")
        for _ in range(2):
            envelope = await request.conversation.call("burn", {"what": "tea"}, meta={"claudecode/toolUseId": "t1"})
            yield TextDelta(text=str(envelope.data))

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert (len(asked(events)), said(events)) == (2, ["burnt tea 1"] * 2)


@pytest.mark.parametrize(
    ("tool", "shown", "call_id"), [("look", {}, "t1"), ("burn", {}, "t1"), ("burn", {"what": "tea"}, "")]
)
async def test_a_permission_counts_for_its_own_tool_arguments_and_id_alone(
    runtime: Any, tool: str, shown: dict[str, Any], call_id: str
) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        await request.permit(tool, shown, tool_call_id=call_id, source="yard")
        envelope = await request.conversation.call(
            "burn", {"what": "tea"}, meta={"openai/toolCallId": call_id} if call_id else None
        )
        yield TextDelta(text=str(envelope.data))

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert asked(events) == [(tool, shown), ("burn", {"what": "tea", "count": 1})]


async def test_a_permission_counts_also_for_arguments_that_come_as_json(runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        await request.permit("burn", {"what": "tea"}, tool_call_id="t1", source="yard")
        envelope = await request.conversation.call("burn", '{"what": "tea"}', meta={"openai/toolCallId": "t1"})
        yield TextDelta(text=str(envelope.data))

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert (len(asked(events)), said(events)) == (1, ["burnt tea 1"])


async def test_a_yes_to_this_call_counts_although_an_equal_one_was_denied_before(runtime: Any) -> None:
    async with managed(runtime) as manager:
        runtime.play = calling("burn", {"what": "tea"})
        denied = await send(manager, decide=deciding(manager, approve=False))
        still = await send(manager, decide=deciding(manager, approve=True))
        runtime.play = calling("burn", {"what": "tea"}, permitted={"what": "tea"})
        permitted = await send(manager, decide=deciding(manager, approve=True))

    assert (said(denied), said(still), asked(still)) == (["approval_denied"], ["approval_denied"], [])
    assert (said(permitted), len(asked(permitted))) == (["burnt tea 1"], 1)


async def test_a_yes_does_not_count_where_an_operator_denied(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"}, permitted={"what": "tea"})
    rule = Rule(decision="ask", tools=("burn",), by="operator")
    async with managed(runtime, yard={"rules": [rule], "limits": FAST}) as manager:
        await send(manager, decide=deciding(manager, approve=True))
        gate = manager.yard.gate
        assert gate is not None
        [approval] = await gate.approvals.pending()
        await gate.approvals.decide(approval.id, "deny", by="operator")
        events = await send(manager, decide=deciding(manager, approve=True))

    assert said(events) == ["approval_denied"]


@pytest.mark.parametrize("denier", ["operator:ada", "webhook", "user:root"])
async def test_a_yes_of_the_person_does_not_replace_a_denial_by_somebody_else(runtime: Any, denier: str) -> None:
    runtime.play = calling("burn", {"what": "tea"})
    async with managed(runtime, yard={"limits": FAST}) as manager:
        turn = await manager.start_turn("chat", "Go.")
        async for event in turn.events():
            if type_of(event) == "approval_required":
                gate = manager.yard.gate
                assert gate is not None
                [approval] = await gate.approvals.pending()
                await gate.approvals.decide(approval.id, "deny", by=denier)
        runtime.play = calling("burn", {"what": "tea"}, permitted={"what": "tea"})
        events = await send(manager, decide=deciding(manager, approve=True))

    assert said(events) == ["approval_denied"]


async def test_turns_that_another_one_replaced_are_not_kept(runtime: Any) -> None:
    runtime.play = calling("look", {})
    kept: list[ref[Turn]] = []

    async def run_turn() -> None:
        turn = await manager.start_turn("chat", "Go.")
        await turn.wait()
        kept.append(ref(turn))

    async with managed(runtime) as manager:
        for _ in range(3):
            await run_turn()
        runtime.requests.clear()
        gc.collect()

        assert [one() is None for one in kept] == [True, True, False]


async def test_a_cancelled_turn_withdraws_what_it_asked_and_the_same_call_asks_anew(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"})
    async with managed(runtime) as manager:
        turn = await manager.start_turn("chat", "Go.")
        async for event in turn.events():
            if type_of(event) == "approval_required":
                turn.cancel("client")
        gate = manager.yard.gate
        assert gate is not None
        pending = await gate.approvals.pending()
        events = await send(manager, decide=deciding(manager, approve=True))

    assert (pending, len(asked(events)), said(events)) == ([], 1, ["burnt tea 1"])


async def test_a_call_that_nobody_approved_in_time_asks_anew(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"})
    async with managed(runtime, countdown_s=0.01) as manager:
        first = await send(manager, attended=False)
        again = await send(manager, decide=deciding(manager, approve=True))

    assert (said(first), said(again), len(asked(again))) == (["approval_denied"], ["burnt tea 1"], 1)


async def test_the_card_of_an_approval_expires_with_the_approval(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"})
    async with managed(runtime, yard={"limits": Limits(approval_ttl_s=0.05)}, park_s=1000.0) as manager:
        events = await send(manager)

    [card], [resolved] = (
        [event for event in events if type_of(event) == kind] for kind in ("approval_required", "approval_resolved")
    )
    assert card.parks_at == card.expires_at
    assert (resolved.outcome, said(events)) == ("expired", ["approval_denied"])


async def test_a_permission_does_not_count_for_a_call_that_is_made_later(runtime: Any) -> None:
    runtime.play = calling("prepare", {}, permitted={})
    async with managed(runtime) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert (asked(events), said(events)) == ([("prepare", {}), ("burn", {"what": "tea", "count": 1})], ["prepared"])


async def test_a_permission_does_not_decide_for_an_operator(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"}, permitted={"what": "tea"})
    rule = Rule(decision="ask", tools=("burn",), by="operator")
    async with managed(runtime, yard={"rules": [rule], "limits": FAST}) as manager:
        events = await send(manager, decide=deciding(manager, approve=True))

    assert len(asked(events)) == 1
    assert "approval_required" in said(events)[0]


async def test_an_approval_that_is_decided_elsewhere_settles_the_interaction(runtime: Any) -> None:
    runtime.play = calling("burn", {"what": "tea"})
    async with managed(runtime) as manager:

        async def approve_elsewhere() -> None:
            gate = manager.yard.gate
            assert gate is not None
            [approval] = await gate.approvals.pending()
            await gate.approvals.decide(approval.id, "approve", by="webhook", reason="It is fine.")

        tasks: list[asyncio.Task[None]] = []

        def decide(_: Any) -> None:
            tasks.append(asyncio.ensure_future(approve_elsewhere()))

        events = await send(manager, decide=decide)

    resolved = [event for event in events if type_of(event) == "approval_resolved"]
    assert [(event.outcome, event.by, event.reason) for event in resolved] == [("approved", "webhook", "It is fine.")]
    assert said(events) == ["burnt tea 1"]


@pytest.mark.parametrize("approve", [True, False])
async def test_in_the_mode_rules_the_rules_of_the_yard_decide_about_its_tools_alone(
    runtime: Any, *, approve: bool
) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        looked = await request.permit("look", {}, tool_call_id="t0", source="yard")
        yield TextDelta(text=looked.outcome)
        burning = await request.permit("burn", {"what": "tea"}, tool_call_id="t1", source="yard")
        yield TextDelta(text=burning.outcome)
        answer = await request.conversation.call("burn", {"what": "tea"}, meta={"openai/toolCallId": "t1"})
        yield TextDelta(text="done" if answer.success else "refused")
        own = await request.permit("Bash", {"command": "rm"}, tool_call_id="t2", source="agent")
        yield TextDelta(text=own.outcome)

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager, permission_mode="rules", decide=deciding(manager, approve=approve))

    outcome = ["done", "approved"] if approve else ["refused", "denied"]
    assert said(events) == ["approved", "approved", *outcome]
    assert [event.tool for event in events if type_of(event) == "approval_required"] == ["burn", "Bash"]


async def test_progress_of_a_tool_is_in_the_stream_with_its_call(runtime: Any) -> None:
    runtime.play = calling("march", {})
    async with managed(runtime) as manager:
        events = await send(manager)
        history = await manager.history(await manager.sessions.get("local", "chat"))

    steps = [event for event in events if type_of(event) == "tool_progress"]
    assert [(step.tool_call_id, step.done, step.total, step.text) for step in steps] == [("t1", 1.0, 2.0, "half")]
    assert kinds_of(history[1]) == ["text_delta", "done"]


async def test_the_history_has_what_was_said_and_done(runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text="I lo")
        yield TextDelta(text="ok.")
        yield ToolCallStart(tool_call_id="t1", tool="look")
        yield ToolCallDelta(tool_call_id="t1", arguments="{")
        yield ToolCallEnd(tool_call_id="t1", arguments={})
        yield TextDelta(text="A sub-agent.", parent_id="t1")
        yield ToolResult(tool_call_id="t1", tool="look", text="{}")
        yield TextDelta(text=" Done.")
        if request.content == "fail":
            raise ToolError("upstream_error", "No.")

    runtime.play = play
    async with managed(runtime) as manager:
        await send(manager, "look")
        session = await manager.sessions.get("local", "chat")
        first = await manager.history(session)
        await send(manager, "fail")
        session = await manager.sessions.get("local", "chat")
        both, earlier = await manager.history(session), await manager.history(session, before=2)
        stored = await AgentMessages(manager.yard.store).of(session)
        await manager.delete(session)
        gone = await AgentMessages(manager.yard.store).of(session)

    kinds = ["text_delta", "tool_call_start", "tool_call_end", "text_delta", "tool_result", "text_delta", "done"]
    assert kinds_of(first[1]) == kinds
    assert [(type_of_message(one), one.turn, one.text) for one in both] == [
        ("user", 1, "look"),
        ("agent", 1, "I look. Done."),
        ("user", 2, "fail"),
        ("agent", 2, "I look. Done."),
    ]
    assert [one.status for one in both if isinstance(one, AgentMessage)] == ["completed", "failed"]
    assert (earlier, stored, gone) == (first, both, [])


def kinds_of(message: Any) -> list[str]:
    return [type_of(event) for event in message.events]


def type_of_message(message: Any) -> str:
    return message.__struct_config__.tag


async def test_the_history_of_a_turn_is_in_the_store_while_it_runs(runtime: Any) -> None:
    now = [time.time()]
    said_it = asyncio.Event()

    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text="Wait.")
        said_it.set()
        await asyncio.Event().wait()

    runtime.play = play
    async with managed(runtime) as manager:
        turn = await manager.start_turn("chat", "Go.")
        await said_it.wait()
        session = await manager.sessions.get("local", "chat")
        elsewhere = AgentMessages(manager.yard.store, clock=lambda: now[0])
        while not (stored := await elsewhere.of(session))[1].text:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)  # not a wait for so long, but a look so often
        here = await manager.history(session)
        now[0] += 3600
        after_a_kill = await elsewhere.of(session)
        turn.cancel("client")
        await turn.wait()
        ended = await elsewhere.of(session)

    assert (stored, here[1].text) == (here, "Wait.")
    statuses = [messages[1].status for messages in (here, after_a_kill, ended) if isinstance(messages[1], AgentMessage)]
    assert statuses == ["running", "interrupted", "cancelled"]


async def test_the_history_of_a_long_turn_says_what_it_has_dropped(runtime: Any) -> None:
    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        for number in range(40):
            yield ToolResult(tool_call_id=f"t{number}", tool="look", text="x" * 50_000)

    runtime.play = play
    async with managed(runtime) as manager:
        await send(manager)
        [_, kept] = await manager.history(await manager.sessions.get("local", "chat"))

    assert isinstance(kept, AgentMessage)
    assert [type_of(kept.events[0]), type_of(kept.events[-1])] == ["error", "done"]
    assert 10 < len(kept.events) < 30
    assert sum(isinstance(event, Error) for event in kept.events) == 1


async def test_only_the_last_turns_are_kept_and_read_by_pages(runtime: Any) -> None:
    async with managed(runtime) as manager:
        session = await manager.sessions.create(Caller(), runtime="played", session_id="chat")
        for number in range(1, 511):
            record = await manager.messages.begin(msgspec.structs.replace(session, turns=number), "x" * 10_000)
            for _ in range(10 if number > 400 else 0):
                record.add(ToolResult(tool_call_id="t", tool="look", text="y" * 10_000))
            await record.save()
        session = msgspec.structs.replace(session, turns=510)
        last = await manager.history(session)
        first = await manager.history(session, before=50)
        middle = await manager.history(session, before=400)

    assert [one.turn for one in last[::2]] == list(range(last[0].turn, 511))
    assert 470 < last[0].turn < 480  # 4 MB of them
    assert [one.turn for one in first[::2]] == list(range(11, 50))
    assert [one.turn for one in middle[::2]] == list(range(300, 400))


async def test_a_store_that_is_away_loses_a_part_of_the_history_and_ends_no_turn(runtime: Any) -> None:
    class AwayStore(MemoryStore):
        async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
            if key.startswith("agent_history/"):
                raise StoreUnavailableError("The disk is full.", reason="full")
            await super().put(key, value, ttl=ttl)

    async with managed(runtime, yard={"store": AwayStore()}) as manager:
        events = await send(manager)
        history = await manager.history(await manager.sessions.get("local", "chat"))

    assert ([type_of(event) for event in events], history) == (["text_delta", "done"], [])


@pytest.mark.parametrize("mode", ["default", "plan", "dontAsk", "acceptEdits", "auto", "rules", "bypassPermissions"])
async def test_only_bypassing_permits_tools_of_the_agent_without_asking(runtime: Any, mode: str) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        decision = await request.permit("look", {}, tool_call_id="t1", source="agent")
        yield TextDelta(text=decision.outcome)

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(
            manager,
            permission_mode=mode,
            decide=deciding(manager, approve=False),
        )

    assert (len(asked(events)), said(events)) == ((0, ["approved"]) if mode == "bypassPermissions" else (1, ["denied"]))


async def test_permissions_are_written_to_the_audit_log(runtime: Any) -> None:
    lines: list[AuditLine] = []
    runtime.play = calling("burn", {"what": "tea"}, permitted={"what": "tea"})
    async with managed(runtime) as manager:
        manager.yard.audit = lines.append
        await send(manager, decide=deciding(manager, approve=False, by="ada", reason="No."))

    assert [(line.event, line.tool, line.by, line.reason) for line in lines[:1]] == [
        ("permission_denied", "burn", "ada", "No.")
    ]


@pytest.mark.parametrize(("approve", "expected"), [(None, "painted red"), (False, "approval_denied")])
async def test_a_question_of_a_tool_reaches_the_person(runtime: Any, approve: bool | None, expected: str) -> None:  # noqa: FBT001 - a parameter of the test
    runtime.play = calling("paint", {})

    def decide(event: Any) -> None:
        if approve is None:
            manager.interactions.answer(event.interaction_id, {"colour": "red"}, by="local")
        else:
            manager.interactions.decide(event.interaction_id, approve=approve, by="local")

    async with managed(runtime) as manager:
        assert said(await send(manager, decide=decide)) == [expected]


async def test_a_tool_cannot_ask_about_an_approval_by_the_key_of_its_question(runtime: Any) -> None:
    rule = Rule(decision="ask", tools=("burn",), by="operator")
    async with managed(runtime, yard={"rules": [rule], "limits": FAST}) as manager:
        runtime.play = calling("burn", {"what": "tea"})
        await send(manager, caller=Caller(identity="bob"))
        gate = manager.yard.gate
        assert gate is not None
        [approval] = await gate.approvals.pending()
        questions: list[Any] = []

        def decide(event: Any) -> None:
            questions.append(event)
            manager.interactions.answer(event.interaction_id, {"name": "Ada"}, by="ada")

        forged = ("approval-form", ""), (f"approval-{approval.id}", ""), ("name", approval.id), ("name", "a_0")
        for key, approval_id in forged:
            runtime.play = calling("relay", {"key": key, "approval_id": approval_id})
            assert said(await send(manager, decide=decide, caller=Caller(identity="ada"))) == ["Ada"]

        assert [type_of(event) for event in questions] == ["question"] * len(forged)
        assert (await gate.approvals.get(approval.id)).status == "pending"


async def test_a_question_for_a_model_is_not_asked_of_a_person(runtime: Any) -> None:
    runtime.play = calling("sample", {})
    async with managed(runtime) as manager:
        assert said(await send(manager)) == ["not_supported"]


async def test_an_answer_that_nobody_gives_dismisses_the_question(runtime: Any) -> None:
    runtime.play = calling("paint", {})
    async with managed(runtime, countdown_s=0.01) as manager:
        assert said(await send(manager, attended=False)) == ["cancelled"]


async def test_an_approval_that_nobody_gives_is_expired_and_not_denied_by_a_person(runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        envelope = await request.conversation.call("burn", {"what": "tea"})
        assert envelope.error is not None
        yield TextDelta(text=f"{envelope.error.code} {envelope.error.details['reason']}")

    runtime.play = play
    async with managed(runtime, countdown_s=0.01) as manager:
        assert said(await send(manager, attended=False)) == ["approval_denied expired"]


async def test_the_end_of_a_turn_refuses_what_a_task_of_its_sdk_still_asks(runtime: Any) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        tasks.append(asyncio.ensure_future(request.permit("burn", {}, tool_call_id="t1", source="yard")))
        yield TextDelta(text="I ask.")
        await asyncio.sleep(0)

    runtime.play = play
    async with managed(runtime) as manager:
        events = await send(manager)

        assert [type_of(event) for event in events] == ["text_delta", "approval_required", "approval_resolved", "done"]
        assert ((await tasks[0]).outcome, manager.interactions.pending()) == ("cancelled", [])


async def test_a_reader_that_falls_behind_gets_an_error_about_missing_events() -> None:
    turn = Turn(seconds=0)
    for number in range(500):
        turn.emit(TextDelta(text=f"{number} " + "x" * 40_000))
    turn.emit(Done(status="completed"))

    late, rest = turn.after(0), turn.after(499)

    assert isinstance(late[0][1], Error)
    assert [place for place, _ in late[1:]] == list(range(502 - len(late[1:]), 502))
    assert [place for place, _ in rest] == [500, 501]
    assert 7_000_000 < sum(len(encode_stream_event(event)) for _, event in late) <= 8 * 1024 * 1024


async def test_the_last_event_is_kept_however_large_it_is() -> None:
    turn = Turn(seconds=0)
    for _ in range(2):
        turn.emit(TextDelta(text="x" * 9_000_000))

    assert [place for place, _ in turn.after(1)] == [2]


async def test_nothing_follows_the_last_event() -> None:
    turn = Turn(seconds=0)
    turn.emit(Done(status="completed"))
    turn.emit(TextDelta(text="Late."))

    assert [type_of(event) async for event in turn.events()] == ["done"]


async def test_a_reader_misses_nothing_that_comes_while_it_reads() -> None:
    turn = Turn(seconds=0)
    turn.emit(TextDelta(text="First."))
    kinds: list[str] = []
    async for event in turn.events():
        kinds.append(type_of(event))
        if len(kinds) == 1:
            turn.emit(TextDelta(text="Second."))
            turn.emit(Done(status="completed"))

    assert kinds == ["text_delta", "text_delta", "done"]


def test_only_one_file_calls_the_sdks_query() -> None:
    source = Path(__file__).parents[2] / "src" / "callyard"
    callers = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if "sdk.query(" in path.read_text(encoding="utf-8")
    ]

    assert callers == ["agents/claude.py"]


def test_credentials_of_a_cloud_and_of_others_are_withheld_unless_that_cloud_is_switched_on() -> None:
    ours = dict.fromkeys(("PATH", "AWS_SECRET_ACCESS_KEY", "GOOGLE_KEY", "MCP_GITHUB_TOKEN", "MCP_TIMEOUT"), "x")
    for switch, is_on in (("1", True), ("true", True), ("0", False), ("false", False), ("", False)):
        for inherited, configured in (
            ({"CLAUDE_CODE_USE_BEDROCK": switch}, {}),
            ({}, {"CLAUDE_CODE_USE_BEDROCK": switch}),
        ):
            withheld = set(_withheld({**ours, **inherited}, configured))
            assert withheld == {"GOOGLE_KEY", "MCP_GITHUB_TOKEN"} | (set() if is_on else {"AWS_SECRET_ACCESS_KEY"})
    assert "AWS_SECRET_ACCESS_KEY" in _withheld(
        {**ours, "CLAUDE_CODE_USE_BEDROCK": "1"}, {"CLAUDE_CODE_USE_BEDROCK": "0"}
    )


class Shared(MemoryStore):
    """A store of several machines, which share it in this process."""

    is_shared = True


async def test_a_conversation_goes_on_only_on_the_machine_that_has_its_files(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Shared()
    monkeypatch.setattr("socket.gethostname", lambda: "north")
    async with managed(runtime, yard={"store": store}) as manager:
        await send(manager)
        await send(manager)
        assert runtime.requests[-1].resume == "sdk-1"

    monkeypatch.setattr("socket.gethostname", lambda: "south")
    async with managed(runtime, yard={"store": store}) as manager:
        with pytest.raises(ToolError) as caught:
            await send(manager)
        assert (caught.value.code, caught.value.details["reason"]) == ("state_error", "not_here")
        assert "'north'" in caught.value.message
        assert len(runtime.requests) == 2

        await send(manager, session="another")
        (session,) = [one for one in await manager.sessions.all() if one.id == "chat"]
        await manager.delete(session)
        assert (runtime.forgotten, "conversation_left" in caplog.text) == ([], True)


async def test_a_conversation_in_the_store_goes_on_everywhere(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store, runtime.has_folder = Shared(), False
    for host in ("north", "south"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        async with managed(runtime, yard={"store": store}) as manager:
            await send(manager)
    assert runtime.requests[-1].resume == "sdk-1"
