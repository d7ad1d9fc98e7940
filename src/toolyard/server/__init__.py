"""One MCP client as state, and what all clients of a yard share; no sockets here."""

from toolyard.server.context import ServerContext
from toolyard.server.request import Notify, RequestContext
from toolyard.server.session import ServerSession

__all__ = ["Notify", "RequestContext", "ServerContext", "ServerSession"]
