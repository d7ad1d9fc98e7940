"""Questions: what runs wait for, of the client or of a person.

Every wait of a run for somebody outside is a question here: an elicitation, or an approval. This module bounds them, in
number and in bytes, for all callers and for each. It does not know how a question is shown and who brings the answer:
that is up to the channel, or to the policy that asks.
"""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Final, Literal

import msgspec

from callyard.dispatch.sessions import SHARED_OWNER
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import ToolError

__all__ = ["Question", "QuestionKind", "Questions"]

QuestionKind = Literal["elicitation", "approval"]
_MAX_QUESTIONS: Final = 1000
_MAX_QUESTIONS_OF_OWNER: Final = 100
_MAX_BYTES: Final = 64 * 1024 * 1024
_MAX_BYTES_OF_OWNER: Final = 16 * 1024 * 1024


class Question(msgspec.Struct, eq=False, kw_only=True):
    """What one run waits for."""

    id: str
    kind: QuestionKind
    owner: str
    """Whose call asks: the identity and scope of its caller."""
    call_id: str
    tool: str
    asks: Mapping[str, ClientRequest] = {}
    """What the client is asked; nothing for an approval, which has a card of its own."""
    by: str = "client"
    """Who may answer: the client of the call, or those whom the approval's rule names."""
    declared: bool = False
    """Whether nothing ran yet, so that the request may start again, also in another process."""
    expires_at: float = 0.0
    """When nobody may answer any longer, in seconds since the epoch; 0 is not known."""
    size: int = 0
    """Bytes that are kept in memory while it is open."""

    def expire_after(self, seconds: float) -> None:
        """Note when it expires."""
        self.expires_at = time.time() + seconds


class Questions:
    """The open questions of one yard."""

    def __init__(self) -> None:
        self._open: dict[str, Question] = {}
        self._bytes = 0
        self._prefix = os.urandom(4).hex()
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def of(self, owner: str) -> list[Question]:
        """Return the open questions of a caller, the oldest first."""
        return [question for question in self._open.values() if question.owner == owner]

    def new_id(self) -> str:
        """Return an id that no other process uses."""
        return f"{self._prefix}{next(self._numbers):x}"

    @contextmanager
    def open(self, question: Question) -> Generator[Question]:
        """Keep a question open meanwhile.

        Raises:
            ToolError: `overloaded` if too many are open, of all or of this caller.
        """
        self._check_room(question)
        size = question.size
        self._open[question.id] = question
        self._bytes += size
        try:
            yield question
        finally:
            del self._open[question.id]
            self._bytes -= size

    def _check_room(self, question: Question) -> None:
        if question.owner != SHARED_OWNER:
            own = self.of(question.owner)
            size = sum(other.size for other in own) + question.size
            if len(own) >= _MAX_QUESTIONS_OF_OWNER or size > _MAX_BYTES_OF_OWNER:
                message = "Too many calls of this caller wait for answers already."
                raise ToolError("overloaded", message, may_have_run=None)
        if len(self._open) >= _MAX_QUESTIONS or self._bytes + question.size > _MAX_BYTES:
            raise ToolError("overloaded", "Too many calls wait for answers already.", may_have_run=None)
