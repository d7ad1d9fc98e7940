"""What the tests of agents share: a runtime that does what a test says.

The real SDKs are in `sdks`, in environments of their own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import pytest

from callyard.agents import StreamEvent, TurnRequest

collect_ignore = ["sdks"]
"""The tests of each runtime, in an environment that has its SDK; `test_sdks.py` runs them."""

Play = Callable[[TurnRequest], AsyncGenerator[StreamEvent]]


class PlayedRuntime:
    """A runtime whose turns are played by a function of the test."""

    name = "played"
    has_folder = True

    def __init__(self) -> None:
        self.play: Play = say_hello
        self.requests: list[TurnRequest] = []
        self.forgotten: list[str] = []
        self.ended = asyncio.Event()

    def check(self) -> None:
        """Be there."""

    def check_servers(self, names: Iterable[str]) -> None:
        """Take any."""

    async def forget(self, sdk_session_id: str) -> None:
        self.forgotten.append(sdk_session_id)

    async def run(self, request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        self.requests.append(request)
        try:
            async for event in self.play(request):
                yield event
        finally:
            self.ended.set()


async def say_hello(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
    from callyard.agents.events import TextDelta  # noqa: PLC0415 - pytest loads this file before it measures coverage

    await request.remember("sdk-1")
    yield TextDelta(text="Hello.")


@pytest.fixture
def runtime() -> Any:
    return PlayedRuntime()
