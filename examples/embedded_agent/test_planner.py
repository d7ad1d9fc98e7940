"""The planner and its agent, tested without a key: `pytest examples/embedded_agent`."""

from collections.abc import Mapping
from contextlib import closing
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from agent import run_agent
from planner import VISITORS, make_yard
from scheduler import OverlapError, Scheduler, UnknownAppointmentError

from callyard import Caller
from callyard.inject import Conversation
from callyard.testing.models import ScriptedAnthropic, ToolUse

FRIDAY = date(2026, 11, 20)
AT_NINE, AT_TEN = datetime(2026, 11, 20, 9), datetime(2026, 11, 20, 10)  # noqa: DTZ001 - the planner's times are local


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a file with one appointment: the dentist at nine."""
    path = str(tmp_path / "appointments.db")
    with closing(Scheduler(path)) as scheduler:
        scheduler.add("Dentist", AT_NINE, 60)
    return path


def titles(path: str) -> list[str]:
    with closing(Scheduler(path)) as scheduler:
        return [f"{appointment.start:%H:%M} {appointment.title}" for appointment in scheduler.on(FRIDAY)]


def test_appointments_never_overlap_and_may_follow_each_other(path: str) -> None:
    with closing(Scheduler(path)) as scheduler:
        with pytest.raises(OverlapError):
            scheduler.add("Gym", AT_NINE.replace(minute=59), 60)
        scheduler.add("Gym", AT_TEN, 60)
        with pytest.raises(OverlapError):
            scheduler.move(1, AT_TEN)
        scheduler.move(1, AT_NINE.replace(minute=0))

    assert titles(path) == ["09:00 Dentist", "10:00 Gym"]


def test_an_appointment_that_is_removed_is_gone(path: str) -> None:
    with closing(Scheduler(path)) as scheduler:
        assert scheduler.remove(1).title == "Dentist"
        with pytest.raises(UnknownAppointmentError):
            scheduler.remove(1)

    assert titles(path) == []


async def test_a_time_that_is_taken_is_answered_with_what_takes_it(path: str) -> None:
    async with make_yard(path) as yard:
        answer = await yard.call("add_appointment", {"title": "Gym", "start": "2026-11-20T09:30"})

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("state_error", False)
    assert answer.error.details == {"reason": "taken", "taken_by": "Dentist", "free_from": "2026-11-20T10:00"}


async def test_the_model_sees_the_appointments_that_the_product_has(path: str) -> None:
    with ScriptedAnthropic([ToolUse("list_appointments", {"day": "2026-11-20"}), "The dentist."]) as model:
        async with make_yard(path) as yard:
            assert await run_agent(Conversation(yard), model.url, "What is on Friday?") == "The dentist."

    [appointment] = model.results[0].envelope.data
    assert (appointment["id"], appointment["title"], appointment["start"]) == (1, "Dentist", "2026-11-20T09:00:00")


@pytest.mark.parametrize(("reply", "code", "left"), [({}, None, []), (None, "approval_denied", ["09:00 Dentist"])])
async def test_a_person_decides_whether_an_appointment_is_removed(
    path: str, reply: Mapping[str, Any] | None, code: str | None, left: list[str]
) -> None:
    async def elicit(text: str, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
        assert '"appointment":1' in text
        return reply

    with ScriptedAnthropic([ToolUse("remove_appointment", {"appointment": 1}), "Done."]) as model:
        async with make_yard(path) as yard:
            await run_agent(Conversation(yard, elicit=elicit), model.url, "Cancel the dentist.")

    error = model.results[0].envelope.error
    assert (error.code if error else None) == code
    assert titles(path) == left


async def test_a_visitor_can_only_look(path: str) -> None:
    script = [ToolUse("remove_appointment", {"appointment": 1}, unlisted=True), "No."]
    with ScriptedAnthropic(script) as model:
        async with make_yard(path) as yard:
            await run_agent(
                Conversation(yard, caller=Caller(identity="visitor", profile=VISITORS)), model.url, "Cancel it."
            )

    error = model.results[0].envelope.error
    assert error is not None
    assert (error.code, list(model.tools)) == ("tool_not_found", ["list_appointments"])


async def test_a_model_that_never_stops_calling_tools_is_stopped(path: str) -> None:
    with ScriptedAnthropic([ToolUse("list_appointments", {"day": "2026-11-20"})], repeat_last=True) as model:
        async with make_yard(path) as yard:
            await run_agent(Conversation(yard), model.url, "Go on.", most_turns=3)

    assert len(model.requests) == 3
