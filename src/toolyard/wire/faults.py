"""Faults: what is wrong with a message itself, as JSON-RPC errors.

What is wrong with a tool call that is one is never a fault: it is an envelope.
"""

from typing import Any, Final

__all__ = [
    "HEADER_MISMATCH",
    "HTTP_STATUS",
    "INTERNAL",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "PARSE",
    "UNSUPPORTED_VERSION",
    "Fault",
]

PARSE: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

HTTP_STATUS: Final[dict[int, int]] = {
    PARSE: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}


class Fault(Exception):  # noqa: N818 - an error is what a call answers; this is none
    """A message cannot be answered as what it claims to be."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @property
    def http(self) -> int:
        """Return the status that says the same in HTTP, in the era that says it there, too."""
        return HTTP_STATUS.get(self.code, 200)
