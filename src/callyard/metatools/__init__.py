"""Metatools: tools that find, describe, run and chain the other tools.

They are ordinary tools that call the dispatcher again; it does not know them.

Its files:

- `catalogue`: the tools of a yard as metatools search and page through them
- `chain`: the metatool `run_chain`, which calls its steps through the dispatcher, each with its own record
- `chain_plan`: the plan of a chain: its steps, parsed and checked as far as possible before the first one runs
- `code`: runs a program of an agent in a runtime
- `describe`: the metatools `describe_tool`, with its alias, and `list_tool_examples`
- `jobs`: the metatools `get_job`, `wait_job`, `cancel_job` and `list_jobs`, for calls in the background
- `learned_order`: the order of hits as it is learned from calls: counted in the store, in the background, and read by
  searches
- `learned_output`: output schemas that are learned from the results of tools without one: names and types, never
  values
- `lists`: the metatools `list_tools`, `list_namespaces`, `list_toolsets` and `describe_toolset`, with their pages
- `metatool`: how a metatool is built, and the parts of a yard that metatools use
- `provider`: the provider of metatools, which publishes them like any other tools
- `read_result`: the metatool `read_result`, which returns a stored result in parts
- `run`: the metatool `run_tool`, with its alias `call_tool`, which calls one tool through the dispatcher
- `search`: the metatool `search_tools`, which returns signatures of the tools that fit a query
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from callyard.dispatch.registry import Suggestions
from callyard.model.names import did_you_mean

__all__ = [
    "LEARNING",
    "METATOOL_NAMES",
    "SUGGESTIONS",
    "metatool_instructions",
    "metatools_setting",
    "select_metatools",
]


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
    "get_job",
    "wait_job",
    "cancel_job",
    "list_jobs",
)
"""Every metatool; the listed ones come first."""
SUGGESTIONS: Final = Suggestions(
    search="search_tools(query=…)",
    describe="describe_tool(tool_id={!r})",
    read="read_result(handle={!r})",
    wait="wait_job(job_id={!r})",
    wait_unlisted="run_tool(tool_id='wait_job', args={{'job_id': {!r}}})",
)
"""The actions that the core suggests to callers whose profile has the metatool."""
LEARNING: Final = "learning"
"""Switched like a metatool, though it is none: whether output schemas are learned from results."""


def metatool_instructions(listed: Collection[str]) -> str:
    """Return three sentences for a client about working here; `listed` are the metatools that it sees."""
    reading = "read parts of it with read_result, or " if "read_result" in listed else ""
    passing = 'pass it on as an argument, {"$ref": "r_1"}'
    sentences = (
        _how_to_call(listed),
        f"A long result is answered as a handle such as 'r_1': {reading}{passing}.",
        "A failure says in 'hint' and 'next_actions' what to do.",
    )
    return " ".join(sentences)


def _how_to_call(listed: Collection[str]) -> str:
    several = "run_chain(steps), where later steps take earlier results"
    if not listed:
        return "Call each tool by its name."
    steps = (
        ["find one with search_tools(queries), a query for each step of your task"] if "search_tools" in listed else []
    )
    if "describe_tool" in listed:
        steps.append("describe_tool(tool_id) shows its schema")
    if "run_tool" in listed:
        steps.append("run_tool(tool_id, args) calls it")
    else:
        steps.append("call it as a step of a chain" if "run_chain" in listed else "call it by its name")
    if "run_chain" in listed:
        steps.append(f"several go into {several}")
    return f"Most tools here are not listed: {', '.join(steps)}."


def select_metatools(selection: bool | Iterable[str]) -> tuple[str, ...]:  # noqa: FBT001 - all, none, or their names
    """Return the names of the selected metatools.

    Raises:
        ValueError: There is none of that name.
    """
    known = (*METATOOL_NAMES, LEARNING)
    if isinstance(selection, bool):
        return known if selection else ()
    names = [selection] if isinstance(selection, str) else list(selection)
    for name in names:
        if name not in known:
            suggestion = did_you_mean(name, known) or f" Known: {', '.join(known)}."
            raise ValueError(f"There is no metatool '{name}'.{suggestion}")
    return tuple(dict.fromkeys(names))


def metatools_setting(names: Sequence[str]) -> bool | list[str]:
    """Return the setting that selects these metatools: all, none, or their names."""
    return list(names) if 0 < len(names) <= len(METATOOL_NAMES) else bool(names)
