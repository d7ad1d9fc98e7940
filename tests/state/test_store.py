import pytest

from toolyard import Store
from toolyard.state.store import MemoryStore
from toolyard.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return MemoryStore(clock=clock)


async def test_what_is_put_can_be_got(store: Store) -> None:
    await store.put("a", b"1")

    assert await store.get("a") == b"1"


async def test_what_was_never_put_is_nothing(store: Store) -> None:
    assert await store.get("a") is None


async def test_what_is_put_again_is_replaced(store: Store) -> None:
    await store.put("a", b"1")
    await store.put("a", b"2")

    assert await store.get("a") == b"2"


async def test_what_is_put_again_loses_its_old_time(store: Store, clock: FakeClock) -> None:
    await store.put("a", b"1", ttl=10)
    await store.put("a", b"2")
    clock.advance(11)

    assert await store.get("a") == b"2"


async def test_what_has_a_time_is_gone_when_it_is_over(store: Store, clock: FakeClock) -> None:
    await store.put("a", b"1", ttl=10)
    clock.advance(9.9)
    assert await store.get("a") == b"1"

    clock.advance(0.1)
    assert await store.get("a") is None
    assert await store.keys("") == []


async def test_what_is_over_is_forgotten_when_something_else_is_put(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    await store.put("old", b"1", ttl=10)
    clock.advance(10)
    await store.put("new", b"2")

    assert list(vars(store)["_values"]) == ["new"]


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(store: Store) -> None:
    await store.put("a", b"1")
    await store.delete("a")
    await store.delete("a")

    assert await store.get("a") is None


async def test_keys_come_by_their_beginning_and_oldest_first(store: Store) -> None:
    for key in ("b/1", "a/2", "a/1", "ab"):
        await store.put(key, b"")
    await store.put("a/2", b"again")

    assert await store.keys("a/") == ["a/1", "a/2"]
    assert await store.keys("") == ["b/1", "a/1", "ab", "a/2"]


async def test_every_counter_counts_from_one_by_itself(store: Store) -> None:
    assert [await store.count("a"), await store.count("a"), await store.count("b")] == [1, 2, 1]


async def test_a_counter_with_a_time_starts_anew_when_it_was_not_used_for_so_long(store: Store, clock: FakeClock) -> None:
    await store.count("a", ttl=10)
    clock.advance(9)
    assert await store.count("a", ttl=10) == 2

    clock.advance(10)
    assert await store.count("a", ttl=10) == 1


async def test_a_counter_is_not_what_is_kept_under_its_name(store: Store) -> None:
    await store.put("a", b"1")

    assert await store.count("a") == 1
    assert await store.get("a") == b"1"
    assert await store.keys("a") == ["a"]


async def test_beyond_its_size_the_oldest_of_what_is_kept_for_a_time_is_forgotten(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("for good", b"1234")
    for key in ("a", "b", "c"):
        await store.put(key, b"123", ttl=10)

    assert await store.keys("") == ["for good", "b", "c"]


async def test_one_owner_cannot_push_out_the_values_of_another(clock: FakeClock) -> None:
    store = MemoryStore(max_bytes=10, clock=clock)
    await store.put("result/ada/r_1", b"123", ttl=10)
    for number in range(20):
        await store.put(f"result/ben/r_{number}", b"123", ttl=10)

    assert await store.get("result/ada/r_1") == b"123"
    assert await store.keys("result/ben/") == ["result/ben/r_18", "result/ben/r_19"]


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
