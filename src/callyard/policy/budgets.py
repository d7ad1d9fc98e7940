"""Budgets: how many calls and estimated tokens a session or caller has in a period.

They are counted in memory and written to the store once a second, so a crash may forget that second. Several processes
that share a store share the budgets. A budget that cannot be read or written refuses calls.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from callyard.dispatch.call import Call
from callyard.dispatch.outcome import Outcome, store_unavailable
from callyard.dispatch.run import run_of
from callyard.model.elicitation import STORE_UNAVAILABLE, RefusalReason
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.policy.rates import log_refusal, refuse
from callyard.policy.settings import BudgetSettings
from callyard.state.store import Clock, Store, StoreUnavailableError

__all__ = ["Budgets"]

_WRITE_S: Final = 1.0
"""How often the counts are written."""
_FRESH_S: Final = 2.0
"""How old a count may be: an older one is read again, because other processes may have spent."""
_WARN_SHARE: Final = 0.8
_MAX_ACCOUNTS: Final = 10_000
_log = logging.getLogger(__name__)


class _Account(msgspec.Struct, eq=False):
    """One count of one session or caller in one period."""

    key: str
    limit: int
    reason: RefusalReason
    spent: int = 0
    """What is spent, with what is not written yet."""
    unwritten: int = 0
    read_at: float = -_FRESH_S
    reading: asyncio.Task[None] | None = None

    @property
    def whose(self) -> str:
        """Return 'session' or 'caller'."""
        return self.reason.partition("_")[0]

    @property
    def unit(self) -> str:
        """Return 'calls' or 'tokens'."""
        return self.reason.partition("_")[2]


class Budgets:
    """The budgets of one yard, and the observer that counts the tokens of answers."""

    def __init__(
        self, settings: BudgetSettings, store: Store, *, clock: Clock = time.monotonic, wall_clock: Clock = time.time
    ) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self._accounts: dict[str, _Account] = {}
        self._writer: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Write what was spent while the context is open, and on leaving."""
        try:
            yield
        finally:
            if self._writer is not None:
                self._writer.cancel()
                await asyncio.gather(self._writer, return_exceptions=True)
            await self._write()

    async def spend(self, call: Call, *, counts: bool) -> None:
        """Spend one call, or with `counts` false only check what is left.

        Raises:
            ToolError: `budget_exceeded`, or `overloaded` while the store cannot be used.
        """
        while stale := [account for account in self._find(call) if account.read_at + _FRESH_S <= self._clock()]:
            try:
                await self._read(stale[0])
            except StoreUnavailableError as error:
                failure = store_unavailable(error, may_have_run=False)
                log_refusal(call, failure.code, STORE_UNAVAILABLE)
                raise failure from None
        accounts = self._find(call)
        for account in accounts:
            if account.spent >= account.limit and (counts or account.unit == "tokens"):
                raise self._refusal(call, account)
        near = [account for account in accounts if account.spent + 1 >= account.limit * _WARN_SHARE]
        call.warnings += tuple(_warning(account, counts=counts) for account in near)
        if counts:
            self._add(accounts, "calls", 1)

    def give_back(self, call: Call) -> None:
        """Take back what a call spent that did not start, unless its period has ended meanwhile."""
        self._add([account for account in self._find(call) if account.spent], "calls", -1)

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:  # noqa: ARG002 - the type is `Observer`
        """Spend the tokens of an answer that goes to the caller; answers of inner calls and jobs go into another."""
        if call.parent is None and run_of(call).job is None:
            self._add(self._find(call), "tokens", envelope.meta.estimated_tokens)

    def _add(self, accounts: list[_Account], unit: str, amount: int) -> None:
        counted = [account for account in accounts if account.unit == unit]
        for account in counted:
            account.spent += amount
            account.unwritten += amount
        if counted and self._writer is None:
            self._writer = asyncio.create_task(self._write_later())

    def _find(self, call: Call) -> list[_Account]:
        """Return the accounts of a call in this period."""
        settings, caller, session = self._settings, call.request.caller, call.session
        period = int(self._wall_clock() // settings.period)
        inner = f"conversation/{caller.owner}" if session is None else f"session/{session.id}"
        wanted: list[tuple[str, int, RefusalReason]] = [
            (f"{inner}/calls", settings.session_calls, "session_calls"),
            (f"{inner}/tokens", settings.session_tokens, "session_tokens"),
            (f"caller/{caller.identity}/calls", settings.caller_calls, "caller_calls"),
            (f"caller/{caller.identity}/tokens", settings.caller_tokens, "caller_tokens"),
        ]
        new = [_Account(f"budget/{period}/{name}", limit, reason) for name, limit, reason in wanted if limit]
        if len(self._accounts) >= _MAX_ACCOUNTS and any(account.key not in self._accounts for account in new):
            # The store has what was written; it is read again when it is needed.
            kept = [account for account in self._accounts.values() if account.unwritten or account.reading]
            self._accounts = {account.key: account for account in kept}
        return [self._accounts.setdefault(account.key, account) for account in new]

    async def _read(self, account: _Account) -> None:
        """Write what was spent here, and read what was spent everywhere, in one task for all who ask."""
        if account.reading is None:
            account.reading = asyncio.create_task(self._synchronise(account))
            # Whoever waited may be gone, and then nobody takes the exception.
            account.reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(account.reading)

    async def _synchronise(self, account: _Account) -> None:
        amount, account.unwritten = account.unwritten, 0
        try:
            total = await self._store.count(account.key, by=amount, ttl=2 * self._settings.period)
        except BaseException:
            account.unwritten += amount
            raise
        finally:
            account.reading = None
        account.spent = total + account.unwritten
        account.read_at = self._clock()

    async def _write_later(self) -> None:
        """Write once a second until nothing is left to write."""
        try:
            while True:
                await asyncio.sleep(_WRITE_S)
                if await self._write():
                    return
        finally:
            self._writer = None

    async def _write(self) -> bool:
        """Write what was spent; return whether everything is written."""
        for account in [account for account in self._accounts.values() if account.unwritten]:
            try:
                await self._read(account)
            except StoreUnavailableError as error:  # calls are refused as soon as the counts are too old
                _log.warning("budgets_not_written reason=%s", error.reason)
                return False
        return not any(account.unwritten for account in self._accounts.values())

    def _refusal(self, call: Call, account: _Account) -> ToolError:
        seconds = self._settings.period - self._wall_clock() % self._settings.period
        message = f"The budget of {account.limit} {account.unit} for this {account.whose} is used up."
        hours = f"{seconds / 3600:.2g} hours"
        hint = f"Finish with what you have: the budget starts anew in {hours}. The operator of the yard can raise it."
        return refuse(
            call,
            "budget_exceeded",
            account.reason,
            message,
            hint=hint,
            limit=account.limit,
            spent=account.spent,
            resets_in_ms=int(seconds * 1000),
        )


def _warning(account: _Account, *, counts: bool) -> str:
    spent = account.spent + (counts and account.unit == "calls")
    return f"{spent} of {account.limit} {account.unit} in the budget of this {account.whose} are used."
