"""Asks the person of a turn for permissions of the SDK and approvals of the yard, once for each call."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from callyard.agents.events import Outcome, Source
from callyard.agents.interactions import Decision, Interactions, mode_asks, new_interaction_id
from callyard.agents.sessions import AgentSession
from callyard.agents.turn import Turn
from callyard.dispatch.call import Call, current_call
from callyard.model.elicitation import ClientRequest, unsupported_by_client
from callyard.model.errors import ToolError
from callyard.policy.approvals import BY_CLIENT, Approval, AuditLine, arguments_hash
from callyard.state.store import StoreUnavailableError
from callyard.yard import Yard, background_task

__all__ = ["ELICITATION", "Person"]

ELICITATION: Final = frozenset({"elicitation"})
"""What the client of a turn can be asked."""
_CALL_IDS: Final = ("claudecode/toolUseId", "openai/toolCallId")
"""Where the SDKs state the id of a tool call."""
_DECISIONS: Final[Mapping[Outcome, Literal["approve", "deny", "withdraw"]]] = {
    "approved": "approve",
    "denied": "deny",
    "expired": "withdraw",
    "cancelled": "withdraw",
}
"""What a person's decision means for an approval of the yard."""


class _Permission(NamedTuple):
    """A tool call that the person permitted before it was made."""

    tool: str
    arguments: dict[str, Any]
    decision: Decision


class Person:
    """Asks the person of one turn: for the SDK, and for the yard."""

    def __init__(self, yard: Yard, interactions: Interactions, turn: Turn, *, session: AgentSession, mode: str, attended: bool) -> None:
        self._yard = yard
        self._interactions = interactions
        self.turn = turn
        self.session = session
        self.mode = mode
        self._attended = attended
        self._permitted: dict[str, _Permission] = {}
        """By the SDK's id of the call."""
        self._shown: set[str] = set()
        """The approvals that the person sees."""

    async def permit(self, tool: str, arguments: dict[str, Any], *, tool_call_id: str, source: Source) -> Decision:
        """Decide about a tool call as the mode says; a person's yes is remembered for the yard's own rules."""
        if not mode_asks(self.mode):
            return Decision(outcome="approved")
        decision = await self._interact(
            kind="approval",
            text=self._title(tool, source, arguments),
            tool=tool,
            tool_call_id=tool_call_id,
            source=source,
            arguments=arguments,
        )
        if decision.is_yes and tool_call_id and source == "yard":
            self._permitted[tool_call_id] = _Permission(tool, arguments, decision)
        self._audit(f"permission_{decision.outcome}", tool, tool_call_id, decision)
        return decision

    async def ask(self, text: str, form: Mapping[str, Any], *, tool: str, tool_call_id: str) -> Decision:
        """Ask the person to fill in a form."""
        return await self._interact(kind="question", text=text, tool=tool, tool_call_id=tool_call_id, source="agent", form=dict(form))

    async def ask_client(self, asks: Mapping[str, ClientRequest], _: bool) -> Mapping[str, Any]:  # noqa: FBT001 - the channel's signature
        """Answer what the yard asks its client: approvals that rules want, and questions of tools."""
        if any(ask.missing_capability(ELICITATION) for ask in asks.values()):
            raise unsupported_by_client(asks, ELICITATION)
        return {key: await self._answer(ask) for key, ask in asks.items()}

    def has_permitted(self, call: Call) -> bool:
        """Return whether the person permitted this very call, with these arguments, and it was not made yet."""
        permission = self._permitted.get(_call_id(call))
        return permission is not None and _is_shown(permission, call)

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
        decision = await self._interact(kind="question", text=text, tool=call.spec.name, tool_call_id=_call_id(call), form=dict(form))
        if decision.is_yes:
            return {"action": "accept", "content": decision.content}
        return {"action": "decline" if decision.outcome == "declined" else "cancel"}

    async def _approval_of(self, ask: ClientRequest, call: Call) -> Approval | None:
        """Return the approval that a question is about, if this person may decide; that of a mounted yard is an ordinary question."""
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
        interaction_id = new_interaction_id()
        async with background_task(self._watch(interaction_id, approval)):
            return await self._interact(
                id=interaction_id,
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
                outcome: Outcome = "approved" if decided.status in {"approved", "spent"} else "denied"
                outcome = "expired" if decided.status == "expired" else outcome
                self._interactions.settle(interaction_id, Decision(outcome=outcome, by=decided.decided_by, reason=decided.reason))

    def _title(self, tool: str, source: Source, arguments: Mapping[str, Any]) -> str:
        """Return what is asked about a tool call, and what the tools that its arguments name do; the arguments are shown beside it."""
        if source == "agent":
            return f"May '{tool}' of the agent run?"
        named = [tool, *(value for value in arguments.values() if isinstance(value, str))]
        found = [known.spec for name in named if (known := self._yard.registry.get(name)) is not None]
        lines = [f"Operation of '{spec.name}': {spec.operation}, of '{spec.source}'" for spec in found]
        return "\n".join([f"May '{tool}' run?", *lines])

    async def _interact(self, **facts: Any) -> Decision:
        of: dict[str, Any] = {"id": new_interaction_id(), "session_id": self.session.id, "identity": self.session.identity}
        with self.turn.waiting():
            return await self._interactions.ask(self.turn.emit, attended=self._attended, **{**of, **facts})

    def _audit(self, event: str, tool: str, call_id: str, decision: Decision) -> None:
        """Write a decision about a tool call to the audit log; the yard writes those about its own approvals."""
        write = self._yard.audit
        if write is not None:
            write(
                AuditLine(
                    started=time.time(),
                    event=event,
                    approval_id=call_id,
                    tool=tool,
                    identity=self.session.identity,
                    by=decision.by,
                    reason=decision.reason,
                )
            )


def _call_id(call: Call) -> str:
    """Return the SDK's id of the tool call that a call belongs to; empty if it states none."""
    while call.parent is not None:
        call = call.parent
    return next((str(call.channel.meta[key]) for key in _CALL_IDS if key in call.channel.meta), "")


def _is_about(approval: Approval, call: Call) -> bool:
    """Return whether an approval is for this call, and not for one that it makes later, such as a step of a chain."""
    binding = approval.binding
    return binding.tool == f"{call.spec.kind}:{call.spec.name}" and binding.arguments == arguments_hash(call.arguments)


def _arguments_of(approval: Approval) -> dict[str, Any]:
    """Return the arguments on the card of an approval, which are shortened and have their secrets hidden."""
    try:
        return msgspec.json.decode(approval.card.arguments, type=dict[str, Any])
    except msgspec.DecodeError:  # they were too long
        return {"": approval.card.arguments}


def _is_shown(permission: _Permission, call: Call) -> bool:
    """Return whether the person saw this call, with these arguments, in what they permitted.

    That is the permitted call itself, or the one call that a tool such as `run_tool` makes. Arguments that were repaired, or taken
    from a stored result, are not what the person saw. Defaults that were filled in do not matter.
    """
    outer, shown = call.parent or call, permission.arguments
    if outer.parent is not None or outer.name != permission.tool or _sent(outer) != shown:
        return False
    if call is not outer:
        is_only_call = outer.is_proxy and call.name in shown.values()
        inner = [cast("dict[str, Any]", value) for value in shown.values() if isinstance(value, dict)]
        shown = inner[0] if inner else {}
        if not is_only_call or _sent(call) != shown:
            return False
    missing = object()
    return all(call.arguments.get(name, missing) == value for name, value in shown.items())


def _sent(call: Call) -> object:
    """Return the arguments of a call as the model sent them."""
    sent = call.request.arguments
    return msgspec.json.decode(sent) if isinstance(sent, msgspec.Raw) else sent or {}
