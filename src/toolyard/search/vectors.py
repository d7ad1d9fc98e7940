"""Vectors: texts as points, where texts of like meaning lie near, from a table of words inside the package `wordllama`.

Nothing is downloaded: the table and what splits words are files of that package, and none of its code is run.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Final

from toolyard.search.fields import own_name
from toolyard.search.words import plain, read_words, split_word
from toolyard.spec import ToolSpec

__all__ = ["NEEDED", "Encoder", "Near", "Vectors", "load_encoder", "text_of"]

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
