"""Format of log lines: an event followed by `key=value` fields that grep and parsers can read."""

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["is_identifier", "log_fields", "log_value"]

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")


def is_identifier(text: str) -> bool:
    """Return whether a text is one word of letters, digits and `_.:-`, which needs no quotes anywhere."""
    return _IDENTIFIER.match(text) is not None


def log_value(value: object) -> str:
    """Return a value for a log line, quoted unless it is an identifier."""
    text = str(value)
    return text if is_identifier(text) else repr(text)


def log_fields(fields: Mapping[str, object]) -> str:
    """Return ` key=value` for each field, to append to an event."""
    return "".join(f" {key}={log_value(value)}" for key, value in fields.items())
