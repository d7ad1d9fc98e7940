"""Admission: what a call must pass before its handler runs.

Policies decide, a person confirms what the tool declares, and limiters make the call wait. Approvals are not known here: the gate
is one more policy to await.
"""

import logging
from asyncio import Lock
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Call, Limiter, Policy, Release, StartJob
from callyard.dispatch.deadlines import Deadlines
from callyard.dispatch.outcome import store_unavailable
from callyard.dispatch.run import Run
from callyard.model.elicitation import ClientRequest, Confirmation, form_content
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.spec import ToolSpec
from callyard.state.store import StoreUnavailableError

__all__ = ["Admission", "SelectivePolicy", "SerialLocks", "is_first"]


class SerialLocks:
    """One lock for each session in which a serial tool runs or waits."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[Lock, list[Call]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    async def __call__(self, call: Call) -> Release:
        """Wait until no other call holds the lock."""
        key = self._key(call)
        lock, users = self._locks.setdefault(key, (Lock(), []))
        users.append(call)

        def leave() -> None:
            users.remove(call)
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

    def _key(self, call: Call) -> str:
        own = _place(call)
        ancestor = call.parent
        while ancestor is not None:
            if ancestor.spec.serial and _place(ancestor) == own:
                return f"{own} in {ancestor.id}"
            ancestor = ancestor.parent
        return own


def _place(call: Call) -> str:
    return f"session {call.session.id}" if call.session is not None else f"tool {call.spec.name}"


T = TypeVar("T")
_log = logging.getLogger(__name__)


class SelectivePolicy(Protocol):
    """A policy that judges only some calls; `judges` says which, without waiting."""

    @property
    def allowed(self) -> Mapping[tuple[str, str], ToolSpec]:
        """Return tools that need not be judged, by profile and name, as far as they are known."""
        ...

    def judges(self, call: Call) -> bool:
        """Return whether a call must be judged."""
        ...

    async def __call__(self, call: Call) -> Envelope | None:
        """Judge a call, as a policy does."""
        ...


class Admission:
    """The policies and limiters of one yard."""

    def __init__(self, policies: Sequence[Policy], limiters: Sequence[Limiter], deadlines: Deadlines) -> None:
        self.serial_locks = SerialLocks()
        self.policies = tuple(policies)
        self._limiters = tuple(limiters)
        self._resumes: tuple[Limiter, ...] = tuple(getattr(limiter, "resume", limiter) for limiter in limiters)
        self.applies_to_all = bool(self.policies or self._limiters)
        """Whether every call must be admitted, and not only those whose tool asks or is serial."""
        self._deadlines = deadlines
        self.start_job: StartJob | None = None
        """Starts jobs, where a yard has them."""
        self.gate: SelectivePolicy | None = None
        """Judges calls by rules, where a yard has them."""

    async def admit(self, call: Run) -> Envelope | None:
        """Ask the policies, then for the declared confirmation, start a job if it is to be one, and wait for the limiters.

        Returns:
            The answer in place of the tool's: that of a policy, or of a job that was started.
        """
        job, spec = call.options.job, call.spec
        if job is None or not job.is_admitted:
            for policy in self.policies:
                held = await self._decide(call, policy)
                if held is not None:
                    return held
        gate = self.gate
        if gate is not None and gate.judges(call) and (job is None or not job.is_attached):
            held = await self._decide(call, gate)  # also for a job: its call takes the approval that its start waited for
            if held is not None:
                return held
        if spec.confirmation is not None:
            answered = None if job is None else job.confirmation
            call.confirmation = await self._confirm(call, spec.confirmation) if answered is None else answered
        if self.start_job is not None and job is None and (spec.job is not None or call.options.background):
            started = await self.start_job(call)
            if started is not None:
                call.delegated = True
                return started
        await self._acquire(call, self._resumes if job is not None and job.is_attached else self._limiters)  # which counts no second time
        if job is not None:
            await job.claim()
        return None

    async def wait_outside(self, call: Run, answer: Awaitable[T]) -> T:
        """Wait for a person or client: meanwhile the deadlines stand still, and others may pass the limiters."""
        chain: list[Run] = [call]
        parent: Any = call.parent
        while parent is not None and parent.funnel is call.funnel:
            chain.append(parent)
            parent = parent.parent
        if parent is not None:  # a call of a yard around this one, which has deadlines and limiters of its own
            answer = parent.funnel.wait_outside(parent, answer)
        with self._deadlines.paused(chain):
            holders = [run for run in reversed(chain) if run.releases]
            for run in holders:
                run.release()
            try:
                result = await answer
            except Exception:  # which the handler may survive
                await self._resume(holders)
                raise
            await self._resume(holders)
        return result

    def watch_pauses(self, call: Run, pause: Callable[[], Callable[[], None]]) -> AbstractContextManager[None]:
        """Call `pause` whenever the clock of a call stops, and what it returns when the clock goes on."""
        return self._deadlines.watched(call, pause)

    async def _confirm(self, call: Run, confirmation: Confirmation) -> Mapping[str, Any]:
        """Return the person's answer, which a mounting yard may have asked for already."""
        parent = call.parent
        if parent is not None and parent.is_proxy and parent.spec.confirmation == confirmation:
            return parent.confirmation
        request = ClientRequest.person(confirmation.text, confirmation.schema)
        results = await call.ask_all({confirmation.key: request}, declared=is_first(call))
        return form_content(request, results[confirmation.key])

    async def _resume(self, holders: Sequence[Run]) -> None:
        """Take back what the limiters were given, the outermost call first."""
        for run in holders:
            await self._acquire(run, self._resumes)

    async def _acquire(self, call: Run, limiters: Sequence[Limiter]) -> None:
        if call.spec.serial:
            call.releases = (*call.releases, await self.serial_locks(call))
        for limiter in limiters:
            call.releases = (*call.releases, await limiter(call))

    async def _decide(self, call: Run, policy: Policy) -> Envelope | None:
        try:
            return await policy(call)
        except ToolError:
            raise
        except StoreUnavailableError:
            raise store_unavailable(may_have_run=False) from None
        except Exception:  # noqa: BLE001 - a policy that fails denies
            log_exception(_log, "policy_failed tool=%s id=%s", call.spec.name, call.id)
            raise ToolError("permission_denied", "The policy could not decide, so the call is denied.") from None


def is_first(call: Call) -> bool:
    """Return whether nothing ran before this call, so that the client may send its request again."""
    parent = call.parent
    return parent is None or (parent.is_proxy and is_first(parent))
