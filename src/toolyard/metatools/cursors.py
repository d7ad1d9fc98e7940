"""Cursors: where a page of a metatool ended, sealed, and good only for the same question to the same tools, ranked the same way."""

from hashlib import sha256
from typing import Any, Final

from toolyard.envelope import encode_sorted
from toolyard.errors import ToolError
from toolyard.seal import Seal, SealError

__all__ = ["Cursors"]

_PURPOSE: Final = "page of a metatool"
_DIGITS: Final = 16


class Cursors:
    """Makes and reads cursors with one secret."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def close(self, question: list[Any], end: int) -> str:
        """Return the cursor of the page that follows; the question is everything that decides what is on it."""
        return self._seal.close(_PURPOSE, [_digest(question), end])

    def open(self, question: list[Any], cursor: str | None, *, again: str) -> int:
        """Return where the page begins; without a cursor it is the first.

        Raises:
            ToolError: `invalid_input` if it is none of ours, of another question, or of tools or a ranking that changed since.
        """
        if cursor is None:
            return 0
        try:
            digest, end = self._seal.open(_PURPOSE, cursor)
        except SealError:
            raise _refusal("unknown_cursor", "The cursor is none that was given out here.", again) from None
        if digest != _digest(question):
            raise _refusal(
                "stale_cursor", "The cursor is of another question, or the tools or how they are ranked have changed since.", again
            )
        return int(end)


def _digest(question: list[Any]) -> str:
    return sha256(encode_sorted(question)).hexdigest()[:_DIGITS]


def _refusal(code: str, message: str, again: str) -> ToolError:
    return ToolError(
        "invalid_input",
        message,
        hint="Start from the first page: call again without 'cursor', and with the same arguments for every page.",
        next_actions=[again],
        issues=[{"field": "cursor", "code": code, "message": message}],
    )
