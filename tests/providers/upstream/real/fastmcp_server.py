"""A server of FastMCP that answers, fails, asks, tells how far it is and learns: `fastmcp_server.py (stdio | http)`.

It runs in an environment of its own, so everything of FastMCP is looked up by name.
"""

import socket
import sys
from importlib import import_module
from typing import Any

fastmcp: Any = import_module("fastmcp")
types: Any = import_module("mcp_types")
current: Any = import_module("fastmcp.server.dependencies").get_context
server = fastmcp.FastMCP("fast", version="3.2.1", instructions="Use 'add' to add.")


@server.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


@server.tool
def measure(place: str) -> dict[str, Any]:
    """Measure a place."""
    return {"place": place, "degrees": [7, 8.5], "rain": None}


@server.tool
def listed(count: int) -> list[str]:
    """List so many words."""
    return ["word"] * count


@server.tool
def picture() -> Any:
    """Show a picture."""
    return import_module("fastmcp.utilities.types").Image(data=b"\x89PNG", format="png")


@server.tool
def fail(text: str) -> None:
    """Fail with a text."""
    raise import_module("fastmcp.exceptions").ToolError(text)


@server.tool
def break_down() -> None:
    """Fail in a way that nobody foresaw."""
    raise ZeroDivisionError


@server.tool
async def step(count: int) -> str:
    """Tell how far it is, step by step."""
    for number in range(1, count + 1):
        await current().report_progress(number, count, f"step {number}")
    await current().info("All steps are done.")
    return "done"


@server.tool
async def greet() -> str:
    """Greet whoever calls, who is asked for a name."""
    answer = await current().elicit("Who is there?", str)
    return f"Hello {answer.data}" if answer.action == "accept" else answer.action


@server.tool
async def learn(name: str) -> str:
    """Learn another tool."""
    server.tool(lambda: name, name=name, description=f"Say '{name}'.")
    await current().send_notification(types.ToolListChangedNotification())
    return name


@server.resource("notes://all", mime_type="text/plain")
def notes() -> str:
    """Return every note."""
    return "Water the plants."


@server.resource("notes://{day}", mime_type="text/plain")
def note_of(day: str) -> str:
    """Return the note of a day."""
    return f"Note of {day}."


@server.prompt
def review(topic: str) -> str:
    """Ask for a review."""
    return f"Review {topic}."


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run(transport="stdio", show_banner=False)
    else:
        uvicorn: Any = import_module("uvicorn")
        listener = socket.create_server(("127.0.0.1", 0))
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(server.http_app(path="/mcp"), log_level="critical")).run([listener])
