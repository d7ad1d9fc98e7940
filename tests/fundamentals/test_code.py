"""Code: one program in a sandbox in place of many calls."""

from collections.abc import AsyncGenerator

import pytest

from callyard import Operation, Rule, RuntimeSettings, Yard, tool
from callyard.testing import FakeSink

PRICES = {"tea": 450, "cup": 1200}


@tool(operation="query")
async def price(item: str) -> int:
    """Return the price of an item in cents."""
    return PRICES[item]


@tool(operation="destroy")
async def burn(item: str) -> None:
    """Burn an item."""
    raise AssertionError(item)


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
async def shop(sink: FakeSink) -> AsyncGenerator[Yard]:
    """Open a yard that runs programs in the first sandbox that this machine has."""
    rule = Rule(decision="deny", operations=(Operation.DESTROY,))
    runtime = RuntimeSettings(enabled=True)
    async with Yard("shop", tools=[price, burn], rules=[rule], runtime=runtime, sinks=[sink]) as yard:
        tried = await yard.call("execute_code", {"code": "1"})
        if tried.error is not None and tried.error.code == "runtime_unavailable":
            pytest.skip(tried.error.message)
        sink.records.clear()
        yield yard


async def test_a_program_calls_tools_as_functions_and_answers_with_its_last_expression(shop: Yard) -> None:
    program = "sum([await tools.shop.price(item=item) for item in inputs['items']])"

    answer = await shop.call("execute_code", {"code": program, "inputs": {"items": ["tea", "cup"]}})

    assert answer.data["value"] == 1650
    assert answer.data["calls"][0]["count"] == 2
    assert answer.data["runtime"]["sandboxed"]


async def test_every_call_of_a_program_is_recorded(shop: Yard, sink: FakeSink) -> None:
    answer = await shop.call("execute_code", {"code": "await tools.shop.price(item='tea')"})

    inner, outer = sink.records
    assert (inner.tool, outer.tool) == ("price", "execute_code")
    assert inner.parent_id == outer.call_id == answer.meta.call_id


async def test_rules_hold_inside_a_program_and_it_can_catch_the_failure(shop: Yard) -> None:
    program = "try:\n    await tools.shop.burn(item='tea')\nexcept ToolError as error:\n    result = error.code"

    answer = await shop.call("execute_code", {"code": program})

    assert answer.data["value"] == "permission_denied"


async def test_a_mistake_in_a_program_is_answered_with_its_line(shop: Yard) -> None:
    answer = await shop.call("execute_code", {"code": "prices = {}\nprices['tea']"})

    assert answer.error is not None
    assert (answer.error.code, answer.error.details["line"]) == ("code_error", 2)


async def test_a_program_sees_no_file_of_the_machine(shop: Yard) -> None:
    answer = await shop.call("execute_code", {"code": f"import os\nos.path.exists({__file__!r})"})

    assert answer.data["value"] is False
