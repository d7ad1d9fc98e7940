"""The tutorial: one idea in each test, with public names only. Read it from top to bottom."""

import asyncio
from typing import Annotated

from pydantic import BaseModel, Field

from callyard import Call, Caller, Example, Operation, Profile, Session, ToolError, Toolset, Yard, tool
from callyard.testing import FakeSink, connect


async def test_a_function_is_a_tool() -> None:
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with Yard(tools=[add]) as yard:
        answer = await yard.call("add", {"a": 1, "b": 2})

    assert answer.success
    assert answer.data == 3


async def test_the_signature_is_the_schema_and_the_docstring_is_the_description() -> None:
    async def greet(name: str, times: int = 1) -> str:
        """Greet somebody.

        Args:
            name: Who is greeted.
            times: How often.
        """
        return f"Hello, {name}! " * times

    async with Yard(tools=[greet]) as yard:
        (spec,) = yard.list()

    assert spec.description == "Greet somebody."
    assert spec.input_schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Who is greeted."},
            "times": {"type": "integer", "description": "How often.", "default": 1},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


async def test_an_invalid_call_gets_every_issue_at_once() -> None:
    async def order(item: str, count: Annotated[int, Field(ge=1)]) -> str:
        """Order something."""
        return f"{count} {item}"

    async with Yard(tools=[order]) as yard:
        answer = await yard.call("order", {"itme": "tea", "count": 0})

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    issues = {issue["field"]: issue for issue in answer.error.details["issues"]}
    assert issues["itme"]["did_you_mean"] == "item"
    assert issues["count"]["code"] == "greater_than_equal"
    assert issues["item"]["code"] == "missing"


async def test_common_mistakes_of_models_are_corrected_and_reported() -> None:
    async def wait(seconds: int, tags: list[str]) -> int:
        """Wait."""
        return seconds + len(tags)

    async with Yard(tools=[wait]) as yard:
        answer = await yard.call("wait", {"seconds": "5", "tags": '["a", "b"]'})

    assert answer.data == 7
    assert answer.meta.coerced == ("seconds", "tags")


async def test_a_tool_fails_with_a_code_and_says_what_to_do() -> None:
    @tool(operation="destroy", reasons=("not_empty",))
    async def close(account: str) -> None:
        """Close an account."""
        raise ToolError(
            "state_error", f"'{account}' holds money.", reason="not_empty", balance=12, hint="Pay it out first."
        )

    async with Yard(tools=[close]) as yard:
        answer = await yard.call("close", {"account": "ada"})

    assert answer.error is not None
    assert answer.error.code == "state_error"
    assert answer.error.details == {"reason": "not_empty", "balance": 12}
    assert answer.error.hint == "Pay it out first."


async def test_a_defect_is_logged_and_not_shown_to_the_agent() -> None:
    async def broken() -> int:
        """Break."""
        raise ValueError("the password is tea")

    async with Yard(tools=[broken]) as yard:
        answer = await yard.call("broken")

    assert answer.error is not None
    assert answer.error.code == "internal_error"
    assert b"tea" not in answer.to_json()


async def test_a_tool_takes_and_returns_pydantic_models() -> None:
    class Point(BaseModel):
        x: float
        y: float

    @tool(operation="query", examples=[Example({"point": {"x": 1, "y": 2}})])
    async def mirror(point: Point) -> Point:
        """Mirror a point."""
        return Point(x=point.y, y=point.x)

    async with Yard(tools=[mirror]) as yard:
        answer = await yard.call("mirror", {"point": {"x": 1, "y": 2}})

    assert answer.data == {"x": 2.0, "y": 1.0}


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    @tool(timeout=0.01, timeout_hint="Ask for fewer rows.")
    async def report() -> str:
        """Write a report."""
        await asyncio.Event().wait()
        return "never"

    async with Yard(tools=[report]) as yard:
        answer = await yard.call("report")

    assert answer.error is not None
    assert (answer.error.code, answer.error.hint) == ("timeout", "Ask for fewer rows.")


async def test_a_session_keeps_state_between_calls() -> None:
    async def open_cart(call: Call) -> str:
        """Open a cart."""
        session = call.start_session(kind="cart")
        session.state["items"] = []
        return session.id

    async def put(item: str, session: Session) -> int:
        """Put something into the cart."""
        session.state["items"].append(item)
        return len(session.state["items"])

    async with Yard(tools=[open_cart, put]) as yard:
        cart = (await yard.call("open_cart")).data
        await yard.call("put", {"item": "tea"})
        answer = await yard.call("put", {"item": "milk", "session_id": cart})

    assert answer.data == 2
    assert answer.meta.session_id == cart


async def test_a_profile_decides_which_tools_exist() -> None:
    @tool(operation="query")
    async def look() -> str:
        """Look."""
        return "seen"

    @tool(operation="destroy")
    async def wipe() -> None:
        """Delete everything."""
        raise AssertionError

    read_only = Profile(name="read only", toolsets=(Toolset(name="queries", operations=(Operation.QUERY,)),))
    async with Yard(tools=[look, wipe]) as yard:
        answer = await yard.call("wipe", caller=Caller(identity="guest", profile=read_only))
        names = [spec.name for spec in yard.list(read_only)]

    assert names == ["look"]
    assert answer.error is not None
    assert answer.error.code == "tool_not_found"


async def test_a_tool_can_call_another_and_every_call_is_recorded() -> None:
    async def price(item: str) -> int:
        """Tell a price."""
        return len(item)

    async def total(items: list[str], call: Call) -> int:
        """Add up prices."""
        answers = [await call.invoke("price", {"item": item}) for item in items]
        return sum(answer.data for answer in answers)

    sink = FakeSink()
    async with Yard(tools=[price, total], sinks=[sink]) as yard:
        answer = await yard.call("total", {"items": ["tea", "milk"]})

    assert answer.data == 7
    assert [record.tool for record in sink.records] == ["price", "price", "total"]
    assert sink.records[0].parent_id == answer.meta.call_id


async def test_a_large_result_becomes_a_handle_that_the_next_call_can_take() -> None:
    async def rows() -> list[int]:
        """List many numbers."""
        return list(range(20_000))

    async def total(numbers: list[int]) -> int:
        """Add numbers up."""
        return sum(numbers)

    async with Yard(tools=[rows, total]) as yard:
        stored = (await yard.call("rows")).data
        answer = await yard.call("total", {"numbers": {"$ref": stored["handle"]}})

    assert stored["shape"] == {"type": "array", "length": 20_000, "items": {"type": "integer"}}
    assert answer.data == sum(range(20_000))


async def test_dependencies_are_constructor_arguments() -> None:
    class Shop:
        def __init__(self, stock: dict[str, int]) -> None:
            self.stock = stock

        @tool(operation="query")
        async def count(self, item: str) -> int:
            """Count what is in stock."""
            return self.stock.get(item, 0)

    async with Yard(tools=[Shop({"tea": 3})]) as yard:
        assert (await yard.call("count", {"item": "tea"})).data == 3
    assert await Shop({"tea": 3}).count("tea") == 3


async def test_a_tool_is_tested_in_three_lines() -> None:
    async def walk(steps: int, call: Call) -> str:
        """Walk."""
        for step in range(steps):
            await call.progress(step + 1, steps)
        return "there"

    async with connect(Yard(tools=[walk])) as client:
        answer = await client.call("walk", steps=2)
    assert (answer.data, [note.done for note in client.notes]) == ("there", [1, 2])
