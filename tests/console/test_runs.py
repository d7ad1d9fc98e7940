"""Runs: calls that people make in the console, whose they are, what they ask, and how many are kept."""

import asyncio
from typing import Any

import pytest
from table_tests import every_row

from callyard import Call, Image, Rule, ToolError, Yard, tool
from callyard.console.access import Person
from callyard.console.runs import Run, Runs
from callyard.model.elicitation import ClientRequest

ADA = Person(identity="ada", login="login of ada", csrf_token="x")  # noqa: S106 - no password
BOB = Person(identity="bob", login="login of bob", csrf_token="x")  # noqa: S106 - no password
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"], "type": "string"}},
    "required": ["colour"],
}


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool
async def wait(call: Call) -> str:
    """Report progress, then wait until it is cancelled."""
    await call.progress(1, 4, "reading")
    await call.log("warning", "It is slow.", pages=3)
    await asyncio.Event().wait()
    return "done"


@tool
async def paint(call: Call) -> str:
    """Ask for a colour."""
    return (await call.ask(COLOUR, "Which colour?"))["colour"]


@tool(operation="destroy")
async def wipe(disk: str) -> str:
    """Delete everything on a disk."""
    return f"{disk} is empty"


@tool
async def talk(call: Call) -> None:
    """Log more lines than are kept."""
    for number in range(500):
        await call.log("info", f"{number} " + "x" * 5000)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the run tells nobody but the page
            await asyncio.sleep(0.005)


async def start(runs: Runs, name: str, arguments: str = "{}", person: Person = ADA) -> Run:
    return await runs.start(person, name, arguments)


async def test_a_quick_run_is_over_when_it_has_started() -> None:
    async with Yard(tools=[echo]) as yard:
        run = await start(Runs(yard), "echo", '{"text": "hello"}')

    assert run.envelope is not None
    assert run.envelope.data == "hello"
    assert '"hello"' in run.text
    assert run.call_id == run.envelope.meta.call_id


async def test_a_run_names_the_fields_that_are_wrong() -> None:
    async with Yard(tools=[echo]) as yard:
        run = await start(Runs(yard), "echo", "{}")
        broken = await start(Runs(yard), "echo", "{")

    assert [issue["field"] for issue in run.issues] == ["text"]
    assert broken.envelope is not None
    assert broken.envelope.expect_error("invalid_input")


async def test_a_run_goes_on_without_its_page_and_can_be_cancelled() -> None:
    async with Yard(tools=[wait]) as yard:
        runs = Runs(yard)
        run = await start(runs, "wait")
        assert not run.is_over
        assert runs.get(run.id, ADA) is run
        assert run.progress is not None
        assert (run.progress.done, run.progress.total, run.progress.text) == (1, 4, "reading")
        assert [(line.level, line.text) for line in run.log] == [("warning", "It is slow. pages=3")]
        run.cancel()
        await until(lambda: run.is_over)

    assert run.envelope is not None
    assert run.envelope.expect_error("cancelled").may_have_run


async def test_a_run_that_is_cancelled_before_its_call_begins_is_over() -> None:
    async with Yard(tools=[wait]) as yard:
        run = Run(yard, ADA, "wait", "{}", asks=True)
        task = run.start()
        run.cancel()
        await asyncio.wait([task])
        await until(lambda: run.is_over)

    assert run.envelope is not None
    run.envelope.expect_error("cancelled")


async def test_a_run_is_found_by_its_call_while_it_runs() -> None:
    async with Yard(tools=[wait]) as yard:
        runs = Runs(yard)
        run = await start(runs, "wait")
        assert runs.of_call(run.call_id, ADA) is run
        assert runs.of_call("c_other", ADA) is None


async def test_a_question_that_only_another_client_can_answer_is_not_supported() -> None:
    @tool
    async def think(call: Call) -> Any:
        """Ask for the model of the client."""
        return await call.ask_all({"x": ClientRequest.model("Hello", max_tokens=5)})

    async with Yard(tools=[think]) as yard:
        run = await start(Runs(yard), "think")

    assert run.envelope is not None
    run.envelope.expect_error("not_supported")


async def test_the_end_of_the_yard_ends_its_runs() -> None:
    async with Yard(tools=[wait]) as yard:
        runs = Runs(yard)
        run = await start(runs, "wait")
    late = await start(runs, "wait")

    assert run.envelope is not None
    assert run.envelope.expect_error("cancelled")
    assert late.envelope is not None
    assert late.envelope.expect_error("overloaded")


async def test_only_the_login_that_started_a_run_sees_it() -> None:
    async with Yard(tools=[echo]) as yard:
        runs = Runs(yard)
        run = await start(runs, "echo", '{"text": "secret"}')

        assert runs.of_call(run.call_id, ADA) is run
        assert runs.of_person(ADA, "echo") == [run]
        for other in (BOB, Person()):
            with pytest.raises(LookupError):
                runs.get(run.id, other)
            assert runs.of_call(run.call_id, other) is None
            assert runs.of_person(other, "echo") == []
        assert "secret" not in repr(run)


async def test_a_reader_without_a_login_runs_nothing() -> None:
    async with Yard(tools=[echo]) as yard:
        with pytest.raises(ToolError) as caught:
            await start(Runs(yard), "echo", person=Person())

    assert caught.value.code == "permission_denied"


async def test_a_question_is_answered_in_place() -> None:
    async with Yard(tools=[paint]) as yard:
        run = await start(Runs(yard), "paint")
        question = run.questions[0]
        assert question.text == "Which colour?"
        assert [field.name for field in question.form.fields] == ["colour"]
        assert not question.is_approval
        run.answer(question.id, "accept", {"colour": "red"})
        await until(lambda: run.is_over)
        with pytest.raises(ToolError) as caught:
            run.answer(question.id, "accept", {"colour": "green"})

    assert run.envelope is not None
    assert run.envelope.data == "red"
    assert caught.value.code == "state_error"
    assert not run.questions


async def test_a_question_of_a_tool_is_none_about_an_approval_whatever_its_key_is() -> None:
    @tool
    async def form(call: Call) -> str:
        """Ask with a key that looks like that of an approval."""
        return (await call.ask(COLOUR, "Which colour?", key="approval-form"))["colour"]

    async with Yard(tools=[form]) as yard:
        run = await start(Runs(yard), "form")
        question = run.questions[0]
        run.answer(question.id, "accept", {"colour": "red"})
        await until(lambda: run.is_over)

    assert run.envelope is not None
    assert (question.is_approval, run.envelope.data) == (False, "red")


@every_row(
    ("action", "content", "code"),
    [
        ("decline", None, "approval_denied"),
        ("cancel", None, "cancelled"),
        ("accept", {"colour": "blue"}, "invalid_input"),
        ("accept", [], "invalid_input"),
    ],
)
async def test_a_question_may_be_declined_dismissed_or_answered_wrongly(action: Any, content: Any, code: Any) -> None:
    async with Yard(tools=[paint]) as yard:
        run = await start(Runs(yard), "paint")
        run.answer(run.questions[0].id, action, content)
        await until(lambda: run.is_over)

    assert run.envelope is not None
    run.envelope.expect_error(code)


@pytest.mark.parametrize(("action", "code"), [("accept", None), ("decline", "approval_denied")])
async def test_a_tool_that_destroys_asks_the_person_who_runs_it(action: Any, code: Any) -> None:
    yard = Yard(tools=[wipe])
    yard.ask_before_destroy()
    async with yard:
        run = await start(Runs(yard), "wipe", '{"disk": "a"}')
        assert run.questions[0].is_approval
        assert run.is_waiting
        run.answer(run.questions[0].id, action, {})
        await until(lambda: run.is_over)

    assert run.envelope is not None
    assert (None if run.envelope.error is None else run.envelope.error.code) == code


async def test_an_approval_that_somebody_else_gives_ends_the_question() -> None:
    yard = Yard(tools=[wipe])
    yard.ask_before_destroy()
    async with yard:
        run = await start(Runs(yard), "wipe", '{"disk": "a"}')
        assert yard.gate is not None
        approval = (await yard.gate.approvals.pending())[0]
        await yard.gate.approvals.decide(approval.id, "approve", by="operator")
        await until(lambda: run.is_over)

    assert run.envelope is not None
    assert run.envelope.data == "a is empty"


async def test_a_rule_for_operators_waits_for_another_person() -> None:
    rule = Rule(decision="ask", tools=("wipe",), by="operator", reason="Disks are dear.")
    async with Yard(tools=[wipe], rules=[rule]) as yard:
        run = await start(Runs(yard), "wipe", '{"disk": "a"}')
        assert not run.questions
        assert run.is_waiting
        assert yard.gate is not None
        approval = (await yard.gate.approvals.pending())[0]
        assert approval.binding.owner == run.caller.owner
        await yard.gate.approvals.decide(approval.id, "approve", by="operator")
        await until(lambda: run.is_over)

    assert run.envelope is not None
    assert run.envelope.data == "a is empty"


@pytest.mark.parametrize("by", ["anyone", "operator"])
async def test_a_cancelled_run_withdraws_the_approval_that_it_waits_for(by: Any) -> None:
    rule = Rule(decision="ask", tools=("wipe",), by=by, reason="Disks are dear.")
    async with Yard(tools=[wipe], rules=[rule]) as yard:
        assert yard.gate is not None
        approvals, runs = yard.gate.approvals, Runs(yard)
        run, same = [await start(runs, "wipe", '{"disk": "a"}') for _ in range(2)]
        other = await start(runs, "wipe", '{"disk": "b"}')
        run.cancel()
        await until(lambda: run.is_over)
        shared = len(await approvals.pending())
        same.cancel()
        await until(lambda: same.is_over)
        async with asyncio.timeout(60):
            while len(left := await approvals.pending()) > 1:
                pass
        [withdrawn] = await approvals.decided()
        again = await start(runs, "wipe", '{"disk": "a"}')
        for one in (other, again):
            one.cancel()
        await until(lambda: other.is_over and again.is_over)

    assert shared == 2  # another run waits for the same approval
    assert '"b"' in left[0].card.arguments
    assert (withdrawn.status, withdrawn.decided_by) == ("expired", "ada")
    assert again.envelope is not None
    again.envelope.expect_error("cancelled")  # a denial would have been remembered


async def test_images_are_shown_as_far_as_there_is_room() -> None:
    @tool(operation="query")
    async def draw() -> list[Image]:
        """Draw."""
        return [Image(b"x" * 300), Image(b"y" * 100_000), Image(b"<svg/>", "image/svg+xml"), Image(b"z", "image/webp")]

    async with Yard(tools=[draw]) as yard:
        run = await start(Runs(yard), "draw")

    assert [bool(picture.url) for picture in run.images] == [True, False, False, True]
    assert run.images[0].url == f"data:image/png;base64,{'eHh4' * 100}"
    assert run.size > 100_000


async def test_log_lines_are_bounded() -> None:
    async with Yard(tools=[talk]) as yard:
        run = await start(Runs(yard), "talk")
        await until(lambda: run.is_over)

    assert len(run.log) == 200
    assert run.log_dropped == 300
    assert run.size < 300_000


async def test_a_login_keeps_its_last_runs_and_no_more() -> None:
    async with Yard(tools=[echo]) as yard:
        runs = Runs(yard)
        others = await start(runs, "echo", '{"text": "x"}', BOB)
        mine = [await start(runs, "echo", f'{{"text": "{number}"}}') for number in range(30)]

    assert runs.of_person(ADA, "echo") == mine[:-21:-1]
    assert runs.of_person(BOB, "echo") == [others]


async def test_large_runs_make_room_for_each_other() -> None:
    async with Yard(tools=[echo]) as yard:
        runs = Runs(yard)
        large = f'{{"text": {10_000_000 * " "} "x"}}'
        for _ in range(6):
            await start(runs, "echo", large)

    assert len(runs.of_person(ADA, "echo")) < 6


async def test_too_many_runs_at_a_time_are_refused() -> None:
    async with Yard(tools=[wait, echo]) as yard:
        runs = Runs(yard)
        running = [await runs.start(ADA, "wait", "{}", grace_s=0) for _ in range(8)]
        with pytest.raises(ToolError) as caught:
            await start(runs, "wait")
        assert (await start(runs, "echo", '{"text": "x"}', BOB)).is_over
        for run in running:
            run.cancel()

    assert caught.value.code == "overloaded"
