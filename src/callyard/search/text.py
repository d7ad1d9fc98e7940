"""The texts of a tool as words: its fields, splitting, folding, stop words, abbreviations and the thesaurus."""

import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from callyard.model.names import words_in
from callyard.model.schema import Schema, resolve
from callyard.model.spec import ToolSpec

__all__ = [
    "ABBREVIATIONS",
    "FILE",
    "QUERY_CHARACTERS",
    "QUERY_WORDS",
    "STOP_WORDS",
    "Fields",
    "Memo",
    "Thesaurus",
    "bare_name",
    "fields_of",
    "find_values",
    "fold",
    "load_thesaurus",
    "read_words",
    "split_word",
    "words_of",
]

QUERY_CHARACTERS: Final = 4000
"""Longest query; the rest is ignored."""
QUERY_WORDS: Final = 64
"""Most words of a query; the rest are ignored."""


_PARAMETERS: Final = 64
_CHARACTERS: Final = 300
_CHOICES: Final = 32
_DEPTH: Final = 3
_PARTS: Final = 64
"""Parts read of one parameter: itself, and those behind its references, branches and items."""
_BRANCHES: Final = ("allOf", "anyOf", "oneOf")
_INNER: Final = (*_BRANCHES, "items", "prefixItems", "additionalProperties")
_BRANCHING: Final = frozenset({"$ref", *_BRANCHES})


def _parameters_of(schema: Schema) -> tuple[list[str], list[str], list[str]]:
    """Return the names of all parameters, their descriptions, and the values of their enums, outer objects first.

    A part that is referenced more than once is read where it is first met, so that schemas that refer to themselves end
    and shared parts do not crowd out other parameters. The schema need not be valid.
    """
    names: list[str] = []
    texts: list[str] = []
    choices: list[str] = []
    seen = {id(schema)}
    objects: list[tuple[object, int]] = [(schema.get("properties"), 0)]
    if not _BRANCHING.isdisjoint(schema):
        objects = [(part.get("properties"), 0) for part in _parts(schema, schema, seen)]
    for properties, depth in objects:
        if not isinstance(properties, dict):
            continue
        for name, inner in cast("dict[object, object]", properties).items():
            if not isinstance(name, str) or not isinstance(inner, dict):
                continue
            names.append(name)
            parts = _parts(schema, cast("dict[str, Any]", inner), seen)
            described = (part.get("description") for part in parts)
            texts.append(" ".join(text for text in described if isinstance(text, str))[:_CHARACTERS])
            choices += _choices(parts)[:_CHOICES]
            if depth < _DEPTH:
                objects += [(part["properties"], depth + 1) for part in parts if "properties" in part]
            if len(names) >= _PARAMETERS:
                return names, texts, choices
    return names, texts, choices


def _choices(parts: list[Schema]) -> list[str]:
    found: list[Any] = []
    for part in parts:
        enum = part.get("enum")
        if isinstance(enum, list):
            found += cast("list[Any]", enum)[:_CHOICES]
        if "const" in part:
            found.append(part["const"])
    return [choice for choice in found if isinstance(choice, str)]


def _parts(root: Schema, node: Schema, seen: set[int]) -> list[Schema]:
    """Return a part of a schema, and the unseen parts behind its references, branches and items."""
    parts = [node]
    for part in parts:
        for inner in _inner_parts(root, part):
            if len(parts) >= _PARTS:
                return parts
            if isinstance(inner, dict) and id(found := cast("dict[str, Any]", inner)) not in seen:
                seen.add(id(found))
                parts.append(found)
    return parts


def _inner_parts(root: Schema, part: Schema) -> list[Any]:
    found: list[Any] = [resolve(root, part)] if "$ref" in part else []
    for keyword in _INNER:
        if keyword in part:
            inner: Any = part[keyword]
            found += cast("list[Any]", inner) if isinstance(inner, list) else [inner]
    return found


_CACHED: Final = 20_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Memo(dict[_Key, _Value], Generic[_Key, _Value]):
    """A dictionary that computes missing values; it is cleared when it becomes too large."""

    def __init__(self, compute: Callable[[_Key], _Value]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _Key) -> _Value:
        if len(self) >= _CACHED:
            self.clear()
        value = self[key] = self._compute(key)
        return value


_WORD: Final = re.compile(r"[^\W_]+")
_SHAPE: Final = re.compile(r"(?:A-*+)+(?!a)|(?:A-*+)?(?:a-*+)+|0+|[x-]+")
"""A piece of an identifier, matched against the kind of each letter; letters without case are pieces of their own."""
_FOLDED_AT_ONCE: Final = re.compile(r"[\x00-\x7f]*[^\x00-\x7f]{0,64}")
"""Characters normalised at once: sorting combining marks takes time that grows with the square of their number."""
_LONGEST: Final = 40
_LONGEST_JOINED: Final = 24
STOP_WORDS: Final = words_in("""
    a about again all also am an and any are aren as asap at be because been being between both but by can cannot
    could couldn d did didn do does doesn doing don down during each either else etc even every few for from further
    had hadn has hasn have haven having he hello her here hers hey hi him his how however i if in instead into is isn
    it its itself just let lets ll m may maybe me mine more most much must my myself neither no nor not now of off ok
    okay on once only onto or other ought our ours out over own per please quite rather re s same shall she should
    shouldn so some somehow something such t than thank thanks that the their theirs them then there these they this
    those through thus to too under until up upon us ve very via was wasn we well were weren what whatever when where
    whether which while who whom whose why will with within without won would wouldn yes yet you your yours yourself
    able assist assistance based better come considering currently e eg g get given gives giving go going got gonna
    help helped helpful helping helps interested kind know like looking lot make makes making many might need needed
    needing needs new particular possible provide provided provides providing really regarding say see seem specific
    specified specify sure take tell try trying use used useful uses using various want wanted wanting wants way ways
    wish wondering works
""")
_PAIRS: Final = """
    admin administrator, app application, apps application, args argument, async asynchronous, attr attribute,
    auth authentication, auth authorization, avg average, bg background, calc calculate, cal calendar,
    cfg configuration, char character, cmd command, conf configuration, config configuration, conn connection,
    crypto cryptocurrency, ctx context, db database, def definition, del delete, dept department, desc description,
    dest destination, dev developer, diff difference, dir directory, dirs directory, dist distance, doc document,
    docs documentation, env environment, err error, exec execute, ext extension, fav favorite, fn function,
    freq frequency, func function, geo geographic, geo location, hist history, id identifier, img image,
    impl implementation, info information, init initialize, k8s kubernetes, kb knowledge, lang language, lat latitude,
    lib library, lon longitude, lng longitude, loc location, max maximum, mem memory, mgmt management, min minimum,
    msg message, msgs message, net network, num number, obj object, org organization, orgs organization, os operating,
    param parameter, params parameter, perm permission, pic picture, pkg package, pos position, pr pull,
    pref preference, prev previous, proc process, prod production, proj project, pwd password, qty quantity,
    rec record, ref reference, regex expression, repo repository, repos repository, req request, res response,
    rm remove, sched schedule, sec security, sep separator, spec specification, sql database, src source,
    stat statistic, stats statistic, std standard, str string, subj subject, svc service, sync synchronize,
    sys system, tel telephone, temp temperature, temp temporary, tmp temporary, ts timestamp, txn transaction,
    txt text, url link, usr user, util utility, val value, var variable, vid video, vm machine, vol volume
"""


def _both_ways() -> dict[str, tuple[str, ...]]:
    words: dict[str, tuple[str, ...]] = {}
    for pair in _PAIRS.split(","):
        short, long = pair.split()
        words[short] = (*words.get(short, ()), long)
        words[long] = (*words.get(long, ()), short)
    return words


ABBREVIATIONS: Final = _both_ways()
"""The words that an abbreviation stands for, and the abbreviations of a word."""


def fold(text: str) -> str:
    """Return a text in Unicode normal form NFKC."""
    return "".join(unicodedata.normalize("NFKC", part) for part in _FOLDED_AT_ONCE.findall(text))


def read_words(text: str) -> list[str]:
    """Return the runs of letters and digits in a text, in their case."""
    return _WORD.findall(text)


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, identifiers as a whole and in pieces."""
    return [word for written in read_words(text) for word in split_word(written)]


def split_word(written: str) -> list[str]:
    """Return a word in lower case, or the pieces of an identifier and the whole of it."""
    pieces = [written[slice(*piece.span())].lower() for piece in _SHAPE.finditer(written.translate(_KINDS))]
    whole = written.lower()
    if len(pieces) <= 1:
        return [whole[:_LONGEST]]
    words = [piece[:_LONGEST] for piece in pieces if len(piece) > 1]
    return [*words, whole] if len(whole) <= _LONGEST_JOINED else words


_LETTERS: Final = ((str.islower, "a"), (str.isupper, "A"), (str.istitle, "A"), (str.isdigit, "0"))


def _kind(code: int) -> str:
    """Return the kind of a letter: lower, upper, digit, modifier (part of the letter before it) or other."""
    letter = chr(code)
    other = "-" if unicodedata.category(letter) == "Lm" else "x"
    return next((kind for is_kind, kind in _LETTERS if is_kind(letter)), other)


_KINDS: Final = Memo[int, str](_kind)

_DESCRIPTION_CHARACTERS: Final = 4000
_EXAMPLE_CHARACTERS: Final = 1000


class Fields(NamedTuple):
    """The texts of a tool that are searched; an absent one is empty."""

    name: str
    title: str
    namespace: str
    tags: str
    description: str
    parameters: str
    parameter_texts: str
    choices: str
    examples: str


def bare_name(spec: ToolSpec) -> str:
    """Return the name without the prefix of its namespace."""
    return spec.name.removeprefix(f"{spec.source}__") if spec.source else spec.name


def fields_of(spec: ToolSpec) -> Fields:
    """Return the texts of a tool, each cut to a useful length."""
    parameters, parameter_texts, choices = _parameters_of(spec.outline)
    found = (
        " ".join((bare_name(spec), *spec.aliases)),
        spec.title or "",
        spec.source,
        " ".join(spec.tags),
        spec.description[:_DESCRIPTION_CHARACTERS],
        " ".join(parameters),
        " ".join(parameter_texts),
        " ".join(choices),
        " ".join(_examples(spec)),
    )
    return Fields._make(map(fold, found))


def _examples(spec: ToolSpec) -> Iterator[str]:
    for example in spec.examples:
        yield example.title[:_EXAMPLE_CHARACTERS]
        for name, value in example.arguments.items():
            yield name
            if isinstance(value, str):
                yield value[:_EXAMPLE_CHARACTERS]


FILE: Final = "thesaurus.bin"
_SMALL_WORDS: Final = "by of or in to on id at for and all get with from new use make my up"
_LONGEST_PART: Final = 14
_LETTERS_PER_PART: Final = 3.5
"""Fewest letters of the parts on average: shorter ones are mostly accidents."""


class Thesaurus:
    """Stems of similar meaning, and the common words that a joined word is made of."""

    def __init__(self, words: list[str], lines: dict[str, str]) -> None:
        ranked = dict.fromkeys((*_SMALL_WORDS.split(), *words))
        self._costs = {word: math.log((rank + 2) * 10) for rank, word in enumerate(ranked)}
        self._lines = lines

    def __contains__(self, stem: object) -> bool:
        return stem in self._lines

    def is_common(self, word: str) -> bool:
        """Return whether the word, as written, is one of the most common."""
        return word in self._costs

    def neighbours(self, stem: str, limit: int) -> list[tuple[str, float]]:
        """Return the stems of the most similar meaning, with their likeness from 0 to 1."""
        parts = (part.partition(":") for part in self._lines.get(stem, "").split()[:limit])
        return [(neighbour, int(likeness) / 100) for neighbour, _, likeness in parts]

    def split(self, word: str) -> list[str]:
        """Return the common words that a word is joined of, or nothing if it cannot be split."""
        size, costs = len(word), self._costs
        best = [0.0] + [math.inf] * size
        starts = [0] * (size + 1)
        for start in range(size - 1):
            if best[start] == math.inf:  # no word ends here
                continue
            for end in range(start + 2, min(start + _LONGEST_PART, size) + 1):
                cost = best[start] + costs.get(word[start:end], math.inf)
                if cost < best[end]:
                    best[end], starts[end] = cost, start
        if best[size] == math.inf:
            return []
        parts: list[str] = []
        while size:
            parts.append(word[starts[size] : size])
            size = starts[size]
        return parts[::-1] if len(parts) > 1 and len(word) >= _LETTERS_PER_PART * len(parts) else []


@lru_cache(maxsize=1)
def load_thesaurus() -> Thesaurus:
    """Return the thesaurus, read once."""
    text = zlib.decompress(Path(__file__).with_name(FILE).read_bytes()).decode()
    words, _, rest = text.partition("\n")
    lines = (line.partition("\t") for line in rest.split("\n"))
    return Thesaurus(words.split(" "), {stem: neighbours for stem, _, neighbours in lines})


_UNSPACED: Final = re.compile(r"\S+")
_QUOTED: Final = re.compile(r"\"[^\"\n]{1,200}\"|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`")
_LINK: Final = re.compile(r"(?<!\w)\w++://\S")
_MARK: Final = re.compile(rf"[\"'`]|{_LINK.pattern}")
_TO_LAST_DIGIT: Final = re.compile(r"\S*\d")


def find_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of values: quoted text, links, mail addresses and words with digits, up to the next space.

    Each run without spaces is scanned once for what makes it a value and then from mark to mark, so that the time is
    linear.
    """
    position = 0
    while run := _UNSPACED.search(text, position):
        position, end = run.span()
        dot = text.rfind(".", position, end - 1)
        last_at = text.rfind("@", position, max(position, dot - 1))  # of a mail address, in which a dot follows it
        digits = _TO_LAST_DIGIT.match(text, position, end)
        while position < end:
            quoted = _QUOTED.match(text, position)
            if (
                position < last_at
                or _LINK.match(text, position)
                or (quoted is None and digits and position < digits.end())
            ):
                last = end
            elif quoted is not None:
                last = quoted.end()
            else:
                mark = _MARK.search(text, position + 1, end)
                position = mark.start() if mark else end
                continue
            yield position, last
            position = last
