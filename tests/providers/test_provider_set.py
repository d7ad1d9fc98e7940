"""Providers of an open yard come and go one by one, and what they want to be told is told."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from callyard import Yard, tool
from callyard.providers import Publish
from callyard.providers.functions import Functions


@tool(operation="query")
def greet() -> str:
    """Say hello."""
    return "Hello."


class Late:
    """A provider that publishes when it is let, and has something to say."""

    instructions = "Greet first."

    def __init__(self, name: str = "late") -> None:
        self.name = name
        self.let = asyncio.Event()
        self.closed = False

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish once it is let."""
        task = asyncio.create_task(self._publish(publish))
        try:
            yield
        finally:
            task.cancel()
            self.closed = True

    async def _publish(self, publish: Publish) -> None:
        await self.let.wait()
        async with Functions(self.name, [greet]).open(publish):
            pass

    async def wait_ready(self) -> None:
        """Wait until it is let."""
        await self.let.wait()


async def test_a_provider_can_join_and_leave_an_open_yard() -> None:
    late = Late()
    late.let.set()
    async with Yard("busy", tools=[]) as yard:
        await yard.providers.add(late)
        await yard.providers.wait_ready(1)
        await asyncio.sleep(0)  # a turn of the loop, not a wait

        assert yard.providers.get("late") is late
        assert (await yard.call("greet")).data == "Hello."
        await yard.providers.remove("late")
        await yard.providers.remove("late")
        assert (late.closed, yard.registry.get("greet"), yard.providers.get("late")) == (True, None, None)


async def test_two_of_one_name_are_refused_and_the_first_stays() -> None:
    async with Yard("busy") as yard:
        await yard.providers.add(Late())
        with pytest.raises(ValueError, match="named 'late'"):
            await yard.providers.add(Late())

        assert [provider.name for provider in yard.providers] == ["metatools", "late"]


async def test_two_of_one_name_that_come_at_once_are_refused_and_the_first_stays() -> None:
    async with Yard("busy") as yard:
        first, second = await asyncio.gather(
            yard.providers.add(Late()), yard.providers.add(Late()), return_exceptions=True
        )

        assert (first, isinstance(second, ValueError)) == (None, True)


async def test_one_that_cannot_be_opened_leaves_nothing_behind() -> None:
    class Broken(Late):
        """A provider that cannot be opened."""

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            """Publish, and fail."""
            async with Functions(self.name, [greet]).open(publish):
                raise ConnectionError("No.")
            yield

    async with Yard("busy") as yard:
        with pytest.raises(ConnectionError):
            await yard.providers.add(Broken())

        assert (yard.providers.get("late"), yard.registry.get("greet")) == (None, None)


async def test_waiting_for_those_who_publish_later_has_an_end() -> None:
    late = Late()
    async with Yard("busy") as yard:
        await yard.providers.add(late)
        await yard.providers.wait_ready(0.01)

        assert yard.registry.get("greet") is None


async def test_a_yard_that_knows_what_one_offers_waits_for_no_other() -> None:
    known, unknown = Late("known"), Late("unknown")
    known.let.set()
    async with (
        asyncio.timeout(1),
        Yard("busy", providers=[unknown, known]) as yard,
    ):  # alone the unknown one would take longer
        assert yard.providers.get("unknown") is unknown


async def test_those_that_take_a_while_to_disconnect_do_so_at_the_same_time_and_none_keeps_another_from_it() -> None:
    together = asyncio.Barrier(2)

    class Slow(Late):
        """A provider that disconnects only while another does."""

        async def disconnect(self) -> None:
            """Wait for the other."""
            await together.wait()
            if self.name == "first":
                raise ConnectionError("It hung up.")

    first, second = Slow("first"), Slow("second")
    async with asyncio.timeout(60):
        async with Yard("busy") as yard:
            await yard.providers.add(first)
            await yard.providers.add(second)

    assert (first.closed, second.closed) == (True, True)


async def test_instructions_of_providers_reach_clients() -> None:
    late = Late()
    late.let.set()
    async with Yard("busy", instructions="Be quick.", providers=[late]) as yard:
        assert yard.instructions_for(yard.profile) == "Be quick.\n\nAbout 'late': Greet first."


async def test_a_yard_takes_more_providers_until_it_is_open() -> None:
    late = Late()
    late.let.set()
    yard = Yard("busy", providers=[late])
    with pytest.raises(ValueError, match="named 'late'"):
        yard.configure(origins={}, limits={}, providers=[Late()])
    yard.configure(origins={}, limits={}, providers=[Functions("more", [greet])])
    async with yard:
        assert yard.providers.get("more") is not None


async def test_waiting_ends_when_it_is_enough_and_tells_for_whom_it_waited() -> None:
    quick, slow = Late("quick"), Late("slow")
    notified: list[list[str]] = []

    def tell(names: Sequence[str]) -> None:
        notified.append([*names])
        quick.let.set()

    async with Yard("busy") as yard:
        await yard.providers.add(quick)
        await yard.providers.add(slow)
        await yard.providers.wait_ready(60, enough=quick.let.is_set, tell=tell)

        assert notified == [["quick", "slow"]]
