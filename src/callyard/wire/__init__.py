"""MCP as data: bytes to messages and back, without I/O and without state."""

__all__: list[str] = []
