"""Approval requests: makes a call that needs an approval wait for the decision of a person.

A person is asked in this order: by elicitation, then while the call is held, and then by an answer that asks the caller to send the
same call again. It imports no jobs and no HTTP: their functions are passed in. It is loaded with the first call that needs an approval.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, Final, Literal, cast

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.admission import is_first
from callyard.dispatch.call import CLIENT_SHARE, Call, Handler, JobRun
from callyard.dispatch.outcome import store_unavailable
from callyard.model.elicitation import APPROVAL_REQUIRED, ClientRequest
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.spec import ToolSpec
from callyard.policy.approvals import BY_CLIENT, Approval, Approvals, Binding, arguments_hash, binding_of, make_card
from callyard.policy.client_timeouts import ClientTimeouts
from callyard.policy.rules import Verdict
from callyard.state.store import StoreUnavailableError

__all__ = ["ApprovalRequests", "Webhook"]

Webhook = Callable[[Approval], Awaitable[tuple[Literal["approve", "deny"], str] | None]]
"""Takes a new approval, and returns the decision and its reason, or None."""
_FORM: Final = {"type": "object", "properties": {"reason": {"type": "string", "title": "Reason", "description": "May be left out."}}}
_SHARE: Final = 0.9
"""The share of a client's time that a call is held for; the rest is for the answer."""
_AGAIN: Final = "Tell the person that the call waits for approval. Once it is given, make the same call again; the id is not needed."
_log = logging.getLogger(__name__)


class ApprovalRequests:
    """Asks people about the calls of a yard."""

    def __init__(self, approvals: Approvals, limits: Limits, *, webhook: Webhook | None = None) -> None:
        self._approvals = approvals
        self._limits = limits
        self._webhook = webhook
        self._client_timeouts = ClientTimeouts()
        self.on_wait: Callable[[Approval], None] | None = None
        """Called when a call begins to wait for an approval; for a host whose user can decide about it."""
        self._announcements: set[asyncio.Task[None]] = set()

    async def ask(self, call: Any, verdict: Verdict) -> Envelope | None:
        """Get the approval of a call, whose handler then uses it up; return an answer if the call goes on waiting.

        Raises:
            ToolError: `approval_denied`.
        """
        binding = binding_of(call, call.spec, call.arguments)
        grant = await self._approvals.find_grant(binding)
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

    async def obtain(self, call: Call, spec: ToolSpec, arguments: Mapping[str, Any], verdict: Verdict) -> None:
        """Wait for the approval of a call that will be made later from inside this one, unless one is decided already.

        Raises:
            ToolError: `approval_denied`.
        """
        binding = binding_of(call, spec, arguments)
        if await self._approvals.find_grant(binding) is None:
            approval = await self._wait(call, spec, arguments, verdict=verdict, binding=binding)
            if approval.status in {"denied", "expired"}:
                raise _refused(approval)

    async def close(self) -> None:
        """Stop telling the webhook."""
        for task in self._announcements:
            task.cancel()
        await asyncio.gather(*self._announcements, return_exceptions=True)

    async def _wait(self, call: Call, spec: ToolSpec, arguments: object, *, verdict: Verdict, binding: Binding) -> Approval:
        """Return the approval of a call, after a person had the time to decide."""
        by = "anyone" if verdict.rule is None else verdict.rule.by
        ttl, has_permitted = self._limits.approval_ttl_s, call.channel.has_permitted
        approval, is_new = await self._approvals.ask(
            binding,
            lambda: make_card(call, spec=spec, arguments=arguments, why=verdict.why, by=by),
            ttl=ttl,
            call_id=call.id,
            replaces_denial=by == "anyone" and spec is call.spec and has_permitted is not None and has_permitted(call),
        )
        if is_new and self._webhook is not None:
            self._announce(approval, self._webhook)
        if approval.status == "pending" and by == "anyone" and call.can_ask():
            approval = await self._elicit(call, approval)
        if approval.status == "pending":
            if self.on_wait is not None:
                self.on_wait(approval)
            approval = await call.funnel.wait_outside(call, self._approvals.wait(approval, self._hold_s(call)))
        job = _job_of(call) if approval.status == "pending" else None
        if job is not None:
            await job.park(approval.id)
            approval = await call.funnel.wait_outside(call, self._approvals.wait(approval, ttl))
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
            return await self._approvals.get(approval.id)
        answer: object = results.get(key)
        action = cast("dict[str, Any]", answer).get("action") if isinstance(answer, dict) else None
        if action in {"accept", "decline"}:
            content = cast("dict[str, Any]", answer).get("content")
            reason = str(cast("dict[str, Any]", content).get("reason") or "")[:500] if isinstance(content, dict) else ""
            decision: Literal["approve", "deny"] = "approve" if action == "accept" else "deny"
            try:
                return await self._approvals.decide(approval.id, decision, by=f"{BY_CLIENT}{call.caller.identity}", reason=reason)
            except ToolError:  # somebody else was faster
                pass
        return await self._approvals.get(approval.id)

    def _announce(self, approval: Approval, webhook: Webhook) -> None:
        """Tell the webhook of a new approval; its answer may be the decision."""

        async def announce() -> None:
            answer = await webhook(approval)
            if answer is not None:
                with suppress(ToolError):  # somebody else was faster
                    await self._approvals.decide(approval.id, answer[0], by="webhook", reason=answer[1])

        # A new context, because nothing of the call may be visible to it.
        task = asyncio.get_running_loop().create_task(announce(), context=Context())
        self._announcements.add(task)
        task.add_done_callback(_announced)
        task.add_done_callback(self._announcements.discard)

    def _approved(self, handler: Handler, approval: Approval | None, arguments: str) -> Handler:
        """Return a handler that uses the approval up and compares the arguments just before, because middleware runs in between."""

        async def run(call: Call) -> object:
            if arguments_hash(call.arguments) != arguments:
                message = "The arguments were changed after the approval."
                raise ToolError("approval_denied", message, reason="arguments_changed", may_have_run=False)
            try:
                is_spent = approval is None or await self._approvals.spend(approval, arguments, call_id=call.id)
            except StoreUnavailableError:
                raise store_unavailable(may_have_run=False) from None
            if not is_spent:
                message = "The approval is used up or has expired."
                hint = "Call again, which asks anew, unless it was denied."
                raise ToolError("approval_denied", message, reason="already_used", hint=hint, may_have_run=False)
            return await handler(call)

        return run


def _announced(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log_exception(_log, "webhook_failed", error=task.exception())


def _job_of(call: Call) -> JobRun | None:
    """Return the job that a call runs in: only such a call can wait for longer than its client."""
    while call.parent is not None:
        call = call.parent
    return call.options.job


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


def _refused(approval: Approval) -> ToolError:
    """Return the failure of a call whose approval was denied or has expired."""
    if approval.status == "expired":
        hint = "Call again, which asks anew, if somebody is there to decide."
        message = f"Nobody approved '{approval.card.tool}' in time."
        return ToolError("approval_denied", message, reason="expired", hint=hint, may_have_run=False, approval_id=approval.id)
    said = f" {approval.reason}" if approval.reason else ""
    message = f"A person denied '{approval.card.tool}'.{said}"
    return ToolError("approval_denied", message, reason="denied", may_have_run=False, approval_id=approval.id)
