"""Where a transport listens, and what every transport can do."""

from typing import Protocol

import msgspec

from toolyard.yard import Yard

__all__ = ["Address", "Transport"]


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
