"""What has nothing to do with tools: files, pipes, lazy loading, signed tokens, log lines."""

__all__: list[str] = []
