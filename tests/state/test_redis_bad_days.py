"""The store in Redis on bad days: answers that are cut, servers that are away, full, wrong or replaced."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis_programs import NEEDS_REDIS, Line, Program, free_port, line_to, one_server, replica_of, watched_by_sentinel
from table_tests import every_row

from callyard import Call, Limits, Yard, tool
from callyard.launch.build import make_store, read_settings
from callyard.launch.errors import LaunchError, explain_refusal
from callyard.launch.notices import Notices
from callyard.state.redis import RedisStore
from callyard.state.store import ANSWER_LOST, StoreUnavailableError

pytestmark = NEEDS_REDIS
CUTS = int(os.environ.get("CUTS", "100"))
WAIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Generator[Program]:
    with one_server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as program:
        yield program


@asynccontextmanager
async def opened(url: str, *, replicas: int = 0) -> AsyncGenerator[RedisStore]:
    store = RedisStore(url, replicas=replicas)
    try:
        yield store
    finally:
        await store.close()


@tool(operation="query")
async def large() -> str:
    """Return a large result."""
    return "x" * 1000


@tool(operation="query")
async def small() -> int:
    """Return a small result."""
    return 1


async def know_all_scripts(store: RedisStore) -> None:
    """Run each script once: the answer that Redis does not know one could be cut, too."""
    lease = await store.acquire("a", ttl=60)
    assert lease is not None
    await store.renew(lease, ttl=60)
    await store.release(lease)
    await store.put("a", b"1")
    await store.compare_and_set("a", b"1", b"2")
    await store.delete("a")
    await store.count("total")
    for family in ("held", "old", "job"):
        await store.put(f"{family}/x", b"")


async def write_with_a_cut(store: RedisStore, line: Line, number: int) -> bool:
    """Do one kind of write, the first answer of which is cut; return whether the store knows that it happened."""
    key, value = f"job/{number}", str(number).encode()
    before = await store.acquire(f"held/{number}", ttl=60)
    assert before is not None
    await store.put(f"old/{number}", b"old")
    line.cuts = 1
    match number % 8:
        case 0:
            await store.put(key, value)
        case 1:
            await store.put_many({key: value, f"job_order/{number}": value})
        case 2:
            assert await store.compare_and_set(key, None, value)
        case 3:
            await store.delete(f"old/{number}")
        case 4:
            assert await store.acquire(key, ttl=60) is not None
            assert await store.acquire(key, ttl=60) is None
        case 5:
            assert await store.renew(before, ttl=60)
        case 6:
            await store.release(before)
            assert await store.acquire(f"held/{number}", ttl=60) is not None
        case _:
            with pytest.raises(StoreUnavailableError) as failure:
                await store.count("total")
            assert failure.value.reason == ANSWER_LOST
            assert failure.value.may_have_run
            return False
    return True


async def test_with_cut_answers_no_write_runs_twice(server: Program) -> None:
    async with line_to(server) as line, opened(line.url) as store, opened(server.url) as direct:
        await know_all_scripts(store)
        line.cut, counted = 0, await direct.count("total", by=0)
        server.ask("CONFIG", "RESETSTAT")
        known = [await write_with_a_cut(store, line, number) for number in range(CUTS)]

        lost = known.count(False)
        assert line.cut == CUTS
        assert await direct.count("total", by=0) - counted == lost
        kinds = [number % 8 for number in range(CUTS)]
        writes = 2 * CUTS + CUTS + kinds.count(4) + kinds.count(6)
        assert server.stats("evalsha") == writes
        assert server.stats("eval") == 0
        for number in range(CUTS):
            if number % 8 in {0, 1, 2}:
                assert await direct.get(f"job/{number}") == str(number).encode()


async def test_of_two_that_compare_and_set_the_same_value_one_succeeds_though_its_answer_is_cut(
    server: Program,
) -> None:
    async with line_to(server) as line, opened(line.url) as one, opened(server.url) as other:
        await one.compare_and_set("answered/0", None, b"")
        assert await other.compare_and_set("answered/1", None, b"")
        line.cuts = 1
        with pytest.raises(StoreUnavailableError) as failure:  # it cannot tell that it was late
            await one.compare_and_set("answered/1", None, b"")
        assert failure.value.may_have_run


async def test_a_read_whose_answer_was_cut_is_repeated(server: Program) -> None:
    async with line_to(server) as line, opened(line.url) as store:
        await store.put("a/1", b"1")
        for _ in range(2):
            line.cuts = 1
            assert await store.get("a/1") == b"1"
            line.cuts = 1
            assert await store.keys("a/") == ["a/1"]
        line.cuts = 2
        with pytest.raises(StoreUnavailableError) as failure:
            await store.get("a/1")
        assert failure.value.reason == ANSWER_LOST


async def test_a_call_whose_write_may_have_run_says_so(server: Program) -> None:
    async with line_to(server) as line, opened(line.url) as store:
        limits = Limits(result_characters=1000)
        async with Yard(tools=[large], store=store, limits=limits) as yard:
            assert (await yard.call("large")).error is None
            line.cuts = 1  # the counter of handles
            answer = await yard.call("large")
    assert answer.error is not None
    assert answer.error.code == "overloaded"
    assert answer.error.details["reason"] == "store_unavailable"
    assert answer.error.may_have_run


async def test_a_message_whose_answer_was_cut_counts_as_sent(server: Program) -> None:
    async with line_to(server) as line, opened(line.url) as store:
        await store.get("a")
        line.cuts = 1
        await store.publish("a", b"1")


async def test_a_job_starts_and_ends_though_each_answer_to_its_writes_is_cut(server: Program) -> None:
    ran: list[int] = []

    @tool(operation="command")
    async def work(number: int, call: Call) -> int:
        """Work."""
        ran.append(number)
        line.cuts += 1
        return number

    async with line_to(server) as line, opened(line.url) as store, Yard(tools=[work], store=store) as yard:
        for number in range(5):
            line.cuts += 1
            started = await yard.call(
                "run_tool", {"tool_id": "work", "arguments": {"number": number}, "background": True}
            )
            assert started.error is None
            job = await yard.jobs.wait(started.data["job_id"], None, seconds=WAIT_S)
            assert job.status == "completed"
    assert ran == list(range(5))


@every_row("url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/mine"])
async def test_a_yard_does_not_open_while_its_redis_is_away_and_says_why_in_one_sentence(url: str) -> None:
    yard = Yard(store=RedisStore(url.replace("://", "://user:secret@")))
    with pytest.raises(StoreUnavailableError) as failure:
        async with yard:
            raise AssertionError
    assert failure.value.reason == "unreachable"
    sentence = explain_refusal(failure.value, yard)
    assert url in sentence
    assert "secret" not in sentence


ALL_RIGHTS = (
    "~callyard:* &callyard:* +get +mget +exists +pttl +eval +evalsha +set +del +zadd +zrem +zrangebyscore +zrangebylex "
    "+time +incrby +pexpire +persist +spublish +ssubscribe +sunsubscribe +sadd +smembers +wait"
)


async def test_a_wrong_password_and_missing_rights_show_at_the_start(server: Program) -> None:
    server.ask("ACL", "SETUSER", "all", "on", ">pw", *ALL_RIGHTS.split())
    server.ask("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+ping")
    server.ask("ACL", "SETUSER", "deaf", "on", ">pw", *ALL_RIGHTS.replace(" +ssubscribe", "").split())
    server.ask("ACL", "SETUSER", "uncounted", "on", ">pw", *ALL_RIGHTS.replace(" +incrby", "").split())
    server.ask("ACL", "SETUSER", "elsewhere", "on", ">pw", *ALL_RIGHTS.replace("~callyard", "~other").split())
    rows = [("all:pw", ""), ("all:no", "wrong_password"), ("nobody:pw", "wrong_password")]
    rows += [(f"{name}:pw", "no_permission") for name in ("reader", "deaf", "uncounted", "elsewhere")]
    found = list[tuple[str, str]]()
    for user, _ in rows:
        async with opened(server.url.replace("://", f"://{user}@")) as store:
            try:
                async with Yard(store=store):
                    found.append((user, ""))
            except StoreUnavailableError as error:
                found.append((user, error.reason))
    assert found == rows


async def test_a_server_without_the_database_is_refused(server: Program) -> None:
    async with opened(f"{server.url}/99") as store:
        with pytest.raises(StoreUnavailableError) as failure:
            await store.get("a")
    assert failure.value.reason == "refused"


async def test_an_old_redis_is_refused() -> None:
    with pytest.raises(StoreUnavailableError) as failure:
        RedisStore("redis://h")._check_facts({"redis_version": "6.2.7"})  # pyright: ignore[reportPrivateUsage] - Debian has one version
    assert failure.value.reason == "old_version"


async def test_a_cluster_without_slots_is_not_ready(tmp_path: Path) -> None:
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with one_server(tmp_path, *options) as program:
        async with opened(f"redis+cluster://127.0.0.1:{program.port}") as store:
            with pytest.raises(StoreUnavailableError) as failure:
                await store.get("a")
    assert failure.value.reason == "not_ready"


async def test_an_evicting_policy_is_a_warning_at_the_start(server: Program, caplog: pytest.LogCaptureFixture) -> None:
    for policy, warns in (("noeviction", False), ("allkeys-lru", True)):
        server.ask("CONFIG", "SET", "maxmemory-policy", policy)
        caplog.clear()
        async with opened(server.url) as store:
            await store.get("a")
        assert ("store_evicts" in caplog.text) is warns


async def test_a_full_redis_is_read_and_takes_writes_again_once_there_is_room(server: Program) -> None:
    async with opened(server.url) as store:
        await store.put("a/1", b"1")
        server.ask("CONFIG", "SET", "maxmemory", "1")
        for write in (store.put("a/2", b""), store.count("a"), store.acquire("a", ttl=1)):
            with pytest.raises(StoreUnavailableError) as failure:
                await write
            assert failure.value.reason == "full"
        assert await store.get("a/1") == b"1"
        assert await store.keys("a/") == ["a/1"]
        await store.delete("a/1")

        server.ask("CONFIG", "SET", "maxmemory", "0")
        await store.put("a/2", b"")
        assert await store.keys("a/") == ["a/2"]


async def once_available(store: RedisStore) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await store.get("a")
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_while_redis_is_away_calls_that_need_it_are_answered_and_jobs_end_once_it_is_back(
    server: Program, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(operation="command")
    async def work() -> str:
        """Work until the test goes on."""
        begun.set()
        await go_on.wait()
        return "done"

    async with opened(server.url) as store:
        limits = Limits(result_characters=1000)
        async with Yard(tools=[small, large, work], store=store, limits=limits) as yard:
            started = await yard.call("run_tool", {"tool_id": "work", "background": True})
            await begun.wait()
            server.kill()
            failed = await yard.call("large")
            assert failed.error is not None
            assert failed.error.code == "overloaded"
            assert failed.error.details["reason"] == "store_unavailable"
            assert (await yard.call("small")).data == 1
            go_on.set()

            server.start_again()
            await once_available(store)
            job = await yard.jobs.wait(started.data["job_id"], None, seconds=WAIT_S)
            assert job.status == "completed"
            assert (await yard.call("large")).error is None
    events = [
        record.getMessage().split()[0] for record in caplog.records if "store" in record.name or "redis" in record.name
    ]
    assert "store_unavailable" in events
    assert "store_available" in events


async def test_subscribers_are_woken_after_a_gap_and_get_messages_again(server: Program) -> None:
    async with opened(server.url) as store, store.subscribe("a") as messages:
        server.kill()
        server.start_again()
        async with asyncio.timeout(WAIT_S):
            assert await anext(messages) == b""
            await once_available(store)
            await store.publish("a", b"1")
            while await anext(messages) != b"1":
                pass


async def test_a_frozen_redis_is_given_up_and_used_again(server: Program) -> None:
    async with opened(server.url) as store:
        await store.put("a", b"1")
        server.process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreUnavailableError):
            await store.put("a", b"2")
        server.process.send_signal(signal.SIGCONT)
        await once_available(store)
        assert await store.get("a") in {b"1", b"2"}


async def test_a_durable_write_waits_for_replicas_and_fails_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    @tool(operation="command")
    async def work() -> None:
        """Work."""
        ran.append(1)

    with one_server(tmp_path / "master") as master, replica_of(master, tmp_path / "replica") as replica:
        async with opened(master.url, replicas=1) as store:
            assert await store.compare_and_set("a", None, b"1", durable=True)
            assert not await store.compare_and_set("a", None, b"2", durable=True)
            replica.kill()
            with pytest.raises(StoreUnavailableError) as failure:
                await store.compare_and_set("a", b"1", b"2", durable=True)
            assert failure.value.reason == "unconfirmed"
            assert failure.value.may_have_run
            assert await store.compare_and_set("a", b"2", b"3")

            async with Yard(tools=[work], store=store) as yard:
                started = await yard.call("run_tool", {"tool_id": "work", "background": True})
                job_id = started.data["job_id"]
                async with asyncio.timeout(WAIT_S):
                    while caplog.text.count("reason=unconfirmed") < 2:  # noqa: ASYNC110 - the log gives no sign
                        await asyncio.sleep(0.05)
                replica.start_again()
                job = await yard.jobs.wait(job_id, None, seconds=WAIT_S)
                result = await yard.jobs.result(job)
    assert ran == []
    assert result is not None
    assert result.error is not None
    assert result.error.details["reason"] == "store_unavailable"


async def test_fewer_replicas_than_wanted_are_a_warning_at_the_start(
    server: Program, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(server.url, replicas=1) as store:
        await store.get("a")
    assert "store_lacks_replicas" in caplog.text


async def test_after_a_failover_by_sentinel_what_a_replica_confirmed_is_there(tmp_path: Path) -> None:
    with watched_by_sentinel(tmp_path) as (master, _, sentinel):
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mine"
        async with opened(url.replace("mine", "unknown")) as store:
            with pytest.raises(StoreUnavailableError) as failure:
                await store.get("a")
            assert failure.value.reason == "unreachable"
        async with opened(url, replicas=1) as store, opened(f"{url}?prefix=other") as other:
            assert await store.compare_and_set("job/1", None, b"claimed", durable=True)
            await other.put("a", b"1")
            async with store.subscribe("job/1") as messages:
                master.kill()
                await once_available(store)
                assert await store.get("job/1") == b"claimed"
                assert await store.compare_and_set("job/1", b"claimed", b"ended")
                async with asyncio.timeout(WAIT_S):
                    assert await anext(messages) == b""
                await once_available(other)
                await other.put("a", b"2")


def settings(**values: Any) -> Any:
    return read_settings(values, Notices(), path=None)


def test_settings_choose_a_redis_with_a_password_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "secret")
    store = make_store(settings(store="redis://:${REDIS_PASSWORD}@h:1/2", store_replicas="1"))
    assert isinstance(store, RedisStore)
    assert store.name == "redis://h:1/2"


@every_row(
    "url", ["redis://:secret@h/x", "redis://:secret@h?unknown=1", "rediss:secret", "redis:", "valkey://:secret@h"]
)
def test_settings_with_a_wrong_url_are_refused_in_one_sentence_without_its_password(url: str) -> None:
    with pytest.raises(LaunchError) as failure:
        make_store(settings(store=url))
    assert "@" not in failure.value.message


def test_the_setting_shows_no_password() -> None:
    shown = settings(store="redis+sentinel://:secret@h/mine?sentinel_password=secret").shown("store")
    assert "secret" not in shown


async def test_without_the_packages_the_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callyard.state.redis_link", None)
    monkeypatch.delattr("callyard.state.redis_link", raising=False)
    with pytest.raises(StoreUnavailableError) as failure:
        await RedisStore("redis://127.0.0.1:1").get("a")
    assert failure.value.reason == "not_installed"
