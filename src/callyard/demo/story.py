"""The story of the demo: a customer was charged twice, and an agent with hundreds of tools helps her.

It calls a real yard and prints nothing.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

from callyard.dispatch.outcome import Record
from callyard.model.envelope import Envelope
from callyard.model.profile import METATOOLS, cost
from callyard.yard import Yard

__all__ = ["CallCosts", "DemoCall", "ListCosts", "Step", "call_costs", "list_costs", "run_story"]

_CHARGE: Final = "ch_1042"
_TOOL: Final = "payments__refund_charge"
_CHAIN: Final[list[dict[str, Any]]] = [
    {"id": "charge", "tool_id": "payments__get_charge", "args": {"charge_id": _CHARGE}},
    {
        "id": "customer",
        "tool_id": "crm__get_contact",
        "args": {"contact_id": {"$from": "charge", "path": "/customer_id"}},
    },
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
        "args": {
            "contact_id": {"$from": "charge", "path": "/customer_id"},
            "text": f"Charged twice; {_CHARGE} is paid back.",
        },
    },
]


_PROGRAM: Final = """\
paid = {}
for charge in inputs["charges"]:
    who = charge["customer_id"]
    paid[who] = paid.get(who, 0) + charge["amount_cents"]

owners = {}
for who in sorted(paid, key=paid.get)[-100:]:
    contact = await tools.crm.get_contact(contact_id=who)
    owner = contact["owner"]
    owners[owner] = owners.get(owner, 0) + paid[who]
owners
"""


class DemoCall(NamedTuple):
    """One call of the agent, and its answer."""

    tool: str
    arguments: dict[str, Any]
    answer: Envelope


class Step(NamedTuple):
    """A step of the story: what happens, and its calls."""

    title: str
    text: str
    calls: list[DemoCall]
    inner_tokens: int = 0
    """What the answers cost that stayed inside a program; 0 if none ran."""


class ListCosts(NamedTuple):
    """The number of tools, and what their lists cost in estimated tokens."""

    tools: int
    shown: int
    """The list that the agent sees, and the instructions."""
    everything: int


class CallCosts(NamedTuple):
    """What the answers of the story cost in estimated tokens."""

    search: int
    excerpts: int
    """The answers about the large result."""
    full_result: int
    program: int = 0
    """The program and its answer; 0 if it did not run."""
    inner: int = 0
    """The answers to the calls that the program made."""


async def run_story(yard: Yard) -> AsyncGenerator[Step]:
    """Run the story in an open yard, step by step."""

    async def call(tool: str, **arguments: Any) -> DemoCall:
        return DemoCall(tool, arguments, await yard.call(tool, arguments))

    yield Step(
        title="It searches",
        text="It describes what it needs in its own words. A signature is often enough.",
        calls=[await call("search_tools", query="send money back to a customer", limit=3)],
    )
    yield Step(
        title="It looks closer",
        text="It reads the schema of one tool, and of no other.",
        calls=[await call("describe_tool", tool_id=_TOOL)],
    )
    yield Step(
        title="It makes a mistake",
        text="The answer says what is wrong, what was meant, and that nothing has happened.",
        calls=[await call("run_tool", tool_id=_TOOL, args={"charge_id": _CHARGE, "amount": 4900})],
    )
    yield Step(
        title="It recovers",
        text="It sends a number as text. There is only one way to read it, so the yard corrects it, and the "
        "answer says so.",
        calls=[await call("run_tool", tool_id=_TOOL, args={"charge_id": _CHARGE, "amount_cents": "4900"})],
    )
    yield Step(
        title="It chains four tools in one call",
        text="Find the payment and the customer, write to her, leave a note. The result of a step goes to the "
        "next, not through the agent.",
        calls=[await call("run_chain", steps=_CHAIN, final_only=True)],
    )
    exported = await call("run_tool", tool_id="payments__export_charges", args={"month": "2026-02"})
    handle = exported.answer.data["handle"]
    duplicates = {"rows": {"$ref": handle}, "columns": ["customer_id", "amount_cents", "created_at"]}
    yield Step(
        title="It meets a result that is too large to read",
        text="Was anybody else charged twice? All payments of the month become a handle. It reads a part, and "
        "passes on the whole.",
        calls=[
            exported,
            await call("read_result", handle=handle, grep="cu_88"),
            await call("run_tool", tool_id="tables__find_duplicates", args=duplicates),
        ],
    )
    yield await _run_program(yard, handle)


async def _run_program(yard: Yard, handle: str) -> Step:
    """Run the program of the story; where no runtime is there, its answer says what to install."""
    records: list[Record] = []
    arguments: dict[str, Any] = {"code": _PROGRAM, "inputs": {"charges": {"$ref": handle}}}
    stop = yard.add_sink(records.append)
    answer = await yard.call("execute_code", arguments)
    stop()
    inner = sum(record.estimated_tokens for record in records if record.depth)
    text = "Who looks after the hundred customers who paid the most? A hundred calls, and the agent reads one answer. "
    if answer.error is None:
        backend = answer.data["runtime"]["backend"]
        text += f"The program ran in a sandbox ({backend}), and each of its calls passed the dispatcher."
    elif answer.error.code == "runtime_unavailable":
        text += "This machine has no sandbox, so the program does not run. The answer says what to install."
    return Step("It writes a program", text, [DemoCall("execute_code", arguments, answer)], inner)


def list_costs(yard: Yard) -> ListCosts:
    """Return what the lists of an open yard cost."""
    tools = [spec for spec in yard.registry.visible(yard.profile) if spec.source != METATOOLS]
    instructions = _tokens(len(yard.instructions_for(yard.profile)))
    return ListCosts(len(tools), cost(yard.list()) + instructions, cost(tools))


def call_costs(steps: list[Step]) -> CallCosts:
    """Return what the answers of all steps cost."""
    search, large, program = [*steps[0].calls, *steps[1].calls], steps[-2].calls, steps[-1]
    spent = _tokens(len(_PROGRAM)) + _cost_of(program.calls) if program.inner_tokens else 0
    whole = _tokens(large[0].answer.data["characters"])
    return CallCosts(_cost_of(search), _cost_of(large), whole, spent, program.inner_tokens)


def _cost_of(calls: list[DemoCall]) -> int:
    return sum(call.answer.meta.estimated_tokens for call in calls)


def _tokens(characters: int) -> int:
    return -(-characters // 4)
