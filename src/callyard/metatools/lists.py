"""The metatools `list_tools`, `list_namespaces`, `list_toolsets` and `describe_toolset`, with their pages."""

from collections.abc import Sequence
from typing import Any, Final

from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.metatools.catalogue import Catalogue, PageCursors
from callyard.metatools.metatool import TEXT, build_metatool, object_schema
from callyard.model.errors import not_found
from callyard.model.names import closest_name
from callyard.model.profile import METATOOLS, Profile, Toolset
from callyard.model.spec import Operation, Reason, ToolSpec

__all__ = ["list_metatools"]

_DESCRIPTION: Final = 90
_LIMIT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": 100, "default": 50}
_COUNT: Final[dict[str, Any]] = {"type": "integer"}
_LINE: Final = object_schema("signature description", signature=TEXT, description=TEXT)
_LINES: Final[dict[str, Any]] = {"type": "array", "items": _LINE}
_RULES: Final = ("names", "tags", "sources", "operations", "deny_operations")
"""Rules of a toolset that are shown: not what it denies, because that does not exist for its callers."""


class _Pages:
    """Cuts lists into pages with signed cursors."""

    def __init__(self, catalogue: Catalogue, cursors: PageCursors) -> None:
        self._catalogue = catalogue
        self._cursors = cursors

    async def page(self, call: Call, key: str, items: Sequence[Any], *, filters: Sequence[Any] = ()) -> dict[str, Any]:
        """Return one page of items under a key, their number, and the cursor of the next page."""
        limit = call.arguments["limit"]
        question = [await self._catalogue.fingerprint(call.profile), call.spec.name, limit, *filters]
        start = self._cursors.verify(question, call.arguments.get("cursor"), suggestion=f"{call.spec.name}(…)")
        end = start + limit
        more = {"next_cursor": self._cursors.sign(question, end)} if end < len(items) else {}
        return {key: list(items[start:end]), "total": len(items), **more}


def list_metatools(catalogue: Catalogue, cursors: PageCursors) -> list[Tool]:
    """Return the metatools that list tools, namespaces and toolsets."""
    pages = _Pages(catalogue, cursors)
    return [_list_tools(catalogue, pages), _list_namespaces(catalogue, pages), _list_toolsets(pages), _describe_toolset(catalogue, pages)]


def _list_tools(catalogue: Catalogue, pages: _Pages) -> Tool:
    async def list_tools(call: Call) -> dict[str, Any]:
        namespace, operation = call.arguments.get("namespace"), call.arguments.get("operation")
        catalogue.check_namespace(namespace, call.profile)
        specs = catalogue.tools(call.profile, namespace=namespace, operation=operation)
        page = await pages.page(call, "tools", specs, filters=(namespace, operation))
        return {**page, "tools": [_line(spec) for spec in page["tools"]]}

    return build_metatool(
        "list_tools",
        "List every tool by name, as signatures; by namespace or operation, if you like.",
        list_tools,
        input_schema=object_schema(
            limit=_LIMIT, cursor=TEXT, namespace=TEXT, operation={"enum": [str(operation) for operation in Operation]}
        ),
        output_schema=_page(tools=_LINES),
    )


def _list_namespaces(catalogue: Catalogue, pages: _Pages) -> Tool:
    async def list_namespaces(call: Call) -> dict[str, Any]:
        counts = catalogue.namespaces(call.profile)
        return await pages.page(call, "namespaces", [{"namespace": name, "tools": count} for name, count in counts.items()])

    item = object_schema("namespace tools", namespace=TEXT, tools=_COUNT)
    return build_metatool(
        "list_namespaces",
        "List the namespaces that tools come from, and how many each has.",
        list_namespaces,
        input_schema=object_schema(limit=_LIMIT, cursor=TEXT),
        output_schema=_page(namespaces={"type": "array", "items": item}),
    )


def _list_toolsets(pages: _Pages) -> Tool:
    async def list_toolsets(call: Call) -> dict[str, Any]:
        toolsets = [{"name": toolset.name, "description": toolset.description} for toolset in _toolsets(call.profile).values()]
        return await pages.page(call, "toolsets", toolsets)

    item = object_schema("name description", name=TEXT, description=TEXT)
    return build_metatool(
        "list_toolsets",
        "List the toolsets that decide which tools there are for you; where there are none, you have every tool.",
        list_toolsets,
        input_schema=object_schema(limit=_LIMIT, cursor=TEXT),
        output_schema=_page(toolsets={"type": "array", "items": item}),
    )


def _describe_toolset(catalogue: Catalogue, pages: _Pages) -> Tool:
    async def describe_toolset(call: Call) -> dict[str, Any]:
        toolset = _toolset(call.arguments["name"], call.profile, catalogue)
        specs = [spec for spec in catalogue.tools(call.profile) if spec.source != METATOOLS and toolset.holds(spec)]
        page = await pages.page(call, "tools", specs, filters=(toolset.name,))
        rules = {rule: [str(entry) for entry in getattr(toolset, rule)] for rule in _RULES if getattr(toolset, rule)}
        head = {"name": toolset.name, "description": toolset.description, "rules": rules}
        return {**head, **page, "tools": [_line(spec) for spec in page["tools"]]}

    return build_metatool(
        "describe_toolset",
        "Show one toolset: its rules, and the tools that it holds.",
        describe_toolset,
        input_schema=object_schema("name", name=TEXT, limit=_LIMIT, cursor=TEXT),
        output_schema=_page(name=TEXT, description=TEXT, rules={"type": "object"}, tools=_LINES),
        reasons={"unknown_toolset": Reason("not_found")},
    )


def _page(**properties: Any) -> dict[str, Any]:
    return object_schema(" ".join((*properties, "total")), **properties, total=_COUNT, next_cursor=TEXT)


def _line(spec: ToolSpec) -> dict[str, str]:
    from callyard.model.signature import one_line, signature  # noqa: PLC0415 - nobody reads one before the first call

    return {"signature": signature(spec), "description": one_line(spec.description, _DESCRIPTION)}


def _toolsets(profile: Profile) -> dict[str, Toolset]:
    return {toolset.name: toolset for toolset in sorted(profile.toolsets, key=lambda toolset: toolset.name)}


def _toolset(name: str, profile: Profile, catalogue: Catalogue) -> Toolset:
    toolsets = _toolsets(profile)
    if name in toolsets:
        return toolsets[name]
    meant = closest_name(name, toolsets)
    actions = catalogue.registry.available_actions(profile, "list_toolsets()")
    hint = f"Did you mean '{meant}'?" if meant else "Look at what 'list_toolsets' answers." if actions else None
    raise not_found("toolset", name, reason="unknown_toolset", hint=hint, next_actions=actions, may_have_run=False)
