"""Signatures: a tool on one line, as people write functions, so that an agent reads no schema it does not need."""

import re
from typing import Final

from toolyard.metatools.parameters import read_parameters
from toolyard.metatools.types import Types, visible
from toolyard.spec import ToolSpec

__all__ = ["one_line", "signature"]

_CHARACTERS: Final = 160
_MORE: Final = "…"
_BEYOND: Final = 256
"""Characters that are read of a text beyond those that there is room for: somebody may have written very many."""
_HEADING: Final = re.compile(r"#{1,6}\s+")
_OPENING: Final = "([{<\"'*_`“«"
_ABBREVIATIONS: Final = frozenset({"approx", "Approx", "cf", "Cf", "etc", "vs", "Dr", "Mr", "Mrs", "Ms", "No", "St"})


def signature(spec: ToolSpec, *, characters: int = _CHARACTERS) -> str:
    """Return the tool as one line: everything required, then what else there is room for."""
    schema = spec.input_schema
    takes, types = read_parameters(schema), Types(schema)

    def written(name: str, mark: str) -> str:
        return f"{visible(name)}{mark}: {types.of_either(takes.properties.get(name, [{}]))}"

    parts = [written(name, "") for name in takes.required]
    returns = "" if spec.output_schema is None else f" -> {Types(spec.output_schema).of(spec.output_schema)}"
    left = characters - len(spec.name) - len(returns) - sum(len(part) + 2 for part in parts)
    is_more = takes.more
    for name in [name for name in takes.properties if name not in takes.required]:
        part = written(name, "?")
        left -= len(part) + 2
        if left < 0:
            is_more = True
            break
        parts.append(part)
    return f"{spec.name}({', '.join([*parts, _MORE] if is_more else parts)}){returns}"


def one_line(text: str, characters: int) -> str:
    """Return the first sentence of a text, cut at a word where it is longer than there is room for."""
    written = text.lstrip()[: characters + _BEYOND].split("\n", 1)[0]
    line = _first_sentence(_HEADING.sub("", " ".join(written.split()), count=1))
    if len(line) <= characters:
        return line
    cut = line[:characters].rsplit(" ", 1)[0].rstrip(",;:-")
    return f"{cut}{_MORE}"


def _first_sentence(line: str) -> str:
    """Return a line up to the full stop that ends its first sentence; one after an abbreviation does not, nor one in its midst."""
    end = line.find(". ")
    while end >= 0:
        word = line[:end].rpartition(" ")[2].lstrip(_OPENING).rpartition(".")[2]
        is_abbreviated = word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())
        follows = line[end + 2 :].lstrip(_OPENING)[:1]
        if not is_abbreviated and follows.isalpha() and not follows.islower():  # many scripts know no capitals
            return line[: end + 1]
        end = line.find(". ", end + 1)
    return line
