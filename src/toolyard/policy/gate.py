"""The gate: judges each call by the rules, and makes a call that needs an approval wait for it.

A person is asked in this order: by elicitation, then while the call is held, and then by an answer that asks the caller to send the
same call again. It imports no jobs and no HTTP: their functions are passed in.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from toolyard._internal.logfmt import log_exception, log_value
from toolyard.dispatch.admission import is_first
from toolyard.dispatch.call import CLIENT_SHARE, Call, Caller, Handler, JobRun
from toolyard.dispatch.outcome import store_unavailable
from toolyard.model.elicitation import APPROVAL_REQUIRED, ClientRequest
from toolyard.model.envelope import Envelope
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.profile import METATOOLS
from toolyard.model.rule import ASK_BEFORE_DESTROY, Rule
from toolyard.model.spec import Operation, ToolSpec
from toolyard.policy.approvals import BY_CLIENT, Approval, Approvals, Audit, Binding, arguments_hash, binding_of, make_card
from toolyard.policy.client_timeouts import ClientTimeouts
from toolyard.policy.rules import ALLOWED, Candidates, Rules, Verdict, judge
from toolyard.state.store import Store, StoreUnavailableError

__all__ = ["DecisionPoint", "Gate", "Webhook", "make_gate"]

Webhook = Callable[[Approval], Awaitable[tuple[Literal["approve", "deny"], str] | None]]
"""Takes a new approval, and returns the decision and its reason, or None."""
_FORM: Final = {"type": "object", "properties": {"reason": {"type": "string", "title": "Reason", "description": "May be left out."}}}
_MAX_ENTRIES: Final = 10_000
_SHARE: Final = 0.9
"""The share of a client's time that a call is held for; the rest is for the answer."""
_log = logging.getLogger(__name__)


class DecisionPoint(Protocol):
    """Decides about calls that no rule decides about, such as a service."""

    async def __call__(self, call: Call) -> Verdict:
        """Return the verdict; a failure denies."""
        ...


class _Entry(msgspec.Struct, frozen=True):
    """The rules that may apply to a tool in a profile, before the arguments are known."""

    spec: ToolSpec
    candidates: Candidates
    certain: Verdict | None
    """The verdict, if it does not depend on caller and arguments."""
    is_judged: bool
    """Whether its calls must be judged, because they are not all allowed."""


class Gate:
    """The policy of a yard: its rules, and the approvals that they ask for."""

    def __init__(self, approvals: Approvals, limits: Limits, *, operators: Iterable[str] = ()) -> None:
        self.approvals = approvals
        self._limits = limits
        self._operators = frozenset(operators)
        self._asks_before_destroy = False
        self._client_timeouts = ClientTimeouts()
        self.own_store: Store | None = None
        self.rechecks = False
        """Whether middleware may change arguments after they were judged."""
        self.decision_point: DecisionPoint | None = None
        self.webhook: Webhook | None = None
        self.on_wait: Callable[[Approval], None] | None = None
        """Called when a call begins to wait for an approval; for a host whose user can decide about it."""
        self._announcements: set[asyncio.Task[None]] = set()
        self._rules = Rules()
        self._entries: dict[tuple[str, str], _Entry] = {}
        self.allowed: dict[tuple[str, str], ToolSpec] = {}
        """Tools whose calls are all allowed, by profile and name, as far as they were called: looking here costs no function call."""
        self.version = 0
        """Grows whenever the rules change."""

    def use(self, rules: Iterable[Rule], *, asks_before_destroy: bool) -> None:
        """Use these rules from now on, and perhaps ask before tools of the operation `destroy` that no rule decides about."""
        self._rules, self._asks_before_destroy = Rules(rules), asks_before_destroy
        self._entries, self.allowed = {}, {}
        self.version += 1

    def judges(self, call: Call) -> bool:
        """Return whether a call must be judged: False if the rules allow every call of its tool."""
        spec = call.spec
        entry = self._entries.get((call.profile.name, spec.name))
        if entry is None or entry.spec is not spec:
            entry = self._learn(spec, call.profile.name)
        return entry.is_judged

    def explain(self, spec: ToolSpec, profile: str, arguments: Mapping[str, Any], caller: Caller) -> Verdict | None:
        """Return the verdict about a call, or None if a decision point decides."""
        entry = self._learn(spec, profile)
        return entry.certain or judge(entry.candidates, arguments, caller) or self._default(spec)

    def needs_approval(self, spec: ToolSpec, profile: str, caller: Caller, arguments: Mapping[str, Any] | None = None) -> bool | None:
        """Return whether a call needs an approval; None if that depends on what is not known yet."""
        if arguments is None:
            certain = self._learn(spec, profile).certain
            return None if certain is None else certain.decision == "ask"
        verdict = self.explain(spec, profile, arguments, caller)
        return None if verdict is None else verdict.decision == "ask"

    def is_operator(self, caller: Caller) -> bool:
        """Return whether a caller may decide about the calls of others."""
        if caller.identity in self._operators:
            return True
        claims = [entry.removeprefix("claim:").partition("=") for entry in self._operators if entry.startswith("claim:")]
        return any(_has_claim(caller.claims.get(name), value) for name, _, value in claims)

    async def decide(self, approval_id: str, decision: Literal["approve", "deny"], *, caller: Caller, reason: str = "") -> Approval:
        """Approve or deny in the name of an operator, never one's own call.

        Raises:
            ToolError: `permission_denied` if the caller is no operator or asked for the call, else as `Approvals.decide`.
        """
        if not self.is_operator(caller):
            raise ToolError("permission_denied", "Only operators decide about approvals.", reason="no_operator", may_have_run=False)
        approval = await self.approvals.get(approval_id)
        if approval.binding.identity == caller.identity:
            raise ToolError("permission_denied", "Nobody decides about a call of their own.", reason="own_call", may_have_run=False)
        return await self.approvals.decide(approval_id, decision, by=caller.identity, reason=reason)

    async def __call__(self, call: Any) -> Envelope | None:
        """Judge a call: allow it, answer that it waits for approval, or deny it.

        Raises:
            ToolError: `permission_denied` or `approval_denied`, or `overloaded` if the store cannot be used.
        """
        entry = self._learn(call.spec, call.profile.name)
        verdict = entry.certain or judge(entry.candidates, call.arguments, call.caller) or await self._undecided(call)
        if verdict.decision == "deny":
            raise _denied(call, verdict)
        if verdict.decision == "ask":
            return await self._ask(call, verdict)
        if self.rechecks and entry.certain is None:
            call.handler = self._rejudged(call.handler, arguments_hash(call.arguments))
        return None

    async def obtain(self, call: Call, spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
        """Wait for the approval of a call that will be made later from inside this one, if it needs one and none is decided yet.

        Raises:
            ToolError: `permission_denied` or `approval_denied`.
        """
        verdict = self.explain(spec, call.profile.name, arguments, call.caller)
        if verdict is None or verdict.decision == "allow":
            return
        if verdict.decision == "deny":
            raise _denied(call, verdict, spec)
        binding = binding_of(call, spec, arguments)
        if await self.approvals.find_grant(binding) is None:
            approval = await self._wait(call, spec, arguments, verdict=verdict, binding=binding)
            if approval.status in {"denied", "expired"}:
                raise _refused(approval)

    async def _ask(self, call: Any, verdict: Verdict) -> Envelope | None:
        binding = binding_of(call, call.spec, call.arguments)
        grant = await self.approvals.find_grant(binding)
        if grant is not None:
            _log.info("call_granted tool=%s grant=%s id=%s", call.spec.name, grant.id, call.id)
            call.handler = self._approved(call.handler, None, binding.arguments) if grant.arguments else call.handler
            return None
        approval = await self._wait(call, call.spec, call.arguments, verdict=verdict, binding=binding)
        while approval.status == "spent":  # by an equal call that waited for it, too
            approval = await self._wait(call, call.spec, call.arguments, verdict=verdict, binding=binding)
        if approval.status == "approved":
            call.handler = self._approved(call.handler, approval, binding.arguments)
            return None
        if approval.status == "pending":
            return _required(call, approval)
        raise _refused(approval)

    async def _wait(self, call: Call, spec: ToolSpec, arguments: object, *, verdict: Verdict, binding: Binding) -> Approval:
        """Return the approval of a call, after a person had the time to decide."""
        by = "anyone" if verdict.rule is None else verdict.rule.by
        ttl, has_permitted = self._limits.approval_ttl_s, call.channel.has_permitted
        approval, is_new = await self.approvals.ask(
            binding,
            lambda: make_card(call, spec=spec, arguments=arguments, why=verdict.why, by=by),
            ttl=ttl,
            call_id=call.id,
            replaces_denial=by == "anyone" and spec is call.spec and has_permitted is not None and has_permitted(call),
        )
        if is_new and self.webhook is not None:
            self._announce(approval, self.webhook)
        if approval.status == "pending" and by == "anyone" and call.can_ask():
            approval = await self._elicit(call, approval)
        if approval.status == "pending":
            if self.on_wait is not None:
                self.on_wait(approval)
            approval = await call.funnel.wait_outside(call, self.approvals.wait(approval, self._hold_s(call)))
        job = _job_of(call) if approval.status == "pending" else None
        if job is not None:
            await job.park(approval.id)
            approval = await call.funnel.wait_outside(call, self.approvals.wait(approval, ttl))
        return approval

    def _hold_s(self, call: Call) -> float:
        """Return how long a call is held: not as long as its client waits, where that is known."""
        root: Any = call  # a run, as every call is
        while root.parent is not None:
            root = root.parent
        limit = self._limits.client_timeout * CLIENT_SHARE or self._client_timeouts[root.caller.client]
        known = min(limit or inf, root.options.seconds or inf)
        left = known - (time.perf_counter() - root.started)
        return min(self._limits.approval_hold_s, max(left * _SHARE, 0.0))

    async def _elicit(self, call: Call, approval: Approval) -> Approval:
        """Ask the person at the caller's client; without a yes or no, others may decide."""
        key = f"approval-{approval.id}"  # so that an answer to another question is none to this one
        request = msgspec.structs.replace(ClientRequest.person(approval.card.text(), _FORM), approval_id=approval.id)
        try:
            results = await call.ask_all({key: request}, declared=is_first(call))
        except Exception as error:  # noqa: BLE001 - a host's own way to ask may raise anything; others may decide then
            code = error.code if isinstance(error, ToolError) else type(error).__name__
            _log.info("approval_not_elicited id=%s code=%s", approval.id, code)
            return await self.approvals.get(approval.id)
        answer: object = results.get(key)
        action = cast("dict[str, Any]", answer).get("action") if isinstance(answer, dict) else None
        if action in {"accept", "decline"}:
            content = cast("dict[str, Any]", answer).get("content")
            reason = str(cast("dict[str, Any]", content).get("reason") or "")[:500] if isinstance(content, dict) else ""
            decision: Literal["approve", "deny"] = "approve" if action == "accept" else "deny"
            try:
                return await self.approvals.decide(approval.id, decision, by=f"{BY_CLIENT}{call.caller.identity}", reason=reason)
            except ToolError:  # somebody else was faster
                pass
        return await self.approvals.get(approval.id)

    def _announce(self, approval: Approval, webhook: Webhook) -> None:
        """Tell the webhook of a new approval; its answer may be the decision."""

        async def announce() -> None:
            answer = await webhook(approval)
            if answer is not None:
                with suppress(ToolError):  # somebody else was faster
                    await self.approvals.decide(approval.id, answer[0], by="webhook", reason=answer[1])

        # A new context, because nothing of the call may be visible to it.
        task = asyncio.get_running_loop().create_task(announce(), context=Context())
        self._announcements.add(task)
        task.add_done_callback(_announced)
        task.add_done_callback(self._announcements.discard)

    async def close(self) -> None:
        """Stop telling the webhook, and close a store that only approvals use."""
        if self.own_store is not None:
            await self.own_store.close()
        for task in self._announcements:
            task.cancel()
        await asyncio.gather(*self._announcements, return_exceptions=True)

    def _approved(self, handler: Handler, approval: Approval | None, arguments: str) -> Handler:
        """Return a handler that uses the approval up and compares the arguments just before, because middleware runs in between."""

        async def run(call: Call) -> object:
            if arguments_hash(call.arguments) != arguments:
                message = "The arguments were changed after the approval."
                raise ToolError("approval_denied", message, reason="arguments_changed", may_have_run=False)
            try:
                is_spent = approval is None or await self.approvals.spend(approval, arguments, call_id=call.id)
            except StoreUnavailableError:
                raise store_unavailable(may_have_run=False) from None
            if not is_spent:
                message = "The approval is used up or has expired."
                hint = "Call again, which asks anew, unless it was denied."
                raise ToolError("approval_denied", message, reason="already_used", hint=hint, may_have_run=False)
            return await handler(call)

        return run

    def _rejudged(self, handler: Handler, arguments: str) -> Handler:
        """Return a handler that refuses arguments that differ from those that were judged."""

        async def run(call: Call) -> object:
            if arguments_hash(call.arguments) != arguments:
                verdict = self.explain(call.spec, call.profile.name, call.arguments, call.caller)
                if verdict is None or verdict.decision != "allow":
                    message = "The arguments were changed after a rule allowed others."
                    raise ToolError("approval_denied", message, reason="arguments_changed", may_have_run=False)
            return await handler(call)

        return run

    def _learn(self, spec: ToolSpec, profile: str) -> _Entry:
        """Return what is known of a tool in a profile, remembered until the tool or the rules change."""
        key = (profile, spec.name)
        entry = self._entries.get(key)
        if entry is not None and entry.spec is spec:
            return entry
        candidates = self._rules.of(spec, profile)
        certain = (candidates[0].verdict if candidates[0].is_certain else None) if candidates else self._default(spec)
        if len(self._entries) >= _MAX_ENTRIES:
            self._entries.clear()
            self.allowed.clear()
        entry = self._entries[key] = _Entry(spec, candidates, certain, certain is None or certain.decision != "allow")
        if not entry.is_judged:
            self.allowed[key] = spec
        return entry

    def _default(self, spec: ToolSpec) -> Verdict | None:
        """Return the verdict where no rule matches, or None if the decision point gives it."""
        if spec.source == METATOOLS:
            return ALLOWED
        if self.decision_point is not None:
            return None
        return _DESTROY if self._asks_before_destroy and spec.operation is Operation.DESTROY else ALLOWED

    async def _undecided(self, call: Call) -> Verdict:
        verdict = self._default(call.spec)
        if verdict is not None:
            return verdict
        assert self.decision_point is not None  # noqa: S101 - else there is a default
        return await self.decision_point(call)


def make_gate(store: Store, limits: Limits, options: Mapping[str, Any], *, audit: Audit | None, rechecks: bool) -> Gate:
    """Return the gate of a yard with what its settings say: operators, webhook, decision point and a store for approvals alone."""
    gate = Gate(Approvals(store, audit=audit), limits, operators=options.get("operators", ()))
    gate.rechecks, gate.webhook, gate.decision_point = rechecks, options.get("webhook"), options.get("decision_point")
    gate.own_store = options.get("approval_store")
    return gate


_DESTROY: Final = Verdict("ask", ASK_BEFORE_DESTROY, ASK_BEFORE_DESTROY.reason)


def _announced(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log_exception(_log, "webhook_failed", error=task.exception())


def _job_of(call: Call) -> JobRun | None:
    """Return the job that a call runs in: only such a call can wait for longer than its client."""
    while call.parent is not None:
        call = call.parent
    return call.options.job


def _has_claim(claim: object, value: str) -> bool:
    return claim == value or (isinstance(claim, list) and value in cast("list[object]", claim))


def _denied(call: Call, verdict: Verdict, spec: ToolSpec | None = None) -> ToolError:
    """Log that a rule denies a call, and return the failure."""
    name = (spec or call.spec).name
    _log.warning("call_denied tool=%s rule=%d identity=%s id=%s", name, verdict.number, log_value(call.caller.identity), call.id)
    message = f"'{name}' is denied. {verdict.why}"
    return ToolError("permission_denied", message, reason="denied_by_rule", may_have_run=False, rule=verdict.number)


def _required(call: Call, approval: Approval) -> Envelope:
    """Return the answer of a call that goes on waiting for a decision."""
    _log.info("approval_required id=%s tool=%s call=%s", approval.id, call.spec.name, call.id)
    if call.spec.kind != "tool":  # a resource or prompt has no other answer than its contents
        message = f"'{call.spec.name}' needs the approval '{approval.id}' of a person, which is not given yet."
        raise ToolError("approval_denied", message, reason=APPROVAL_REQUIRED, hint=_AGAIN, may_have_run=False, approval_id=approval.id)
    return Envelope.ok(
        {
            "status": APPROVAL_REQUIRED,
            "approval_id": approval.id,
            "tool_id": call.spec.name,
            "why": approval.card.why,
            "expires_at": round(approval.expires_at, 3),
            "what_to_do": _AGAIN,
        }
    )


_AGAIN: Final = "Tell the person that the call waits for approval. Once it is given, make the same call again; the id is not needed."


def _refused(approval: Approval) -> ToolError:
    """Return the failure of a call whose approval was denied or has expired."""
    if approval.status == "expired":
        hint = "Call again, which asks anew, if somebody is there to decide."
        message = f"Nobody approved '{approval.card.tool}' in time."
        return ToolError("approval_denied", message, reason="expired", hint=hint, may_have_run=False, approval_id=approval.id)
    said = f" {approval.reason}" if approval.reason else ""
    message = f"A person denied '{approval.card.tool}'.{said}"
    return ToolError("approval_denied", message, reason="denied", may_have_run=False, approval_id=approval.id)
