"""The provider of metatools: tools about tools, published like any others."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from toolyard.dispatch.tool import Tool
from toolyard.metatools import LEARNING
from toolyard.metatools.catalogue import Catalogue, PageCursors
from toolyard.metatools.chain import make_chain
from toolyard.metatools.describe import make_describe, make_examples
from toolyard.metatools.learned_output import Shapes
from toolyard.metatools.lists import make_lists
from toolyard.metatools.metatool import Subject
from toolyard.metatools.read_result import make_read
from toolyard.metatools.run import make_run
from toolyard.metatools.search import make_search
from toolyard.model.profile import METATOOLS, OTHER_NAMES
from toolyard.providers import Publish

__all__ = ["Metatools"]


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
        cursors = PageCursors(self._subject.signer)
        every: list[Any] = [
            make_search(catalogue, cursors),
            *make_describe(catalogue, shapes.of, limits=self._subject.limits),
            *make_run(self._subject),
            make_chain(self._subject),
            make_read(self._subject),
            make_examples(catalogue),
            *make_lists(catalogue, cursors),
        ]
        return [tool for tool in every if OTHER_NAMES.get(tool.spec.name, tool.spec.name) in self._names]
