"""The thesaurus: English stems and those of like meaning, from a file that `scripts/thesaurus.py` makes."""

import math
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["FILE", "Thesaurus", "load_thesaurus"]

FILE: Final = "thesaurus.bin"

_SMALL_WORDS: Final = (
    "by",
    "of",
    "or",
    "in",
    "to",
    "on",
    "id",
    "at",
    "for",
    "and",
    "all",
    "get",
    "with",
    "from",
    "new",
    "use",
    "make",
    "my",
    "up",
)
_LONGEST: Final = 14
_LETTERS_EACH: Final = 3.5


class Thesaurus:
    """Which stems mean something like a stem, and of which common words a joined one is made."""

    def __init__(self, words: list[str], lines: dict[str, str]) -> None:
        ranked = dict.fromkeys((*_SMALL_WORDS, *words))
        self._costs = {word: math.log((rank + 2) * 10) for rank, word in enumerate(ranked)}
        self._lines = lines

    def __contains__(self, stem: object) -> bool:
        return stem in self._lines

    def is_common(self, word: str) -> bool:
        """Return whether the word is one of the commonest, as it is written."""
        return word in self._costs

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

    def parts(self, word: str) -> list[str]:
        """Return the common words that were joined to this one, or nothing if it does not come apart."""
        size, costs = len(word), self._costs
        best = [0.0] + [math.inf] * size
        begins = [0] * (size + 1)
        for begin in range(size - 1):
            if best[begin] == math.inf:  # nothing ends here, so nothing begins here
                continue
            for end in range(begin + 2, min(begin + _LONGEST, size) + 1):
                cost = best[begin] + costs.get(word[begin:end], math.inf)
                if cost < best[end]:
                    best[end], begins[end] = cost, begin
        if best[size] == math.inf:
            return []
        parts: list[str] = []
        while size:
            parts.append(word[begins[size] : size])
            size = begins[size]
        return parts[::-1] if len(parts) > 1 and len(word) >= _LETTERS_EACH * len(parts) else []


@lru_cache(maxsize=1)
def load_thesaurus() -> Thesaurus:
    """Return the thesaurus, read once."""
    text = zlib.decompress(Path(__file__).with_name(FILE).read_bytes()).decode()
    words, _, rest = text.partition("\n")
    lines: dict[str, str] = {}
    for line in rest.split("\n"):
        stem, _, near = line.partition("\t")
        lines[stem] = near
    return Thesaurus(words.split(" "), lines)
