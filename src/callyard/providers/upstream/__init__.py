"""Upstreams: other MCP servers whose tools, resources and prompts are published here."""

from typing import Final

__all__ = ["LOCK_FILE"]

LOCK_FILE: Final = "callyard.lock"
"""The file that names the accepted definitions; the constant is here because importing this package loads nothing else."""
