"""Log lines: an event followed by `key=value` fields, and exceptions without contents."""

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

from callyard._internal.mask import is_secret_name, mask_text, secrets_in

__all__ = ["is_identifier", "is_tool_name", "log_exception", "log_fields", "log_value", "traceback_of"]

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_TOOL_NAME: Final = r"[A-Za-z]+[0-9]{0,3}(?:[_.:-]+(?:[A-Za-z]+[0-9]{0,3}|[0-9]{1,3}))*\Z"
_MAX_NAME: Final = 64
_MAX_GROUP: Final = 10
"""The most exceptions of a group that are logged."""


def is_identifier(text: str) -> bool:
    """Return whether a text is one word of letters, digits and `_.:-`, which needs no quotes anywhere."""
    return _IDENTIFIER.match(text) is not None


def is_tool_name(text: str) -> bool:
    """Return whether an unknown tool name is safe to log: it looks like a name, not like a secret."""
    return len(text) <= _MAX_NAME and re.match(_TOOL_NAME, text) is not None and mask_text(text) == text


def log_value(value: object) -> str:
    """Return a value for a log line, quoted unless it is an identifier."""
    text = str(value)
    return text if _IDENTIFIER.match(text) else repr(text)


def log_fields(fields: Mapping[str, object]) -> str:
    """Return ` key=value` for each field, to append to an event."""
    return "".join(f" {key}={log_value(value)}" for key, value in fields.items())


def log_exception(
    log: logging.Logger,
    event: str,
    *facts: object,
    error: BaseException | None = None,
    contents: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Log an unexpected exception, by default the current one: its type, and where it was raised.

    Its message may hold contents of a call. So it is logged only where the logger takes DEBUG, and then masked;
    `contents` returns what else must be masked.
    """
    error = sys.exception() if error is None else error
    if not log.isEnabledFor(logging.ERROR):
        return
    path, line, function, _ = log.findCaller(stacklevel=2)
    record = log.makeRecord(log.name, logging.ERROR, path, line, msg=event, args=facts, exc_info=None, func=function)
    if error is not None:  # handlers append the text, and never see the exception
        with_messages = log.isEnabledFor(logging.DEBUG)
        record.exc_text = traceback_of(error, with_messages=with_messages, known=contents() if with_messages else ())
    log.handle(record)


def traceback_of(error: BaseException, *, with_messages: bool, known: Iterable[str] = ()) -> str:
    """Return the traceback of an exception and its causes, with or without their messages, and masked."""
    pieces: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = "".join(traceback.format_tb(current.__traceback__))
        pieces.append(f"Traceback (most recent call last):\n{frames}{_named(current)}")
        if with_messages:
            pieces[-1] += f": {_message(current)}"
        if isinstance(current, BaseExceptionGroup):
            inner = cast("BaseExceptionGroup[BaseException]", current).exceptions[:_MAX_GROUP]
            pieces += ["In a group:\n" + traceback_of(one, with_messages=with_messages) for one in inner]
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    text = "\n\nThe exception above led to:\n\n".join(reversed(pieces))
    named = {name: value for name, value in os.environ.items() if with_messages and is_secret_name(name)}
    return mask_text(text, {*known, *secrets_in(named)})


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - it may raise anything
        return f"(its message raises {_named(failure)})"


def _named(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
