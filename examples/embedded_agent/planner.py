"""The yard: the scheduler's methods as tools for an agent, with the scheduler itself as the state of the yard."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import date
from typing import Annotated

from pydantic import Field, NaiveDatetime
from scheduler import Appointment, OverlapError, Scheduler, UnknownAppointmentError

from callyard import Call, Operation, Profile, Reason, Sink, ToolError, Toolset, Yard, tool

__all__ = ["VISITORS", "make_yard"]

VISITORS = Profile(name="visitors", toolsets=(Toolset(name="reading", operations=(Operation.QUERY,)),))
"""Visitors may look. What they may not do does not exist for them."""

AppointmentId = Annotated[int, Field(ge=1, description="The id of an appointment, from `list_appointments`.")]
Start = Annotated[NaiveDatetime, Field(description="A local time, such as '2026-11-20T14:30'.")]
UNKNOWN = {"unknown_appointment": Reason("not_found")}
TAKEN = {"taken": Reason("state_error", ("taken_by", "free_from"))}


@contextmanager
def explained() -> Generator[None]:
    """Turn the errors of the scheduler into failures that say what to do."""
    try:
        yield
    except OverlapError as error:
        free_from = error.other.finish.isoformat(timespec="minutes")
        hint = (
            f"The time is free from {free_from} on, unless something follows. Look at the day, and choose another time."
        )
        taken_by = error.other.title
        raise ToolError(
            "state_error",
            str(error),
            reason="taken",
            hint=hint,
            may_have_run=False,
            taken_by=taken_by,
            free_from=free_from,
        ) from None
    except UnknownAppointmentError as error:
        message = f"There is no appointment {error}."
        raise ToolError(
            "not_found", message, reason="unknown_appointment", next_actions=["list_appointments(day=…)"]
        ) from None


@tool(operation="query")
def list_appointments(day: date, call: Call) -> list[Appointment]:
    """List the appointments of a day, the earliest first."""
    scheduler: Scheduler = call.state
    return scheduler.on(day)


@tool(operation="command", reasons=TAKEN)
def add_appointment(
    title: str, start: Start, call: Call, minutes: Annotated[int, Field(ge=5, le=480)] = 60
) -> Appointment:
    """Add an appointment; appointments cannot overlap."""
    scheduler: Scheduler = call.state
    with explained():
        return scheduler.add(title, start, minutes)


@tool(operation="command", reasons=UNKNOWN | TAKEN)
def move_appointment(appointment: AppointmentId, start: Start, call: Call) -> Appointment:
    """Move an appointment to another time; it stays as long as it is."""
    scheduler: Scheduler = call.state
    with explained():
        return scheduler.move(appointment, start)


@tool(operation="destroy", reasons=UNKNOWN)
def remove_appointment(appointment: AppointmentId, call: Call) -> Appointment:
    """Remove an appointment for good."""
    scheduler: Scheduler = call.state
    with explained():
        return scheduler.remove(appointment)


def make_yard(path: str, *sinks: Sink) -> Yard:
    """Return a yard over the scheduler in a file; the file is open while the yard is."""

    @asynccontextmanager
    async def lifespan(_: Yard) -> AsyncGenerator[Scheduler]:
        scheduler = Scheduler(path)
        try:
            yield scheduler
        finally:
            scheduler.close()

    tools = [list_appointments, add_appointment, move_appointment, remove_appointment]
    return Yard(
        "planner", tools=tools, profiles=[VISITORS], lifespan=lifespan, sinks=sinks, instructions="Times are local."
    )
