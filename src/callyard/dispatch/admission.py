"""Admission: what a call must pass before its handler runs.

Policies decide, a person confirms what the tool declares, and limiters make the call wait. Approvals are not known
here: the gate is one more policy to await.
"""

import logging
from asyncio import Lock
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Call, Limiter, Policy, Release
from callyard.dispatch.deadlines import Deadlines
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.run import Precheck, Run, is_first
from callyard.dispatch.tool import Tool
from callyard.model.elicitation import ClientRequest, Confirmation, form_content
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.spec import ToolSpec
from callyard.state.store import StoreUnavailableError

__all__ = ["Admission", "GatePolicy"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class GatePolicy(Protocol):
    """A policy that judges only some calls; `judges` says which, without waiting."""

    def judges(self, run: Run) -> bool:
        """Return whether a call must be judged."""
        ...

    def check_completion(self, call: Call) -> None:
        """Raise a `ToolError` if the arguments of what is called may not be completed."""
        ...

    async def __call__(self, call: Call) -> Envelope | Precheck | None:
        """Judge a call as a policy does; an allowed call may have to pass a check just before its handler."""
        ...


class Admission:
    """The policies and limiters of one yard."""

    def __init__(self, policies: Sequence[Policy], limiters: Sequence[Limiter], deadlines: Deadlines) -> None:
        self.serial_locks = SerialLocks()
        self.policies = tuple(policies)
        self.limiters = tuple(limiters)
        self._resumes: tuple[Limiter, ...] = tuple(getattr(limiter, "resume", limiter) for limiter in limiters)
        self._deadlines = deadlines
        self.gate: GatePolicy | None = None
        """Judges calls by rules, where a yard has them."""
        self.check_enabled: Callable[[str, ToolSpec], None] = lambda _name, _spec: None
        """Raises a `ToolError` if what is called is disabled now."""

    def has_nothing_to_do(self, run: Run, tool: Tool) -> bool:
        """Return whether a call runs at once: nothing judges it, limits it or asks about it."""
        options = run.options
        if options.seconds or options.background or options.job or not tool.is_simple:
            return False
        if self.policies or self.limiters:
            return False
        return self.gate is None or not self.gate.judges(run)

    async def admit(self, run: Run) -> Envelope | None:
        """Ask the policies and for the declared confirmation, store a job, and wait for the limiters.

        What was disabled while the call waited does not run.

        Returns:
            The answer of a policy in place of the tool's.
        """
        try:
            held = await self._judge(run)
        except ToolError:  # such as an approval that was withdrawn
            self.check_enabled(run.call.name, run.call.spec)
            raise
        if held is not None:
            return held
        if run.call.spec.confirmation is not None:
            run.call.confirmation = await self._confirm(run, run.call.spec.confirmation)
        jobs = run.funnel.jobs
        if jobs is not None and run.job is None:
            if jobs.becomes_job(run):
                await run.go_on_as_job()  # from here on it has outlived its request
            elif run.call.spec.job is not None:
                jobs.require_job(run)
        await self._acquire(run, self.limiters)
        self.check_enabled(run.call.name, run.call.spec)
        if run.job is not None:
            await run.job.claim()
        return None

    async def _judge(self, run: Run) -> Envelope | None:
        for policy in self.policies:
            held = await self._decide(run, policy)
            if isinstance(held, Envelope):
                return held
        if self.gate is None or not self.gate.judges(run):
            return None
        decision = await self._decide(run, self.gate)
        if decision is None or isinstance(decision, Envelope):
            return decision
        run.prechecks = (*run.prechecks, decision)
        return None

    async def _decide(self, run: Run, policy: Policy | GatePolicy) -> Envelope | Precheck | None:
        try:
            return await policy(run.call)
        except ToolError:
            raise
        except StoreUnavailableError as error:
            raise store_unavailable(error, may_have_run=False) from None
        except Exception:  # noqa: BLE001 - a policy that fails denies
            log_exception(_log, "policy_failed tool=%s id=%s", run.call.spec.name, run.id)
            raise ToolError("permission_denied", "The policy could not decide, so the call is denied.") from None

    async def _confirm(self, run: Run, confirmation: Confirmation) -> Mapping[str, Any]:
        """Return the person's answer, which a mounting yard, or the job's first run, may have asked for already."""
        parent = run.parent
        if parent is not None and parent.is_proxy and parent.call.spec.confirmation == confirmation:
            return parent.call.confirmation
        answered = None if run.job is None else run.job.confirmation
        if answered is not None:
            return answered
        request = ClientRequest.person(confirmation.text, confirmation.schema)
        results = await run.call.ask_all({confirmation.key: request}, declared=is_first(run))
        return form_content(request, results[confirmation.key])

    async def wait_outside(self, run: Run, answer: Awaitable[T]) -> T:
        """Wait for a person or client: meanwhile the deadlines stand still, and others may pass the limiters."""
        chain: list[Run] = [run]
        parent = run.parent
        while parent is not None and parent.funnel is run.funnel:
            chain.append(parent)
            parent = parent.parent
        if parent is not None:  # a call of a yard around this one, which has deadlines and limiters of its own
            answer = parent.funnel.admission.wait_outside(parent, answer)
        with self._deadlines.paused(chain):
            holders = [run for run in reversed(chain) if run.releases]
            for holder in holders:
                holder.release()
            try:
                result = await answer
            except Exception:  # which the handler may survive, unlike a cancellation
                await self._resume(holders)
                raise
            await self._resume(holders)
        return result

    def watch_pauses(self, run: Run, pause: Callable[[], Callable[[], None]]) -> AbstractContextManager[None]:
        """Call `pause` whenever the clock of a call stops, and what it returns when the clock goes on."""
        return self._deadlines.watched(run, pause)

    async def _resume(self, holders: Sequence[Run]) -> None:
        """Take back what the limiters were given, the outermost call first."""
        for run in holders:
            if not run.finished:
                await self._acquire(run, self._resumes)

    async def _acquire(self, run: Run, limiters: Sequence[Limiter]) -> None:
        if run.call.spec.serial:
            run.releases = (*run.releases, await self.serial_locks.acquire(run))
        for limiter in limiters:
            run.releases = (*run.releases, await limiter(run.call))


class SerialLocks:
    """Serial tools run one call at a time: a lock for each session in which one runs or waits, or for the tool."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[Lock, list[Run]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    async def acquire(self, run: Run) -> Release:
        """Wait until no other call holds the lock."""
        key = _key(run)
        lock, users = self._locks.setdefault(key, (Lock(), []))
        users.append(run)

        def leave() -> None:
            users.remove(run)
            if not users:
                self._locks.pop(key, None)

        try:
            await lock.acquire()
        except BaseException:
            leave()
            raise

        def release() -> None:
            lock.release()
            leave()

        return release


def _key(run: Run) -> str:
    """Return what is locked; inside a call that holds the same lock, a lock of its own."""
    own = _place(run)
    outer = run.parent
    while outer is not None:
        if outer.call.spec.serial and _place(outer) == own:
            return f"{own} in {outer.id}"
        outer = outer.parent
    return own


def _place(run: Run) -> str:
    call = run.call
    return f"session {call.session.id}" if call.session is not None else f"tool {call.spec.name}"
