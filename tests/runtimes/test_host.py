"""The host with guests that misbehave, and what is left when the yard is killed."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backends import answer, descendants, opened, require

from toolyard.runtimes.container import Engine, read_docker, read_podman
from toolyard.runtimes.guest import Driver, Pipe
from toolyard.runtimes.host import Guest
from toolyard.runtimes.process import Subprocess, is_orphan, server_id
from toolyard.runtimes.runtime import GuestCall, RunLimits, RunResult, RuntimeMissingError

FLOODS = {
    "output": "while True: print('x' * 100_000)",
    "unread replies": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "for n in range(900): d.pipe.send({'t': 'call', 'n': d.run_id, 'id': n, 'name': 'big', 'args': {}})\nwhile True: pass"
    ),
    "nested value": "[[] for n in range(600_000)]",
    "nested arguments": (
        "import asyncio\nx = [[] for n in range(90_000)]\nawait asyncio.gather(*[call_tool('slow', {'x': x}) for m in range(20)])"
    ),
    "garbage": "import os\nwhile True:\n    for n in range(3, 12):\n        try: os.write(n, os.urandom(9999))\n        except OSError: 0",
}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_costs_the_host_little_memory(flood: str) -> None:
    async with opened("bubblewrap") as runtime:
        await runtime.run("1", None, RunLimits(), answer)
        most, before = 0, resident_bytes()

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, resident_bytes())
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        await runtime.run(FLOODS[flood], None, RunLimits(seconds=2), answer)
        watching.cancel()
        assert most - before < 50 * 1024 * 1024
        assert (await runtime.run("1", None, RunLimits(), answer)).value == 1


VICTIM = """
import asyncio, sys
from toolyard import Yard
from toolyard.runtimes.settings import RuntimeSettings
async def main():
    backend = None if sys.argv[1] == 'dev' else 'bubblewrap'
    runtime = RuntimeSettings(enabled=True, profile=sys.argv[1], backend=backend, allow_unsafe=True)
    async def ready() -> str:
        print('ready', flush=True)
        return 'ready'
    async with Yard(tools=[ready], runtime=runtime, allow_eval=True) as yard:
        await yard.call('execute_code', {'code': 'await tools.yard.ready()\\nwhile True: pass'})
asyncio.run(main())
"""


def wait_until_gone(pids: set[int]) -> list[int]:
    """Return which processes are still there after ten seconds."""
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.02)  # nothing tells of the end of a process that is no child
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("profile", ["standard", "dev"])
async def test_sigkill_of_the_yard_leaves_no_guest_behind(profile: str) -> None:
    await require("bubblewrap")
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, profile, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    assert await asyncio.wait_for(victim.stdout.readline(), 30) == b"ready\n"
    guests = descendants(victim.pid)
    assert guests
    victim.kill()
    await victim.wait()
    assert await asyncio.to_thread(wait_until_gone, guests) == []


def folders_in(path: Path) -> list[Path]:
    return list(path.glob("toolyard-dev-*"))


@pytest.mark.skipif(sys.platform != "linux", reason="the start time of a process is read from /proc")
async def test_the_folder_of_a_killed_yard_is_removed_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, "dev", stdout=subprocess.PIPE, env=environment)
    assert victim.stdout is not None
    assert await asyncio.wait_for(victim.stdout.readline(), 30) == b"ready\n"
    (left,) = folders_in(tmp_path)
    (tmp_path / "toolyard-dev-mine").mkdir()
    living = Subprocess()
    await living.open()
    assert left.exists(), "the server lives"
    victim.kill()
    await victim.wait()
    (left / "kept").write_text("by a program")
    next_one = Subprocess()
    await next_one.open()
    assert not left.exists()
    assert len(folders_in(tmp_path)) == 3, "those of living servers and of others stay"
    await living.close()
    await next_one.close()
    assert [path.name for path in folders_in(tmp_path)] == ["toolyard-dev-mine"]


def test_only_containers_of_dead_servers_are_orphans() -> None:
    host, pid, started = server_id().split("/")
    assert not is_orphan(server_id())
    assert is_orphan(f"{host}/{pid}/{int(started) + 1}")
    assert not is_orphan(f"another-{host}/{pid}/1")
    assert not is_orphan("nonsense")


def test_limits_that_an_engine_ignores_are_found() -> None:
    rootless = {
        "host": {"security": {"rootless": True}, "cgroupVersion": "v1", "cgroupControllers": ["memory", "pids", "cpu"]},
        "version": {"Version": "4.3.1"},
    }
    engine = read_podman("podman", rootless)
    assert engine is not None
    assert set(engine.unenforced) == {"memory", "pids", "cpu"}
    assert engine.is_podman
    assert read_podman("podman", {}) is None
    assert read_docker("docker", {}) is None
    assert read_docker("docker", {"ServerVersion": "25", "PidsLimit": False}) == Engine(
        "docker", "25", {"pids": "the engine says that it cannot limit it"}
    )


class InProcess:
    """A guest whose driver runs in a thread of this process, so that its lines are seen by coverage."""

    async def __aenter__(self) -> Guest:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        self._theirs = theirs
        kept = sys.stdout, sys.stderr
        self._thread = threading.Thread(target=lambda: Driver(Pipe(theirs.fileno(), theirs.fileno())).serve())
        self._thread.start()
        reader, writer = await asyncio.open_connection(sock=ours)
        self._kept = kept

        async def end() -> int | None:
            return None

        guest = self._guest = Guest(reader, writer, end)
        await guest.greet()
        return guest

    async def __aexit__(self, *exc: object) -> None:
        await self._guest.close()
        await asyncio.to_thread(self._thread.join, 10)
        self._theirs.close()
        sys.stdout, sys.stderr = self._kept


async def in_process(code: str, **limits: Any) -> RunResult:
    async with InProcess() as guest:
        return await guest.run(code, {"x": 1}, RunLimits(**{"seconds": 10, **limits}), answer)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("inputs['x'] + 1", 2),
        ("print('x' * 9000, flush=True)\nresult = 3", 3),
        ("import asyncio\nawait asyncio.gather(*[tools.yard.echo(n=n) for n in range(30)])\nrepr(tools.yard.echo)", "tools.yard.echo"),
        ("import asyncio\nawait asyncio.to_thread(lambda: 3)", 3),
        ("progress(1)\nawait progress(2)\n[hasattr(tools, '__len__'), await call_tool('echo', {'a': 1})]", [False, {"a": 1}]),
        (
            "try:\n    await search_tools('x')\nexcept ToolError as e:\n    result = [e.code, str(e)]",
            ["tool_not_found", "tool_not_found: There is no such tool."],
        ),
        ("import asyncio\ntry:\n    await asyncio.wait_for(call_tool('slow'), 0.05)\nexcept TimeoutError:\n    result = 'late'", "late"),
        ("raise SystemExit(0)", None),
        ("import sys\nsys.stdout.write('')\n[sys.stdout.writable()]", [True]),
    ],
)
async def test_the_driver_answers_with_the_value(code: str, value: object) -> None:
    result = await in_process(code)
    assert (result.value, result.failure) == (value, None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("x = (", "syntax"),
        ("{1}", "value"),
        ("call_tool('echo')", "value"),
        ("tools.a.b(1)", "exception"),
        ("import sys\nsys.stdout.write(1)", "exception"),
        ("raise SystemExit(1)", "exception"),
        ("'x' * 200", "value_size"),
        ("class Bad(Exception):\n    def __str__(self): raise KeyError\nraise Bad", "exception"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e", "exception"),
        ("await call_tool('missing')", "exception"),
        ("raise MemoryError", "memory"),
    ],
)
async def test_the_driver_says_why_there_is_no_value(code: str, kind: str) -> None:
    result = await in_process(code, value_bytes=100)
    assert result.failure is not None
    assert result.failure.kind == kind


async def test_a_guest_that_is_no_driver_is_refused() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - the signature of the standard library
    reader, writer = await asyncio.open_connection(sock=ours)

    async def end() -> int | None:
        return None

    with theirs:
        theirs.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(RuntimeMissingError):
            await Guest(reader, writer, end).greet()


async def test_a_frame_of_an_unknown_kind_ends_the_guest() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - the signature of the standard library
    reader, writer = await asyncio.open_connection(sock=ours)

    async def end() -> int | None:
        return None

    guest = Guest(reader, writer, end)
    with theirs:
        running = asyncio.create_task(guest.run("1", None, RunLimits(), answer))
        start = await asyncio.to_thread(theirs.recv, 65536)
        number = msgspec.json.decode(start[4:])["n"]
        body = msgspec.json.encode({"t": "what", "n": number})
        theirs.sendall(len(body).to_bytes(4, "big") + body)
        result = await running
    assert result.failure is not None
    assert result.failure.kind == "protocol"
    assert not guest.alive


async def test_a_guest_that_dies_of_sigkill_counts_as_out_of_memory() -> None:
    async with opened("subprocess") as runtime:
        result = await runtime.run(f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})", None, RunLimits(), answer)
    assert result.failure is not None
    assert result.failure.kind == "memory"


async def test_a_run_whose_guest_cannot_start_is_refused() -> None:
    from toolyard.runtimes.guest_runtime import GuestRuntime  # noqa: PLC0415 - backends are imported where they are there
    from toolyard.runtimes.host import GuestSettings, start_guest  # noqa: PLC0415 - backends are imported where they are there

    class Broken(Subprocess):
        async def launch(self, limits: RunLimits) -> Guest:
            return await start_guest(["/bin/sh", "-c", "echo broken >&2"], GuestSettings(), env={})

    runtime = GuestRuntime(Broken())
    for session in ("", "a"):
        with pytest.raises(RuntimeMissingError, match="broken"):
            await runtime.run("1", None, RunLimits(), answer, session=session)
    with pytest.raises(RuntimeMissingError):
        await start_guest(["/no/such/program"], GuestSettings(), env={})
    await runtime.close()


async def test_a_zygote_that_died_is_started_anew() -> None:
    from toolyard.runtimes.bubblewrap import Bubblewrap  # noqa: PLC0415 - backends are imported where they are there
    from toolyard.runtimes.guest_runtime import GuestRuntime  # noqa: PLC0415 - backends are imported where they are there

    await require("bubblewrap")
    launcher = Bubblewrap()
    runtime = GuestRuntime(launcher)
    await runtime.open()
    child = launcher._child  # pyright: ignore[reportPrivateUsage] - the test kills it from outside
    assert child is not None
    await child.kill()

    async def no(_call: GuestCall) -> object:
        return None

    assert (await runtime.run("1", None, RunLimits(), no)).value == 1
    await runtime.close()
