"""The story: a customer was charged twice, and an agent with hundreds of tools helps her.

It makes real calls of a real yard and prints nothing.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from toolyard.model.envelope import Envelope
from toolyard.model.profile import METATOOLS, cost
from toolyard.yard import Yard

__all__ = ["Bill", "Lists", "Move", "Scene", "bill_of", "lists_of", "tell"]

_CHARGE: Final = "ch_1042"
_TOOL: Final = "payments__refund_charge"
_MONTH: Final = "2026-02"
_STEPS: Final[list[dict[str, Any]]] = [
    {"id": "charge", "tool_id": "payments__get_charge", "args": {"charge_id": _CHARGE}},
    {"id": "customer", "tool_id": "crm__get_contact", "args": {"contact_id": {"$from": "charge", "path": "/customer_id"}}},
    {
        "id": "letter",
        "tool_id": "mail__send_message",
        "args": {
            "to": [{"$from": "customer", "path": "/email"}],
            "subject": "Your money is on its way",
            "body": "We charged you twice. The second payment is paid back.",
        },
    },
    {
        "id": "note",
        "tool_id": "crm__add_note",
        "args": {"contact_id": {"$from": "charge", "path": "/customer_id"}, "text": f"Charged twice; {_CHARGE} is paid back."},
    },
]


class Move(NamedTuple):
    """One call of the agent, and what it was answered."""

    tool: str
    arguments: dict[str, Any]
    answer: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A part of the story: what happens, and the calls in it."""

    title: str
    words: str
    moves: list[Move]


class Lists(NamedTuple):
    """What an agent is shown of the tools, and what it could be shown, in estimated tokens."""

    tools: int
    shown: int
    """The list that it is given, and the instructions."""
    everything: int
    """The list of all tools."""


class Bill(NamedTuple):
    """What the story cost in estimated tokens, and what it would have cost to read everything."""

    finding: int
    """The answers of search and description."""
    looking: int
    """The answers about the large result."""
    large: int
    """The large result itself."""


async def tell(yard: Yard) -> AsyncGenerator[Scene]:
    """Tell the story in an open yard, scene by scene."""

    async def move(tool: str, **arguments: Any) -> Move:
        return Move(tool, arguments, await yard.call(tool, arguments))

    yield Scene(
        title="It searches",
        words="It says what it wants in its own words. A signature is often all it needs.",
        moves=[await move("search_tools", query="send money back to a customer", limit=3)],
    )
    yield Scene(
        title="It looks closer",
        words="The schema of one tool, because it asked for it.",
        moves=[await move("describe_tool", tool_id=_TOOL)],
    )
    yield Scene(
        title="It makes a mistake",
        words="The answer says what is wrong, what was meant, and that nothing has happened.",
        moves=[await move("run_tool", tool_id=_TOOL, args={"charge_id": _CHARGE, "amount": 4900})],
    )
    yield Scene(
        title="It recovers",
        words="Its number is written as text. There is one way to read it, so it is put right, and the answer says so.",
        moves=[await move("run_tool", tool_id=_TOOL, args={"charge_id": _CHARGE, "amount_cents": "4900"})],
    )
    yield Scene(
        title="It chains four tools in one call",
        words="Find the payment and the customer, write to her, leave a note. What a step answers goes to the next, not through the agent.",
        moves=[await move("run_chain", steps=_STEPS, final_only=True)],
    )
    exported = await move("run_tool", tool_id="payments__export_charges", args={"month": _MONTH})
    handle = exported.answer.data["handle"]
    columns = ["customer_id", "amount_cents", "created_at"]
    yield Scene(
        title="It meets a result that is too large to read",
        words="Was anybody else charged twice? All payments of the month become a handle. It reads a part, and passes on the whole.",
        moves=[
            exported,
            await move("read_result", handle=handle, grep="cu_88"),
            await move("run_tool", tool_id="tables__find_duplicates", args={"rows": {"$ref": handle}, "columns": columns}),
        ],
    )


def lists_of(yard: Yard) -> Lists:
    """Return what an agent is shown of an open yard."""
    tools = [spec for spec in yard.registry.visible(yard.profile) if spec.source != METATOOLS]
    shown = cost(yard.list()) + _tokens(len(yard.instructions_for(yard.profile)))
    return Lists(len(tools), shown, cost(tools))


def bill_of(scenes: list[Scene]) -> Bill:
    """Return what the scenes cost."""
    finding, large = [*scenes[0].moves, *scenes[1].moves], scenes[-1].moves
    return Bill(_spent(finding), _spent(large), _tokens(large[0].answer.data["characters"]))


def _spent(moves: list[Move]) -> int:
    return sum(move.answer.meta.estimated_tokens for move in moves)


def _tokens(characters: int) -> int:
    return -(-characters // 4)
