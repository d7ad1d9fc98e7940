import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import pytest
from ticket_tools import Bench, ask, failure, made

import callyard.search
from callyard import ToolSpec, Yard
from callyard.metatools import catalogue as module
from callyard.search import Index, SearchSettings, StrategyError
from callyard.testing import FakeProvider

MANY = 200


class Watched(NamedTuple):
    """The indexes that were made, and the names of the tools that they took in."""

    indexes: list[Index]
    names: list[str]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Read one tool at a time, and note what is made and read."""
    found = Watched([], [])
    make = callyard.search.make_index

    def make_index(settings: SearchSettings | None = None) -> Index:
        index = make(settings)
        add = index.add

        def take(spec: ToolSpec) -> None:
            found.names.append(spec.name)
            add(spec)

        index.add = take
        found.indexes.append(index)
        return index

    monkeypatch.setattr(module, "_AT_ONCE", 1)
    monkeypatch.setattr(module, "make_index", make_index)
    return found


def some(count: int = MANY) -> list[Any]:
    return [made(f"note_{number}", f"Take note {number}.") for number in range(count)]


async def turns(until: "asyncio.Task[Any]") -> AsyncGenerator[int]:
    """Yield once in every turn of the loop until the task is done."""
    number = 0
    while not until.done():
        number += 1
        yield number
        await asyncio.sleep(0)  # a turn of the loop, not a wait


async def test_other_calls_are_answered_while_the_index_is_made(watched: Watched) -> None:
    answered = 0
    async with Yard(tools=[Bench(), *some()]) as yard:
        search = asyncio.create_task(ask(yard, "search_tools", query="take note 7"))
        async for _ in turns(search):
            answered += bool(watched.names) and (await yard.call("add", {"a": 1})).success
        found = await search

    assert answered > MANY / 2
    assert found["hits"][0]["signature"] == "note_7()"


async def test_all_who_search_meanwhile_wait_for_the_same_index(watched: Watched) -> None:
    async with Yard(tools=some()) as yard:
        found = await asyncio.gather(*(ask(yard, "search_tools", query=f"take note {number}") for number in (3, 4)))

    assert [data["hits"][0]["signature"] for data in found] == ["note_3()", "note_4()"]
    assert len(watched.indexes) == 1


async def test_a_change_while_the_index_is_built_is_not_lost(watched: Watched) -> None:
    provider = FakeProvider("other", some())
    async with Yard(providers=[provider]) as yard:
        search = asyncio.create_task(ask(yard, "search_tools", query="bake bread"))
        async for _ in turns(search):
            if watched.names:
                kept = some()[:-2]
                provider.change([*kept, made(f"note_{MANY - 2}", "Bake bread."), made("late", "Bake bread late.")])
                break
        changed = await search
        gone = await ask(yard, "search_tools", query=f"take note {MANY - 1}", limit=100)

    assert watched.names.count(f"note_{MANY - 2}") == 1
    assert sorted(hit["signature"] for hit in changed["hits"]) == ["late()", f"note_{MANY - 2}()"]
    assert f"note_{MANY - 1}()" not in [hit["signature"] for hit in gone["hits"]]


async def test_one_who_goes_away_does_not_end_what_others_wait_for(watched: Watched) -> None:
    async with Yard(tools=some()) as yard:
        first = asyncio.create_task(yard.call("search_tools", {"query": "take note 3"}))
        second = asyncio.create_task(ask(yard, "search_tools", query="take note 3"))
        async for _ in turns(second):
            if watched.names:
                first.cancel()
        found = await second

    assert first.cancelled()
    assert found["hits"]
    assert len(watched.indexes) == 1


async def test_a_yard_can_be_closed_while_the_index_is_made(watched: Watched) -> None:
    async with Yard(tools=some()) as yard:
        search = asyncio.create_task(yard.call("search_tools", {"query": "take note 3"}))
        async for _ in turns(search):
            if watched.names:
                break

    assert failure(await search).code == "cancelled"


async def test_an_index_that_could_not_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    make = callyard.search.make_index
    tries: list[object] = []

    def fail_once(settings: SearchSettings | None = None) -> Index:
        tries.append(settings)
        if len(tries) == 1:
            raise StrategyError("Not yet.")
        return make(settings)

    monkeypatch.setattr(module, "make_index", fail_once)
    async with Yard(tools=some(3)) as yard:
        failed = await yard.call("search_tools", {"query": "take note 1"})
        found = await ask(yard, "search_tools", query="take note 1")

    assert failure(failed).code == "internal_error"
    assert found["hits"][0]["signature"] == "note_1()"


async def test_long_lists_are_sealed_in_turns_with_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DIGESTS_AT_ONCE", 1)
    async with Yard(tools=[Bench(), *some()]) as yard:
        listing = asyncio.create_task(ask(yard, "list_tools", limit=1))
        seen = [turn async for turn in turns(listing)]
        first = await listing
        second = await ask(yard, "list_tools", limit=1, cursor=first["next_cursor"])

    assert len(seen) > MANY
    assert second["tools"] != first["tools"]
