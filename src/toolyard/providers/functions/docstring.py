"""Docstrings: the description of a tool and of its parameters, as Google and Sphinx style write them."""

import inspect
import re
from typing import Final, NamedTuple

__all__ = ["Documented", "read_docstring"]

_SECTION: Final = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Attributes|Examples?):\s*\Z")
_PARAMETERS: Final = frozenset({"Args", "Arguments", "Parameters"})
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)\Z")
_FIELD: Final = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)\Z")


class Documented(NamedTuple):
    """What a docstring says."""

    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Documented:
    """Return the description, without the sections, and the descriptions of the parameters."""
    if not text:
        return Documented("", {})
    lines = inspect.cleandoc(text).splitlines()
    start = next((number for number, line in enumerate(lines) if _SECTION.match(line) or line.startswith(":")), len(lines))
    description = "\n".join(lines[:start]).strip()
    return Documented(description, _parameters(lines[start:]))


def _parameters(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    inside = False
    name = ""
    margin = 0
    for line in lines:
        section, field = _SECTION.match(line), _FIELD.match(line)
        indent = len(line) - len(line.lstrip())
        if section:
            inside, name, margin = section[1] in _PARAMETERS, "", 0
        elif field:
            name, found[field[1]] = field[1], field[2].strip()
        elif not line.strip() or line.startswith(":"):
            name = "" if line.strip() else name
        elif inside and (not name or indent <= margin) and (entry := _ENTRY.match(line.strip())):
            name, margin = entry[1], indent
            found[name] = entry[2].strip()
        elif name and indent > margin:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
