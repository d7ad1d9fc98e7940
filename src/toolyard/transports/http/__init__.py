"""Streamable HTTP: one MCP endpoint for both protocol eras, on our own server or any ASGI server."""

from toolyard.transports.http.app import App, asgi
from toolyard.transports.http.server import Http

__all__ = ["App", "Http", "asgi"]
