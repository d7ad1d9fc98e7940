"""The page 'Approvals': what waits for a person, the decision, and standing grants.

A person with the printed address may decide about every call, except an own one for which a rule wants an operator. A
person with an operator's credentials may not decide about their own calls. Only people with a login see cards, with
secrets masked; others see which tools wait.
"""

import json
import re
from contextlib import suppress
from typing import Any, Final

import msgspec
from markupsafe import escape

from callyard.console.access import Person
from callyard.console.page import PERIODS, Done, Page, View, page_of, pretty, url, visible
from callyard.console.pages.upstreams import operation_of, upstreams_of
from callyard.dispatch.outcome import Record
from callyard.model.errors import ToolError
from callyard.policy.approvals import Approval, Grant
from callyard.policy.cards import Card
from callyard.policy.gate import Gate
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.unsettled import SETTLED, UnsettledTool
from callyard.state.store import StoreUnavailableError

__all__ = ["ApprovalsPage"]

_REASON_CHARACTERS: Final = 500
_WORDS: Final = {None: "nothing", True: "yes", False: "no"}
_LIKE_OTHERS: Final = re.compile(r'none|nothing|empty|yes|no|[-+.\d][-+.\deE]*|[\["{].*', re.DOTALL)
"""Texts that look like a value of another kind, or like one in quotes."""
_SHORT: Final = 40
_SUMMARY_CHARACTERS: Final = 200
_LONG: Final = 160
_LONG_LINES: Final = 12
_CARDS: Final = 20
_CARD_CHARACTERS: Final = 2500
"""How much HTML the arguments on a card may have.

One link more shows longer ones, so that a page of cards stays small.
"""
_ROW_CHARACTERS: Final = 100
_OWN_CALL: Final = "This is a call of your own identity, so somebody else must decide."


class Argument(msgspec.Struct, frozen=True):
    """An argument in plain words."""

    key: str
    name: str
    text: str
    is_code: bool = False
    """Whether it is a list or an object, which is shown as JSON."""

    @property
    def is_long(self) -> bool:
        """Return whether it is folded at first."""
        return len(self.text) > _LONG or self.text.count("\n") > _LONG_LINES


class Offer(msgspec.Struct, frozen=True):
    """A tool of which nobody has said what it does, for the person who decides about a call of it."""

    upstream: str
    tool: UnsettledTool
    description: str
    is_listed: bool
    """Whether the page of upstreams has it, which has none of mounted yards."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An approval as its card shows it to one person."""

    approval: Approval
    who: str
    """The person who asks: the identity of the caller."""
    client: str = ""
    """The program that the person asks with."""
    what: str
    """What the tool does, from its title or name."""
    object: str = ""
    """The argument that the call is about, if it is short."""
    arguments: list[Argument]
    uri: str = ""
    """The resource that is read."""
    checked: str = ""
    """What the tool makes of the arguments, where that differs."""
    folded: int = 0
    """How many characters the arguments have, if they are too long for a list of cards."""
    can_decide: bool = False
    refusal: str = ""
    offer: Offer | None = None
    """The tool, if nobody has said what it does, and the person may."""
    is_running: bool = False
    """Whether the call that used it runs now, in this process."""
    record: Record | None = None
    """The record of that call, if this process has it."""


class AgentWait(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent waits for, as a person sees it: a permission that its SDK asks for, or a question."""

    who: str
    tool: str
    created_at: float
    is_question: bool
    id: str = ""
    session_id: str = ""
    text: str = ""
    arguments: list[Argument] = []


class ApprovalsPage(Page):
    """What waits for a person."""

    name = "approvals"

    async def context(self, view: View) -> dict[str, Any]:
        """Return what waits, what was decided in the last hour, and the grants."""
        facts: dict[str, Any] = dict.fromkeys(("cards", "decided", "grants", "waiting"), ())
        facts |= {"periods": PERIODS, "settled_words": SETTLED, "opened": "", "page_number": 1, "page_count": 1}
        gate, person = self.yard.gate, view.person
        facts["agents"] = [_agent_wait(one, can_read=person.can_act) for one in self._agent_waits()]
        if gate is None:
            return facts
        decided, done = await gate.approvals.decided(), view.query.get("done", "")
        just = [approval for approval in decided if approval.id == done and person.can_act]
        if person.can_act:
            facts |= await self._cards(gate, view, just)
        else:
            facts["waiting"] = await gate.approvals.pending(limit=_CARDS)
        facts["decided"] = [self._shown(approval, person) for approval in decided if approval not in just]
        facts["grants"] = [(grant, _grant_text(grant, person)) for grant in reversed(await gate.approvals.grants())]
        return facts

    async def _cards(self, gate: Gate, view: View, just: list[Approval]) -> dict[str, Any]:
        """Return one page of cards with those just decided, or the card that is open, with all of its arguments."""
        opened = view.query.get("open", "")
        if opened:
            with suppress(ToolError):  # it is gone, or the id is that of a grant
                card = self._shown(await gate.approvals.get(opened), view.person, is_open=True)
                return {"cards": [card], "opened": opened}
        _, number, pages = page_of(range(await gate.approvals.count()), view.query.get("page", ""), _CARDS)
        pending = await gate.approvals.pending(limit=_CARDS, offset=(number - 1) * _CARDS)
        cards = sorted([*pending, *just], key=lambda approval: approval.created_at)
        shown = [self._shown(approval, view.person) for approval in cards]
        return {"cards": shown, "opened": opened, "page_number": number, "page_count": pages}

    async def count(self) -> int:
        """Return how many decisions wait, also for agents; without the approvals if the store cannot be read."""
        agents = len(self._agent_waits())
        try:
            return agents if self.yard.gate is None else agents + await self.yard.gate.approvals.count()
        except StoreUnavailableError:
            return agents

    def _agent_waits(self) -> list[dict[str, Any]]:
        return [] if self.parts.agents is None else self.parts.agents.waiting()

    async def act(self, view: View) -> Done:
        """Decide about an approval, settle what its tool does, or revoke a grant."""
        gate = self.yard.gate
        match view.path:
            case ("decide", approval_id) if gate is not None:
                return await _decide(gate, approval_id, view)
            case ("settle", approval_id) if gate is not None:
                return await self._settle(gate, approval_id, view)
            case ("agent", interaction_id) if self.parts.agents is not None:
                chosen, reason = view.form.get("decision", ""), view.form.get("reason", "").strip()[:_REASON_CHARACTERS]
                if chosen not in {"approve", "deny"}:
                    raise LookupError
                approve = chosen == "approve"
                self.parts.agents.decide(interaction_id, approve=approve, by=view.person.identity, reason=reason)
                return Done(to=url(self.name), notice="Approved." if approve else "Denied.")
            case ("revoke", grant_id) if gate is not None:
                grant = await gate.approvals.revoke(grant_id, by=view.person.identity)
                return Done(to=url(self.name), notice=f"The grant for '{grant.card.tool}' is revoked.")
            case _:
                raise LookupError

    def _shown(self, approval: Approval, person: Person, *, is_open: bool = False) -> Shown:
        card = approval.card
        arguments = _arguments(card) if person.can_act else []
        required, order = self._schema_of(card.tool)
        is_own, call_id = _is_own(approval, person), approval.call_id
        size = sum(len(escape(one.text)) + _ROW_CHARACTERS for one in arguments)
        return Shown(
            approval=approval,
            who=visible(card.identity),
            client=_client(card),
            what=_what(card),
            object=_object(arguments, required),
            arguments=sorted(arguments, key=lambda one: order.index(one.key) if one.key in order else len(order)),
            uri=visible(card.uri),
            checked=visible(card.checked) if person.can_act else "",
            folded=len(card.arguments) if size > _CARD_CHARACTERS and not is_open else 0,
            can_decide=person.can_act and not is_own,
            refusal=_OWN_CALL if is_own else "",
            offer=self._offer(card) if person.can_act and not is_own and approval.status == "pending" else None,
            is_running=call_id in self.yard.dispatcher.in_flight,
            record=next((one for one in self.parts.records.records if call_id and one.call_id == call_id), None),
        )

    def _offer(self, card: Card) -> Offer | None:
        """Return what a person may settle beside a card, if nobody has yet."""
        found = self._unsettled(card.tool) if card.unsettled else None
        if found is None:
            return None
        upstream, tool = found
        is_listed = self.yard.providers.get(upstream.name) is upstream
        return Offer(upstream.name, tool, visible(tool.description[:_SUMMARY_CHARACTERS]), is_listed)

    def _unsettled(self, name: str) -> tuple[Upstream, UnsettledTool] | None:
        """Return the unsettled tool of a published name, and its upstream."""
        for upstream in upstreams_of(self.yard):
            for tool in upstream.unsettled():
                if tool.published == name:
                    return upstream, tool
        return None

    async def _settle(self, gate: Gate, approval_id: str, view: View) -> Done:
        """Settle what the tool of a call does, in the name of a person who may decide about the call."""
        approval = await gate.approvals.get(approval_id)
        if _is_own(approval, view.person):
            raise ToolError("permission_denied", _OWN_CALL, reason="own_call")
        operation, found = operation_of(view.form.get("operation", "")), self._unsettled(approval.card.tool)
        if found is None:
            message = f"Somebody has settled what '{approval.card.tool}' does."
            raise ToolError("state_error", message, reason="changed_since", may_have_run=False)
        upstream, tool = found
        seen = {tool.name: view.form.get("seen", "")}
        await upstream.settle({tool.name: operation}, seen=seen, by=view.person.identity)
        return Done(to=url(self.name), notice=f"'{tool.published}' is settled: it {SETTLED[operation]}.")

    def _schema_of(self, name: str) -> tuple[list[str], list[str]]:
        """Return the required arguments of a tool, and all in order; none if another process published the tool."""
        tool = self.yard.registry.resolve(name)
        schema = {} if tool is None else tool.spec.input_schema
        required: list[str] = list(schema.get("required", ()))
        return required, [*required, *schema.get("properties", ())]


def _agent_wait(found: dict[str, Any], *, can_read: bool) -> AgentWait:
    """Return what an agent waits for; without a login, only whose it is, which tool and since when."""
    facts: dict[str, Any] = {
        "who": visible(found["identity"]),
        "tool": visible(found["tool"]),
        "created_at": found["created_at"],
        "is_question": found["type"] == "question",
    }
    if not can_read:
        return AgentWait(**facts)
    facts |= {"id": found["interaction_id"], "session_id": found["session_id"]}
    arguments = [_argument(name, value) for name, value in found.get("arguments", {}).items()]
    text = "\n".join(visible(line) for line in found["text"].split("\n"))
    return AgentWait(**facts, text=text, arguments=arguments)


def _object(arguments: list[Argument], required: list[str]) -> str:
    """Return what a call is about: the only argument that it has or must have, if that is short."""
    found = [one for one in arguments if len(arguments) == 1 or [one.key] == required]
    return found[0].text if found and not found[0].is_code and len(found[0].text) <= _SHORT else ""


def _is_own(approval: Approval, person: Person) -> bool:
    """Return whether somebody else must decide.

    A person without credentials decides about own calls unless a rule requires an operator.
    """
    return approval.binding.identity == person.identity and (
        person.operator is not None or approval.card.by == "operator"
    )


async def _decide(gate: Gate, approval_id: str, view: View) -> Done:
    """Approve or deny in the name of the person, and allow the call again for a time if the form says so."""
    form, person = view.form, view.person
    chosen: Any = form.get("decision", "")
    reason = form.get("reason", "").strip()[:_REASON_CHARACTERS]
    if chosen not in {"approve", "deny"}:
        raise LookupError
    again = form.get("again", "") if chosen == "approve" else ""
    seconds = int(again) if again.isdecimal() else 0
    if again and seconds not in PERIODS:
        raise ToolError("invalid_input", "There is no such time to allow a call again for.")
    if person.operator is not None:
        approval = await gate.decide(approval_id, chosen, caller=person.operator, reason=reason)
    else:
        if _is_own(await gate.approvals.get(approval_id), person):
            raise ToolError("permission_denied", _OWN_CALL, reason="own_call")
        approval = await gate.approvals.decide(approval_id, chosen, by=person.identity, reason=reason)
    notice = "Approved." if chosen == "approve" else "Denied."
    if seconds:
        is_any = form.get("arguments") == "any"
        await gate.approvals.grant(approval, seconds=seconds, any_arguments=is_any, by=person.identity, reason=reason)
        notice = f"Approved, and allowed again for {PERIODS[seconds]}."
    return Done(to=url("approvals", done=approval.id), notice=notice)


def _client(card: Card) -> str:
    """Return the program that asks, in words: clients write their names as 'claude-code'."""
    client = visible(card.client)
    return client.replace("-", " ").replace("_", " ").title() if client == client.lower() else client


def _what(card: Card) -> str:
    """Return what the tool does, such as 'close account' for 'bank__close_account'."""
    if card.title != card.tool:
        text = visible(card.title)
        return text[:1].lower() + text[1:] if text[1:2].islower() else text
    return card.tool.rpartition("__")[2].replace("_", " ")


def _arguments(card: Card) -> list[Argument]:
    """Return the arguments of a card for a table."""
    values = msgspec.json.decode(card.arguments, type=dict[str, Any])
    return [_argument(name, value) for name, value in values.items()]


def _argument(name: str, value: Any) -> Argument:
    """Return an argument in plain words; what nobody could see is escaped again, because decoding restored it.

    No two values look alike: a text that reads like another kind of value has quotes.
    """
    label = visible(name if " " in name else name.replace("_", " "))
    if value is None or isinstance(value, bool):
        return Argument(name, label, _WORDS[value])
    if value in ([], ""):
        return Argument(name, label, "none" if value == [] else "empty")
    if isinstance(value, str) and not _LIKE_OTHERS.fullmatch(value):
        return Argument(name, label, "\n".join(visible(line) for line in value.split("\n")))
    is_code = isinstance(value, list | dict)
    text = pretty(value) if isinstance(value, dict) else json.dumps(value, ensure_ascii=False)
    return Argument(name, label, "\n".join(visible(line) for line in text.split("\n")), is_code=is_code)


def _grant_text(grant: Grant, person: Person) -> str:
    """Return which arguments a grant is for, as far as the person may see them."""
    if not grant.arguments:
        return "any"
    return visible(f"{grant.card.uri} {grant.card.arguments}".lstrip()) if person.can_act else "the same"
