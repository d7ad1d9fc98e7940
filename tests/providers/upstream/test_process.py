import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from wired import SERVER, RecordingListener, Wired, children, descriptors, is_alive, until

from callyard.providers.upstream import process, stdio
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.process import environment_of
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.transports import fastest_loop

CHILD_SUBREAPER = 36
CYCLES = 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give programs little time to end by themselves."""
    monkeypatch.setattr(process, "_EOF_SECONDS", 0.05)
    monkeypatch.setattr(process, "_TERM_SECONDS", 0.05)


@pytest.fixture
def first_process() -> Generator[None]:
    """Be the parent of whatever loses its own, as the first process of a container is."""
    libc = ctypes.CDLL(None)
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(CHILD_SUBREAPER, 0, 0, 0, 0)


def test_a_program_inherits_few_variables_and_gets_all_of_its_own() -> None:
    ours = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "XDG_CACHE_HOME": "/c",
        "CALLYARD_API_KEYS": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "OPENAI_API_KEY": "secret",
        "PYTHONPATH": "/ours",
    }
    settings = UpstreamSettings(command="x", env={"HOME": "/theirs", "TOKEN": "t"})

    assert environment_of(settings, ours) == {"PATH": "/bin", "HOME": "/theirs", "LC_ALL": "C", "XDG_CACHE_HOME": "/c", "TOKEN": "t"}


async def test_a_program_does_not_inherit_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SOME_API_KEY", "secret")
    async with Wired(tmp_path, env={"GIVEN": "1"}) as wired:
        names = (await wired.call("environment")).split()

    assert {"GIVEN", "PATH"} <= set(names)
    assert not {"CALLYARD_STATE_DIR", "SOME_API_KEY"} & set(names)


async def test_a_program_runs_in_its_folder_and_is_found_from_there(tmp_path: Path) -> None:
    program = tmp_path / "where"
    program.write_text('#!/bin/sh\necho "{\\"in\\":\\"$PWD\\"}"\n')
    program.chmod(0o755)
    async with Wired(tmp_path, command="./where", args=(), cwd=str(tmp_path)) as wired:
        await until(lambda: bool(wired.listener.messages))

    assert wired.listener.messages == [f'{{"in":"{tmp_path}"}}'.encode()]


async def test_a_program_is_searched_in_its_own_path(tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\necho '{}'\n")
    program.chmod(0o755)
    path = f"/nowhere:{tmp_path}:/bin"
    async with Wired(tmp_path, command="only-here", args=(), env={"PATH": path}) as wired:
        await until(lambda: bool(wired.listener.messages))


async def test_a_tilde_is_expanded_in_programs_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cat").symlink_to("/bin/cat")
    async with Wired(tmp_path, command="~/cat", args=(), cwd="~") as wired:
        await wired.ask("ping")


async def refused(tmp_path: Path, **settings: object) -> str:
    with pytest.raises(LinkError) as caught:
        await Wired(tmp_path, **settings).pipe.open(RecordingListener())
    assert caught.value.kind == "unavailable"
    assert caught.value.message == "'bad' cannot be started."
    return caught.value.private


async def test_a_program_that_cannot_be_run_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    others = set(children())
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "broken").write_bytes(b"\x00\x01 not a program")
    (tmp_path / "broken").chmod(0o755)

    assert await refused(tmp_path, command="npxx") == "There is no program 'npxx'. Install it, or give its full path."
    assert "There is no program" in await refused(tmp_path, command=str(tmp_path / "text"))
    assert "There is no program" in await refused(tmp_path, command=str(tmp_path))
    assert await refused(tmp_path, command="cat", cwd="/no/such/folder") == "There is no folder '/no/such/folder' to run it in."
    assert "cannot be run: Exec format error." in await refused(tmp_path, command=str(tmp_path / "broken"))
    assert "cannot be run: embedded null byte." in await refused(tmp_path, command="cat", args=("\0",))
    assert set(children()) <= others


@pytest.mark.usefixtures("impatient")
async def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async with Wired(tmp_path, "ignores_sigterm") as wired:
        pid = int(await wired.call("pid"))

    assert not is_alive(pid)
    assert " callyard 'bad' was ended by SIGKILL.\n" in wired.logged


@pytest.mark.usefixtures("impatient")
async def test_a_program_gets_sigterm_before_sigkill(tmp_path: Path) -> None:
    async with Wired(tmp_path, "never_reads") as wired:
        wired.send("ping")

    assert " callyard 'bad' was ended by SIGTERM.\n" in wired.logged


@pytest.mark.usefixtures("impatient", "first_process")
async def test_descendants_end_with_their_program_and_are_reaped(tmp_path: Path) -> None:
    others = set(children())
    async with Wired(tmp_path, "spawns_grandchild") as wired:
        grandchild = int(await wired.call("grandchild"))
        assert is_alive(grandchild)

    assert not is_alive(grandchild)
    assert set(children()) <= others


@pytest.mark.usefixtures("impatient")
async def test_a_server_behind_a_shell_ends_with_it(tmp_path: Path) -> None:
    script = f"{sys.executable} -I -S {SERVER} ignores_sigterm; true"
    async with Wired(tmp_path, command="sh", args=("-c", script)) as wired:
        pid = int(await wired.call("pid"))

    assert not is_alive(pid)


OURS = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from wired import Wired
async def main():
    async with Wired(Path(sys.argv[2]), sys.argv[3]) as wired:
        print(await wired.call("pid"), await wired.call("grandchild"), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["well", "ignores_sigterm", "spawns_grandchild"])
def test_when_this_process_is_killed_nothing_is_left(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", OURS, str(Path(__file__).parent), str(tmp_path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as ours:  # noqa: S603 - our own code
        assert ours.stdout is not None
        pids = [int(word) for word in ours.stdout.readline().split() if word != b"0"]
        guards = children(ours.pid)
        assert all(is_alive(pid) for pid in pids)
        ours.kill()
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in [*pids, *guards])))


def test_a_loop_that_ends_while_a_program_is_closed_ends_it_at_once(tmp_path: Path) -> None:
    wired = Wired(tmp_path, "ignores_sigterm")

    async def leave() -> int:
        await wired.pipe.open(wired.listener)
        pid = int(await wired.call("pid"))
        waiting = asyncio.ensure_future(wired.pipe.close())
        for _ in range(10):
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        waiting.cancel()
        return pid

    assert not is_alive(asyncio.run(leave()))


async def test_an_interrupted_close_may_be_repeated(tmp_path: Path) -> None:
    async with Wired(tmp_path, "ignores_sigterm") as wired:
        pid = int(await wired.call("pid"))
        waiting = asyncio.ensure_future(wired.pipe.close())
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        closing = wired.pipe._closing  # pyright: ignore[reportPrivateUsage] - cancelled as a loop does that ends
        assert closing is not None
        await asyncio.sleep(0)  # the same
        closing.cancel()
        await waiting
        assert not is_alive(pid)


def test_it_works_on_uvloop(tmp_path: Path) -> None:
    async def use() -> None:
        before = descriptors()
        for mode in ("well", "dies_midcall"):
            async with Wired(tmp_path, mode) as wired:
                await wired.ask("initialize")
                wired.send("tools/call", {"name": "die"})
                assert (await wired.end()).message == "'bad' ended with exit code 3."
        assert descriptors() <= before

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(use())


async def test_without_pidfd_a_thread_waits_for_the_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    async with Wired(tmp_path) as wired:
        os.kill(int(await wired.call("pid")), signal.SIGKILL)
        assert (await wired.end()).message == "'bad' was ended by SIGKILL."


async def test_without_a_shell_programs_run_without_a_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "_SHELL", "/no/such/shell")
    async with Wired(tmp_path) as wired:
        assert await wired.call("echo", text="hello") == "hello"

    assert "keeper_missing" in caplog.text


def is_guard(pid: int) -> bool:
    return b"callyard-guard" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.usefixtures("first_process")
async def test_after_many_starts_and_ends_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_GRACE_SECONDS", 0.01)
    commands = (("cat", ()), ("sh", ("-c", "sleep 60 >/dev/null 2>&1 & exec cat")), ("sh", ("-c", "cat; true")))
    others, opened, tasks = set(children()), descriptors(), len(asyncio.all_tasks())
    for cycle in range(CYCLES):
        command, args = commands[cycle % 3]
        async with Wired(tmp_path, command=command, args=args) as wired:
            await wired.ask("ping")
            if cycle % 2:
                os.kill(next(pid for pid in children() if pid not in others and not is_guard(pid)), signal.SIGKILL)
                await wired.end()

    assert descriptors() <= opened
    assert len(asyncio.all_tasks()) == tasks
    assert set(children()) <= others
