"""Calling: the request that nearly every message is, read in one go instead of its frame first and its params later."""

from typing import Final, Literal

import msgspec

from toolyard.wire.messages import Id
from toolyard.wire.params import CallTool

__all__ = ["Calling", "decode_call"]


class Calling(msgspec.Struct):
    """A `tools/call` as it should be."""

    method: Literal["tools/call"]
    id: Id
    jsonrpc: Literal["2.0"]
    params: CallTool


_decode: Final = msgspec.json.Decoder(Calling).decode


def decode_call(data: bytes, *, depth: int) -> Calling | None:
    """Return the call that a message is, or nothing if it is something else or must be looked at more closely first."""
    size = len(data)
    # as in 'decode': what is so short cannot be too deep, and what is ASCII needs no look at its characters
    if not data.isascii() or (size > 2 * depth and (size > 5 * depth or data.find(b"[") >= 0)):
        return None
    try:
        return _decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
