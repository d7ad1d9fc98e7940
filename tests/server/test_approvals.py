"""Approvals as clients of both eras see them: by elicitation, while a call is held, and by sending it again."""

from typing import TYPE_CHECKING, Any

import pytest
from table_tests import every_row

from callyard import Limits, Operation, Yard, tool
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Rule
from callyard.state.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Meet, Peer

OLD, MODERN = "2025-11-25", "2026-07-28"
QUICK = Limits(approval_hold_s=0.01)


class Bin:
    """A tool that destroys, and what it destroyed."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def tools(self) -> list[Any]:
        @tool(operation="destroy")
        async def delete(name: str, password: str = "") -> str:
            """Delete something."""
            assert password is not None
            self.gone.append(name)
            return f"deleted {name}"

        return [delete]


async def answered(
    peer: "Peer", era: str, result: dict[str, Any], *, name: str = "delete", arguments: Any = None
) -> dict[str, Any]:
    """Call a tool, answer the elicitation with a result, and return the envelope; the message is kept."""
    arguments = {"name": "a"} if arguments is None else arguments
    peer.call(1, name, arguments)
    question = await peer.answer()
    if era == OLD:
        assert question["method"] == "elicitation/create"
        peer.notices.append(question["params"])
        peer.say({"jsonrpc": "2.0", "id": question["id"], **result})
    else:
        (key, asked) = next(iter(question["result"]["inputRequests"].items()))
        peer.notices.append(asked["params"])
        peer.call(
            2, name, arguments, requestState=question["result"]["requestState"], inputResponses={key: result["result"]}
        )
    return await peer.envelope()


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_a_served_yard_asks_before_it_destroys_and_accept_approves(meet: "Meet", era: str) -> None:
    bin_ = Bin()
    async with meet(tools=bin_.tools(), era=era) as peer:
        envelope = await answered(peer, era, {"result": {"action": "accept", "content": {}}})

    assert envelope["data"] == "deleted a"
    assert bin_.gone == ["a"]


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_decline_denies(meet: "Meet", era: str) -> None:
    bin_ = Bin()
    async with meet(tools=bin_.tools(), era=era) as peer:
        envelope = await answered(peer, era, {"result": {"action": "decline"}})
        peer.call(3, "delete", {"name": "a"})
        again = await peer.envelope()

    for answer in (envelope, again):
        assert (answer["error"]["code"], answer["error"]["details"]["reason"]) == ("approval_denied", "denied")
    assert bin_.gone == []


@every_row(
    ("era", "result"),
    [
        (OLD, {"result": {"action": "cancel"}}),
        (MODERN, {"result": {"action": "cancel"}}),
        (OLD, {"error": {"code": -32603, "message": "Nobody is here."}}),
        (OLD, {"result": {"action": "nonsense"}}),
    ],
)
async def test_without_a_yes_or_no_an_operator_may_decide(meet: "Meet", era: str, result: dict[str, Any]) -> None:
    bin_ = Bin()
    async with meet(tools=bin_.tools(), era=era, limits=QUICK) as peer:
        envelope = await answered(peer, era, result)
        assert envelope["data"]["status"] == "approval_required"
        await Approvals(peer.yard.store).decide(envelope["data"]["approval_id"], "approve", by="user:test")
        peer.call(3, "run_tool", {"tool_id": "delete", "args": {"name": "a"}})
        assert (await peer.envelope())["data"] == "deleted a"

    assert bin_.gone == ["a"]


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_a_rule_for_operators_is_not_elicited(meet: "Meet", era: str) -> None:
    bin_ = Bin()
    rule = Rule(decision="ask", operations=(Operation.DESTROY,), by="operator")
    async with meet(tools=bin_.tools(), era=era, limits=QUICK, rules=[rule]) as peer:
        peer.call(1, "delete", {"name": "a"})
        envelope = await peer.envelope()

    assert envelope["data"]["status"] == "approval_required"
    assert bin_.gone == []


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_the_card_shows_all_arguments_and_escapes_what_could_hide(meet: "Meet", era: str) -> None:
    bin_ = Bin()
    arguments = {"name": "a\u202e<b>\n", "password": "hunter2"}
    async with meet(tools=bin_.tools(), era=era) as peer:
        await answered(peer, era, {"result": {"action": "decline"}}, arguments=arguments)

    text = peer.notices[0]["message"]
    assert "hunter2" in text
    assert "\u202e" not in text
    assert "<b>" not in text
    assert "\\u202e" in text
    assert "Operation: destroy" in text


async def test_an_answer_that_was_not_asked_for_approves_nothing(meet: "Meet") -> None:
    bin_ = Bin()
    accept: dict[str, Any] = {"action": "accept", "content": {}}
    async with meet(tools=bin_.tools(), limits=QUICK) as peer:
        responses = dict.fromkeys(("answer", "approval", "approval-a_0", "approval-"), accept)
        peer.call(1, "delete", {"name": "a"}, inputResponses=responses)
        answer = (await peer.answer())["result"]
        assert answer["resultType"] == "input_required"
        peer.call(
            2,
            "delete",
            {"name": "b"},
            requestState=answer["requestState"],
            inputResponses=dict.fromkeys(answer["inputRequests"], accept),
        )
        assert "error" in await peer.answer()

    assert bin_.gone == []


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_a_chain_elicits_before_its_first_step(meet: "Meet", era: str) -> None:
    bin_ = Bin()
    steps = [{"tool_id": "delete", "args": {"name": "a"}}, {"tool_id": "delete", "args": {"name": {"$from": 0}}}]
    async with meet(tools=bin_.tools(), era=era, limits=QUICK) as peer:
        envelope = await answered(
            peer, era, {"result": {"action": "decline"}}, name="run_chain", arguments={"steps": steps}
        )

    assert envelope["error"]["code"] == "approval_denied"
    assert bin_.gone == []


@pytest.mark.parametrize("era", [OLD, MODERN])
async def test_the_default_can_be_switched_off(meet: "Meet", era: str) -> None:
    bin_ = Bin()
    async with meet(tools=bin_.tools(), era=era, settings={"ask_before_destroy": False}) as peer:
        peer.call(1, "delete", {"name": "a"})
        assert (await peer.envelope())["data"] == "deleted a"


async def test_a_restart_keeps_the_approval_and_the_decision_after_it_counts(meet: "Meet", tmp_path: "Path") -> None:
    bin_ = Bin()

    def yard() -> Yard:
        return Yard("bin", tools=bin_.tools(), store=SqliteStore(tmp_path / "store"), limits=QUICK)

    async with meet(yard(), capabilities={}) as peer:
        peer.call(1, "delete", {"name": "a"})
        held = (await peer.envelope())["data"]
    store = SqliteStore(tmp_path / "store")
    await Approvals(store).decide(held["approval_id"], "approve", by="user:test")
    await store.close()
    async with meet(yard(), capabilities={}) as peer:
        peer.call(1, "delete", {"name": "a"})
        assert (await peer.envelope())["data"] == "deleted a"

    assert bin_.gone == ["a"]
