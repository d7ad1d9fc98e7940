"""One MCP client as state, and what all clients of a yard share; no sockets here."""

from toolyard.server.context import Front
from toolyard.server.request import Exchange, Notify
from toolyard.server.session import Conversation

__all__ = ["Conversation", "Exchange", "Front", "Notify"]
