"""JSON Schema: checks schemas, validates values and looks up the part of a schema for one field.

It must not know tools; a schema is a dictionary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from toolyard.model.errors import shortened
from toolyard.model.names import closest_name

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = [
    "EXTRA",
    "MAX_ISSUES",
    "MAX_MISMATCHES",
    "ROOT",
    "Issue",
    "Mismatch",
    "Path",
    "Schema",
    "SchemaError",
    "SchemaValidator",
    "check_schema",
    "field_name",
    "fits_simple_schema",
    "follow_reference",
    "inline_references",
    "is_simple_schema",
    "json_type",
    "resolve",
    "subschema",
    "unknown_field_issue",
]


_MAX_INTEGER: Final = 2**53
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_ANNOTATION_KEYWORDS: Final = frozenset({"title", "description", "default"})


def is_simple_schema(schema: object) -> bool:
    """Return whether this is certainly a JSON Schema; a false answer leaves it open.

    It saves loading and running the validator for the schemas of most tools.
    """
    if type(schema) is bool:
        return True
    if type(schema) is not dict:
        return False
    for key, value in cast("dict[str, object]", schema).items():  # a loop is quicker than 'all', and a yard that opens checks many
        check = _KEYWORDS.get(key)
        if check is None or not check(value):
            return False
    return True


def fits_simple_schema(schema: dict[str, Any], value: object) -> bool:
    """Return whether a value certainly fits a simple schema of scalars; a false answer leaves it open."""
    for key, expected in schema.items():
        if key == "type":
            fits = type(expected) is str and type(value) in _TYPES[expected]
        elif key == "enum":
            fits = type(value) is str and value in expected
        elif key == "anyOf":
            fits = any(type(branch) is dict and fits_simple_schema(branch, value) for branch in expected)
        elif key == "minimum":
            fits = type(value) in {int, float} and cast("float", value) >= expected
        elif key == "maximum":
            fits = type(value) in {int, float} and cast("float", value) <= expected
        else:
            fits = key in _ANNOTATION_KEYWORDS
        if not fits:
            return False
    return True


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_number(value: object) -> bool:
    return (type(value) is int and abs(value) < _MAX_INTEGER) or (type(value) is float and isfinite(value))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_INTEGER


def _is_type(value: object) -> bool:
    if type(value) is str:
        return value in _TYPES
    return _are_names(value) and bool(value) and set(cast("list[str]", value)) <= _TYPES.keys()


def _is_json(value: object) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _is_json(item) for key, item in cast("dict[object, object]", value).items())
    if type(value) is list:
        return all(map(_is_json, cast("list[object]", value)))
    return value is None or type(value) in {str, bool} or _is_number(value)


def _are_json(value: object) -> bool:
    return type(value) is list and _is_json(cast("object", value))


def _are_names(value: object) -> bool:
    if type(value) is not list:
        return False
    names = cast("list[object]", value)
    return all(type(name) is str for name in names) and len(set(names)) == len(names)


def _are_properties(value: object) -> bool:
    if type(value) is not dict:
        return False
    properties = cast("dict[object, object]", value)
    return all(type(key) is str for key in properties) and all(map(is_simple_schema, properties.values()))


def _are_branches(value: object) -> bool:
    branches = cast("list[object]", value) if type(value) is list else []
    return bool(branches) and all(map(is_simple_schema, branches))


_KEYWORDS: Final[dict[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("additionalProperties", "items"), is_simple_schema),
    **dict.fromkeys(("const", "default"), _is_json),
    **dict.fromkeys(("description", "title"), _is_text),
    **dict.fromkeys(("enum", "examples"), _are_json),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _is_number),
    **dict.fromkeys(("maxItems", "maxLength", "minItems", "minLength"), _is_count),
    "anyOf": _are_branches,
    "properties": _are_properties,
    "required": _are_names,
    "type": _is_type,
}
"""Keywords of a simple schema, each with the check of its value."""

MAX_ISSUES: Final = 50
"""Most issues that one answer reports."""
MAX_MISMATCHES: Final = 10
"""Most places that one answer names where a result does not fit."""
EXTRA: Final = "extra_forbidden"
"""Code of an issue about an unknown field."""
ROOT: Final = "(root)"
"""Field name that stands for the arguments as a whole."""
Schema = Mapping[str, Any]
Path = tuple[str | int, ...]
_MAX_REFERENCES: Final = 32
_MAX_INLINED_NODES: Final = 200
_MAX_NAME_CHARACTERS: Final = 200
_CONTAINERS: Final = (dict, list)
_CODES: Final = {
    "required": "missing",
    "additionalProperties": EXTRA,
    "minimum": "greater_than_equal",
    "maximum": "less_than_equal",
    "exclusiveMinimum": "greater_than",
    "exclusiveMaximum": "less_than",
    "minLength": "string_too_short",
    "maxLength": "string_too_long",
    "minItems": "too_short",
    "maxItems": "too_long",
    "pattern": "string_pattern_mismatch",
}


class SchemaError(ValueError):
    """A schema is invalid or exceeds a limit."""


class Issue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault in the arguments, with what an agent needs to correct it."""

    field: str
    code: str
    message: str
    expected: Any = None
    did_you_mean: str | None = None


class Mismatch(msgspec.Struct, frozen=True):
    """A place where a value does not fit a schema: what was expected there, and the type that came."""

    field: str
    expected: str
    came: str


def json_type(value: object) -> str:
    """Return the name of a value's type in JSON."""
    return next((name for name, kinds in _TYPES.items() if type(value) in kinds), "object")


def check_schema(schema: object, *, max_bytes: int, max_depth: int) -> None:
    """Check that this is a JSON Schema of dialect 2020-12 within the limits.

    Raises:
        SchemaError: It is not.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaError("it is not a JSON object")
    if _is_deeper_than(cast("object", schema), max_depth):
        raise SchemaError(f"it is nested deeper than {max_depth} levels")
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"it cannot be written as JSON ({error})") from error
    if size > max_bytes:
        raise SchemaError(f"it is larger than {max_bytes} bytes")
    if not is_simple_schema(cast("object", schema)):
        _check_by_compiling(cast("dict[str, Any]", schema))


def _check_by_compiling(schema: Schema) -> None:
    from jsonschema_rs import ReferencingError  # noqa: PLC0415 - slow to load, see `_compile`

    try:
        _compile(schema)
    except (ReferencingError, ValueError) as error:
        raise SchemaError(f"it is no JSON Schema ({str(error).splitlines()[0]})") from error


class SchemaValidator:
    """Checks values against a schema, compiled when first used."""

    __slots__ = ("_schema", "_validator")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._validator: jsonschema_rs.Draft202012Validator | None = None

    def fits(self, value: object) -> bool:
        """Return whether the value fits."""
        validator = self._validator or self._compiled()
        return validator.is_valid(value)

    def issues(self, value: object) -> list[Issue]:
        """Return the first issues of the value, at most `MAX_ISSUES`."""
        validator = self._validator or self._compiled()
        found: list[Issue] = []
        for error in validator.iter_errors(value):
            found += _issues_of(error, self._schema)
            if len(found) >= MAX_ISSUES:
                break
        return found[:MAX_ISSUES]

    def mismatches(self, value: object, most: int = MAX_MISMATCHES) -> list[Mismatch]:
        """Return the places where a value does not fit, by types and not by contents."""
        found: list[Mismatch] = []
        for error in islice((self._validator or self._compiled()).iter_errors(value), most):
            path, kind = tuple(error.instance_path), str(cast("Any", error.kind).name)
            here = _value_at(value, path)
            if kind == "required":
                name = str(cast("Any", error.kind).property)
                found.append(Mismatch(self._shown((*path, name)), self._expected((*path, name)), "nothing"))
            else:
                found.append(Mismatch(self._shown(path), self._expected(path, kind), json_type(here)))
        return found

    def _expected(self, path: Path, kind: str = "type") -> str:
        """Return the types that the schema expects at a path, and the keyword that was missed if it is another one."""
        node = subschema(self._schema, path)
        branches = [node, *(cast("dict[str, Any]", node).get("anyOf", ()) if isinstance(node, dict) else ())]
        resolved = [resolve(self._schema, branch) for branch in branches]
        kinds = [cast("dict[str, Any]", branch).get("type") for branch in resolved if isinstance(branch, dict)]
        names = [str(name) for one in kinds if one for name in (cast("list[object]", one) if isinstance(one, list) else [one])]
        expected = " or ".join(dict.fromkeys(names)) or "something else"
        return expected if kind in {"type", "anyOf", "oneOf"} else f"{expected} ({kind})"

    def _shown(self, path: Path) -> str:
        """Return a path with '*' in place of keys that the schema does not name, because those are contents."""
        parts: list[str | int] = []
        for number, part in enumerate(path):
            node = subschema(self._schema, path[:number])
            known: dict[str, Any] = cast("dict[str, Any]", node).get("properties", {}) if isinstance(node, dict) else {}
            parts.append(part if isinstance(part, int) or part in known else "*")
        return field_name(parts)

    def _compiled(self) -> "jsonschema_rs.Draft202012Validator":
        self._validator = _compile(self._schema)
        return self._validator


def subschema(root: Schema, path: Sequence[str | int]) -> Any:
    """Return the part of a schema that applies to the value at the path, or None."""
    node: Any = root
    for part in path:
        node = _step(resolve(root, node), part, root)
        if node is None:
            return None
    return resolve(root, node)


def inline_references(root: Schema, node: Any) -> Any:
    """Return a part of a schema with its references replaced by their targets, up to a limited size."""
    return _Inliner(root).inline(node)


def resolve(root: Schema, node: Any) -> Any:
    """Return the target of a reference within the schema, or the node itself if it is not one."""
    for _ in range(_MAX_REFERENCES):
        reference = cast("dict[str, Any]", node).get("$ref") if isinstance(node, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return cast("Any", node)
        node = follow_reference(root, reference)
    return None


def follow_reference(root: Schema, reference: str) -> Any:
    """Return the direct target of a reference, which may be a reference again; None if there is none."""
    if not reference.startswith("#"):
        return None
    node: Any = root
    for raw in reference.split("/")[1:]:
        part = raw.replace("~1", "/").replace("~0", "~")
        node = cast("dict[str, Any]", node).get(part) if isinstance(node, dict) else None
    return node


def field_name(path: Sequence[str | int]) -> str:
    """Return a path in dotted form, cut to a readable length."""
    return shortened(".".join(str(part) for part in path) or ROOT)


class _Inliner:
    """Replaces references by their targets, up to a number of nodes; a recursive reference becomes its type."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._nodes_left = _MAX_INLINED_NODES
        self._open_references: list[str] = []

    def inline(self, node: Any) -> Any:
        """Return a node with its references replaced; nodes past the limit become empty schemas."""
        self._nodes_left -= 1
        if self._nodes_left < 0:
            return {}
        if isinstance(node, list):
            return [self.inline(item) for item in cast("list[Any]", node)]
        if not isinstance(node, dict):
            return node
        here = cast("dict[str, Any]", node)
        reference = here.get("$ref")
        if isinstance(reference, str):
            return self._follow(reference, resolve(self._root, here))
        return {key: self.inline(inner) for key, inner in here.items() if key != "$defs"}

    def _follow(self, reference: str, target: Any) -> Any:
        if reference in self._open_references:
            kind = cast("dict[str, Any]", target).get("type") if isinstance(target, dict) else None
            return {"type": kind} if kind else {}
        self._open_references.append(reference)
        try:
            return self.inline(target)
        finally:
            self._open_references.pop()


def _compile(schema: Schema) -> "jsonschema_rs.Draft202012Validator":
    """Return a validator that fetches nothing and whose messages contain no values."""
    from jsonschema_rs import Draft202012Validator  # noqa: PLC0415 - slow to load, and tools with simple schemas never need it

    return Draft202012Validator(cast("dict[str, Any]", schema), mask="it", retriever=_refuse)


def _refuse(uri: str) -> Any:
    raise ValueError(f"a schema may not refer to '{uri}'")


def _step(node: Any, part: str | int, root: Schema) -> Any:
    if not isinstance(node, dict):
        return None
    here = cast("dict[str, Any]", node)
    if isinstance(part, int):
        prefix = here.get("prefixItems")
        if isinstance(prefix, list) and part < len(cast("list[Any]", prefix)):
            return cast("list[Any]", prefix)[part]
        found = here.get("items")
    else:
        found = here.get("properties", {}).get(part, here.get("additionalProperties"))
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    for branch in (*here.get("anyOf", ()), *here.get("oneOf", ()), *here.get("allOf", ())):
        inner = _step(resolve(root, branch), part, root)
        if inner is not None:
            return inner
    return None


def _issues_of(error: "jsonschema_rs.ValidationError", root: Schema) -> list[Issue]:
    path: Path = tuple(error.instance_path)
    kind: Any = error.kind
    name = str(kind.name)
    code = _CODES.get(name, name)
    expected = inline_references(root, subschema(root, path))
    if code == "missing":
        field = (*path, str(kind.property))
        return [Issue(field_name(field), code, f"'{field_name(field)}' is required.", inline_references(root, subschema(root, field)))]
    if code == EXTRA:
        known = list(cast("dict[str, Any]", expected or {}).get("properties", {}))
        return [unknown_field_issue((*path, name), known) for name in kind.unexpected]
    return [Issue(field_name(path), code, f"'{field_name(path)}': {error.message}.", expected)]


def unknown_field_issue(path: Path, known: Sequence[str]) -> Issue:
    """Return the issue of a field that the schema does not have."""
    name = str(path[-1])
    meant = closest_name(name, known)
    text = f"'{field_name(path)}' is not known." + (f" Did you mean '{meant}'?" if meant else "")
    return Issue(field_name(path), EXTRA, text, did_you_mean=meant)


def _value_at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _is_deeper_than(value: object, depth: int) -> bool:
    layer: list[object] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth + 1):
        layer = [child for node in layer for child in _children(node) if isinstance(child, _CONTAINERS)]
        if not layer:
            return False
    return True


def _children(node: object) -> Iterable[object]:
    return cast("dict[str, object]", node).values() if isinstance(node, dict) else cast("list[object]", node)
