"""Admission: what a call must pass before its handler runs.

Policies decide, a person confirms what the tool declares, and limiters make the call wait. Approvals are not known
here: the gate is one more policy to await.
"""

import asyncio
import logging
import time
from asyncio import Lock
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import Context
from typing import Any, Final, Protocol, TypeVar

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
from callyard.state.store import Lease, Store, StoreUnavailableError, owner_key

__all__ = ["Admission", "GatePolicy"]

T = TypeVar("T")
_LEASE_S: Final = 15.0
"""How long the lease of a serial call lasts without being renewed."""
_LOOK_S: Final = 1.0
"""How often a call that waits for a lease tries to take it, because messages may get lost."""
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
            The answer of a policy in place of the tool's, or of a call that goes on elsewhere.
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
                if run.is_elsewhere:
                    return Envelope.ok(None)  # its caller has the first answer of the job
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
    """Serial tools run one call at a time: a lock for each session in which one runs or waits, or for the tool.

    With a shared store, a lock is a lease there, too. A session with live objects is in this process alone.
    """

    def __init__(self) -> None:
        self.store: Store | None = None
        """The store, if other servers use it, too."""
        self._locks: dict[str, tuple[Lock, list[Run]]] = {}
        self._leaving = set[asyncio.Task[None]]()

    def __len__(self) -> int:
        return len(self._locks)

    async def close(self) -> None:
        """Wait until the leases of calls that have ended are released."""
        await asyncio.gather(*self._leaving)

    async def acquire(self, run: Run) -> Release:
        """Wait until no other call holds the lock.

        Raises:
            ToolError: `overloaded`: the shared store cannot be used.
        """
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

        session = run.call.session
        if self.store is None or key != _place(run) or (session is not None and session.is_bound):
            return release
        try:
            lease = await _wait_for_lease(self.store, f"serial/{owner_key(key)}")
        except BaseException as error:
            release()
            if isinstance(error, StoreUnavailableError):
                raise store_unavailable(error, may_have_run=run.call.may_have_run) from None
            raise
        return self._holding(run, lease, self.store, release)

    def _holding(self, run: Run, lease: Lease, store: Store, release: Release) -> Release:
        """Renew a lease from now on; return what releases it, and only then the lock of this process."""
        renewing = asyncio.create_task(_renew(run, lease, store), context=Context())

        async def end() -> None:
            renewing.cancel()
            try:
                await store.release(lease)
                await store.publish(lease.key, b"")
            except StoreUnavailableError:  # logged by the store; it ends by itself
                pass
            finally:
                release()

        def leave() -> None:
            task = asyncio.create_task(end(), context=Context())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

        return leave


async def _wait_for_lease(store: Store, key: str) -> Lease:
    lease = await store.acquire(key, ttl=_LEASE_S)
    if lease is not None:
        return lease
    async with store.subscribe(key) as messages:
        while True:
            lease = await store.acquire(key, ttl=_LEASE_S)
            if lease is not None:
                return lease
            with suppress(TimeoutError):  # its holder may have died
                async with asyncio.timeout(_LOOK_S):
                    await anext(messages)


async def _renew(run: Run, lease: Lease, store: Store) -> None:
    """Renew the lease of a serial call until it is cancelled; stop the call if another one may run meanwhile."""
    until = time.monotonic() + _LEASE_S
    while True:
        await asyncio.sleep(_LEASE_S / 3)
        now = time.monotonic()
        try:
            holds = await store.renew(lease, ttl=_LEASE_S)
        except StoreUnavailableError:
            holds = now < until
        else:
            until = now + _LEASE_S
        if not holds:
            _log.warning("serial_lost tool=%s id=%s", run.name, run.id)
            run.stop("cancelled", blame="yard")
            return


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
