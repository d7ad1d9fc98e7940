"""Schemas of real APIs as clients list them, by checkers that know only what each provider refuses."""

import re
from collections.abc import Iterator
from typing import Any

from documents import all_documents

from callyard._internal.converted import as_list, as_object
from callyard.model.schema import SchemaValidator
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.published import publish_operations
from callyard.providers.openapi.reading import DocumentError, parse
from callyard.providers.openapi.settings import ApiSettings
from callyard.server.client_schemas import fitted, providers_for

SCHEMAS = 200
PER_DOCUMENT = 2
SMALL = 400_000
CLIENTS = ("claude-code", "codex-mcp-client", "gemini-cli-mcp-client", "Visual Studio Code", "cursor-vscode")
GEMINI_KEYS = {
    *("type", "format", "title", "description", "nullable", "enum", "items", "properties", "required", "anyOf"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "default"),
    *("minimum", "maximum"),
}
GEMINI_FORMATS = {"enum", "date-time", "float", "double", "int32", "int64"}


def real_schemas() -> Iterator[dict[str, Any]]:
    """Yield the schemas of the operations with most arguments, two of each document."""
    for path in all_documents():
        if path.stat().st_size > SMALL:
            continue
        try:
            parsed, _ = parse(path.read_bytes(), path.name)
        except DocumentError:
            continue
        document = Document(str(path), {str(path): parsed})
        settings = ApiSettings(document=str(path), base_url="https://api.example.com")
        tools = publish_operations("api", settings, document, longest=48, fault=lambda _, __: None).tools
        schemas = [tool.spec.input_schema for tool in tools[:50] if not tool.spec.lazy.fault]
        yield from sorted(schemas, key=lambda schema: -len(str(schema)))[:PER_DOCUMENT]


def nodes(schema: object) -> Iterator[dict[str, Any]]:
    node = as_object(schema)
    if not isinstance(schema, dict):
        return
    yield node
    inner: list[Any] = [*as_object(node.get("properties")).values(), *as_object(node.get("$defs")).values()]
    for word in ("anyOf", "oneOf", "allOf"):
        inner += as_list(node.get(word))
    for part in (*inner, node.get("items")):
        yield from nodes(part)


def anthropic(schema: dict[str, Any]) -> bool:
    fits = [re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key) for key in schema.get("properties", {})]
    return not {"anyOf", "oneOf", "allOf"} & schema.keys() and all(fits)


def openai(schema: dict[str, Any]) -> bool:
    is_object = schema.get("type") == "object" and "properties" in schema
    arrays = [node for node in nodes(schema) if "array" in str(node.get("type"))]
    root = {"anyOf", "oneOf", "allOf", "enum", "not"}
    return is_object and not root & schema.keys() and all(isinstance(node.get("items"), dict) for node in arrays)


def gemini(schema: dict[str, Any]) -> bool:
    return all(map(gemini_node, nodes(schema)))


def gemini_node(node: dict[str, Any]) -> bool:
    kind = node.get("type")
    has_type = isinstance(kind, str) or ("anyOf" in node and kind is None)
    has_items = kind != "array" or isinstance(node.get("items"), dict)
    has_format = node.get("format", "enum") in GEMINI_FORMATS
    enum_fits = "enum" not in node or (kind == "string" and all(isinstance(value, str) for value in node["enum"]))
    required_fits = set(node.get("required", ())) <= node.get("properties", {}).keys()
    return all((has_type, has_items, has_format, enum_fits, required_fits, node.keys() <= GEMINI_KEYS))


CHECKS = {"anthropic": anthropic, "openai": openai, "copilot": openai, "gemini": gemini}


def test_200_real_schemas_are_accepted_by_the_rules_of_five_clients() -> None:
    originals = [schema for schema, _ in zip(real_schemas(), range(SCHEMAS), strict=False)]
    refused: list[str] = []
    changed = 0
    for schema in originals:
        for client in CLIENTS:
            shown: Any = fitted(schema, providers_for(client))
            changed += shown is not schema
            SchemaValidator(shown).fits({})
            wrong = [provider for provider in providers_for(client) if not CHECKS[provider](shown)]
            refused += [f"{client} {provider} {shown}" for provider in wrong]

    assert len(originals) == SCHEMAS
    assert not refused, refused[:3]
    assert changed >= SCHEMAS
