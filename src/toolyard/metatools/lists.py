"""Listing: tools, namespaces and toolsets, page by page, of what exists for the caller."""

from collections.abc import Sequence
from typing import Any, Final

from toolyard.dispatch.call import Call
from toolyard.dispatch.tool import Tool
from toolyard.metatools.catalogue import Catalogue, PageCursors
from toolyard.metatools.metatool import TEXT, fields, make, outcome
from toolyard.model.errors import not_found
from toolyard.model.names import closest_name
from toolyard.model.profile import METATOOLS, Profile, Toolset
from toolyard.model.signature import one_line, signature
from toolyard.model.spec import Operation, Reason, ToolSpec

__all__ = ["make_lists"]

_DESCRIPTION: Final = 90
_LIMIT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": 100, "default": 50}
_COUNT: Final[dict[str, Any]] = {"type": "integer"}
_LINE: Final = outcome("signature description", signature=TEXT, description=TEXT)
_LINES: Final[dict[str, Any]] = {"type": "array", "items": _LINE}
_RULES: Final = ("names", "tags", "sources", "operations", "deny_operations")
"""What is told of a toolset: not which names, tags and sources it denies, because they do not exist for its callers."""


class _Pages:
    """Cuts what exists for a caller into pages, each sealed to its question."""

    def __init__(self, catalogue: Catalogue, cursors: PageCursors) -> None:
        self._catalogue = catalogue
        self._cursors = cursors

    async def cut(self, call: Call, key: str, things: Sequence[Any], *, by: Sequence[Any] = ()) -> dict[str, Any]:
        """Return one page of things under a key, how many there are, and the cursor of the next page."""
        limit = call.arguments["limit"]
        question = [await self._catalogue.fingerprint(call.profile), call.spec.name, limit, *by]
        start = self._cursors.verify(question, call.arguments.get("cursor"), suggestion=f"{call.spec.name}(…)")
        end = start + limit
        more = {"next_cursor": self._cursors.sign(question, end)} if end < len(things) else {}
        return {key: list(things[start:end]), "total": len(things), **more}


def make_lists(catalogue: Catalogue, cursors: PageCursors) -> list[Tool]:
    """Return the tools that list."""
    pages = _Pages(catalogue, cursors)
    return [_make_tools(catalogue, pages), _make_namespaces(catalogue, pages), _make_toolsets(pages), _make_toolset(catalogue, pages)]


def _make_tools(catalogue: Catalogue, pages: _Pages) -> Tool:
    async def list_tools(call: Call) -> dict[str, Any]:
        namespace, operation = call.arguments.get("namespace"), call.arguments.get("operation")
        catalogue.check_namespace(namespace, call.profile)
        specs = catalogue.tools(call.profile, namespace=namespace, operation=operation)
        page = await pages.cut(call, "tools", specs, by=(namespace, operation))
        return {**page, "tools": [_line(spec) for spec in page["tools"]]}

    return make(
        "list_tools",
        "List every tool by name, as signatures; by namespace or operation, if you like.",
        list_tools,
        takes=fields(limit=_LIMIT, cursor=TEXT, namespace=TEXT, operation={"enum": [str(operation) for operation in Operation]}),
        answers=_page(tools=_LINES),
    )


def _make_namespaces(catalogue: Catalogue, pages: _Pages) -> Tool:
    async def list_namespaces(call: Call) -> dict[str, Any]:
        counts = catalogue.namespaces(call.profile)
        return await pages.cut(call, "namespaces", [{"namespace": name, "tools": count} for name, count in counts.items()])

    one = outcome("namespace tools", namespace=TEXT, tools=_COUNT)
    return make(
        "list_namespaces",
        "List the namespaces that tools come from, and how many each has.",
        list_namespaces,
        takes=fields(limit=_LIMIT, cursor=TEXT),
        answers=_page(namespaces={"type": "array", "items": one}),
    )


def _make_toolsets(pages: _Pages) -> Tool:
    async def list_toolsets(call: Call) -> dict[str, Any]:
        found = [{"name": toolset.name, "description": toolset.description} for toolset in _toolsets(call.profile).values()]
        return await pages.cut(call, "toolsets", found)

    one = outcome("name description", name=TEXT, description=TEXT)
    return make(
        "list_toolsets",
        "List the toolsets that decide which tools there are for you; where there are none, you have every tool.",
        list_toolsets,
        takes=fields(limit=_LIMIT, cursor=TEXT),
        answers=_page(toolsets={"type": "array", "items": one}),
    )


def _make_toolset(catalogue: Catalogue, pages: _Pages) -> Tool:
    async def describe_toolset(call: Call) -> dict[str, Any]:
        toolset = _toolset(call.arguments["name"], call.profile, catalogue)
        specs = [spec for spec in catalogue.tools(call.profile) if spec.source != METATOOLS and toolset.holds(spec)]
        page = await pages.cut(call, "tools", specs, by=(toolset.name,))
        rules = {rule: [str(entry) for entry in getattr(toolset, rule)] for rule in _RULES if getattr(toolset, rule)}
        told = {"name": toolset.name, "description": toolset.description, "rules": rules}
        return {**told, **page, "tools": [_line(spec) for spec in page["tools"]]}

    return make(
        "describe_toolset",
        "Show one toolset: its rules, and the tools that it holds.",
        describe_toolset,
        takes=fields("name", name=TEXT, limit=_LIMIT, cursor=TEXT),
        answers=_page(name=TEXT, description=TEXT, rules={"type": "object"}, tools=_LINES),
        reasons={"unknown_toolset": Reason("not_found")},
    )


def _page(**properties: Any) -> dict[str, Any]:
    return outcome(" ".join((*properties, "total")), **properties, total=_COUNT, next_cursor=TEXT)


def _line(spec: ToolSpec) -> dict[str, str]:
    return {"signature": signature(spec), "description": one_line(spec.description, _DESCRIPTION)}


def _toolsets(profile: Profile) -> dict[str, Toolset]:
    return {toolset.name: toolset for toolset in sorted(profile.toolsets, key=lambda toolset: toolset.name)}


def _toolset(name: str, profile: Profile, catalogue: Catalogue) -> Toolset:
    known = _toolsets(profile)
    if name in known:
        return known[name]
    meant = closest_name(name, known)
    actions = catalogue.available_actions(profile, "list_toolsets()")
    hint = f"Did you mean '{meant}'?" if meant else "Look at what 'list_toolsets' answers." if actions else None
    raise not_found("toolset", name, reason="unknown_toolset", hint=hint, next_actions=actions, may_have_run=False)
