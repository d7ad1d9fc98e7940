"""JSON Schemas for the arguments and answers of an operation, translated from those of its document.

The schemas of OpenAPI 3.0 and Swagger 2.0 are a dialect of their own, and real documents have mistakes in them. What
cannot be checked is left out, so that one odd keyword costs no tool.
"""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.model.schema import SchemaError, check_schema
from callyard.providers.openapi.document import Document, Node
from callyard.providers.openapi.operations import BODY, ApiOperation, Body, Parameter
from callyard.providers.openapi.reading import DocumentError

__all__ = ["FILE_SCHEMA", "input_schema", "is_file", "outline_of", "response_schema"]

FILE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "A file: one of 'path' (below the folder for uploads), 'base64' or 'text'.",
    "properties": {
        "path": {"type": "string"},
        "base64": {"type": "string"},
        "text": {"description": "a text, or a stored result by its handle"},
        "name": {"type": "string", "description": "the file's name for the API"},
        "type": {"type": "string", "description": "its media type"},
    },
    "additionalProperties": False,
    "oneOf": [{"required": ["path"]}, {"required": ["base64"]}, {"required": ["text"]}],
}
_MAX_BYTES: Final = 96 * 1024
"""Bytes of a schema from which further definitions are left open: no agent reads more."""
_MAX_DEPTH: Final = 24
_DEFINITIONS: Final = "$defs"
_MAPS: Final = ("properties", "patternProperties", "dependentSchemas")
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_COUNTS: Final = frozenset(
    {
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "minContains",
        "maxContains",
    }
)
_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_TEXTS: Final = frozenset({"title", "format", "contentEncoding", "contentMediaType"})
_NOT_CHECKED: Final = "Not checked here: the pattern {}."


def is_file(document: Document, schema: Node) -> bool:
    """Return whether a schema is that of a file, in a form or as a whole body."""
    try:
        fields = document.resolve(schema).fields
    except DocumentError:
        return False
    kind = fields.get("type")
    is_text = kind == "string" or (isinstance(kind, list) and "string" in kind)
    is_binary = fields.get("format") in {"binary", "file"} or "contentMediaType" in fields
    return kind == "file" or (is_text and is_binary and fields.get("contentEncoding") != "base64")


class _Translator:
    """Translates the schemas of one tool; every definition that they refer to is translated once."""

    def __init__(self, document: Document, *, is_request: bool, texts: bool = True) -> None:
        self._document = document
        self._is_request = is_request
        self._texts = texts
        self._names: dict[tuple[str, str], str] = {}
        self._pending: deque[tuple[str, Node]] = deque()
        self._definitions: dict[str, Any] = {}

    def finish(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema with all definitions that it needs, as far as there is room."""
        size = len(msgspec.json.encode(schema))
        while self._pending:
            name, node = self._pending.popleft()
            made = True if size > _MAX_BYTES else self.translate(node)
            size += len(msgspec.json.encode(made)) + len(name)
            self._definitions[name] = made
        return {**schema, _DEFINITIONS: self._definitions} if self._definitions else schema

    def translate(self, node: Node, depth: int = 0, *, files: bool = False) -> Any:
        """Return a schema in JSON Schema 2020-12; with `files`, that of a file is one for arguments."""
        if not node.fields or depth > _MAX_DEPTH:
            value: object = node.value
            return value if isinstance(value, bool) else True
        if files and is_file(self._document, node):
            return FILE_SCHEMA
        fields = node.fields
        made: dict[str, Any] = {}
        reference = fields.get("$ref")
        if isinstance(reference, str):
            made["$ref"] = self._reference(node, reference)
            if self._document.version in {"2.0", "3.0"}:
                return made
        for keyword, value in fields.items():
            self._keyword(made, keyword, node.child(value), depth, files=files)
        self._objects(made, node, depth, files=files)
        self._numbers(made, fields)
        return self._nullable(made, fields)

    def _reference(self, node: Node, reference: str) -> str:
        target = self._document.follow(node, reference)
        key = (target.file, target.pointer)
        if key not in self._names:
            stem = re.sub(r"[^A-Za-z0-9_.-]", "_", target.pointer.rpartition("/")[2])[:60] or "root"
            taken = set(self._names.values())
            name = next(
                name for name in (stem, *(f"{stem}_{n}" for n in range(2, len(taken) + 3))) if name not in taken
            )
            self._names[key] = name
            self._pending.append((name, target))
        return f"#/{_DEFINITIONS}/{self._names[key]}"

    def _keyword(self, made: dict[str, Any], keyword: str, value: Node, depth: int, *, files: bool) -> None:
        raw: Any = value.value
        if keyword in _LISTS:
            branches = [self.translate(value.child(one), depth + 1, files=files) for one in as_list(raw)]
            if branches:
                made[keyword] = branches
        elif keyword == "items":
            self._items(made, value, depth, files=files)
        elif keyword in _SINGLE:
            if value.fields or raw in ({}, True, False):
                made[keyword] = self.translate(value, depth + 1)
        else:
            self._plain(made, keyword, raw)

    def _plain(self, made: dict[str, Any], keyword: str, raw: Any) -> None:
        """Add a keyword that has no schema in it, if its value is what it may be."""
        if keyword == "type":
            _add_type(made, raw)
        elif keyword in {"const", "default"} or (keyword == "enum" and as_list(raw)):
            made[keyword] = raw
        elif keyword == "description" and isinstance(raw, str) and raw and self._texts:
            made["description"] = f"{raw} {made['description']}" if "description" in made else raw
        elif keyword == "pattern" and isinstance(raw, str):
            self._pattern(made, raw)
        elif keyword == "dependentRequired":
            made[keyword] = {name: as_list(names) for name, names in as_object(raw).items()}
        elif keyword in _TEXTS and isinstance(raw, str) and (keyword != "title" or self._texts):
            made[keyword] = raw
        elif keyword in _COUNTS or keyword in {"uniqueItems", "multipleOf"}:
            _add_count(made, keyword, raw)

    def _items(self, made: dict[str, Any], value: Node, depth: int, *, files: bool) -> None:
        several = as_list(value.value)
        if several:
            made["prefixItems"] = [self.translate(value.child(one), depth + 1) for one in several]
        elif value.fields or value.value in ({}, True, False):
            made["items"] = self.translate(value, depth + 1, files=files)

    def _pattern(self, made: dict[str, Any], pattern: str) -> None:
        if _is_known_pattern(pattern):
            made["pattern"] = pattern
        elif self._texts:
            note = _NOT_CHECKED.format(pattern[:200])
            made["description"] = f"{made['description']} {note}" if "description" in made else note

    def _objects(self, made: dict[str, Any], node: Node, depth: int, *, files: bool) -> None:
        """Add the keywords about members; members that the API alone writes are left out of requests."""
        fields = node.fields
        left_out: set[str] = set()
        for keyword in _MAPS:
            if keyword not in fields:
                continue
            translated: dict[str, Any] = {}
            for name, raw in as_object(fields[keyword]).items():
                if keyword == "properties" and self._is_left_out(node.child(raw)):
                    left_out.add(name)
                elif keyword != "patternProperties" or _is_known_pattern(name):
                    translated[name] = self.translate(node.child(raw), depth + 1, files=files)
            made[keyword] = translated
        required = [name for name in as_list(fields.get("required")) if isinstance(name, str) and name not in left_out]
        if required:
            made["required"] = list(dict.fromkeys(required))
        rest = node.child(fields.get("additionalProperties"))
        if rest.fields or rest.value in ({}, True, False):
            made["additionalProperties"] = self.translate(rest, depth + 1)

    def _is_left_out(self, node: Node) -> bool:
        return node.fields.get("readOnly" if self._is_request else "writeOnly") is True

    def _numbers(self, made: dict[str, Any], fields: Mapping[str, Any]) -> None:
        for keyword in _NUMBERS & fields.keys():
            number = _number(fields[keyword])
            if number is not None:
                made[keyword] = number
        for keyword, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if fields.get(exclusive) is True and keyword in made:
                made[exclusive] = made.pop(keyword)

    def _nullable(self, made: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
        if fields.get("nullable") is not True and fields.get("x-nullable") is not True:
            return made
        kind = made.get("type")
        if kind is None:
            texts = {key: made.pop(key) for key in ("title", "description", "default") if key in made}
            return {**texts, "anyOf": [made, {"type": "null"}]} if made else texts
        kinds = cast("list[str]", kind if isinstance(kind, list) else [kind])
        made["type"] = list(dict.fromkeys((*kinds, "null")))
        if "enum" in made and None not in made["enum"]:
            made["enum"] = [*made["enum"], None]
        return made


def _add_type(made: dict[str, Any], raw: object) -> None:
    kinds = [kind for kind in (as_list(raw) or [raw]) if isinstance(kind, str) and kind in _TYPES]
    if kinds:
        made["type"] = list(dict.fromkeys(kinds)) if isinstance(raw, list) else kinds[0]
    elif raw == "file":
        made["type"] = "string"


def _add_count(made: dict[str, Any], keyword: str, raw: object) -> None:
    number = _number(raw)
    if keyword == "uniqueItems":
        if isinstance(raw, bool):
            made[keyword] = raw
    elif keyword == "multipleOf":
        if number is not None and number > 0:
            made[keyword] = number
    elif number is not None and number >= 0 and number == int(number):
        made[keyword] = int(number)


def _number(value: object) -> int | float | None:
    """Return a number, also one that is written as a text, as some documents do."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return value if isinstance(value, int | float) else msgspec.json.decode(str(value), type=int | float)
    except msgspec.DecodeError:
        return None


def _is_known_pattern(pattern: str) -> bool:
    try:
        check_schema({"type": "string", "pattern": pattern, "minLength": 0, "not": {"const": 0}}, max_bytes=_MAX_BYTES)
    except SchemaError:
        return False
    return True


def input_schema(operation: ApiOperation) -> dict[str, Any]:
    """Return the schema of an operation's arguments.

    Raises:
        DocumentError: It cannot be made.
    """
    translator = _Translator(operation.document, is_request=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in operation.parameters():
        properties[parameter.argument] = _argument(translator, parameter)
        if parameter.required:
            required.append(parameter.argument)
    body = operation.body()
    if body is not None:
        properties[BODY] = _body_argument(operation.document, translator, body)
        if body.required:
            required.append(BODY)
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    finished = translator.finish({**schema, "required": required} if required else schema)
    try:
        check_schema(finished, max_bytes=8 * _MAX_BYTES)
    except SchemaError as error:
        raise DocumentError(f"has a schema that cannot be used: {error}") from None
    return finished


def _argument(translator: _Translator, parameter: Parameter) -> Any:
    schema = translator.translate(parameter.schema)
    text = parameter.description
    if parameter.argument != parameter.name:
        text = f"{text} (The {parameter.place} parameter '{parameter.name}'.)".strip()
    if not text:
        return schema
    if not isinstance(schema, dict):
        return {"description": text}
    return {**cast("dict[str, Any]", schema), "description": text}


def _body_argument(document: Document, translator: _Translator, body: Body) -> Any:
    schema: Any = True
    if body.kind in {"form", "multipart"}:
        schema = translator.translate(document.resolve(body.schema), files=True)
    elif body.kind == "bytes":
        schema = FILE_SCHEMA
    elif body.kind == "text":
        schema = {"type": "string"}
    else:
        schema = translator.translate(body.schema)
    if body.kind == "json" or not isinstance(schema, dict):
        return schema
    text = f"Sent as '{body.media_type}'."
    return {**cast("dict[str, Any]", schema), "description": f"{body.description} {text}".strip()}


def response_schema(operation: ApiOperation) -> dict[str, Any] | None:
    """Return the schema of an answer in JSON, as the document declares it, without texts; None if it declares none."""
    translator = _Translator(operation.document, is_request=False, texts=False)
    try:
        for _, media_type, node in operation.responses():
            base = media_type.partition(";")[0].lower()
            if base.endswith(("/json", "+json")):
                made = translator.finish(as_object(translator.translate(node)))
                check_schema(made, max_bytes=8 * _MAX_BYTES)
                return made
    except (DocumentError, SchemaError):
        return None
    return None


def outline_of(operation: ApiOperation) -> dict[str, Any]:
    """Return the names and descriptions of the arguments, and of the members of a body.

    Raises:
        DocumentError: A parameter or the body cannot be read.
    """
    outline: dict[str, Any] = {
        parameter.argument: {"description": parameter.description} if parameter.description else {}
        for parameter in operation.parameters()
    }
    body = operation.body()
    if body is not None:
        outline[BODY] = {"properties": _members(operation.document, body.schema)}
    return {"properties": outline}


def _members(document: Document, schema: Node) -> dict[str, Any]:
    node = document.resolve(schema)
    found: dict[str, Any] = {}
    for part in (node, *(node.child(one) for one in as_list(node.fields.get("allOf"))[:8])):
        for name, raw in as_object(document.resolve(part).fields.get("properties")).items():
            text = as_object(raw).get("description")
            found[name] = {"description": text} if isinstance(text, str) else {}
    return found
