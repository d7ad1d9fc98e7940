"""Transports: how clients outside the process reach a yard.

Its files:

- `memory`: a client in the same process that speaks MCP
- `sse`: HTTP as it was before streamable HTTP; deprecated, and for old clients alone
- `stdio`: the client started this process, and speaks MCP on its stdin and stdout
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from callyard.yard import Yard

__all__ = ["Address", "Transport", "fastest_loop"]


class Address(msgspec.Struct, frozen=True):
    """The name of a transport, and the address for clients."""

    name: str
    address: str


class Transport(Protocol):
    """Serves a yard to clients."""

    @property
    def name(self) -> str:
        """Return the name of the transport in the settings."""
        ...

    def info(self) -> Address:
        """Return the address, with the real port."""
        ...

    async def serve(self, yard: Yard) -> None:
        """Serve an open yard until `close` is called, it is cancelled, or its only client goes."""

    async def close(self) -> None:
        """Stop; may be called more than once."""


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops if it is installed, else None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
