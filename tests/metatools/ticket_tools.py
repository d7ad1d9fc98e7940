"""Tools for metatools to be about, and what their tests share."""

from typing import Any

from callyard import Call, Envelope, Operation, Tool, ToolError, ToolSpec, Yard, tool
from callyard.dispatch.tool import check_by_schema
from callyard.model.envelope import Failure
from callyard.model.schema import SchemaValidator


class Bench:
    """Tools that remember how often they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    @tool(operation="query")
    async def add(self, a: int, b: int = 1) -> int:
        """Add two numbers."""
        self.ran.append("add")
        return a + b

    @tool(operation="command")
    async def open_ticket(self, title: str, labels: list[str] | None = None) -> dict[str, Any]:
        """Open a ticket for a customer. The rest of the text."""
        self.ran.append("open_ticket")
        return {"id": 7, "title": title, "labels": labels or []}

    @tool(operation="destroy")
    async def wipe(self) -> str:
        """Delete everything."""
        self.ran.append("wipe")
        return "gone"

    @tool(operation="query", reasons=("jammed",))
    async def fail(self) -> str:
        """Fail for a reason."""
        self.ran.append("fail")
        raise ToolError("state_error", "It is jammed.", reason="jammed")

    @tool(operation="query")
    async def echo(self, call: Call, previous: Any = "nothing") -> Any:
        """Return what came before."""
        self.ran.append(f"echo at {call.depth}")
        return {"previous": previous}


def failure(answer: Envelope) -> Failure:
    assert answer.error is not None, answer.data
    return answer.error


async def ask(yard: Yard, name: str, /, **arguments: Any) -> Any:
    """Return the data of a good answer, having checked that they are what the tool says it answers."""
    answer = await yard.call(name, arguments)
    assert answer.success, answer.error
    schema = yard.registry.find(name, yard.profile).spec.output_schema
    assert schema is not None
    assert SchemaValidator(schema).issues(answer.data) == []
    return answer.data


def made(name: str, description: str = "It does.", *, properties: dict[str, Any] | None = None, **given: Any) -> Tool:
    """Return a tool that answers with what it is given."""
    schema = {"type": "object", "properties": properties or {}, "additionalProperties": False}

    async def handler(call: Call) -> object:
        return call.arguments

    operation = given.pop("operation", Operation.QUERY)
    spec = ToolSpec(name=name, description=description, input_schema=schema, operation=operation, **given)
    return Tool(spec=spec, handler=handler, check=check_by_schema(schema))
