"""The metatools `list_tools`, `list_namespaces`, `list_toolsets` and `describe_toolset`, with their pages."""

from collections.abc import Sequence
from typing import Any, Final

from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.metatools.catalogue import Catalogue, PageCursors
from callyard.metatools.metatool import TEXT, build_metatool, object_schema
from callyard.model.errors import not_found
from callyard.model.names import closest_name
from callyard.model.profile import Profile, Toolset
from callyard.model.signature import one_line, signature
from callyard.model.spec import Operation, Reason, ToolSpec

__all__ = ["list_metatools"]

_DESCRIPTION: Final = 90
_LIMIT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": 100, "default": 50}
_COUNT: Final[dict[str, Any]] = {"type": "integer"}


def _rows(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": object_schema(" ".join(properties), **properties)}


_LINES: Final = _rows(signature=TEXT, description=TEXT)
_RULES: Final = ("names", "tags", "sources", "operations", "deny_operations")
"""Rules of a toolset that are shown: not what it denies, because that does not exist for its callers."""


class _Lists:
    """The handlers, which cut their lists into pages with signed cursors."""

    def __init__(self, catalogue: Catalogue, cursors: PageCursors) -> None:
        self._catalogue = catalogue
        self._cursors = cursors

    async def _page(self, call: Call, key: str, items: Sequence[Any], *, filters: Sequence[Any] = ()) -> dict[str, Any]:
        """Return one page of items under a key, their number, and the cursor of the next page."""
        limit = call.arguments["limit"]
        question = [await self._catalogue.fingerprint(call.profile), call.spec.name, limit, *filters]
        start = self._cursors.verify(question, call.arguments.get("cursor"), suggestion=f"{call.spec.name}(…)")
        end = start + limit
        more = {"next_cursor": self._cursors.sign(question, end)} if end < len(items) else {}
        return {key: list(items[start:end]), "total": len(items), **more}

    async def _tools(self, call: Call, specs: Sequence[ToolSpec], *filters: object) -> dict[str, Any]:
        page = await self._page(call, "tools", specs, filters=filters)
        tools = [(signature(spec), one_line(spec.description, _DESCRIPTION)) for spec in page["tools"]]
        return {**page, "tools": [{"signature": text, "description": about} for text, about in tools]}

    async def tools(self, call: Call) -> dict[str, Any]:
        namespace, operation = call.arguments.get("namespace"), call.arguments.get("operation")
        self._catalogue.check_namespace(namespace, call.profile)
        specs = self._catalogue.tools(call.profile, namespace=namespace, operation=operation)
        return await self._tools(call, specs, namespace, operation)

    async def namespaces(self, call: Call) -> dict[str, Any]:
        counts = self._catalogue.namespaces(call.profile).items()
        return await self._page(call, "namespaces", [{"namespace": name, "tools": count} for name, count in counts])

    async def toolsets(self, call: Call) -> dict[str, Any]:
        toolsets = _toolsets(call.profile).values()
        rows = [{"name": toolset.name, "description": toolset.description} for toolset in toolsets]
        return await self._page(call, "toolsets", rows)

    async def toolset(self, call: Call) -> dict[str, Any]:
        toolset = _toolset(call.arguments["name"], call.profile, self._catalogue)
        specs = [spec for spec in self._catalogue.tools(call.profile) if toolset.holds(spec)]
        rules = {rule: [str(entry) for entry in getattr(toolset, rule)] for rule in _RULES if getattr(toolset, rule)}
        head = {"name": toolset.name, "description": toolset.description, "rules": rules}
        return {**head, **await self._tools(call, specs, toolset.name)}


def list_metatools(catalogue: Catalogue, cursors: PageCursors) -> list[Tool]:
    """Return the metatools that list tools, namespaces and toolsets."""
    lists = _Lists(catalogue, cursors)
    paged = object_schema(limit=_LIMIT, cursor=TEXT)
    operations = {"enum": [str(operation) for operation in Operation]}
    return [
        build_metatool(
            "list_tools",
            "List every tool by name, as signatures; by namespace or operation, if you like.",
            lists.tools,
            input_schema=object_schema(limit=_LIMIT, cursor=TEXT, namespace=TEXT, operation=operations),
            output_schema=_page(tools=_LINES),
        ),
        build_metatool(
            "list_namespaces",
            "List the namespaces that tools come from, and how many each has.",
            lists.namespaces,
            input_schema=paged,
            output_schema=_page(namespaces=_rows(namespace=TEXT, tools=_COUNT)),
        ),
        build_metatool(
            "list_toolsets",
            "List the toolsets that decide which tools there are for you; where there are none, you have every tool.",
            lists.toolsets,
            input_schema=paged,
            output_schema=_page(toolsets=_rows(name=TEXT, description=TEXT)),
        ),
        build_metatool(
            "describe_toolset",
            "Show one toolset: its rules, and the tools that it holds.",
            lists.toolset,
            input_schema=object_schema("name", name=TEXT, limit=_LIMIT, cursor=TEXT),
            output_schema=_page(name=TEXT, description=TEXT, rules={"type": "object"}, tools=_LINES),
            reasons={"unknown_toolset": Reason("not_found")},
        ),
    ]


def _page(**properties: Any) -> dict[str, Any]:
    return object_schema(" ".join((*properties, "total")), **properties, total=_COUNT, next_cursor=TEXT)


def _toolsets(profile: Profile) -> dict[str, Toolset]:
    return {toolset.name: toolset for toolset in sorted(profile.toolsets, key=lambda toolset: toolset.name)}


def _toolset(name: str, profile: Profile, catalogue: Catalogue) -> Toolset:
    toolsets = _toolsets(profile)
    if name in toolsets:
        return toolsets[name]
    meant = closest_name(name, toolsets)
    actions = catalogue.registry.available_actions(profile, "list_toolsets()")
    hint = "Look at what 'list_toolsets' answers." if actions else None
    if meant:
        hint = f"Did you mean '{meant}'?"
    raise not_found("toolset", name, reason="unknown_toolset", hint=hint, next_actions=actions, may_have_run=False)
