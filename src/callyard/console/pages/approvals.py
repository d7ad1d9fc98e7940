"""The page 'Approvals': what waits for a person, the decision, and standing grants.

A person with the printed address may decide about every call, except an own one for which a rule wants an operator. A person with an
operator's credentials may not decide about their own calls. Only people with a login see arguments, with secrets masked.
"""

from contextlib import suppress
from typing import Any, ClassVar, Final, cast

import msgspec
from markupsafe import escape

from callyard.console.access import Person
from callyard.console.page import Done, Page, View, page_of, url
from callyard.dispatch.outcome import Record
from callyard.model.errors import ToolError
from callyard.policy.approvals import Approval, Card, Grant
from callyard.policy.gate import Gate
from callyard.providers.upstream.scan import visible
from callyard.state.store import StoreUnavailableError

__all__ = ["ApprovalsPage"]

_PERIODS: Final = {900: "15 minutes", 3600: "1 hour", 8 * 3600: "8 hours", 86_400: "1 day", 7 * 86_400: "7 days"}
"""The times for which a call can be allowed again, in seconds."""
_REASON_CHARACTERS: Final = 500
_SHORT: Final = 40
_LONG: Final = 160
_LONG_LINES: Final = 12
_CARDS: Final = 20
_CARD_CHARACTERS: Final = 2500
"""How much HTML the arguments on a card may have. One link more shows longer ones, so that a page of cards stays small."""
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


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An approval as its card shows it to one person."""

    approval: Approval
    who: str
    """Who asks: the client, or the identity."""
    what: str
    """What the tool does, from its title or name."""
    object: str = ""
    """The argument that the call is about, if it is short."""
    arguments: tuple[Argument, ...] = ()
    rest: str = ""
    """The arguments as text, if there are too many for a table."""
    folded: int = 0
    """How many characters the arguments have, if they are too long for a list of cards."""
    can_decide: bool = False
    refusal: str = ""
    """Why this person cannot decide."""
    is_running: bool = False
    """Whether the call that used it runs now, in this process."""
    record: Record | None = None
    """The record of that call, if this process has it."""


class ApprovalsPage(Page):
    """What waits for a person."""

    name: ClassVar[str] = "approvals"
    title: ClassVar[str] = "Approvals"
    template: ClassVar[str] = "approvals"

    async def context(self, view: View) -> dict[str, Any]:
        """Return what waits, what was decided in the last hour, and the grants."""
        gate = self.yard.gate
        facts: dict[str, Any] = {"cards": [], "decided": [], "grants": [], "periods": _PERIODS, "done": view.query.get("done", "")}
        facts |= {"opened": "", "page_number": 1, "page_count": 1}
        if gate is None:
            return facts
        decided = await gate.approvals.decided()
        just = [approval for approval in decided if approval.id == facts["done"]]
        facts |= await self._cards(gate, view, just)
        facts["decided"] = [self._shown(approval, view.person) for approval in decided if approval not in just]
        facts["grants"] = [(grant, _grant_text(grant, view.person)) for grant in reversed(await gate.approvals.grants())]
        return facts

    async def _cards(self, gate: Gate, view: View, just: list[Approval]) -> dict[str, Any]:
        """Return one page of cards with those just decided, or the card that is open, with all of its arguments."""
        opened = view.query.get("open", "")
        if opened:
            with suppress(ToolError):  # it is gone, or the id is that of a grant
                card = self._shown(await gate.approvals.get(opened), view.person, is_open=True)
                return {"cards": [card], "first": opened, "opened": opened}
        _, number, pages = page_of(range(await gate.approvals.count()), view.query.get("page", ""), _CARDS)
        pending = await gate.approvals.pending(limit=_CARDS, offset=(number - 1) * _CARDS)
        cards = sorted([*pending, *just], key=lambda approval: approval.created_at)
        shown = [self._shown(approval, view.person) for approval in cards]
        first = pending[0].id if pending else ""
        return {"cards": shown, "first": first, "opened": opened, "page_number": number, "page_count": pages}

    async def count(self) -> int:
        """Return how many approvals wait; 0 if the store cannot be read."""
        try:
            return 0 if self.yard.gate is None else await self.yard.gate.approvals.count()
        except StoreUnavailableError:
            return 0

    async def act(self, view: View) -> Done:
        """Decide about an approval, or revoke a grant."""
        gate = self.yard.gate
        match view.path:
            case ("decide", approval_id) if gate is not None:
                return await _decide(gate, approval_id, view)
            case ("revoke", grant_id) if gate is not None:
                grant = await gate.approvals.revoke(grant_id, by=view.person.identity)
                return Done(to=url(self.name), notice=f"The grant for '{grant.card.tool}' is revoked.")
            case _:
                raise LookupError

    def _shown(self, approval: Approval, person: Person, *, is_open: bool = False) -> Shown:
        card = approval.card
        arguments, rest = _arguments(card) if person.can_act else ((), "")
        required, order = self._schema_of(card.tool)
        is_own = _is_own(approval, person)
        call_id = approval.call_id
        size = len(escape(rest)) + sum(len(escape(one.text)) + _ROW_CHARACTERS for one in arguments)
        return Shown(
            approval=approval,
            who=_who(card),
            what=_what(card),
            object=_object(arguments, required),
            arguments=tuple(sorted(arguments, key=lambda one: order.get(one.key, len(order)))),
            rest=rest,
            folded=len(card.arguments) if size > _CARD_CHARACTERS and not is_open else 0,
            can_decide=person.can_act and not is_own,
            refusal=_OWN_CALL if is_own else "",
            is_running=call_id in self.yard.dispatcher.in_flight,
            record=next((one for one in self.parts.records.records if call_id and one.call_id == call_id), None),
        )

    def _schema_of(self, name: str) -> tuple[list[str], dict[str, int]]:
        """Return the arguments that a tool requires, and the place of each in a list; nothing if another process published it."""
        tool = self.yard.registry.resolve(name)
        schema = {} if tool is None else tool.spec.input_schema
        required: list[str] = list(schema.get("required", ()))
        return required, {key: place for place, key in enumerate(dict.fromkeys([*required, *schema.get("properties", ())]))}


def _object(arguments: tuple[Argument, ...], required: list[str]) -> str:
    """Return what a call is about: the only argument that it has or must have, if that is short."""
    found = [one for one in arguments if len(arguments) == 1 or [one.key] == required]
    return found[0].text if found and not found[0].is_code and len(found[0].text) <= _SHORT else ""


def _is_own(approval: Approval, person: Person) -> bool:
    """Return whether somebody else must decide: a person without credentials decides about own calls unless a rule wants an operator."""
    return approval.binding.identity == person.identity and (person.operator is not None or approval.card.by == "operator")


async def _decide(gate: Gate, approval_id: str, view: View) -> Done:
    """Approve or deny in the name of the person, and allow the call again for a time if the form says so."""
    form, person = view.form, view.person
    decision, reason = form.get("decision", ""), form.get("reason", "").strip()[:_REASON_CHARACTERS]
    if decision not in {"approve", "deny"}:
        raise LookupError
    seconds = _seconds(form.get("again", "")) if decision == "approve" else 0
    chosen = cast("Any", decision)
    if person.operator is not None:
        approval = await gate.decide(approval_id, chosen, caller=person.operator, reason=reason)
    else:
        if _is_own(await gate.approvals.get(approval_id), person):
            raise ToolError("permission_denied", _OWN_CALL, reason="own_call", may_have_run=False)
        approval = await gate.approvals.decide(approval_id, chosen, by=person.identity, reason=reason)
    notice = "Approved." if decision == "approve" else "Denied."
    if seconds:
        is_any = form.get("arguments") == "any"
        await gate.approvals.grant(approval, seconds=seconds, any_arguments=is_any, by=person.identity, reason=reason)
        notice = f"Approved, and allowed again for {_PERIODS[seconds]}."
    return Done(to=url("approvals", done=approval.id), notice=notice)


def _seconds(text: str) -> int:
    """Return the seconds of a choice.

    Raises:
        ToolError: `invalid_input` if there is no such choice.
    """
    seconds = int(text) if text.isdecimal() else 0
    if text and seconds not in _PERIODS:
        raise ToolError("invalid_input", "There is no such time to allow a call again for.", may_have_run=False)
    return seconds


def _who(card: Card) -> str:
    """Return who asks: clients write their names as 'claude-code'."""
    client = visible(card.client)
    return client.replace("-", " ").replace("_", " ").title() if client and client == client.lower() else client or visible(card.identity)


def _what(card: Card) -> str:
    """Return what the tool does, such as 'close account' for 'bank__close_account'."""
    if card.title != card.tool:
        text = visible(card.title)
        return text[:1].lower() + text[1:] if text[1:2].islower() else text
    return card.tool.rpartition("__")[2].replace("_", " ")


def _arguments(card: Card) -> tuple[tuple[Argument, ...], str]:
    """Return the arguments of a card for a table, or as text where the card had to cut them."""
    try:
        values: object = msgspec.json.decode(card.arguments)
    except msgspec.DecodeError:
        values = None
    if not isinstance(values, dict):
        return (), _visible_lines(card.arguments)
    return tuple(_argument(name, value) for name, value in cast("dict[str, Any]", values).items()), ""


def _argument(name: str, value: Any) -> Argument:
    """Return an argument in plain words; what nobody could see is escaped again, because decoding restored it."""
    label = visible(name.replace("_", " "))
    if value is None or isinstance(value, bool):
        return Argument(name, label, "nothing" if value is None else "yes" if value else "no")
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in cast("list[Any]", value)):
        value = ", ".join(str(item) for item in cast("list[Any]", value)) or "none"
    if isinstance(value, str | int | float):
        return Argument(name, label, _visible_lines(str(value)) or "empty")
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return Argument(name, label, _visible_lines(text), is_code=True)


def _visible_lines(text: str) -> str:
    return "\n".join(visible(line) for line in text.split("\n"))


def _grant_text(grant: Grant, person: Person) -> str:
    """Return which arguments a grant is for, as far as the person may see them."""
    if not grant.arguments:
        return "any"
    return visible(grant.card.arguments) if person.can_act else "the same"
