"""Arguments that fit a schema, made without chance: the same for each run."""

import re
from typing import Any

from callyard._internal.converted import as_list, as_object
from callyard.model.schema import SchemaValidator

__all__ = ["arguments_for"]

_FORMATS = {
    "date-time": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "uri": "https://example.com/a",
    "uri-reference": "https://example.com/a",
    "url": "https://example.com/a",
    "email": "a@example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "93.184.216.34",
    "ssh-key": "ssh-rsa AAAA",
}
_PATTERNS = (
    "a",
    "1",
    "0" * 40,
    "sha256:" + "0" * 64,
    "abc123",
    "2026-01-02",
    "refs/heads/a",
    "1.2.3",
    "A",
    "https://a.b/",
    "ssh-rsa AAAA",
)
_DEPTH = 6


def arguments_for(schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that fit a tool's schema: the required ones and a third of the others, or else all or none."""
    validator = SchemaValidator(schema)
    made = [as_object(_Maker(schema, every).value(schema, 0)) for every in (3, 1, 1000)]
    return next((one for one in made if validator.fits(one)), made[0])


class _Maker:
    def __init__(self, root: dict[str, Any], every: int) -> None:
        self._root = root
        self._every = every

    def value(self, schema: Any, depth: int) -> Any:
        fields = as_object(schema)
        reference = fields.get("$ref")
        if isinstance(reference, str):
            return self.value(self._root["$defs"][reference.rpartition("/")[2]], depth + 1)
        for keyword in ("const", "default"):
            if keyword in fields and fields[keyword] is not None:
                return fields[keyword]
        if as_list(fields.get("enum")):
            return next((one for one in fields["enum"] if one is not None), None)
        for keyword in ("oneOf", "anyOf"):
            branches = as_list(fields.get(keyword))
            if branches and "properties" in fields:
                required = [*as_list(fields.get("required")), *as_list(as_object(branches[0]).get("required"))]
                return self._object({**fields, "required": required}, depth)
            if branches:
                texts = [one for one in branches if as_object(one).get("type") == "string"]
                return self.value((texts or branches)[0], depth + 1)
        merged = dict(fields)
        for branch in as_list(fields.get("allOf")):
            part = as_object(branch)
            if isinstance(part.get("$ref"), str):
                part = self._root["$defs"][part["$ref"].rpartition("/")[2]]
            merged = {
                **part,
                **merged,
                "properties": {**as_object(part.get("properties")), **as_object(merged.get("properties"))},
            }
        kind = merged.get("type")
        kinds = as_list(kind)
        kind = next((one for one in kinds if one != "null"), "null") if kinds else kind
        return self._plain(merged, str(kind or ("object" if "properties" in merged else "string")), depth)

    def _plain(self, fields: dict[str, Any], kind: str, depth: int) -> Any:
        if kind == "object":
            return self._object(fields, depth)
        if kind == "array":
            count = max(int(fields.get("minItems", 0)), 1 if depth < _DEPTH else 0)
            return [self.value(fields.get("items", {}), depth + 1) for _ in range(count)]
        if kind in {"integer", "number"}:
            return max(fields.get("minimum", 1), fields.get("exclusiveMinimum", 0) + 1)
        if kind in {"boolean", "null"}:
            return True if kind == "boolean" else None
        return self._text(fields)

    def _text(self, fields: dict[str, Any]) -> str:
        pattern = fields.get("pattern")
        if isinstance(pattern, str):
            return next((one for one in _PATTERNS if re.search(pattern, one)), "a")
        text = _FORMATS.get(str(fields.get("format")), "a")
        return text.ljust(int(fields.get("minLength", 0)), "a")[: int(fields.get("maxLength", 1000))]

    def _object(self, fields: dict[str, Any], depth: int) -> dict[str, Any]:
        required = set(as_list(fields.get("required")))
        made: dict[str, Any] = {}
        for number, (name, inner) in enumerate(as_object(fields.get("properties")).items()):
            if name in required or (depth < 2 and number % self._every == 0 and "required" not in as_object(inner)):
                made[name] = self.value(inner, depth + 1)
        for number in range(len(made), int(fields.get("minProperties", 0))):
            made[f"k{number}"] = self.value(fields.get("additionalProperties", {}), depth + 1)
        return made
