"""A planner with an agent inside.

`python examples/embedded_agent` tells a story with a scripted model, without a key and without a network.
`python examples/embedded_agent "What do I have on Friday?"` asks a real one; it needs `ANTHROPIC_API_KEY`.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import date, datetime
from tempfile import TemporaryDirectory
from typing import Any

from agent import run_agent
from planner import VISITORS, make_yard
from scheduler import Appointment, Scheduler

from callyard import Caller, Record
from callyard.inject import Conversation
from callyard.testing.models import ScriptedAnthropic, ToolUse, Turn

FRIDAY = date(2026, 11, 20)
PROMPT = "Move the dentist to the afternoon of Friday the 20th, and cancel the gym and the review."
SCRIPT: list[Turn] = [
    ToolUse("list_appointments", {"day": "2026-11-20"}),
    ["The dentist could be at two.", ToolUse("move_appointment", {"appointment": 1, "start": "2026-11-20T14:00"})],
    [
        "That is taken by the review, so at half past three.",
        ToolUse("move_appointment", {"appointment": 1, "start": "2026-11-20T15:30"}),
    ],
    [ToolUse("remove_appointment", {"appointment": 3}), ToolUse("remove_appointment", {"appointment": 2})],
    "The dentist is at half past three and the gym is cancelled. You kept the review.",
]
VISITOR_SCRIPT: list[Turn] = [
    ToolUse("list_appointments", {"day": "2026-11-20"}),
    ToolUse("remove_appointment", {"appointment": 2}, unlisted=True),
    "I can see the review, and cannot cancel it.",
]


async def tell_story() -> None:
    """Run the agent of the owner and the agent of a visitor against scripted models."""
    with TemporaryDirectory() as folder, closing(Scheduler(f"{folder}/appointments.db")) as scheduler:
        for title, hour, minutes in (("Dentist", 9, 45), ("Review", 14, 90), ("Gym", 18, 60)):
            scheduler.add(title, datetime.combine(FRIDAY, datetime.min.time()).replace(hour=hour), minutes)
        print_day(scheduler)
        async with make_yard(f"{folder}/appointments.db", print_record) as yard:
            ada = Conversation(yard, caller=Caller(identity="ada"), elicit=let_ada_decide)
            await converse(ada, PROMPT, SCRIPT)
            print_day(scheduler)
            visitor = Conversation(yard, caller=Caller(identity="visitor", profile=VISITORS))
            await converse(visitor, "Cancel the review.", VISITOR_SCRIPT)


async def converse(conversation: Conversation, prompt: str, script: Sequence[Turn]) -> None:
    """Print what is said in one conversation."""
    print(f"\n{conversation.caller.identity}: {prompt}")
    with ScriptedAnthropic(script) as model:
        print(f"agent: {await run_agent(conversation, model.url, prompt)}")


async def answer(prompt: str) -> None:
    """Run the agent against the real model, with the appointments of a file."""
    async with make_yard("appointments.db", print_record) as yard:
        conversation = Conversation(yard, caller=Caller(identity="owner"), elicit=ask_in_terminal)
        url = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
        print(await run_agent(conversation, url, f"{prompt} (Today is {date.today()}.)"))  # noqa: DTZ011 - the planner's times are local


async def let_ada_decide(text: str, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Stand for a dialog: the gym may go, and nothing else."""
    is_gym = '"appointment":3' in text
    print("\n".join(f"  | {line}" for line in text.splitlines()))
    print(f"  ada decides: {'yes' if is_gym else 'no'}")
    return {} if is_gym else None


TERMINAL = asyncio.Lock()


async def ask_in_terminal(text: str, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Ask the person at the terminal, one question after another: calls of one turn run at the same time."""
    async with TERMINAL:
        reply = await asyncio.to_thread(input, f"{text}\nType 'yes' to approve: ")
    return {} if reply.strip().lower() == "yes" else None


def print_record(record: Record) -> None:
    """Print one line for each call; a record has no arguments and no result."""
    print(f"  {record.identity}'s agent called {record.tool}: {record.code or 'ok'}")


def print_day(scheduler: Scheduler) -> None:
    """Print the appointments as the product has them."""

    def line(appointment: Appointment) -> str:
        return f"{appointment.start:%H:%M}-{appointment.finish:%H:%M} {appointment.title}"

    print(f"{FRIDAY}: {', '.join(map(line, scheduler.on(FRIDAY)))}")


if __name__ == "__main__":
    asyncio.run(answer(" ".join(sys.argv[1:])) if sys.argv[1:] else tell_story())
