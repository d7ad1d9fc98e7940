"""Logins in a Redis that several servers share: sealed, renewed by one at a time, and noticed by all."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from authority import Authority, SignIn
from redis_programs import NEEDS_REDIS, Program, client_of, one_server

from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.oauth import shared_vault
from callyard.providers.upstream.oauth.credentials import OAuthCredentials, sign_in_and_store
from callyard.providers.upstream.oauth.shared_vault import SharedVault, SharedVaults
from callyard.providers.upstream.oauth.vault import LoginError, LoginVault, StoredLogin, Token, UnreadableLoginError
from callyard.providers.upstream.settings import Login, UpstreamSettings
from callyard.state.memory import MemoryStore
from callyard.state.redis import RedisStore
from callyard.state.store import StoreUnavailableError, owner_key

pytestmark = NEEDS_REDIS
SECRET = b"a random text of at least 32 characters"
CHALLENGE = 'Bearer error="invalid_token"'
KEPT = StoredLogin(
    url="https://shop.example/mcp",
    token=Token(access_token="access-4711", refresh_token="refresh-4711"),  # noqa: S106 - no secret
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Generator[Program]:
    with one_server(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.fixture
def redis(program: Program) -> Program:
    """Return an empty Redis."""
    program.ask("FLUSHALL")
    return program


class Machines:
    """Servers on one Redis, each with connections of its own."""

    def __init__(self, redis: Program) -> None:
        self._redis = redis
        self.stack = AsyncExitStack()

    def vault(self, name: str = "shop", url: str = KEPT.url, *, secret: bytes = SECRET) -> LoginVault:
        vault = SharedVaults(RedisStore(self._redis.url), secret)(name, url, Path())
        self.stack.push_async_callback(vault.close)
        return vault

    def credentials(self, authority: Authority, *, secret: bytes = SECRET, **login: Any) -> OAuthCredentials:
        settings = UpstreamSettings(url=authority.url, login=Login(**login) if login else None)
        vault = self.vault(url=authority.url, secret=secret)
        credentials = OAuthCredentials("shop", settings, vault, poll_s=0)
        self.stack.push_async_callback(credentials.close)
        return credentials


@pytest.fixture
async def machines(redis: Program) -> AsyncGenerator[Machines]:
    servers = Machines(redis)
    async with servers.stack:
        yield servers


async def store(vault: LoginVault, login: StoredLogin) -> None:
    async with vault.locked():
        await vault.load()
        await vault.save(login)


def token_in(headers: Any) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


def value_key(redis: Program, name: str = "shop") -> bytes:
    with client_of(redis) as client:
        return next(key for key in client.keys("*") if f"value:login/{name}/".encode() in key)


async def test_a_login_of_one_machine_is_read_by_the_others_until_it_is_removed(machines: Machines) -> None:
    one, two = machines.vault(), machines.vault()
    assert (await two.load(), two.is_empty) == ((None, None), False)

    await store(one, KEPT)
    login, stamp = await two.load()
    assert (login, stamp) == (KEPT, one.stamp)

    async with one.locked():
        await one.remove()
    assert await two.load() == (None, None)


async def test_nothing_of_a_login_is_in_redis_in_clear(machines: Machines, redis: Program) -> None:
    await store(machines.vault(), KEPT)
    await store(machines.vault("other"), KEPT)

    assert redis.ask("GET", value_key(redis)) != redis.ask("GET", value_key(redis, "other"))
    with client_of(redis) as client:
        commands = {b"string": ["GET"], b"set": ["SMEMBERS"], b"zset": ["ZRANGE", 0, -1]}
        everything = ""
        for key in client.keys("*"):
            command, *rest = commands[client.type(key)]
            everything += repr((key, client.execute_command(command, key, *rest)))
    assert "login/shop/" in everything
    for secret in ("access-4711", "refresh-4711", "shop.example", SECRET.decode()):
        assert secret not in everything


@pytest.mark.parametrize("place", [0, 1, 13, -1], ids=["version", "nonce", "text", "tag"])
async def test_a_changed_byte_makes_a_login_unreadable(machines: Machines, redis: Program, place: int) -> None:
    await store(machines.vault(), KEPT)
    keeping, key = RedisStore(redis.url), f"login/shop/{owner_key(KEPT.url)}"
    sealed = bytearray(await keeping.get(key) or b"")
    sealed[place] ^= 1
    await keeping.put(key, bytes(sealed))
    await keeping.close()

    with pytest.raises(UnreadableLoginError, match="requires a login"):
        await machines.vault().load()


async def test_logins_of_two_upstreams_cannot_be_swapped(machines: Machines, redis: Program) -> None:
    await store(machines.vault(), KEPT)
    await store(machines.vault("other"), KEPT)
    redis.ask("COPY", value_key(redis, "other"), value_key(redis), "REPLACE")

    with pytest.raises(UnreadableLoginError, match="requires a login"):
        await machines.vault().load()
    assert (await machines.vault("other").load())[0] == KEPT


def test_a_short_text_or_another_version_is_not_read() -> None:
    vaults = SharedVaults(MemoryStore(), SECRET)

    assert vaults.unseal("login/a", b"") is None
    assert vaults.unseal("login/a", b"\x01short") is None
    sealed = vaults.seal("login/a", KEPT)
    assert vaults.unseal("login/a", sealed) == KEPT
    assert vaults.unseal("login/b", sealed) is None
    assert vaults.unseal("login/a", b"\x02" + sealed[1:]) is None


async def test_another_secret_is_one_line_and_requires_a_login_and_destroys_nothing(
    machines: Machines, redis: Program, authority: Authority, log_in: SignIn, caplog: pytest.LogCaptureFixture
) -> None:
    await store(machines.vault(url=authority.url), await log_in())
    before = redis.ask("GET", value_key(redis))
    wrong = machines.credentials(authority, secret=b"another")

    for challenge in ("", authority.challenge, ""):
        with pytest.raises(LinkError, match="'shop' requires a login: this CALLYARD_SECRET") as caught:
            await wrong.renew(challenge)
        assert caught.value.kind == "unauthenticated"

    assert caplog.text.count("login_unreadable") == 1
    assert redis.ask("GET", value_key(redis)) == before
    right = machines.credentials(authority)
    assert await right.renew("")
    assert token_in(right.ready()) in authority.tokens


async def test_a_person_replaces_a_login_that_cannot_be_read(machines: Machines, authority: Authority) -> None:
    await store(machines.vault(url=authority.url, secret=b"another"), msgspec.structs.replace(KEPT, url=authority.url))
    login = Login(grant="client_credentials", client_id="me", client_secret="s")  # noqa: S106 - no secret
    settings = UpstreamSettings(url=authority.url, login=login)

    signed_in = await sign_in_and_store(
        "shop", settings, machines.vault(url=authority.url), show=lambda _: None, seconds=10
    )

    assert (await machines.vault(url=authority.url).load())[0] == signed_in


async def test_twenty_renewals_on_twenty_machines_make_one_request(
    machines: Machines, authority: Authority, log_in: SignIn
) -> None:
    await store(machines.vault(url=authority.url), await log_in())
    servers = [machines.credentials(authority) for _ in range(20)]
    await asyncio.gather(*(server.renew("") for server in servers))
    old = {token_in(server.ready()) for server in servers}
    asked = len(authority.asked("/token"))

    assert all(await asyncio.gather(*(server.renew(CHALLENGE) for server in servers)))

    assert len(authority.asked("/token")) == asked + 1
    (new,) = {token_in(server.ready() or server._headers) for server in servers}  # pyright: ignore[reportPrivateUsage]
    assert new in authority.tokens
    assert {new} != old


async def test_a_login_and_a_logout_elsewhere_are_noticed(
    machines: Machines, authority: Authority, log_in: SignIn
) -> None:
    here, elsewhere = machines.credentials(authority), machines.vault(url=authority.url)
    with pytest.raises(LinkError, match="callyard login shop"):
        await here.renew(authority.challenge)

    await store(elsewhere, await log_in())
    await until_changed(here)
    assert await here.renew("")
    async with asyncio.timeout(60):
        while here.ready() is None:
            await here.renew("")
    assert token_in(here.ready()) in authority.tokens

    async with elsewhere.locked():
        await elsewhere.remove()
    await until_changed(here)
    assert await here.renew("")
    assert here._headers == {}  # pyright: ignore[reportPrivateUsage]


async def until_changed(credentials: OAuthCredentials) -> None:
    """Ask as calls do, until the store was looked at."""
    async with asyncio.timeout(60):
        while credentials.ready() is not None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_a_lost_lease_overwrites_no_newer_login(machines: Machines) -> None:
    slow, quick = machines.vault(), machines.vault()
    await store(quick, KEPT)
    await slow.load()
    newer = msgspec.structs.replace(KEPT, user="newer")
    await store(quick, newer)

    with pytest.raises(LoginError, match="Another server changed the login"):
        await slow.save(KEPT)
    assert (await quick.load())[0] == newer

    await slow.load()
    await quick.remove()
    with pytest.raises(LoginError, match="Another server changed the login"):
        await slow.save(KEPT)
    assert await quick.load() == (None, None)


async def test_a_lock_is_waited_for_until_its_timeout_and_is_renewed(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_vault, "_LEASE_S", 0.6)
    monkeypatch.setattr(shared_vault, "_LOCK_TIMEOUT_S", 1.5)
    one, two = machines.vault(), machines.vault()

    async with one.locked():
        with pytest.raises(LoginError, match="Another server keeps the login locked") as caught:
            async with two.locked():
                raise AssertionError
    assert caught.value.is_transient
    async with two.locked():
        pass


class Unsteady(MemoryStore):
    """A store that fails so many times at its writes, after them if it `has_written`."""

    failures = 0
    has_written = False

    async def compare_and_set(self, *args: Any, **more: Any) -> bool:
        if self.failures:
            self.failures -= 1
            if self.has_written:
                await super().compare_and_set(*args, **more)
            raise StoreUnavailableError("It is away.", reason="away", may_have_run=self.has_written)
        return await super().compare_and_set(*args, **more)


@pytest.mark.parametrize("has_written", [False, True])
async def test_a_renewed_token_is_written_again_while_the_store_is_away(
    monkeypatch: pytest.MonkeyPatch, *, has_written: bool
) -> None:
    keeping = Unsteady()
    keeping.has_written = has_written
    vault = SharedVault(SharedVaults(keeping, SECRET), "shop", KEPT.url)
    await vault.load()
    keeping.failures = 2
    await vault.save(KEPT)
    assert (await vault.load())[0] == KEPT

    monkeypatch.setattr(shared_vault, "_SAVE_S", 0)
    keeping.failures = 1
    with pytest.raises(LoginError, match="store with the login") as caught:
        await vault.save(msgspec.structs.replace(KEPT, user="newer"))
    assert caught.value.is_transient
    await vault.close()


async def test_a_store_that_is_away_is_no_reason_to_sign_in(
    machines: Machines, redis: Program, authority: Authority, log_in: SignIn
) -> None:
    await store(machines.vault(url=authority.url), await log_in())
    here = machines.credentials(authority)
    redis.kill()
    try:
        with pytest.raises(LinkError) as caught:
            await here.renew("")
        assert caught.value.kind == "unavailable"
        with pytest.raises(LoginError, match="store with the login"):
            await machines.vault().load()
    finally:
        redis.start_again()


async def test_the_store_is_closed_with_its_last_vault(redis: Program) -> None:
    vaults = SharedVaults(RedisStore(redis.url), SECRET)
    one, two = vaults("one", KEPT.url, Path()), vaults("two", KEPT.url, Path())
    await one.load()
    await two.load()

    await one.close()
    assert vaults.store._open is not None  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    await two.close()
    assert vaults.store._open is None  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    await two.close()


async def test_missing_packages_of_sealing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    keeping = MemoryStore()
    await keeping.put(f"login/shop/{owner_key(KEPT.url)}", b"\x01" + bytes(40))
    vault = SharedVault(SharedVaults(keeping, SECRET), "shop", KEPT.url)

    with pytest.raises(LoginError, match=r"pip install 'callyard\[login\]'"):
        await vault.load()
