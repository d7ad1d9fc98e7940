"""The test suite that every store passes, Callyard's own and yours.

It needs no pytest itself: the tests are async methods, which pytest runs with pytest-asyncio in its mode 'auto'.
"""

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

from callyard.state.store import Lease, Store

__all__ = ["StoreTests"]

_MESSAGE_S = 10.0
"""How long a message may take before a test fails."""


class StoreTests(ABC):
    """The tests of one kind of store; a subclass named `Test…` says how to connect to a new, empty one."""

    @abstractmethod
    def connect(self) -> AbstractAsyncContextManager[Store]:
        """Return a context with a new, empty store."""

    @abstractmethod
    async def advance(self, seconds: float) -> None:
        """Let time pass for the store: advance its clock, or else sleep."""

    async def test_a_value_that_was_put_can_be_got(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"\x00\xff")

            assert await store.get("a") == b"\x00\xff"
            assert await store.get("b") is None

    async def test_many_values_can_be_put_and_got_at_once(self) -> None:
        async with self.connect() as store:
            await store.put("a/1", b"old")
            await store.put_many({"a/1": b"1", "b/1": b"2", "a/2": b""}, ttl=2)

            assert await store.get_many(["a/2", "never", "b/1", "a/1"]) == [b"", None, b"2", b"1"]
            assert await store.keys("") == ["a/1", "a/2", "b/1"]
            assert await store.get_many([]) == []
            await store.put_many({})

            await self.advance(2.1)
            assert await store.get_many(["a/1", "b/1"]) == [None, None]

    async def test_a_durable_write_is_a_write(self) -> None:
        async with self.connect() as store:
            assert await store.compare_and_set("a", None, b"1", durable=True)
            assert not await store.compare_and_set("a", None, b"2", durable=True)

            assert await store.get("a") == b"1"

    async def test_an_empty_value_is_a_value(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"")

            assert await store.get("a") == b""
            assert await store.keys("") == ["a"]

    async def test_a_value_that_is_put_again_is_replaced_with_its_ttl(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"1", ttl=2)
            await store.put("a", b"2")
            await self.advance(3)

            assert await store.get("a") == b"2"

    async def test_a_value_expires_after_its_ttl(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"1", ttl=2)
            assert await store.get("a") == b"1"

            await self.advance(2.1)
            assert await store.get("a") is None
            assert await store.keys("") == []

    async def test_a_deleted_value_is_gone_and_may_be_deleted_again(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"1")
            await store.delete("a")
            await store.delete("a")

            assert await store.get("a") is None

    async def test_compare_and_set_changes_only_the_expected_value(self) -> None:
        async with self.connect() as store:
            assert not await store.compare_and_set("a", b"0", b"1")
            assert await store.compare_and_set("a", None, b"1")
            assert not await store.compare_and_set("a", None, b"2")
            assert not await store.compare_and_set("a", b"0", b"2")
            assert await store.compare_and_set("a", b"1", b"3")

            assert await store.get("a") == b"3"

    async def test_compare_and_set_takes_an_expired_value_for_none(self) -> None:
        async with self.connect() as store:
            assert await store.compare_and_set("a", None, b"1", ttl=2)
            await self.advance(2.1)

            assert not await store.compare_and_set("a", b"1", b"2")
            assert await store.compare_and_set("a", None, b"2")

    async def test_of_many_that_compare_and_set_at_once_one_succeeds(self) -> None:
        async with self.connect() as store:
            results = await asyncio.gather(
                *(store.compare_and_set("a", None, str(number).encode()) for number in range(20))
            )

            assert sum(results) == 1
            assert await store.get("a") == str(results.index(True)).encode()

    async def test_keys_come_by_prefix_in_code_point_order(self) -> None:
        async with self.connect() as store:
            for key in ("b/1", "a/2", "a/10", "ab", "a/é", "a/_", "a/%", "A/1", "a/\U0001f600", "a/\uffee"):
                await store.put(key, b"")

            assert await store.keys("a/") == ["a/%", "a/10", "a/2", "a/_", "a/é", "a/\uffee", "a/\U0001f600"]
            assert await store.keys("a/_") == ["a/_"]
            assert await store.keys("none") == []
            assert len(await store.keys("")) == 10

    async def test_the_last_key_is_the_cursor_of_the_next_page(self) -> None:
        async with self.connect() as store:
            names = [f"k/{number:03}" for number in range(25)]
            for name in reversed(names):
                await store.put(name, b"")
            await store.put("l", b"")

            found: list[str] = []
            while page := await store.keys("k/", after=found[-1] if found else "", limit=10):
                assert len(page) <= 10
                found += page
                await store.delete(page[-1])  # a cursor need not exist any more

            assert found == names

    async def test_many_keys_stay_in_order_while_others_come_and_go(self) -> None:
        async with self.connect() as store:
            names = [f"k/{number * 7919 % 1500:04}" for number in range(1500)]
            for name in names:
                await store.put(name, b"")
            for name in names[::3]:
                await store.delete(name)

            left = sorted(set(names) - set(names[::3]))
            assert await store.keys("k/", limit=2000) == left
            assert await store.keys("k/", after="k/0700", limit=5) == [key for key in left if key > "k/0700"][:5]
            assert await store.keys("k/14", limit=2000) == [key for key in left if key.startswith("k/14")]

    async def test_a_cursor_may_be_outside_of_the_prefix(self) -> None:
        async with self.connect() as store:
            for key in ("a/1", "b/1", "b/2", "c/1"):
                await store.put(key, b"")

            assert await store.keys("b/", after="a/1") == ["b/1", "b/2"]
            assert await store.keys("b/", after="b") == ["b/1", "b/2"]
            assert await store.keys("b/", after="c/1") == []
            assert await store.keys("b/", limit=0) == []

    async def test_many_values_and_counters_expire_at_the_same_time(self) -> None:
        async with self.connect() as store:
            names = [f"k/{number:02}" for number in range(50)]
            for name in names:
                await store.put(name, b"1", ttl=2)
                await store.count(name, ttl=2)
            await self.advance(2.1)

            assert await store.count(names[-1]) == 1
            assert await store.compare_and_set(names[-1], None, b"2")
            assert await store.keys("k/") == [names[-1]]
            assert [name for name in names if await store.get(name)] == [names[-1]]
            assert [name for name in names if await store.count(name, by=0)] == [names[-1]]

    async def test_a_value_that_expires_later_than_before_stays(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"1", ttl=2)
            await store.put("a", b"2", ttl=10)
            await store.put("b", b"1", ttl=10)
            await store.put("b", b"2", ttl=2)
            await self.advance(2.1)

            assert await store.keys("") == ["a"]

    async def test_a_counter_adds_up_and_can_be_read(self) -> None:
        async with self.connect() as store:
            assert [await store.count("a"), await store.count("a", by=5), await store.count("b")] == [1, 6, 1]
            assert await store.count("a", by=0) == 6
            assert await store.count("never", by=0) == 0
            assert await store.count("a", by=-2) == 4

    async def test_a_counter_loses_no_addition(self) -> None:
        async with self.connect() as store:
            numbers = await asyncio.gather(*(store.count("a") for _ in range(50)))

            assert sorted(numbers) == list(range(1, 51))

    async def test_a_counter_starts_anew_after_its_ttl_without_an_addition(self) -> None:
        async with self.connect() as store:
            await store.count("a", ttl=3)
            await self.advance(2)
            assert await store.count("a", ttl=3) == 2
            await self.advance(2)
            assert await store.count("a", by=0, ttl=100) == 2

            await self.advance(1.1)  # reading it does not keep it
            assert await store.count("a", by=0) == 0
            assert await store.count("a", ttl=3) == 1

    async def test_tokens_are_taken_from_a_bucket_until_it_is_empty(self) -> None:
        async with self.connect() as store:
            taken = await asyncio.gather(*(store.take_tokens("a/1", 2, per_s=0.01, burst=5) for _ in range(4)))
            assert sorted(tokens for tokens, _ in taken) == [0, 1, 2, 2]
            assert all(0 < wait <= 100 for tokens, wait in taken if tokens < 2)
            assert (await store.take_tokens("a/2", 9, per_s=0.01, burst=5))[0] == 5

            await self.advance(500.1)
            assert (await store.take_tokens("a/1", 3, per_s=0.01, burst=5)) == (3, 0)

    async def test_values_counters_and_leases_of_one_key_are_separate(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"1")
            assert await store.count("a") == 1
            assert await store.acquire("a", ttl=10) is not None
            await store.delete("a")

            assert await store.count("a") == 2
            assert await store.acquire("a", ttl=10) is None
            assert await store.keys("") == []

    async def test_one_at_a_time_holds_a_lease(self) -> None:
        async with self.connect() as store:
            leases = await asyncio.gather(*(store.acquire("a", ttl=10) for _ in range(10)))

            assert sum(lease is not None for lease in leases) == 1
            assert await store.acquire("b", ttl=10) is not None

    async def test_a_released_lease_can_be_taken_and_its_token_grows(self) -> None:
        async with self.connect() as store:
            tokens: list[int] = []
            for _ in range(3):
                lease = await _acquire(store, "a")
                tokens.append(lease.token)
                await store.release(lease)

            assert tokens == sorted(set(tokens))

    async def test_a_lease_ends_unless_it_is_renewed(self) -> None:
        async with self.connect() as store:
            first = await _acquire(store, "a", ttl=3)
            await self.advance(2)
            assert await store.renew(first, ttl=3)
            await self.advance(2)
            assert await store.acquire("a", ttl=3) is None

            await self.advance(1.1)
            assert not await store.renew(first, ttl=3)
            second = await _acquire(store, "a", ttl=10)
            assert second.token > first.token

    async def test_the_holder_of_an_ended_lease_cannot_touch_the_next_one(self) -> None:
        async with self.connect() as store:
            first = await _acquire(store, "a", ttl=1)
            await self.advance(1.1)
            second = await _acquire(store, "a", ttl=10)

            assert not await store.renew(first, ttl=10)
            await store.release(first)
            assert await store.acquire("a", ttl=10) is None
            assert await store.renew(second, ttl=10)

    async def test_subscribers_get_the_messages_of_their_topic_in_order(self) -> None:
        async with self.connect() as store:
            await store.publish("a", b"before")
            async with store.subscribe("a") as first, store.subscribe("a") as second:
                for message in (b"1", b"2", b"3"):
                    await store.publish("a", message)
                await store.publish("b", b"of another topic")
                await store.publish("a", b"4")

                for messages in (first, second):
                    async with asyncio.timeout(_MESSAGE_S):
                        assert [await anext(messages) for _ in range(4)] == [b"1", b"2", b"3", b"4"]

    async def test_a_subscriber_that_falls_behind_gets_the_newest_messages(self) -> None:
        async with self.connect() as store:
            async with store.subscribe("a") as slow, store.subscribe("a") as quick:
                for number in range(1050):
                    await store.publish("a", str(number).encode())
                async with asyncio.timeout(_MESSAGE_S):
                    while await anext(quick) != b"1049":
                        pass
                    first = int(await anext(slow))

            assert 50 <= first < 1050

    async def test_a_closed_store_opens_again_when_it_is_used(self) -> None:
        async with self.connect() as store:
            await store.put("a", b"1")
            await store.close()
            await store.close()

            assert await store.get("a") == b"1"


async def _acquire(store: Store, key: str, *, ttl: float = 10) -> Lease:
    lease = await store.acquire(key, ttl=ttl)
    assert lease is not None
    return lease
