"""A server of the official Python SDK that wants pages opened, as the older era does: `pages_server.py`, on stdio."""

from mcp import UrlElicitationRequiredError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequestURLParams

__all__ = ["server"]

PAGE = "https://login.example/start?for=files"
server = MCPServer("pages", log_level="CRITICAL")
done: set[str] = set()


@server.tool()
async def files() -> str:
    """List files, once somebody has signed in."""
    if "files" not in done:
        page = ElicitRequestURLParams(mode="url", message="Sign in.", url=PAGE, elicitation_id="files")
        raise UrlElicitationRequiredError([page])
    return "a.txt"


@server.tool()
async def finish(context: Context, key: str) -> str:
    """Note that a page is done, and tell the client."""
    done.add(key)
    await context.session.send_elicit_complete(key)
    return key


@server.tool()
async def pay(context: Context, url: str = "https://pay.example/7") -> str:
    """Have a page opened while the call runs."""
    answer = await context.elicit_url("Pay here.", url, "pay")
    await context.session.send_elicit_complete("pay", related_request_id=context.request_id)
    return str(answer.action)


if __name__ == "__main__":
    server.run("stdio")
