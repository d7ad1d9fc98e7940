"""YAML as text: what somebody has to put into a client's file, and where, to have one more entry in a section.

Nothing here changes a text: that would need a reader of YAML that keeps comments and order.
"""

import re
from typing import NamedTuple

__all__ = ["Paste", "paste"]


class Paste(NamedTuple):
    """Lines for a file, and their place in it."""

    lines: tuple[str, ...]
    place: str
    """Where they go, as a part of a sentence."""


def paste(text: str, section: str, entry: str) -> Paste:
    """Return an entry, written on one line, as it goes into a text: indented as its neighbours are, below the name of its section."""
    lines = text.removeprefix("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        found = re.fullmatch(rf"([\"']?){re.escape(section)}\1\s*:(.*)", line)
        if found is None:
            continue
        if found[2].partition("#")[0].strip():
            return Paste((f"{section}:", f"  {entry}"), f"in the place of line {number}, with what that has already")
        return Paste((f"{_indent(lines[number:], entry)}{entry}",), f"below line {number}, which says '{section}:'")
    return Paste((f"{section}:", f"  {entry}"), "at the end" if lines else "there")


def _indent(below: list[str], entry: str) -> str:
    """Return what the neighbours of an entry begin with; the items of a list need not be indented at all."""
    for line in below:
        bare = line.lstrip(" ")
        if bare and not bare.startswith("#"):
            is_neighbour = bare != line or (entry.startswith("- ") and bare.startswith("-"))
            return line[: len(line) - len(bare)] if is_neighbour else "  "
    return "  "
