"""The lexical strategy: ranks by words, their forms, their neighbours in meaning and where they stand.

It reads the rare words of a question first, takes the tools that hold them, and looks at the best of these closely. What is not
allowed is left out before the best are taken, so no page is short and nothing shows through.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import nlargest
from itertools import accumulate, chain, groupby, islice, pairwise
from operator import itemgetter, mul
from typing import Final, NamedTuple

from toolyard._internal.lazy import PausedCollection
from toolyard.model.spec import ToolSpec
from toolyard.search.hits import Admits, Found, Hidden, Hit, Listing, closest, page
from toolyard.search.postings import Entry, Postings, View
from toolyard.search.settings import SearchSettings
from toolyard.search.spelling import Spelling
from toolyard.search.stem import stem
from toolyard.search.text import SHORT_FORMS, STOP_WORDS, Fields, Thesaurus, find_values, load_thesaurus, plain, split_word

__all__ = ["Asked", "Close", "Lexical", "closely", "explain", "in_order", "read_query", "split_clauses"]


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


_TELLING: Final = 3
"""Words of a question that tell what it is about; the more are asked, the less each can be missed."""
_TRIED: Final = 5
"""The best tools, of which one must fit."""
Wanted = dict[int, list[tuple[int, float]]]


class Close(NamedTuple):
    """A tool, its score, and, for the first few, the share of the question that it answers."""

    spec: ToolSpec
    score: float
    fit: float


_Row = tuple[Entry, float, list[float]]
"""A tool, what it scores in all, and for every word."""


def closely(asked: Sequence[Asked], numbers: Sequence[int], *, view: View, settings: SearchSettings) -> list[Close]:
    """Return the tools with their scores, best first, ties by name."""
    looking = _Looking(asked, view=view, settings=settings)
    rows = [looking.at(view.postings.entries[number]) for number in numbers]
    scores = _with_clauses(rows, asked, share=settings.clause_share)
    ordered = sorted((-round(score, 5), row[0].spec.name, row[0]) for score, row in zip(scores, rows, strict=True))
    return [Close(entry.spec, -negated, looking.fit(entry) if place < _TRIED else 0.0) for place, (negated, _, entry) in enumerate(ordered)]


class _Looking:
    """One question, made ready to be held against many tools."""

    def __init__(self, asked: Sequence[Asked], *, view: View, settings: SearchSettings) -> None:
        self._size = len(asked)
        self._asked_for = sum(nlargest(_TELLING, (one.most for one in asked))) or 1.0
        self._rarities = view.rarities
        self._exact = 1 + settings.exact_bonus
        self._name_bonus = settings.name_bonus
        self._wanted: Wanted = {}
        for place, one in enumerate(asked):
            for term, weight in one.variants.items():
                self._wanted.setdefault(term, []).append((place, weight))
        self._terms = frozenset(self._wanted)
        self._said = {term: max(weight for _, weight in places) for term, places in self._wanted.items()}
        self._places = {one.word: place for place, one in enumerate(asked) if one.word >= 0}
        self._words = frozenset(self._places)
        self._pairs = [
            (one.term, other.term, settings.pair_bonus * (one.weight + other.weight))
            for one, other in pairwise(asked)
            if one.term in self._terms and other.term in self._terms
        ]

    def at(self, entry: Entry) -> _Row:
        """Return what the tool scores, in all and for every word."""
        terms, weights, got = entry.terms, entry.weights, [0.0] * self._size
        held = self._terms.intersection(terms)
        for term in held:
            weight = weights[terms.index(term)]
            for place, factor in self._wanted[term]:
                counted = weight * factor
                if counted > got[place]:  # noqa: PLR1730 - called so often that a call of `max` shows
                    got[place] = counted
        for word in self._words.intersection(entry.words):
            got[self._places[word]] *= self._exact
        score = sum(got) + self._together(entry, held)
        return entry, score * (1 + self._name_bonus * self._named(entry, held)), got

    def fit(self, entry: Entry) -> float:
        """Return the share of what the question is about that the tool speaks of, however briefly."""
        held = [0.0] * self._size
        for term in self._terms.intersection(entry.terms):
            for place, weight in self._wanted[term]:
                held[place] = max(held[place], weight)
        return sum(nlargest(_TELLING, held)) / self._asked_for

    def _together(self, entry: Entry, held: frozenset[int]) -> float:
        """Return what words that stand together in both count; the pairs are only made where there can be one."""
        pairs: set[tuple[int, int]] | None = None
        bonus = 0.0
        for first, second, counted in self._pairs:
            if first in held and second in held:
                if pairs is None:
                    pairs = set(pairwise(entry.sequence))
                if (first, second) in pairs:
                    bonus += counted
        return bonus

    def _named(self, entry: Entry, held: frozenset[int]) -> float:
        """Return the share of a name that the question says."""
        name = entry.sequence[: entry.name_words]
        if held.isdisjoint(name):
            return 0.0
        said = whole = 0.0
        for term in dict.fromkeys(name):
            rarity = self._rarities[term]
            whole += rarity
            if term in held:
                said += min(rarity, self._said[term])
        return said / whole


def _with_clauses(rows: Sequence[_Row], asked: Sequence[Asked], *, share: float) -> list[float]:
    """Return the scores mixed with those of each tool's best clause, every clause of the same worth."""
    clauses = [len(list(words)) for _, words in groupby(asked, key=lambda one: one.clause)]
    if len(clauses) == 1 or not share or not rows:
        return [score for _, score, _ in rows]
    ends = list(accumulate(clauses))
    spans = [slice(end - size, end) for end, size in zip(ends, clauses, strict=True)]
    sums = [[sum(got[span]) for span in spans] for _, _, got in rows]
    top = max(score for _, score, _ in rows)
    scales = [top / best if best else 0.0 for best in map(max, zip(*sums, strict=True))]
    return [(1 - share) * score + share * max(map(mul, parts, scales)) for (_, score, _), parts in zip(rows, sums, strict=True)]


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
        words = _words_by_term(text, postings, identifiers=field in _IDENTIFIERS)
        said = [_said(one, held.intersection(words), words=words, postings=postings) for one, held in left if not held.isdisjoint(words)]
        if said:
            left = [(one, held) for one, held in left if held.isdisjoint(words)]
            reasons.setdefault(_PLACES.get(field, field), []).extend(said[:most])
            most = max(0, most - len(said))
    return "; ".join(f"{', '.join(said)} in {place}" for place, said in reasons.items()) or "like in meaning"


def _words_by_term(text: str, postings: Postings, *, identifiers: bool) -> dict[int, int]:
    """Return the terms of a text with the word that stands there."""
    words = postings.read(text, identifiers=identifiers)
    return dict(zip(map(postings.term_of.__getitem__, words), words, strict=True))


def _said(asked: Asked, held: Iterable[int], *, words: dict[int, int], postings: Postings) -> str:
    """Return how a text that holds these of the asked terms says it."""
    best = min(held, key=lambda term: (term != asked.term, -asked.variants[term], postings.spelled[words[term]]))
    return f"'{asked.text}'" if best == asked.term else f"'{asked.text}' as '{postings.spelled[words[best]]}'"


_MANY: Final = 16
"""Tools that are read in one go; fewer are no reason to keep the collector waiting."""
_WIDER: Final = 16
_FINE: Final = 1000
"""Parts of one that scores are counted in here: sums of whole numbers are the same in whatever order they are made."""
_NOTHING: Final[list[Close]] = []
Scores = dict[int, int]


class Lexical:
    """An index of words."""

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings
        self.listing = Listing()
        self._waiting: dict[str, ToolSpec] = {}
        self._hidden = Hidden[int]()
        self._prepared = False

    @cached_property
    def postings(self) -> Postings:
        """The words of the tools, made when first needed: the thesaurus behind them takes a moment to read."""
        return Postings(self.settings, load_thesaurus())

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name; its words are read before the next search."""
        self.listing.add(spec)
        self._waiting[spec.name] = spec

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self.listing.remove(name)
        self._waiting.pop(name, None)
        if self._prepared:
            self._forget(name)

    def prepare(self) -> None:
        """Read the words of the tools that came since the last search."""
        if len(self._waiting) < _MANY:
            self._read_waiting()
        else:
            with PausedCollection():
                self._read_waiting()
        self._prepared = True

    def _read_waiting(self) -> None:
        for spec in self._waiting.values():
            self._forget(spec.name)
            self._hidden.add(self.postings.add(spec), spec)
        self._waiting.clear()

    def _forget(self, name: str) -> None:
        number = self.postings.remove(name)
        if number is not None:
            self._hidden.remove(number)

    def rank(self, query: str, admits: Admits, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        view = self.view(admits)
        asked = self.read(query, view)
        if not asked:
            return self.by_name(query, view, offset=offset, limit=limit)
        blocks = self.blocks(asked, view)
        first = next(blocks, _NOTHING)
        exact = self.listing.named(query, admits)
        if exact is None and max((close.fit for close in first), default=0.0) <= self.settings.fit:
            return Found(hits=[], total=0, closest=closest(((close.spec, close.score) for close in first), view.specs()))
        found = page(in_order(exact, first, blocks), offset=offset, limit=limit)
        return self.explained(found, asked)

    def view(self, admits: Admits) -> View:
        """Return the postings as they are for a question."""
        return View(self.postings, self._hidden.under(admits.allows, self.postings.specs), admits)

    def by_name(self, query: str, view: View, *, offset: int, limit: int) -> Found:
        """Return one page of the tools whose names hold the words of the query, or the largest namespaces if there are none."""
        found = page(self.listing.by_name(query, view.admits), offset=offset, limit=limit)
        return found if found.total != 0 else Found(hits=[], total=0, closest=closest((), view.specs()))

    def explained(self, found: Found, asked: list[Asked]) -> Found:
        """Return the page with the reason of every hit."""
        postings = self.postings
        hits = [Hit(hit.spec, hit.score, explain(postings.entry(hit.spec.name), asked, postings)) for hit in found.hits]
        return Found(hits=hits, total=found.total, more=found.more)

    def read(self, query: str, view: View) -> list[Asked]:
        """Return what a query asks for."""
        return read_query(query, view, settings=self.settings, thesaurus=load_thesaurus())

    def blocks(self, asked: list[Asked], view: View) -> Iterator[list[Close]]:
        """Return the tools that fit, as many at a time as are looked at closely, the best first."""
        order = self.admitted(asked, view)
        while numbers := list(islice(order, self.settings.candidates)):
            yield closely(asked, numbers, view=view, settings=self.settings)

    def admitted(self, asked: list[Asked], view: View) -> Iterator[int]:
        """Return the tools that fit, about the best first, before a close look at them."""
        scores, left = self.gather(asked, view, budget=self.settings.postings)
        yield from filter(view.answers, self._descending(scores))
        if left:
            further, _ = self.gather(left, view, budget=None)
            rest = {number: score for number, score in further.items() if number not in scores}
            yield from filter(view.answers, self._descending(rest))

    def gather(self, asked: list[Asked], view: View, *, budget: int | None) -> tuple[Scores, list[Asked]]:
        """Return the tools that hold what is asked, by the weightiest terms that the budget allows, and whose terms it did not.

        A tool that holds two readings of a word gets both here; the close look counts the better one. With a budget, words that
        come when many tools are known only put these in order: what holds none of the weightier words is not among the best.
        """
        scores: Scores = {}
        left: dict[str, Asked] = {}
        terms = [(factor, term, one) for one in asked for term, factor in one.variants.items()]
        for factor, term, one in sorted(terms, key=itemgetter(0), reverse=True):
            for weight, many, tools in view.tools(term):
                score = int(_FINE * factor * weight)
                if budget is None or not scores:
                    _count(tools(), scores, score=score)
                    continue
                if many <= budget:
                    budget -= many
                    if len(scores) < self.settings.candidates * _WIDER:
                        _count(tools(), scores, score=score)
                        continue
                    _count_known(tools(), scores, score=score)
                left[one.text] = one
        return scores, list(left.values())

    def _descending(self, scores: Scores) -> Iterator[int]:
        """Return the tools by score, ties by name, and sort no more of them than are asked for."""
        entries = self.postings.entries
        above = float("inf")
        for size in (self.settings.candidates, self.settings.candidates * _WIDER, len(scores)):
            line = nlargest(size, scores.values())[-1] if size < len(scores) else 0
            part = [number for number, score in scores.items() if line <= score < above]
            part.sort(key=lambda number: (-scores[number], entries[number].spec.name))
            yield from part
            above = line


def _count(tools: Iterable[int], scores: Scores, *, score: int) -> None:
    """Add to what these tools score."""
    for number in tools:
        if number in scores:
            scores[number] += score
        else:
            scores[number] = score


def _count_known(tools: Iterable[int], scores: Scores, *, score: int) -> None:
    """Add to what these tools score, where they score already."""
    for number in tools:
        if number in scores:
            scores[number] += score


def in_order(exact: ToolSpec | None, first: list[Close], blocks: Iterator[list[Close]]) -> Iterator[Hit]:
    """Return all hits in order: a tool that is named comes first, and no score is above the one before it."""
    score = first[0].score if first else 0
    if exact is not None:
        yield Hit(exact, score, "")
    for close in chain(first, chain.from_iterable(blocks)):
        score = min(score, close.score)
        if exact is None or close.spec.name != exact.name:
            yield Hit(close.spec, score, "")
