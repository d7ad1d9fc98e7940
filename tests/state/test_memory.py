from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from callyard import Store
from callyard.state.memory import MemoryStore
from callyard.testing import FakeClock
from callyard.testing.stores import StoreTests


class TestMemoryStore(StoreTests):
    clock = FakeClock()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Store]:
        yield MemoryStore(clock=self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_expired_keys_are_removed_by_a_put(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    await store.put("old", b"1", ttl=10)
    await store.acquire("old", ttl=10)
    await store.count("old", ttl=10)
    clock.advance(10)
    await store.put("new", b"2")

    assert list(vars(store)["_values"]) == ["new"]
    assert not vars(store)["_leases"]
    assert not vars(store)["_counters"]


async def test_beyond_its_size_the_oldest_of_what_is_kept_for_a_time_is_forgotten(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("for good", b"1234")
    for key in ("c", "b", "a"):
        await store.put(key, b"123", ttl=10)

    assert await store.keys("") == ["a", "b", "for good"]


async def test_the_last_value_is_kept_at_any_size(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("a", b"1", ttl=10)
    await store.put("b", b"1" * 100, ttl=10)

    assert await store.keys("") == ["b"]


async def test_a_deleted_value_makes_room(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("a", b"1" * 8, ttl=10)
    await store.delete("a")
    await store.put("b", b"1" * 8, ttl=10)
    await store.put("c", b"12", ttl=10)

    assert await store.keys("") == ["b", "c"]


async def test_a_topic_without_subscribers_is_forgotten(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    async with store.subscribe("a"):
        assert list(vars(store)["_subscriptions"]) == ["a"]

    assert not vars(store)["_subscriptions"]


async def test_one_owner_cannot_push_out_the_values_of_another(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("result/ada/r_1", b"123", ttl=10)
    for number in range(20):
        await store.put(f"result/ben/r_{number:02}", b"123", ttl=10)

    assert await store.get("result/ada/r_1") == b"123"
    assert await store.keys("result/ben/") == ["result/ben/r_18", "result/ben/r_19"]


async def test_an_expired_value_makes_room_before_a_live_one(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=100, clock=clock)
    await store.put("live/1", b"1" * 50, ttl=100)
    for number in range(50):
        await store.put(f"old/{number}", b"1", ttl=10)
    clock.advance(10)
    await store.put("live/2", b"1" * 50, ttl=100)

    assert await store.keys("") == ["live/1", "live/2"]


async def test_a_replaced_value_counts_once_and_is_the_newest(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    for _ in range(200):
        await store.put("a", b"1234", ttl=10)
    await store.put("b", b"1234", ttl=10)
    await store.put("a", b"1234", ttl=10)
    await store.put("c", b"1234", ttl=10)

    assert await store.keys("") == ["a", "c"]


async def test_room_comes_from_the_largest_folder_as_folders_grow_and_shrink(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=30, clock=clock)
    for owner, size in (("ada", 10), ("ben", 8), ("cyd", 6)):
        for number in range(2):
            await store.put(f"{owner}/{number}", b"1" * (size // 2), ttl=10)
    await store.delete("ada/1")
    await store.put("cyd/2", b"1" * 12, ttl=10)

    assert await store.keys("") == ["ada/0", "ben/1", "cyd/0", "cyd/1", "cyd/2"]


async def test_values_without_a_ttl_are_kept_however_full_the_store_is(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    for key in ("a", "b", "c"):
        await store.put(key, b"1" * 8)

    assert await store.keys("") == ["a", "b", "c"]
