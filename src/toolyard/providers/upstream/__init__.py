"""Upstreams: other MCP servers that tools are borrowed from."""

__all__: list[str] = []
