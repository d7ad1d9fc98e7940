"""The page 'Approvals': what waits for a person, the decision, and standing grants.

A person with the printed address may decide about every call, as with the command. A person with an operator's credentials may not
decide about their own calls. Only people with a login see arguments, with secrets masked.
"""

from typing import Any, ClassVar, Final, cast

import msgspec

from toolyard.console.access import Person
from toolyard.console.page import Done, Page, View, url
from toolyard.dispatch.outcome import Record
from toolyard.model.errors import ToolError
from toolyard.policy.approvals import Approval, Approvals, Card, Grant
from toolyard.policy.gate import Gate
from toolyard.providers.upstream.scan import visible
from toolyard.state.store import StoreUnavailableError

__all__ = ["ApprovalsPage"]

_PERIODS: Final = {900: "15 minutes", 3600: "1 hour", 8 * 3600: "8 hours", 86_400: "1 day", 7 * 86_400: "7 days"}
"""The times for which a call can be allowed again, in seconds."""
_REASON_CHARACTERS: Final = 500
_SHORT: Final = 40
_LONG: Final = 160
_LONG_LINES: Final = 12
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
        facts["endpoint"] = self.yard.address or ""
        if gate is None:
            return facts
        pending, decided = await gate.approvals.pending(), await gate.approvals.decided()
        just = [approval for approval in decided if approval.id == facts["done"]]
        cards = sorted([*pending, *just], key=lambda approval: approval.created_at)
        facts["cards"] = [self._shown(approval, view.person) for approval in cards]
        facts["first"] = pending[0].id if pending else ""
        facts["decided"] = [self._shown(approval, view.person) for approval in decided if approval not in just]
        facts["grants"] = [(grant, _grant_text(grant, view.person)) for grant in await gate.approvals.grants()]
        return facts

    async def count(self) -> int:
        """Return how many approvals wait; 0 if the store cannot be read."""
        try:
            return 0 if self.yard.gate is None else len(await self.yard.gate.approvals.pending())
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

    def _shown(self, approval: Approval, person: Person) -> Shown:
        card = approval.card
        arguments, rest = _arguments(card) if person.can_act else ((), "")
        required, order = self._schema_of(card.tool)
        is_own = person.operator is not None and approval.binding.identity == person.identity
        call_id = approval.call_id
        return Shown(
            approval=approval,
            who=_who(card),
            what=_what(card),
            object=_object(arguments, required),
            arguments=tuple(sorted(arguments, key=lambda one: order.get(one.key, len(order)))),
            rest=rest,
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
        approval = await gate.approvals.decide(approval_id, chosen, by=person.identity, reason=reason)
    notice = "Approved." if decision == "approve" else "Denied."
    if seconds:
        is_any = form.get("arguments") == "any"
        await _grant(gate.approvals, approval, seconds=seconds, is_any=is_any, person=person, reason=reason)
        notice = f"Approved, and allowed again for {_PERIODS[seconds]}."
    return Done(to=url("approvals", done=approval.id), notice=notice)


async def _grant(approvals: Approvals, approval: Approval, *, seconds: int, is_any: bool, person: Person, reason: str) -> None:
    await approvals.grant(approval, seconds=seconds, any_arguments=is_any, by=person.identity, reason=reason)


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
        return (), visible(card.arguments)
    if not isinstance(values, dict):
        return (), visible(card.arguments)
    return tuple(_argument(name, value) for name, value in cast("dict[str, Any]", values).items()), ""


def _argument(name: str, value: Any) -> Argument:
    """Return an argument in plain words; what nobody could see is escaped again, because decoding restored it."""
    label = visible(name.replace("_", " "))
    if value is None or isinstance(value, bool):
        return Argument(name, label, "nothing" if value is None else "yes" if value else "no")
    if isinstance(value, list) and all(isinstance(item, str | int | float) for item in cast("list[Any]", value)):
        value = ", ".join(str(item) for item in cast("list[Any]", value)) or "none"
    if isinstance(value, str | int | float):
        return Argument(name, label, "\n".join(visible(line) for line in str(value).split("\n")) or "empty")
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return Argument(name, label, "\n".join(visible(line) for line in text.split("\n")), is_code=True)


def _grant_text(grant: Grant, person: Person) -> str:
    """Return which arguments a grant is for, as far as the person may see them."""
    if not grant.arguments:
        return "any"
    return visible(grant.card.arguments) if person.can_act else "the same"
