"""The gate: judges each call by the rules. What it does not allow is denied, or asked about: see `approval_requests`."""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import msgspec

from callyard._internal.logfmt import log_value
from callyard.dispatch.call import Call, Caller, Handler
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS
from callyard.model.rule import ASK_BEFORE_DESTROY, Rule
from callyard.model.spec import Operation, ToolSpec
from callyard.policy.rules import ALLOWED, Candidates, Rules, Verdict, judge
from callyard.state.store import Store

if TYPE_CHECKING:
    from callyard.policy.approval_requests import ApprovalRequests  # most servers ask nobody before the first call, and start sooner
    from callyard.policy.approvals import Approval, Approvals, Audit

__all__ = ["DecisionPoint", "Gate"]

_MAX_ENTRIES: Final = 10_000
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

    def __init__(self, store: Store, limits: Limits, options: Mapping[str, Any], *, audit: "Audit | None", rechecks: bool) -> None:
        """Make a gate; `options` are those of `YardOverrides`: operators, webhook, decision point and a store for approvals alone."""
        self._store = store
        self._limits = limits
        self._audit = audit
        self._operators = frozenset(cast("Iterable[str]", options.get("operators", ())))
        self._webhook = options.get("webhook")
        self._decision_point: DecisionPoint | None = options.get("decision_point")
        self._own_store: Store | None = options.get("approval_store")
        self._rechecks = rechecks  # because middleware may change arguments after they were judged
        self._asks_before_destroy = False
        self._approvals: Approvals | None = None
        self._requests: ApprovalRequests | None = None
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

    @property
    def approvals(self) -> "Approvals":
        """Return the approvals of the yard."""
        if self._approvals is None:
            from callyard.policy.approvals import Approvals  # noqa: PLC0415 - most servers ask nobody, and start sooner without

            self._approvals = Approvals(self._store if self._own_store is None else self._own_store, audit=self._audit)
        return self._approvals

    @property
    def requests(self) -> "ApprovalRequests":
        """Return the approval requests of the yard."""
        if self._requests is None:
            from callyard.policy.approval_requests import ApprovalRequests  # noqa: PLC0415 - most servers ask nobody, and start sooner without

            self._requests = ApprovalRequests(self.approvals, self._limits, webhook=self._webhook)
        return self._requests

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

    async def decide(self, approval_id: str, decision: Literal["approve", "deny"], *, caller: Caller, reason: str = "") -> "Approval":
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
            return await self.requests.ask(call, verdict)
        if self._rechecks and entry.certain is None:
            call.handler = self._rejudged(call)
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
        await self.requests.obtain(call, spec, arguments, verdict)

    async def close(self) -> None:
        """Stop telling the webhook, and close a store that only approvals use."""
        try:
            if self._requests is not None:
                await self._requests.close()
        finally:
            if self._own_store is not None:
                await self._own_store.close()

    def _rejudged(self, call: Any) -> Handler:
        """Return the handler of a call, which refuses arguments that differ from those that were judged."""
        from callyard.policy.approvals import arguments_hash  # noqa: PLC0415 - only a yard with middleware needs it

        handler, arguments = call.handler, arguments_hash(call.arguments)

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
        if self._decision_point is not None:
            return None
        return _DESTROY if self._asks_before_destroy and spec.operation is Operation.DESTROY else ALLOWED

    async def _undecided(self, call: Call) -> Verdict:
        verdict = self._default(call.spec)
        if verdict is not None:
            return verdict
        assert self._decision_point is not None  # noqa: S101 - else there is a default
        return await self._decision_point(call)


_DESTROY: Final = Verdict("ask", ASK_BEFORE_DESTROY, ASK_BEFORE_DESTROY.reason)


def _has_claim(claim: object, value: str) -> bool:
    return claim == value or (isinstance(claim, list) and value in cast("list[object]", claim))


def _denied(call: Call, verdict: Verdict, spec: ToolSpec | None = None) -> ToolError:
    """Log that a rule denies a call, and return the failure."""
    name = (spec or call.spec).name
    _log.warning("call_denied tool=%s rule=%d identity=%s id=%s", name, verdict.number, log_value(call.caller.identity), call.id)
    message = f"'{name}' is denied. {verdict.why}"
    return ToolError("permission_denied", message, reason="denied_by_rule", may_have_run=False, rule=verdict.number)
