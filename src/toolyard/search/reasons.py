"""Reasons: says briefly why a tool was found."""

from collections.abc import Sequence
from typing import Final

from toolyard.search.fields import fields_of
from toolyard.search.postings import Postings
from toolyard.search.query import Asked
from toolyard.search.stem import stem
from toolyard.search.words import read_words, split_word
from toolyard.spec import ToolSpec

__all__ = ["explain"]

_WORDS: Final = 4
_PLACES: Final = {
    "name": "name",
    "title": "title",
    "namespace": "namespace",
    "tags": "tags",
    "description": "description",
    "parameters": "parameters",
    "parameter_texts": "parameters",
    "choices": "parameters",
    "examples": "examples",
}


def explain(spec: ToolSpec, asked: Sequence[Asked], postings: Postings) -> str:
    """Return where the weightiest of the asked words stand, such as "'city' in name; 'town' as 'place' in description"."""
    fields = fields_of(spec)._asdict()
    held = {field: _terms(text, postings, identifiers=field in {"name", "namespace", "tags", "parameters"}) for field, text in fields.items()}
    found = {one.text: reason for one in sorted(asked, key=lambda one: -one.weight) if (reason := _reason(one, held))}
    reasons: dict[str, list[str]] = {}
    for said, place in list(found.values())[:_WORDS]:
        reasons.setdefault(place, []).append(said)
    return "; ".join(f"{', '.join(said)} in {place}" for place, said in reasons.items()) or "its name"


def _terms(text: str, postings: Postings, *, identifiers: bool) -> dict[int, str]:
    """Return the terms of a text with the word that stands there."""
    words = {postings.words[word]: word for written in read_words(text) for word in split_word(written) if word in postings.words}
    numbers = postings.read(text, identifiers=identifiers)
    return {postings.term_of[number]: words.get(number, "") for number in numbers}


def _reason(asked: Asked, held: dict[str, dict[int, str]]) -> tuple[str, str] | None:
    for term, _ in sorted(asked.variants.items(), key=lambda item: (item[0] != asked.term, -item[1], item[0])):
        for field, terms in held.items():
            if term in terms:
                word = terms[term]
                same = not word or term == asked.term or stem(word) == stem(asked.text)
                return (f"'{asked.text}'" if same else f"'{asked.text}' as '{word}'"), _PLACES[field]
    return None
