"""Signatures: a tool on one line, as people write functions, so that an agent reads no schema it does not need."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from toolyard.model.schema import Schema, follow_reference, resolve
from toolyard.model.spec import ToolSpec

__all__ = ["Parameters", "Types", "list_in", "one_line", "read_parameters", "signature", "visible"]


_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "object",
    "array": "list",
}
_ANY: Final = "any"
_CHOICES: Final = 5
_CHOICES_CHARACTERS: Final = 40
_DEPTH: Final = 4
_TYPE_PARTS: Final = 256
"""Parts of a schema that are read; one that refers to itself has no end of them."""
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Types:
    """What the parts of one schema are called, as far as they are read."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _TYPE_PARTS

    def of(self, node: object, depth: int = _DEPTH) -> str:
        """Return a part of the schema as a short type."""
        self._left -= 1
        named = _name_of(node)
        here = resolve(self._root, node)
        if not isinstance(here, dict) or not here or not depth or self._left < 0:
            return named or _ANY
        schema = cast("dict[str, Any]", here)
        choices = list_in(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
        if choices:
            return _choices(choices)
        branches = [*list_in(schema.get("anyOf")), *list_in(schema.get("oneOf"))]
        if branches:
            return self.of_either(branches, depth - 1)
        if "type" not in schema and "allOf" in schema:
            every = (self.of(part, depth - 1) for part in list_in(schema["allOf"])[:_TYPE_PARTS])
            return next((kind for kind in every if kind != _ANY), _ANY)
        kinds = schema.get("type", "object" if "properties" in schema else None)
        return _either(self._plain(schema, kind, named, depth) for kind in list_in(kinds) or [kinds])

    def of_either(self, nodes: list[Any], depth: int = _DEPTH) -> str:
        """Return the types of several parts, of which one holds."""
        read = nodes[: max(self._left, 1)]
        return _either([*(self.of(node, depth) for node in read), *([_ANY] if len(read) < len(nodes) else [])])

    def _plain(self, schema: dict[str, Any], kind: object, named: str, depth: int) -> str:
        if kind == "array":
            items = schema.get("items")
            return f"list[{self.of(cast('object', items), depth - 1)}]" if isinstance(items, dict) else "list"
        if kind == "object":
            values = schema.get("additionalProperties")
            if not schema.get("properties") and isinstance(values, dict) and values:
                return f"dict[str, {self.of(cast('object', values), depth - 1)}]"
            title = schema.get("title")
            return named or (title if isinstance(title, str) and title.isidentifier() else "object")
        return _TYPES.get(kind if isinstance(kind, str) else "", named or _ANY)


def list_in(value: object) -> list[Any]:
    """Return a list, or an empty one where something else stands."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def visible(text: str) -> str:
    """Return a text with what would break the line written as an escape, so that whoever passes it on knows what it is."""
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _name_of(node: object) -> str:
    """Return what a reference calls the thing that it refers to, if that is a name."""
    reference = cast("dict[str, Any]", node).get("$ref") if isinstance(node, dict) else None
    name = reference.rpartition("/")[2] if isinstance(reference, str) else ""
    return name if name.isidentifier() else ""


def _choices(choices: list[Any]) -> str:
    written = "|".join(f"'{visible(choice)}'" if isinstance(choice, str) else str(choice) for choice in choices[:_CHOICES])
    if len(choices) <= _CHOICES and len(written) <= _CHOICES_CHARACTERS:
        return written
    return _either("str" if isinstance(choice, str) else type(choice).__name__ for choice in choices)


def _either(types: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(types))


_PARTS: Final = 64
"""Parts of a schema that are read; one that refers to itself has no end of them."""
_CONDITIONS: Final = ("if", "dependentRequired", "dependentSchemas")


@dataclass(slots=True)
class Parameters:
    """What is known by name, and whether there is more to it than names can say."""

    properties: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """The schemas of each: one, or one for each alternative."""
    required: dict[str, None] = field(default_factory=dict[str, None])
    """Those that every call needs."""
    more: bool = False
    """Whether what is needed depends on something, or leads where it was not read."""

    def join(self, other: "Parameters") -> None:
        """Take what another part demands, too; of two schemas of one that which says something."""
        for name, schemas in other.properties.items():
            if not _says_something(self.properties.get(name, ())):
                self.properties[name] = schemas
        self.required |= other.required
        self.more |= other.more


def read_parameters(schema: Schema) -> Parameters:
    """Return what a schema says that a tool takes, in what it refers to, in all its parts and in every one of its alternatives."""
    return _Reading(schema).read(schema)


class _Reading:
    """One way through a schema, of so many parts."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _PARTS

    def read(self, node: object) -> Parameters:
        """Return what a part of the schema says."""
        self._left -= 1
        if not isinstance(node, dict):
            return Parameters(more=node is None)
        here = cast("dict[str, Any]", node)
        properties, required = here.get("properties"), here.get("required")
        found = Parameters(
            properties={name: [part] for name, part in cast("dict[str, Any]", properties).items()} if isinstance(properties, dict) else {},
            required=dict.fromkeys(name for name in list_in(required) if isinstance(name, str)),
            more=any(key in here for key in _CONDITIONS),
        )
        reference = here.get("$ref")
        if isinstance(reference, str):
            self._join_all(found, [follow_reference(self._root, reference)])
        self._join_all(found, list_in(here.get("allOf")))
        for key in ("anyOf", "oneOf"):
            self._join_either(found, list_in(here.get(key)))
        return found

    def _join_all(self, found: Parameters, parts: Iterable[object]) -> None:
        for part in parts:
            if self._left <= 0:
                found.more = True
                return
            found.join(self.read(part))

    def _join_either(self, found: Parameters, branches: list[object]) -> None:
        """Add what every alternative requires, as each of them has it."""
        if len(branches) <= 1:
            self._join_all(found, branches)
            return
        found.more = True
        if len(branches) > self._left:
            return
        several = [self.read(branch) for branch in branches]
        for name in several[0].required:
            if all(name in one.required for one in several):
                schemas = [schema for one in several for schema in one.properties.get(name, [{}])]
                found.join(Parameters({name: schemas}, {name: None}))


def _says_something(schemas: Iterable[object]) -> bool:
    return any(schema not in (True, {}) for schema in schemas)


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
