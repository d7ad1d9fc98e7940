"""The provider of metatools, which publishes them like any other tools."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from callyard.dispatch.tool import Tool
from callyard.metatools import LEARNING
from callyard.metatools.catalogue import Catalogue, PageCursors
from callyard.metatools.chain import chain_metatool
from callyard.metatools.describe import describe_metatools, examples_metatool
from callyard.metatools.jobs import job_metatools
from callyard.metatools.learned_order import LearnedOrders
from callyard.metatools.learned_output import LearnedOutputs
from callyard.metatools.lists import list_metatools
from callyard.metatools.metatool import YardParts
from callyard.metatools.read_result import read_metatool
from callyard.metatools.run import run_metatools
from callyard.metatools.search import search_metatool
from callyard.model.profile import METATOOLS
from callyard.providers import Publish

__all__ = ["Metatools"]


class Metatools:
    """Publishes the metatools that are switched on."""

    name = METATOOLS

    def __init__(self, yard: YardParts, names: Iterable[str]) -> None:
        self._yard = yard
        self._names = frozenset(names)
        self.catalogue: Catalogue | None = None
        """The catalogue that search uses, while the provider is open."""

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the metatools, and follow the registry while open."""
        self.catalogue, outputs = Catalogue(self._yard.registry, self._yard.search), LearnedOutputs()
        catalogue = self.catalogue
        async with AsyncExitStack() as stack:
            stack.callback(catalogue.close)
            if LEARNING in self._names and "describe_tool" in self._names:
                self._yard.dispatcher.observe(outputs)
                if self._yard.has_store:
                    await stack.enter_async_context(outputs.kept_in(self._yard.store))
            orders = None
            if "search_tools" in self._names:
                catalogue.open()
                if catalogue.settings.learn:
                    orders = LearnedOrders(self._yard.store)
                    stack.push_async_callback(orders.close)
                    stack.callback(self._yard.dispatcher.observe(orders))
            publish([*self._tools(catalogue, outputs, orders), *await self._code(stack)])
            yield

    async def _code(self, stack: AsyncExitStack) -> list[Tool]:
        """Return `execute_code` if it is switched on; its runtime lives as long as the stack."""
        settings = self._yard.runtime
        if not settings.enabled:
            return []
        from callyard.metatools.code import open_code_metatool  # noqa: PLC0415 - runtimes are off by default

        return [await stack.enter_async_context(open_code_metatool(self._yard, settings))]

    def _tools(self, catalogue: Catalogue, outputs: LearnedOutputs, orders: LearnedOrders | None) -> list[Tool]:
        cursors = PageCursors(self._yard.signer)
        tools: list[Tool] = [
            search_metatool(catalogue, cursors, orders),
            *describe_metatools(catalogue, outputs.of, yard=self._yard),
            *run_metatools(self._yard),
            chain_metatool(self._yard),
            read_metatool(self._yard),
            examples_metatool(catalogue),
            *list_metatools(catalogue, cursors),
            *job_metatools(self._yard),
        ]
        return [tool for tool in tools if (tool.spec.metatool.alias_of or tool.spec.name) in self._names]
