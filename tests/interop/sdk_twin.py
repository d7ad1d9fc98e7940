"""The official SDK's server with tools, resources and prompts as in `yard_for_clients.py`, to compare the two."""

import base64
import json
import socket
import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, Message, UserMessage
from mcp_types import Completion, EmbeddedResource, ImageContent, ResourceLink, TextResourceContents, ToolAnnotations

__all__ = ["server"]

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000000000500017a5eab3f0000000049454e44ae426082"
)
DAYS = {"monday": "Water the plants.", "tuesday": "Repot the fern."}
READ = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
server = MCPServer("shed", version="1.2.3", instructions="Use 'add' to add.", log_level="CRITICAL")


@server.tool(title="Add two numbers", annotations=READ)
async def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


@server.tool(annotations=READ)
async def echo(text: str, tags: list[str] | None = None) -> dict[str, Any]:
    """Return what was given."""
    return {"text": text, "tags": tags or []}


@server.tool(annotations=READ, structured_output=False)
async def plain(text: str) -> str:
    """Return the text as it is."""
    return text


@server.tool(annotations=READ, structured_output=False)
async def paint() -> list[Any]:
    """Return a picture, a text, a link and a page."""
    page = TextResourceContents(uri="notes://monday", mime_type="text/plain", text=DAYS["monday"])
    link = ResourceLink(type="resource_link", uri="notes://all", name="all")
    return [Image(data=PIXEL, format="png"), "A pixel.", link, EmbeddedResource(type="resource", resource=page)]


@server.tool()
async def fail(code: str = "state_error") -> None:
    """Fail with a code."""
    raise ValueError(code)


@server.resource("notes://all", name="all_notes", title="All notes", mime_type="text/markdown")
async def all_notes() -> str:
    """Return every note as one page."""
    return "\n".join(DAYS.values())


@server.resource("notes://days/{day}", name="note_of")
async def note_of(day: str) -> str:
    """Return the note of a day."""
    return DAYS[day]


@server.prompt(title="Review a text")
async def review(text: str, tone: str = "kind") -> list[Message]:
    """Ask for a review."""
    image = ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png")
    return [UserMessage(f"Be {tone}: {text}"), UserMessage(image), AssistantMessage("I will.")]


@server.prompt()
async def remember() -> str:
    """Ask for what was said before."""
    return "What did I say?"


@server.completion()
async def complete(ref: Any, argument: Any, context: Any) -> Completion | None:
    """Complete a tone."""
    values = [tone for tone in ("kind", "keen") if tone.startswith(argument.value)]
    return Completion(values=values, total=len(values), has_more=False)


if __name__ == "__main__":
    settings: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    if settings.get("transport") != "http":
        server.run("stdio")
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run([listener])
