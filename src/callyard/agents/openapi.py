"""The OpenAPI document of the HTTP API, generated from its routes and structs."""

import re
from typing import Any, Final

import msgspec

from callyard._version import VERSION
from callyard.agents.api import ROUTES, Failure, Route
from callyard.agents.events import StreamEvent

__all__ = ["openapi_document"]

_REFS: Final = "#/components/schemas/{name}"
_FAILURES: Final = {
    "400": "The request or its body is wrong.",
    "401": "There are no or wrong credentials.",
    "403": "It is not allowed.",
    "404": "There is none, or it is another's.",
    "409": "The state does not allow it.",
    "413": "The body or the message is too large.",
    "415": "The body is no JSON.",
    "501": "The runtime does not have it.",
    "503": "There is no room for it now, or the store cannot be used.",
}
_SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or an access token, as for '/mcp'."},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def openapi_document(title: str) -> dict[str, Any]:
    """Return the document."""
    kinds: list[Any] = [StreamEvent, Failure, *(kind for route in ROUTES for kind in (route.answer, route.body) if kind is not None)]
    found, schemas = msgspec.json.schema_components(kinds, ref_template=_REFS)
    schema_of = {**dict(zip(kinds, found, strict=True)), StreamEvent: {"$ref": _REFS.format(name="StreamEvent")}}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Agents of {title}", "version": VERSION},
        "security": [{}, *({name: list[str]()} for name in _SECURITY)],  # a server without '[auth]' needs none
        "paths": paths,
        "components": {"schemas": {**schemas, "StreamEvent": found[0]}, "securitySchemes": _SECURITY},
    }


def _operation(route: Route, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """Return one operation."""
    names = re.findall(r"\{(\w+)\}", route.path)
    parameters: list[dict[str, Any]] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if route.name == "read_events":
        text = "The id of the last event that was read; those of another turn are ignored."
        parameters.append({"name": "Last-Event-ID", "in": "header", "description": text, "schema": {"type": "string"}})
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": _responses(route, schema_of)}
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema_of[route.body]}}}
    return operation


def _responses(route: Route, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "It succeeded."}
    if route.answer is StreamEvent:
        success["description"] = "Server-sent events; the data of each is a StreamEvent, and the last one is 'done'."
    if route.answer is not None:
        media = "text/event-stream" if route.answer is StreamEvent else "application/json"
        success["content"] = {media: {"schema": schema_of[route.answer]}}
    # A request that the HTTP server refuses before the API sees it is answered with a sentence.
    failure = {"application/json": {"schema": schema_of[Failure]}, "text/plain": {"schema": {"type": "string"}}}
    return {str(route.status): success, **{status: {"description": text, "content": failure} for status, text in _FAILURES.items()}}
