"""The gate: judges each call by the rules, and makes a call that needs an approval wait for the decision of a person.

A person is asked in this order: by elicitation, then while the call is held, and then by an answer that asks the caller
to send the same call again. It imports no jobs and no HTTP: a run that can outlive its request goes on by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, Literal, cast

import msgspec

from callyard._internal.converted import as_object
from callyard._internal.logfmt import log_exception, log_value
from callyard.dispatch.arguments import BoundArguments, as_json, same_json
from callyard.dispatch.call import Call, Caller, InvokeOptions
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.run import Precheck, Run, is_first, run_of
from callyard.dispatch.tool import Tool
from callyard.model.elicitation import APPROVAL_REQUIRED, ClientRequest
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS
from callyard.model.spec import Operation, ToolSpec
from callyard.policy.approvals import (
    BY_CLIENT,
    Approval,
    Approvals,
    Audit,
    Authority,
    Binding,
    binding_of,
)
from callyard.policy.cards import Views, make_card
from callyard.policy.rules import ALLOWED, Candidates, Rules, Verdict, first_for, judge
from callyard.policy.settings import ASK_BEFORE_DESTROY, Rule
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["ApprovalRequests", "DecisionPoint", "Gate", "Webhook", "views_of"]

_MAX_ENTRIES: Final = 10_000
Webhook = Callable[[Approval], Awaitable[tuple[Literal["approve", "deny"], str] | None]]
"""Takes a new approval, and returns the decision and its reason, or None."""
_FORM: Final = {
    "type": "object",
    "properties": {"reason": {"type": "string", "title": "Reason", "description": "May be left out."}},
}
_FORM_CHARACTERS: Final = 4000
"""The longest card that a client's form shows whole; console and command line decide about others."""
_AGAIN: Final = (
    "Tell the person that the call waits for approval. Once it is given, make the same call again; "
    "the id is not needed."
)
_log = logging.getLogger(__name__)


DecisionPoint = Callable[[Call, Views], Awaitable[Verdict]]
"""Decides about calls that no rule decides about, such as a service, by their arguments; a failure denies."""


class _Entry(msgspec.Struct, frozen=True):
    """The rules that may apply to a tool in a profile, before the arguments are known."""

    spec: ToolSpec
    candidates: Candidates
    certain: Verdict | None
    """The verdict, if it does not depend on caller and arguments."""


class Gate:
    """The policy of a yard: its rules, and the approvals that they ask for."""

    def __init__(
        self, store: Store, limits: Limits, options: Mapping[str, Any], *, audit: Audit | None, rechecks: bool
    ) -> None:
        """Make a gate; `options` are those of `YardOverrides`: operators, webhook, decision point, approval store."""
        self._operators = frozenset(cast("Iterable[str]", options.get("operators", ())))
        self._decision_point: DecisionPoint | None = options.get("decision_point")
        self._own_store: Store | None = options.get("approval_store")
        self._rechecks = rechecks  # because middleware may change arguments after they were judged
        self._always_asks = False
        self._rules = Rules()
        self._entries: dict[tuple[str, str, bool], _Entry] = {}
        self.approvals = Approvals(store if self._own_store is None else self._own_store, audit=audit)
        self.requests = ApprovalRequests(self.approvals, limits, webhook=options.get("webhook"))

    def use(self, rules: Iterable[Rule], *, always_asks: bool) -> None:
        """Use these rules from now on; where none decides, perhaps ask before `destroy` whoever calls."""
        self._rules, self._always_asks = Rules(rules), always_asks
        self._entries = {}

    @property
    def rules(self) -> Sequence[Rule]:
        """Return the rules in the order in which they are tried."""
        return self._rules.listed

    def judges(self, run: Run) -> bool:
        """Return whether a call must be judged: False if the rules allow every call of its tool."""
        certain = self._learn(run.call.spec, run.call.profile.name, asks=run.asks_before_destroy).certain
        return certain is None or certain.decision != "allow"

    def explain(self, spec: ToolSpec, profile: str, views: Views, caller: Caller, *, asks: bool) -> Verdict | None:
        """Return the verdict about a call, or None if a decision point decides.

        `asks` says whether a person is asked before `destroy` where no rule decides.
        """
        entry = self._learn(spec, profile, asks=asks)
        return entry.certain or judge(entry.candidates, views, caller) or self._default(spec, asks=asks)

    def needs_approval(
        self,
        spec: ToolSpec,
        profile: str,
        caller: Caller,
        *,
        asks: bool,
        bind: Callable[[], BoundArguments] | None = None,
    ) -> bool | None:
        """Return whether a call needs an approval; None if that depends on what is not known yet."""
        verdict = self._learn(spec, profile, asks=asks).certain
        if verdict is None and bind is not None:
            verdict = self.explain(spec, profile, views_of(bind()), caller, asks=asks)
        return None if verdict is None else verdict.decision == "ask"

    def check_completion(self, call: Call) -> None:
        """Refuse to complete an argument of what a rule may deny or ask about; nobody is asked about a keystroke.

        Raises:
            ToolError: `permission_denied`.
        """
        run = run_of(call)
        asks = run.asks_before_destroy
        entry = self._learn(call.spec, call.profile.name, asks=asks)
        verdict = entry.certain or first_for(entry.candidates, call.caller) or self._default(call.spec, asks=asks)
        if verdict is None or verdict.decision != "allow":
            message = f"The arguments of '{call.spec.name}' are not completed, because its calls need a decision."
            raise _forbidden(message, "completion_refused")

    def is_operator(self, caller: Caller) -> bool:
        """Return whether a caller may decide about the calls of others."""
        if caller.identity in self._operators:
            return True
        claims = [
            entry.removeprefix("claim:").partition("=") for entry in self._operators if entry.startswith("claim:")
        ]
        return any(_has_claim(caller.claims.get(name), value) for name, _, value in claims)

    async def decide(
        self, approval_id: str, decision: Literal["approve", "deny"], *, caller: Caller, reason: str = ""
    ) -> Approval:
        """Approve or deny in the name of an operator, never one's own call.

        Raises:
            ToolError: `permission_denied` if the caller is no operator or asked for the call, else as
            `Approvals.decide`.
        """
        if not self.is_operator(caller):
            raise _forbidden("Only operators decide about approvals.", "no_operator")
        approval = await self.approvals.get(approval_id)
        if approval.binding.identity == caller.identity:
            raise _forbidden("Nobody decides about a call of their own.", "own_call")
        return await self.approvals.decide(approval_id, decision, by=caller.identity, reason=reason)

    async def __call__(self, call: Call) -> Envelope | Precheck | None:
        """Judge a call: allow it, answer that it waits for approval, or deny it.

        What was judged is checked once more just before the handler, because middleware runs in between.

        Raises:
            ToolError: `permission_denied` or `approval_denied`, or `overloaded` if the store cannot be used.
        """
        run = run_of(call)
        certain = self._learn(run.call.spec, run.call.profile.name, asks=run.asks_before_destroy).certain
        if certain is not None and certain.decision == "deny":
            raise _denied(call, certain)
        bound = run.bind()
        verdict = certain or self._verdict(run, call.spec, views_of(bound, call.arguments))
        if verdict is None:
            assert self._decision_point is not None  # noqa: S101 - else there is a default
            verdict = await self._decision_point(call, views_of(bound, call.arguments))
        if verdict.decision == "deny":
            raise _denied(call, verdict)
        if verdict.decision == "ask":
            return await self.requests.ask(run, verdict)
        return self._rejudge(run) if self._rechecks else None

    async def obtain(self, call: Call, tool: Tool, options: InvokeOptions) -> InvokeOptions:
        """Wait for the approval of a call that will be made later from inside this one, if it needs one.

        Returns:
            The options to make the call with.

        Raises:
            ToolError: `permission_denied` or `approval_denied`.
        """
        run = run_of(call)
        certain = self._learn(tool.spec, call.profile.name, asks=run.asks_before_destroy).certain
        if certain is not None and certain.decision == "allow":
            return options
        bound = tool.bind(options.text)
        verdict = certain or self._verdict(run, tool.spec, views_of(bound))
        if verdict is not None and verdict.decision == "deny":
            raise _denied(call, verdict, tool.spec)
        approval = None
        if verdict is not None and verdict.decision == "ask":
            bound, approval = await self.requests.obtain(call, tool, bound, verdict)
        return msgspec.structs.replace(options, bound=bound, approval=approval)

    async def close(self) -> None:
        """Stop telling the webhook, and close a store that only approvals use."""
        try:
            await self.requests.close()
        finally:
            if self._own_store is not None:
                await self._own_store.close()

    def _rejudge(self, run: Run) -> Precheck:
        """Return a check that refuses arguments that differ from those that were judged, unless they are allowed too.

        The others are parsed anew, because middleware can change objects without changing their JSON.
        """
        judged = as_json(run.call.arguments)

        async def check(call: Call) -> None:
            current = as_json(call.arguments)
            if judged is None or current == judged:
                call.arguments = run.bind().arguments()
                return
            verdict = self._verdict(run, call.spec, [current])
            if current is None or verdict is None or verdict.decision != "allow":
                raise _approval_denied("The arguments were changed after a rule allowed others.", "arguments_changed")

        return check

    def _verdict(self, run: Run, spec: ToolSpec, views: Views) -> Verdict | None:
        """Return the verdict about a call, or one that will be made inside it."""
        call = run.call
        return self.explain(spec, call.profile.name, views, call.caller, asks=run.asks_before_destroy)

    def _learn(self, spec: ToolSpec, profile: str, *, asks: bool) -> _Entry:
        """Return what is known of a tool in a profile, remembered until the tool or the rules change."""
        entry = self._entries.get((profile, spec.name, asks))
        if entry is None or entry.spec is not spec:
            candidates = self._rules.of(spec, profile, may_destroy=self.asks_what_it_does(spec, asks=asks))
            certain = self._default(spec, asks=asks)
            if candidates:
                certain = candidates[0].verdict if candidates[0].is_certain else None
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            entry = self._entries[profile, spec.name, asks] = _Entry(spec, candidates, certain)
        return entry

    def asks_what_it_does(self, spec: ToolSpec, *, asks: bool) -> bool:
        """Return whether calls of a tool wait for a person because nobody has said what it does."""
        return spec.unsettled == "ask" or (spec.unsettled == "default" and (asks or self._always_asks))

    def _default(self, spec: ToolSpec, *, asks: bool) -> Verdict | None:
        """Return the verdict where no rule matches, or None if the decision point gives it."""
        if spec.source == METATOOLS:
            return ALLOWED
        if self._decision_point is not None:
            return None
        if self.asks_what_it_does(spec, asks=asks):
            return _UNSETTLED
        return _DESTROY if (asks or self._always_asks) and spec.operation is Operation.DESTROY else ALLOWED


def views_of(bound: BoundArguments, arguments: Mapping[str, Any] | None = None) -> Views:
    """Return arguments as JSON in every way in which rules look at them and people see them.

    Raises:
        ToolError: `permission_denied` if the text does not fit.
    """
    if bound.inner is not None:  # which says more than what is passed on
        arguments = msgspec.structs.replace(bound, parse=bound.inner).arguments()
    checked = as_json(bound.arguments() if arguments is None else arguments)
    return [bound.value] if checked is None or same_json(checked, bound.value) else [bound.value, checked]


_DESTROY: Final = Verdict("ask", ASK_BEFORE_DESTROY, ASK_BEFORE_DESTROY.reason)
_UNSETTLED: Final = Verdict("ask", why="Its server does not say what kind of thing the tool does, and nobody else has.")


def _has_claim(claim: object, value: str) -> bool:
    return claim == value or (isinstance(claim, list) and value in cast("list[object]", claim))


def _denied(call: Call, verdict: Verdict, spec: ToolSpec | None = None) -> ToolError:
    """Log that a rule denies a call, and return the failure."""
    name = (spec or call.spec).name
    _log.warning(
        "call_denied tool=%s rule=%d identity=%s id=%s", name, verdict.number, log_value(call.caller.identity), call.id
    )
    return _forbidden(f"'{name}' is denied. {verdict.why}", "denied_by_rule", rule=verdict.number)


def _forbidden(message: str, reason: str, **details: Any) -> ToolError:
    return ToolError("permission_denied", message, reason=reason, may_have_run=False, **details)


class ApprovalRequests:
    """Asks people about the calls of a yard."""

    def __init__(self, approvals: Approvals, limits: Limits, *, webhook: Webhook | None = None) -> None:
        self._approvals = approvals
        self._limits = limits
        self._webhook = webhook
        self.on_wait: Callable[[Approval], None] | None = None
        """Called when a call begins to wait for an approval; for a host whose user can decide about it."""
        self._announcements: set[asyncio.Task[None]] = set()

    async def ask(self, run: Run, verdict: Verdict) -> Envelope | Precheck | None:
        """Get the approval of a call; return the check that uses it up, or an answer if the call goes on waiting.

        Raises:
            ToolError: `approval_denied`.
        """
        call, tool = run.call, run.tool
        assert tool is not None  # noqa: S101 - it is found before it is judged
        obtained = run.options.approval
        if isinstance(obtained, Approval) and run.bound is run.options.bound and obtained.card.by == _by_of(verdict):
            obtained = await self._approvals.get(obtained.id)
            if obtained.status == "approved":
                return self._use_up(run, obtained)
        wanted = _wanted(call, tool, run.bind(), verdict)
        grant = await self._approvals.find_grant(wanted.binding)
        if grant is not None:
            _log.info("call_granted tool=%s grant=%s id=%s", call.spec.name, grant.id, call.id)
            return self._use_up(run, None) if grant.arguments else None
        approval = None
        while approval is None or approval.status == "spent":  # by an equal call that waited for it, too
            approval = await self._wait(call, wanted)
        if approval.status == "approved":
            if approval.text:
                run.use(wanted.approved(approval))
            return self._use_up(run, approval)
        if approval.status == "pending":
            return _required(call, approval)
        raise _refused(approval)

    async def obtain(
        self, call: Call, tool: Tool, bound: BoundArguments, verdict: Verdict
    ) -> tuple[BoundArguments, Approval | None]:
        """Wait for the approval of a call that will be made later from inside this one, unless one is decided already.

        Returns:
            The arguments that were approved, to make the call with, and the approval.

        Raises:
            ToolError: `approval_denied`.
        """
        wanted = _wanted(call, tool, bound, verdict)
        if await self._approvals.find_grant(wanted.binding) is not None:
            return bound, None
        approval = await self._wait(call, wanted)
        if approval.status in {"denied", "expired"}:
            raise _refused(approval)
        return wanted.approved(approval), approval

    async def close(self) -> None:
        """Stop telling the webhook."""
        for task in self._announcements:
            task.cancel()
        await asyncio.gather(*self._announcements, return_exceptions=True)

    async def _wait(self, call: Call, wanted: "_Wanted") -> Approval:
        """Return the approval of a call, after a person had the time to decide."""
        tool, bound, by = wanted.tool, wanted.bound, wanted.binding.by
        ttl, has_permitted, run = self._limits.approval_ttl_s, call.channel.has_permitted, run_of(call)
        is_own = by == "anyone" and tool.spec is call.spec
        approval, is_new = await self._approvals.ask(
            wanted.binding,
            lambda key: make_card(call, tool=tool, views=views_of(bound), why=wanted.why, by=by, mask_key=key),
            ttl=ttl,
            call_id=call.id,
            text=bound.text.decode() if bound.generated else "",
            replaces_denial=is_own and has_permitted is not None and has_permitted(call),
        )
        if is_new and self._webhook is not None:
            # A new context, because nothing of the call may be visible to it.
            task = asyncio.create_task(self._announce(approval, self._webhook), context=Context())
            self._announcements.add(task)
            task.add_done_callback(self._announcements.discard)
        if approval.status == "pending" and by == "anyone" and call.can_ask():
            approval = await self._elicit(call, approval)
        if approval.status == "pending":
            if self.on_wait is not None:
                self.on_wait(approval)
            approval = await self._hold(run, approval, run.funnel.timeouts.hold(run))
        survivor = run.survivor() if approval.status == "pending" else None
        if survivor is not None:
            await survivor.go_on_as_job(approval.id)
            approval = await self._hold(run, approval, ttl)
        return approval

    def _hold(self, run: Run, approval: Approval, seconds: float) -> Awaitable[Approval]:
        """Wait for the decision for so many seconds."""
        question = run.question("approval", by=approval.card.by, expires_at=approval.expires_at)
        return run.wait_for(question, lambda: self._approvals.wait(approval, seconds))

    async def _elicit(self, call: Call, approval: Approval) -> Approval:
        """Ask the person at the caller's client; without a yes or no, others may decide."""
        text = approval.card.text()
        if len(text) > _FORM_CHARACTERS:
            return approval
        key = f"approval-{approval.id}"  # so that an answer to another question is none to this one
        request = msgspec.structs.replace(ClientRequest.person(text, _FORM), approval_id=approval.id)
        try:
            results = await call.ask_all({key: request}, declared=is_first(run_of(call)))
        except Exception as error:  # noqa: BLE001 - a host's own way to ask may raise anything; others may decide then
            code = error.code if isinstance(error, ToolError) else type(error).__name__
            _log.info("approval_not_elicited id=%s code=%s", approval.id, code)
            return await self._approvals.get(approval.id)
        answer = as_object(results.get(key))
        if answer.get("action") in ("accept", "decline"):
            decision = "approve" if answer["action"] == "accept" else "deny"
            reason = str(as_object(answer.get("content")).get("reason") or "")[:500]
            by = f"{BY_CLIENT}{call.caller.identity}"
            with suppress(ToolError):  # somebody else was faster
                return await self._approvals.decide(approval.id, decision, by=by, reason=reason)
        return await self._approvals.get(approval.id)

    async def _announce(self, approval: Approval, webhook: Webhook) -> None:
        """Tell the webhook of a new approval; its answer may be the decision."""
        try:
            answer = await webhook(approval)
            if answer is not None:
                with suppress(ToolError):  # somebody else was faster
                    await self._approvals.decide(approval.id, answer[0], by="webhook", reason=answer[1])
        except Exception as error:  # noqa: BLE001 - a webhook may raise anything
            log_exception(_log, "webhook_failed", error=error)

    def _use_up(self, run: Run, approval: Approval | None) -> Precheck:
        """Return a check that compares the arguments with those that were approved, and uses the approval up.

        The handler's arguments are parsed anew, because middleware can change objects without changing their JSON.
        """
        judged = as_json(run.call.arguments)

        async def check(call: Call) -> None:
            if judged is not None and as_json(call.arguments) != judged:
                raise _approval_denied("The arguments were changed after the approval.", "arguments_changed")
            try:
                is_spent = approval is None or await self._approvals.spend(approval, call_id=call.id)
            except StoreUnavailableError as error:
                raise store_unavailable(error, may_have_run=False) from None
            if not is_spent:
                hint = "Call again, which asks anew, unless it was denied."
                raise _approval_denied("The approval is used up or has expired.", "already_used", hint=hint)
            call.arguments = run.bind().arguments()

        return check


class _Wanted(msgspec.Struct, frozen=True):
    """A call that needs an approval."""

    tool: Tool
    bound: BoundArguments
    binding: Binding
    why: str

    def approved(self, approval: Approval) -> BoundArguments:
        """Return the arguments that were approved: default factories may have made others for an equal call."""
        if not approval.text:
            return self.bound
        return msgspec.structs.replace(self.tool.bind(approval.text.encode()), common=self.bound.common)


def _wanted(call: Call, tool: Tool, bound: BoundArguments, verdict: Verdict) -> _Wanted:
    return _Wanted(tool, bound, binding_of(call, tool, bound, _by_of(verdict)), verdict.why)


def _by_of(verdict: Verdict) -> Authority:
    """Return who may decide about a call."""
    return "anyone" if verdict.rule is None else verdict.rule.by


def _required(call: Call, approval: Approval) -> Envelope:
    """Return the answer of a call that goes on waiting for a decision."""
    _log.info("approval_required id=%s tool=%s call=%s", approval.id, call.spec.name, call.id)
    if call.spec.kind != "tool":  # a resource or prompt has no other answer than its contents
        message = f"'{call.spec.name}' needs the approval '{approval.id}' of a person, which is not given yet."
        raise _approval_denied(message, APPROVAL_REQUIRED, hint=_AGAIN, approval_id=approval.id)
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


def _refused(approval: Approval) -> ToolError:
    """Return the failure of a call whose approval was denied or has expired."""
    if approval.status == "expired":
        hint = "Call again, which asks anew, if somebody is there to decide."
        message = f"Nobody approved '{approval.card.tool}' in time."
        return _approval_denied(message, "expired", hint=hint, approval_id=approval.id)
    said = f" {approval.reason}" if approval.reason else ""
    return _approval_denied(f"A person denied '{approval.card.tool}'.{said}", "denied", approval_id=approval.id)


def _approval_denied(message: str, reason: str, **details: Any) -> ToolError:
    return ToolError("approval_denied", message, reason=reason, may_have_run=False, **details)
