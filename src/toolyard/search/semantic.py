"""Vectors: texts as points, where texts of like meaning lie near, from a table of words inside the package `wordllama`.

Nothing is downloaded: the table and what splits words are files of that package, and none of its code is run.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolyard.model.spec import ToolSpec
from toolyard.search.hits import Admits, Found, closest, page
from toolyard.search.lexical import Asked, Close, Lexical, closely, in_order, split_clauses
from toolyard.search.postings import View
from toolyard.search.settings import SearchSettings
from toolyard.search.text import own_name, plain, read_words, split_word

__all__ = ["NEEDED", "Encoder", "Hybrid", "Near", "Vectors", "load_encoder", "text_of"]


NEEDED: Final = ("numpy", "tokenizers", "wordllama")
"""The packages that the extra 'semantic' brings."""
_CHARACTERS: Final = 800
_ROWS: Final = 8192
_AT_ONCE: Final = 64
"""Rows that are multiplied at once: so few that no threads are started for them, which would cost more than they save."""
_LIKEST: Final = 512
"""Tools that are put in order first: few searches look at more."""
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"


def text_of(spec: ToolSpec) -> str:
    """Return what a tool is, as one text."""
    name = " ".join(word for written in read_words(plain(own_name(spec))) for word in split_word(written))
    return f"{plain(spec.source)} {name}. {plain(spec.description[:_CHARACTERS])}"[:_CHARACTERS].lower()


class Encoder:
    """Turns texts into vectors of length one."""

    def __init__(self, folder: Path) -> None:
        # Imported here because only the hybrid strategy needs them, and they take long to load.
        self._numpy: Any = import_module("numpy")
        tokenizers: Any = import_module("tokenizers")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / _TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._table = self._read(folder / _WEIGHTS)
        self.width: int = self._table.shape[1]

    def encode(self, texts: list[str]) -> Any:
        """Return one row for each text."""
        numpy = self._numpy
        tokens = [encoded.ids for encoded in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        rows = numpy.zeros((len(texts), self.width), numpy.float32)
        counts = numpy.fromiter(map(len, tokens), numpy.intp, len(tokens))
        filled = numpy.flatnonzero(counts)
        if filled.size:
            ends = numpy.cumsum(counts[filled])
            found = self._table[numpy.fromiter(chain.from_iterable(tokens), numpy.intp, ends[-1])].astype(numpy.float32)
            sums = numpy.add.reduceat(found, ends - counts[filled], axis=0)
            norms = numpy.linalg.norm(sums, axis=1, keepdims=True)
            rows[filled] = sums / numpy.where(norms, norms, 1.0)
        return rows

    def _read(self, path: Path) -> Any:
        """Return the table: a length, a header that says where it is, and its numbers, left in the file."""
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        told = next(value for name, value in header.items() if name != "__metadata__")
        kind = {"F16": "<f2", "F32": "<f4"}[told["dtype"]]
        return self._numpy.memmap(path, dtype=kind, mode="r", offset=8 + size + told["data_offsets"][0], shape=tuple(told["shape"]))


@lru_cache(maxsize=1)
def load_encoder() -> Encoder:
    """Return the encoder, read once.

    Raises:
        ModuleNotFoundError: A package is missing.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
    found = find_spec("wordllama")
    places = found.submodule_search_locations if found else None
    return Encoder(Path(next(iter(places or ()))))


class Near:
    """How like a query every tool is."""

    def __init__(self, values: Any, *, rows: dict[str, int], names: list[str | None]) -> None:
        self._numpy: Any = import_module("numpy")  # only the hybrid strategy needs it
        self._values = values
        self._rows = rows
        self._names = names

    def __getitem__(self, name: str) -> float:
        return float(self._values[self._rows[name]])

    def __iter__(self) -> Iterator[str]:
        """Return the names of all tools, the likest first; the others are put in order only if they are asked for."""
        numpy, values = self._numpy, self._values
        place = len(values) - _LIKEST
        line = numpy.partition(values, place)[place] if place > 0 else -numpy.inf
        for part in (values >= line, values < line):
            rows = numpy.flatnonzero(part)
            order: list[int] = rows[numpy.argsort(-values[rows], kind="stable")].tolist()
            for row in order:
                name = self._names[row]
                if name is not None:
                    yield name


class Vectors:
    """The vectors of all tools, in blocks that are never copied."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._numpy: Any = import_module("numpy")  # only the hybrid strategy needs it
        self._blocks: list[Any] = []
        self._rows: dict[str, int] = {}
        self._names: list[str | None] = []
        self._free: list[int] = []

    def add(self, specs: list[ToolSpec]) -> None:
        """Take tools in, in place of those of the same names."""
        for spec, vector in zip(specs, self._encoder.encode([text_of(spec) for spec in specs]), strict=True):
            self.remove(spec.name)
            row = self._free.pop() if self._free else self._further()
            self._rows[spec.name] = row
            self._names[row] = spec.name
            self._blocks[row // _ROWS][row % _ROWS] = vector

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        row = self._rows.pop(name, None)
        if row is not None:
            self._names[row] = None
            self._free.append(row)

    def near(self, query: str, clauses: list[str], *, share: float) -> Near:
        """Return how like the query every tool is."""
        numpy = self._numpy
        asked = self._encoder.encode([text.lower() for text in (query, *clauses)]).T
        used = len(self._names)
        parts = [_product(block[: _whole(used - number * _ROWS)], asked) for number, block in enumerate(self._blocks)]
        likeness = numpy.concatenate(parts or [asked[:0]])[:used]
        values = likeness[:, 0]
        if clauses:
            values = (1 - share) * values + share * likeness[:, 1:].max(1)
        return Near(numpy.round(values, 5), rows=self._rows, names=self._names)

    def _further(self) -> int:
        row = len(self._names)
        if row == len(self._blocks) * _ROWS:
            self._blocks.append(self._numpy.zeros((_ROWS, self._encoder.width), self._numpy.float32))
        self._names.append(None)
        return row


def _whole(rows: int) -> int:
    """Return so many rows, and as many more as make the last that are multiplied at once complete."""
    return rows + -rows % _AT_ONCE


def _product(block: Any, asked: Any) -> Any:
    """Return the rows of a block times the columns of what is asked."""
    return (block.reshape(-1, _AT_ONCE, len(asked)) @ asked).reshape(len(block), -1)


_BATCH: Final = 256
_NEARLY: Final = 0.7
"""How like in meaning a tool must be beside the likest, if it is less like than what fits without others.

A loose question is less like everything, also what answers it."""
_LEAST: Final = 2 / 3
"""What it must be of what fits without others even so: where nothing is like the question, the likest tool says nothing."""


class _Fused(NamedTuple):
    """The tools that were looked at, best first; those that hold a word of the question or are like it; and whether any fits."""

    seen: list[Close]
    best: list[Close]
    line: float
    """How like in meaning a tool must be that holds no word of the question."""
    fits: bool


class Hybrid:
    """An index of words and of meanings."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings
        self._lexical = Lexical(settings)
        self._vectors = Vectors(load_encoder())
        self._waiting: dict[str, ToolSpec] = {}

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name; it is read before the next search."""
        self._lexical.add(spec)
        self._waiting[spec.name] = spec

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        self._lexical.remove(name)
        self._waiting.pop(name, None)
        self._vectors.remove(name)

    def prepare(self) -> None:
        """Read the tools that came since the last search."""
        self._lexical.prepare()
        waiting = iter(self._waiting.values())
        while batch := list(islice(waiting, _BATCH)):
            self._vectors.add(batch)
        self._waiting.clear()

    def rank(self, query: str, admits: Admits, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that are admitted."""
        settings, lexical = self._settings, self._lexical
        view = lexical.view(admits)
        asked = lexical.read(query, view)
        if not asked:
            return lexical.by_name(query, view, offset=offset, limit=limit)
        near = self._vectors.near(query, split_clauses(query), share=settings.semantic_clause_share)
        fused = self._fused(asked, near, view=view)
        exact = lexical.listing.named(query, admits)
        if exact is None and not fused.fits:
            return Found(hits=[], total=0, closest=closest(((close.spec, close.score) for close in fused.seen), view.specs()))
        rest = self._rest(asked, fused, near, view=view)
        found = page(in_order(exact, fused.best, rest), offset=offset, limit=limit)
        return lexical.explained(found, asked)

    def _admitted(self, near: Near, view: View) -> Iterator[int]:
        return filter(view.answers, map(self._lexical.postings.number, near))

    def _fused(self, asked: list[Asked], near: Near, *, view: View) -> _Fused:
        """Return the best of both kinds."""
        settings = self._settings
        by_words = islice(self._lexical.admitted(asked, view), settings.candidates)
        by_meaning = islice(self._admitted(near, view), settings.candidates)
        numbers = dict.fromkeys(chain(by_words, by_meaning))
        closes = closely(asked, list(numbers), view=view, settings=settings)
        if not closes:
            return _Fused([], [], line=1.0, fits=False)
        top = max(close.score for close in closes) or 1.0
        nearest = max(near[close.spec.name] for close in closes)
        share = settings.semantic_share
        fused = [
            Close(close.spec, round((1 - share) * close.score / top + share * near[close.spec.name] / max(nearest, 1e-6), 5), close.fit)
            for close in closes
        ]
        seen = sorted(fused, key=lambda close: (-close.score, close.spec.name))
        worded = {close.spec.name for close in closes if close.score}
        line = min(settings.semantic_fit, max(_NEARLY * nearest, _LEAST * settings.semantic_fit))
        best = [close for close in seen if close.spec.name in worded or near[close.spec.name] >= line]
        return _Fused(seen, best, line=line, fits=nearest >= settings.semantic_fit or max(close.fit for close in fused) > settings.fit)

    def _rest(self, asked: list[Asked], fused: _Fused, near: Near, *, view: View) -> Iterator[list[Close]]:
        """Return what comes after the best: the other tools that hold the words, then those that are only like in meaning."""
        seen = {close.spec.name for close in fused.best}
        least = fused.best[-1].score if fused.best else 0.0
        for block in self._lexical.blocks(asked, view):
            fresh = [Close(close.spec, least, close.fit) for close in block if close.spec.name not in seen]
            seen.update(close.spec.name for close in fresh)
            yield fresh
        yield [
            Close(spec, least, 0.0)
            for spec in (view.postings.entries[number].spec for number in self._admitted(near, view))
            if spec.name not in seen and near[spec.name] >= fused.line
        ]
