"""A provider of what is ready-made: tools, resources and prompts that need not be read from functions."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from toolyard.prompts import Prompt
from toolyard.providers import Publish
from toolyard.resources import Resource
from toolyard.tools import Tool

__all__ = ["Given"]


class Given:
    """Publishes what it is given."""

    def __init__(self, name: str, tools: Sequence[Tool], *, resources: Sequence[Resource], prompts: Sequence[Prompt]) -> None:
        self.name = name
        self._tools = tools
        self._resources = resources
        self._prompts = prompts

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish it all."""
        publish(self._tools, resources=self._resources, prompts=self._prompts)
        yield
