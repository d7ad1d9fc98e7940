"""Runtimes: where programs written by a model run, within limits.

One protocol, several backends: plain processes for development, bubblewrap, containers and WebAssembly.
"""

__all__: list[str] = []
