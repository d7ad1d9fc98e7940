"""Reasons: says briefly why a tool was found."""

from collections.abc import Sequence
from typing import Final

from toolyard.search.fields import fields_of
from toolyard.search.postings import Postings
from toolyard.search.query import Asked
from toolyard.spec import ToolSpec

__all__ = ["explain"]

_WORDS: Final = 4
_PLACES: Final = {"parameter_texts": "parameters", "choices": "parameters"}
_IDENTIFIERS: Final = frozenset({"name", "namespace", "tags", "parameters"})


def explain(spec: ToolSpec, asked: Sequence[Asked], postings: Postings) -> str:
    """Return where the weightiest of the asked words stand, such as "'city' in name; 'town' as 'place' in description"."""
    left = [one for one in sorted(asked, key=lambda one: -one.weight) if one.variants]
    reasons: dict[str, list[str]] = {}
    most = _WORDS
    for field, text in fields_of(spec)._asdict().items():
        if not text or not most:
            continue
        terms = _terms(text, postings, identifiers=field in _IDENTIFIERS)
        said = {one.text: word for one in left if (word := _said(one, terms))}
        left = [one for one in left if one.text not in said]
        if said:
            reasons.setdefault(_PLACES.get(field, field), []).extend(list(said.values())[:most])
            most = max(0, most - len(said))
    return "; ".join(f"{', '.join(said)} in {place}" for place, said in reasons.items()) or "like in meaning"


def _terms(text: str, postings: Postings, *, identifiers: bool) -> dict[int, str]:
    """Return the terms of a text with the word that stands there."""
    return {postings.term_of[number]: postings.spelled[number] for number in postings.read(text, identifiers=identifiers)}


def _said(asked: Asked, terms: dict[int, str]) -> str:
    """Return how the text says what is asked, or nothing if it does not."""
    held = terms.keys() & asked.variants.keys()
    if not held:
        return ""
    best = min(held, key=lambda term: (term != asked.term, -asked.variants[term], term))
    word = terms[best]
    return f"'{asked.text}'" if best == asked.term else f"'{asked.text}' as '{word}'"
