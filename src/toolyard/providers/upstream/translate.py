"""Translating: what an upstream lists, as specs of ours.

What it says is kept word for word; names and URIs become ours, and what its settings reshape is reshaped.
"""

import logging
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, cast

from toolyard.model.profile import PINNED
from toolyard.model.spec import Annotations, Operation, PromptArgument, PromptSpec, ResourceSpec, ToolSpec
from toolyard.providers.upstream.catalogue import Catalogue, Item, name_all, our_uri
from toolyard.providers.upstream.settings import Reshape, UpstreamSettings
from toolyard.wire.params import custom_meta

__all__ = ["ForeignTool", "prefix_of", "prompts_of", "resources_of", "tools_of"]

_AS_IT_IS: Final = Reshape()
_SHOWN: Final = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta"})
_RESOURCE: Final = frozenset({"uri", "uriTemplate", "name", "title", "description", "mimeType", "size", "_meta"})
_PROMPT: Final = frozenset({"name", "title", "description", "arguments", "_meta"})
_log = logging.getLogger(__name__)


class ForeignTool(NamedTuple):
    """A tool of an upstream as ours: its spec, its name over there, and what is always sent along."""

    spec: ToolSpec
    own: str
    fixed: Mapping[str, Any]
    schema: Mapping[str, Any]
    """What the upstream says of all its arguments."""


def prefix_of(source: str, settings: UpstreamSettings) -> str:
    """Return what stands in front of an upstream's names."""
    return source if settings.prefix is None else settings.prefix


def tools_of(source: str, catalogue: Catalogue, settings: UpstreamSettings, *, longest: int) -> list[ForeignTool]:
    """Return the tools that its settings let through."""
    chosen = {own: item for own, item in _named(source, catalogue.tools).items() if _is_wanted(own, settings)}
    reshapes = {own: _reshape(own, settings) for own in chosen}
    renamed = {own: reshapes[own].rename or own for own in chosen}
    names = name_all(prefix_of(source, settings), list(renamed.values()), longest=longest)
    return [_tool(source, item, reshapes[own], name=names[renamed[own]], settings=settings) for own, item in chosen.items()]


def _is_wanted(own: str, settings: UpstreamSettings) -> bool:
    return _fits(own, settings.tools) and not _fits(own, settings.without)


def _fits(own: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(own, pattern) for pattern in patterns)


def _reshape(own: str, settings: UpstreamSettings) -> Reshape:
    exact = settings.reshape.get(own)
    if exact is not None:
        return exact
    return next((reshape for pattern, reshape in settings.reshape.items() if fnmatchcase(own, pattern)), _AS_IT_IS)


def _tool(source: str, item: Item, reshape: Reshape, *, name: str, settings: UpstreamSettings) -> ForeignTool:
    own: str = item["name"]
    said = _table(item.get("annotations"))
    schema = _object(item.get("inputSchema"))
    operation = Operation(reshape.operation) if reshape.operation else _operation(said)
    title = reshape.title or _text(item.get("title")) or _text(said.get("title"))
    described = reshape.description or _text(item.get("description"))
    output = item.get("outputSchema")
    spec = ToolSpec(
        name=name,
        title=title or None,
        description=described if described.strip() else title or own,
        input_schema=_without(schema, {*reshape.fixed, *reshape.hidden}),
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        operation=operation,
        source=source,
        tags=(PINNED,) if reshape.pinned else (),
        timeout=settings.call_seconds if reshape.timeout is None else reshape.timeout,
        idempotent=bool(said.get("idempotentHint")) if reshape.idempotent is None else reshape.idempotent,
        shape="plain",
        annotations=None if reshape.operation else _annotations(said),
        extra=_extra(item, _SHOWN),
    )
    return ForeignTool(spec, own, reshape.fixed, schema)


def _operation(said: Mapping[str, Any]) -> Operation:
    if said.get("readOnlyHint") is True:
        return Operation.QUERY
    return Operation.DESTROY if said.get("destructiveHint") is True else Operation.COMMAND


def _annotations(said: Mapping[str, Any]) -> Annotations:
    """Return what the upstream says of a tool's effects, and what the protocol takes for said where it does not."""
    return Annotations(
        read_only_hint=bool(said.get("readOnlyHint", False)),
        destructive_hint=bool(said.get("destructiveHint", not said.get("readOnlyHint", False))),
        idempotent_hint=bool(said.get("idempotentHint", False)),
        open_world_hint=bool(said.get("openWorldHint", True)),
    )


def _object(schema: object) -> dict[str, Any]:
    """Return a schema of arguments that says that they are an object, which some servers leave out."""
    if not isinstance(schema, dict):
        return {"type": "object"} if schema is None else cast("dict[str, Any]", schema)
    return {"type": "object", **cast("dict[str, Any]", schema)}


def _without(schema: dict[str, Any], hidden: set[str]) -> dict[str, Any]:
    properties = schema.get("properties") if hidden and isinstance(cast("object", schema), dict) else None
    if not isinstance(properties, dict):
        return schema
    shown = {key: value for key, value in cast("dict[str, Any]", properties).items() if key not in hidden}
    given = schema.get("required")
    if not isinstance(given, list):
        return {**schema, "properties": shown}
    return {**schema, "properties": shown, "required": [key for key in cast("list[object]", given) if str(key) not in hidden]}


def resources_of(source: str, catalogue: Catalogue, settings: UpstreamSettings) -> list[ResourceSpec]:
    """Return its resources and its templates."""
    prefix = prefix_of(source, settings)
    found = [(item.get("uri"), item) for item in catalogue.resources] + [(item.get("uriTemplate"), item) for item in catalogue.templates]
    return [_resource(source, our_uri(prefix, uri), item) for uri, item in found if isinstance(uri, str)]


def _resource(source: str, uri: str, item: Item) -> ResourceSpec:
    size = item.get("size")
    return ResourceSpec(
        uri=uri,
        name=_text(item.get("name")) or uri,
        title=_text(item.get("title")) or None,
        description=_text(item.get("description")),
        mime_type=_text(item.get("mimeType")) or None,
        size=size if isinstance(size, int) else None,
        source=source,
        extra=_extra(item, _RESOURCE),
    )


def prompts_of(source: str, catalogue: Catalogue, settings: UpstreamSettings, *, longest: int) -> list[tuple[PromptSpec, str]]:
    """Return its prompts, each with its name over there."""
    items = _named(source, catalogue.prompts)
    names = name_all(prefix_of(source, settings), list(items), longest=longest)
    return [(_prompt(source, names[own], item), own) for own, item in items.items()]


def _prompt(source: str, name: str, item: Item) -> PromptSpec:
    given = item.get("arguments")
    arguments = [_table(argument) for argument in cast("list[object]", given)] if isinstance(given, list) else []
    return PromptSpec(
        name=name,
        title=_text(item.get("title")) or None,
        description=_text(item.get("description")),
        arguments=tuple(
            PromptArgument(
                _text(argument.get("name")),
                _text(argument.get("description")),
                bool(argument.get("required")),
                _text(argument.get("title")) or None,
            )
            for argument in arguments
        ),
        source=source,
        extra=_extra(item, _PROMPT),
    )


def _named(source: str, items: Iterable[Item]) -> dict[str, Item]:
    """Return items by name, the first of each; one without a name cannot be called."""
    found: dict[str, Item] = {}
    nameless = 0
    for item in items:
        name = item.get("name")
        if isinstance(name, str) and name and name not in found:
            found[name] = item
        else:
            nameless += 1
    if nameless:
        _log.warning("upstream_lists_what_has_no_name_of_its_own upstream=%s count=%d", source, nameless)
    return found


def _extra(item: Item, known: frozenset[str]) -> dict[str, Any]:
    """Return what an item says besides, without what the protocol keeps for itself."""
    extra = {key: value for key, value in item.items() if key not in known}
    meta = custom_meta(_table(item.get("_meta")))
    return {**extra, "_meta": meta} if meta else extra


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
