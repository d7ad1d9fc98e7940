"""The HTTP transport: one endpoint for both protocol eras, as a server of its own or inside any ASGI application."""

from toolyard.transports.http.app import App, asgi
from toolyard.transports.http.server import Http

__all__ = ["App", "Http", "asgi"]
