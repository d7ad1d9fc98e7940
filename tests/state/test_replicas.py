"""Replicas of one store: their records, their mail, and what happens when one of them dies."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from redis_programs import NEEDS_REDIS, Program, line_to, one_server

from callyard.state.redis import RedisStore
from callyard.state.replicas import Asked, Replica, ReplicaError
from callyard.state.store import StoreUnavailableError

pytestmark = NEEDS_REDIS
WAIT_S = 60.0


@pytest.fixture
def redis(tmp_path: Path) -> Generator[Program]:
    with one_server(tmp_path / "redis") as program:
        yield program


@asynccontextmanager
async def replica_on(url: str, *, version: str = "1", configuration: str = "a") -> AsyncGenerator[Replica]:
    store = RedisStore(url)
    try:
        async with Replica(store, version, configuration, lambda: 3).open() as replica:
            yield replica
    finally:
        await store.close()


async def until(is_true: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not is_true():  # noqa: ASYNC110 - of which nothing gives a sign
            await asyncio.sleep(0.02)


async def echo(asked: Asked) -> bytes:
    asked.note(b'"on it"')
    return bytes(asked.content)


async def test_replicas_know_each_other_and_name_those_that_differ(
    redis: Program, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_on(redis.url) as first, replica_on(redis.url, configuration="b") as second:
        await until(lambda: first.peers and second.peers)
        seen = first.peers[second.id]
        assert (seen.version, seen.configuration, seen.load) == ("1", "b", 3)
        assert [one.id for one in second.differing] == [first.id]

    assert {record.getMessage().split()[0] for record in caplog.records} == {"replica_differs"}


async def test_news_come_once_and_in_order(redis: Program) -> None:
    got: list[int] = []
    async with replica_on(redis.url) as first, replica_on(redis.url) as second:
        second.on_news["number"] = lambda content: got.append(msgspec.json.decode(content))
        for number in range(300):
            first.tell(second.id, "number", number)
            if number % 7 == 0:
                await first.flush()
        await first.tell_all("number", 300)
        await until(lambda: 300 in got)

    assert got == list(range(301))


async def test_a_request_gets_notes_and_an_answer(redis: Program) -> None:
    notes: list[bytes] = []
    async with replica_on(redis.url) as first, replica_on(redis.url) as second:
        second.on_request["echo"] = echo
        answers = await asyncio.gather(*(first.ask(second.id, "echo", n, on_note=notes.append) for n in range(50)))

    assert [int(answer) for answer in answers] == list(range(50))
    assert notes == [b'"on it"'] * 50


async def test_a_request_that_is_cancelled_is_cancelled_there(redis: Program) -> None:
    ended = asyncio.Event()

    async def wait(asked: Asked) -> bytes:
        asked.note(b"1")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with replica_on(redis.url) as first, replica_on(redis.url) as second, asyncio.timeout(WAIT_S):
        second.on_request["wait"] = wait
        begun = asyncio.Event()
        asking = asyncio.ensure_future(first.ask(second.id, "wait", None, on_note=lambda _: begun.set()))
        await begun.wait()
        asking.cancel()
        await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_handler_that_fails_or_is_missing_is_no_death(redis: Program, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Asked) -> bytes:
        raise KeyError

    def refuse(_: msgspec.Raw) -> None:
        raise KeyError

    async with replica_on(redis.url) as first, replica_on(redis.url) as second:
        second.on_request["fail"] = fail
        second.on_news["fail"] = refuse
        first.tell(second.id, "fail", None)
        for name in ("fail", "missing"):
            with pytest.raises(ReplicaError) as caught:
                await first.ask(second.id, name, None)
            assert (caught.value.is_gone, caught.value.may_have_run) == (False, True)

    assert len(caplog.records) == 3


async def test_a_request_that_a_dead_replica_did_not_take_did_not_run(redis: Program) -> None:
    with pytest.raises(ReplicaError) as unknown:
        async with replica_on(redis.url) as first:
            await first.ask("0" * 10, "echo", None)
    assert (unknown.value.is_gone, unknown.value.may_have_run) == (True, False)

    async with replica_on(redis.url) as first:
        # its record is there for a moment, and nobody takes its mail
        redis_store = RedisStore(redis.url)
        await redis_store.put("replica/dead", msgspec.json.encode(first.record), ttl=1)
        with pytest.raises(ReplicaError) as dead:
            await first.ask("dead", "echo", None)
        await redis_store.close()
    assert (dead.value.is_gone, dead.value.may_have_run) == (True, False)


async def test_a_store_that_lost_everything_is_noticed(redis: Program, caplog: pytest.LogCaptureFixture) -> None:
    wiped = asyncio.Event()
    begun = asyncio.Event()

    async def wait(_: Asked) -> bytes:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with replica_on(redis.url) as first, replica_on(redis.url) as second, asyncio.timeout(WAIT_S):
        first.on_wiped.append(wiped.set)
        second.on_request["wait"] = wait
        asking = asyncio.ensure_future(first.ask(second.id, "wait", None))
        await begun.wait()
        redis.ask("FLUSHALL")
        await wiped.wait()
        with pytest.raises(ReplicaError):
            await asking

    assert any(record.getMessage().startswith("store_wiped") for record in caplog.records)


async def test_mail_comes_once_although_answers_of_redis_are_lost(
    redis: Program, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    got: list[int] = []
    served: list[int] = []

    async def serve(asked: Asked) -> bytes:
        served.append(msgspec.json.decode(asked.content))
        return b"1"

    async with line_to(redis) as line, replica_on(line.url) as first, replica_on(line.url) as second:
        second.on_news["number"] = lambda content: got.append(msgspec.json.decode(content))
        second.on_request["serve"] = serve
        answered: list[int] = []
        for number in range(40):
            line.cuts = 1
            first.tell(second.id, "number", number)
            try:
                async with asyncio.timeout(WAIT_S):
                    await first.ask(second.id, "serve", number)
                answered.append(number)
            except (StoreUnavailableError, ReplicaError):
                await asyncio.sleep(0.05)  # the store is tried again after a moment
        first.tell(second.id, "number", 40)
        await until(lambda: 40 in got)

    assert got == list(range(41))
    assert sorted(set(served)) == served, "a request ran twice"
    assert set(answered) <= set(served)
    assert line.cut
