"""The MCP server without I/O: sessions, requests, and the state that all clients of a yard share."""

from callyard.server.context import Notify, RequestContext, ServerContext
from callyard.server.session import ServerSession

__all__ = ["Notify", "RequestContext", "ServerContext", "ServerSession"]
