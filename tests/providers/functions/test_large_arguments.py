"""Large arguments of a function are validated as small ones are, and wrong ones are explained in bounded time."""

from datetime import date
from typing import Any

from pydantic import BaseModel
from table_tests import every_row

from callyard import Yard, tool
from callyard.model.schema import MAX_ISSUES

MANY = 20_000


class Left(BaseModel):
    """One of two."""

    a: int


class Right(BaseModel):
    """The other one."""

    b: int


@tool(operation="query")
async def numbers(a: list[int], extra: int = 0) -> int:
    """Take numbers."""
    return len(a) + extra


@tool(operation="query")
async def days(a: list[date]) -> int:
    """Take days."""
    return len(a)


@tool(operation="query")
async def either(a: list[Left | Right]) -> str:
    """Take one of two."""
    return type(a[0]).__name__ + type(a[-1]).__name__


WRONG: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("numbers", {"a": ["x"] * MANY}, MAX_ISSUES, "a.0", "type"),
    ("numbers", {"a": [1] * MANY + ["x"]}, 1, f"a.{MANY}", "type"),
    ("numbers", {"b": [1] * MANY}, 2, "a", "missing"),
    ("days", {"a": ["2026-01-01"] * MANY + ["no day"]}, 1, f"a.{MANY}", "date_parsing"),
    ("either", {"a": [{}] * MANY}, MAX_ISSUES, "a.0", "anyOf"),
]


@every_row(("name", "arguments", "number", "field", "code"), WRONG)
async def test_large_wrong_arguments_are_explained(
    name: str, arguments: dict[str, Any], number: int, field: str, code: str
) -> None:
    async with Yard(tools=[numbers, days, either]) as yard:
        error = (await yard.call(name, arguments)).error

    assert error is not None
    issues: Any = error.details["issues"]
    assert (len(issues), issues[0]["field"], issues[0]["code"]) == (number, field, code)


async def test_large_right_arguments_are_validated_as_small_ones_are() -> None:
    async with Yard(tools=[numbers, days, either]) as yard:
        assert (await yard.call("numbers", {"a": [1] * MANY, "extra": 1})).data == MANY + 1
        assert (await yard.call("days", {"a": ["2026-01-01"] * MANY})).data == MANY
        assert (await yard.call("either", {"a": [{"a": 1}] * MANY + [{"b": 1}]})).data == "LeftRight"
