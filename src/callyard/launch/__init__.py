"""From settings to a running server."""

__all__: list[str] = []
