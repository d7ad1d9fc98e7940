"""The event loop that a server runs on: uvloop where it is installed, asyncio's own elsewhere."""

import asyncio
from collections.abc import Callable

__all__ = ["fastest_loop"]


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest loop there is, or nothing for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
