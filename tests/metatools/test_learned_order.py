"""LearnedOrders: which hits of a search are called after it, and how that orders near ties."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ticket_tools import ask, failure, made

from callyard import Caller, Profile, Tool, Toolset, Yard
from callyard.metatools import learned_order
from callyard.metatools.learned_order import LearnedOrders
from callyard.search import SearchSettings
from callyard.search.learned import Uses
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError

QUERY = "archive the old orders"
TWINS = ("alpha_archive_orders", "beta_archive_orders", "gamma_archive_orders")


def twins() -> list[Tool]:
    """Return three tools that fit the query equally well, and one that fits it less."""
    tools = [made(name, "Archive the old orders.") for name in TWINS]
    return [*tools, made("list_orders", "List the orders of a customer, the newest first.")]


async def names(yard: Yard, caller: Caller | None = None, /, **arguments: Any) -> list[str]:
    """Return the names of a search's hits once everything that was counted is stored."""
    given = {"query": QUERY, **arguments}
    if "queries" in given:
        del given["query"]
    answer = await yard.call("search_tools", given, caller=caller)
    assert answer.success, answer.error
    return [hit["signature"].partition("(")[0] for hit in answer.data["hits"]]


async def times(store: MemoryStore, tool: str) -> int:
    """Return how often a tool is counted for a word of the query."""
    value = await store.get(learned_order._key("order"))  # pyright: ignore[reportPrivateUsage] - to read what is stored
    return msgspec.msgpack.decode(value, type=Uses).get("order", {}).get(tool, 0) if value else 0


async def call_after_search(yard: Yard, store: MemoryStore, tool: str) -> None:
    """Search, call a tool, and wait until it is counted."""
    before = await times(store, tool)
    await names(yard)
    assert (await yard.call(tool)).success
    await counted(store, tool, before + 1)


async def counted(store: MemoryStore, tool: str, wanted: int) -> None:
    async with asyncio.timeout(60):
        while await times(store, tool) < wanted:  # noqa: ASYNC110 - a write in the background tells nobody
            await asyncio.sleep(0.01)


async def test_near_ties_are_ordered_by_use_and_other_hits_stay() -> None:
    store = MemoryStore()
    async with Yard(tools=twins(), store=store) as yard:
        before = await names(yard)
        await call_after_search(yard, store, "list_orders")
        unchanged = await names(yard)
        await call_after_search(yard, store, TWINS[2])
        after = await names(yard)
        several = await names(yard, queries=[QUERY, "list orders"])

    assert before == unchanged == [*TWINS, "list_orders"]
    assert after == [TWINS[2], TWINS[0], TWINS[1], "list_orders"]
    assert several.index(TWINS[2]) < several.index(TWINS[0])


@pytest.mark.parametrize(
    "call",
    [
        {"name": "run_tool", "arguments": {"tool_id": TWINS[1]}},
        {"name": "run_chain", "arguments": {"steps": [{"tool_id": TWINS[1]}]}},
    ],
    ids=["run_tool", "run_chain"],
)
async def test_a_call_inside_another_counts_for_its_own_tool(call: dict[str, Any]) -> None:
    store = MemoryStore()
    async with Yard(tools=twins(), store=store) as yard:
        await names(yard, queries=[QUERY, "list orders"])
        answer = await yard.call(call["name"], call["arguments"])
        assert answer.success, answer.error
        await counted(store, TWINS[1], 1)

        assert (await names(yard))[0] == TWINS[1]


async def test_calls_of_others_and_failed_ones_and_tools_that_were_not_found_count_nothing() -> None:
    store = MemoryStore()
    async with Yard(tools=[*twins(), made("weather", "Say the weather.")], store=store) as yard:
        await names(yard)
        await yard.call(TWINS[1], caller=Caller(identity="somebody else"))
        await yard.call(TWINS[1], {"unknown": 1})
        await yard.call("weather")
    assert await store.keys("learned_order/") == []


async def test_a_tool_that_a_profile_hides_never_appears_and_the_order_is_of_those_that_it_shows() -> None:
    store = MemoryStore()
    shown = Profile(name="shown", toolsets=(Toolset(name="t", names=(*TWINS[:2], "search_tools")),))
    async with Yard(tools=twins(), store=store, profiles=[shown]) as yard:
        await call_after_search(yard, store, TWINS[2])

        assert await names(yard, Caller(profile=shown)) == [TWINS[0], TWINS[1]]


async def test_two_yards_on_one_store_share_what_they_learned_and_a_later_one_has_it(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    async with (
        Yard(tools=twins(), store=SqliteStore(file)) as one,
        Yard(tools=twins(), store=SqliteStore(file)) as two,
    ):
        for yard, tool in ((one, TWINS[1]), (two, TWINS[2]), (one, TWINS[2])):
            await names(yard)
            assert (await yard.call(tool)).success
    secret = "'7f3a-secret' and ada@example.com of invoice INV-9917"  # noqa: S105 - it is none
    async with Yard(tools=twins(), store=SqliteStore(file)) as third:
        assert await names(third) == [TWINS[2], TWINS[1], TWINS[0], "list_orders"]
        await names(third, query=f"archiving orders {secret}")
        assert (await third.call(TWINS[0])).success

    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240 - nothing else runs here
    assert b"learned_order/" in written
    assert b"archiv" in written
    for text in ("archiving", "secret", "7f3a", "example", "9917"):
        assert text.encode() not in written.lower()


async def test_a_cursor_is_stale_once_the_order_has_changed_and_only_then() -> None:
    store = MemoryStore()
    async with Yard(tools=twins(), store=store) as yard:
        cursor = (await ask(yard, "search_tools", query=QUERY, limit=1))["next_cursor"]
        page = {"query": QUERY, "limit": 1, "cursor": cursor}
        await call_after_search(yard, store, TWINS[0])  # the first one already
        again = await yard.call("search_tools", page)
        await call_after_search(yard, store, TWINS[2])
        await call_after_search(yard, store, TWINS[2])
        stale = await yard.call("search_tools", page)
        pages, cursor = list[str](), None
        while not pages or cursor:
            data = await ask(yard, "search_tools", query=QUERY, limit=1, **({"cursor": cursor} if cursor else {}))
            pages += [hit["signature"].partition("(")[0] for hit in data["hits"]]
            cursor = data.get("next_cursor")

    assert again.success
    assert failure(stale).details["issues"][0]["code"] == "stale_cursor"
    assert pages == [TWINS[2], TWINS[0], TWINS[1], "list_orders"]


async def test_switched_off_nothing_is_counted_and_nothing_reordered() -> None:
    store = MemoryStore()
    async with Yard(tools=twins(), store=store) as yard:
        await call_after_search(yard, store, TWINS[2])
    kept = [(key, await store.get(key)) for key in await store.keys("learned_order/")]
    async with Yard(tools=twins(), store=store, search=SearchSettings(learn=False)) as yard:
        order = await names(yard)
        await yard.call(TWINS[1])

    assert order == [*TWINS, "list_orders"]
    assert [(key, await store.get(key)) for key in await store.keys("learned_order/")] == kept


async def test_without_a_store_it_is_learned_until_the_yard_closes() -> None:
    async with Yard(tools=twins()) as yard:
        await names(yard)
        await yard.call(TWINS[2])
        async with asyncio.timeout(60):
            while (await names(yard))[0] != TWINS[2]:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)


class Sick(MemoryStore):
    """A store that cannot read or write counts of use, or hangs, and leaves the rest alone."""

    hangs = False

    async def get(self, key: str) -> bytes | None:
        if key.startswith("learned_order/"):
            if self.hangs:
                await asyncio.Event().wait()
            raise StoreUnavailableError("It is full.", reason="full")
        return await super().get(key)

    async def get_many(self, keys: Any) -> list[bytes | None]:
        return [await self.get(key) for key in keys]


async def test_a_store_that_fails_or_hangs_changes_nothing_but_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_order, "_WRITE_S", 0.1)
    store = Sick()
    async with Yard(tools=twins(), store=store) as yard:
        failed = await names(yard)
        assert (await yard.call(TWINS[2])).success
    store.hangs = True
    async with Yard(tools=twins(), store=store) as yard:
        hung = await names(yard)
        assert (await yard.call(TWINS[2])).success

    assert failed == hung == [*TWINS, "list_orders"]


def call_of(tool: str, owner: Caller) -> Any:
    """Return what an observer reads of a finished call."""

    class Found:
        caller = owner
        spec = made(tool).spec
        request = type("Request", (), {"kind": "tool"})
        error = None

    return Found


async def test_memory_and_the_store_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_order, "_KEYS", 2)
    monkeypatch.setattr(learned_order, "_CALLERS", 3)
    store = MemoryStore()
    orders = LearnedOrders(store)
    for number in range(200):
        caller = Caller(identity=str(number % 10))
        word = "".join(chr(ord("a") + int(digit)) for digit in f"{number:03}")
        orders.searched(caller.owner, [("t", [f"q{word}q"])])
        found = call_of("t", caller)
        orders.finished(found, found, found)
        orders.finished(found, found, found)  # counts once for a search
    await orders.close()

    assert len(orders._searches) == 3  # pyright: ignore[reportPrivateUsage] - what is bounded
    keys = await store.keys("learned_order/")
    assert len(keys) == 2
    sizes = [len(value or b"") for value in await store.get_many(keys)]
    assert max(sizes) < 400


async def test_a_search_of_long_ago_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_order, "_SEARCH_S", -1.0)
    store, caller = MemoryStore(), Caller()
    orders = LearnedOrders(store)
    orders.searched(caller.owner, [("t", ["archive orders"])])
    found = call_of("t", caller)
    orders.finished(found, found, found)
    await orders.close()

    assert await store.keys("learned_order/") == []


class Contested(MemoryStore):
    """A store to which another server always writes first."""

    async def compare_and_set(self, key: str, expected: bytes | None, value: bytes, **_: Any) -> bool:
        return False


async def test_counts_that_others_always_beat_are_given_up_and_unreadable_ones_are_as_none() -> None:
    store, caller = Contested(), Caller()
    orders = LearnedOrders(store)
    orders.searched(caller.owner, [("t", ["archive"])])
    found = call_of("t", caller)
    orders.finished(found, found, found)
    await orders.close()
    await store.put(learned_order._key("archiv"), b"another version")  # pyright: ignore[reportPrivateUsage] - to spoil it

    assert await LearnedOrders(store).order(["archive"]) is None
