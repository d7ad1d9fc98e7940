"""Log lines: an event and then facts, which greps and parses whatever a fact holds."""

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["facts_of", "is_word", "quoted"]

_WORD: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")


def is_word(text: str) -> bool:
    """Return whether a text is one plain word, which may be repeated anywhere as it is."""
    return _WORD.match(text) is not None


def quoted(value: object) -> str:
    """Return a value as a log line can hold it: in quotes unless it is one plain word."""
    text = str(value)
    return text if is_word(text) else repr(text)


def facts_of(facts: Mapping[str, object]) -> str:
    """Return facts as they follow an event."""
    return "".join(f" {key}={quoted(value)}" for key, value in facts.items())
