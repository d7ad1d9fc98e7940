"""Upstreams: the tools of other MCP servers, behind the same dispatcher."""

import sys
from pathlib import Path

import pytest

from callyard import Operation, Provider, Rule, UpstreamSettings, Yard, make_upstream
from callyard.testing import FakeSink

SHOP = '''
from callyard import ToolError, Yard, serve, tool


@tool(operation="query")
async def price(item: str) -> dict[str, int]:
    """Return the price of an item in cents."""
    if item != "tea":
        raise ToolError("not_found", f"'{item}' is not sold here.")
    return {"cents": 450}


@tool(operation="destroy")
async def close_shop() -> None:
    """Close the shop for good."""
    raise AssertionError


serve(Yard("shop", tools=[price, close_shop], shape="plain"))
'''


@pytest.fixture
def shop(tmp_path: Path) -> Provider:
    """Return a real MCP server as an upstream: a process that speaks MCP over stdio."""
    (tmp_path / "shop.py").write_text(SHOP)
    settings = UpstreamSettings(command=sys.executable, args=(str(tmp_path / "shop.py"),))
    return make_upstream("shop", settings, state=tmp_path)


async def test_the_tools_of_an_upstream_have_its_name_in_front(shop: Provider) -> None:
    async with Yard(providers=[shop]) as yard:
        await yard.providers.wait_ready(30)
        names = [spec.name for spec in yard.list()]
        answer = await yard.call("shop__price", {"item": "tea"})

    assert names == ["shop__close_shop", "shop__price"]
    assert answer.data == {"cents": 450}


async def test_a_call_of_an_upstream_is_checked_and_recorded_like_any_other(shop: Provider) -> None:
    sink = FakeSink()
    async with Yard(providers=[shop], sinks=[sink]) as yard:
        await yard.providers.wait_ready(30)
        await yard.call("shop__price", {"itme": "tea"})
        await yard.call("shop__price", {"item": "tea"})

    assert [(record.tool, record.source, record.code) for record in sink.records] == [
        ("shop__price", "shop", "invalid_input"),
        ("shop__price", "shop", None),
    ]


async def test_a_failure_of_an_upstream_keeps_its_code_and_names_the_upstream(shop: Provider) -> None:
    async with Yard(providers=[shop]) as yard:
        await yard.providers.wait_ready(30)
        answer = await yard.call("shop__price", {"item": "gold"})

    assert answer.error is not None
    assert (answer.error.code, answer.error.details["upstream"]) == ("not_found", "shop")


async def test_a_rule_is_about_the_tools_of_an_upstream(shop: Provider) -> None:
    rule = Rule(decision="deny", sources=("shop",), operations=(Operation.DESTROY,))
    async with Yard(providers=[shop], rules=[rule]) as yard:
        await yard.providers.wait_ready(30)
        answer = await yard.call("shop__close_shop")

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("permission_denied", False)


async def test_a_broken_upstream_does_not_break_the_yard(tmp_path: Path) -> None:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    broken = make_upstream("broken", UpstreamSettings(command=str(tmp_path / "missing")), state=tmp_path)
    async with Yard(tools=[add], providers=[broken]) as yard:
        answer = await yard.call("add", {"a": 1, "b": 2})
        status = broken.status()

    assert answer.data == 3
    assert status.state == "degraded"
    assert "missing" in status.reason


async def test_an_upstream_comes_and_goes_while_the_yard_is_open(shop: Provider) -> None:
    async with Yard() as yard:
        await yard.providers.add(shop)
        await yard.providers.wait_ready(30)
        before = [spec.name for spec in yard.list()]
        await yard.providers.remove("shop")
        after = [spec.name for spec in yard.list()]

    assert before == ["shop__close_shop", "shop__price"]
    assert after == []
