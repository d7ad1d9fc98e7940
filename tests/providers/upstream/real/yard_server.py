"""A yard as an upstream, on stdio: `yard_server.py`."""

from callyard import ToolError, Yard, serve, tool

__all__ = ["big", "fails", "slow", "small"]


@tool(operation="query")
def small() -> dict[str, int]:
    """Return one number."""
    return {"a": 1}


@tool(operation="query")
def big() -> list[int]:
    """Return many numbers."""
    return list(range(20_000))


@tool(operation="query", job="always")
async def slow() -> str:
    """Return a text, as a job."""
    return "done"


@tool(operation="query")
def fails() -> str:
    """Fail, with a part of the result."""
    raise ToolError("not_found", "There is no such thing.", data={"left": 1})


if __name__ == "__main__":
    serve(Yard("inner", tools=[small, big, slow, fails]))
