"""Which metatools there are: their names, which of them were asked for, and what a client is told of them.

It loads none of them: a yard knows their names before it opens, and needs the rest only then.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from toolyard.schema import near_miss

__all__ = ["GUIDE", "LEARNING", "METATOOL_NAMES", "known_metatools", "tell_metatools"]

METATOOL_NAMES: Final = (
    "search_tools",
    "describe_tool",
    "run_tool",
    "run_chain",
    "read_result",
    "list_tools",
    "list_namespaces",
    "list_tool_examples",
    "list_toolsets",
    "describe_toolset",
)
"""Every metatool, those that lists show first."""

LEARNING: Final = "learning"
"""What can be switched like a metatool, and is none: that shapes of results are learnt."""

GUIDE: Final = (
    "Most tools here are not listed. Find one with search_tools(query): say what you want to do. Its signature is often all you need; "
    "otherwise describe_tool(tool_id) shows the schema. Call it with run_tool(tool_id, args), or several in one go with run_chain(steps), "
    "where later steps take earlier results. A long result is answered as a handle such as 'r_1': read parts of it with read_result, "
    "or pass it on as an argument, {\"$ref\": \"r_1\"}. A failure says in 'hint' and 'next_actions' what to do."
)
"""What a client is told of the way from a wish to a call, where tools are not listed."""


def known_metatools(given: bool | Iterable[str]) -> tuple[str, ...]:  # noqa: FBT001 - yes, no, or which
    """Return the metatools that were asked for.

    Raises:
        ValueError: There is none of that name.
    """
    known = (*METATOOL_NAMES, LEARNING)
    if isinstance(given, bool):
        return known if given else ()
    named = [given] if isinstance(given, str) else list(given)
    for name in named:
        if name not in known:
            meant = near_miss(name, known)
            raise ValueError(f"There is no metatool '{name}'." + (f" Did you mean '{meant}'?" if meant else f" Known: {', '.join(known)}."))
    return tuple(dict.fromkeys(named))


def tell_metatools(names: Sequence[str]) -> bool | list[str]:
    """Return which metatools there are as a setting says it: all, none, or their names."""
    return list(names) if 0 < len(names) <= len(METATOOL_NAMES) else bool(names)
