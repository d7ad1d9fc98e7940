"""Interactions: what an agent waits for a person to decide or answer, and the modes that say when to ask.

A pending interaction can be listed at any time, so that a client that reconnects shows it again. It waits until its
countdown ends, and then parked until it is refused. The person of a turn is asked once for each call, about permissions
of the SDK and approvals of the yard. This module does not know which SDK asks.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import inf
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from callyard._internal.logfmt import log_value
from callyard.agents.events import (
    ApprovalRequired,
    ApprovalResolved,
    Decision,
    Outcome,
    Question,
    Source,
    StreamEvent,
    ToolProgress,
)
from callyard.agents.sessions import AgentSession
from callyard.agents.turn import Turn
from callyard.dispatch import questions
from callyard.dispatch.arguments import same_json
from callyard.dispatch.call import Call, current_call
from callyard.dispatch.progress import Progress, SendProgress
from callyard.dispatch.run import run_of
from callyard.model.elicitation import ClientRequest, require_support
from callyard.model.errors import ToolError, not_found, refused
from callyard.model.schema import SchemaValidator
from callyard.policy.approvals import BY_CLIENT, Approval, AuditLine, binding_of
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard, background_task

__all__ = [
    "ELICITATION",
    "MODES",
    "RULES_MODE",
    "Interaction",
    "Interactions",
    "Person",
    "WaitingApproval",
    "WaitingQuestion",
    "mode_of",
]


class Mode(NamedTuple):
    """What a permission mode leaves to others than a person."""

    agent_tools: int = 0
    """How loose it is about tools that the SDK brings: nothing, edits, what a classifier allows, or everything."""
    yard_tools: int = 0
    """How loose it is about tools of the yard: nothing, what a classifier allows, or everything but its rules."""

    def fits(self, own: "Mode") -> bool:
        """Return whether it is in no respect looser than another one."""
        return self.agent_tools <= own.agent_tools and self.yard_tools <= own.yard_tools

    def asks(self, source: Source) -> bool:
        """Return whether a call that reaches the permission callback asks a person."""
        return self.yard_tools != _EVERYTHING if source == "yard" else self.agent_tools < _BYPASS


_EVERYTHING: Final = 2
_BYPASS: Final = 3
RULES_MODE: Final = "rules"
"""The mode in which the yard's rules decide about its tools, and a person about all others; no SDK knows it."""
MODES: Final[Mapping[str, Mode]] = MappingProxyType(
    {
        "default": Mode(),
        "plan": Mode(),
        "dontAsk": Mode(),
        "acceptEdits": Mode(1),
        "auto": Mode(2, 1),
        RULES_MODE: Mode(0, _EVERYTHING),
        "bypassPermissions": Mode(_BYPASS, _EVERYTHING),
    }
)
"""Every permission mode."""
_MAX_REASON: Final = 500
ELICITATION: Final = frozenset({"elicitation"})
_CALL_IDS: Final = ("claudecode/toolUseId", "openai/toolCallId")
"""Where the SDKs state the id of a tool call."""
_DECISIONS: Final[Mapping[Outcome, Literal["approve", "deny", "withdraw"]]] = {
    "approved": "approve",
    "denied": "deny",
    "expired": "withdraw",
    "cancelled": "withdraw",
}
"""What a person's decision means for an approval of the yard."""
_log = logging.getLogger(__name__)


def mode_of(name: str) -> Mode:
    """Return a mode by its name; an unknown one is as strict as the default."""
    return MODES.get(name, Mode())


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
    approval_id: str = ""
    """The approval of the yard that it is about, which people can also settle elsewhere."""
    created_at: float
    parks_at: float
    expires_at: float

    def event(self) -> ApprovalRequired | Question:
        """Return the event that shows it."""
        common: dict[str, Any] = {
            "interaction_id": self.id,
            "tool_call_id": self.tool_call_id,
            "tool": self.tool,
            "text": self.text,
            "parks_at": round(self.parks_at, 3),
            "expires_at": round(self.expires_at, 3),
        }
        if self.kind == "question":
            return Question(form=self.form, **common)
        return ApprovalRequired(arguments=self.arguments, source=self.source, **common)

    def view(self, now: float) -> WaitingApproval | WaitingQuestion:
        """Return what a client sees of it: its event, and its state at a time."""
        event, state = self.event(), "parked" if now >= self.parks_at else "waiting"
        kind: Any = WaitingQuestion if isinstance(event, Question) else WaitingApproval
        facts = {"session_id": self.session_id, "state": state, "created_at": round(self.created_at, 3)}
        return kind(**facts, **msgspec.structs.asdict(event))


class _Pending(msgspec.Struct, eq=False):
    interaction: Interaction
    future: "asyncio.Future[Decision]"
    emit: Callable[[StreamEvent], None]


class Interactions:
    """The pending interactions of a process."""

    def __init__(self, *, countdown_s: float, park_s: float, clock: Callable[[], float] = time.time) -> None:
        self._countdown_s = countdown_s
        self.hold_s = max(park_s, countdown_s)
        """The longest time that an interaction waits."""
        self._clock = clock
        self._pending: dict[str, _Pending] = {}

    async def ask(
        self, emit: Callable[[StreamEvent], None], *, attended: bool, until: float = inf, **facts: Any
    ) -> Decision:
        """Show an interaction and wait for the decision; `facts` are fields of `Interaction`, with its id.

        Without a person at hand it is refused when the countdown ends, and in any case at the time `until`. Cancelling
        the wait denies.
        """
        now = self._clock()
        wait_s = max(min(self.hold_s if attended else self._countdown_s, until - now), 0.0)
        interaction = Interaction(
            created_at=now, parks_at=now + min(self._countdown_s, wait_s), expires_at=now + wait_s, **facts
        )
        pending = _Pending(interaction, asyncio.get_running_loop().create_future(), emit)
        self._pending[interaction.id] = pending
        emit(interaction.event())
        try:
            await asyncio.wait({pending.future}, timeout=wait_s)
            self.settle(interaction.id, Decision(outcome="expired"))
            return pending.future.result()
        finally:
            self.settle(interaction.id, Decision(outcome="cancelled"))

    def pending(self, *, identity: str | None = None, session_id: str | None = None) -> list[Interaction]:
        """Return the pending interactions, the oldest first: of all, of an identity, or of a session."""
        found = [one.interaction for one in self._pending.values()]
        return [one for one in found if identity in {None, one.identity} and session_id in {None, one.session_id}]

    def get(self, interaction_id: str, *, identity: str | None = None) -> Interaction:
        """Return a pending interaction: any, or one of a session of this identity.

        Raises:
            ToolError: `not_found` if there is none: it never was, it is settled, or it is another's.
        """
        pending = self._pending.get(interaction_id)
        if pending is None or identity not in {None, pending.interaction.identity}:
            raise not_found("interaction", interaction_id, reason="unknown_interaction", may_have_run=False)
        return pending.interaction

    def decide(self, interaction_id: str, *, approve: bool, by: str, reason: str = "") -> None:
        """Approve or deny a tool call, or decline a question.

        Raises:
            ToolError: `not_found`, or `state_error` if a question is approved, which needs an answer.
        """
        is_question = self.get(interaction_id).kind == "question"
        if is_question and approve:
            raise refused("state_error", "This is a question: answer it, or deny it to decline.", reason="is_question")
        no: Outcome = "declined" if is_question else "denied"
        outcome: Outcome = "approved" if approve else no
        self.settle(interaction_id, Decision(outcome=outcome, by=by, reason=reason[:_MAX_REASON]))

    def answer(self, interaction_id: str, content: dict[str, Any], *, by: str) -> None:
        """Answer a question.

        Raises:
            ToolError: `not_found`, `state_error` if it is no question, or `invalid_input` if the content does not fit
            its form.
        """
        interaction = self.get(interaction_id)
        if interaction.kind != "question":
            raise refused("state_error", "This is an approval: approve it, or deny it.", reason="is_approval")
        issues = SchemaValidator(interaction.form).issues(content)
        if issues:
            raise refused("invalid_input", f"The answer does not fit: {issues[0].message}", issues=issues)
        self.settle(interaction_id, Decision(outcome="answered", by=by, content=content))

    def cancel(self, *, identity: str, session_id: str) -> None:
        """Refuse what a session waits for, because its turn ends."""
        for interaction in self.pending(identity=identity, session_id=session_id):
            self.settle(interaction.id, Decision(outcome="cancelled"))

    def settle(self, interaction_id: str, decision: Decision) -> None:
        """Settle an interaction, say so in the stream and the log, and show it no longer; the first decision counts."""
        pending = self._pending.pop(interaction_id, None)
        if pending is None:
            return
        if not pending.future.done():
            pending.future.set_result(decision)
        outcome, reason, by = decision.outcome, decision.reason, decision.by
        pending.emit(ApprovalResolved(interaction_id=interaction_id, outcome=outcome, reason=reason, by=by))
        _note(pending.interaction, decision)


def _note(interaction: Interaction, decision: Decision) -> None:
    facts = (interaction.id, *map(log_value, (interaction.session_id, interaction.tool, interaction.identity)))
    if decision.is_yes:
        _log.info("interaction_settled id=%s session=%s tool=%s identity=%s by=%s", *facts, log_value(decision.by))
    else:
        by = log_value(decision.by or "-")
        _log.warning(
            "interaction_refused id=%s session=%s tool=%s identity=%s reason=%s by=%s", *facts, decision.outcome, by
        )


class _Permission(NamedTuple):
    """A tool call that the person permitted before it was made."""

    tool: str
    arguments: dict[str, Any]
    decision: Decision


class Person:
    """Asks the person of one turn: for the SDK, and for the yard."""

    def __init__(
        self, yard: Yard, interactions: Interactions, turn: Turn, *, session: AgentSession, mode: str, attended: bool
    ) -> None:
        self._yard = yard
        self._interactions = interactions
        self.turn = turn
        self.session = session
        self.mode = mode
        self._attended = attended
        self._permitted: dict[str, _Permission] = {}
        """By the SDK's id of the call."""
        self._shown: set[str] = set()

    async def permit(self, tool: str, arguments: dict[str, Any], *, tool_call_id: str, source: Source) -> Decision:
        """Decide about a tool call as the mode says; a person's yes is remembered for the yard's own rules."""
        if not mode_of(self.mode).asks(source):
            return Decision(outcome="approved")
        facts: dict[str, Any] = {"tool": tool, "tool_call_id": tool_call_id, "source": source, "arguments": arguments}
        decision = await self._interact(kind="approval", text=self._title(tool, source, arguments), **facts)
        if decision.is_yes and tool_call_id and source == "yard":
            self._permitted[tool_call_id] = _Permission(tool, arguments, decision)
        if self._yard.audit is not None:  # the yard writes the decisions about its own approvals
            line = AuditLine(
                started=time.time(),
                event=f"permission_{decision.outcome}",
                approval_id=tool_call_id,
                tool=tool,
                identity=self.session.identity,
                by=decision.by,
                reason=decision.reason,
            )
            self._yard.audit(line)
        return decision

    async def ask(self, text: str, form: Mapping[str, Any], *, tool: str, tool_call_id: str) -> Decision:
        """Ask the person to fill in a form."""
        return await self._interact(
            kind="question", text=text, tool=tool, tool_call_id=tool_call_id, source="agent", form=dict(form)
        )

    async def ask_client(self, asks: Mapping[str, ClientRequest], _: questions.Question) -> Mapping[str, Any]:
        """Answer what the yard asks its client: approvals that rules want, and questions of tools."""
        require_support(asks, ELICITATION)
        return {key: await self._answer(ask) for key, ask in asks.items()}

    def has_permitted(self, call: Call) -> bool:
        """Return whether the person permitted this very call, with these arguments, and it was not made yet."""
        permission = self._permitted.get(_call_id(call))
        return permission is not None and _is_shown(permission, call)

    def progress_of(self, meta: Mapping[str, Any]) -> SendProgress | None:
        """Return what shows the progress of a call in the stream; `meta` says which call of the SDK it is."""
        call_id = _stated_id(meta)
        if not call_id:
            return None

        def send(note: Progress) -> None:
            self.turn.emit(ToolProgress(tool_call_id=call_id, done=note.done, total=note.total, text=note.text))

        return send

    async def close(self) -> None:
        """Withdraw the approvals that the person still sees, because the turn ends; the same calls ask anew."""
        for approval_id in tuple(self._shown):
            with suppress(StoreUnavailableError):  # it expires by itself
                await self._decide(approval_id, Decision(outcome="cancelled"))

    async def _answer(self, ask: ClientRequest) -> dict[str, Any]:
        call = current_call()
        approval = await self._approval_of(ask, call)
        if approval is not None:
            await self._approve(call, approval)
            return {"action": "cancel"}  # it is decided already, in the name of the person who did
        text, form = ask.params["message"], ask.params["requestedSchema"]
        decision = await self._interact(
            kind="question", text=text, tool=call.spec.name, tool_call_id=_call_id(call), form=dict(form)
        )
        if decision.is_yes:
            return {"action": "accept", "content": decision.content}
        return {"action": "decline" if decision.outcome == "declined" else "cancel"}

    async def _approval_of(self, ask: ClientRequest, call: Call) -> Approval | None:
        """Return the approval that a question is about, if this person may decide about it."""
        gate = self._yard.gate
        if gate is None or not ask.approval_id:
            return None
        with suppress(ToolError):
            approval = await gate.approvals.get(ask.approval_id)
            if approval.binding.owner == call.caller.owner and approval.card.by == "anyone":
                return approval
        return None

    async def _approve(self, call: Call, approval: Approval) -> None:
        """Decide about an approval of the yard: as the person did for the same call and arguments, or by asking."""
        if _is_about(approval, call) and self.has_permitted(call):
            decision = self._permitted.pop(_call_id(call)).decision  # one question for one call
        else:
            self._shown.add(approval.id)
            decision = await self._ask_about(call, approval)
        await self._decide(approval.id, decision)

    async def _decide(self, approval_id: str, decision: Decision) -> None:
        """Settle an approval; one that nobody decided about is withdrawn, so that the same call asks anew."""
        self._shown.discard(approval_id)
        gate, by = self._yard.gate, f"{BY_CLIENT}{decision.by}" if decision.by else decision.outcome
        if gate is not None:
            with suppress(ToolError):  # somebody else was faster
                await gate.approvals.decide(approval_id, _DECISIONS[decision.outcome], by=by, reason=decision.reason)

    async def _ask_about(self, call: Call, approval: Approval) -> Decision:
        """Show the card of an approval, until it is decided here or elsewhere."""
        interaction_id = f"i_{token_hex(12)}"
        async with background_task(self._watch(interaction_id, approval)):
            return await self._interact(
                id=interaction_id,
                approval_id=approval.id,
                kind="approval",
                text=approval.card.text(),
                tool=approval.card.tool,
                tool_call_id=_call_id(call),
                arguments=dict(call.arguments) if _is_about(approval, call) else _arguments_of(approval),
                until=approval.expires_at,
            )

    async def _watch(self, interaction_id: str, approval: Approval) -> None:
        """Settle an interaction whose approval somebody else decides about."""
        gate = self._yard.gate
        if gate is None:
            return
        with suppress(StoreUnavailableError):  # the person can still decide
            decided = await gate.approvals.wait(approval, self._interactions.hold_s)
            if decided.status != "pending":
                outcome: Outcome = "approved" if decided.status == "spent" else decided.status
                decision = Decision(outcome=outcome, by=decided.decided_by, reason=decided.reason)
                self._interactions.settle(interaction_id, decision)

    def _title(self, tool: str, source: Source, arguments: Mapping[str, Any]) -> str:
        """Return what is asked about a tool call, with what the tools that its arguments name do."""
        if source == "agent":
            return f"May '{tool}' of the agent run?"
        named = [tool, *(value for value in arguments.values() if isinstance(value, str))]
        found = [known.spec for name in named if (known := self._yard.registry.get(name)) is not None]
        lines = [f"Operation of '{spec.name}': {spec.effect}, of '{spec.source}'" for spec in found]
        return "\n".join([f"May '{tool}' run?", *lines])

    async def _interact(self, **facts: Any) -> Decision:
        known: dict[str, Any] = {
            "id": f"i_{token_hex(12)}",
            "session_id": self.session.id,
            "identity": self.session.identity,
            **facts,
        }
        with self.turn.waiting():
            return await self._interactions.ask(self.turn.emit, attended=self._attended, **known)


def _call_id(call: Call) -> str:
    """Return the SDK's id of the tool call that a call belongs to; empty if it states none."""
    while call.parent is not None:
        call = call.parent
    return _stated_id(call.channel.meta)


def _stated_id(meta: Mapping[str, Any]) -> str:
    return next((str(meta[key]) for key in _CALL_IDS if key in meta), "")


def _is_about(approval: Approval, call: Call) -> bool:
    """Return whether an approval is for this call, and not for one that it makes later, such as a step of a chain."""
    tool, binding = run_of(call).tool, approval.binding
    if tool is None or binding.tool != f"{call.spec.kind}:{call.spec.name}":
        return False
    return binding.arguments == binding_of(call, tool, run_of(call).bind()).arguments


def _arguments_of(approval: Approval) -> dict[str, Any]:
    """Return the arguments on the card of an approval, which are shortened and have their secrets hidden."""
    try:
        return msgspec.json.decode(approval.card.arguments, type=dict[str, Any])
    except msgspec.DecodeError:  # they were too long
        return {"": approval.card.arguments}


def _is_shown(permission: _Permission, call: Call) -> bool:
    """Return whether the person saw this call, with these arguments, in what they permitted.

    That is the permitted call itself, or the one call that a tool such as `run_tool` makes. Arguments that were
    repaired, or taken from a stored result, are not what the person saw. Defaults that were filled in do not matter.
    """
    outer, shown = call.parent or call, permission.arguments
    if outer.parent is not None or outer.name != permission.tool or _sent(outer) != shown:
        return False
    if call is not outer:
        is_only_call = run_of(outer).is_proxy and call.name in shown.values()
        inner = [cast("dict[str, Any]", value) for value in shown.values() if isinstance(value, dict)]
        shown = inner[0] if inner else {}
        if not is_only_call or _sent(call) != shown:
            return False
    value = run_of(call).bind().value
    return all(name in value and same_json(value[name], inner) for name, inner in shown.items())


def _sent(call: Call) -> object:
    """Return the arguments of a call as the model sent them."""
    sent = call.request.arguments
    return msgspec.json.decode(sent) if isinstance(sent, msgspec.Raw) else sent or {}
