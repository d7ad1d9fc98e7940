"""Signatures: a tool on one line, as people write functions, so that an agent reads no schema it does not need."""

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from toolyard.metatools.arguments import arguments_of
from toolyard.schema import Schema, resolve
from toolyard.spec import ToolSpec

__all__ = ["one_line", "signature", "type_of"]

_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "object",
    "array": "list",
}
_CHOICES: Final = 5
_CHOICES_CHARACTERS: Final = 40
_DEPTH: Final = 4
_CHARACTERS: Final = 160


_ANY: Final = "any"
_MORE: Final = "…"
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HEADING: Final = re.compile(r"#{1,6}\s+")
_OPENING: Final = "([{<\"'*_`“«"
_ABBREVIATIONS: Final = frozenset({"approx", "Approx", "cf", "Cf", "etc", "vs", "Dr", "Mr", "Mrs", "Ms", "No", "St"})


def signature(spec: ToolSpec, *, characters: int = _CHARACTERS) -> str:
    """Return the tool as one line: everything required, then what else there is room for."""
    schema = spec.input_schema
    takes = arguments_of(schema)

    def written(name: str, mark: str) -> str:
        kinds = _either(type_of(schema, node) for node in takes.properties.get(name, [{}]))
        return f"{_visible(name)}{mark}: {kinds}"

    parts = [written(name, "") for name in takes.required]
    returns = "" if spec.output_schema is None else f" -> {type_of(spec.output_schema, spec.output_schema)}"
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
    line = _first_sentence(_HEADING.sub("", " ".join(text.strip().split("\n", 1)[0].split()), count=1))
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


def type_of(root: Schema, node: Any, depth: int = _DEPTH) -> str:
    """Return a part of a schema as a short type."""
    named = _name_of(node)
    here = resolve(root, node)
    if not isinstance(here, dict) or not here or not depth:
        return named or _ANY
    schema = cast("dict[str, Any]", here)
    choices: list[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        return _choices(choices)
    branches = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if branches:
        return _either(type_of(root, branch, depth - 1) for branch in branches)
    if "type" not in schema and "allOf" in schema:
        every = (type_of(root, part, depth - 1) for part in schema["allOf"])
        return next((kind for kind in every if kind != _ANY), _ANY)
    kinds = schema.get("type", "object" if "properties" in schema else None)
    several = cast("list[str]", kinds) if isinstance(kinds, list) else [kinds]
    return _either(_plain(root, schema, kind, named, depth) for kind in several)


def _plain(root: Schema, schema: dict[str, Any], kind: str | None, named: str, depth: int) -> str:
    if kind == "array":
        items = schema.get("items")
        return f"list[{type_of(root, items, depth - 1)}]" if isinstance(items, dict) else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        if not schema.get("properties") and isinstance(values, dict) and values:
            return f"dict[str, {type_of(root, cast('object', values), depth - 1)}]"
        title = schema.get("title")
        return named or (title if isinstance(title, str) and title.isidentifier() else "object")
    return _TYPES.get(kind or "", named or _ANY)


def _name_of(node: Any) -> str:
    """Return what a reference calls the thing that it refers to, if that is a name."""
    reference = cast("dict[str, Any]", node).get("$ref") if isinstance(node, dict) else None
    name = reference.rpartition("/")[2] if isinstance(reference, str) else ""
    return name if name.isidentifier() else ""


def _choices(choices: list[Any]) -> str:
    written = "|".join(f"'{_visible(choice)}'" if isinstance(choice, str) else str(choice) for choice in choices[:_CHOICES])
    if len(choices) <= _CHOICES and len(written) <= _CHOICES_CHARACTERS:
        return written
    return _either("str" if isinstance(choice, str) else type(choice).__name__ for choice in choices)


def _either(types: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(types))


def _visible(text: str) -> str:
    """Return a text with what would break the line written as an escape, so that whoever passes it on knows what it is."""
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
