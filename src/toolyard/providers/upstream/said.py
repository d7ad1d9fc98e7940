"""What an upstream says that is no result, as data; what is none of these is nothing."""

from typing import Any, TypeVar

import msgspec

from toolyard.wire.faults import INTERNAL
from toolyard.wire.messages import Id

__all__ = ["SaidCancelled", "SaidFault", "SaidLine", "SaidProgress", "read"]

T = TypeVar("T")


class SaidProgress(msgspec.Struct, rename="camel", frozen=True):
    """How far a request has come."""

    progress_token: Id
    progress: float
    total: float | None = None
    message: str = ""


class SaidCancelled(msgspec.Struct, rename="camel", frozen=True):
    """A question of its own that it wants no answer to any more."""

    request_id: Id | None = None


class SaidLine(msgspec.Struct, frozen=True):
    """A line for the log."""

    data: Any = None
    level: str = "info"


class SaidFault(msgspec.Struct, frozen=True):
    """An error of JSON-RPC."""

    code: int = INTERNAL
    message: str = ""
    data: Any = None


def read(raw: msgspec.Raw, kind: type[T]) -> T | None:
    """Return what was said, or nothing if it is something else."""
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.DecodeError:
        return None
