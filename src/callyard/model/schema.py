"""JSON Schema: checks schemas, validates values and looks up the part of a schema for one field.

It must not know tools; a schema is a dictionary.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.model.errors import shortened
from callyard.model.names import closest_name
from callyard.model.schema_cost import schema_cost
from callyard.model.simple_schema import is_simple_schema, json_type

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
    "compile_at",
    "escaped",
    "field_name",
    "follow_reference",
    "has_more_values",
    "inline_references",
    "resolve",
    "subschema",
    "unknown_field_issue",
]


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
_MAX_DEPTH: Final = 64
_MAX_REFERENCES: Final = 32
_MAX_BRANCH_DEPTH: Final = 8
"""How deep branches are searched in each other for a field; a cycle of them has no end."""
_MAX_EXPLAINED: Final = 5000
"""Most values, times the subschemas that apply to each, whose errors the validator makes: 15 microseconds each."""
_MAX_SEARCHED: Final = 16
_RUN: Final = 1000
_ROOT_URI: Final = "urn:callyard:schema"
_OF_WHOLE: Final = ("type", "maxItems", "minItems", "maxProperties", "minProperties", "uniqueItems", "enum", "const")
"""Keywords about a list or an object as a whole, the cheapest first."""
_MAX_APPLIED: Final = 5000
"""Most subschemas that apply to one place of a value: 65 microseconds for the validator."""
_MAX_NESTED: Final = 64
"""Most of them in each other: the validator overflows its stack with some thousand, in nested values sooner."""
_MAX_UNEVALUATED: Final = 20_000
_UNEVALUATED: Final = "'unevaluatedProperties' and 'unevaluatedItems'"
_MAX_PATTERNS: Final = 500
_PATTERN_BYTES: Final = 400_000
"""Most bytes of one compiled regular expression, which takes about a millisecond to compile."""
_MAX_BACKTRACKS: Final = 10_000
"""Most steps back of one match: 0.3 milliseconds; the usual million takes 23."""
_MAX_INLINED_NODES: Final = 200
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


def check_schema(schema: object, *, max_bytes: int, max_depth: int = _MAX_DEPTH) -> None:
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
    if is_simple_schema(cast("object", schema)) and size <= _MAX_APPLIED:
        return  # it is too short to apply more subschemas than that
    _check_cost(cast("object", schema))
    try:
        _compile(cast("dict[str, Any]", schema))
    except ValueError as error:
        raise SchemaError(f"it is no JSON Schema ({str(error).splitlines()[0]})") from error


def _check_cost(schema: object) -> None:
    """Check that a validator ends: before one is compiled, because that alone may never end."""
    cost = schema_cost(schema)
    for found, most, fault in (
        (cost.applied, _MAX_APPLIED, "it applies more than {} subschemas to one place of a value"),
        (cost.nested, _MAX_NESTED, "it nests more than {} subschemas at one place of a value"),
        (cost.unevaluated, _MAX_UNEVALUATED, f"its {_UNEVALUATED} concern more than {{}} subschemas"),
        (cost.patterns, _MAX_PATTERNS, "it has more than {} regular expressions"),
    ):
        if found > most:
            raise SchemaError(fault.format(most))


class SchemaValidator:
    """Checks values against a schema, compiled when first used."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    @cached_property
    def _validator(self) -> "jsonschema_rs.Draft202012Validator":
        return _compile(self._schema)

    def fits(self, value: object) -> bool:
        """Return whether the value fits."""
        return self._validator.is_valid(value)

    def issues(self, value: object) -> list[Issue]:
        """Return the first issues of the value, at most `MAX_ISSUES`."""
        return _IssueSearch(self._schema, self._validator).issues(value)

    def mismatches(self, value: object, most: int = MAX_MISMATCHES) -> list[Mismatch]:
        """Return the places where a value does not fit, by types and not by contents; none of a large value.

        The validator finds all places of a value before it tells the first, which takes seconds for a million of them.
        """
        found: list[Mismatch] = []
        if has_more_values(value, _MAX_EXPLAINED):
            return found
        for error in islice(self._validator.iter_errors(value), most):
            path, kind = tuple(error.instance_path), str(cast("Any", error.kind).name)
            if kind == "required":
                name = str(cast("Any", error.kind).property)
                found.append(Mismatch(self._shown((*path, name)), self._expected((*path, name)), "nothing"))
            else:
                here: Any = value
                for part in path:
                    here = here[part]
                found.append(Mismatch(self._shown(path), self._expected(path, kind), json_type(here)))
        return found

    def _expected(self, path: Path, missed: str = "type") -> str:
        """Return the types that the schema expects at a path, and the keyword that was missed if it is another one."""
        node = subschema(self._schema, path)
        branches = [node, *as_object(node).get("anyOf", ())]
        kinds = [as_object(resolve(self._schema, branch)).get("type") for branch in branches]
        names = [str(name) for kind in kinds if kind for name in (as_list(kind) or [kind])]
        expected = " or ".join(dict.fromkeys(names)) or "something else"
        return expected if missed in {"type", "anyOf", "oneOf"} else f"{expected} ({missed})"

    def _shown(self, path: Path) -> str:
        """Return a path with '*' in place of keys that the schema does not name, because those are contents."""
        parts: list[str | int] = []
        for number, part in enumerate(path):
            known = as_object(subschema(self._schema, path[:number])).get("properties", {})
            parts.append(part if isinstance(part, int) or part in known else "*")
        return field_name(parts)


class _IssueSearch:
    """Names the first issues of one value, in bounded time.

    The validator makes all errors before it returns the first, each with those of every branch of a union. A million
    wrong items take 15 seconds and 1.5 GB. So a large value is taken apart by its schema: the validator only says yes
    or no to its parts, and explains those that are small.
    """

    def __init__(self, root: Schema, validator: "jsonschema_rs.Draft202012Validator") -> None:
        self._root = root
        self._validators = {"": validator}
        self._small = max(_MAX_EXPLAINED // max(schema_cost(root).applied, 1), 1)
        self._found: list[Issue] = []

    def issues(self, value: object) -> list[Issue]:
        self._search("", self._root, value, ())
        return self._found[:MAX_ISSUES]

    def _search(self, pointer: str, schema: Any, value: object, path: Path) -> None:
        """Add the issues of a value that may not fit the schema at a JSON pointer."""
        validator = self._validator(pointer)
        if not has_more_values(value, self._small):
            for error in validator.iter_errors(value):
                self._found += _issues_of(error, self._root, path)
                if len(self._found) >= MAX_ISSUES:
                    return
        elif not validator.is_valid(value):
            pointer, schema = self._followed(pointer, schema)
            before = len(self._found)
            if len(path) < _MAX_SEARCHED and isinstance(schema, dict):
                self._search_large(pointer, cast("dict[str, Any]", schema), value, path)
            if len(self._found) == before:
                self._found.append(_issue(path, "invalid", "it does not fit", self._root))

    def _search_large(self, pointer: str, schema: dict[str, Any], value: object, path: Path) -> None:
        """Add the issues of a large list or object: type and size, then its parts, then the schema's branches."""
        for keyword in _OF_WHOLE:
            if keyword in schema and not _compile({keyword: schema[keyword]}).is_valid(value):
                limit = f" {schema[keyword]}" if isinstance(schema[keyword], str | int) else ""
                self._found.append(
                    _issue(path, _CODES.get(keyword, keyword), f"it does not fit '{keyword}{limit}'", self._root)
                )
                return
        if isinstance(value, list):
            self._search_items(pointer, schema, cast("list[object]", value), path)
        elif isinstance(value, dict):
            self._search_members(pointer, schema, cast("dict[str, object]", value), path)
        if not self._found:
            self._search_branches(pointer, schema, cast("object", value), path)

    def _search_items(self, pointer: str, schema: dict[str, Any], items: list[object], path: Path) -> None:
        prefix = cast("list[Any]", schema.get("prefixItems", []))
        for index, item in enumerate(items[: len(prefix)]):
            self._search(f"{pointer}/prefixItems/{index}", prefix[index], item, (*path, index))
        if "items" not in schema:
            return
        inner = f"{pointer}/items"
        run = _compile({"items": {"$ref": f"{_ROOT_URI}#{inner}"}}, self._root)
        for start in range(len(prefix), len(items), _RUN):  # in runs: a call for each item takes longer than its check
            if not run.is_valid(items[start : start + _RUN]):
                for index, item in enumerate(items[start : start + _RUN], start):
                    self._search(inner, schema["items"], item, (*path, index))
                    if len(self._found) >= MAX_ISSUES:
                        return

    def _search_members(self, pointer: str, schema: dict[str, Any], pairs: dict[str, object], path: Path) -> None:
        properties = cast("dict[str, Any]", schema.get("properties", {}))
        for name in cast("list[str]", schema.get("required", [])):
            if name not in pairs:
                self._found.append(_missing_issue((*path, name), self._root))
        for name in [name for name in pairs if name in properties]:
            if len(self._found) >= MAX_ISSUES:
                return
            self._search(f"{pointer}/properties/{escaped(name)}", properties[name], pairs[name], (*path, name))
        if "patternProperties" not in schema:
            others = {name: value for name, value in pairs.items() if name not in properties} if properties else pairs
            self._search_others(pointer, schema, others, path)

    def _search_others(self, pointer: str, schema: dict[str, Any], pairs: dict[str, object], path: Path) -> None:
        """Add the issues of members that the schema does not name."""
        rest = schema.get("additionalProperties")
        if rest is False:
            known = list(cast("dict[str, Any]", schema.get("properties", {})))
            self._found += [unknown_field_issue((*path, name), known) for name in islice(pairs, MAX_ISSUES)]
        elif isinstance(rest, dict):
            inner = f"{pointer}/additionalProperties"
            run = _compile({"additionalProperties": {"$ref": f"{_ROOT_URI}#{inner}"}}, self._root)
            members = iter(pairs.items())
            while len(self._found) < MAX_ISSUES and (some := dict(islice(members, _RUN))):  # in runs, as items are
                if not run.is_valid(some):
                    for name, value in some.items():
                        self._search(inner, rest, value, (*path, name))

    def _search_branches(self, pointer: str, schema: dict[str, Any], value: object, path: Path) -> None:
        """Add the issues of every branch that must fit, or of a union's only branch with the value's type."""
        kind = "array" if isinstance(value, list) else "object"
        for keyword in ("allOf", "anyOf", "oneOf"):
            branches = [
                (f"{pointer}/{keyword}/{index}", branch)
                for index, branch in enumerate(cast("list[Any]", schema.get(keyword, [])))
            ]
            if keyword != "allOf":
                branches = [branch for branch in branches if _allows_type(self._followed(*branch)[1], kind)]
            if keyword == "allOf" or len(branches) == 1:
                for inner, branch in branches:
                    self._search(inner, branch, cast("object", value), path)

    def _followed(self, pointer: str, schema: Any) -> tuple[str, Any]:
        """Return the pointer and the schema that a reference leads to."""
        for _ in range(_MAX_REFERENCES):
            reference = as_object(schema).get("$ref")
            target = follow_reference(self._root, reference) if isinstance(reference, str) else None
            if not isinstance(reference, str) or target is None:
                break
            pointer, schema = reference.removeprefix("#"), target
        return pointer, schema

    def _validator(self, pointer: str) -> "jsonschema_rs.Draft202012Validator":
        if pointer not in self._validators:
            self._validators[pointer] = compile_at(self._root, pointer)
        return self._validators[pointer]


def has_more_values(value: object, most: int) -> bool:
    """Return whether a value consists of more than so many values; it looks at no more than that."""
    pending, count = [value], 0
    while pending:
        node = pending.pop()
        if isinstance(node, _CONTAINERS):
            count += len(cast("list[object]", node)) + 1
            if count > most:
                return True
            pending += _children(cast("object", node))
    return False


def _allows_type(schema: Any, kind: str) -> bool:
    types = as_object(schema).get("type", kind)
    return kind == types or kind in as_list(types)


def escaped(name: str) -> str:
    """Return a name as a part of a JSON pointer in a URI."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


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
        reference = as_object(node).get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return node
        node = follow_reference(root, reference)
    return None


def follow_reference(root: Schema, reference: str) -> Any:
    """Return the direct target of a reference, which may be a reference again; None if there is none."""
    if not reference.startswith("#"):
        return None
    node: Any = root
    for raw in reference.split("/")[1:]:
        node = as_object(node).get(raw.replace("~1", "/").replace("~0", "~"))
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
            kind = as_object(target).get("type")
            return {"type": kind} if kind else {}
        self._open_references.append(reference)
        try:
            return self.inline(target)
        finally:
            self._open_references.pop()


def _compile(schema: Schema, root: Schema | None = None) -> "jsonschema_rs.Draft202012Validator":
    """Return a validator that fetches nothing and quotes no values; `root` is the schema at `_ROOT_URI`."""
    import jsonschema_rs  # noqa: PLC0415 - slow to load, and tools with simple schemas never need it

    patterns = jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS, size_limit=_PATTERN_BYTES)
    try:
        return jsonschema_rs.Draft202012Validator(
            cast("dict[str, Any]", schema), mask="it", retriever=partial(_retrieve, root), pattern_options=patterns
        )
    except jsonschema_rs.ReferencingError as error:
        raise ValueError(str(error)) from error


def compile_at(root: Schema, pointer: str) -> "jsonschema_rs.Draft202012Validator":
    """Return a validator of the part of a schema at a JSON pointer."""
    return _compile({"$ref": f"{_ROOT_URI}#{pointer}"}, root)


def _retrieve(root: Schema | None, uri: str) -> Any:
    if root is not None and uri == _ROOT_URI:
        return root
    raise ValueError(f"a schema may not refer to '{uri}'")


def _step(node: Any, part: str | int, root: Schema, depth: int = 0) -> Any:
    if not isinstance(node, dict) or depth > _MAX_BRANCH_DEPTH:
        return None
    here = cast("dict[str, Any]", node)
    if isinstance(part, int):
        prefix = as_list(here.get("prefixItems"))
        if part < len(prefix):
            return prefix[part]
        found = here.get("items")
    else:
        found = here.get("properties", {}).get(part, here.get("additionalProperties"))
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    for branch in (*here.get("anyOf", ()), *here.get("oneOf", ()), *here.get("allOf", ())):
        inner = _step(resolve(root, branch), part, root, depth + 1)
        if inner is not None:
            return inner
    return None


def _issues_of(error: "jsonschema_rs.ValidationError", root: Schema, at: Path = ()) -> list[Issue]:
    path: Path = (*at, *error.instance_path)
    kind: Any = error.kind
    name = str(kind.name)
    code = _CODES.get(name, name)
    if code == "missing":
        return [_missing_issue((*path, str(kind.property)), root)]
    if code == EXTRA:
        known = list(cast("dict[str, Any]", subschema(root, path) or {}).get("properties", {}))
        return [unknown_field_issue((*path, name), known) for name in kind.unexpected[:MAX_ISSUES]]
    return [_issue(path, code, error.message, root)]


def _missing_issue(path: Path, root: Schema) -> Issue:
    field = field_name(path)
    return Issue(field, "missing", f"'{field}' is required.", inline_references(root, subschema(root, path)))


def _issue(path: Path, code: str, text: str, root: Schema) -> Issue:
    return Issue(
        field_name(path), code, f"'{field_name(path)}': {text}.", inline_references(root, subschema(root, path))
    )


def unknown_field_issue(path: Path, known: Sequence[str]) -> Issue:
    """Return the issue of a field that the schema does not have."""
    meant = closest_name(str(path[-1]), known)
    text = f"'{field_name(path)}' is not known." + (f" Did you mean '{meant}'?" if meant else "")
    return Issue(field_name(path), EXTRA, text, did_you_mean=meant)


def _is_deeper_than(value: object, depth: int) -> bool:
    layer: list[object] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth + 1):
        layer = [child for node in layer for child in _children(node) if isinstance(child, _CONTAINERS)]
        if not layer:
            return False
    return True


def _children(node: object) -> Iterable[object]:
    return cast("dict[str, object]", node).values() if isinstance(node, dict) else cast("list[object]", node)
