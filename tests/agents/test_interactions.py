import asyncio
import logging
from collections.abc import Callable
from typing import Any, get_args

import pytest
from table_tests import every_row

from callyard.agents.events import Decision, StreamEvent, type_of
from callyard.agents.interactions import MODES, Interactions, mode_of
from callyard.config.settings import PermissionMode
from callyard.model.errors import ToolError
from callyard.testing import FakeClock

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
FACTS: dict[str, Any] = {
    "session_id": "chat",
    "identity": "ada",
    "text": "May it?",
    "tool": "burn",
    "tool_call_id": "t1",
}


class Asked:
    """An interaction that waits, and the events that it made."""

    def __init__(self, interactions: Interactions, *, attended: bool = True, **facts: Any) -> None:
        self.events: list[Any] = []
        whole: dict[str, Any] = {"id": "i_1", "kind": "approval", **FACTS, **facts}
        self.task = asyncio.ensure_future(interactions.ask(self._emit, attended=attended, **whole))

    def _emit(self, event: StreamEvent) -> None:
        self.events.append(event)

    @property
    def outcome(self) -> str:
        return self.events[-1].outcome


def make(**options: Any) -> Interactions:
    settings: dict[str, Any] = {"countdown_s": 600.0, "park_s": 14_400.0, **options}
    return Interactions(**settings)


async def started(interactions: Interactions, **facts: Any) -> Asked:
    asked = Asked(interactions, **facts)
    await asyncio.sleep(0)  # the task begins
    return asked


def test_the_table_knows_every_mode_and_which_ones_ask() -> None:
    assert set(MODES) == set(get_args(PermissionMode))
    assert [name for name, mode in MODES.items() if not mode.asks("agent")] == ["bypassPermissions"]
    assert [name for name, mode in MODES.items() if not mode.asks("yard")] == ["rules", "bypassPermissions"]
    assert mode_of("a mode of a later version") == mode_of("default")


@every_row(
    "own, allowed",
    [
        ("default", {"default", "plan", "dontAsk"}),
        ("acceptEdits", {"default", "plan", "dontAsk", "acceptEdits"}),
        ("rules", {"default", "plan", "dontAsk", "rules"}),
        ("auto", {"default", "plan", "dontAsk", "acceptEdits", "auto"}),
        ("bypassPermissions", set(MODES)),
    ],
)
def test_a_mode_is_allowed_where_it_leaves_nothing_more_to_others_than_the_servers_own(
    own: str, allowed: set[str]
) -> None:
    assert {name for name, mode in MODES.items() if mode.fits(mode_of(own))} == allowed


@pytest.mark.parametrize(("approve", "outcome"), [(True, "approved"), (False, "denied")])
async def test_a_person_decides_about_a_call(approve: bool, outcome: str) -> None:  # noqa: FBT001 - a parameter of the test
    interactions = make()
    asked = await started(interactions)

    interactions.decide("i_1", approve=approve, by="ada", reason="Because.")
    decision = await asked.task

    assert (decision.outcome, decision.by, decision.reason, decision.is_yes) == (outcome, "ada", "Because.", approve)
    assert [type_of(event) for event in asked.events] == ["approval_required", "approval_resolved"]
    assert (asked.outcome, interactions.pending()) == (outcome, [])


async def test_a_question_is_answered_with_what_fits_its_form() -> None:
    interactions = make()
    asked = await started(interactions, kind="question", form=FORM)

    with pytest.raises(ToolError) as wrong:
        interactions.answer("i_1", {"colour": 1}, by="ada")
    interactions.answer("i_1", {"colour": "red"}, by="ada")

    assert (wrong.value.code, (await asked.task).content, asked.outcome) == (
        "invalid_input",
        {"colour": "red"},
        "answered",
    )


def approve(interactions: Interactions) -> None:
    interactions.decide("i_1", approve=True, by="ada")


def answer(interactions: Interactions) -> None:
    interactions.answer("i_1", {}, by="ada")


def approve_another(interactions: Interactions) -> None:
    interactions.decide("i_2", approve=True, by="ada")


@pytest.mark.parametrize(
    ("kind", "decide", "reason"),
    [
        ("question", approve, "is_question"),
        ("approval", answer, "is_approval"),
        ("approval", approve_another, "unknown_interaction"),
    ],
)
async def test_a_decision_of_the_wrong_kind_is_refused(
    kind: str, decide: Callable[[Interactions], None], reason: str
) -> None:
    interactions = make()
    asked = await started(interactions, kind=kind, form=FORM)

    with pytest.raises(ToolError) as refused:
        decide(interactions)

    assert (refused.value.details["reason"], len(interactions.pending())) == (reason, 1)
    asked.task.cancel()


async def test_a_question_that_is_denied_is_declined() -> None:
    interactions = make()
    asked = await started(interactions, kind="question", form=FORM)

    interactions.decide("i_1", approve=False, by="ada")

    assert (await asked.task).outcome == "declined"


async def test_the_first_decision_counts() -> None:
    interactions = make()
    asked = await started(interactions)

    interactions.decide("i_1", approve=False, by="ada")
    interactions.settle("i_1", Decision(outcome="approved"))
    with pytest.raises(ToolError):
        interactions.decide("i_1", approve=True, by="ada")

    assert (await asked.task).outcome == "denied"


async def test_an_interaction_waits_then_is_parked_and_shows_when_it_expires() -> None:
    clock = FakeClock()
    interactions = make(clock=clock)
    asked = await started(interactions)
    [interaction] = interactions.pending()
    before, _ = interaction.view(clock()), clock.advance(600.0)
    after = interaction.view(clock())
    asked.task.cancel()

    assert (before.state, after.state) == ("waiting", "parked")
    assert (after.parks_at, after.expires_at) == (1600.0, 15_400.0)
    assert (type_of(after), after.tool, after.session_id) == ("approval_required", "burn", "chat")


@pytest.mark.parametrize("attended", [True, False])
async def test_it_is_refused_at_the_ceiling_or_unattended_at_the_countdown(attended: bool) -> None:  # noqa: FBT001 - a parameter of the test
    interactions = make(countdown_s=0.01, park_s=0.02 if attended else 14_400.0)

    decision = await Asked(interactions, attended=attended).task

    assert (decision.outcome, decision.is_yes, decision.sentence().startswith("Nobody")) == ("expired", False, True)


async def test_cancelling_the_wait_denies_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    interactions = make()
    asked = await started(interactions)

    with caplog.at_level(logging.INFO):
        asked.task.cancel()
        await asyncio.gather(asked.task, return_exceptions=True)

    assert (asked.outcome, interactions.pending()) == ("cancelled", [])
    [line] = [record.getMessage() for record in caplog.records]
    assert (line.split()[0], "reason=cancelled" in line) == ("interaction_refused", True)


async def test_the_end_of_a_session_cancels_its_own_interactions_alone() -> None:
    interactions = make()
    mine = await started(interactions)
    other = await started(interactions, id="i_2", identity="bob")

    interactions.cancel(identity="ada", session_id="chat")

    assert ((await mine.task).outcome, [one.id for one in interactions.pending()]) == ("cancelled", ["i_2"])
    assert [one.id for one in interactions.pending(identity="bob", session_id="chat")] == ["i_2"]
    other.task.cancel()


def test_the_sentence_of_a_refusal_for_the_model_has_the_reason() -> None:
    assert Decision(outcome="denied", reason="Not now.").sentence().endswith("Not now.")
    assert Decision(outcome="denied").sentence() == "The person refused."
    assert "cancelled" in Decision(outcome="cancelled").sentence()
