"""Translates the items of a catalogue into specs: published names and URIs, and reshaped tools.

Descriptions and schemas stay word for word, unless the settings reshape them.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

from callyard.model.profile import PINNED, first_match, matches_any
from callyard.model.spec import Annotations, EvalRule, Operation, PromptArgument, PromptSpec, ResourceSpec, ToolSpec
from callyard.providers.upstream.catalogue import Catalogue, Item, published_names, published_uri
from callyard.providers.upstream.settings import Reshape, UpstreamSettings
from callyard.wire.params import custom_meta

__all__ = ["UpstreamTool", "prefix_of", "prompts_of", "resources_of", "tools_of"]

_UNCHANGED: Final = Reshape()
_TOOL_FIELDS: Final = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta"})
_RESOURCE_FIELDS: Final = frozenset({"uri", "uriTemplate", "name", "title", "description", "mimeType", "size", "_meta"})
_PROMPT_FIELDS: Final = frozenset({"name", "title", "description", "arguments", "_meta"})
_log = logging.getLogger(__name__)


class UpstreamTool(NamedTuple):
    """A tool of an upstream: its published spec, and what is needed to call it there."""

    spec: ToolSpec
    upstream_name: str
    """Its own name."""
    fixed: Mapping[str, Any]
    """Arguments that are always sent."""
    schema: Mapping[str, Any]
    """Its own input schema, with the arguments that are not published."""


def prefix_of(source: str, settings: UpstreamSettings) -> str:
    """Return the prefix of an upstream's published names."""
    return source if settings.prefix is None else settings.prefix


def tools_of(source: str, catalogue: Catalogue, settings: UpstreamSettings, *, longest: int) -> list[UpstreamTool]:
    """Return the tools that the settings let through."""
    chosen = {
        name: item
        for name, item in _by_name(source, catalogue.tools).items()
        if matches_any(name, settings.tools) and not matches_any(name, settings.without)
    }
    reshapes = {name: _reshape(name, settings) for name in chosen}
    renamed = {name: reshapes[name].rename or name for name in chosen}
    published = published_names(prefix_of(source, settings), list(renamed.values()), longest=longest)
    return [_tool(source, item, reshapes[name], published=published[renamed[name]], settings=settings) for name, item in chosen.items()]


def _reshape(name: str, settings: UpstreamSettings) -> Reshape:
    exact = settings.reshape.get(name)
    if exact is not None:
        return exact
    return first_match(name, settings.reshape) or _UNCHANGED


def _tool(source: str, item: Item, reshape: Reshape, *, published: str, settings: UpstreamSettings) -> UpstreamTool:
    name: str = item["name"]
    annotations = _table(item.get("annotations"))
    schema = _object_schema(item.get("inputSchema"))
    title = reshape.title or _text(item, "title") or _text(annotations, "title")
    description = reshape.description or _text(item, "description")
    output = item.get("outputSchema")
    spec = ToolSpec(
        name=published,
        title=title or None,
        description=description if description.strip() else title or name,
        input_schema=_without(schema, {*reshape.fixed, *reshape.hidden}),
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        operation=Operation(reshape.operation) if reshape.operation else _operation(annotations),
        eval=None if reshape.code is None else EvalRule(reshape.code, reshape.language or "python"),
        requires_eval=reshape.code is not None,
        source=source,
        tags=(PINNED,) if reshape.pinned else (),
        timeout=settings.call_seconds if reshape.timeout is None else reshape.timeout,
        idempotent=bool(annotations.get("idempotentHint")) if reshape.idempotent is None else reshape.idempotent,
        shape="plain",
        annotations=None if reshape.operation else _annotations(annotations),
        extra=_extra(item, _TOOL_FIELDS),
    )
    return UpstreamTool(spec, name, reshape.fixed, schema)


def _operation(annotations: Mapping[str, Any]) -> Operation:
    if annotations.get("readOnlyHint") is True:
        return Operation.QUERY
    return Operation.DESTROY if annotations.get("destructiveHint") is True else Operation.COMMAND


def _annotations(annotations: Mapping[str, Any]) -> Annotations:
    """Return the upstream's annotations, with the protocol's defaults for those that are missing."""
    return Annotations(
        read_only_hint=bool(annotations.get("readOnlyHint", False)),
        destructive_hint=bool(annotations.get("destructiveHint", not annotations.get("readOnlyHint", False))),
        idempotent_hint=bool(annotations.get("idempotentHint", False)),
        open_world_hint=bool(annotations.get("openWorldHint", True)),
    )


def _object_schema(schema: object) -> dict[str, Any]:
    """Return an input schema of the type 'object', which some servers leave out."""
    if not isinstance(schema, dict):
        return {"type": "object"} if schema is None else cast("dict[str, Any]", schema)
    return {"type": "object", **cast("dict[str, Any]", schema)}


def _without(schema: dict[str, Any], hidden: set[str]) -> dict[str, Any]:
    """Return a schema without the hidden arguments."""
    properties = schema.get("properties") if hidden and isinstance(cast("object", schema), dict) else None
    if not isinstance(properties, dict):
        return schema
    shown = {key: value for key, value in cast("dict[str, Any]", properties).items() if key not in hidden}
    required = schema.get("required")
    if not isinstance(required, list):
        return {**schema, "properties": shown}
    return {**schema, "properties": shown, "required": [key for key in cast("list[object]", required) if str(key) not in hidden]}


def resources_of(source: str, catalogue: Catalogue, settings: UpstreamSettings) -> list[ResourceSpec]:
    """Return the resources and the templates."""
    prefix = prefix_of(source, settings)
    items = [(item.get("uri"), item) for item in catalogue.resources] + [(item.get("uriTemplate"), item) for item in catalogue.templates]
    return [_resource(source, published_uri(prefix, uri), item) for uri, item in items if isinstance(uri, str)]


def _resource(source: str, uri: str, item: Item) -> ResourceSpec:
    size = item.get("size")
    return ResourceSpec(
        uri=uri,
        name=_text(item, "name") or uri,
        title=_text(item, "title") or None,
        description=_text(item, "description"),
        mime_type=_text(item, "mimeType") or None,
        size=size if isinstance(size, int) else None,
        source=source,
        extra=_extra(item, _RESOURCE_FIELDS),
    )


def prompts_of(source: str, catalogue: Catalogue, settings: UpstreamSettings, *, longest: int) -> list[tuple[PromptSpec, str]]:
    """Return the prompts, each with the upstream's own name for it."""
    items = _by_name(source, catalogue.prompts)
    published = published_names(prefix_of(source, settings), list(items), longest=longest)
    return [(_prompt(source, published[name], item), name) for name, item in items.items()]


def _prompt(source: str, published: str, item: Item) -> PromptSpec:
    listed = item.get("arguments")
    arguments = cast("list[object]", listed) if isinstance(listed, list) else []
    return PromptSpec(
        name=published,
        title=_text(item, "title") or None,
        description=_text(item, "description"),
        arguments=tuple(_prompt_argument(_table(argument)) for argument in arguments),
        source=source,
        extra=_extra(item, _PROMPT_FIELDS),
    )


def _prompt_argument(item: Mapping[str, Any]) -> PromptArgument:
    return PromptArgument(_text(item, "name"), _text(item, "description"), bool(item.get("required")), _text(item, "title") or None)


def _by_name(source: str, items: Iterable[Item]) -> dict[str, Item]:
    """Return items by name; later duplicates and items without a name cannot be called and are dropped."""
    named: dict[str, Item] = {}
    dropped = 0
    for item in items:
        name = item.get("name")
        if isinstance(name, str) and name and name not in named:
            named[name] = item
        else:
            dropped += 1
    if dropped:
        _log.warning("upstream_lists_what_has_no_name_of_its_own upstream=%s count=%d", source, dropped)
    return named


def _extra(item: Item, fields: frozenset[str]) -> dict[str, Any]:
    """Return the other fields of an item, without `_meta` keys that the protocol reserves."""
    extra = {key: value for key, value in item.items() if key not in fields}
    meta = custom_meta(_table(item.get("_meta")))
    return {**extra, "_meta": meta} if meta else extra


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""
