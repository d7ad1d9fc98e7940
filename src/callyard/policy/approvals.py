"""Approvals: decisions of people about single calls, kept in the store so that they outlive the process that asked.

An approval is bound to caller, profile, tool, definition, session and arguments, may be used once, and expires. This
module asks nobody and judges no call.
"""

import asyncio
import getpass
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from callyard._internal.logfmt import log_exception, log_value
from callyard.dispatch.arguments import BoundArguments
from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.model.envelope import encode, fingerprint
from callyard.model.errors import CodeName, ToolError, not_found
from callyard.policy.cards import Card, uri_of
from callyard.state.store import Clock, Store, owner_key

__all__ = [
    "BY_CLIENT",
    "Approval",
    "Approvals",
    "Audit",
    "AuditLine",
    "Authority",
    "Binding",
    "Grant",
    "binding_of",
    "local_user",
]

T = TypeVar("T")
Status = Literal["pending", "approved", "denied", "spent", "expired"]
Authority = Literal["anyone", "operator"]
Decision = Literal["approve", "deny", "withdraw"]
_DECIDED: Final[Mapping[Decision, Status]] = {"approve": "approved", "deny": "denied", "withdraw": "expired"}
_PENDING: Final = "approval_pending/"
_RECORD: Final = "approval/"
"""What the keys of approvals in the store begin with."""
_MASK_KEY: Final = "approval_mask_key"
_LOOK_S: Final = 1.0
"""How often a waiting call reads its approval again, because messages may get lost."""
_KEPT_S: Final = 3600.0
"""How long an approval is kept after it expired."""
_MAX_PENDING: Final = 1000
_MAX_PENDING_OF_OWNER: Final = 100
_MAX_GRANT_S: Final = 30 * 86_400.0
_log = logging.getLogger(__name__)
_audit = logging.getLogger("callyard.audit")


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
    by: Authority = "anyone"
    """Who had to decide: what anybody approved counts for nothing once a rule requires an operator."""

    @property
    def key(self) -> str:
        """Return one hash of all fields."""
        fields = [self.owner, self.profile, self.tool, self.definition, self.session, self.arguments, self.by]
        return fingerprint(fields)


def binding_of(call: Call, tool: Tool, bound: BoundArguments, by: Authority = "anyone") -> Binding:
    """Return the binding of a call with these arguments."""
    spec, uri, caller = tool.spec, uri_of(call, tool), call.caller
    return Binding(
        owner=caller.owner,
        identity=caller.identity,
        profile=call.profile.name,
        tool=f"{spec.kind}:{spec.name}",
        definition=fingerprint(spec),
        session="" if call.session is None else call.session.id,
        arguments=fingerprint(bound.common, uri),
        by=by,
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
    text: str = ""
    """The arguments as JSON if default factories made some of them: the call that uses the approval runs with these."""

    @property
    def is_denied_by_client(self) -> bool:
        """Return whether the person at the caller's own client denied it, and not an operator or a service."""
        return self.status == "denied" and self.decided_by.startswith(BY_CLIENT)

    def at(self, now: float) -> "Approval":
        """Return it as it is at a time: one that nobody used before it expired is expired."""
        is_over = self.status in {"pending", "approved", "denied"} and now >= self.expires_at
        return replace(self, status="expired") if is_over else self

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
    by: Authority = "anyone"
    card: Card
    created_at: float
    expires_at: float
    granted_by: str
    reason: str = ""

    def view(self) -> dict[str, Any]:
        """Return what operators see of it."""
        card = self.card if self.arguments else replace(self.card, arguments="any", checked="", uri="")
        facts = {"grant_id": self.id, **msgspec.to_builtins(card), "created_at": round(self.created_at, 3)}
        return {**facts, "expires_at": round(self.expires_at, 3), "granted_by": self.granted_by, "reason": self.reason}


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the audit log about an approval, a grant or what was disabled, without the arguments."""

    started: float
    """Seconds since the epoch."""
    event: str
    approval_id: str = ""
    tool: str
    """The tool, or the name or pattern that was disabled."""
    source: str = ""
    identity: str
    by: str = ""
    reason: str = ""
    call_id: str = ""
    """The call that asks for the approval, or uses it."""


Audit = Callable[[AuditLine], None]


def local_user() -> str:
    """Return the name of the user of this process as somebody who decides."""
    try:
        return f"user:{getpass.getuser()}"
    except (OSError, KeyError):
        return "user:unknown"


def _pending_key(approval: "Approval") -> str:
    """Return the key of a pending approval; it begins with the time, so that a list reads no more than it shows."""
    return f"{_PENDING}{owner_key(approval.binding.owner)}/{int(approval.created_at * 1000):014}-{approval.id}"


def _grant_key(of: Binding | Grant, arguments: str) -> str:
    parts = [of.identity, of.profile, of.tool, of.definition, arguments, of.by]
    return f"grant/{fingerprint(parts)}"


class Approvals:
    """The approvals in a store. It does not check who decides: that is the business of its callers."""

    def __init__(self, store: Store, *, clock: Clock = time.time, audit: Audit | None = None) -> None:
        self._store = store
        self.clock = clock
        self._audit = audit
        self._mask_key: bytes | None = None

    async def mask_key(self) -> bytes:
        """Return the key of the hashes that stand for secrets on cards, the same for all processes."""
        while self._mask_key is None:
            self._mask_key = await self._store.get(_MASK_KEY)
            if self._mask_key is None:
                await self._store.compare_and_set(_MASK_KEY, None, os.urandom(32))
        return self._mask_key

    async def get(self, approval_id: str) -> Approval:
        """Return an approval.

        Raises:
            ToolError: `not_found` if there is none.
        """
        return (await self._load(approval_id))[1]

    async def find(self, binding: Binding) -> Approval | None:
        """Return the current approval of a binding, if there is one."""
        return await self._current(await self._store.get(f"approval_by/{binding.key}"))

    async def ask(
        self,
        binding: Binding,
        make: Callable[[bytes], Card],
        *,
        ttl: float,
        call_id: str = "",
        text: str = "",
        replaces_denial: bool = False,
    ) -> tuple[Approval, bool]:
        """Return the approval of a binding that is pending or decided, or a new one, and whether it is new.

        `replaces_denial` asks anew although the person at the client denied the call before; a denial by anybody else
        stays.

        Raises:
            ToolError: `overloaded` if too many are pending.
        """
        pointer = f"approval_by/{binding.key}"
        while True:
            known = await self._store.get(pointer)
            found = await self._current(known)
            is_replaced = replaces_denial and found is not None and found.is_denied_by_client
            if found is not None and found.status not in {"spent", "expired"} and not is_replaced:
                if found.status == "pending":  # the process that made it may have died before it was listed
                    await self._list(found)
                return found, False
            await self._check_room(binding.owner)
            card, approval_id = make(await self.mask_key()), f"a_{os.urandom(16).hex()}"
            now = self.clock()
            approval = Approval(
                id=approval_id, binding=binding, card=card, created_at=now, expires_at=now + ttl, text=text
            )
            await self._store.put(_RECORD + approval.id, encode(approval), ttl=ttl + _KEPT_S)
            if await self._store.compare_and_set(pointer, known, approval.id.encode(), ttl=ttl):
                await self._list(approval)
                self._note("approval_asked", approval, call_id)
                return approval, True
            await self._store.delete(_RECORD + approval.id)

    async def decide(self, approval_id: str, decision: Decision, *, by: str, reason: str = "") -> Approval:
        """Approve, deny or withdraw; an approval that is not used yet can still be denied or withdrawn.

        A denial holds for the same call until it expires. One that is withdrawn is expired at once, so the same call
        asks anew.

        Raises:
            ToolError: `not_found` if there is none, `state_error` if it is decided already.
        """
        while True:
            data, approval = await self._load(approval_id)
            if approval.status != "pending" and not (approval.status == "approved" and decision != "approve"):
                message = f"The approval '{approval.id}' is {approval.status} already."
                raise _refusal("state_error", message, "already_decided", status=approval.status)
            status, now = _DECIDED[decision], self.clock()
            decided = replace(approval, status=status, decided_at=now, decided_by=by, reason=reason)
            if await self._replace(data, decided):
                age = 10**14 - int(now * 1000)  # so that keys in order are decisions by age, the newest first
                await self._store.put(f"approval_decided/{age:014}/{decided.id}", b"", ttl=_KEPT_S)
                self._note(f"approval_{status}", decided)
                return decided

    async def spend(self, approval: Approval, *, call_id: str = "") -> bool:
        """Use an approved approval for a call, once and before it expires; return whether it could be used."""
        try:
            data, current = await self._load(approval.id)
        except ToolError:  # it is gone
            return False
        if current.status != "approved":
            return False
        spent = replace(current, status="spent", call_id=call_id)
        if not await self._replace(data, spent):
            return False
        self._note("approval_spent", spent, call_id)
        return True

    async def wait(self, approval: Approval, seconds: float) -> Approval:
        """Return an approval once it is no longer pending, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._store.subscribe(_RECORD + approval.id) as messages:
                _, approval = await self._load(approval.id)
                while approval.status == "pending":
                    with suppress(TimeoutError):
                        async with asyncio.timeout(min(_LOOK_S, max(approval.expires_at - self.clock(), 0.001))):
                            await anext(messages)
                    _, approval = await self._load(approval.id)
        return approval.at(self.clock())  # it may have expired at this very moment

    async def pending(self, *, limit: int = 100, offset: int = 0) -> list[Approval]:
        """Return the pending approvals, the oldest first."""
        names = sorted(key.rpartition("/")[2] for key in await self._store.keys(_PENDING, limit=_MAX_PENDING))
        found = await self._existing([name.partition("-")[2] for name in names[offset : offset + limit]])
        return [one for one in found if one.status == "pending"]

    async def count(self) -> int:
        """Return how many approvals are pending."""
        return len(await self._store.keys(_PENDING, limit=_MAX_PENDING))

    async def decided(self, *, limit: int = 50) -> list[Approval]:
        """Return the approvals that were decided in the last hour, the newest decision first."""
        keys = await self._store.keys("approval_decided/", limit=limit)
        return await self._existing(dict.fromkeys(key.rpartition("/")[2] for key in keys))

    async def usable(self, seen: set[str], *, also_approved: bool) -> list[Approval]:
        """Return the pending approvals not seen yet, which then are, and perhaps unused ones of the last hour."""
        keys = await self._store.keys(_PENDING, limit=_MAX_PENDING)
        ids = {key.rpartition("/")[2].partition("-")[2] for key in keys}
        found = await self._existing(ids - seen)
        seen &= ids
        seen |= ids
        decided = await self.decided(limit=_MAX_PENDING) if also_approved else ()
        return [approval for approval in (*found, *decided) if approval.status in {"pending", "approved"}]

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

    async def grant(
        self, approval: Approval, *, seconds: float, any_arguments: bool, by: str, reason: str = ""
    ) -> Grant:
        """Allow further calls of the same tool by the same identity for a time, with the same arguments or any."""
        if not 0 < seconds <= _MAX_GRANT_S:
            message = f"A grant lasts at most {_MAX_GRANT_S / 86_400:g} days."
            raise ToolError("invalid_input", message, may_have_run=False)
        now, binding = self.clock(), approval.binding
        grant = Grant(
            id=f"g_{os.urandom(16).hex()}",
            identity=binding.identity,
            profile=binding.profile,
            tool=binding.tool,
            definition=binding.definition,
            arguments="" if any_arguments else binding.arguments,
            by=binding.by,
            card=approval.card,
            created_at=now,
            expires_at=now + seconds,
            granted_by=by,
            reason=reason,
        )
        await self._store.put(_grant_key(grant, grant.arguments), encode(grant), ttl=seconds)
        self._write("approval_granted", grant.id, grant.card, by=by, reason=reason)
        return grant

    async def find_grant(self, binding: Binding) -> Grant | None:
        """Return a grant that allows a call now, if there is one."""
        keys = [_grant_key(binding, arguments) for arguments in (binding.arguments, "")]
        for data in await self._store.get_many(keys):
            grant = None if data is None else _decoded(data, Grant)
            if grant is not None and self.clock() < grant.expires_at:
                return grant
        return None

    async def grants(self) -> list[Grant]:
        """Return the grants that have not expired."""
        keys = await self._store.keys("grant/")
        grants = [_decoded(data, Grant) for data in await self._store.get_many(keys)]
        live = [grant for grant in grants if grant is not None and self.clock() < grant.expires_at]
        return sorted(live, key=lambda grant: grant.created_at)

    async def revoke(self, grant_id: str, *, by: str) -> Grant:
        """End a grant.

        Raises:
            ToolError: `not_found` if there is none.
        """
        for grant in await self.grants():
            if grant.id == grant_id:
                await self._store.delete(_grant_key(grant, grant.arguments))
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
            facts: dict[str, str] = {"tool": card.tool, "source": card.source, "identity": card.identity}
            facts |= {"event": event, "approval_id": approval_id, "by": by, "reason": reason, "call_id": call_id}
            self._audit(AuditLine(started=self.clock(), **facts))

    async def _load(self, approval_id: str) -> tuple[bytes, Approval]:
        """Return an approval as it is stored, and as it is now."""
        data = await self._store.get(_RECORD + approval_id) if approval_id.isprintable() else None
        if data is None:
            raise not_found("approval", approval_id, reason="unknown_approval", may_have_run=False)
        approval = _decoded(data, Approval)
        if approval is None:
            message = "The record of the approval is damaged, so nobody can decide about it."
            raise _refusal("internal_error", message, "damaged_record")
        return data, approval.at(self.clock())

    async def _current(self, approval_id: bytes | None) -> Approval | None:
        """Return the approval that a stored id names, if both are there."""
        found = [] if approval_id is None else await self._existing([approval_id.decode(errors="replace")])
        return found[0] if found else None

    async def _existing(self, ids: Iterable[str]) -> list[Approval]:
        """Return the approvals with these ids that are still stored."""
        found = await self._store.get_many([_RECORD + approval_id for approval_id in ids])
        approvals = [_decoded(data, Approval) for data in found]
        return [approval.at(self.clock()) for approval in approvals if approval is not None]

    async def _list(self, approval: Approval) -> None:
        left = approval.expires_at - self.clock()
        if left > 0:
            await self._store.put(_pending_key(approval), b"", ttl=left)
            await self._store.publish("approvals", b"")

    async def _check_room(self, owner: str) -> None:
        for prefix, most in ((f"{_PENDING}{owner_key(owner)}/", _MAX_PENDING_OF_OWNER), (_PENDING, _MAX_PENDING)):
            if len(await self._store.keys(prefix, limit=most)) >= most:
                hint = "Wait until some are decided."
                raise _refusal("overloaded", "Too many calls wait for approval already.", "approvals_full", hint=hint)

    async def _replace(self, data: bytes, approval: Approval) -> bool:
        """Store another state of an approval, unless it changed meanwhile, and tell those who wait for it."""
        left = max(approval.expires_at - self.clock(), 0.0) + _KEPT_S
        record = encode(approval)
        if not await self._store.compare_and_set(_RECORD + approval.id, data, record, ttl=left, durable=True):
            return False
        await self._store.delete(_pending_key(approval))
        await self._store.publish(_RECORD + approval.id, b"")
        return True


def _decoded(data: bytes | None, kind: type[T]) -> T | None:
    """Return a record of the store, or None if there is none, or with a line in the log if it is damaged."""
    try:
        return None if data is None else msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        log_exception(_log, "record_damaged kind=%s", kind.__name__, error=error)
        return None


def _refusal(code: CodeName, message: str, reason: str, **details: Any) -> ToolError:
    return ToolError(code, message, reason=reason, may_have_run=False, **details)
