"""The tools and queries for the measurement of search: the bundled catalogue, repeated many times in other words.

They are the same in every environment and every run, and need only the standard library.
"""

import json
import random
import zlib
from collections.abc import Iterator
from itertools import accumulate, count
from pathlib import Path
from typing import Any, Final, NamedTuple

__all__ = ["Searched", "make_questions", "make_tools"]

_PACKAGE: Final = Path(__file__).resolve().parents[1] / "src" / "callyard"
_SEED: Final = 11
_QUESTIONS: Final = 200
_EACH: Final = 50
"""Tools of one namespace."""
_VERBS: Final = ("Give", "Name", "Pass", "Say", "State", "Tell")
_MISSPELT_EACH: Final = 5
_SHORTEST_MISSPELT: Final = 5


class Searched(NamedTuple):
    """A tool for every framework; its name starts with its namespace."""

    name: str
    namespace: str
    description: str
    input_schema: dict[str, Any]


class _Words:
    """English words with a realistic distribution: few are common and most are rare."""

    def __init__(self, seed: int) -> None:
        text = zlib.decompress((_PACKAGE / "search" / "thesaurus.bin").read_bytes()).decode()
        self._words = text.partition("\n")[0].split(" ")
        self._weights = list(accumulate(1 / (rank + 30) for rank in range(len(self._words))))
        self.random = random.Random(seed)  # noqa: S311 - words, not secrets

    def draw(self, many: int) -> list[str]:
        return self.random.choices(self._words, cum_weights=self._weights, k=many)


def make_tools(many: int) -> list[Searched]:
    """Return so many tools of realistic length: fifty words each, in names, sentences and parameters."""
    words = _Words(_SEED)
    entries = [json.loads(line) for line in (_PACKAGE / "demo" / "catalogue.jsonl").read_text().splitlines()]
    tools: dict[str, Searched] = {}
    namespace = ""
    for number in count():
        if len(tools) == many:
            break
        if number % _EACH == 0:
            namespace = f"{words.draw(1)[0]}{number // _EACH}"
        tool = _vary(entries[number % len(entries)], namespace, words)
        tools[tool.name] = tool
    return list(tools.values())


def make_questions(tools: list[Searched]) -> list[str]:
    """Return queries for some of the tools: short and long, of one or two clauses, some with a misspelt word."""
    words = _Words(_SEED + 1)
    pick = words.random
    questions: list[str] = []
    for number in range(_QUESTIONS):
        first, other = (_said(pick.choice(tools), pick) for _ in range(2))
        question = (f"{first}", f"I want to {first}, and then {other}.", f"Can you {first} for me?")[number % 3]
        questions.append(_misspell(question, pick) if number % _MISSPELT_EACH == 0 else question)
    return questions


def _vary(entry: dict[str, Any], namespace: str, words: _Words) -> Searched:
    """Return a variation of a catalogue tool: about other things, and with a longer description."""
    about, rest = words.draw(2), words.draw(5)
    schema = entry["input_schema"]
    properties = {
        name: inner | {"description": _explained(name, inner, words)} for name, inner in schema["properties"].items()
    }
    return Searched(
        name=f"{namespace}__{entry['name']}_{about[0]}",
        namespace=namespace,
        description=f"{entry['description']} It is about {about[0]} and {about[1]}, and {', '.join(rest)}.",
        input_schema=schema | {"properties": properties},
    )


def _explained(name: str, inner: dict[str, Any], words: _Words) -> str:
    said = inner.get("description") or f"{words.random.choice(_VERBS)} the {name.replace('_', ' ')} of it."
    return f"{said} Usually {' '.join(words.draw(3))}."


def _said(tool: Searched, pick: random.Random) -> str:
    """Return a query for a tool: some words of its description, in their order."""
    said = tool.description.replace(".", "").replace(",", "").lower().split()
    kept = sorted(pick.sample(range(len(said)), min(len(said), pick.randint(3, 9))))
    return " ".join(said[place] for place in kept)


def _misspell(question: str, pick: random.Random) -> str:
    """Return the query with two letters swapped in one of its longer words, if there is one."""
    said = question.split()
    long: Iterator[int] = (
        place for place, word in enumerate(said) if len(word) >= _SHORTEST_MISSPELT and word.isalpha()
    )
    place = next(long, None)
    if place is not None:
        word, cut = said[place], pick.randint(1, len(said[place]) - 2)
        said[place] = word[:cut] + word[cut + 1] + word[cut] + word[cut + 2 :]
    return " ".join(said)
