"""The catalogue of an upstream: everything it lists, and the specs under which that is published.

The catalogue is stored on disk, so that the yard can list tools before there is a connection. Descriptions and schemas
stay word for word, unless the settings reshape them.
"""

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import msgspec

from callyard._internal.converted import as_object
from callyard._internal.files import read_private, write_atomically
from callyard.model.apps import APP_SCHEME, with_app_uris, with_prefix, without_prefix
from callyard.model.envelope import fingerprint
from callyard.model.profile import PINNED, first_match, matches_any
from callyard.model.spec import Annotations, EvalRule, Operation, PromptArgument, PromptSpec, ResourceSpec, ToolSpec
from callyard.providers.upstream.handshake import Connection
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.settings import Reshape, UpstreamSettings
from callyard.wire.messages import METHOD_NOT_FOUND, Fault
from callyard.wire.params import custom_meta

__all__ = [
    "Catalogue",
    "Item",
    "UpstreamTool",
    "endpoint_hash",
    "fetch",
    "fetch_list",
    "folder_of",
    "load",
    "prefix_of",
    "prompts_of",
    "publish_app_uris",
    "publish_uris",
    "published_names",
    "published_uri",
    "resources_of",
    "save",
    "tools_of",
    "upstream_uri",
]

Item = dict[str, Any]
"""A tool, resource, template or prompt as the upstream lists it."""
_FILE: Final = "catalogue.json"
_PAGES: Final = 1000
_ITEMS: Final = 10_000
_BYTES: Final = 64 * 1024 * 1024
_LISTS: Final = {
    "tools": ("tools", "tools/list", "tools"),
    "resources": ("resources", "resources/list", "resources"),
    "templates": ("resources", "resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts", "prompts/list", "prompts"),
}
"""The lists of a catalogue: the capability, the method, and the key of its result."""
_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARACTERS: Final = 6
_NESTED: Final = frozenset({"content", "contents", "resource", "messages"})
_CLOCK_SECONDS: Final = 5.0
"""How far a clock may be put back without a new fetch."""
_UNCHANGED: Final = Reshape()
_NOTHING_SETTLED: Final[Mapping[str, Operation]] = MappingProxyType({})
_TOOL_FIELDS: Final = frozenset({"name", "title", "description", "inputSchema", "outputSchema", "annotations", "_meta"})
_RESOURCE_FIELDS: Final = frozenset({"uri", "uriTemplate", "name", "title", "description", "mimeType", "size", "_meta"})
_PROMPT_FIELDS: Final = frozenset({"name", "title", "description", "arguments", "_meta"})
_log = logging.getLogger(__name__)


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream's description of itself and of everything it lists."""

    endpoint_hash: str = msgspec.field(name="reached_by")
    """A hash of the command or URL; the catalogue of another endpoint is not used."""
    seen: float
    """When it was fetched, in seconds of the wall clock."""
    version: str
    server: Mapping[str, Any] = {}
    capabilities: Mapping[str, Any] = {}
    instructions: str = ""
    tools: tuple[Item, ...] = ()
    resources: tuple[Item, ...] = ()
    templates: tuple[Item, ...] = ()
    prompts: tuple[Item, ...] = ()

    @property
    def age(self) -> float:
        """Return the seconds since it was fetched; infinite if that is in the future, because a clock was wrong."""
        age = time.time() - self.seen
        return age if age > -_CLOCK_SECONDS else math.inf


def endpoint_hash(settings: UpstreamSettings) -> str:
    """Return a hash of the endpoint, without tokens and other settings that may change for the same server."""
    return fingerprint([settings.command, settings.args, settings.cwd, settings.url, settings.carrier])[:16]


def folder_of(state: Path, name: str) -> Path:
    """Return the folder that stores everything about an upstream."""
    return state / "upstreams" / name


def load(folder: Path, settings: UpstreamSettings | None = None) -> Catalogue | None:
    """Return the stored catalogue, or None if there is none or it belongs to another endpoint than the settings'."""
    with suppress(OSError, msgspec.DecodeError):
        catalogue = msgspec.json.decode(read_private(folder / _FILE), type=Catalogue)
        return catalogue if settings is None or catalogue.endpoint_hash == endpoint_hash(settings) else None
    return None


def save(folder: Path, catalogue: Catalogue) -> None:
    """Store a catalogue.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(folder / _FILE, msgspec.json.encode(catalogue))


async def fetch(connection: Connection, *, endpoint_hash: str) -> Catalogue:
    """Fetch all lists of an upstream.

    Raises:
        Fault: The upstream answered a list with an error.
        LinkError: The connection is lost, or a list is too long or invalid.
    """
    handshake = connection.handshake
    lists = {
        name: await fetch_list(connection, method, key)
        for name, (capability, method, key) in _LISTS.items()
        if capability in handshake.capabilities or (name == "tools" and not handshake.capabilities)
    }
    return Catalogue(
        endpoint_hash=endpoint_hash,
        seen=time.time(),
        version=handshake.version.name,
        server=handshake.server,
        capabilities=handshake.capabilities,
        instructions=handshake.instructions,
        **lists,
    )


async def fetch_list(connection: Connection, method: str, key: str) -> tuple[Item, ...]:
    """Fetch all pages of a list, within limits that a hostile upstream cannot exceed.

    Raises:
        Fault: The upstream answered with an error.
        LinkError: The connection is lost, or the list is too long or invalid.
    """
    name = connection.session.name
    items: list[Item] = []
    cursor: str | None = None
    cursors: set[str] = set()
    size = 0
    for _ in range(_PAGES):
        try:
            result = await connection.request(method, {} if cursor is None else {"cursor": cursor})
            page = msgspec.json.decode(result, type=dict[str, Any])
        except msgspec.DecodeError as error:
            sentence = f"'{name}' answered '{method}' with something that is no list."
            raise LinkError("unavailable", sentence, reason="list") from error
        except Fault as fault:
            if fault.code == METHOD_NOT_FOUND and cursor is None:
                return ()
            raise
        listed = page.get(key)
        if isinstance(listed, list):
            items += [item for item in cast("list[Any]", listed) if isinstance(item, dict)]
        size += len(result)
        if len(items) > _ITEMS or size > _BYTES:
            sentence = f"'{name}' lists more than {_ITEMS} {key}, or {_BYTES} bytes of them."
            raise LinkError("unavailable", sentence, reason="list")
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str):
            return tuple(items)
        if cursor in cursors:
            break
        cursors.add(cursor)
    raise LinkError("unavailable", f"The list '{key}' of '{name}' has no end.", reason="list")


def published_names(prefix: str, names: Sequence[str], *, longest: int) -> dict[str, str]:
    """Return the published name for each of an upstream's names; one that is cut or ambiguous ends with a hash."""
    candidates = {name: _joined(prefix, _OUTSIDE.sub("_", name)) for name in names}
    counts = Counter(candidates.values())
    published = dict(candidates)
    for name, candidate in candidates.items():
        is_changed = _joined(prefix, name) != candidate
        if len(candidate) > longest or (is_changed and counts[candidate] > 1) or not candidate:
            digest = sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASH_CHARACTERS]
            published[name] = f"{candidate[: longest - _HASH_CHARACTERS - 1]}_{digest}"
    return published


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}__{name}" if prefix else name


def published_uri(prefix: str, uri: str) -> str:
    """Return the published URI of an upstream's resource; the scheme names the upstream."""
    if prefix and uri.startswith(APP_SCHEME):  # hosts of Apps take no other scheme
        return with_prefix(_scheme(prefix), uri)
    return f"{_scheme(prefix)}+{uri}" if prefix else uri


def upstream_uri(prefix: str, uri: str) -> str:
    """Return the upstream's own URI of a published resource."""
    if not prefix:
        return uri
    return without_prefix(_scheme(prefix), uri.removeprefix(f"{_scheme(prefix)}+"))


def _scheme(prefix: str) -> str:
    """Return a prefix as a valid URI scheme: without underscores, which a dot replaces because no prefix has one."""
    scheme = _OUTSIDE.sub("-", prefix).replace("_", ".")
    return scheme if scheme[:1].isalpha() else f"x{scheme}"


def publish_uris(prefix: str, value: Any) -> Any:
    """Return content or messages of an upstream with all resource URIs replaced by the published ones."""
    if isinstance(value, list):
        return [publish_uris(prefix, part) for part in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    nested = {key: publish_uris(prefix, fields[key]) for key in _NESTED & fields.keys()}
    if "_meta" in fields:
        nested["_meta"] = publish_app_uris(prefix, as_object(fields["_meta"]))
    uri = fields.get("uri")
    return {**fields, **nested, **({"uri": published_uri(prefix, uri)} if isinstance(uri, str) else {})}


def publish_app_uris(prefix: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return `_meta` of an upstream with the addresses of Apps replaced by the published ones."""
    return with_app_uris(meta, partial(published_uri, prefix))


class UpstreamTool(NamedTuple):
    """A tool of an upstream: its published spec, and what is needed to call it there."""

    spec: ToolSpec
    upstream_name: str
    fixed: Mapping[str, Any]
    """Arguments that are always sent."""
    schema: Mapping[str, Any]
    """Its own input schema, with the arguments that are not published."""


def prefix_of(source: str, settings: UpstreamSettings) -> str:
    """Return the prefix of an upstream's published names."""
    return source if settings.prefix is None else settings.prefix


def tools_of(
    source: str,
    catalogue: Catalogue,
    settings: UpstreamSettings,
    *,
    longest: int,
    settled: Mapping[str, Operation] = _NOTHING_SETTLED,
) -> list[UpstreamTool]:
    """Return the tools that the settings let through; `settled` has what people said that tools without hints do."""
    chosen = {
        name: item
        for name, item in _by_name(source, catalogue.tools).items()
        if matches_any(name, settings.tools) and not matches_any(name, settings.without)
    }
    reshape = settings.reshape
    reshapes = {name: reshape.get(name) or first_match(name, reshape) or _UNCHANGED for name in chosen}
    renamed = {name: reshapes[name].rename or name for name in chosen}
    published = published_names(prefix_of(source, settings), list(renamed.values()), longest=longest)
    return [
        _tool(
            source,
            item,
            reshapes[name],
            published=published[renamed[name]],
            settings=settings,
            settled=settled.get(name),
        )
        for name, item in chosen.items()
    ]


def _tool(
    source: str,
    item: Item,
    reshape: Reshape,
    *,
    published: str,
    settings: UpstreamSettings,
    settled: Operation | None,
) -> UpstreamTool:
    name: str = item["name"]
    annotations = _table(item.get("annotations"))
    schema = _object_schema(item.get("inputSchema"))
    title = reshape.title or _text(item, "title") or _text(annotations, "title")
    description = reshape.description or _text(item, "description")
    output = item.get("outputSchema")
    is_settled = reshape.operation is not None or settled is not None or _has_hints(annotations)
    spec = ToolSpec(
        name=published,
        title=title or None,
        description=description if description.strip() else title or name,
        input_schema=_without(schema, {*reshape.fixed, *reshape.hidden}),
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        operation=_operation(annotations, reshape, settled),
        operation_assumed=not is_settled,
        unsettled=None if is_settled else settings.unannotated or "default",
        eval=None if reshape.code is None else EvalRule(reshape.code, reshape.language or "python"),
        requires_eval=reshape.code is not None,
        source=source,
        tags=(PINNED,) if reshape.pinned else (),
        timeout=settings.call_seconds if reshape.timeout is None else reshape.timeout,
        idempotent=bool(annotations.get("idempotentHint")) if reshape.idempotent is None else reshape.idempotent,
        shape="plain",
        annotations=None if reshape.operation else _annotations(annotations, settled),
        extra=_with_app_uris(_extra(item, _TOOL_FIELDS), prefix_of(source, settings)),
    )
    return UpstreamTool(spec, name, reshape.fixed, schema)


def _has_hints(annotations: Mapping[str, Any]) -> bool:
    """Return whether an upstream says what its tool does; a hint that is no boolean says nothing."""
    return any(isinstance(annotations.get(hint), bool) for hint in ("readOnlyHint", "destructiveHint"))


def _operation(annotations: Mapping[str, Any], reshape: Reshape, settled: Operation | None) -> Operation:
    """Return the operation: of the settings, of the upstream's hints, or what a person settled."""
    if reshape.operation is not None:
        return Operation(reshape.operation)
    if settled is not None and not _has_hints(annotations):
        return settled
    if annotations.get("readOnlyHint") is True:
        return Operation.QUERY
    return Operation.DESTROY if annotations.get("destructiveHint") is True else Operation.COMMAND


def _annotations(annotations: Mapping[str, Any], settled: Operation | None) -> Annotations:
    """Return the upstream's annotations, with the protocol's defaults for those that nobody settled."""
    hints: Mapping[str, Any] = annotations
    if settled is not None and not _has_hints(annotations):
        hints = {
            **annotations,
            "readOnlyHint": settled is Operation.QUERY,
            "destructiveHint": settled is Operation.DESTROY,
        }
    reads_only = hints.get("readOnlyHint") is True
    destroys = hints.get("destructiveHint")
    return Annotations(
        read_only_hint=reads_only,
        destructive_hint=destroys if isinstance(destroys, bool) else not reads_only,
        idempotent_hint=bool(hints.get("idempotentHint", False)),
        open_world_hint=bool(hints.get("openWorldHint", True)),
    )


def _object_schema(schema: object) -> dict[str, Any]:
    """Return an input schema of the type 'object', which some servers leave out."""
    if schema is None or isinstance(schema, dict):
        return {"type": "object", **cast("dict[str, Any]", schema or {})}
    return cast("dict[str, Any]", schema)


def _without(schema: dict[str, Any], hidden: set[str]) -> dict[str, Any]:
    properties = schema.get("properties") if hidden and isinstance(cast("object", schema), dict) else None
    if not isinstance(properties, dict):
        return schema
    shown = {key: value for key, value in cast("dict[str, Any]", properties).items() if key not in hidden}
    changed = {**schema, "properties": shown}
    required = schema.get("required")
    if isinstance(required, list):
        changed["required"] = [key for key in cast("list[object]", required) if str(key) not in hidden]
    return changed


def resources_of(source: str, catalogue: Catalogue, settings: UpstreamSettings) -> list[ResourceSpec]:
    """Return the resources and the templates."""
    prefix = prefix_of(source, settings)
    items = [(item.get("uri"), item) for item in catalogue.resources]
    items += [(item.get("uriTemplate"), item) for item in catalogue.templates]
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


def prompts_of(
    source: str, catalogue: Catalogue, settings: UpstreamSettings, *, longest: int
) -> list[tuple[PromptSpec, str]]:
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
    title = _text(item, "title") or None
    return PromptArgument(_text(item, "name"), _text(item, "description"), bool(item.get("required")), title)


def _by_name(source: str, items: Sequence[Item]) -> dict[str, Item]:
    """Return items by name; later duplicates and items without a name cannot be called and are dropped."""
    named: dict[str, Item] = {}
    for item in items:
        name = item.get("name")
        if isinstance(name, str) and name:
            named.setdefault(name, item)
    dropped = len(items) - len(named)
    if dropped:
        _log.warning("upstream_lists_what_has_no_name_of_its_own upstream=%s count=%d", source, dropped)
    return named


def _extra(item: Item, fields: frozenset[str]) -> dict[str, Any]:
    """Return the other fields of an item, without `_meta` keys that the protocol reserves."""
    extra = {key: value for key, value in item.items() if key not in fields}
    meta = custom_meta(_table(item.get("_meta")))
    return {**extra, "_meta": meta} if meta else extra


def _with_app_uris(extra: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {**extra, "_meta": publish_app_uris(prefix, extra["_meta"])} if "_meta" in extra else extra


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""
