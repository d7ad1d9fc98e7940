"""Scanning: looks through definitions for what is hidden in them and for orders to a model.

It finds what is known and crude. That nothing was found does not mean that a definition is harmless.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from toolyard.providers.upstream.characters import plain, visible
from toolyard.providers.upstream.definitions import Definition, PinnedKind
from toolyard.providers.upstream.rules import CHARACTER_RULES, LONGEST, TEXT_RULES, Rule, Severity, Text

__all__ = ["ALL_RULES", "Finding", "scan"]

_SHADOWING: Final = Rule(
    id="orders-other-tools",
    severity="high",
    meaning="It gives orders about a tool of another upstream, which is none of its business.",
    find=lambda _: None,
)
_SHORT_TEXT: Final = 12
_LONG_NAME: Final = 100
_SENTENCE: Final = re.compile(r"[^.!?]{1,400}")
_ORDER: Final = re.compile(r"\b(?:when|whenever|before|after|instead of|always|never|must|do not|don't|first|any time|every time)\b")
_NAME: Final = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)+")

ALL_RULES: Final = (*CHARACTER_RULES, *TEXT_RULES, _SHADOWING)
"""Every rule there is."""


class Finding(msgspec.Struct, frozen=True):
    """Something suspicious in a definition: which rule found it, where, and the piece of text, with nothing hidden in it."""

    upstream: str
    kind: PinnedKind
    name: str
    field: str
    rule: str
    severity: Severity
    excerpt: str


def scan(upstream: str, definitions: Iterable[Definition], *, others: Iterable[str] = ()) -> list[Finding]:
    """Return what is suspicious in the definitions of an upstream; `others` are the names of the tools of all the others."""
    listed = list(definitions)
    own = {one.name.lower() for one in listed}
    foreign = frozenset(name.lower() for name in others if _NAME.fullmatch(name.lower())) - own
    known: dict[tuple[str, bool], list[tuple[Rule, str]]] = {}  # many arguments are described alike
    findings: list[Finding] = []
    for one in listed:
        for field, written, is_name in _texts(one):
            if (written, is_name) not in known:
                known[written, is_name] = _looked_at(written, foreign, is_name=is_name)
            findings += [_finding(upstream, one, field, rule, found) for rule, found in known[written, is_name]]
    return findings


def _looked_at(written: str, foreign: frozenset[str], *, is_name: bool) -> list[tuple[Rule, str]]:
    """Return what the rules find in one text."""
    odd = not (written.isascii() and written.replace("\n", "").isprintable())
    if len(written) < (_LONG_NAME if is_name else _SHORT_TEXT) and not odd:
        return []
    cut = written[: LONGEST + 1]
    text = Text(cut, "" if is_name else plain(cut), is_name)
    found = [(rule, rule.find(text)) for rule in (ALL_RULES if odd else TEXT_RULES)]
    found += [(_SHADOWING, _find_orders(text, foreign))] if foreign else []
    return [(rule, piece) for rule, piece in found if piece is not None]


def _finding(upstream: str, definition: Definition, field: str, rule: Rule, found: str) -> Finding:
    return Finding(upstream, definition.kind, definition.name, field, rule.id, rule.severity, visible(found))


def _find_orders(text: Text, foreign: frozenset[str]) -> str | None:
    """Return the sentence that orders something about a tool that is not this upstream's."""
    if text.is_name or foreign.isdisjoint(_NAME.findall(text.read)):
        return None
    sentences = (match[0].strip() for match in _SENTENCE.finditer(text.read))
    return next((one for one in sentences if _ORDER.search(one) and not foreign.isdisjoint(_NAME.findall(one))), None)


def _texts(definition: Definition) -> Iterator[tuple[str, str, bool]]:
    """Return where every text of a definition stands, the text, and whether it is a name."""
    if definition.name:
        yield "name", definition.name, definition.kind in {"tool", "prompt"}
    for field, value in definition.fields.items():
        yield from _walk(value, field)


def _walk(value: Any, place: str) -> Iterator[tuple[str, str, bool]]:
    if isinstance(value, str):
        yield place, value, False
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield f"{place}.{visible(key)}", key, True
            yield from _walk(inner, f"{place}.{visible(key)}")
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[Any]", value)):
            yield from _walk(inner, f"{place}[{number}]")
