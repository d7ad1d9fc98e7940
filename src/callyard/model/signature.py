"""Signatures: a tool on one line, written as a function, and the types of its parameters in the same notation.

Agents, `callyard search`, `callyard describe` and manifests all show what this module writes. Programs of agents get a
Python stub instead: a typed async function.
"""

import keyword
import re
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.model.schema import Schema, follow_reference, resolve
from callyard.model.spec import ToolSpec

__all__ = ["Parameters", "TypeNames", "identifier", "one_line", "read_parameters", "signature", "stub", "stub_path"]

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
_MORE: Final = "…"
_DEPTH: Final = 4
_TYPE_PARTS: Final = 256
"""Parts of a schema that one type may read: a schema that refers to itself has no end."""
_PARAMETER_PARTS: Final = 64
_CHOICES: Final = 5
_CHOICES_CHARACTERS: Final = 40
_EXPANDED_CHOICES: Final = 12
_EXPANDED_FIELDS: Final = 8
_CONDITIONS: Final = ("if", "dependentRequired", "dependentSchemas")
_CONTROL_CHARACTERS: Final = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"

_SIGNATURE_CHARACTERS: Final = 160
_LOOKAHEAD: Final = 256
"""Characters read beyond the room for a line, so that the cost does not grow with the text."""
_HEADING: Final = r"#{1,6}\s+"
_OPENING: Final = "([{<\"'*_`“«"
_ABBREVIATIONS: Final = frozenset({"approx", "Approx", "cf", "Cf", "etc", "vs", "Dr", "Mr", "Mrs", "Ms", "No", "St"})


class TypeNames:
    """Writes parts of one schema as short types, such as `list[int]`."""

    def __init__(self, root: Schema, *, expand: bool = False) -> None:
        """Read references in `root`; with `expand`, write small objects out by field, and more of an enum."""
        self._root = root
        self._expand = expand
        self._left = _TYPE_PARTS

    def of(self, node: object, depth: int = _DEPTH) -> str:
        """Return a part of the schema as a short type."""
        self._left -= 1
        referenced = _reference_name(node)
        schema = as_object(resolve(self._root, node))
        if not schema or not depth or self._left < 0:
            return referenced or _ANY
        if choices := _choices_of(schema):
            return self._choices(choices)
        if branches := _branches_of(schema):
            return self.of_any(branches, depth - 1)
        if "type" not in schema and "allOf" in schema:
            parts = (self.of(part, depth - 1) for part in as_list(schema["allOf"])[:_TYPE_PARTS])
            return next((name for name in parts if name != _ANY), _ANY)
        return _union(self._of_type(kind, schema, referenced, depth) for kind in _types_of(schema))

    def of_any(self, nodes: list[Any], depth: int = _DEPTH) -> str:
        """Return the union of several parts."""
        read = nodes[: max(self._left, 1)]
        return _union([*(self.of(node, depth) for node in read), *([_ANY] if len(read) < len(nodes) else [])])

    def _of_type(self, kind: object, schema: dict[str, Any], referenced: str, depth: int) -> str:
        if kind == "array":
            items = schema.get("items")
            return f"list[{self.of(cast('object', items), depth - 1)}]" if isinstance(items, dict) else "list"
        if kind == "object":
            return self._of_object(schema, referenced, depth)
        return _TYPES.get(kind if isinstance(kind, str) else "", referenced or _ANY)

    def _of_object(self, schema: dict[str, Any], referenced: str, depth: int) -> str:
        fields, values, title = as_object(schema.get("properties")), _values_of(schema), schema.get("title")
        if values:
            return f"dict[str, {self.of(values, depth - 1)}]"
        if self._expand and 0 < len(fields) <= _EXPANDED_FIELDS:
            required = as_list(schema.get("required"))
            written = (
                f"{_escape(name)}{'' if name in required else '?'}: {self.of(part, depth - 1)}"
                for name, part in fields.items()
            )
            return f"{{{', '.join(written)}}}"
        return referenced or (title if isinstance(title, str) and title.isidentifier() else "object")

    def _choices(self, choices: list[Any]) -> str:
        count = _EXPANDED_CHOICES if self._expand else _CHOICES
        written = "|".join(
            f"'{_escape(choice)}'" if isinstance(choice, str) else str(choice) for choice in choices[:count]
        )
        if self._expand:
            return written if len(choices) <= count else f"{written}|{_MORE}"
        if len(choices) <= count and len(written) <= _CHOICES_CHARACTERS:
            return written
        return _union("str" if isinstance(choice, str) else type(choice).__name__ for choice in choices)


class Parameters(msgspec.Struct):
    """The parameters of a tool, by name."""

    properties: dict[str, list[Any]] = msgspec.field(default_factory=dict[str, list[Any]])
    """The schema of each parameter, or several where alternatives differ."""
    required: dict[str, None] = msgspec.field(default_factory=dict[str, None])
    is_partial: bool = False
    """Whether conditions or alternatives add parameters, or the schema was not read to its end."""

    def join(self, other: "Parameters") -> None:
        """Add the parameters of another part; its schema replaces one that allows everything."""
        for name, schemas in other.properties.items():
            if all(schema in (True, {}) for schema in self.properties.get(name, ())):
                self.properties[name] = schemas
        self.required |= other.required
        self.is_partial |= other.is_partial


def read_parameters(schema: Schema, part: Schema | None = None) -> Parameters:
    """Return the parameters of an input schema, or of a part of it.

    References are followed. Of alternatives, the parameters that all of them share count.
    """
    return _ParameterReader(schema).read(schema if part is None else part)


class _ParameterReader:
    """Reads one schema, up to a number of parts."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _PARAMETER_PARTS

    def read(self, node: object) -> Parameters:
        self._left -= 1
        here = as_object(node)
        parameters = Parameters(
            properties={name: [part] for name, part in as_object(here.get("properties")).items()},
            required=dict.fromkeys(name for name in as_list(here.get("required")) if isinstance(name, str)),
            is_partial=node is None or any(key in here for key in _CONDITIONS),
        )
        reference = here.get("$ref")
        if isinstance(reference, str):
            self._join_all(parameters, [follow_reference(self._root, reference)])
        self._join_all(parameters, as_list(here.get("allOf")))
        for key in ("anyOf", "oneOf"):
            self._join_shared(parameters, as_list(here.get(key)))
        return parameters

    def _join_all(self, parameters: Parameters, parts: Iterable[object]) -> None:
        for part in parts:
            if self._left <= 0:
                parameters.is_partial = True
                return
            parameters.join(self.read(part))

    def _join_shared(self, parameters: Parameters, branches: list[object]) -> None:
        """Add what every alternative requires, with the schemas of all of them."""
        if len(branches) <= 1:
            self._join_all(parameters, branches)
            return
        parameters.is_partial = True
        if len(branches) > self._left:
            return
        alternatives = [self.read(branch) for branch in branches]
        for name in alternatives[0].required:
            if all(name in other.required for other in alternatives):
                schemas = [schema for other in alternatives for schema in other.properties.get(name, [{}])]
                parameters.join(Parameters({name: schemas}, {name: None}))


def signature(spec: ToolSpec, *, characters: int = _SIGNATURE_CHARACTERS) -> str:
    """Return the tool as one line: every required parameter, then the optional ones that there is room for."""
    schema = spec.input_schema
    parameters, types = read_parameters(schema), TypeNames(schema)

    def written(name: str, mark: str) -> str:
        return f"{_escape(name)}{mark}: {types.of_any(parameters.properties.get(name, [{}]))}"

    parts = [written(name, "") for name in parameters.required]
    returns = "" if spec.output_schema is None else f" -> {TypeNames(spec.output_schema).of(spec.output_schema)}"
    left = characters - len(spec.name) - len(returns) - sum(len(part) + 2 for part in parts)
    is_cut = parameters.is_partial
    for name in [name for name in parameters.properties if name not in parameters.required]:
        part = written(name, "?")
        left -= len(part) + 2
        if left < 0:
            is_cut = True
            break
        parts.append(part)
    return f"{spec.name}({', '.join([*parts, _MORE] if is_cut else parts)}){returns}"


def one_line(text: str, characters: int) -> str:
    """Return the first sentence of a text, cut at a word where it is too long."""
    written = text.lstrip()[: characters + _LOOKAHEAD].split("\n", 1)[0]
    line = _first_sentence(re.sub(_HEADING, "", " ".join(written.split()), count=1))
    if len(line) <= characters:
        return line
    return line[:characters].rsplit(" ", 1)[0].rstrip(",;:-") + _MORE


def _first_sentence(line: str) -> str:
    """Return a line up to the full stop that ends its first sentence, skipping those of abbreviations."""
    end = line.find(". ")
    while end >= 0:
        word = line[:end].rpartition(" ")[2].lstrip(_OPENING).rpartition(".")[2]
        is_abbreviated = word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())
        follows = line[end + 2 :].lstrip(_OPENING)[:1]
        # `isupper` fails for scripts without capitals.
        if not is_abbreviated and follows.isalpha() and not follows.islower():
            return line[: end + 1]
        end = line.find(". ", end + 1)
    return line


def _choices_of(schema: dict[str, Any]) -> list[Any]:
    return as_list(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])


def _branches_of(schema: dict[str, Any]) -> list[Any]:
    return [*as_list(schema.get("anyOf")), *as_list(schema.get("oneOf"))]


def _types_of(schema: dict[str, Any]) -> list[Any]:
    types = schema.get("type", "object" if "properties" in schema else None)
    return as_list(types) or [types]


def _values_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the values of a mapping; an empty one for objects with fields."""
    return {} if schema.get("properties") else as_object(schema.get("additionalProperties"))


def _escape(text: str) -> str:
    """Return a text with control characters and line breaks escaped, so that a signature stays one line."""
    return re.sub(_CONTROL_CHARACTERS, lambda match: match[0].encode("unicode_escape").decode(), text)


def _reference_name(node: object) -> str:
    """Return the last part of a node's reference, if that is an identifier."""
    reference = as_object(node).get("$ref")
    name = reference.rpartition("/")[2] if isinstance(reference, str) else ""
    return name if name.isidentifier() else ""


def _union(types: Iterable[str]) -> str:
    return "|".join(dict.fromkeys(types))


_STUB_ANY: Final = "Any"
_STUB_CHOICES: Final = 12
_STUB_DESCRIPTION: Final = 200
_NO_LETTER: Final = r"(?a)\W"


def identifier(name: str) -> str:
    """Return a name as a Python identifier: '_' for what none may contain, before a digit, and after a keyword."""
    spelled = re.sub(_NO_LETTER, "_", name) or "_"
    if spelled[0].isdigit():
        spelled = f"_{spelled}"
    return f"{spelled}_" if keyword.iskeyword(spelled) else spelled


def stub_path(spec: ToolSpec) -> tuple[str, str]:
    """Return namespace and name of a tool as a program spells them: `tools.<namespace>.<name>`."""
    return identifier(spec.source), identifier(spec.name.removeprefix(spec.source.replace("-", "_") + "__"))


def stub(spec: ToolSpec) -> str:
    """Return a tool as an async function with its types and the first sentence of its description."""
    namespace, name = stub_path(spec)
    returns = _stub_type(spec.output_schema, spec.output_schema) if spec.output_schema is not None else _STUB_ANY
    head = f"async def {name}({', '.join(_stub_parameters(spec))}) -> {returns}:"
    text = one_line(spec.description, _STUB_DESCRIPTION).replace("\\", "\\\\").replace('"', "'")
    return f'# tools.{namespace}\n{head}\n    """{text}"""'


def _stub_parameters(spec: ToolSpec) -> Iterable[str]:
    """Yield the parameters, those without a default first; a name that is no identifier can be given in a dict only."""
    found = read_parameters(spec.input_schema)
    named = [name for name in found.properties if name.isidentifier() and not keyword.iskeyword(name)]
    if named:
        yield "*"
    for name in sorted(named, key=lambda name: name not in found.required):
        written = f"{name}: {_stub_union(_stub_type(part, spec.input_schema) for part in found.properties[name])}"
        yield written if name in found.required else f"{written} = {_stub_default(found.properties[name])}"
    if len(named) < len(found.properties) or found.is_partial:
        yield "**more: Any"


def _stub_default(parts: list[Any]) -> str:
    written = next((repr(part["default"]) for part in parts if "default" in as_object(part)), "...")
    return written if len(written) <= _STUB_DESCRIPTION else "..."


def _stub_type(node: object, root: Schema, depth: int = _DEPTH) -> str:
    schema = as_object(resolve(root, node))
    if not schema or not depth:
        return _STUB_ANY
    choices = _choices_of(schema)
    if len(choices) > _STUB_CHOICES:
        return _stub_union(type(choice).__name__ for choice in choices)
    if choices:
        return f"Literal[{', '.join(map(repr, choices))}]"
    if branches := _branches_of(schema):
        return _stub_union(_stub_type(branch, root, depth - 1) for branch in branches[:_STUB_CHOICES])
    return _stub_union(_stub_type_of_kind(kind, schema, root, depth) for kind in _types_of(schema))


def _stub_type_of_kind(kind: Any, schema: dict[str, Any], root: Schema, depth: int) -> str:
    if kind == "array":
        return f"list[{_stub_type(schema.get('items'), root, depth - 1)}]"
    if kind == "object":
        return f"dict[str, {_stub_type(_values_of(schema), root, depth - 1)}]"
    return _TYPES.get(kind, _STUB_ANY) if isinstance(kind, str) else _STUB_ANY


def _stub_union(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return _STUB_ANY if _STUB_ANY in found or not found else " | ".join(found)
