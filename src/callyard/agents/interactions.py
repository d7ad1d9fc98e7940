"""Interactions: decisions and answers of a person that an agent waits for, and the permission modes that say when to ask.

A pending interaction can be listed at any time, so that a client that reconnects shows it again. It waits until its
countdown ends, and then parked until it is refused. This module does not know which SDK asks.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from math import inf
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from callyard._internal.logfmt import log_value
from callyard.agents.events import ApprovalRequired, ApprovalResolved, Outcome, Question, Source, StreamEvent
from callyard.model.errors import ToolError, not_found
from callyard.model.schema import SchemaValidator

__all__ = [
    "MODES",
    "Decision",
    "Interaction",
    "Interactions",
    "WaitingApproval",
    "WaitingQuestion",
    "looseness",
    "mode_asks",
    "new_interaction_id",
]

MODES: Final[Mapping[str, tuple[bool, int]]] = MappingProxyType(
    {
        "default": (True, 0),
        "plan": (True, 0),
        "dontAsk": (True, 0),
        "acceptEdits": (True, 1),
        "auto": (True, 2),
        "bypassPermissions": (False, 3),
    }
)
"""Every permission mode: whether a call that reaches the permission callback asks a person, and how loose the mode is."""
_MAX_REASON: Final = 500
_log = logging.getLogger(__name__)


def mode_asks(mode: str) -> bool:
    """Return whether a person is asked about a call; an unknown mode asks."""
    return MODES.get(mode, (True, 0))[0]


def looseness(mode: str) -> int:
    """Return how loose a mode is; an unknown one is as strict as the default."""
    return MODES.get(mode, (True, 0))[1]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How an interaction ended."""

    outcome: Outcome
    reason: str = ""
    by: str = ""
    content: dict[str, Any] = {}
    """The filled form of a question."""

    @property
    def is_yes(self) -> bool:
        """Return whether the call may run, or the question is answered."""
        return self.outcome in {"approved", "answered"}

    def sentence(self) -> str:
        """Return what the model reads of a refusal."""
        if self.outcome == "expired":
            return "Nobody answered in time, so the call was refused."
        if self.outcome == "cancelled":
            return "The turn was cancelled, so the call was refused."
        return f"The person refused. {self.reason}".rstrip()


State = Literal["waiting", "parked"]
"""Whether the countdown still runs."""


class WaitingApproval(ApprovalRequired, frozen=True, kw_only=True, tag="approval_required"):
    """A tool call that waits for a person."""

    session_id: str
    state: State
    created_at: float


class WaitingQuestion(Question, frozen=True, kw_only=True, tag="question"):
    """A question that waits for a person."""

    session_id: str
    state: State
    created_at: float


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """A question to a person that has no answer yet."""

    id: str
    session_id: str
    identity: str
    """Whose session it is."""
    kind: Literal["approval", "question"]
    text: str
    tool: str
    tool_call_id: str
    source: Source = "yard"
    arguments: dict[str, Any] = {}
    form: dict[str, Any] = {}
    """The JSON Schema of the answer to a question."""
    created_at: float
    parks_at: float
    expires_at: float

    def event(self) -> ApprovalRequired | Question:
        """Return the event that shows it."""
        common: dict[str, Any] = {"interaction_id": self.id, "tool_call_id": self.tool_call_id, "tool": self.tool, "text": self.text}
        times: dict[str, Any] = {"parks_at": round(self.parks_at, 3), "expires_at": round(self.expires_at, 3)}
        if self.kind == "question":
            return Question(form=self.form, **common, **times)
        return ApprovalRequired(arguments=self.arguments, source=self.source, **common, **times)

    def view(self, now: float) -> WaitingApproval | WaitingQuestion:
        """Return what a client sees of it: its event, and its state at a time."""
        event, state = self.event(), "parked" if now >= self.parks_at else "waiting"
        kind: Any = WaitingQuestion if isinstance(event, Question) else WaitingApproval
        return kind(session_id=self.session_id, state=state, created_at=round(self.created_at, 3), **msgspec.structs.asdict(event))


class _Pending(msgspec.Struct, eq=False):
    interaction: Interaction
    future: "asyncio.Future[Decision]"
    emit: Callable[[StreamEvent], None]


def new_interaction_id() -> str:
    """Return an id that nobody can guess."""
    return f"i_{token_hex(12)}"


class Interactions:
    """The pending interactions of a process."""

    def __init__(self, *, countdown_s: float, park_s: float, clock: Callable[[], float] = time.time) -> None:
        self._countdown_s = countdown_s
        self._park_s = max(park_s, countdown_s)
        self._clock = clock
        self._pending: dict[str, _Pending] = {}

    @property
    def hold_s(self) -> float:
        """Return the longest time that an interaction waits."""
        return self._park_s

    async def ask(self, emit: Callable[[StreamEvent], None], *, attended: bool, until: float = inf, **facts: Any) -> Decision:
        """Show an interaction and wait for the decision; `facts` are fields of `Interaction`, with its id.

        Without a person at hand it is refused when the countdown ends, and in any case at the time `until`. Cancelling the wait
        denies.
        """
        now = self._clock()
        wait_s = max(min(self._park_s if attended else self._countdown_s, until - now), 0.0)
        interaction = Interaction(created_at=now, parks_at=now + min(self._countdown_s, wait_s), expires_at=now + wait_s, **facts)
        pending = _Pending(interaction, asyncio.get_running_loop().create_future(), emit)
        self._pending[interaction.id] = pending
        emit(interaction.event())
        try:
            await asyncio.wait({pending.future}, timeout=wait_s)
            self._settle(pending, Decision(outcome="expired"))
            return pending.future.result()
        finally:
            self._settle(pending, Decision(outcome="cancelled"))

    def pending(self, *, identity: str | None = None, session_id: str | None = None) -> list[Interaction]:
        """Return the pending interactions, the oldest first: of all, of an identity, or of a session."""
        found = [one.interaction for one in self._pending.values()]
        return [
            one for one in found if (identity is None or one.identity == identity) and (session_id is None or one.session_id == session_id)
        ]

    def get(self, interaction_id: str) -> Interaction:
        """Return a pending interaction.

        Raises:
            ToolError: `not_found` if there is none: it never was, or it is settled.
        """
        return self._find(interaction_id).interaction

    def decide(self, interaction_id: str, *, approve: bool, by: str, reason: str = "") -> None:
        """Approve or deny a tool call, or decline a question.

        Raises:
            ToolError: `not_found`, or `state_error` if a question is approved, which needs an answer.
        """
        pending = self._find(interaction_id)
        is_question = pending.interaction.kind == "question"
        if is_question and approve:
            message = "This is a question: answer it, or deny it to decline."
            raise ToolError("state_error", message, reason="is_question", may_have_run=False)
        outcome: Outcome = "approved" if approve else "declined" if is_question else "denied"
        self._settle(pending, Decision(outcome=outcome, by=by, reason=reason[:_MAX_REASON]))

    def answer(self, interaction_id: str, content: dict[str, Any], *, by: str) -> None:
        """Answer a question.

        Raises:
            ToolError: `not_found`, `state_error` if it is no question, or `invalid_input` if the content does not fit its form.
        """
        pending = self._find(interaction_id)
        if pending.interaction.kind != "question":
            message = "This is an approval: approve it, or deny it."
            raise ToolError("state_error", message, reason="is_approval", may_have_run=False)
        issues = SchemaValidator(pending.interaction.form).issues(content)
        if issues:
            message = f"The answer does not fit: {issues[0].message}"
            raise ToolError("invalid_input", message, may_have_run=False, issues=issues)
        self._settle(pending, Decision(outcome="answered", by=by, content=content))

    def settle(self, interaction_id: str, decision: Decision) -> None:
        """Settle an interaction that was decided elsewhere, if it is still pending."""
        pending = self._pending.get(interaction_id)
        if pending is not None:
            self._settle(pending, decision)

    def cancel(self, *, identity: str, session_id: str) -> None:
        """Refuse what a session waits for, because its turn ends."""
        for interaction in self.pending(identity=identity, session_id=session_id):
            self._settle(self._pending[interaction.id], Decision(outcome="cancelled"))

    def _find(self, interaction_id: str) -> _Pending:
        pending = self._pending.get(interaction_id)
        if pending is None:
            raise not_found("interaction", interaction_id, reason="unknown_interaction", may_have_run=False)
        return pending

    def _settle(self, pending: _Pending, decision: Decision) -> None:
        """Settle an interaction, say so in the stream and the log, and show it no longer; the first decision counts."""
        interaction = pending.interaction
        if self._pending.pop(interaction.id, None) is None:
            return
        if not pending.future.done():
            pending.future.set_result(decision)
        pending.emit(ApprovalResolved(interaction_id=interaction.id, outcome=decision.outcome, reason=decision.reason, by=decision.by))
        _note(interaction, decision)


def _note(interaction: Interaction, decision: Decision) -> None:
    """Log the end of an interaction in one line."""
    facts = (interaction.id, log_value(interaction.session_id), log_value(interaction.tool), log_value(interaction.identity))
    if decision.is_yes:
        _log.info("interaction_settled id=%s session=%s tool=%s identity=%s by=%s", *facts, log_value(decision.by))
    else:
        by = log_value(decision.by or "-")
        _log.warning("interaction_refused id=%s session=%s tool=%s identity=%s reason=%s by=%s", *facts, decision.outcome, by)
