"""Metatools: tools about tools, which find, describe, run and chain the others.

They are ordinary tools that re-enter the funnel; the dispatcher does not know them.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from toolyard.model.names import did_you_mean

__all__ = ["LEARNING", "METATOOL_NAMES", "guide", "known_metatools", "tell_metatools"]


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


def guide(listed: Collection[str]) -> str:
    """Return what a client is told of the way from a wish to a call by those metatools that it sees; nothing, if it sees none."""
    if not listed:
        return ""
    parts = [
        "Most tools here are not listed.",
        "Find one with search_tools(query): say what you want to do." if "search_tools" in listed else "",
        _tell_describing(listed),
        _tell_calling(listed),
        f'A long result is answered as a handle such as \'r_1\': {_tell_reading(listed)}pass it on as an argument, {{"$ref": "r_1"}}.',
        "A failure says in 'hint' and 'next_actions' what to do.",
    ]
    return " ".join(part for part in parts if part)


def _tell_describing(listed: Collection[str]) -> str:
    if "describe_tool" not in listed:
        return ""
    if "search_tools" not in listed:
        return "describe_tool(tool_id) shows the schema of one."
    return "Its signature is often all you need; otherwise describe_tool(tool_id) shows the schema."


def _tell_calling(listed: Collection[str]) -> str:
    it = "it" if "search_tools" in listed else "one"
    several = "run_chain(steps), where later steps take earlier results."
    if "run_tool" not in listed:
        return f"Call {it} as a step of {several}" if "run_chain" in listed else f"Call {it} by its name."
    return f"Call {it} with run_tool(tool_id, args)" + (f", or several in one go with {several}" if "run_chain" in listed else ".")


def _tell_reading(listed: Collection[str]) -> str:
    return "read parts of it with read_result, or " if "read_result" in listed else ""


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
            suggestion = did_you_mean(name, known) or f" Known: {', '.join(known)}."
            raise ValueError(f"There is no metatool '{name}'.{suggestion}")
    return tuple(dict.fromkeys(named))


def tell_metatools(names: Sequence[str]) -> bool | list[str]:
    """Return which metatools there are as a setting says it: all, none, or their names."""
    return list(names) if 0 < len(names) <= len(METATOOL_NAMES) else bool(names)
