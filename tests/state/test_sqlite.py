import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from callyard import Store
from callyard._internal.files import file_system_of
from callyard.state import sqlite, sqlite_file
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError
from callyard.testing import FakeClock
from callyard.testing.stores import StoreTests


class TestSqliteStore(StoreTests):
    clock = FakeClock()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Store]:
        with TemporaryDirectory() as folder:
            store = SqliteStore(Path(folder) / "store.db", clock=self.clock, lease_clock=self.clock)
            try:
                yield store
            finally:
                await store.close()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    await store.close()


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in [folder, *folder.iterdir()]}


def run_python(code: str, *arguments: object, **options: Any) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, **options).stdout.strip()  # noqa: S603 - our own code


def make_folder(path: Path) -> None:
    path.mkdir(parents=True)


def move(path: Path, target: Path) -> Path:
    return path.rename(target)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


async def reason_of(work: Awaitable[object]) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await work
    return caught.value.reason


async def test_only_the_owner_can_access_the_files_and_their_folder(store: SqliteStore, path: Path) -> None:
    before = os.umask(0)
    try:
        await store.put("a", b"1")
    finally:
        os.umask(before)

    assert modes(path.parent) == {"state": 0o700, "store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


async def test_a_file_that_others_can_read_is_made_private(store: SqliteStore, path: Path) -> None:
    await store.put("a", b"1")
    await store.close()
    await asyncio.to_thread(path.chmod, 0o644)

    assert await store.get("a") == b"1"
    assert modes(path.parent)["store.db"] == 0o600


async def test_sqlite_is_imported_and_the_file_made_by_the_first_write(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from pathlib import Path
import callyard.yard
from callyard.state.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
async def main():
    found = await store.get("a"), await store.keys(""), await store.count("a", by=0)
    before = "sqlite3" in sys.modules, Path(sys.argv[1]).parent.exists()
    await store.put("a", b"1")
    print(*found, *before, "sqlite3" in sys.modules, await store.get("a"))
asyncio.run(main())
"""
    bare = {
        name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")
    }  # coverage imports it, too
    assert run_python(code, tmp_path / "state" / "store.db", env=bare) == "None [] 0 False False True b'1'"


async def test_a_file_that_another_process_makes_is_read(store: SqliteStore, path: Path) -> None:
    assert await store.get("a") is None
    other = SqliteStore(path)
    await other.put("a", b"1")
    await other.close()

    assert await store.get("a") == b"1"


async def test_a_path_that_cannot_even_be_looked_at_makes_the_store_unavailable(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / ("x" * 300))

    assert [await reason_of(work) for work in (store.get("a"), store.keys(""), store.put("a", b"1"))] == [
        "not_writable"
    ] * 3
    await store.close()


async def test_a_value_survives_the_sudden_end_of_the_process(store: SqliteStore, path: Path) -> None:
    code = """
import asyncio, os, signal, sys
from callyard.state.sqlite import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.put("a", b"1")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_python(code, path)

    assert caught.value.returncode == -signal.SIGKILL
    assert await store.get("a") == b"1"


async def test_several_processes_share_one_new_file(store: SqliteStore, path: Path) -> None:
    code = """
import asyncio, sys
from callyard.state.sqlite import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    print(await store.acquire("lease", ttl=60) is not None)
    for number in range(100):
        await store.count("all")
        await store.put(f"{sys.argv[2]}/{number}", b"1")
        await store.get("all")
    await store.publish("done", sys.argv[2].encode())
    await store.close()
asyncio.run(main())
"""
    commands = [
        asyncio.create_subprocess_exec(sys.executable, "-c", code, path, name, stdout=subprocess.PIPE)
        for name in "abcd"
    ]
    processes = await asyncio.gather(*commands)
    async with asyncio.timeout(60), store.subscribe("done") as messages:
        outputs = [(await process.communicate())[0].strip() for process in processes]
        done = {await anext(messages) for _ in processes}

    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(outputs) == [b"False"] * 3 + [b"True"]
    assert await store.count("all", by=0) == 400
    assert len(await store.keys("")) == 400
    assert done == {b"a", b"b", b"c", b"d"}


async def test_messages_of_another_connection_arrive_and_polling_ends_with_the_last_subscriber(
    store: SqliteStore, path: Path
) -> None:
    other = SqliteStore(path)
    async with asyncio.timeout(60):
        async with store.subscribe("a") as first:
            async with store.subscribe("b") as second:
                await other.publish("a", b"1")
                await other.publish("b", b"2")
                assert (await anext(first), await anext(second)) == (b"1", b"2")
            assert vars(vars(store)["_poll"])["_task"] is not None
            await other.publish("a", b"3")
            assert await anext(first) == b"3"
    await other.close()

    assert vars(vars(store)["_poll"])["_task"] is None


async def test_subscribers_get_messages_again_after_the_file_was_unusable(store: SqliteStore, path: Path) -> None:
    async with asyncio.timeout(60), store.subscribe("a") as messages:
        reader = store._reader  # pyright: ignore[reportPrivateUsage] - nothing else keeps the subscription from making the file anew
        with reader._in_use:  # pyright: ignore[reportPrivateUsage] - the same
            reader._close()  # pyright: ignore[reportPrivateUsage] - the same
            moved = move(path, path.with_name("elsewhere"))
            make_folder(path)
        assert await reason_of(store.publish("a", b"lost")) == "not_writable"
        move(path, path.with_name("folder"))
        move(moved, path)
        await recovered(store)
        await store.publish("a", b"1")
        assert await anext(messages) == b"1"


async def test_a_thread_that_starts_while_the_store_closes_shares_the_connection_with_nobody(
    store: SqliteStore,
) -> None:
    entered, release = threading.Event(), threading.Event()
    inside: list[str] = []

    def slow(_: Any) -> None:
        inside.append("slow")
        entered.set()
        release.wait(20)
        inside.remove("slow")

    def quick(db: Any) -> list[str]:
        assert db.execute("SELECT 1").fetchone() == (1,)
        return inside.copy()

    await store.put("a", b"1")
    reader = store._reader  # pyright: ignore[reportPrivateUsage] - only here statements can be slow
    running = asyncio.create_task(reader.run(slow))
    await asyncio.to_thread(entered.wait)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)  # lets it begin
    waiting = asyncio.create_task(reader.run(quick))
    await asyncio.wait({waiting}, timeout=0.2)
    release.set()
    await asyncio.gather(running, closing)

    assert await waiting == []
    await store.close()


async def recovered(store: SqliteStore) -> None:
    """Wait until the store works again, as a client that retries would."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.put("recovered", b"")
                await store.get("recovered")
            except StoreUnavailableError:
                await asyncio.sleep(0.05)
            else:
                return


async def test_expired_rows_are_deleted_from_the_file(path: Path) -> None:
    clock = FakeClock()
    store = SqliteStore(path, clock=clock, lease_clock=clock)
    await store.put("a", b"1", ttl=10)
    await store.count("a", ttl=10)
    await store.acquire("a", ttl=10)
    await store.publish("a", b"1")
    clock.advance(100)
    vars(store)["_sweep_at"] = 0.0
    await store.put("b", b"2")
    await store.close()  # after what is queued

    with closing(sqlite3.connect(path)) as db:
        rows = {
            table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - constants
            for table in ("entries", "counters", "leases", "messages")
        }
    assert rows == {"entries": 1, "counters": 0, "leases": 0, "messages": 0}


async def test_values_follow_a_jump_of_the_wall_clock_and_leases_do_not(path: Path) -> None:
    wall, monotonic = FakeClock(1_000_000.0), FakeClock()
    store = SqliteStore(path, clock=wall, lease_clock=monotonic)
    await store.put("a", b"1", ttl=10)
    assert await store.acquire("a", ttl=10) is not None

    wall.advance(-100_000)  # back: it lives longer
    monotonic.advance(1)
    assert await store.get("a") == b"1"
    wall.advance(200_000)  # forward: it expires early
    assert await store.get("a") is None
    assert await store.acquire("a", ttl=10) is None
    await store.close()


async def test_a_restart_of_the_machine_ends_every_lease(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await store.acquire("a", ttl=1000)
    assert first is not None
    monkeypatch.setattr("callyard.state.sqlite._boot_id", lambda: "another boot")

    assert not await store.renew(first, ttl=10)
    second = await store.acquire("a", ttl=10)
    assert second is not None
    assert second.token > first.token


async def test_a_prefix_that_ends_with_the_last_character_finds_its_keys(store: SqliteStore) -> None:
    last = chr(0x10FFFF)
    for key in (last, last + "a", "\ud7ff", "\ue000"):
        await store.put(key, b"")

    assert await store.keys(last) == [last, last + "a"]
    assert await store.keys("\ud7ff") == ["\ud7ff"]


async def test_an_older_file_is_migrated_and_keeps_its_values(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a", b"1")
    await store.close()
    more = (*vars(sqlite_file)["_MIGRATIONS"], ("ALTER TABLE entries ADD COLUMN note TEXT",))
    monkeypatch.setattr(sqlite_file, "_MIGRATIONS", more)

    assert await store.get("a") == b"1"
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("SELECT note FROM entries").fetchall() == [(None,)]


async def test_a_newer_file_is_refused_even_if_it_became_newer_while_it_was_open(
    store: SqliteStore, path: Path
) -> None:
    await store.put("a", b"1")
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")

    assert await reason_of(store.put("a", b"2")) == "newer_version"
    assert await reason_of(store.get("a")) == "newer_version"
    assert await reason_of(SqliteStore(path).get("a")) == "newer_version"
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT value FROM entries").fetchall() == [(b"1",)]


async def test_a_database_of_another_program_is_refused_and_left_alone(store: SqliteStore, path: Path) -> None:
    make_folder(path.parent)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE theirs (a)")
        db.execute("PRAGMA user_version = 1")
    before = content_of(path)

    assert await reason_of(store.put("a", b"1")) == "not_a_store"
    assert content_of(path) == before


async def test_a_file_that_is_no_database_is_refused_and_left_alone(store: SqliteStore, path: Path) -> None:
    write(path, b"not a database" * 1000)

    assert await reason_of(store.get("a")) == "corrupt"
    assert content_of(path) == b"not a database" * 1000


async def test_a_file_that_is_damaged_is_reported_and_a_restored_one_is_used_again(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        await store.put(f"{number:03}", b"x" * 1000)
    await store.close()
    good = content_of(path)
    write(path, good[:4096] + b"\xff" * (len(good) - 4096))

    assert await reason_of(store.get("050")) == "corrupt"
    assert await reason_of(store.get("050")) == "corrupt"
    write(path, good)
    await recovered(store)

    assert await store.get("050") == b"x" * 1000
    events = [record.getMessage().split()[0] for record in caplog.records if "access=read" in record.getMessage()]
    assert events == ["store_unavailable", "store_available"]


async def test_a_file_of_somebody_else_is_refused(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, b"")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert await reason_of(store.get("a")) == "not_writable"


async def test_a_path_that_is_a_folder_is_refused(store: SqliteStore, path: Path) -> None:
    make_folder(path)

    assert await reason_of(store.get("a")) == "not_writable"


async def test_a_file_that_another_process_locks_can_still_be_read(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_S", 0.05)
    await store.put("a", b"1")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await reason_of(store.put("a", b"2")) == "locked"
        assert await store.get("a") == b"1"

    await store.put("a", b"3")
    assert await store.get("a") == b"3"


async def test_a_full_store_can_be_read_and_written_again_once_something_expired(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    store = SqliteStore(path, max_bytes=200_000, clock=clock)
    await store.put("a", b"x" * 100_000, ttl=10)

    assert await reason_of(store.put("b", b"x" * 100_000)) == "full"
    assert await store.get("a") == b"x" * 100_000
    assert await store.get("b") is None
    clock.advance(11)
    await store.put("b", b"x" * 100_000)
    assert await store.get("b") == b"x" * 100_000
    await store.close()
    assert any(
        "store_unavailable" in record.getMessage() and "reason=full" in record.getMessage() for record in caplog.records
    )


@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [
        ("nfs4", True),
        ("nfs", True),
        ("cifs", True),
        ("9p", True),
        ("fuse.sshfs", True),
        ("fuse.ntfs", False),
        ("ext4", False),
        ("overlay", False),
        ("", False),
    ],
)
async def test_a_network_file_system_is_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_refused: bool
) -> None:
    def file_system(_: Path) -> str:
        return kind

    for module in (sqlite, sqlite_file):
        monkeypatch.setattr(module, "file_system_of", file_system)

    if is_refused:
        assert await reason_of(store.get("a")) == "network_file_system"
    else:
        await store.put("a", b"1")
        assert await store.get("a") == b"1"


def test_the_file_system_of_a_path_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    place.mkdir()
    outer, inner = str(tmp_path), str(place).replace(" ", "\\040")
    mounts = (
        f"/dev/a / ext4 rw 0 0\nserver:/x {inner} nfs4 rw 0 0\n"
        f"/dev/b {outer} xfs rw 0 0\nserver:/y {outer}-else cifs rw 0 0\n"
    )

    assert file_system_of(place / "inside", mounts) == "nfs4"
    assert file_system_of(tmp_path, mounts) == "xfs"
    assert file_system_of(Path("/"), mounts) == "ext4"
    assert file_system_of(Path("/"), "") == ""
    assert file_system_of(tmp_path)


ON_TMPFS = """
import asyncio, os, subprocess, sys
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError

async def attempt(work):
    try:
        await work
    except StoreUnavailableError as error:
        return error.reason
    return "ok"

async def full(folder):
    store = SqliteStore(folder + "/s/store.db")
    await store.put("a", b"1")
    filler = os.open(folder + "/filler", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(filler, bytes(4096)):
            pass
    except OSError:
        pass
    written = [await attempt(store.put(str(number), bytes(3000))) for number in range(400)]
    read = await attempt(store.get("a"))
    os.close(filler)
    os.unlink(folder + "/filler")
    print(written[-1], read, await attempt(store.put("a", b"2")), len(await store.keys("")) == 1 + written.count("ok"))

async def read_only(folder):
    store = SqliteStore(folder + "/s/store.db")
    await store.put("a", b"1")
    await store.close()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    print(await attempt(store.put("a", b"2")), await attempt(store.get("a")))

subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", sys.argv[2]], check=True)
asyncio.run({"full": full, "read_only": read_only}[sys.argv[1]](sys.argv[2]))
"""


def can_mount() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0  # noqa: S607 - from the PATH


@pytest.mark.skipif(not can_mount(), reason="no user namespaces here, so nothing can be mounted")
@pytest.mark.parametrize(("case", "expected"), [("full", "full ok ok True"), ("read_only", "read_only read_only")])
async def test_a_full_or_read_only_disk_is_reported(tmp_path: Path, case: str, expected: str) -> None:
    command = ["unshare", "-rm", sys.executable, "-c", ON_TMPFS, case, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()

    assert output.decode().strip() == expected


async def test_many_writes_at_one_time_all_succeed(store: SqliteStore) -> None:
    """A cursor that ended in another thread reset the statement of the write that came next."""

    async def write(number: int) -> None:
        for _ in range(20):
            await store.put(f"key{number}", b"x" * 9000)
            await store.delete(f"other{number}")

    await asyncio.gather(*(write(number) for number in range(50)))
    assert len(await store.keys("key")) == 50
