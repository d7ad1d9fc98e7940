"""Every attack on every sandboxed backend: none succeeds, the host stays up, and the next run works."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import ATTACKS, GROUPS, SNIPPETS, Attack
from backends import FULL, SANDBOXED, answer, descendants, find_wasm, opened
from table_tests import every_row

from callyard.runtimes import bubblewrap
from callyard.runtimes.bubblewrap import Bubblewrap
from callyard.runtimes.guest_runtime import GuestRuntime
from callyard.runtimes.runtime import GuestCall, RunLimits, RunResult, RuntimeMissingError
from callyard.runtimes.wasm import Wasm

CANARY = "LEAK CANARY-SECRET"
SLOW = {"container": 10, "wasm": 20}
"""Backends that take long for each run: one attack in so many is tried, unless all are asked for."""
SLOW_LIMITS = 5
"""On the other backends one attack on a limit in so many is tried: most of them end by the limit of time."""
LIMITS = RunLimits(seconds=1.5, output_bytes=1 << 20, calls=1000)
WORKING = {
    "files": (1, 3, 4, 18, 20, 24, 25, 41, 42, 43, 44),
    "process": (2, 4, 7, 21, 22, 23, 24, 25, 26, 33, 34, 37, 38),
    "native": (17, 20, 23, 24, 32, 33, 36, 45),
    "network": (1, 9, 14, 16, 21, 22, 23, 24),
    "resources": (25, 26),
}
"""Attacks of each group that need no privilege and do no harm, and that succeed where nothing protects."""
KEPT = (1, 2, 3, 5, 6, 13, 16, 17, 18, 20, 21, 25)
"""Attacks by state that succeed where two programs share a guest."""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setenv("SECRET_CANARY", CANARY)
    path = tmp_path / "CANARY"
    path.write_text(CANARY)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_greet, args=(server,), daemon=True)
        thread.start()
        yield str(path), server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"LEAK LEAK")


def chosen(backend: str, group: str) -> list[Attack]:
    attacks = [attack for attack in ATTACKS if attack.group == group]
    if FULL:
        return attacks
    if backend in SLOW:
        return attacks[:: SLOW[backend]]
    return [attack for attack in attacks if attack.must != "LIMIT"] + [
        attack for attack in attacks if attack.must == "LIMIT"
    ][::SLOW_LIMITS]


def verdict(attack: Attack, result: RunResult) -> str | None:
    """Return what is wrong with the result of an attack."""
    failure = result.failure
    if "LEAK" in result.stdout or "LEAK" in result.stderr or "LEAK" in str(result.value):
        return f"leaked: {result.stdout[:200]} {result.stderr[:200]}"
    if failure is not None and "LEAK" in failure.message:  # the words of a server, in an error about them
        return f"leaked: {failure.message[:200]}"
    if attack.must in ("DENY", "LIMIT") and failure is None:
        return f"ended well with {str(result.value)[:100]}"
    return None


def untouched(path: str) -> bool:
    devices = [Path("/dev/null").stat().st_mode & 0o777, Path("/dev/zero").stat().st_mode & 0o777]
    return Path(path).read_text() == CANARY and devices == [0o666, 0o666]


def attack(name: str) -> Attack:
    return next(attack for attack in ATTACKS if attack.name == name)


def aimed(attack: Attack, canary: tuple[str, int]) -> str:
    return attack.code.replace("$CANARY", canary[0]).replace("$PORT", str(canary[1]))


async def attempt(runtime: GuestRuntime, attack: Attack, canary: tuple[str, int]) -> str | None:
    code = aimed(attack, canary)
    async with asyncio.timeout(60):  # a run that the host cannot end would hang the suite
        result = await runtime.run(code, None, LIMITS, answer)
    wrong = verdict(attack, result)
    after = await runtime.run("1 + 1", None, RunLimits(seconds=20), answer)
    if after.value != 2:
        wrong = f"{wrong or ''} the next run failed: {after.failure}"
    again = await runtime.run(code, None, LIMITS, answer) if attack.group == "state" else None
    return wrong or (verdict(attack, again) if again is not None else None)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("backend", SANDBOXED)
async def test_no_attack_succeeds(backend: str, group: str, canary: tuple[str, int]) -> None:
    async with opened(backend) as runtime:
        for attack in chosen(backend, group):
            wrong = await attempt(runtime, attack, canary)
            assert wrong is None, f"{backend}: {attack.name} {wrong}\n{attack.code}"
    assert untouched(canary[0])


@pytest.mark.skipif(sys.platform != "linux", reason="they use system calls of Linux")
@pytest.mark.parametrize("group", WORKING)
async def test_the_attacks_succeed_where_nothing_protects(group: str, canary: tuple[str, int]) -> None:
    async with opened("subprocess") as runtime:
        for name in (f"{group}-{number}" for number in WORKING[group]):
            result = await runtime.run(aimed(attack(name), canary), None, RunLimits(seconds=20), answer)
            assert verdict(attack(name), result) is not None, (name, result)


async def test_state_is_found_where_two_programs_share_a_guest() -> None:
    async with opened("subprocess") as runtime:
        for name in (f"state-{number}" for number in KEPT):
            await runtime.run(attack(name).code, None, RunLimits(), answer, session=name)
            again = await runtime.run(attack(name).code, None, RunLimits(), answer, session=name)
            assert verdict(attack(name), again) is not None, (name, again)


SIGNALS = """
import fcntl, os
for pid in range(1, 50):
    if pid == os.getpid(): continue
    for number in (2, 9, 15):
        try:
            reader, writer = os.pipe()
            fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
            fcntl.fcntl(reader, 10, number)
            fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            os.write(writer, b'x')
        except OSError: pass
        finally: os.close(reader); os.close(writer)
"""


async def test_a_guest_cannot_signal_another_guest_or_the_zygote() -> None:
    running, attacked = asyncio.Event(), asyncio.Event()

    async def wait(_call: GuestCall) -> object:
        running.set()
        await attacked.wait()
        return "alive"

    async with opened("bubblewrap") as runtime:
        victim = asyncio.create_task(runtime.run("await call_tool('wait')", None, RunLimits(), wait))
        await running.wait()
        await runtime.run(SIGNALS, None, RunLimits(), answer)
        attacked.set()
        assert (await victim).value == "alive"


async def test_two_guests_do_not_draw_the_same_random_numbers() -> None:
    code = "import random, uuid, secrets\n[random.random(), str(uuid.uuid4()), secrets.token_hex()]"
    async with opened("bubblewrap") as runtime:
        one, two = await asyncio.gather(*(runtime.run(code, None, RunLimits(), answer) for _ in range(2)))
    assert len({*one.value, *two.value}) == 6


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user")
async def test_in_place_of_root_the_guests_run_as_nobody() -> None:
    others = set(descendants(os.getpid()))  # of earlier tests, as they end
    async with opened("bubblewrap") as runtime:
        assert (await runtime.probe()).unenforced == {}
        await runtime.run("1", None, RunLimits(), answer, session="kept")
        users = [user_of(pid) for pid in descendants(os.getpid()) if pid not in others]
    assert users
    assert set(users) == {65534}


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can become another user")
async def test_where_nobody_cannot_run_the_limit_of_threads_is_reported_as_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened("bubblewrap"):
        pass
    monkeypatch.setattr(bubblewrap, "_AS_NOBODY", "raise SystemExit(1)")
    backend = Bubblewrap()
    await backend.open()
    probe = await backend.probe()
    await backend.close()
    assert "pids" in probe.unenforced
    assert "pids" not in probe.enforced


async def test_machine_code_in_a_folder_that_others_can_change_is_not_loaded(tmp_path: Path) -> None:
    async with opened("wasm"):
        pass
    folder = tmp_path / "wasm"
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(RuntimeMissingError):
        await Wasm(find_wasm(), state_dir=str(tmp_path)).open()


async def test_a_program_in_a_container_can_write_to_its_own_directory_only() -> None:
    code = "import os, shutil\nopen('/tmp/a', 'w').close()\nshutil.copy('/tmp/a', '/tmp/b')\nsorted(os.listdir('/tmp'))"
    async with opened("container") as runtime:
        first = await runtime.run(code, None, RunLimits(), answer)
        second = await runtime.run("import os\nos.listdir('/tmp')", None, RunLimits(), answer)
    assert (first.value, second.value) == (["a", "b"], [])


FORGED_CALLS = (
    f"driver = {SNIPPETS['$DRIVER']}\n"
    "for number in range(900): driver.pipe.send({'t': 'call', 'n': driver.run_id, 'id': number, 'name': 'slow', "
    "'args': {}})\n"
    "while True: pass"
)


async def test_a_program_that_is_out_of_time_starts_no_more_calls() -> None:
    made = 0

    async def slow(_call: GuestCall) -> object:
        nonlocal made
        made += 1
        await asyncio.sleep(3600)
        return None

    async with opened("subprocess") as runtime:
        limits = RunLimits(seconds=0.5)
        result = await asyncio.wait_for(runtime.run(FORGED_CALLS, None, limits, slow), 60)
        assert result.failure is not None
        assert result.failure.kind == "timeout"
        await asyncio.sleep(0)
    assert made == limits.in_flight


async def test_frames_that_are_left_when_a_program_is_stopped_are_not_read() -> None:
    made: list[str] = []

    async with opened("subprocess") as runtime:

        async def stop(call: GuestCall) -> object:
            made.append(call.name)
            runtime.cancel("mine")
            await asyncio.sleep(0)
            return None

        result = await runtime.run(FORGED_CALLS, None, RunLimits(in_flight=1), stop, run_id="mine")
    assert result.failure is not None
    assert result.failure.kind == "cancelled"
    assert made == ["slow"]


@every_row("kind", ["cancelled", "timeout", "calls", "crashed", "output"])
async def test_a_guest_cannot_report_what_only_the_host_knows(kind: str) -> None:
    code = (
        f"driver = {SNIPPETS['$DRIVER']}\n"
        f"driver.pipe.send({{'t': 'done', 'n': driver.run_id, 'ok': False, 'kind': {kind!r}}})"
    )
    async with opened("subprocess") as runtime:
        failure = (await runtime.run(code, None, RunLimits(), answer)).failure
    assert failure is not None
    assert failure.kind == "protocol"


async def test_a_name_of_any_length_never_reaches_the_yard() -> None:
    async def never(_call: GuestCall) -> object:
        raise AssertionError

    async with opened("subprocess") as runtime:
        code = "try: await call_tool('x' * 1_000_000)\nexcept ToolError as error: result = error.code"
        assert (await runtime.run(code, None, RunLimits(), never)).value == "tool_not_found"


async def test_a_guest_of_a_session_is_not_lost_when_two_runs_fail() -> None:
    async with opened("bubblewrap") as runtime:
        before = descendants(os.getpid())
        endless = asyncio.create_task(
            runtime.run("while True: pass", None, RunLimits(seconds=0.5), answer, session="mine")
        )
        await asyncio.sleep(0.1)
        queued = asyncio.create_task(runtime.run("1", None, RunLimits(), answer, session="mine"))
        await endless
        fresh = await runtime.run("2", None, RunLimits(), answer, session="mine")
        await queued
        assert (await runtime.run("3", None, RunLimits(), answer, session="mine")).value == 3
        await runtime.end_session("mine")
        assert fresh.value == 2
        left = descendants(os.getpid()) - before
        while left:  # the guests that failed end in the background
            await asyncio.sleep(0.01)
            left = descendants(os.getpid()) - before


async def test_sessions_that_keep_a_guest_are_limited() -> None:
    async with opened("bubblewrap") as runtime:
        for number in range(32):
            await runtime.run("1", None, RunLimits(), answer, session=f"s{number}")
        with pytest.raises(RuntimeMissingError):
            await runtime.run("1", None, RunLimits(), answer, session="one more")
        await runtime.end_session("s0")
        assert (await runtime.run("1", None, RunLimits(), answer, session="one more")).value == 1
