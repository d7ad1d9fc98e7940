"""Challenges: what the header 'WWW-Authenticate' says about how to be let in."""

import re
from typing import Final

__all__ = ["parameter_of", "wants_more"]

_PARAMETER: Final = r'(?:^|[\s,]){}\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))'
_ESCAPED: Final = re.compile(r"\\(.)")


def parameter_of(challenge: str, name: str) -> str | None:
    """Return a parameter of a challenge, or nothing if it is not there."""
    found = re.search(_PARAMETER.format(re.escape(name)), challenge, re.IGNORECASE)
    if found is None:
        return None
    return found[2] if found[1] is None else _ESCAPED.sub(r"\1", found[1])


def wants_more(challenge: str) -> bool:
    """Return whether we are let in, but may not do this."""
    return parameter_of(challenge, "error") == "insufficient_scope"
