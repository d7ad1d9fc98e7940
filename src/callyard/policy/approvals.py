"""Approvals: decisions of people about single calls, kept in the store so that they outlive the process that asked.

An approval is bound to caller, profile, tool, definition, session and arguments, may be used once, and expires. This module asks
nobody and judges no call.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from callyard._internal.logfmt import log_value
from callyard._internal.mask import mask_values
from callyard.dispatch.call import Call
from callyard.model.envelope import encode, encode_sorted
from callyard.model.errors import ToolError, not_found
from callyard.model.spec import ToolSpec
from callyard.state.store import Store, owner_key

__all__ = [
    "BY_CLIENT",
    "Approval",
    "Approvals",
    "Audit",
    "AuditLine",
    "Binding",
    "Card",
    "Grant",
    "arguments_hash",
    "binding_of",
    "local_user",
    "make_card",
]

Status = Literal["pending", "approved", "denied", "spent", "expired"]
Decision = Literal["approve", "deny", "withdraw"]
Clock = Callable[[], float]
_DECIDED: Final[Mapping[Decision, Status]] = {"approve": "approved", "deny": "denied", "withdraw": "expired"}
"""The status after each decision."""
_LOOK_S: Final = 1.0
"""How often a waiting call reads its approval again, because messages may get lost."""
_KEPT_S: Final = 3600.0
"""How long an approval is kept after it expired."""
_MAX_PENDING: Final = 1000
_MAX_PENDING_OF_OWNER: Final = 100
_MAX_GRANT_S: Final = 30 * 86_400.0
_audit = logging.getLogger("callyard.audit")


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person sees of a call. Apart from arguments and identity, everything is from the registry and the rules."""

    tool: str
    title: str
    operation: str
    source: str
    arguments: str
    """The arguments as JSON in one line, with secrets masked and unprintable characters escaped; without their middle if very long."""
    identity: str
    profile: str
    client: str = ""
    """The name that the client states; nothing verifies it."""
    why: str
    """Why the rule asks."""
    by: Literal["anyone", "operator"] = "anyone"

    def text(self) -> str:
        """Return the card in a few lines for a person."""
        asker = f"{self.identity} ({self.client})" if self.client else self.identity
        title = f" ({self.title})" if self.title != self.tool else ""
        return (
            f"May '{self.tool}'{title} run?\nOperation: {self.operation}, of '{self.source}'\nArguments: {self.arguments}\n"
            f"Asked by: {asker}, profile '{self.profile}'\nWhy you are asked: {self.why}"
        )


_NAME_CHARACTERS: Final = 200
_ARGUMENT_CHARACTERS: Final = 20_000
"""Much is shown, because nobody should approve what they cannot read."""


def make_card(call: Call, *, spec: ToolSpec, arguments: object, why: str, by: Literal["anyone", "operator"]) -> Card:
    """Return the card of a call."""
    shown = encode(mask_values(msgspec.json.decode(encode(arguments)))).decode()
    return Card(
        tool=spec.name,
        title=_printable(spec.title or spec.name),
        operation=str(spec.operation),
        source=_printable(spec.source),
        arguments=_without_middle(_printable(shown), _ARGUMENT_CHARACTERS),
        identity=_without_middle(_printable(call.caller.identity), _NAME_CHARACTERS),
        profile=call.profile.name,
        client=_printable(call.caller.client),
        why=why,
        by=by,
    )


def _without_middle(text: str, most: int) -> str:
    """Return a text, or its beginning and end with a remark between them that nobody overlooks."""
    left_out, half = len(text) - most, most // 2
    # On a line of its own, so that it stands out, and what is left of JSON is none that a page would show as a table.
    return text if left_out <= 0 else f"{text[:half]}\n[… {left_out:,} OF {len(text):,} CHARACTERS ARE NOT SHOWN …]\n{text[-half:]}"


def _printable(text: str) -> str:
    """Return a text in which nothing can hide: unprintable characters and those of markup are escaped."""
    return "".join(char if char.isprintable() and char not in _MARKUP else f"\\u{ord(char):04x}" for char in text)


_MARKUP: Final = frozenset("<>&`")


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """What an approval is for."""

    owner: str
    identity: str
    profile: str
    tool: str
    definition: str
    session: str
    arguments: str
    """The hash of the arguments."""

    @property
    def key(self) -> str:
        """Return one hash of all fields."""
        return sha256(encode_sorted([self.owner, self.profile, self.tool, self.definition, self.session, self.arguments])).hexdigest()


def arguments_hash(arguments: object) -> str:
    """Return the hash of parsed arguments; the order of keys does not matter.

    Raises:
        ToolError: `permission_denied` if they hold something that cannot be compared.
    """
    try:
        return sha256(encode_sorted(arguments)).hexdigest()
    except Exception:  # noqa: BLE001 - a serialiser of a value may raise anything
        message = "The arguments cannot be compared, so no approval can be bound to them."
        raise ToolError("permission_denied", message, reason="not_comparable", may_have_run=False) from None


def spec_hash(spec: ToolSpec) -> str:
    """Return the hash of a whole definition."""
    return sha256(encode_sorted(spec)).hexdigest()


def binding_of(call: Call, spec: ToolSpec, arguments: object) -> Binding:
    """Return the binding of a call with these arguments."""
    return Binding(
        owner=call.caller.owner,
        identity=call.caller.identity,
        profile=call.profile.name,
        tool=f"{spec.kind}:{spec.name}",
        definition=spec_hash(spec),
        session="" if call.session is None else call.session.id,
        arguments=arguments_hash(arguments),
    )


BY_CLIENT: Final = "client:"
"""The prefix of who decided, if that was the person at the caller's client."""


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision of a person about one call, open or made."""

    id: str
    binding: Binding
    card: Card
    created_at: float
    expires_at: float
    status: Status = "pending"
    decided_at: float = 0.0
    decided_by: str = ""
    reason: str = ""
    call_id: str = ""
    """The call that used it."""

    @property
    def is_denied_by_client(self) -> bool:
        """Return whether the person at the caller's own client denied it, and not an operator or a service."""
        return self.status == "denied" and self.decided_by.startswith(BY_CLIENT)

    def at(self, now: float) -> "Approval":
        """Return it as it is at a time: one that nobody used before it expired is expired."""
        is_over = self.status in {"pending", "approved", "denied"} and now >= self.expires_at
        return msgspec.structs.replace(self, status="expired") if is_over else self

    def view(self) -> dict[str, Any]:
        """Return what operators see of it."""
        facts: dict[str, Any] = {"approval_id": self.id, "status": self.status, **msgspec.to_builtins(self.card)}
        facts |= {"created_at": round(self.created_at, 3), "expires_at": round(self.expires_at, 3)}
        if self.decided_by:
            facts |= {"decided_by": self.decided_by, "decided_at": round(self.decided_at, 3), "reason": self.reason}
        return facts


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A standing approval: calls of one tool by one identity, with the same arguments or any, until it expires."""

    id: str
    identity: str
    profile: str
    tool: str
    definition: str
    arguments: str = ""
    """The hash of the arguments; empty for any."""
    card: Card
    created_at: float
    expires_at: float
    granted_by: str
    reason: str = ""

    def view(self) -> dict[str, Any]:
        """Return what operators see of it."""
        card = self.card if self.arguments else msgspec.structs.replace(self.card, arguments="any")
        facts = {"grant_id": self.id, **msgspec.to_builtins(card), "created_at": round(self.created_at, 3)}
        return {**facts, "expires_at": round(self.expires_at, 3), "granted_by": self.granted_by, "reason": self.reason}


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log about an approval or a grant, without the arguments."""

    started: float
    """Seconds since the epoch."""
    event: str
    approval_id: str
    tool: str
    source: str = ""
    identity: str
    by: str = ""
    reason: str = ""
    call_id: str = ""
    """The call that asks for the approval, or uses it."""


Audit = Callable[[AuditLine], None]


def local_user() -> str:
    """Return the name of the user of this process as somebody who decides."""
    import getpass  # noqa: PLC0415 - only a command needs it

    try:
        return f"user:{getpass.getuser()}"
    except (OSError, KeyError):
        return "user:unknown"


def _record(approval_id: str) -> str:
    return f"approval/{approval_id}"


def _pending(owner: str = "") -> str:
    return f"approval_pending/{owner_key(owner)}/" if owner else "approval_pending/"


def _pending_key(approval: "Approval") -> str:
    """Return the key of a pending approval, which says when it was asked, so that a list reads no more than it shows."""
    return f"{_pending(approval.binding.owner)}{int(approval.created_at * 1000):014}-{approval.id}"


def _decided(at: float, approval_id: str) -> str:
    """Return the key of a decision; keys in order are decisions by age, the newest first."""
    return f"approval_decided/{10**14 - int(at * 1000):014}/{approval_id}"


def _grant_key(binding: Binding, arguments: str) -> str:
    parts = [binding.identity, binding.profile, binding.tool, binding.definition, arguments]
    return f"grant/{sha256(encode_sorted(parts)).hexdigest()}"


class Approvals:
    """The approvals in a store. It does not check who decides: that is the business of its callers."""

    def __init__(self, store: Store, *, clock: Clock = time.time, audit: Audit | None = None) -> None:
        self._store = store
        self._clock = clock
        self._audit = audit

    async def get(self, approval_id: str) -> Approval:
        """Return an approval.

        Raises:
            ToolError: `not_found` if there is none.
        """
        data = await self._store.get(_record(approval_id)) if approval_id.isprintable() else None
        if data is None:
            raise not_found("approval", approval_id, reason="unknown_approval", may_have_run=False)
        return self._decode(data)

    async def find(self, binding: Binding) -> Approval | None:
        """Return the current approval of a binding, if there is one."""
        approval_id = await self._store.get(f"approval_by/{binding.key}")
        data = None if approval_id is None else await self._store.get(_record(approval_id.decode()))
        return None if data is None else self._decode(data)

    async def ask(
        self, binding: Binding, make: Callable[[], Card], *, ttl: float, call_id: str = "", replaces_denial: bool = False
    ) -> tuple[Approval, bool]:
        """Return the approval of a binding that is pending or decided, or a new one, and whether it is new.

        `replaces_denial` asks anew although the person at the client denied the call before; a denial by anybody else stays.

        Raises:
            ToolError: `overloaded` if too many are pending.
        """
        pointer = f"approval_by/{binding.key}"
        while True:
            known = await self._store.get(pointer)
            data = None if known is None else await self._store.get(_record(known.decode()))
            found = None if data is None else self._decode(data)
            if found is not None and found.status not in {"spent", "expired"} and not (replaces_denial and found.is_denied_by_client):
                if found.status == "pending":  # the process that made it may have died before it was listed
                    await self._list(found)
                return found, False
            await self._check_room(binding.owner)
            now = self._clock()
            approval = Approval(id=f"a_{os.urandom(16).hex()}", binding=binding, card=make(), created_at=now, expires_at=now + ttl)
            await self._store.put(_record(approval.id), encode(approval), ttl=ttl + _KEPT_S)
            if await self._store.compare_and_set(pointer, known, approval.id.encode(), ttl=ttl):
                await self._list(approval)
                self._note("approval_asked", approval, call_id)
                return approval, True
            await self._store.delete(_record(approval.id))

    async def decide(self, approval_id: str, decision: Decision, *, by: str, reason: str = "") -> Approval:
        """Approve, deny or withdraw; an approval that is not used yet can still be denied or withdrawn.

        A denial holds for the same call until it expires. One that is withdrawn is expired at once, so the same call asks anew.

        Raises:
            ToolError: `not_found` if there is none, `state_error` if it is decided already.
        """
        while True:
            data = await self._store.get(_record(approval_id)) if approval_id.isprintable() else None
            if data is None:
                raise not_found("approval", approval_id, reason="unknown_approval", may_have_run=False)
            approval = self._decode(data)
            if approval.status != "pending" and not (approval.status == "approved" and decision != "approve"):
                message = f"The approval '{approval.id}' is {approval.status} already."
                raise ToolError("state_error", message, reason="already_decided", may_have_run=False, status=approval.status)
            status = _DECIDED[decision]
            decided = msgspec.structs.replace(approval, status=status, decided_at=self._clock(), decided_by=by, reason=reason)
            if await self._replace(data, decided):
                await self._store.put(_decided(decided.decided_at, decided.id), b"", ttl=_KEPT_S)
                self._note(f"approval_{status}", decided)
                return decided

    async def spend(self, approval: Approval, arguments: str, *, call_id: str = "") -> bool:
        """Use an approved approval for a call, once and before it expires; return whether it could be used.

        Other arguments do not use it up.
        """
        data = await self._store.get(_record(approval.id))
        current = None if data is None else self._decode(data)
        if data is None or current is None or current.status != "approved" or current.binding.arguments != arguments:
            return False
        spent = msgspec.structs.replace(current, status="spent", call_id=call_id)
        if not await self._replace(data, spent):
            return False
        self._note("approval_spent", spent, call_id)
        return True

    async def wait(self, approval: Approval, seconds: float) -> Approval:
        """Return an approval once it is no longer pending, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._store.subscribe(_record(approval.id)) as messages:
                approval = await self.get(approval.id)
                while approval.status == "pending":
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(_LOOK_S, max(approval.expires_at - self._clock(), 0.001))):
                            await anext(messages)
                    approval = await self.get(approval.id)
        return approval.at(self._clock())  # it may have expired at this very moment

    async def pending(self, *, limit: int = 100, offset: int = 0) -> list[Approval]:
        """Return the pending approvals, the oldest first."""
        names = sorted(key.rpartition("/")[2] for key in await self._store.keys(_pending(), limit=_MAX_PENDING))
        ids = [name.partition("-")[2] for name in names[offset : offset + limit]]
        found = [self._decode(data) for approval_id in ids if (data := await self._store.get(_record(approval_id))) is not None]
        return [one for one in found if one.status == "pending"]

    async def count(self) -> int:
        """Return how many approvals are pending."""
        return len(await self._store.keys(_pending(), limit=_MAX_PENDING))

    async def decided(self, *, limit: int = 50) -> list[Approval]:
        """Return the approvals that were decided in the last hour, the newest decision first."""
        keys = await self._store.keys("approval_decided/", limit=limit)
        ids = dict.fromkeys(key.rpartition("/")[2] for key in keys)
        return [self._decode(data) for approval_id in ids if (data := await self._store.get(_record(approval_id))) is not None]

    async def watch(self, seen: set[str]) -> Approval:
        """Wait for a pending approval that was not seen yet, add it to the seen ones and return it."""
        async with self._store.subscribe("approvals") as messages:
            while True:
                for approval in await self.pending():
                    if approval.id not in seen:
                        seen.add(approval.id)
                        return approval
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await anext(messages)

    async def grant(self, approval: Approval, *, seconds: float, any_arguments: bool, by: str, reason: str = "") -> Grant:
        """Allow further calls of the same tool by the same identity for a time, with the same arguments or any."""
        if not 0 < seconds <= _MAX_GRANT_S:
            raise ToolError("invalid_input", f"A grant lasts at most {_MAX_GRANT_S / 86_400:g} days.", may_have_run=False)
        now, binding = self._clock(), approval.binding
        arguments = "" if any_arguments else binding.arguments
        grant = Grant(
            id=f"g_{os.urandom(16).hex()}",
            identity=binding.identity,
            profile=binding.profile,
            tool=binding.tool,
            definition=binding.definition,
            arguments=arguments,
            card=approval.card,
            created_at=now,
            expires_at=now + seconds,
            granted_by=by,
            reason=reason,
        )
        await self._store.put(_grant_key(binding, arguments), encode(grant), ttl=seconds)
        self._write("approval_granted", grant.id, grant.card, by=by, reason=reason)
        return grant

    async def find_grant(self, binding: Binding) -> Grant | None:
        """Return a grant that allows a call now, if there is one."""
        for arguments in (binding.arguments, ""):
            data = await self._store.get(_grant_key(binding, arguments))
            grant = None if data is None else msgspec.json.decode(data, type=Grant)
            if grant is not None and self._clock() < grant.expires_at:
                return grant
        return None

    async def grants(self) -> list[Grant]:
        """Return the grants that have not expired."""
        found = [await self._store.get(key) for key in await self._store.keys("grant/")]
        grants = [msgspec.json.decode(data, type=Grant) for data in found if data is not None]
        return sorted((grant for grant in grants if self._clock() < grant.expires_at), key=lambda grant: grant.created_at)

    async def revoke(self, grant_id: str, *, by: str) -> Grant:
        """End a grant.

        Raises:
            ToolError: `not_found` if there is none.
        """
        for key in await self._store.keys("grant/"):
            data = await self._store.get(key)
            grant = None if data is None else msgspec.json.decode(data, type=Grant)
            if grant is not None and grant.id == grant_id:
                await self._store.delete(key)
                self._write("approval_revoked", grant_id, grant.card, by=by, reason="")
                return grant
        raise not_found("grant", grant_id, reason="unknown_approval", may_have_run=False)

    def _note(self, event: str, approval: Approval, call_id: str = "") -> None:
        self._write(event, approval.id, approval.card, by=approval.decided_by, reason=approval.reason, call_id=call_id)

    def _write(self, event: str, approval_id: str, card: Card, *, by: str, reason: str, call_id: str = "") -> None:
        """Write a line to the audit log, and one to the program's log."""
        identity = log_value(card.identity)
        _audit.info("%s id=%s tool=%s identity=%s by=%s", event, approval_id, card.tool, identity, log_value(by or "-"))
        if self._audit is not None:
            who: dict[str, Any] = {"tool": card.tool, "source": card.source, "identity": card.identity, "by": by, "reason": reason}
            self._audit(AuditLine(started=self._clock(), event=event, approval_id=approval_id, call_id=call_id, **who))

    def _decode(self, data: bytes) -> Approval:
        return msgspec.json.decode(data, type=Approval).at(self._clock())

    async def _list(self, approval: Approval) -> None:
        left = approval.expires_at - self._clock()
        if left > 0:
            await self._store.put(_pending_key(approval), b"", ttl=left)
            await self._store.publish("approvals", b"")

    async def _check_room(self, owner: str) -> None:
        mine = await self._store.keys(_pending(owner), limit=_MAX_PENDING_OF_OWNER)
        if len(mine) >= _MAX_PENDING_OF_OWNER or len(await self._store.keys(_pending(), limit=_MAX_PENDING)) >= _MAX_PENDING:
            message = "Too many calls wait for approval already."
            raise ToolError("overloaded", message, hint="Wait until some are decided.", reason="approvals_full", may_have_run=False)

    async def _replace(self, data: bytes, approval: Approval) -> bool:
        """Store another state of an approval, unless it changed meanwhile, and tell those who wait for it."""
        left = max(approval.expires_at - self._clock(), 0.0) + _KEPT_S
        if not await self._store.compare_and_set(_record(approval.id), data, encode(approval), ttl=left):
            return False
        await self._store.delete(_pending_key(approval))
        await self._store.publish(_record(approval.id), b"")
        return True
