"""Rules and approvals: which calls run at once, which need a person, and which never run."""

from collections.abc import Mapping
from typing import Any

from callyard import Channel, ClientRequest, Limits, Operation, Rule, Yard, tool


@tool(operation="destroy")
async def burn(letter: str) -> str:
    """Burn a letter."""
    return f"{letter} is ash"


ASK = Rule(decision="ask", operations=(Operation.DESTROY,), reason="Ash cannot be read.")


class Person:
    """A person at a client that can show forms."""

    def __init__(self, *actions: str) -> None:
        self.actions = list(actions)
        self.questions: list[str] = []
        self.channel = Channel(name="test", ask=self.answer, capabilities=frozenset({"elicitation"}))

    async def answer(self, asks: Mapping[str, ClientRequest], _: object) -> dict[str, Any]:
        """Accept, decline or cancel each question, in order."""
        self.questions += [ask.params["message"] for ask in asks.values()]
        return {key: {"action": self.actions.pop(0), "content": {}} for key in asks}


async def test_the_first_rule_that_matches_decides() -> None:
    @tool(operation="query")
    async def read(letter: str) -> str:
        """Read a letter."""
        return f"Dear {letter}"

    rules = [Rule(decision="allow", tools=("read",)), Rule(decision="deny", tools=("*",), reason="Only reading.")]
    async with Yard(tools=[read, burn], rules=rules) as yard:
        allowed = await yard.call("read", {"letter": "Ada"})
        denied = await yard.call("burn", {"letter": "Ada"})

    assert allowed.data == "Dear Ada"
    assert denied.error is not None
    assert (denied.error.code, denied.error.may_have_run) == ("permission_denied", False)


async def test_the_person_at_the_client_approves_a_call() -> None:
    ada = Person("accept")
    async with Yard(tools=[burn], rules=[ASK]) as yard:
        answer = await yard.call("burn", {"letter": "Bob's"}, channel=ada.channel)

    assert answer.data == "Bob's is ash"
    (question,) = ada.questions
    assert "Ash cannot be read." in question


async def test_a_call_that_the_person_declines_does_not_run() -> None:
    async with Yard(tools=[burn], rules=[ASK]) as yard:
        answer = await yard.call("burn", {"letter": "Bob's"}, channel=Person("decline").channel)

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("approval_denied", False)


async def test_a_call_that_nobody_decides_about_answers_that_it_waits() -> None:
    async with Yard(tools=[burn], rules=[ASK], limits=Limits(approval_hold_s=0)) as yard:
        answer = await yard.call("burn", {"letter": "Bob's"})

    assert answer.data["status"] == "approval_required"
    assert answer.data["approval_id"]


async def test_an_approval_is_for_one_call_with_these_arguments() -> None:
    ada = Person("accept", "decline", "decline")
    async with Yard(tools=[burn], rules=[ASK]) as yard:
        first = await yard.call("burn", {"letter": "Bob's"}, channel=ada.channel)
        again = await yard.call("burn", {"letter": "Bob's"}, channel=ada.channel)
        other = await yard.call("burn", {"letter": "Cem's"}, channel=ada.channel)

    assert (first.success, again.success, other.success) == (True, False, False)
    assert len(ada.questions) == 3


async def test_a_step_of_a_chain_needs_the_same_approval() -> None:
    ada = Person("decline")
    async with Yard(tools=[burn], rules=[ASK]) as yard:
        steps = [{"tool_id": "burn", "args": {"letter": "Bob's"}}]
        answer = await yard.call("run_chain", {"steps": steps}, channel=ada.channel)

    assert not answer.success
    assert len(ada.questions) == 1
