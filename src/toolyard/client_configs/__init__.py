"""Clients of MCP and the files they keep their servers in: found, read, and changed as text; nothing in them is ever run."""

__all__: list[str] = []
