"""The console: pages in a browser that show a served yard and steer it. It is mounted beside the MCP endpoint."""

from callyard.console.app import Console

__all__ = ["Console"]
