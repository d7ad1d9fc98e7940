"""Transports: ways in from outside the process, and what opens one."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from toolyard.yard import Yard

__all__ = ["Address", "Transport", "fastest_loop"]


class Address(msgspec.Struct, frozen=True):
    """Where a transport listens: its name, and the address that a client is given."""

    name: str
    address: str


class Transport(Protocol):
    """A way in: bytes to conversations and back."""

    @property
    def name(self) -> str:
        """Return what the transport is chosen by."""
        ...

    def info(self) -> Address:
        """Return where it listens, as it really is."""
        ...

    async def serve(self, yard: Yard) -> None:
        """Serve an open yard until it is closed, cancelled, or its client goes."""
        ...

    async def close(self) -> None:
        """End; may be called more than once."""
        ...


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest loop there is, or nothing for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
