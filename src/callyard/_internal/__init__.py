"""Helpers that know nothing of tools: files, pipes, lazy imports, signed tokens, log lines."""

__all__: list[str] = []
