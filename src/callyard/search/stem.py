"""Stems of English words, by the Porter2 algorithm.

Words of other languages mostly come out unchanged.
"""

import re
from typing import Final

__all__ = ["stem"]

_SHORTEST: Final = 3
_VOWELS: Final = frozenset("aeiouy")
_DOUBLES: Final = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")
_BEFORE_LI: Final = frozenset("cdeghkmnrt")


def _rules(text: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of an ending, or a word, and its replacement."""
    return tuple((ending, replacement) for ending, _, replacement in (rule.partition(":") for rule in text.split()))


_EXCEPTIONS: Final = dict(
    _rules("skis:ski skies:sky dying:die lying:lie tying:tie idly:idl gently:gentl ugly:ugli early:earli only:onli singly:singl")
) | {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}
_DONE_AFTER_PLURAL: Final = frozenset({"inning", "outing", "evening", "canning", "herring", "earring", "proceed", "exceed", "succeed"})
_LONG_BEGINNINGS: Final = ("gener", "commun", "arsen", "past", "univers", "later", "emerg", "organ", "inter")

_SECOND: Final = _rules("""
    ization:ize ational:ate fulness:ful ousness:ous iveness:ive tional:tion biliti:ble lessli:less entli:ent ogist:og
    ation:ate alism:al aliti:al ousli:ous iviti:ive fulli:ful enci:ence anci:ance abli:able izer:ize ator:ate alli:al bli:ble
""")
_THIRD: Final = _rules("""
    ational:ate tional:tion alize:al icate:ic iciti:ic ical:ic ness: ful:
""")
_FOURTH: Final = (
    *("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize"),
    *("al", "er", "ic"),
)
_SECOND_ENDINGS: Final = (*(ending for ending, _ in _SECOND), "ogi", "li")
_THIRD_ENDINGS: Final = (*(ending for ending, _ in _THIRD), "ative")
_FOURTH_ENDINGS: Final = (*_FOURTH, "ion")
_ENDINGS: Final = ("e", "s", "y", "ed", "ing", "ll", "i", *_SECOND_ENDINGS, *_THIRD_ENDINGS, *_FOURTH_ENDINGS)
"""Endings of words that are not their own stem: a quick check that most words fail."""
_FIRST_REGION: Final = re.compile(r"[^aeiouy]*[aeiouy]+[^aeiouy]")
_ENDS_SHORT: Final = re.compile(r"(?:[^aeiouy][aeiouy][^aeiouywxY]|\A[aeiouy][^aeiouy])\Z")


def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    if len(word) < _SHORTEST or not word.endswith(_ENDINGS) or not word.isascii() or not word.isalpha():
        return word
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    word = _mark_consonant_y(word)
    first = _first_region(word)
    second = _region(word, first)
    word = _plural(word)
    if word in _DONE_AFTER_PLURAL:
        return word
    word = _past(word, first)
    if word[-1] in "yY" and len(word) >= _SHORTEST and word[-2] not in _VOWELS:
        word = word[:-1] + "i"
    word = _longer_ending(word, first)
    word = _third(word, first, second)
    word = _fourth(word, second)
    return _last_letter(word, first, second).replace("Y", "y")


def _mark_consonant_y(word: str) -> str:
    """Return the word with 'Y' for each 'y' that is a consonant: at the start and after a vowel."""
    if "y" not in word:
        return word
    letters = list(word)
    for position, letter in enumerate(letters):
        if letter == "y" and (position == 0 or letters[position - 1] in _VOWELS):
            letters[position] = "Y"
    return "".join(letters)


def _region(word: str, start: int) -> int:
    """Return the position after the first consonant that follows a vowel, from `start` on."""
    found = _FIRST_REGION.match(word, start)
    return found.end() if found else len(word)


def _first_region(word: str) -> int:
    if not word.startswith(_LONG_BEGINNINGS):
        return _region(word, 0)
    return max(len(beginning) for beginning in _LONG_BEGINNINGS if word.startswith(beginning))


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
            if _VOWELS.isdisjoint(root):
                return word
            return _restored(root, first)
    return word


def _restored(root: str, first: int) -> str:
    """Return the word that a form in '-ed' or '-ing' without its ending came from."""
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if root.endswith(_DOUBLES):
        return root if len(root) == len("add") and root[0] in "aeo" else root[:-1]
    if len(root) <= first and _ENDS_SHORT.search(root):
        return root + "e"
    return root


def _longer_ending(word: str, first: int) -> str:
    if not word.endswith(_SECOND_ENDINGS):
        return word
    for ending, shorter in _SECOND:
        if word.endswith(ending):
            return word[: -len(ending)] + shorter if len(word) - len(ending) >= first else word
    if word.endswith("ogi") and len(word) - len("ogi") >= first and word[-4] == "l":
        return word[:-1]
    if word.endswith("li") and len(word) - len("li") >= first and word[-3] in _BEFORE_LI:
        return word[:-2]
    return word


def _third(word: str, first: int, second: int) -> str:
    if not word.endswith(_THIRD_ENDINGS):
        return word
    for ending, shorter in _THIRD:
        if word.endswith(ending):
            return word[: -len(ending)] + shorter if len(word) - len(ending) >= first else word
    if word.endswith("ative") and len(word) - len("ative") >= second:
        return word[: -len("ative")]
    return word


def _fourth(word: str, second: int) -> str:
    if not word.endswith(_FOURTH_ENDINGS):
        return word
    for ending in _FOURTH:
        if word.endswith(ending):
            return word[: -len(ending)] if len(word) - len(ending) >= second else word
    if word.endswith("ion") and len(word) - len("ion") >= second and word[-4] in "st":
        return word[:-3]
    return word


def _last_letter(word: str, first: int, second: int) -> str:
    last = len(word) - 1
    if word.endswith("e"):
        short = _ENDS_SHORT.search(word[:-1])
        return word[:-1] if last >= second or (last >= first and not short) else word
    if word.endswith("ll") and last >= second:
        return word[:-1]
    return word
