"""The lexical strategy: ranks by words, their stems, words of similar meaning, and the field a word is in.

It collects the tools that contain the rare words of a query, and scores the best of them exactly. Hidden tools are left
out before that, so that pages are full and scores do not reveal them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from heapq import nlargest
from itertools import accumulate, chain, groupby, islice, pairwise
from operator import itemgetter, mul
from typing import ClassVar, Final, NamedTuple

from callyard.model.spec import ToolSpec
from callyard.search.hits import RULES, Allows, Filter, Found, Hit, closest_namespaces, exact_match, page, search_names
from callyard.search.postings import Entry, Postings, View, Weights
from callyard.search.stem import stem
from callyard.search.text import (
    ABBREVIATIONS,
    QUERY_CHARACTERS,
    QUERY_WORDS,
    STOP_WORDS,
    Fields,
    Thesaurus,
    find_values,
    fold,
    load_thesaurus,
    split_word,
)

__all__ = ["Lexical", "QueryWord", "Scored", "in_order", "score", "split_clauses"]


_CLAUSES: Final = 12
# Linear on any query: the look-behind lets a run of separators match only from its first character.
_CLAUSE: Final = re.compile(
    r"(?:(?<![.;?!\n])|(?<=,\n))[.;?!\n]+(?:\s|$)|,\s|\b(?:and|then|also|additionally|finally|plus)\b", re.IGNORECASE
)
_WORD: Final = re.compile(r"[^\W_]+")
_VALUE_WEIGHT: Final = 0.3
"""Weight of quoted words, addresses and numbers in a query: they are values, seldom names of tools."""
_NEIGHBOUR_WEIGHT: Final = 1.1
_ABBREVIATION_WEIGHT: Final = 0.9
_CORRECTED_WORDS: Final = 8
"""Unknown words of one query whose spelling is corrected, so that nonsense costs little."""
_CORRECTED_TWICE: Final = 2


class QueryWord(NamedTuple):
    """One word of a query, and the terms that match it."""

    text: str
    word: int
    term: int
    weight: float
    full_weight: float
    """The weight of the word itself, if a tool contained it."""
    variants: dict[int, float]
    """The matching terms with their weights."""
    clause: int


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_SHORTEST_CORRECTED: Final = 4
_LONGEST_CORRECTED: Final = 24
_TWO_ERRORS: Final = 8
"""Letters from which a word may have two errors."""
_FIRST_ERRORS: Final = 24
"""First errors that are tried for a second one: the number of candidates multiplies."""
_SUGGESTIONS: Final = 4


class _Spelling(NamedTuple):
    """Finds visible words and words of the thesaurus that are spelled nearly like another."""

    view: View
    thesaurus: Thesaurus

    def suggestions(self, word: str, *, twice: bool = True) -> list[tuple[str, float]]:
        """Return the stems that may have been meant, with their likelihood from 0 to 1, the likeliest first.

        With `twice`, a long word may have two errors, which takes longer.
        """
        if not _SHORTEST_CORRECTED <= len(word) <= _LONGEST_CORRECTED:
            return []
        found = dict(self._parts(word))
        if not found:
            for likelihood, written in _edits(word):
                self._note(written, likelihood, found)
        if twice and not found and len(word) >= _TWO_ERRORS:
            for first in islice(_losses(word), _FIRST_ERRORS):
                for likelihood, written in _short_edits(first):
                    self._note(written, 0.7 * likelihood, found)
        return sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_SUGGESTIONS]

    def _note(self, written: str, likelihood: float, found: dict[str, float]) -> None:
        if self._is_visible(written):
            root = stem(written)
        elif self.thesaurus.is_common(written):
            root, likelihood = stem(written), likelihood * 0.9
        else:
            return
        found[root] = max(likelihood, found.get(root, 0.0))

    def _is_visible(self, written: str) -> bool:
        postings = self.view.postings
        number = postings.words.get(written)
        return number is not None and self.view.tool_counts[postings.term_of[number]] > 0

    def _parts(self, word: str) -> Iterator[tuple[str, float]]:
        """Yield the visible words that were joined without a space, if there are any."""
        for cut in range(len(word) - 2, 1, -1):
            if self._is_visible(word[:cut]) and self._is_visible(word[cut:]):
                yield stem(word[:cut]), 1.0
                yield stem(word[cut:]), 1.0
                return
        for part in self.thesaurus.split(word):
            if self._is_visible(part):
                yield stem(part), 1.0


def _losses(word: str) -> Iterator[str]:
    """Yield the word with two letters swapped, or with one letter less."""
    for position in range(1, len(word)):
        yield word[: position - 1] + word[position] + word[position - 1] + word[position + 1 :]
        yield word[:position] + word[position + 1 :]


def _short_edits(word: str) -> Iterator[tuple[float, str]]:
    """Yield everything that is one error away, without wrong letters, which would be too many."""
    for lost in _losses(word):
        yield 0.9, lost
    for position in range(1, len(word) + 1):
        head, tail = word[:position], word[position:]
        for letter in _LETTERS:
            yield 1.0, head + letter + tail


def _edits(word: str) -> Iterator[tuple[float, str]]:
    """Yield everything that is one error away with its likelihood: letters swapped, lost, added or wrong."""
    for position in range(len(word) + 1):
        head, tail = word[:position], word[position:]
        first = 1.0 if position else 0.8
        if len(tail) > 1:
            yield first, head + tail[1] + tail[0] + tail[2:]
        for letter in _LETTERS:
            yield first, head + letter + tail
        if tail:
            yield 0.9 * first, head + tail[1:]
            for letter in _LETTERS:
                yield 0.8 * first, head + letter + tail[1:]


class _QueryReader(NamedTuple):
    view: View
    weights: Weights
    thesaurus: Thesaurus
    spelling: _Spelling
    corrected: list[str]

    def read(self, query: str) -> list[QueryWord]:
        """Return the words of a query in order, every stem once; no text makes it raise or take long."""
        words: dict[str, QueryWord] = {}
        for text, is_value, clause in _words(fold(query[:QUERY_CHARACTERS])[:QUERY_CHARACTERS]):
            root = stem(text)
            if root not in words:
                if len(words) >= QUERY_WORDS:
                    break
                words[root] = self._word(text, root, share=_VALUE_WEIGHT if is_value else 1.0, clause=clause)
        return list(words.values())

    def _word(self, text: str, root: str, *, share: float, clause: int) -> QueryWord:
        view, postings = self.view, self.view.postings
        term = postings.terms.get(root, -1)
        is_known = view.tool_counts[term] > 0
        full_weight = share * (view.rarities[term] if is_known else view.rarest())
        variants: dict[int, float] = {term: full_weight} if is_known and full_weight else {}
        for related, likeness in self._related(text, root, correct=not is_known and share == 1):
            other = postings.terms.get(related, -1)
            if view.tool_counts[other]:
                weight = min(share * view.rarities[other], full_weight) * min(likeness, 1.0)
                variants[other] = max(weight, variants.get(other, 0.0))
        weight = max(variants.values(), default=0.0)
        number = postings.words.get(text, -1)
        return QueryWord(text, number, term, weight, full_weight, variants=variants, clause=clause)

    def _related(self, text: str, root: str, *, correct: bool) -> Iterator[tuple[str, float]]:
        """Yield the stems that may have been meant, too, with their likeness."""
        limit, spelling_weight = self.weights.neighbours, self.weights.spelling
        for neighbour, likeness in self.thesaurus.neighbours(root, limit):
            yield neighbour, likeness * _NEIGHBOUR_WEIGHT
        for other in ABBREVIATIONS.get(text, ()):
            yield stem(other), _ABBREVIATION_WEIGHT
        if not correct or root in self.thesaurus or not spelling_weight:
            return
        self.corrected.append(text)
        if len(self.corrected) > _CORRECTED_WORDS:
            return
        for suggestion, likeness in self.spelling.suggestions(text, twice=len(self.corrected) <= _CORRECTED_TWICE):
            yield suggestion, likeness * spelling_weight
            for neighbour, further in self.thesaurus.neighbours(suggestion, limit):
                yield neighbour, likeness * further * spelling_weight * _NEIGHBOUR_WEIGHT


def split_clauses(query: str) -> list[str]:
    """Return the clauses of a text that have more than one word; none if there is only one."""
    start, clauses = 0, list[str]()
    for end in (*(found.end() for found in _CLAUSE.finditer(query)), len(query)):
        clause = query[start:end]
        if len(clause.split()) > 1:
            clauses.append(clause)
        start = end
    return clauses[:_CLAUSES] if len(clauses) > 1 else []


def _words(text: str) -> Iterator[tuple[str, bool, int]]:
    """Yield the words without stop words, whether each is part of a value, and the number of its clause."""
    values = list(find_values(text))
    clause, start, value = 0, 0, 0
    for end in (*(found.end() for found in _CLAUSE.finditer(text)), len(text)):
        has_words = False
        for found in _WORD.finditer(text, start, end):
            position = found.start()
            while value < len(values) and values[value][1] <= position:
                value += 1
            is_value = value < len(values) and values[value][0] <= position
            for word in split_word(found[0]):
                if word not in STOP_WORDS:
                    has_words = True
                    yield word, is_value, min(clause, _CLAUSES - 1)
        clause += has_words
        start = end


_DECISIVE_WORDS: Final = 3
"""How many words of a query, the rarest ones, decide whether a tool fits; most words of a long query may be missing."""
_FIT_TOOLS: Final = 5
_EXACT_FACTOR: Final = 1.3
"""Applied to a word that a tool has as it was written."""
_PAIR_BONUS: Final = 0.3
"""Added, in parts of their weights, for two words that are next to each other in both."""
_NAME_BONUS: Final = 0.25
"""Added, in parts of the score, if the query has every word of the name."""
_CLAUSE_SHARE: Final = 0.3
"""Share of the best clause in a score; the rest is the whole query."""


class Scored(NamedTuple):
    """A tool, its score, and, for the first few, the share of the query that it answers."""

    spec: ToolSpec
    score: float
    fit: float


_Row = tuple[Entry, float, list[float]]
"""A tool, its score, and its score for each word."""


def score(words: Sequence[QueryWord], numbers: Sequence[int], *, view: View) -> list[Scored]:
    """Return the tools with their exact scores, best first, ties by name."""
    scorer = _Scorer(words, view)
    rows = [scorer.row(view.postings.entries[number]) for number in numbers]
    ordered = sorted(
        (-round(total, 5), row[0].spec.name, row[0])
        for total, row in zip(_with_clauses(rows, words), rows, strict=True)
    )
    fits = [scorer.fit(entry) for _, _, entry in ordered[:_FIT_TOOLS]] + [0.0] * (len(ordered) - _FIT_TOOLS)
    return [Scored(entry.spec, -negated, fit) for (negated, _, entry), fit in zip(ordered, fits, strict=True)]


class _Scorer:
    def __init__(self, words: Sequence[QueryWord], view: View) -> None:
        self._size = len(words)
        self._full_weight = sum(nlargest(_DECISIVE_WORDS, (word.full_weight for word in words))) or 1.0
        self._rarities = view.rarities
        self._places: dict[int, list[tuple[int, float]]] = {}
        """For each term the words of the query that it matches, and its weight for them."""
        for place, word in enumerate(words):
            for term, weight in word.variants.items():
                self._places.setdefault(term, []).append((place, weight))
        self._terms = frozenset(self._places)
        self._weights = {term: max(weight for _, weight in places) for term, places in self._places.items()}
        self._place_of_word = {word.word: place for place, word in enumerate(words) if word.word >= 0}
        self._pairs = [
            (first.term, second.term, _PAIR_BONUS * (first.weight + second.weight))
            for first, second in pairwise(words)
            if first.term in self._terms and second.term in self._terms
        ]

    def row(self, entry: Entry) -> _Row:
        """Return the score of a tool, in all and for every word."""
        terms, weights, scores = entry.terms, entry.weights, [0.0] * self._size
        common = self._terms.intersection(terms)
        for term in common:
            weight = weights[terms.index(term)]
            for place, factor in self._places[term]:
                scores[place] = max(scores[place], weight * factor)
        for word in self._place_of_word.keys() & entry.words:
            scores[self._place_of_word[word]] *= _EXACT_FACTOR
        pairs = set(pairwise(entry.sequence)) if self._pairs else set[tuple[int, int]]()
        total = sum(scores) + sum(bonus for first, second, bonus in self._pairs if (first, second) in pairs)
        return entry, total * (1 + _NAME_BONUS * self._name_share(entry, common)), scores

    def fit(self, entry: Entry) -> float:
        """Return the share of the query's rarest words that the tool contains, whatever their weight in it."""
        weights = [0.0] * self._size
        for term in self._terms.intersection(entry.terms):
            for place, weight in self._places[term]:
                weights[place] = max(weights[place], weight)
        return sum(nlargest(_DECISIVE_WORDS, weights)) / self._full_weight

    def _name_share(self, entry: Entry, common: frozenset[int]) -> float:
        """Return the share of the name, by rarity of its words, that the query has."""
        name = entry.sequence[: entry.name_words]
        if common.isdisjoint(name):
            return 0.0
        rarities = {term: self._rarities[term] for term in name}
        matched = [min(rarity, self._weights[term]) for term, rarity in rarities.items() if term in common]
        return sum(matched) / sum(rarities.values())


def _with_clauses(rows: Sequence[_Row], words: Sequence[QueryWord]) -> list[float]:
    """Return the scores mixed with those of each tool's best clause, with all clauses scaled alike."""
    sizes = [len(list(clause)) for _, clause in groupby(words, key=lambda word: word.clause)]
    if len(sizes) == 1 or not rows:
        return [total for _, total, _ in rows]
    spans = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    sums = [[sum(scores[span]) for span in spans] for _, _, scores in rows]
    top = max(total for _, total, _ in rows)
    best = [max(column) for column in zip(*sums, strict=True)]
    scales = [top / (score or math.inf) for score in best]
    return [
        (1 - _CLAUSE_SHARE) * total + _CLAUSE_SHARE * max(map(mul, parts, scales))
        for (_, total, _), parts in zip(rows, sums, strict=True)
    ]


_EXPLAINED_WORDS: Final = 4
_FIELD_NAMES: Final = {"parameter_texts": "parameters", "choices": "parameters"}
_IDENTIFIER_FIELDS: Final = frozenset({"name", "namespace", "tags", "parameters"})


def _explain(name: str, words: Sequence[QueryWord], postings: Postings) -> str:
    """Return where the weightiest words of a query are, as in "'city' in name; 'town' as 'place' in description"."""
    entry = postings.entries[postings.numbers[name]]
    terms = frozenset(entry.terms)
    matches = [(word, terms.intersection(word.variants)) for word in sorted(words, key=lambda word: -word.weight)]
    left: list[tuple[QueryWord, frozenset[int]]] = [(word, common) for word, common in matches if common]
    reasons: dict[str, list[str]] = {}
    room = _EXPLAINED_WORDS
    for field, text in zip(Fields._fields, postings.fields(entry.spec), strict=True):
        if not left or not room:
            break
        if not text:
            continue
        numbers = postings.read(text, identifiers=field in _IDENTIFIER_FIELDS)
        by_term = dict(zip(map(postings.term_of.__getitem__, numbers), numbers, strict=True))
        here = [
            _reason(word, common.intersection(by_term), by_term, postings)
            for word, common in left
            if not common.isdisjoint(by_term)
        ]
        if here:
            left = [(word, common) for word, common in left if common.isdisjoint(by_term)]
            reasons.setdefault(_FIELD_NAMES.get(field, field), []).extend(here[:room])
            room = max(0, room - len(here))
    return "; ".join(f"{', '.join(here)} in {field}" for field, here in reasons.items()) or "like in meaning"


def _reason(word: QueryWord, common: Iterable[int], by_term: dict[int, int], postings: Postings) -> str:
    """Return how a field with these of the word's terms says the word."""
    best = min(common, key=lambda term: (term != word.term, -word.variants[term], postings.spelled[by_term[term]]))
    return f"'{word.text}'" if best == word.term else f"'{word.text}' as '{postings.spelled[by_term[best]]}'"


_WIDER: Final = 16
_PRECISION: Final = 1000
"""Fixed-point scores: sums of integers do not depend on their order."""
_Scores = dict[int, int]


class Lexical:
    """An index of words with their stems, synonyms and misspellings."""

    CANDIDATES: ClassVar[int] = 64
    """Tools that are scored exactly, at a time."""
    POSTINGS: ClassVar[int] = 3000
    """Entries of the index that are read before the most common words only reorder the tools found so far."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.specs: dict[str, ToolSpec] = {}
        self._pending: dict[str, ToolSpec] = {}
        self._hidden = lru_cache(maxsize=RULES)(self._find_hidden)
        self._is_prepared = False

    @cached_property
    def postings(self) -> Postings:
        """The inverted index, built lazily because the thesaurus takes a moment to load."""
        return Postings(self.weights, load_thesaurus())

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name; it is read before the next search."""
        self.specs[spec.name] = spec
        self._pending[spec.name] = spec

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        self.specs.pop(name, None)
        self._pending.pop(name, None)
        if self._is_prepared:
            self.postings.remove(name)
            self._hidden.cache_clear()

    def prepare(self) -> None:
        """Read the tools that were added since the last search."""
        for spec in self._pending.values():
            self.postings.add(spec)
            self._hidden.cache_clear()
        self._pending.clear()
        self._is_prepared = True

    def _find_hidden(self, allows: Allows) -> frozenset[int]:
        return frozenset(number for number, entry in self.postings.entries.items() if not allows(entry.spec))

    def rank(self, query: str, where: Filter, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that pass the filter."""
        view = self.view(where)
        words = self.read(query, view)
        if not words:
            return self.by_name(query, view, offset=offset, limit=limit)
        blocks = self.blocks(words, view)
        first = next(blocks, list[Scored]())
        exact = exact_match(self.specs, query, where)
        if exact is None and max((scored.fit for scored in first), default=0.0) <= self.weights.fit:
            scores = ((scored.spec, scored.score) for scored in first)
            return Found(hits=[], total=0, closest=closest_namespaces(scores, view.specs()))
        return self.explained(page(in_order(exact, first, blocks), offset=offset, limit=limit), words)

    def view(self, where: Filter) -> View:
        """Return the postings that a filter leaves visible."""
        return View(self.postings, self._hidden(where.allows), where)

    def by_name(self, query: str, view: View, *, offset: int, limit: int) -> Found:
        """Return one page of the tools whose names hold the words of the query, or else the largest namespaces."""
        found = page(search_names(self.specs, query, view.where), offset=offset, limit=limit)
        return found if found.total != 0 else Found(hits=[], total=0, closest=closest_namespaces((), view.specs()))

    def explained(self, found: Found, words: list[QueryWord]) -> Found:
        """Return the page with the reason of every hit."""
        hits = [Hit(hit.spec, hit.score, _explain(hit.spec.name, words, self.postings)) for hit in found.hits]
        return Found(hits=hits, total=found.total, more=found.more)

    def read(self, query: str, view: View) -> list[QueryWord]:
        """Return the words of a query."""
        thesaurus = load_thesaurus()
        return _QueryReader(view, self.weights, thesaurus, _Spelling(view, thesaurus), []).read(query)

    def blocks(self, words: list[QueryWord], view: View) -> Iterator[list[Scored]]:
        """Yield the tools that fit in blocks, best first, each block scored exactly."""
        order = self.candidates(words, view)
        while numbers := list(islice(order, self.CANDIDATES)):
            yield score(words, numbers, view=view)

    def candidates(self, words: list[QueryWord], view: View) -> Iterator[int]:
        """Yield the tools that fit, approximately in order."""
        scores, left = self._gather(words, view, budget=self.POSTINGS)
        yield from filter(view.passes, self._descending(scores))
        if left:
            further, _ = self._gather(left, view, budget=None)
            rest = {number: total for number, total in further.items() if number not in scores}
            yield from filter(view.passes, self._descending(rest))

    def _gather(self, words: list[QueryWord], view: View, *, budget: int | None) -> tuple[_Scores, list[QueryWord]]:
        """Return approximate scores, and the words whose tools were not all read because the budget was used up.

        A tool that matches two variants of a word gets both here; the exact score counts the better one. With a budget,
        the common words only reorder the tools that were found by rarer ones: a tool without any of these is not among
        the best.
        """
        scores: _Scores = {}
        left: dict[str, QueryWord] = {}
        terms = [(factor, term, word) for word in words for term, factor in word.variants.items()]
        for factor, term, word in sorted(terms, key=itemgetter(0), reverse=True):
            for weight, tools in view.tools(term):
                points = int(_PRECISION * factor * weight)
                if budget is None or not scores:
                    _add(points, scores, tools)
                    continue
                if len(tools) <= budget:
                    budget -= len(tools)
                    if len(scores) < self.CANDIDATES * _WIDER:
                        _add(points, scores, tools)
                        continue
                    _add(points, scores, filter(scores.__contains__, tools))
                left[word.text] = word
        return scores, list(left.values())

    def _descending(self, scores: _Scores) -> Iterator[int]:
        """Yield the tools by score, ties by name."""
        entries, score_of = self.postings.entries, scores.__getitem__
        for _, tied in groupby(sorted(scores, key=score_of, reverse=True), key=score_of):
            yield from sorted(tied, key=lambda number: entries[number].spec.name)


def _add(points: int, scores: _Scores, tools: Iterable[int]) -> None:
    for number in tools:
        scores[number] = scores.get(number, 0) + points


def in_order(exact: ToolSpec | None, first: list[Scored], blocks: Iterator[list[Scored]]) -> Iterator[Hit]:
    """Yield all hits in order: an exact match first, and no score above the one before it."""
    highest = first[0].score if first else 0
    if exact is not None:
        yield Hit(exact, highest, "")
    for scored in chain(first, chain.from_iterable(blocks)):
        highest = min(highest, scored.score)
        if exact is None or scored.spec.name != exact.name:
            yield Hit(scored.spec, highest, "")
