"""Tools of which nobody has said what they do: their upstream gives no hints, and no person has settled it.

Their names propose an operation. Only a person decides.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from callyard.providers.upstream.catalogue import UpstreamTool
from callyard.providers.upstream.pins import Definitions, Key, Settled

__all__ = ["SETTLED", "UnsettledTool", "in_words", "propose", "unsettled_tools"]

SETTLED: Final[Mapping[Settled, str]] = {"query": "reads", "command": "changes", "destroy": "destroys"}
"""What a person may say that a tool does, in one word for people."""
_DESTROYS: Final = (
    "abort cancel cleanup clear close delete destroy disable discard drop empty erase expire flush force format kill "
    "nuke overwrite prune purge reboot remove replace reset restore revert revoke rm rollback shutdown stop terminate "
    "truncate uninstall unlink unpublish wipe"
)
_CHANGES: Final = (
    "accept add append apply approve archive assign build call commit configure copy create deploy dispatch download "
    "edit enable eval exec execute export fork grant import insert install invite invoke lock mark merge modify move "
    "open patch pay post publish push put register rename reply request rerun resolve run save send set share sign "
    "spawn start submit subscribe sync toggle transfer trigger unlock update upload upsert write"
)
_READS: Final = (
    "check compare count describe diff explain fetch find get grep head help info inspect list lookup ls peek ping "
    "preview query read retrieve search show stat stats status summarize tail validate verify view whoami"
)
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class UnsettledTool(msgspec.Struct, frozen=True):
    """A tool of which nobody has said what it does."""

    name: str
    """The upstream's own name."""
    published: str
    description: str
    proposal: Settled
    hash: str
    """The hash of its definition, so that a person settles what they saw."""


def propose(name: str) -> Settled:
    """Return the operation that the name of a tool suggests; a name that says nothing is no query."""
    words = [word.lower() for word in _WORD.findall(name)]
    if any(_is_one_of(_DESTROYS, word) for word in words):
        return "destroy"
    if any(_is_one_of(_CHANGES, word) for word in words):
        return "command"
    # many servers put the verb last, as in 'issue_read'
    reads = bool(words) and (_is_one_of(_READS, words[0]) or _is_one_of(_READS, words[-1]))
    return "query" if reads else "command"


def _is_one_of(words: str, word: str) -> bool:
    return f" {word} " in f" {words} "


def unsettled_tools(tools: Iterable[UpstreamTool], definitions: Definitions) -> list[UnsettledTool]:
    """Return those of an upstream's tools of which nobody has said what they do, by name."""
    found = [
        UnsettledTool(
            tool.upstream_name,
            tool.spec.name,
            tool.spec.summary,
            propose(tool.upstream_name),
            definitions[Key("tool", tool.upstream_name)].hash,
        )
        for tool in tools
        if tool.spec.unsettled is not None
    ]
    return sorted(found, key=lambda tool: tool.name)


def in_words(operations: Sequence[Settled]) -> str:
    """Return how many tools do what, such as '14 read, 3 destroy'."""
    counts = [(operations.count(operation), verb.removesuffix("s")) for operation, verb in SETTLED.items()]
    return ", ".join(f"{count} {verb}" for count, verb in counts if count)
