"""Budgets: how many calls and estimated tokens a session or caller has in a period.

They are counted in memory and written to the store once a second, so a crash may forget that second. Several processes that share a
store share the budgets. A budget that cannot be read or written refuses calls.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

from callyard.dispatch.call import Call, Caller
from callyard.dispatch.outcome import Outcome, store_unavailable
from callyard.dispatch.sessions import Session
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.policy.refusals import RefusalReason, log_refusal, refuse
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

Unit = Literal["calls", "tokens"]


class _Account:
    """One count of one session or caller in the current period."""

    __slots__ = ("key", "limit", "read_at", "reading", "reason", "spent", "unit", "unwritten", "warn_at")

    def __init__(self, key: str, limit: int, *, unit: Unit, reason: RefusalReason) -> None:
        self.key = key
        self.limit = limit
        self.warn_at = limit * _WARN_SHARE
        self.unit: Unit = unit
        self.reason: RefusalReason = reason
        self.spent = 0
        """What is spent, with what is not written yet."""
        self.unwritten = 0
        self.read_at = -_FRESH_S
        self.reading: asyncio.Task[None] | None = None


class _Accounts:
    """The accounts of one caller and session in one period."""

    __slots__ = ("all", "calls", "ends_at", "fresh_until", "tokens")

    def __init__(self, accounts: Sequence[_Account], ends_at: float) -> None:
        self.all = tuple(accounts)
        self.calls = tuple(account for account in accounts if account.unit == "calls")
        self.tokens = tuple(account for account in accounts if account.unit == "tokens")
        self.ends_at = ends_at
        """When the period ends."""
        self.fresh_until = 0.0
        """Until when the counts need not be read again."""


class Budgets:
    """The budgets of one yard, and the observer that counts the tokens of answers."""

    def __init__(self, settings: BudgetSettings, store: Store, *, clock: Clock = time.monotonic, wall_clock: Clock = time.time) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock
        self._wall_clock = wall_clock
        self._accounts: dict[str, _Account] = {}
        self._of: dict[tuple[str, str, str | None], _Accounts] = {}
        self._writer: asyncio.Task[None] | None = None

    @property
    def counts_tokens(self) -> bool:
        """Return whether there is a budget of tokens."""
        return bool(self._settings.session_tokens or self._settings.caller_tokens)

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

    def spend(self, call: Call, *, counts: bool) -> bool:
        """Spend one call, or with `counts` false only check what is left; return False if the counts must be read before.

        Raises:
            ToolError: `budget_exceeded`.
        """
        accounts = self._find(call)
        if accounts.fresh_until <= self._clock():
            return False
        for account in accounts.all:
            if account.spent + 1 >= account.warn_at:
                self._check(call, accounts, counts=counts)
                break
        if counts:
            self._add(accounts.calls, 1)
        return True

    async def read(self, call: Call) -> None:
        """Read the counts of a call that are too old.

        Raises:
            ToolError: `overloaded` while the store cannot be used.
        """
        now = self._clock()
        name = _name(call)
        known = self._of.get(name)
        if known is not None and known.ends_at <= self._wall_clock():
            del self._of[name]
        accounts = self._find(call)
        for account in accounts.all:
            if account.read_at + _FRESH_S <= now:
                try:
                    await self._read(account)
                except StoreUnavailableError:
                    log_refusal(call, "overloaded", "store_unavailable")
                    raise store_unavailable(may_have_run=False) from None
        left = accounts.ends_at - self._wall_clock()
        accounts.fresh_until = min(self._clock() + left, *(account.read_at + _FRESH_S for account in accounts.all))

    def _check(self, call: Call, accounts: _Accounts, *, counts: bool) -> None:
        """Refuse a call whose budget is used up, and warn of one that nearly is."""
        for account in accounts.all:
            if account.spent >= account.limit and (counts or account.unit == "tokens"):
                raise self._refusal(call, account)
        near = [account for account in accounts.all if account.spent + 1 >= account.warn_at]
        call.warnings += tuple(_warning(account, counts=counts) for account in near)

    def give_back(self, call: Call) -> None:
        """Take back what a call spent that did not start."""
        self._add(self._find(call).calls, -1)

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:  # noqa: ARG002 - the type is `Observer`
        """Spend the tokens of an answer that goes to the caller; the answers of inner calls and jobs go into another answer."""
        if call.parent is not None or call.options.job is not None:
            return
        self._add(self._find(call).tokens, envelope.meta.estimated_tokens)

    def _add(self, accounts: tuple[_Account, ...], amount: int) -> None:
        for account in accounts:
            account.spent += amount
            account.unwritten += amount
        if accounts and self._writer is None:
            self._writer = asyncio.create_task(self._write_later())

    def _find(self, call: Call) -> _Accounts:
        """Return the accounts of a call; `read` makes new ones when the period has ended."""
        name = _name(call)
        found = self._of.get(name)
        if found is None:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                self._drop_written()
            found = self._of[name] = self._make(call.request.caller, session=call.session)
        return found

    def _make(self, caller: Caller, *, session: Session | None) -> _Accounts:
        settings = self._settings
        period = int(self._wall_clock() // settings.period)
        inner = f"conversation/{caller.owner}" if session is None else f"session/{session.id}"
        wanted: list[tuple[str, int, Unit, RefusalReason]] = [
            (f"{inner}/calls", settings.session_calls, "calls", "session_calls"),
            (f"{inner}/tokens", settings.session_tokens, "tokens", "session_tokens"),
            (f"caller/{caller.identity}/calls", settings.caller_calls, "calls", "caller_calls"),
            (f"caller/{caller.identity}/tokens", settings.caller_tokens, "tokens", "caller_tokens"),
        ]
        accounts = [self._account(f"budget/{period}/{key}", limit, unit, reason) for key, limit, unit, reason in wanted if limit]
        return _Accounts(accounts, (period + 1) * settings.period)

    def _account(self, key: str, limit: int, unit: Unit, reason: RefusalReason) -> _Account:
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account(key, limit, unit=unit, reason=reason)
        return account

    async def _read(self, account: _Account) -> None:
        """Write what was spent here, and read what was spent everywhere; those who ask at the same time share one task."""
        if account.reading is None:
            account.reading = asyncio.create_task(self._synchronise(account))
            account.reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever waited may be gone
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

    def _drop_written(self) -> None:
        """Forget the counts that the store has; they are read again when they are needed."""
        self._of.clear()
        self._accounts = {key: account for key, account in self._accounts.items() if account.unwritten or account.reading}

    def _refusal(self, call: Call, account: _Account) -> ToolError:
        whose = "session" if account.reason.startswith("session") else "caller"
        period = self._settings.period
        seconds = period - self._wall_clock() % period
        message = f"The budget of {account.limit} {account.unit} for this {whose} is used up."
        hint = f"Finish with what you have: the budget starts anew in {seconds / 3600:.2g} hours. The operator of the yard can raise it."
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


def _name(call: Call) -> tuple[str, str, str | None]:
    caller, session = call.request.caller, call.session
    return (caller.identity, caller.scope, None if session is None else session.id)


def _warning(account: _Account, *, counts: bool) -> str:
    spent = account.spent + (counts and account.unit == "calls")
    whose = "session" if account.reason.startswith("session") else "caller"
    return f"{spent} of {account.limit} {account.unit} in the budget of this {whose} are used."
