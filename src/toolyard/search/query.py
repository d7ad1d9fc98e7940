"""Questions: a text as the words it asks for, each with what else could be meant by it."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from toolyard.search.spelling import Spelling
from toolyard.search.stem import stem
from toolyard.search.thesaurus import Thesaurus
from toolyard.search.values import find_values
from toolyard.search.view import View
from toolyard.search.words import SHORT_FORMS, STOP_WORDS, plain, split_word
from toolyard.search_settings import SearchSettings

__all__ = ["Asked", "read_query", "split_clauses"]

_CLAUSES: Final = 12
# A query may be anything, so none of these may look at a stretch of it again from each place within: what is as long as it can be
# begins where what is before it is of another kind.
_CLAUSE: Final = re.compile(
    r"(?:(?<![.;?!\n])|(?<=,\n))[.;?!\n]+(?:\s|$)|,\s|\b(?:and|then|also|additionally|finally|plus)\b", re.IGNORECASE
)
_WORD: Final = re.compile(r"[^\W_]+")
_SHORT_FORM_WEIGHT: Final = 0.9
_UNKNOWN: Final = 8
"""Unknown words of one question that are looked for under another spelling, so that nonsense costs little."""
_SLIPPED_TWICE: Final = 2


class Asked(NamedTuple):
    """One word of a question: what it says, and the terms that answer it with what each counts."""

    text: str
    word: int
    term: int
    weight: float
    """What the best answer counts."""
    most: float
    """What it would count if the word itself stood in a tool."""
    variants: dict[int, float]
    clause: int


class _Reading(NamedTuple):
    view: View
    settings: SearchSettings
    thesaurus: Thesaurus
    spelling: Spelling
    unknown: list[str]


def read_query(query: str, view: View, *, settings: SearchSettings, thesaurus: Thesaurus) -> list[Asked]:
    """Return what a text asks for, in its order, every term once; nothing in it can make this fail or take long."""
    reading = _Reading(view, settings, thesaurus, Spelling(view, thesaurus), [])
    asked: dict[str, Asked] = {}
    for text, value, clause in _words(plain(query[: settings.query_characters])[: settings.query_characters]):
        root = stem(text)
        if root not in asked:
            if len(asked) >= settings.query_words:
                break
            asked[root] = _ask(text, root, reading=reading, share=settings.value_weight if value else 1.0, clause=clause)
    return list(asked.values())


def split_clauses(query: str) -> list[str]:
    """Return the clauses of a text that have more than one word; none if it is only one."""
    begin, clauses = 0, list[str]()
    for end in (*(found.end() for found in _CLAUSE.finditer(query)), len(query)):
        clause = query[begin:end]
        if len(clause.split()) > 1:
            clauses.append(clause)
        begin = end
    return clauses[:_CLAUSES] if len(clauses) > 1 else []


def _words(text: str) -> Iterator[tuple[str, bool, int]]:
    """Return the words that say something, whether each is only a value, and the clause it is in."""
    values = list(find_values(text))
    clause, begin, value = 0, 0, 0
    for end in (*(found.end() for found in _CLAUSE.finditer(text)), len(text)):
        seen = False
        for found in _WORD.finditer(text, begin, end):
            place = found.start()
            while value < len(values) and values[value][1] <= place:
                value += 1
            inside = value < len(values) and values[value][0] <= place
            for word in split_word(found[0]):
                if word not in STOP_WORDS:
                    seen = True
                    yield word, inside, min(clause, _CLAUSES - 1)
        clause += seen
        begin = end


def _ask(text: str, root: str, *, reading: _Reading, share: float, clause: int) -> Asked:
    view, postings = reading.view, reading.view.postings
    term = postings.terms.get(root, -1)
    known = view.holders[term] > 0
    most = share * (view.rarities[term] if known else view.rarest())
    variants: dict[int, float] = {term: most} if known and most else {}
    for near, likeness in _near(text, root, known=known or share < 1, reading=reading):
        other = postings.terms.get(near, -1)
        if view.holders[other]:
            weight = min(share * view.rarities[other], most) * min(likeness, 1.0)
            if weight:  # what counts nothing is no answer
                variants[other] = max(weight, variants.get(other, 0.0))
    return Asked(text, postings.words.get(text, -1), term, max(variants.values(), default=0.0), most, variants, clause)


def _near(text: str, root: str, *, reading: _Reading, known: bool) -> Iterator[tuple[str, float]]:
    """Return the stems that may have been meant too, with their likeness."""
    settings, thesaurus = reading.settings, reading.thesaurus
    for near, likeness in thesaurus.near(root, settings.neighbours):
        yield near, likeness * settings.neighbour_weight
    for near in SHORT_FORMS.get(text, ()):
        yield stem(near), _SHORT_FORM_WEIGHT
    if known or root in thesaurus or not settings.spelling_weight:
        return
    reading.unknown.append(text)
    if len(reading.unknown) > _UNKNOWN:
        return
    for near, likeness in reading.spelling.near(text, twice=len(reading.unknown) <= _SLIPPED_TWICE):
        yield near, likeness * settings.spelling_weight
        for further, more in thesaurus.near(near, settings.neighbours):
            yield further, likeness * more * settings.spelling_weight * settings.neighbour_weight
