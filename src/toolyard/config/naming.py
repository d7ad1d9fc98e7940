"""Naming: what an upstream may be called, and what becomes of names that others chose."""

import re
from hashlib import sha256
from typing import Final
from unicodedata import normalize

from toolyard.packs import PACKS
from toolyard.profile import METATOOLS

__all__ = ["RESERVED", "is_name", "made_name", "twin_of"]

RESERVED: Final = frozenset({METATOOLS, *PACKS})
"""Names of sources that are there already."""

_NAME: Final = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*")
_OTHER: Final = re.compile(r"[^a-z0-9]{2,}|[^a-z0-9_]")
_DIGITS: Final = 6


def is_name(text: str) -> bool:
    """Return whether an upstream may be called so: small letters and digits, with single '-' and '_' between them."""
    return text not in RESERVED and _NAME.fullmatch(text) is not None


def made_name(text: str) -> str:
    """Return the name that is made of another, always the same."""
    plain = normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = _OTHER.sub("-", plain).strip("-_")
    name = words or sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{name}-upstream" if name in RESERVED or not words else name


def twin_of(name: str, known: list[str]) -> str | None:
    """Return a name whose tools would be named like those of this one, because names of tools have no '-'."""
    return next((other for other in known if other != name and other.replace("-", "_") == name.replace("-", "_")), None)
