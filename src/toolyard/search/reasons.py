"""Reasons: says briefly why a tool was found."""

from collections.abc import Iterable, Sequence
from typing import Final

from toolyard.search.fields import Fields
from toolyard.search.postings import Entry, Postings
from toolyard.search.query import Asked

__all__ = ["explain"]

_WORDS: Final = 4
_PLACES: Final = {"parameter_texts": "parameters", "choices": "parameters"}
_IDENTIFIERS: Final = frozenset({"name", "namespace", "tags", "parameters"})


def explain(entry: Entry, asked: Sequence[Asked], postings: Postings) -> str:
    """Return where the weightiest of the asked words stand, such as "'city' in name; 'town' as 'place' in description"."""
    terms = frozenset(entry.terms)
    answered = [(one, terms.intersection(one.variants)) for one in sorted(asked, key=lambda one: -one.weight)]
    left: list[tuple[Asked, frozenset[int]]] = [(one, held) for one, held in answered if held]
    reasons: dict[str, list[str]] = {}
    most = _WORDS
    for field, text in zip(Fields._fields, postings.fields(entry.spec), strict=True):
        if not left or not most:
            break
        if not text:
            continue
        words = _words(text, postings, identifiers=field in _IDENTIFIERS)
        said = [_said(one, held.intersection(words), words=words, postings=postings) for one, held in left if not held.isdisjoint(words)]
        if said:
            left = [(one, held) for one, held in left if held.isdisjoint(words)]
            reasons.setdefault(_PLACES.get(field, field), []).extend(said[:most])
            most = max(0, most - len(said))
    return "; ".join(f"{', '.join(said)} in {place}" for place, said in reasons.items()) or "like in meaning"


def _words(text: str, postings: Postings, *, identifiers: bool) -> dict[int, int]:
    """Return the terms of a text with the word that stands there."""
    words = postings.read(text, identifiers=identifiers)
    return dict(zip(map(postings.term_of.__getitem__, words), words, strict=True))


def _said(asked: Asked, held: Iterable[int], *, words: dict[int, int], postings: Postings) -> str:
    """Return how a text that holds these of the asked terms says it."""
    best = min(held, key=lambda term: (term != asked.term, -asked.variants[term], postings.spelled[words[term]]))
    return f"'{asked.text}'" if best == asked.term else f"'{asked.text}' as '{postings.spelled[words[best]]}'"
