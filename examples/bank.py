"""A small bank as a yard: queries, commands, a session, a job, reasons, progress, and a result too large to answer."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any

from pydantic import Field

from callyard import Call, Example, Reason, Session, ToolError, Yard, tool
from callyard.model.errors import invalid_input

AccountName = Annotated[str, Field(pattern="^[a-z]{1,20}$", description="The name of an account, such as 'savings'.")]
Cents = Annotated[int, Field(ge=1, le=10_000_000, description="An amount in cents.")]

UNKNOWN = {"unknown_account": Reason("not_found", ("accounts",))}
PAYMENT = {**UNKNOWN, "not_enough_money": Reason("state_error", ("missing_cents",))}
TODAY = date(2026, 11, 16)
PURPOSES = ("Groceries", "Rent", "Salary", "Train", "Books", "Insurance", "Coffee")


@dataclass(slots=True)
class Account:
    """One account."""

    name: str
    owner: str
    cents: int


@dataclass(frozen=True, slots=True)
class Booking:
    """One line of a statement."""

    day: date
    purpose: str
    cents: int


class Bank:
    """Keeps accounts in memory; its decorated methods are the tools."""

    def __init__(self) -> None:
        self._accounts = {
            "current": Account("current", "Ada", 120_000),
            "savings": Account("savings", "Ada", 800_000),
            "holiday": Account("holiday", "Ada", 0),
        }

    @tool(operation="query", tags=("accounts",))
    async def list_accounts(self) -> list[Account]:
        """List the accounts with their balances."""
        return list(self._accounts.values())

    @tool(operation="query", tags=("accounts",), reasons=UNKNOWN)
    async def get_balance(self, account: AccountName) -> int:
        """Tell the balance of an account in cents."""
        return self._account(account).cents

    @tool(
        operation="command",
        tags=("money",),
        serial=True,
        reasons=PAYMENT,
        examples=[Example({"source": "current", "target": "savings", "cents": 2500}, "Put 25.00 aside")],
    )
    async def transfer(
        self, source: AccountName, target: AccountName, cents: Cents, purpose: str = "Transfer"
    ) -> dict[str, Any]:
        """Move money from one account to another.

        Args:
            source: The account that pays.
            target: The account that receives.
            cents: How much, in cents.
            purpose: What the statement says about it.
        """
        payer, payee = self._account(source), self._account(target)
        if payer is payee:
            raise invalid_input("An account cannot pay itself.", field="target")
        if payer.cents < cents:
            raise ToolError(
                "state_error",
                f"'{source}' has {payer.cents} cents.",
                reason="not_enough_money",
                hint="Move money to the account first, or pay less.",
                next_actions=[f"transfer(source=…, target='{source}', cents={cents - payer.cents})"],
                missing_cents=cents - payer.cents,
                may_have_run=False,
            )
        payer.cents -= cents
        payee.cents += cents
        return {"source": source, "target": target, "cents": cents, "purpose": purpose}

    @tool(operation="destroy", tags=("accounts",), reasons={**UNKNOWN, "not_empty": Reason("state_error", ("cents",))})
    async def close_account(self, account: AccountName) -> str:
        """Close an empty account for good."""
        found = self._account(account)
        if found.cents:
            raise ToolError(
                "state_error", f"'{account}' is not empty.", reason="not_empty", cents=found.cents, may_have_run=False
            )
        del self._accounts[account]
        return account

    @tool(operation="query", tags=("statements",), reasons=UNKNOWN, examples=[{"account": "current", "days": 30}])
    async def get_statement(
        self, account: AccountName, days: Annotated[int, Field(ge=1, le=3650)] = 30
    ) -> list[Booking]:
        """Tell what was booked on an account.

        The newest comes first. A long statement is answered with a handle.
        """
        return list(_bookings(self._account(account), days))

    @tool(operation="query", tags=("statements",))
    async def sum_by_purpose(self, bookings: list[Booking]) -> dict[str, int]:
        """Add up the bookings of a statement by purpose.

        Args:
            bookings: The statement itself, or its handle, written {"$ref": "r_1"}.
        """
        sums: dict[str, int] = {}
        for booking in bookings:
            sums[booking.purpose] = sums.get(booking.purpose, 0) + booking.cents
        return dict(sorted(sums.items()))

    @tool(operation="query", tags=("statements",), timeout=20, timeout_hint="Ask for fewer years.")
    async def check_books(self, call: Call, years: Annotated[int, Field(ge=1, le=50)] = 5) -> dict[str, int]:
        """Go through the books, which takes a while."""
        checked = 0
        for year in range(years):
            call.progress(year, years, f"checking {TODAY.year - year}")
            for account in self._accounts.values():
                checked += sum(1 for _ in _bookings(account, 365))
            await asyncio.sleep(0.01)  # as a real look at the books would take
        call.progress(years, years, "done")
        return {"years": years, "bookings": checked}

    @tool(operation="command", tags=("statements",), job="always", timeout=120)
    async def archive_statements(self, call: Call, seconds: Annotated[int, Field(ge=1, le=60)] = 20) -> dict[str, int]:
        """Archive all statements, which takes so long that it becomes a job."""
        for second in range(seconds):
            await call.progress(second, seconds, f"archiving {TODAY.year - second}")
            await call.log("info", f"The statements of {TODAY.year - second} are archived.")
            await asyncio.sleep(1)
        return {"years": seconds}

    @tool(operation="command", tags=("batches",))
    async def start_batch(self, call: Call) -> str:
        """Start a batch of payments; answers its session."""
        session = call.start_session(kind="batch")
        session.state["payments"] = []
        return session.id

    @tool(operation="command", tags=("batches",))
    async def add_payment(self, session: Session, target: AccountName, cents: Cents) -> int:
        """Add a payment from 'current' to the batch."""
        payments: list[dict[str, Any]] = session.state["payments"]
        payments.append({"source": "current", "target": target, "cents": cents, "purpose": "Batch"})
        return len(payments)

    @tool(operation="command", tags=("batches",), reasons={"payment_failed": Reason("state_error", ("cause",))})
    async def pay_batch(self, call: Call, session: Session) -> list[dict[str, Any]]:
        """Make the payments of the batch, then end it.

        It stops at the first that fails, and keeps the rest for another try.
        """
        payments: list[dict[str, Any]] = session.state["payments"]
        paid: list[dict[str, Any]] = []
        while payments:
            answer = await call.invoke("transfer", payments[0])
            if answer.error is not None:
                raise ToolError(
                    "state_error",
                    f"Payment {len(paid) + 1} failed. {answer.error.message}",
                    reason="payment_failed",
                    cause=answer.error.code,
                    data={"paid": paid},
                    may_have_run=bool(paid),
                )
            paid.append(payments.pop(0))
        await call.end_session()
        return paid

    def _account(self, name: str) -> Account:
        found = self._accounts.get(name)
        if found is None:
            names = list(self._accounts)
            raise ToolError("not_found", f"There is no account '{name}'.", reason="unknown_account", accounts=names)
        return found


def _bookings(account: Account, days: int) -> Iterator[Booking]:
    """Return invented bookings, the same every time."""
    for number in range(days * 3):
        purpose = PURPOSES[(number * 5 + len(account.name)) % len(PURPOSES)]
        cents = 310_000 if purpose == "Salary" else -(100 + number * 37 % 9000)
        yield Booking(TODAY - timedelta(days=number // 3), purpose, cents)


yard = Yard("bank", tools=[Bank()], packs=["system"])


async def main() -> None:
    """Make a few calls and print their answers."""
    async with yard:
        for name, arguments in (
            ("list_accounts", {}),
            ("transfer", {"source": "current", "target": "holiday", "cents": "2500"}),
            ("transfer", {"source": "holiday", "target": "savings", "cents": 9999}),
            ("get_statement", {"account": "current", "days": 365}),
            ("sum_by_purpose", {"bookings": {"$ref": "r_1"}}),
        ):
            answer = await yard.call(name, arguments)
            print(f"{name}: {answer.to_json().decode()}")


if __name__ == "__main__":
    asyncio.run(main())
