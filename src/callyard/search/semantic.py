"""The hybrid strategy: words as in the lexical one, and likeness of meaning by word vectors.

The vectors and the tokenizer are files of the package `wordllama`. Nothing is downloaded, and none of its code is run.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from callyard.model.spec import ToolSpec
from callyard.search.hits import Filter, Found, closest_namespaces, exact_match, page
from callyard.search.lexical import Lexical, QueryWord, Scored, in_order, score, split_clauses
from callyard.search.postings import View, Weights
from callyard.search.text import bare_name, fold, words_of

__all__ = ["NEEDED", "Encoder", "Hybrid", "Vectors", "load_encoder", "text_of"]


NEEDED: Final = ("numpy", "tokenizers", "wordllama")
"""The packages of the extra 'semantic'."""
_CHARACTERS: Final = 800
_CLAUSE_SHARE: Final = 0.5
"""Share of the most similar clause in a likeness; the rest is the whole query."""
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"


def text_of(spec: ToolSpec) -> str:
    """Return a tool as one text: namespace, words of the name, and description."""
    name = " ".join(words_of(fold(bare_name(spec))))
    return f"{fold(spec.source)} {name}. {fold(spec.description[:_CHARACTERS])}"[:_CHARACTERS].lower()


class Encoder:
    """Turns texts into unit vectors: the normalised sums of the vectors of their tokens."""

    def __init__(self, folder: Path) -> None:
        # Imported here because only the hybrid strategy needs them, and they take long to load.
        self.numpy: Any = import_module("numpy")
        tokenizers: Any = import_module("tokenizers")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / _TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._table = self._read(folder / _WEIGHTS)
        self.width: int = self._table.shape[1]

    def encode(self, texts: list[str]) -> Any:
        """Return one row for each text."""
        numpy = self.numpy
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
        """Return the memory-mapped table of a safetensors file: a length, a JSON header, and the numbers."""
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(size))
        tensor = next(value for name, value in header.items() if name != "__metadata__")
        kind = {"F16": "<f2", "F32": "<f4"}[tensor["dtype"]]
        return self.numpy.memmap(
            path, dtype=kind, mode="r", offset=8 + size + tensor["data_offsets"][0], shape=tuple(tensor["shape"])
        )


@lru_cache(maxsize=1)
def load_encoder() -> Encoder:
    """Return the encoder, read once.

    Raises:
        ModuleNotFoundError: A package is missing.
    """
    for package in NEEDED:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)
    package = find_spec("wordllama")
    folders = package.submodule_search_locations if package else None
    return Encoder(Path(next(iter(folders or ()))))


class Vectors:
    """The vectors of all tools."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors: dict[str, Any] = {}
        self._matrix: Any = None
        """All vectors as one array, until a tool is added or removed."""

    def add(self, specs: list[ToolSpec]) -> None:
        """Add tools, or replace those of the same names."""
        vectors = self._encoder.encode([text_of(spec) for spec in specs])
        self._vectors |= {spec.name: vector for spec, vector in zip(specs, vectors, strict=True)}
        self._matrix = None

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        self._vectors.pop(name, None)
        self._matrix = None

    def similarity(self, query: str, clauses: list[str]) -> dict[str, float]:
        """Return how similar every tool is to the query and to the best of its clauses, the most similar first."""
        numpy = self._encoder.numpy
        queries = self._encoder.encode([text.lower() for text in (query, *clauses)])
        if self._matrix is None:
            self._matrix = numpy.array([*self._vectors.values()], numpy.float32).reshape(-1, self._encoder.width)
        # '@' adds in an order that depends on the number of rows, so that hidden tools would change the last digit.
        products = numpy.einsum("ij,kj->ik", self._matrix, queries)
        values = products[:, 0]
        if clauses:
            values = (1 - _CLAUSE_SHARE) * values + _CLAUSE_SHARE * products[:, 1:].max(1)
        likeness: dict[str, float] = dict(zip(self._vectors, numpy.round(values, 5).tolist(), strict=True))
        return dict(sorted(likeness.items(), key=lambda item: -item[1]))


_BATCH: Final = 256
_LIKEST_SHARE: Final = 0.7
"""Share of the highest likeness from which a tool is shown below `semantic_fit`, for queries that are vague."""
_FIT_SHARE: Final = 2 / 3
"""Share of `semantic_fit` that such a tool needs even so: if nothing is similar, the highest likeness means nothing."""


class _Fused(NamedTuple):
    """The candidates of both kinds, scored together."""

    candidates: list[Scored]
    best: list[Scored]
    """Those that contain a word of the query or are similar enough."""
    line: float
    """The likeness that a tool without a word of the query must have."""
    fits: bool


class Hybrid:
    """An index of words and of meanings."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._lexical = Lexical(weights)
        self._vectors = Vectors(load_encoder())
        self._pending: dict[str, ToolSpec] = {}

    def add(self, spec: ToolSpec) -> None:
        """Add a tool, or replace the one of the same name; it is read before the next search."""
        self._lexical.add(spec)
        self._pending[spec.name] = spec

    def remove(self, name: str) -> None:
        """Remove a tool, if it is there."""
        self._lexical.remove(name)
        self._pending.pop(name, None)
        self._vectors.remove(name)

    def prepare(self) -> None:
        """Read the tools that were added since the last search."""
        self._lexical.prepare()
        pending = iter(self._pending.values())
        while batch := list(islice(pending, _BATCH)):
            self._vectors.add(batch)
        self._pending.clear()

    def rank(self, query: str, where: Filter, *, offset: int, limit: int) -> Found:
        """Return one page of the tools that fit best, of those that pass the filter."""
        lexical = self._lexical
        view = lexical.view(where)
        words = lexical.read(query, view)
        if not words:
            return lexical.by_name(query, view, offset=offset, limit=limit)
        likeness = self._vectors.similarity(query, split_clauses(query))
        fused = self._fused(words, likeness, view)
        exact = exact_match(lexical.specs, query, where)
        if exact is None and not fused.fits:
            scores = ((scored.spec, scored.score) for scored in fused.candidates)
            return Found(hits=[], total=0, closest=closest_namespaces(scores, view.specs()))
        rest = self._rest(words, fused, likeness, view)
        return lexical.explained(page(in_order(exact, fused.best, rest), offset=offset, limit=limit), words)

    def _by_likeness(self, likeness: dict[str, float], view: View) -> Iterator[int]:
        return filter(view.passes, map(self._lexical.postings.numbers.__getitem__, likeness))

    def _fused(self, words: list[QueryWord], likeness: dict[str, float], view: View) -> _Fused:
        weights, count = self._weights, Lexical.CANDIDATES
        by_words = islice(self._lexical.candidates(words, view), count)
        by_meaning = islice(self._by_likeness(likeness, view), count)
        tools = score(words, list(dict.fromkeys(chain(by_words, by_meaning))), view=view)
        if not tools:
            return _Fused([], [], line=1.0, fits=False)
        top = max(tool.score for tool in tools) or 1.0
        likest = max(likeness[tool.spec.name] for tool in tools)
        share = weights.semantic_share

        def fused_score(tool: Scored) -> float:
            return round((1 - share) * tool.score / top + share * likeness[tool.spec.name] / max(likest, 1e-6), 5)

        fused = [Scored(tool.spec, fused_score(tool), tool.fit) for tool in tools]
        candidates = sorted(fused, key=lambda tool: (-tool.score, tool.spec.name))
        with_words = {tool.spec.name for tool in tools if tool.score}
        line = min(weights.semantic_fit, max(_LIKEST_SHARE * likest, _FIT_SHARE * weights.semantic_fit))
        best = [tool for tool in candidates if tool.spec.name in with_words or likeness[tool.spec.name] >= line]
        fits = likest >= weights.semantic_fit or max(tool.fit for tool in fused) > weights.fit
        return _Fused(candidates, best, line=line, fits=fits)

    def _rest(
        self, words: list[QueryWord], fused: _Fused, likeness: dict[str, float], view: View
    ) -> Iterator[list[Scored]]:
        """Yield the tools after the best: the others with words of the query, then those that are only similar."""
        seen = {tool.spec.name for tool in fused.best}
        least = fused.best[-1].score if fused.best else 0.0
        for block in self._lexical.blocks(words, view):
            new = [Scored(tool.spec, least, tool.fit) for tool in block if tool.spec.name not in seen]
            seen.update(tool.spec.name for tool in new)
            yield new
        yield [
            Scored(spec, least, 0.0)
            for spec in (view.postings.entries[number].spec for number in self._by_likeness(likeness, view))
            if spec.name not in seen and likeness[spec.name] >= fused.line
        ]
