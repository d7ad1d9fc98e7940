"""The thesaurus: English stems and those of like meaning, from a file that `scripts/thesaurus.py` makes."""

import zlib
from functools import lru_cache
from importlib.resources import files
from typing import Final

__all__ = ["FILE", "Thesaurus", "load_thesaurus"]

FILE: Final = "thesaurus.bin"


class Thesaurus:
    """Which stems mean something like a stem, and how much so."""

    def __init__(self, lines: dict[str, str]) -> None:
        self._lines = lines

    def __contains__(self, stem: object) -> bool:
        return stem in self._lines

    def near(self, stem: str, most: int) -> list[tuple[str, float]]:
        """Return the nearest stems, with their likeness from 0 to 1."""
        line = self._lines.get(stem)
        if not line:
            return []
        found: list[tuple[str, float]] = []
        for part in line.split(" ")[:most]:
            near, _, likeness = part.partition(":")
            found.append((near, int(likeness) / 100))
        return found


@lru_cache(maxsize=1)
def load_thesaurus() -> Thesaurus:
    """Return the thesaurus, read once."""
    text = (files(__package__ or "toolyard.search") / "thesaurus.txt").read_bytes().decode()
    lines: dict[str, str] = {}
    for line in text.split("\n"):
        stem, _, near = line.partition("\t")
        lines[stem] = near
    return Thesaurus(lines)
