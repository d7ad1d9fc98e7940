"""The OpenAPI document of the HTTP API, generated from its routes and structs."""

import re
from typing import Any, Final

import msgspec

from toolyard._version import VERSION
from toolyard.agents import events
from toolyard.agents.api import ROUTES, Route
from toolyard.agents.events import StreamEvent

__all__ = ["openapi_document"]

_REFS: Final = "#/components/schemas/{name}"
_FAILURES: Final = {
    "400": "The body is wrong.",
    "401": "There are no or wrong credentials.",
    "403": "It is not allowed.",
    "404": "There is none, or it is another's.",
    "409": "The state does not allow it.",
}


def openapi_document(title: str) -> dict[str, Any]:
    """Return the document."""
    bodies = [route.body for route in ROUTES if route.body is not None]
    _, schemas = msgspec.json.schema_components([StreamEvent, *bodies], ref_template=_REFS)
    event_names = [name for name in schemas if isinstance(getattr(events, name, None), type) and name in events.__all__]
    schemas["StreamEvent"] = {
        "oneOf": [{"$ref": _REFS.format(name=name)} for name in event_names],
        "discriminator": {"propertyName": "type"},
    }
    schemas["Failure"] = _FAILURE
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Agents of {title}", "version": VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    }


_FAILURE: Final[dict[str, Any]] = {
    "title": "Failure",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "hint": {"type": "string"},
                "retryable": {"type": "boolean"},
                "details": {"type": "object"},
            },
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}


def _operation(route: Route) -> dict[str, Any]:
    """Return one operation."""
    names = re.findall(r"\{(\w+)\}", route.path)
    parameters: list[dict[str, Any]] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if route.name == "read_events":
        text = "The id of the last event that was read; those of another turn are ignored."
        parameters.append({"name": "Last-Event-ID", "in": "header", "description": text, "schema": {"type": "string"}})
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.summary, "responses": _responses(route)}
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = {"$ref": _REFS.format(name=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _responses(route: Route) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "It succeeded."}
    if route.streams:
        text = "Server-sent events; the data of each is a StreamEvent, and the last one is 'done'."
        success = {"description": text, "content": {"text/event-stream": {"schema": {"$ref": _REFS.format(name="StreamEvent")}}}}
    elif route.status == 200:  # noqa: PLR2004 - the status of an answer with a body
        success["content"] = {"application/json": {"schema": {"type": "object"}}}
    failure = {"application/json": {"schema": {"$ref": _REFS.format(name="Failure")}}}
    return {str(route.status): success, **{status: {"description": text, "content": failure} for status, text in _FAILURES.items()}}
