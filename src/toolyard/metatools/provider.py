"""The provider of metatools: tools about tools, published like any others."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.chain import make_chain
from toolyard.metatools.cursors import Cursors
from toolyard.metatools.describing import make_describe, make_examples
from toolyard.metatools.listing import make_lists
from toolyard.metatools.reading import make_read
from toolyard.metatools.running import make_run
from toolyard.metatools.searching import make_search
from toolyard.metatools.shapes import Shapes
from toolyard.metatools.subject import Subject
from toolyard.profile import METATOOLS
from toolyard.providers import Publish
from toolyard.schema import near_miss
from toolyard.tools import Tool

__all__ = ["GUIDE", "LEARNING", "METATOOL_NAMES", "Metatools", "known_metatools", "tell_metatools"]

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

_OTHER_NAMES: Final = {"call_tool": "run_tool", "get_tool_schema": "describe_tool"}

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


class Metatools:
    """Publishes the metatools that are switched on."""

    name = METATOOLS

    def __init__(self, subject: Subject, names: Iterable[str]) -> None:
        self._subject = subject
        self._names = frozenset(names)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish, and follow what the yard's other tools are, while open."""
        catalogue, shapes = Catalogue(self._subject.registry, self._subject.search), Shapes()
        if LEARNING in self._names and "describe_tool" in self._names:
            self._subject.dispatcher.learn = shapes.learn
        try:
            publish(self._tools(catalogue, shapes))
            if "search_tools" in self._names:
                catalogue.open()
            yield
        finally:
            catalogue.close()

    def _tools(self, catalogue: Catalogue, shapes: Shapes) -> list[Tool]:
        cursors = Cursors(self._subject.seal)
        every: list[Any] = [
            make_search(catalogue, cursors),
            *make_describe(catalogue, shapes.of),
            *make_run(catalogue, repair=self._subject.limits.repair),
            make_chain(self._subject, catalogue),
            make_read(self._subject),
            make_examples(catalogue),
            *make_lists(catalogue, cursors),
        ]
        return [tool for tool in every if _OTHER_NAMES.get(tool.spec.name, tool.spec.name) in self._names]
