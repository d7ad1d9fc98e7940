"""The store in Redis: the suite of all stores on one server and on a cluster, TLS, URLs, and what it costs."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest
from redis_programs import NEEDS_REDIS, Program, cluster_of, one_server, pass_time
from table_tests import every_row

from callyard import Store
from callyard.state.redis import RedisStore
from callyard.state.redis_url import RedisUrl, parse_redis_url
from callyard.state.store import StoreUnavailableError
from callyard.testing.stores import StoreTests

pytestmark = NEEDS_REDIS
NUMBERS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with one_server(tmp_path_factory.mktemp("redis")) as program:
        yield program


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Generator[list[Program]]:
    with cluster_of(tmp_path_factory.mktemp("cluster")) as programs:
        yield programs


@asynccontextmanager
async def opened(url: str, *, replicas: int = 0) -> AsyncGenerator[RedisStore]:
    store = RedisStore(url, replicas=replicas)
    try:
        yield store
    finally:
        await store.close()


class _RedisTests(StoreTests):
    programs: Sequence[Program]
    scheme = "redis"
    prefix = ""

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Store]:
        self.prefix = f"test{next(NUMBERS)}"
        async with opened(f"{self.scheme}://127.0.0.1:{self.programs[0].port}?prefix={self.prefix}") as store:
            yield store

    async def advance(self, seconds: float) -> None:
        pass_time(self.programs, self.prefix, seconds)


class TestOneRedis(_RedisTests):
    @pytest.fixture(autouse=True)
    def start(self, server: Program) -> None:
        self.programs = [server]


class TestRedisCluster(_RedisTests):
    scheme = "redis+cluster"

    @pytest.fixture(autouse=True)
    def start(self, nodes: list[Program]) -> None:
        self.programs = nodes


async def test_two_processes_share_a_store(server: Program) -> None:
    async with opened(f"{server.url}?prefix=shared") as one, opened(f"{server.url}?prefix=shared") as other:
        await one.put("job/1", b"1")
        assert await other.get("job/1") == b"1"
        assert await one.acquire("job/1", ttl=10) is not None
        assert await other.acquire("job/1", ttl=10) is None
        async with other.subscribe("job/1") as messages:
            await one.publish("job/1", b"changed")
            async with asyncio.timeout(60):
                assert await anext(messages) == b"changed"


async def test_yards_with_two_prefixes_or_databases_share_nothing(server: Program) -> None:
    async with (
        opened(f"{server.url}?prefix=one") as one,
        opened(f"{server.url}?prefix=two") as two,
        opened(f"{server.url}/1?prefix=one") as three,
    ):
        await one.put("job/1", b"1")

        assert await two.get("job/1") is None
        assert await three.get("job/1") is None
        assert await two.keys("") == []


async def test_a_token_grows_after_everything_was_deleted(server: Program) -> None:
    async with opened(f"{server.url}/2") as store:
        first = await store.acquire("a", ttl=10)
        server.ask("FLUSHALL")
        second = await store.acquire("a", ttl=10)

        assert first is not None
        assert second is not None
        assert second.token > first.token


async def test_all_keys_of_a_script_have_one_hash_tag_and_owners_are_spread(server: Program) -> None:
    async with opened(f"{server.url}?prefix=tags") as store:
        for key in ("job/1", "job_order/1", "approval/1", "result/ab/1", "session/ab/x", "signing_key", "x}{y/1"):
            await store.put(key, b"1")
        names = server.ask("KEYS", "tags:*:names")

        tags = ["approval", "job", "result/ab", "session/ab", "signing", "x%7D%7By"]
        assert sorted(names) == [f"tags:{{{tag}}}:names".encode() for tag in tags]
        assert await store.keys("result/ab/") == ["result/ab/1"]


async def test_a_slot_that_moves_to_another_node_is_followed(nodes: list[Program]) -> None:
    slot = nodes[0].ask("CLUSTER", "KEYSLOT", "moved:{job}:")
    source = next(node for node in nodes if _has_slot(node, slot))
    target = next(node for node in nodes if node is not source)
    ids = [node.ask("CLUSTER", "MYID").decode() for node in (source, target)]
    url = f"redis+cluster://127.0.0.1:{nodes[0].port}?prefix=moved"
    async with opened(url) as store, store.subscribe("job/1") as messages:
        assert await store.get("job/1") is None
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        assert await store.get("job/1") is None  # it is asked for at the target

        for node in (target, source):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        await store.put("job/1", b"1")
        assert await store.get("job/1") == b"1"
        async with asyncio.timeout(60):
            assert await anext(messages) == b""
        await store.publish("job/1", b"changed")
        async with asyncio.timeout(60):
            assert await anext(messages) == b"changed"
    assert _has_slot(target, slot)


def _has_slot(node: Program, slot: int) -> bool:
    ranges = node.ask("CLUSTER", "SLOTS")
    return any(first <= slot <= last and master[1] == node.port for first, last, master, *_ in ranges)


async def test_commands_of_one_turn_of_the_loop_share_a_pipeline(server: Program) -> None:
    async with opened(f"{server.url}?prefix=turn") as store:
        await store.get("a")
        reads = int(server.ask("INFO", "stats")["total_reads_processed"])
        await asyncio.gather(*(store.get(f"a/{number}") for number in range(200)))

        assert int(server.ask("INFO", "stats")["total_reads_processed"]) - reads < 20


async def test_a_script_that_redis_forgot_is_sent_again(server: Program) -> None:
    async with opened(f"{server.url}?prefix=forgot") as store:
        await store.put("a", b"1")
        server.ask("SCRIPT", "FLUSH")
        assert await store.count("a") == 1
        assert await store.compare_and_set("a", b"1", b"2")


async def test_expired_entries_leave_the_lists_when_something_is_written(server: Program) -> None:
    async with opened(f"{server.url}?prefix=purged") as store:
        await store.put_many({f"a/{number}": b"" for number in range(50)}, ttl=5)
        pass_time([server], "purged", 6)
        await store.put("a/new", b"")

        assert server.ask("ZCARD", "purged:{a}:names") == 1
        assert server.ask("ZCARD", "purged:{a}:expiries") == 0


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """Return a certificate for this machine that signs itself, and its key."""
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    options = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run([*made.split(" "), *options], check=True, capture_output=True)  # noqa: S603 - a fixed program
    return cert, key


async def test_tls_is_used_and_its_certificate_checked(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    options = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no")
    with one_server(tmp_path / "redis", *options, tls=True) as program:
        async with opened(f"{program.url}?ssl_ca_certs={cert}") as store:
            async with store.subscribe("a") as messages:
                await store.publish("a", b"1")
                async with asyncio.timeout(60):
                    assert await anext(messages) == b"1"
            await store.put("a", b"1")
            assert await store.get("a") == b"1"
        for url in (program.url, f"redis://127.0.0.1:{program.port}"):
            async with opened(url) as store:
                with pytest.raises(StoreUnavailableError) as failure:
                    await store.get("a")
                assert failure.value.reason == "unreachable"


URLS = [
    ("redis://h", RedisUrl(name="redis://h", kind="server", tls=False, hosts=(("h", 6379),))),
    (
        "rediss://me:p%40ss@h:1/2?ssl_ca_certs=/a&ssl_check_hostname=false&prefix=p",
        RedisUrl(
            name="rediss://h:1/2",
            kind="server",
            tls=True,
            hosts=(("h", 1),),
            username="me",
            password="p@ss",  # noqa: S106 - of a test
            db=2,
            prefix="p",
            ssl={"ssl_ca_certs": "/a", "ssl_check_hostname": False},
        ),
    ),
    (
        "redis+cluster://a:1,[::1]:2",
        RedisUrl(name="redis+cluster://a:1,[::1]:2", kind="cluster", tls=False, hosts=(("a", 1), ("::1", 2))),
    ),
    (
        "rediss+sentinel://:pw@a,b:2/mine/3?sentinel_password=s",
        RedisUrl(
            name="rediss+sentinel://a,b:2/mine/3",
            kind="sentinel",
            tls=True,
            hosts=(("a", 26379), ("b", 2)),
            password="pw",  # noqa: S106 - of a test
            db=3,
            service="mine",
            sentinel_password="s",  # noqa: S106 - of a test
        ),
    ),
]
WRONG = [
    "redis://",
    "redis://h:port",
    "redis://h/abc",
    "redis://h?unknown=1",
    "redis://h#part",
    "redis://h?prefix=",
    "redis://h?prefix=a{b}",
    "redis+cluster://h/1",
    "redis+sentinel://h",
    "redis+sentinel://h/mine/x",
    "http://h",
]


@every_row(("text", "url"), URLS)
def test_a_url_says_where_the_store_is(text: str, url: RedisUrl) -> None:
    assert parse_redis_url(text) == url


@every_row("text", WRONG)
def test_a_wrong_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="store"):
        parse_redis_url(text.replace("://", "://user:secret@", 1) if "://h" in text else text)


def test_redis_py_is_loaded_only_by_a_store_in_redis() -> None:
    code = (
        "import sys, asyncio\n"
        "from callyard import MemoryStore, RedisStore\n"
        "store = RedisStore('redis://127.0.0.1:1')\n"
        "asyncio.run(MemoryStore().get('a'))\n"
        "assert 'redis' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code
