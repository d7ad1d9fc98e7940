"""Configuration files of MCP clients: found, read, and edited as text; nothing in them is ever run."""

__all__: list[str] = []
