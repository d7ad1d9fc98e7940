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


async def test_what_is_over_is_forgotten_when_something_else_is_put(clock: FakeClock) -> None:
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


async def test_what_was_put_last_is_kept_however_large(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("a", b"1", ttl=10)
    await store.put("b", b"1" * 100, ttl=10)

    assert await store.keys("") == ["b"]


async def test_what_is_deleted_makes_room(clock: FakeClock) -> None:
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
