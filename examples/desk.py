"""A help desk as a yard: the second server of 'make run', which the bank borrows its tools from over stdio."""

import asyncio
import sys
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal

from pydantic import Field

from callyard import Call, Reason, ToolError, Yard, serve, tool

Priority = Literal["low", "normal", "urgent"]
TicketNumber = Annotated[int, Field(ge=1, description="The number of a ticket, such as 1.")]
UNKNOWN = {"unknown_ticket": Reason("not_found", ("tickets",))}


@dataclass(slots=True)
class Ticket:
    """One request of a customer."""

    number: int
    subject: str
    priority: Priority
    is_open: bool = True


class Desk:
    """Keeps tickets in memory; its decorated methods are the tools."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._tickets: dict[int, Ticket] = {}
        self._add("The card does not work", "urgent")
        self._add("A new address", "low")
        self._add("A copy of the contract", "normal")

    @tool(operation="query", tags=("tickets",))
    async def list_tickets(self, priority: Priority | None = None) -> list[Ticket]:
        """List the open tickets.

        Args:
            priority: Only those of this priority.
        """
        return [ticket for ticket in self._tickets.values() if ticket.is_open and priority in {None, ticket.priority}]

    @tool(operation="command", tags=("tickets",))
    async def open_ticket(
        self, subject: Annotated[str, Field(min_length=3, max_length=200)], priority: Priority = "normal"
    ) -> Ticket:
        """Open a ticket.

        Args:
            subject: What it is about.
            priority: How soon somebody must look at it.
        """
        return self._add(subject, priority)

    @tool(operation="command", tags=("tickets",), reasons=UNKNOWN, idempotent=True)
    async def close_ticket(self, number: TicketNumber) -> Ticket:
        """Close a ticket; it stays in the archive."""
        ticket = self._ticket(number)
        ticket.is_open = False
        return ticket

    @tool(operation="destroy", tags=("tickets",), reasons=UNKNOWN)
    async def delete_ticket(self, number: TicketNumber) -> int:
        """Delete a ticket for good, with everything that was written in it."""
        self._ticket(number)
        del self._tickets[number]
        return number

    @tool(operation="query", tags=("reports",), timeout=120)
    async def write_report(self, call: Call, seconds: Annotated[int, Field(ge=1, le=60)] = 10) -> str:
        """Write the report of the week, which takes a while."""
        for second in range(seconds):
            await call.progress(second, seconds, f"reading ticket {second + 1}")
            await asyncio.sleep(1)
        return f"{len(self._tickets)} tickets, {sum(ticket.is_open for ticket in self._tickets.values())} of them open."

    def _add(self, subject: str, priority: Priority) -> Ticket:
        ticket = Ticket(next(self._numbers), subject, priority)
        self._tickets[ticket.number] = ticket
        print(
            f"ticket {ticket.number} opened", file=sys.stderr, flush=True
        )  # what an operator finds in the log of the upstream
        return ticket

    def _ticket(self, number: int) -> Ticket:
        found = self._tickets.get(number)
        if found is None:
            raise ToolError(
                "not_found", f"There is no ticket {number}.", reason="unknown_ticket", tickets=list(self._tickets)
            )
        return found


yard = Yard("desk", tools=[Desk()])

if __name__ == "__main__":
    serve(yard)
