"""One MCP client as state, and what all clients of a yard share; no sockets here."""

from toolyard.conversation.exchange import Exchange, Notify
from toolyard.conversation.front import Front
from toolyard.conversation.talk import Conversation

__all__ = ["Conversation", "Exchange", "Front", "Notify"]
