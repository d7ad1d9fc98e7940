"""Characters that deceive: those that nobody sees, and letters that pass for others; found, shown, and taken away."""

import re
from typing import Final
from unicodedata import normalize

__all__ = ["BIDI", "CONTROL", "SELECTORS", "TAGS", "ZERO_WIDTH", "find_lookalike", "plain", "visible"]

_FLAG: Final = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"  # the flags of Scotland and others are spelt so
_ZERO: Final = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0"
_BIDI: Final = "\u202a-\u202e\u2066-\u2069"
_SELECTOR: Final = "\ufe00-\ufe0f\U000e0100-\U000e01ef"
_CYRILLIC: Final = (0x430, 0x435, 0x43E, 0x440, 0x441, 0x443, 0x445, 0x456, 0x458, 0x455, 0x4BB, 0x501, 0x51B, 0x51D)
_CYRILLIC_CAPITALS: Final = (0x410, 0x412, 0x415, 0x405, 0x406, 0x408, 0x41A, 0x41C, 0x41D, 0x41E, 0x420, 0x421, 0x422, 0x425)
_GREEK: Final = (0x3BF, 0x3B1, 0x3B9, 0x3BD, 0x3C5, 0x3C1)
_GREEK_CAPITALS: Final = (0x391, 0x392, 0x395, 0x396, 0x397, 0x399, 0x39A, 0x39C, 0x39D, 0x39F, 0x3A1, 0x3A4, 0x3A5, 0x3A7)
_ARMENIAN: Final = (0x585, 0x57D, 0x578, 0x570)
_LOOKALIKES: Final = {
    **dict(zip(_CYRILLIC, "aeopcyxijshdqw", strict=True)),
    **dict(zip(_CYRILLIC_CAPITALS, "ABESIJKMHOPCTX", strict=True)),
    **dict(zip(_GREEK, "oaivup", strict=True)),
    **dict(zip(_GREEK_CAPITALS, "ABEZHIKMNOPTYX", strict=True)),
    **dict(zip(_ARMENIAN, "ounh", strict=True)),
}
_LIKE: Final = re.compile(f"[{''.join(map(chr, _LOOKALIKES))}]")
_LATIN: Final = re.compile("[A-Za-z]")
_WORDS: Final = re.compile(r"[^\W_]+")

TAGS: Final = re.compile(f"{_FLAG}|([\U000e0000-\U000e007f]+)")
"""Letters of the tags block, which no screen shows; flags match without the group."""
BIDI: Final = re.compile(f"[{_BIDI}]")
"""Characters that turn the direction of writing."""
SELECTORS: Final = re.compile(f"[{_SELECTOR}]{{2,}}")
"""Variation selectors that follow each other; one alone chooses how a character looks."""
ZERO_WIDTH: Final = re.compile(f"[{_ZERO}](?<![^\x00-\x7f][\u200c\u200d](?=[^\x00-\x7f]))(?<![\u0590-\u08ff][\u200e\u200f])")
"""Characters without width, but for those that join letters of other scripts or the parts of a picture."""
CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that belong in no text."""

_UNSEEN: Final = re.compile(rf"[{_ZERO}{_BIDI}{_SELECTOR}\U000e0000-\U000e007f\u2028\u2029\ufff9-\ufffb\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return a text as one line, with what nobody would see written out."""
    return _UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text).replace("\n", "\\n")


def plain(text: str) -> str:
    """Return a text as a model reads it: lower case, one space between words, without disguise."""
    if not text.isascii():
        text = normalize("NFKC", _UNSEEN.sub("", text)).translate(_LOOKALIKES).replace("\u2019", "'")
    return " ".join(text.lower().split())


def find_lookalike(text: str) -> str | None:
    """Return a word of Latin letters in which some only look like Latin ones, if there is any."""
    if text.isascii() or not _LIKE.search(text):
        return None
    return next((word for word in _WORDS.findall(text) if _LIKE.search(word) and _LATIN.search(word)), None)
