"""Streamable HTTP: one MCP endpoint for both protocol eras, on our own server or any ASGI server."""

from callyard.transports.http.app import App, asgi
from callyard.transports.http.server import Http

__all__ = ["App", "Http", "asgi"]
