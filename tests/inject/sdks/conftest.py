"""What the tests with real SDKs share: the SDK to test, and a yard with a tool for each behaviour.

They run in environments that have the SDKs: `test_sdks.py`, one folder up, makes these and starts them.
"""

import asyncio
import sys
from base64 import b64decode
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from callyard import Call, Caller, Envelope, Image, Limits, ToolError, Yard, tool
from callyard.policy.approvals import Approval
from callyard.testing import FakeSink

sys.path.insert(0, str(Path(__file__).parent))

from drivers import DRIVERS, Driver


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sdk", default="", help="The SDK to test: the beginning of a driver's name.")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames:
        wanted = str(metafunc.config.getoption("--sdk"))
        names = [name for name, driver in DRIVERS.items() if name.startswith(wanted) and driver.installed]
        metafunc.parametrize("driver", [DRIVERS[name] for name in names], ids=names)


@dataclass
class Shop:
    """A yard, and what its tools did."""

    yard: Yard
    sink: FakeSink
    both: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(2))
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    cleared: list[str] = field(default_factory=list[str])

    async def next_approval(self, seen: set[str]) -> Approval:
        """Wait for the next call that needs an approval."""
        assert self.yard.gate is not None
        return await self.yard.gate.approvals.watch(seen)

    async def decide(self, approval: Approval, decision: Literal["approve", "deny"], *, reason: str = "") -> None:
        """Approve or deny a call in the name of an operator."""
        assert self.yard.gate is not None
        await self.yard.gate.decide(approval.id, decision, caller=OPERATOR, reason=reason)


OPERATOR = Caller(identity="boss")


DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A picture of one red dot, in base64."""


class Tools:
    """A tool for each behaviour."""

    shop: Shop

    @tool(operation="command")
    def order(self, item: str, count: int = 1, size: Literal["small", "large"] = "small") -> dict[str, Any]:
        """Order something.

        Args:
            item: What to order.
            count: How many.
        """
        return {"item": item, "count": count, "size": size}

    @tool(operation="query", reasons=("sold_out",))
    def price(self) -> None:
        """Say a price, which fails."""
        raise ToolError("state_error", "It is sold out.", reason="sold_out")

    @tool(operation="query")
    async def wait(self) -> None:
        """Wait until somebody cancels it."""
        self.shop.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.shop.stopped.set()

    @tool(operation="destroy")
    def clear(self, shelf: str) -> str:
        """Clear a shelf for good."""
        self.shop.cleared.append(shelf)
        return f"{shelf} is empty"

    @tool(operation="query")
    async def wait_for_decision(self) -> None:
        """Wait until the operator has decided."""
        await self.shop.decided.wait()

    @tool(operation="command")
    async def burn(self, call: Call) -> str:
        """Burn the shop, if a person is sure."""
        schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
        return "burnt" if (await call.ask(schema, "Really burn it?"))["sure"] else "kept"

    @tool(operation="query")
    def paint(self) -> Envelope:
        """Paint a picture."""
        return Envelope.ok("painted", content=[Image(b64decode(DOT))])

    @tool(operation="query", shape="plain")
    def greet(self) -> str:
        """Greet, without an envelope."""
        return "Hello."

    @tool(operation="command")
    def open_cart(self, call: Call) -> str:
        """Open a cart, which is a session."""
        return call.start_session(kind="cart").kind

    @tool(operation="query")
    async def meet(self) -> None:
        """Wait until two calls are here."""
        await self.shop.both.wait()

    @tool(operation="query")
    def count(self, items: list[str]) -> int:
        """Count items."""
        return len(items)

    @tool(operation="query")
    def archive(self) -> list[str]:
        """Return a long list, which becomes a handle."""
        return [f"order {number}" for number in range(500)]


@pytest.fixture
async def shop(request: pytest.FixtureRequest) -> AsyncGenerator[Shop]:
    """Open a yard; a parameter is how long it holds a call for an approval."""
    tools, sink = Tools(), FakeSink()
    limits = Limits(result_characters=2000, approval_hold_s=getattr(request, "param", 60.0))
    yard = Yard("shop", tools=[tools], packs=["system"], sinks=[sink], limits=limits)
    yard.configure(origins={}, limits={}, operators=[OPERATOR.identity])
    tools.shop = Shop(yard, sink)
    async with yard:
        yield tools.shop


@pytest.fixture
def name_of(driver: Driver) -> Any:
    return driver.name_of
