"""The metatool `search_tools`, which returns signatures of the tools that fit a query."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.metatools.catalogue import Catalogue, Order, PageCursors
from callyard.metatools.learned_order import LearnedOrders
from callyard.metatools.metatool import TEXT, build_metatool, object_schema
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile
from callyard.model.signature import one_line, signature, stub
from callyard.model.spec import Operation
from callyard.search import QUERIES, FusedHit
from callyard.search.learned import LearnedOrder

__all__ = ["check_query", "search_metatool"]

_QUERY_CHARACTERS: Final = 2000
_DESCRIPTION: Final = 90
_WHY: Final = 60
_SPACES: Final = frozenset("\t\n\r\f\v")
_INPUT_SCHEMA: Final = object_schema(
    query=TEXT,
    queries={"type": "array", "items": TEXT, "maxItems": QUERIES},
    limit={"type": "integer", "minimum": 1, "maximum": 100, "default": 5},
    cursor={**TEXT, "description": "'next_cursor' of the page before."},
    namespace=TEXT,
    operation={"enum": [str(operation) for operation in Operation]},
    detail={"enum": ["signature", "stub", "schema"], "default": "signature"},
)
_HIT: Final = object_schema(
    "why",
    stub=TEXT,
    signature=TEXT,
    description=TEXT,
    why=TEXT,
    serves={"type": "array", "items": {"type": "integer"}},
    tool_id=TEXT,
    input_schema={"type": "object"},
    output_schema={"type": "object"},
)
_OUTPUT_SCHEMA: Final = object_schema(
    "hits",
    hits={"type": "array", "items": _HIT},
    total={"type": "integer"},
    next_cursor=TEXT,
    siblings={"type": "array", "items": TEXT},
    closest={"type": "array", "items": TEXT},
    hint=TEXT,
)


def search_metatool(catalogue: Catalogue, cursors: PageCursors, orders: LearnedOrders | None) -> Tool:
    """Return the metatool `search_tools`; `orders` learns from use."""

    async def search(call: Call) -> dict[str, Any]:
        arguments = call.arguments
        limit, detail = arguments["limit"], arguments["detail"]
        namespace, operation = arguments.get("namespace"), arguments.get("operation")
        queries = _queries_of(arguments, catalogue.registry.available_actions(call.profile, "list_tools()"))
        catalogue.check_namespace(namespace, call.profile)
        tools = await catalogue.fingerprint(call.profile)
        asked = queries if "queries" in arguments else queries[0]
        question = [tools, catalogue.settings, "search_tools", asked, limit, namespace, operation]
        order, cursor = None if orders is None else await orders.order(queries), arguments.get("cursor")
        search_them = _search_several if "queries" in arguments else _search_one
        given: dict[str, Any] = {"limit": limit, "namespace": namespace, "operation": operation, "order": order}
        find = partial(search_them, catalogue, queries, call.profile, **given)
        if cursor is not None and order is not None:
            await find(start=0)  # so that the version is known, which the cursor must be of
        start = cursors.verify([*question, _version(order)], cursor, suggestion="search_tools(query=…)")
        found, siblings = await find(start=start)
        question.append(_version(order))
        if orders is not None:
            served = ((one.hit.spec.name, [queries[number - 1] for number in one.serves]) for one in found.hits)
            orders.searched(call.caller.owner, [(name, by or queries) for name, by in served])
        result: dict[str, Any] = {"hits": [_hit(one, detail) for one in found.hits]}
        if siblings:
            result["siblings"] = siblings
        if found.total is not None:
            result["total"] = found.total
        if found.more:
            result["next_cursor"] = cursors.sign(question, start + limit)
        if not found.hits and not start:
            result["closest"] = [source for source in found.closest if source != METATOOLS]
            actions = catalogue.registry.available_actions(call.profile, "list_tools(namespace=…)")
            say = ["Nothing fits. Say it in other words", *actions]
            result["hint"] = f"{' or look through a namespace with '.join(say)}."
        return result

    return build_metatool(
        "search_tools",
        "Find tools by what you want to do, in plain words; 'queries' takes one for each step of a task.",
        search,
        input_schema=_INPUT_SCHEMA,
        output_schema=_OUTPUT_SCHEMA,
        listed=True,
        use="find",
    )


def _version(order: LearnedOrder | None) -> str:
    return "" if order is None else order.version


class _Page(NamedTuple):
    """One page of hits, each with the queries that it serves."""

    hits: Sequence[FusedHit]
    total: int | None
    more: bool
    closest: Sequence[str]


async def _search_one(
    catalogue: Catalogue,
    queries: Sequence[str],
    profile: Profile,
    *,
    start: int,
    **given: Any,
) -> tuple[_Page, list[str]]:
    """Return a page of the tools that fit one query."""
    page = await catalogue.search(queries[0], profile, offset=start, **given)
    return _Page([FusedHit(hit, ()) for hit in page.hits], page.total, page.more, page.closest), []


async def _search_several(
    catalogue: Catalogue,
    queries: Sequence[str],
    profile: Profile,
    *,
    start: int,
    limit: int,
    namespace: str | None,
    operation: Operation | None,
    order: Order | None,
) -> tuple[_Page, list[str]]:
    """Return a page of the tools that fit several queries, and beside the first page the names of their siblings."""
    where: dict[str, Any] = {"namespace": namespace, "operation": operation}
    fused, is_all = await catalogue.search_several(queries, profile, **where, order=order)
    page = fused[start : start + limit]
    siblings: list[str] = []
    if not start:
        siblings = catalogue.siblings([one.hit.spec for one in fused], limit, profile, operation=operation)
    closest: Sequence[str] = ()
    if not fused:
        nothing = await catalogue.search(" ".join(queries), profile, **where, offset=0, limit=1)
        closest = nothing.closest
    return _Page(page, len(fused) if is_all else None, len(fused) > start + limit, closest), siblings


def _queries_of(arguments: Mapping[str, Any], alternatives: Sequence[str]) -> list[str]:
    """Return the one query, or the several ones.

    Raises:
        ToolError: `invalid_input` if there are none or both, or one is invalid.
    """
    if ("query" in arguments) == bool(arguments.get("queries")):
        message = "'search_tools' needs 'query', or 'queries' with one for each step, and not both."
        code = "missing" if "query" not in arguments else "both_given"
        raise _refusal(message, code, "search_tools(query=…)")
    if "query" in arguments and "queries" not in arguments:
        check_query(arguments["query"], alternatives)
        return [arguments["query"]]
    queries: list[str] = arguments["queries"]
    for number, query in enumerate(queries):
        check_query(query, alternatives, field=f"queries.{number}")
    return queries


def check_query(query: str, alternatives: Sequence[str] = (), *, field: str = "query") -> None:
    """Check that a query is valid; `alternatives` are actions for an empty one.

    Raises:
        ToolError: `invalid_input` if it is empty, too long, or has control characters.
    """
    if not query.strip():
        actions = alternatives or ["search_tools(query=…)"]
        raise _refusal("The query is empty.", "string_too_short", *actions, field=field)
    if len(query) > _QUERY_CHARACTERS:
        message = f"The query has {len(query)} characters; at most {_QUERY_CHARACTERS} are read."
        message += " Say what you want to do in a sentence."
        raise _refusal(message, "string_too_long", "search_tools(query=…)", field=field)
    if any(not (character.isprintable() or character in _SPACES) and ord(character) < 160 for character in query):  # noqa: PLR2004 - where the second block of control characters ends
        raise _refusal(
            "The query has control characters in it.", "control_character", "search_tools(query=…)", field=field
        )


def _refusal(message: str, code: str, *actions: str, field: str = "query") -> ToolError:
    issue = {"field": field, "code": code, "message": message}
    return ToolError("invalid_input", message, next_actions=actions, issues=[issue])


def _hit(found: FusedHit, detail: str) -> dict[str, Any]:
    spec, why = found.hit.spec, _short(found.hit.why)
    served = {"serves": list(found.serves)} if found.serves else {}
    if detail == "stub":
        return {"stub": stub(spec), "tool_id": spec.name, "why": why, **served}
    about = one_line(spec.description, _DESCRIPTION)
    hit: dict[str, Any] = {"signature": signature(spec), "description": about, "why": why, **served}
    if detail == "schema":
        hit |= {"tool_id": spec.name, "input_schema": spec.input_schema}
        if spec.output_schema is not None:
            hit["output_schema"] = spec.output_schema
    return hit


def _short(why: str) -> str:
    return why if len(why) <= _WHY else f"{why[:_WHY].rsplit(';', 1)[0]}…"
