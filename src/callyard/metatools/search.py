"""The metatool `search_tools`, which returns signatures of the tools that fit a query."""

from collections.abc import Sequence
from typing import Any, Final

from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.metatools.catalogue import Catalogue, PageCursors
from callyard.metatools.metatool import TEXT, build_metatool, object_schema
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS
from callyard.model.signature import one_line, signature, stub
from callyard.model.spec import Operation, ToolSpec

__all__ = ["check_query", "search_metatool"]

_QUERY_CHARACTERS: Final = 2000
_DESCRIPTION: Final = 90
_WHY: Final = 60
_SPACES: Final = frozenset("\t\n\r\f\v")
_INPUT_SCHEMA: Final = object_schema(
    "query",
    query={**TEXT, "description": "What you want to do, in plain words."},
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
    tool_id=TEXT,
    input_schema={"type": "object"},
    output_schema={"type": "object"},
)
_OUTPUT_SCHEMA: Final = object_schema(
    "hits",
    hits={"type": "array", "items": _HIT},
    total={"type": "integer"},
    next_cursor=TEXT,
    closest={"type": "array", "items": TEXT},
    hint=TEXT,
)


def search_metatool(catalogue: Catalogue, cursors: PageCursors) -> Tool:
    """Return the metatool `search_tools`."""

    async def search(call: Call) -> dict[str, Any]:
        arguments = call.arguments
        query, limit, detail = arguments["query"], arguments["limit"], arguments["detail"]
        namespace, operation = arguments.get("namespace"), arguments.get("operation")
        check_query(query, catalogue.registry.available_actions(call.profile, "list_tools()"))
        catalogue.check_namespace(namespace, call.profile)
        tools = await catalogue.fingerprint(call.profile)
        question = [tools, catalogue.settings, "search_tools", query, limit, namespace, operation]
        start = cursors.verify(question, arguments.get("cursor"), suggestion="search_tools(query=…)")
        found = await catalogue.search(
            query, call.profile, namespace=namespace, operation=operation, offset=start, limit=limit
        )
        result: dict[str, Any] = {"hits": [_hit(hit.spec, hit.why, detail) for hit in found.hits]}
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
        "Find tools by what they do. Answers with signatures.",
        search,
        input_schema=_INPUT_SCHEMA,
        output_schema=_OUTPUT_SCHEMA,
        listed=True,
        use="find",
    )


def check_query(query: str, alternatives: Sequence[str] = ()) -> None:
    """Check that a query is valid; `alternatives` are actions for an empty one.

    Raises:
        ToolError: `invalid_input` if it is empty, too long, or has control characters.
    """
    if not query.strip():
        raise _refusal("The query is empty.", "string_too_short", *(alternatives or ["search_tools(query=…)"]))
    if len(query) > _QUERY_CHARACTERS:
        message = f"The query has {len(query)} characters; at most {_QUERY_CHARACTERS} are read."
        message += " Say what you want to do in a sentence."
        raise _refusal(message, "string_too_long", "search_tools(query=…)")
    if any(not (character.isprintable() or character in _SPACES) and ord(character) < 160 for character in query):  # noqa: PLR2004 - where the second block of control characters ends
        raise _refusal("The query has control characters in it.", "control_character", "search_tools(query=…)")


def _refusal(message: str, code: str, *actions: str) -> ToolError:
    issue = {"field": "query", "code": code, "message": message}
    return ToolError("invalid_input", message, next_actions=actions, issues=[issue])


def _hit(spec: ToolSpec, why: str, detail: str) -> dict[str, Any]:
    if detail == "stub":
        return {"stub": stub(spec), "tool_id": spec.name, "why": _short(why)}
    about = one_line(spec.description, _DESCRIPTION)
    hit: dict[str, Any] = {"signature": signature(spec), "description": about, "why": _short(why)}
    if detail == "schema":
        hit |= {"tool_id": spec.name, "input_schema": spec.input_schema}
        if spec.output_schema is not None:
            hit["output_schema"] = spec.output_schema
    return hit


def _short(why: str) -> str:
    return why if len(why) <= _WHY else f"{why[:_WHY].rsplit(';', 1)[0]}…"
