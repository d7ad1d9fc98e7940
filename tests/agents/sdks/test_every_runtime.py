"""The same turns with every runtime: the same events, the same permissions and the same ends."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, Host, approve, back, deny, of_type

from callyard import Limits
from callyard.agents import AgentManager
from callyard.agents.events import ApprovalRequired, Question, ToolCallStart, type_of
from callyard.dispatch.call import Caller
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.profile import Profile, Surface
from callyard.state.memory import MemoryStore
from callyard.testing.models import Fault, ToolUse

META = Profile(name="meta", surface=Surface.META)
NameOf = Callable[[str], str]
Hosting = Callable[..., AbstractAsyncContextManager[Host]]


async def test_a_call_is_approved_in_the_stream_and_its_result_follows(hosting: Hosting, name_of: NameOf) -> None:
    script = [["I burn it.", ToolUse(name_of("burn"), {"what": "tea"})], "Done."]
    async with hosting(script) as host:
        events = await host.send(decide=approve)

        result = Envelope.from_json(of_type(events, "tool_result")[0].text)
        audited = [approval.decided_by for approval in await stored_approvals(host)]

    kinds = [type_of(event) for event in events]
    assert "".join(event.text for event in of_type(events, "text_delta")) == "I burn it.Done."
    order = ["tool_call_start", "tool_call_end", "approval_required", "approval_resolved", "tool_result", "done"]
    assert [kind for kind in kinds if kind in order] == order
    assert "".join(event.arguments for event in of_type(events, "tool_call_delta")) == '{"what": "tea"}'
    [end], [asked] = of_type(events, "tool_call_end"), of_type(events, "approval_required")
    assert (end.arguments, asked.tool, asked.arguments) == ({"what": "tea"}, "burn", {"what": "tea"})
    assert result.data == "burnt tea 1"
    assert (events[-1].status, host.tools.burnt, audited) == ("completed", ["tea"], ["client:local"])


async def stored_approvals(host: Host) -> list[Any]:
    gate = host.manager.yard.gate
    assert gate is not None
    keys = await host.manager.yard.store.keys("approval/")
    return [await gate.approvals.get(key.removeprefix("approval/")) for key in keys]


async def test_a_denied_call_does_not_run_and_the_model_reads_the_reason(hosting: Hosting, name_of: NameOf) -> None:
    async with hosting([ToolUse(name_of("burn"), {"what": "tea"}), "Done."]) as host:
        events = await host.send(decide=deny)

    [resolved] = of_type(events, "approval_resolved")
    assert (resolved.outcome, resolved.reason, resolved.by) == ("denied", "Not on a Sunday.", "local")
    assert "Not on a Sunday." in host.model.results[0].text
    assert (host.tools.burnt, host.sink.records) == ([], [])


@pytest.mark.parametrize(("decide", "burnt"), [(approve, ["tea"]), (deny, [])])
async def test_bypassing_permissions_does_not_bypass_the_yard(
    hosting: Hosting, name_of: NameOf, decide: Any, burnt: list[str]
) -> None:
    script = [ToolUse(name_of("look")), ToolUse(name_of("burn"), {"what": "tea"}), "Done."]
    async with hosting(script) as host:
        events = await host.send(decide=decide, permission_mode="bypassPermissions")

    [asked] = of_type(events, "approval_required")
    assert (asked.tool, asked.source) == ("burn", "yard")
    assert "Why you are asked" in asked.text
    assert host.tools.burnt == burnt
    assert next(result.is_error for result in of_type(events, "tool_result")) is False
    if not burnt:
        assert "Not on a Sunday." in host.model.results[1].text


async def test_progress_of_a_tool_is_in_the_stream_and_the_history_has_its_result(
    hosting: Hosting, name_of: NameOf
) -> None:
    async with hosting([ToolUse(name_of("march")), "Done."]) as host:
        events = await host.send(permission_mode="rules")
        messages: list[Any] = await host.manager.history(await host.manager.sessions.get("local", "chat"))

    [of_person, of_agent] = messages
    [call], [step] = of_type(events, "tool_call_start"), of_type(events, "tool_progress")
    assert (step.tool_call_id, step.done, step.total, step.text) == (call.tool_call_id, 1.0, 2.0, "half")
    assert (of_person.text, of_agent.text) == ("Go.", "Done.")
    assert [result.tool for result in of_type(of_agent.events, "tool_result")] == ["march"]


async def test_a_call_through_a_metatool_asks_once(hosting: Hosting, name_of: NameOf) -> None:
    run = ToolUse(name_of("run_tool"), {"tool_id": "burn", "arguments": {"what": "tea"}})
    async with hosting([run, "Done."], yard={"profile": META}) as host:
        events = await host.send(decide=approve)

    [asked] = of_type(events, "approval_required")
    assert (asked.tool, "'burn': destroy" in asked.text, host.tools.burnt) == ("run_tool", True, ["tea"])


async def test_a_call_inside_a_chain_is_asked_about_itself(hosting: Hosting, name_of: NameOf) -> None:
    steps = [{"tool_id": "look"}, {"tool_id": "burn", "args": {"what": "tea"}}]
    async with hosting([ToolUse(name_of("run_chain"), {"steps": steps}), "Done."], yard={"profile": META}) as host:
        events = await host.send(decide=approve)

    assert [asked.tool for asked in of_type(events, "approval_required")] == ["run_chain", "burn"]
    assert host.tools.burnt == ["tea"]


async def test_arguments_from_a_stored_result_are_asked_about_again(hosting: Hosting, name_of: NameOf) -> None:
    script = [ToolUse(name_of("archive")), ToolUse(name_of("burn"), {"what": {"$ref": "r_1", "path": "/0"}}), "Done."]
    async with hosting(script) as host:
        events = await host.send(decide=approve)

    asked = of_type(events, "approval_required")
    assert [event.arguments.get("what") for event in asked] == [None, {"$ref": "r_1", "path": "/0"}, "order 0"]
    assert host.tools.burnt == ["order 0"]


async def test_a_question_of_a_tool_is_answered_in_the_stream(hosting: Hosting, name_of: NameOf) -> None:
    def decide(manager: AgentManager, event: ApprovalRequired | Question) -> None:
        if isinstance(event, Question):
            with pytest.raises(ToolError):
                manager.interactions.answer(event.interaction_id, {"shape": "round"}, by="local")
            manager.interactions.answer(event.interaction_id, {"colour": "red"}, by="local")
        else:
            approve(manager, event)

    async with hosting([ToolUse(name_of("paint")), "Done."]) as host:
        events = await host.send(decide=decide)

    [question] = of_type(events, "question")
    assert (question.text, question.form["required"], question.tool) == ("Which colour?", ["colour"], "paint")
    assert host.model.results[0].envelope.data == "painted red"


async def test_an_unattended_turn_refuses_when_the_countdown_ends(hosting: Hosting, name_of: NameOf) -> None:
    async with hosting([ToolUse(name_of("burn"), {"what": "tea"}), "Done."], countdown_s=0.1) as host:
        events = await host.send(attended=False)

    [resolved] = of_type(events, "approval_resolved")
    assert (resolved.outcome, resolved.by, events[-1].status) == ("expired", "", "completed")
    assert host.tools.burnt == []


async def test_an_approval_of_the_yard_that_nobody_gives_is_refused_when_the_countdown_ends(
    hosting: Hosting, name_of: NameOf
) -> None:
    async with hosting([ToolUse(name_of("burn"), {"what": "tea"}), "Done."], countdown_s=0.1) as host:
        await host.send(attended=False, permission_mode="bypassPermissions")

    error = host.model.results[0].envelope.error
    assert error is not None
    assert (error.code, error.details["reason"], host.tools.burnt) == ("approval_denied", "expired", [])


async def test_a_session_goes_on_after_a_restart(hosting: Hosting, name_of: NameOf) -> None:
    store, limits = MemoryStore(), Limits()
    script = [ToolUse(name_of("look")), "Looked.", "Remembered."]
    async with hosting(script, store=store, yard={"limits": limits}) as host:
        await host.send(decide=approve)
    async with hosting(script, store=store) as host:
        events = await host.send("Again.")
        [session] = await host.manager.sessions.all()

    assert "".join(event.text for event in of_type(events, "text_delta")) == "Remembered."
    assert of_type(events, "tool_result") == []
    assert (session.turns, session.title) == (2, "Go.")


async def test_two_conversations_never_see_each_others_sessions_handles_and_approvals(
    hosting: Hosting, name_of: NameOf
) -> None:
    ref = ToolUse(name_of("count"), {"items": {"$ref": "r_1"}})
    meet, burn, count = (
        ToolUse(name_of("meet")),
        ToolUse(name_of("burn"), {"what": "tea"}),
        ToolUse(name_of("get_session_count")),
    )
    sight: dict[str, list[str]] = {"one": [], "other": []}

    async with hosting([]) as host:
        scripts = {
            "ONE": [ToolUse(name_of("open_cart")), ToolUse(name_of("archive")), meet, ref, count, burn, "Done."],
            "OTHER": [meet, ref, count, burn, "Done."],
        }
        host.model.script_for = lambda body: scripts["OTHER" if "OTHER" in str(body) else "ONE"]

        def decide_for(session: str) -> Any:
            def decide(manager: AgentManager, event: ApprovalRequired | Question) -> None:
                mine = manager.interactions.pending(identity=session, session_id=session)
                sight[session] += [one.session_id for one in mine]
                (approve if event.tool != "burn" or session == "one" else deny)(manager, event)

            return decide

        one, other = await asyncio.gather(
            host.send("ONE", session="one", caller=Caller(identity="one"), decide=decide_for("one")),
            host.send("OTHER", session="other", caller=Caller(identity="other"), decide=decide_for("other")),
        )

    denied, counted = [Envelope.from_json(result.text) for result in of_type(other, "tool_result")[1:3]]
    envelopes = [Envelope.from_json(result.text) for result in of_type(one, "tool_result")]
    assert [envelope.data for envelope in envelopes[-3:]] == [5000, 1, "burnt tea 1"]
    assert denied.error is not None
    assert (denied.error.code, counted.data, host.tools.burnt) == ("invalid_input", 0, ["tea"])
    assert (set(sight["one"]), set(sight["other"])) == ({"one"}, {"other"})


async def test_cancelling_a_turn_cancels_its_call_and_the_session_goes_on(hosting: Hosting, name_of: NameOf) -> None:
    async with hosting([ToolUse(name_of("wait")), "Never.", "Never."]) as host, asyncio.timeout(TIMEOUT):
        turn = asyncio.create_task(host.send(decide=approve))
        await host.tools.started.wait()
        [session] = await host.manager.sessions.all()
        assert await host.manager.cancel(session)
        events = await turn
        await host.tools.stopped.wait()
        host.model.script_for = back
        again = await host.send("Again.")

    [error] = of_type(events, "error")
    assert (error.code, events[-1].status, host.sink.codes) == ("cancelled", "cancelled", ["cancelled"])
    assert [event.text for event in of_type(again, "text_delta")] == ["Back."]


async def test_cancelling_while_a_person_is_asked_denies(hosting: Hosting, name_of: NameOf) -> None:
    async with hosting([ToolUse(name_of("burn"), {"what": "tea"}), "Never."]) as host:

        def decide(manager: AgentManager, event: ApprovalRequired | Question) -> None:
            manager.cancel_all()

        events = await host.send(decide=decide)

        assert host.manager.interactions.pending() == []
    assert [event.outcome for event in of_type(events, "approval_resolved")] == ["cancelled"]
    assert (events[-1].status, host.tools.burnt) == ("cancelled", [])


FAULTS = [Fault("garbage"), Fault("disconnect"), Fault("status", status=400), Fault("status", status=500)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.status}")
async def test_a_model_that_fails_ends_the_turn_with_an_error_and_the_session_goes_on(
    hosting: Hosting, name_of: NameOf, fault: Fault
) -> None:
    async with hosting([ToolUse(name_of("look")), fault], turn_s=45.0) as host:
        events = await host.send(decide=approve)
        host.model.script_for = back
        again = await host.send("Again.")

    [error] = of_type(events, "error")
    assert error.code in {"upstream_error", "upstream_unavailable"}
    assert (events[-1].status, bool(error.message)) == ("failed", True)
    assert "Back." in [event.text for event in of_type(again, "text_delta")]


async def test_a_model_that_never_ends_is_ended_by_the_time_limit(hosting: Hosting, name_of: NameOf) -> None:
    async with hosting([ToolUse(name_of("wait")), "Never."], turn_s=4.0) as host:
        events = await host.send(decide=approve)
        await host.tools.stopped.wait()

    [error] = of_type(events, "error")
    assert (error.code, events[-1].status) == ("timeout", "failed")


@pytest.mark.parametrize("kind", ["endless", "silent"])
async def test_a_model_that_does_not_stop_or_does_not_answer_is_ended_by_the_time_limit(
    hosting: Hosting, kind: Any
) -> None:
    async with hosting([Fault(kind)], turn_s=6.0) as host:
        events = await host.send()

    [error] = of_type(events, "error")
    assert (error.code, events[-1].status, bool(of_type(events, "text_delta"))) == (
        "timeout",
        "failed",
        kind == "endless",
    )


async def test_calls_of_one_turn_each_have_their_events(hosting: Hosting, name_of: NameOf) -> None:
    uses = [ToolUse(name_of("burn"), {"what": what}) for what in ("tea", "milk", "salt")]
    async with hosting([["Three.", *uses], "Done."]) as host:
        events = await host.send(decide=approve)

    starts: list[ToolCallStart] = of_type(events, "tool_call_start")
    ids = [event.tool_call_id for event in starts]
    assert len(set(ids)) == 3
    assert sorted(event.tool_call_id for event in of_type(events, "tool_result")) == sorted(ids)
    assert sorted(event.tool_call_id for event in of_type(events, "tool_call_end")) == sorted(ids)
    assert (len(of_type(events, "approval_required")), sorted(host.tools.burnt)) == (3, ["milk", "salt", "tea"])


async def test_arguments_that_are_no_json_are_refused_and_the_turn_goes_on(hosting: Hosting, name_of: NameOf) -> None:
    async with hosting([ToolUse(name_of("burn"), '{"what": '), "Done."]) as host:
        events = await host.send(decide=approve)

    assert (events[-1].status, host.tools.burnt) == ("completed", [])
    assert host.model.results[0].text


async def test_the_caller_and_the_mode_are_those_of_the_message(
    hosting: Hosting, name_of: NameOf, tmp_path: Path
) -> None:
    claims: Mapping[str, Any] = {}
    async with hosting([ToolUse(name_of("look")), "Done."]) as host:
        with pytest.raises(ToolError) as refused:
            await host.send(permission_mode="yolo")
        await host.send(caller=Caller(identity="ada", claims=dict(claims)), permission_mode="bypassPermissions")

    assert refused.value.code == "invalid_input"
    assert [(record.identity, record.code) for record in host.sink.records] == [("ada", None)]
