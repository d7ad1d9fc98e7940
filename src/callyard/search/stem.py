"""Stems of English words, by the Porter2 algorithm.

Words of other languages mostly come out unchanged.
"""

import re
from typing import Final

__all__ = ["stem"]

_SHORTEST: Final = 3
_VOWELS: Final = frozenset("aeiouy")
_DOUBLES: Final = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_BEFORE: Final = {"ogi": "l", "li": "cdeghkmnrt", "ion": "st"}
"""Endings that count only after one of these letters."""
_CONSONANT_Y: Final = re.compile(r"(^|[aeiouy])y")
"""A 'y' at the start or after a vowel, which is marked as 'Y'."""


def _rules(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of an ending, or a word, and its replacement."""
    return tuple((ending, replacement) for ending, _, replacement in (rule.partition(":") for rule in text.split()))


_EXCEPTIONS: Final = dict(
    _rules(
        "skis:ski skies:sky dying:die lying:lie tying:tie idly:idl gently:gentl ugly:ugli early:earli only:onli "
        "singly:singl"
    )
) | {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}
_DONE_AFTER_PLURAL: Final = frozenset(
    {"inning", "outing", "evening", "canning", "herring", "earring", "proceed", "exceed", "succeed"}
)
_LONG_BEGINNINGS: Final = ("gener", "commun", "arsen", "past", "univers", "later", "emerg", "organ", "inter")

_SECOND: Final = _rules("""
    ization:ize ational:ate fulness:ful ousness:ous iveness:ive tional:tion biliti:ble lessli:less entli:ent ogist:og
    ation:ate alism:al aliti:al ousli:ous iviti:ive fulli:ful enci:ence anci:ance abli:able izer:ize ator:ate alli:al
    bli:ble ogi:og li:
""")
_THIRD: Final = _rules("""
    ational:ate tional:tion alize:al icate:ic iciti:ic ical:ic ness: ful:
""")
_FOURTH: Final = _rules("""
    ement: ance: ence: able: ible: ment: ant: ent: ism: ate: iti: ous: ive: ize: al: er: ic: ion:
""")
_ATIVE: Final = _rules("ative:")
_FIRST_REGION: Final = re.compile(r"[^aeiouy]*[aeiouy]+[^aeiouy]")
_ENDS_SHORT: Final = re.compile(r"(?:[^aeiouy][aeiouy][^aeiouywxY]|\A[aeiouy][^aeiouy])\Z")


def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    if len(word) < _SHORTEST or not word.isascii() or not word.isalpha():
        return word
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    word = _CONSONANT_Y.sub(r"\1Y", word)
    first = max((len(begins) for begins in _LONG_BEGINNINGS if word.startswith(begins)), default=0) or _region(word, 0)
    second = _region(word, first)
    word = _plural(word)
    if word in _DONE_AFTER_PLURAL:
        return word
    word = _past(word, first)
    if word[-1] in "yY" and len(word) >= _SHORTEST and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    word = _replaced(word, _SECOND, first)
    word = _replaced(word, _ATIVE, second) if word.endswith("ative") else _replaced(word, _THIRD, first)
    word = _replaced(word, _FOURTH, second)
    return _last_letter(word, first, second).replace("Y", "y")


def _region(word: str, start: int) -> int:
    """Return the position after the first consonant that follows a vowel, from `start` on."""
    found = _FIRST_REGION.match(word, start)
    return found.end() if found else len(word)


def _plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > len("dies") else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and not _VOWELS.isdisjoint(word[:-2]):
        return word[:-1]
    return word


def _past(word: str, first: int) -> str:
    if word.endswith(("eed", "eedly")):
        root = word.removesuffix("ly")
        return root[:-1] if len(root) - len("eed") >= first else word
    for ending in ("ingly", "edly", "ing", "ed"):
        if word.endswith(ending):
            root = word[: -len(ending)]
            return word if _VOWELS.isdisjoint(root) else _restored(root, first)
    return word


def _restored(root: str, first: int) -> str:
    """Return the word that a form in '-ed' or '-ing' without its ending came from."""
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if root.endswith(_DOUBLES):
        return root if len(root) == len("add") and root[0] in "aeo" else root[:-1]
    return root + "e" if len(root) <= first and _ENDS_SHORT.search(root) else root


def _replaced(word: str, rules: tuple[tuple[str, str], ...], region: int) -> str:
    """Return the word after the first rule that has its ending, which must be in the region."""
    for ending, replacement in rules:
        if word.endswith(ending):
            place = len(word) - len(ending)
            counts = place >= region and word[place - 1] in _BEFORE.get(ending, word)
            return word[:place] + replacement if counts else word
    return word


def _last_letter(word: str, first: int, second: int) -> str:
    last = len(word) - 1
    if word.endswith("e"):
        short = _ENDS_SHORT.search(word[:-1])
        return word[:-1] if last >= second or (last >= first and not short) else word
    return word[:-1] if word.endswith("ll") and last >= second else word
