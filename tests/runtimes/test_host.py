"""The host with guests that misbehave, and what is left when the yard is killed."""

import asyncio
import json
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
from backends import BACKENDS, CACHE, NoProcess, answer, descendants, find_wasm, opened, require, resident_bytes
from table_tests import every_row

from callyard.runtimes.container import Engine, find_engine, read_docker, read_podman
from callyard.runtimes.guest import Driver, Pipe
from callyard.runtimes.guest_runtime import Subprocess
from callyard.runtimes.host import Guest
from callyard.runtimes.process import Child, is_orphan, remove_orphans, run_program, server_id, spawn
from callyard.runtimes.runtime import (
    CallFailedError,
    GuestCall,
    RunLimits,
    RunResult,
    RuntimeBusyError,
    RuntimeMissingError,
    RuntimeSettings,
)
from callyard.runtimes.selection import Runtimes

FLOODS = {
    "output": "while True: print('x' * 100_000)",
    "unread replies": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "for n in range(900): d.pipe.send({'t': 'call', 'n': d.run_id, 'id': n, 'name': 'big', 'args': "
        "{}})\nwhile True: pass"
    ),
    "largest unread replies": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "for n in range(900): d.pipe.send({'t': 'call', 'n': d.run_id, 'id': n, 'name': 'largest', 'args': "
        "{}})\nwhile True: pass"
    ),
    "names": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "for n in range(900): d.pipe.send({'t': 'call', 'n': d.run_id, 'id': n, 'name': 'x' * 1_900_000, 'args': {}})"
    ),
    "progress": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\nn = 0\n"
        "while True: n += 1; d.pipe.send({'t': 'progress', 'n': d.run_id, 'done': n, 'text': 'x' * 1_900_000})"
    ),
    "nested value": "[[] for n in range(600_000)]",
    "nested objects": "[{'': 0} for n in range(260_000)]",
    "as many objects as fit": "[{'': 0} for n in range(149_000)]",
    "forged value": (
        "import gc, json\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "d.pipe.send({'t': 'done', 'n': d.run_id, 'ok': True, 'v': [{'': 0} for n in range(158_000)]})"
    ),
    "forged error of a tool": (
        "import gc\nd = [t for t in gc.get_objects() if type(t).__name__ == 'Driver'][0]\n"
        "d.pipe.send({'t': 'done', 'n': d.run_id, 'ok': False, 'tool_error': {'a': [{'': 0} for n in range(158_000)]}})"
    ),
    "nested arguments": (
        "import asyncio\nx = [[] for n in range(90_000)]\nawait asyncio.gather(*[call_tool('slow', {'x': x}) "
        "for m in range(20)])"
    ),
    "garbage": "import os\nwhile True:\n    for n in range(3, 12):\n        try: os.write(n, "
    "os.urandom(9999))\n        except OSError: 0",
}


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
from callyard import Operation, Yard, tool
from callyard.policy.settings import Rule
from callyard.runtimes.runtime import RuntimeSettings
async def main():
    name, cache, wasm, program = sys.argv[1:]
    options = {'profile': 'dev'} if name == 'subprocess' else {'backend': name, 'wasm_path': wasm}
    runtime = RuntimeSettings(enabled=True, allow_unsafe=True, **options)
    async def ready() -> str:
        print('ready', flush=True)
        return 'ready'
    @tool(operation='destroy')
    async def wipe() -> None:
        raise AssertionError
    ask = Rule(decision='ask', operations=(Operation.DESTROY,))
    yard = Yard(tools=[ready, wipe], runtime=runtime, allow_eval=True, rules=[ask])
    yard.state_dir = cache
    async with yard:
        print(await yard.call('execute_code', {'code': 'await tools.yard.ready()\\n' + program}), flush=True)
asyncio.run(main())
"""


async def start_victim(name: str, folder: Path, program: str = "while True: pass") -> asyncio.subprocess.Process:
    """Start a yard whose program never ends, with a directory of its own for temporary files."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = (sys.executable, "-c", VICTIM, name, str(CACHE), find_wasm(), program)
    victim = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    assert victim.stdout is not None
    assert await asyncio.wait_for(victim.stdout.readline(), 60) == b"ready\n"
    return victim


async def wait_until_gone(pids: set[int]) -> list[int]:
    """Return which processes are still there after a minute."""
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)) and time.monotonic() < deadline:  # noqa: ASYNC110 - nothing tells of the end of a process that is no child
        await asyncio.sleep(0.02)
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def containers_of(pid: int) -> list[str]:
    """Return the containers of a server."""
    engine = await find_engine()
    listing = await asyncio.create_subprocess_exec(
        engine.program, "ps", "--all", "--quiet", "--filter", "label=callyard.server", stdout=subprocess.PIPE
    )
    ids = (await listing.communicate())[0].decode().split()
    inspecting = await asyncio.create_subprocess_exec(
        engine.program, "inspect", *ids, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    found: list[Any] = json.loads((await inspecting.communicate())[0] or "[]") if ids else []
    return [one["Id"] for one in found if one["Config"]["Labels"]["callyard.server"].split("/")[1] == str(pid)]


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def every_process() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("program", ["while True: pass", "await tools.yard.wipe()"], ids=["computing", "frozen"])
@pytest.mark.parametrize("name", BACKENDS)
async def test_sigkill_of_the_yard_leaves_nothing_behind(
    name: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(name) as living:  # of this process: it must not be touched
        before = set(filter(is_stopped, every_process()))
        victim = await start_victim(name, tmp_path, program)
        async with asyncio.timeout(60):
            while "wipe" in program and not set(filter(is_stopped, every_process())) - before:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
        guests = descendants(victim.pid)
        assert guests
        assert name != "container" or await containers_of(victim.pid)
        victim.kill()
        await victim.wait()
        if name != "container":  # an engine keeps containers alive; they are removed by the next start
            assert await wait_until_gone(guests) == []
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        wasm = find_wasm() if name == "wasm" else None
        is_dev = name == "subprocess"
        settings = RuntimeSettings(
            enabled=True, profile="dev" if is_dev else "standard", allow_unsafe=True, wasm_path=wasm
        )
        settings = msgspec.structs.replace(settings, backend=None if is_dev else name)
        async with Runtimes(settings, state_dir=str(CACHE)).open() as runtimes:
            await runtimes.selected()
            assert await wait_until_gone(guests) == []
            assert name != "container" or await containers_of(victim.pid) == []
            assert (await living.run("1 + 1", None, RunLimits(), answer)).value == 2
    assert folders_in(tmp_path, "*") == []


def folders_in(path: Path, pattern: str = "callyard-guests-*") -> list[Path]:
    return list(path.glob(pattern))


@pytest.mark.skipif(sys.platform != "linux", reason="the start time of a process is read from /proc")
async def test_only_folders_of_dead_servers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = await start_victim("subprocess", tmp_path)
    (left,) = folders_in(tmp_path)
    (tmp_path / "callyard-guests-mine").mkdir()
    living = Subprocess()
    await living.open()
    remove_orphans()
    assert left.exists(), "the server lives"
    victim.kill()
    await victim.wait()
    (left / "kept").write_text("by a program")
    remove_orphans()
    assert not left.exists()
    assert len(folders_in(tmp_path)) == 2, "those of living servers and of others stay"
    await living.close()
    assert [path.name for path in folders_in(tmp_path)] == ["callyard-guests-mine"]


def test_only_containers_of_dead_servers_are_orphans() -> None:
    host, pid, started = server_id().split("/")
    assert not is_orphan(server_id())
    assert is_orphan(f"{host}/{pid}/{int(started) + 1}")
    assert not is_orphan(f"another-{host}/{pid}/1")
    assert not is_orphan(f"{host}0/{pid}/1"), "another pid namespace of this machine"
    assert not is_orphan("nonsense")


def test_the_server_of_another_user_is_alive_where_the_system_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = server_id().split("/")[0]

    def hidden(_pid: int) -> str:
        return ""

    monkeypatch.setattr("callyard.runtimes.process._started", hidden)
    assert not is_orphan(f"{host}/{os.getppid()}/1")
    assert is_orphan(f"{host}/{2**22 + 1}/1"), "no such process"


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

        guest = self._guest = Guest(reader, writer, NoProcess())
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


@every_row(
    ("code", "value"),
    [
        ("inputs['x'] + 1", 2),
        ("print('x' * 9000, flush=True)\nresult = 3", 3),
        (
            "import asyncio\nawait asyncio.gather(*[tools.yard.echo(n=n) for n in range(30)])\nrepr(tools.yard.echo)",
            "tools.yard.echo",
        ),
        ("import asyncio\nawait asyncio.to_thread(lambda: 3)", 3),
        (
            "progress(1)\nawait progress(2)\n[hasattr(tools, '__len__'), await call_tool('echo', {'a': 1})]",
            [False, {"a": 1}],
        ),
        (
            "try:\n    await search_tools('x')\nexcept ToolError as e:\n    result = [e.code, str(e)]",
            ["tool_not_found", "tool_not_found: There is no such tool."],
        ),
        (
            (
                "import asyncio\ntry:\n    await asyncio.wait_for(call_tool('slow'), 0.05)\nexcept TimeoutError:\n  "
                "  result = 'late'"
            ),
            "late",
        ),
        ("raise SystemExit(0)", None),
        ("import sys\nsys.stdout.write('')\n[sys.stdout.writable()]", [True]),
    ],
)
async def test_the_driver_answers_with_the_value(code: str, value: object) -> None:
    result = await in_process(code)
    assert (result.value, result.failure) == (value, None)


@every_row(
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

    with theirs:
        theirs.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(RuntimeMissingError):
            await Guest(reader, writer, NoProcess()).greet()


@every_row(
    ("frame", "kind"),
    [
        ({"t": "what"}, "protocol"),
        ({"t": "what", "n": "another"}, "protocol"),
        ({"t": "drop"}, "output"),
        ({"t": "drop", "n": "another"}, "output"),
        ({"t": "progress"}, "output"),
        ({"t": "progress", "n": "another"}, "output"),
        ({"t": "call", "n": "another", "name": "x"}, "output"),
        ({"t": "done", "n": "another"}, "output"),
        ({"t": "out"}, "output"),
    ],
    ids=str,
)
async def test_every_frame_that_is_neither_a_call_nor_the_end_counts_as_output(
    frame: dict[str, Any], kind: str
) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # noqa: FBT003 - the signature of the standard library
    reader, writer = await asyncio.open_connection(sock=ours)

    guest = Guest(reader, writer, NoProcess())
    with theirs:
        running = asyncio.create_task(guest.run("1", None, RunLimits(seconds=5, output_bytes=1000), answer))
        start = await asyncio.to_thread(theirs.recv, 65536)
        number = msgspec.json.decode(start[4:])["n"]
        body = msgspec.json.encode({"n": number, **frame})
        theirs.sendall((len(body).to_bytes(4, "big") + body) * 16)
        result = await running
    assert result.failure is not None
    assert result.failure.kind == kind
    assert not guest.alive


async def test_a_guest_that_dies_of_sigkill_counts_as_out_of_memory() -> None:
    async with opened("subprocess") as runtime:
        result = await runtime.run(f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})", None, RunLimits(), answer)
    assert result.failure is not None
    assert result.failure.kind == "memory"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count processor time in this way")
@pytest.mark.parametrize("name", ["subprocess", "bubblewrap", "wasm"])
async def test_a_guest_whose_processor_time_is_used_up_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await require(name)
    limits = RunLimits(cpu_seconds=2 if name == "wasm" else 1)  # CPython for WASI takes a while to start
    monkeypatch.setattr("callyard.runtimes.bubblewrap.RunLimits", lambda: limits)
    async with opened(name) as runtime:
        result = await runtime.run("print('before', flush=True)\nwhile True: pass", None, limits, answer, session="a")
    assert result.failure is not None
    assert (result.failure.kind, result.stdout, result.is_lost) == ("cpu", "before\n", True)


@pytest.mark.parametrize("name", ["subprocess", "bubblewrap"])
async def test_a_guest_that_closes_its_connection_did_not_run_out_of_memory(name: str) -> None:
    async with opened(name) as runtime:
        result = await runtime.run("import os\nos.closerange(3, 60)\nwhile True: pass", None, RunLimits(), answer)
    assert result.failure is not None
    assert result.failure.kind == "crashed"


async def test_a_large_error_of_a_tool_keeps_its_code() -> None:
    async def fail(_call: GuestCall) -> object:
        raise CallFailedError({"code": "chain_step_failed", "message": "x", "data": ["y" * 1000] * 100})

    async with InProcess() as guest:
        result = await guest.run("await call_tool('x')", None, RunLimits(), fail)
    assert result.failure is not None
    assert result.failure.tool_error == {"code": "chain_step_failed", "message": "x"}


async def test_a_run_whose_guest_cannot_start_is_refused() -> None:
    from callyard.runtimes.guest_runtime import GuestRuntime  # noqa: PLC0415 - backends are imported where they are there
    from callyard.runtimes.host import GuestSettings, start_guest  # noqa: PLC0415 - backends are imported where they are there

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
    from callyard.runtimes.bubblewrap import Bubblewrap  # noqa: PLC0415 - backends are imported where they are there
    from callyard.runtimes.guest_runtime import GuestRuntime  # noqa: PLC0415 - backends are imported where they are there

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


@pytest.mark.parametrize("work", ["open", "probe"])
async def test_a_sandbox_whose_start_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    from callyard.runtimes import bubblewrap  # noqa: PLC0415 - backends are imported where they are there

    await require("bubblewrap")
    children: list[Child] = []
    started = asyncio.Event()

    async def spawn_and_tell(*arguments: Any, **options: Any) -> Child:
        children.append(await spawn(*arguments, **options))
        started.set()
        return children[0]

    monkeypatch.setattr(bubblewrap, "spawn", spawn_and_tell)
    starting = asyncio.create_task(getattr(bubblewrap.Bubblewrap(), work)())
    await started.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert children[0].connection.fileno() == -1
    assert await children[0].kill(60) == -signal.SIGKILL  # it had ended already; left alone it would end with 0


async def test_a_child_whose_end_is_cancelled_is_killed_all_the_same() -> None:
    child = await spawn(["/bin/sleep", "60"], env={})
    ending = asyncio.create_task(child.end(60))
    await asyncio.sleep(0)  # lets it begin
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    child.connection.close()

    assert await child.kill(60) == -signal.SIGKILL
    assert child.stderr_tail() == ""  # its file is closed


async def test_a_forked_guest_whose_end_is_cancelled_is_killed_all_the_same() -> None:
    from callyard.runtimes.bubblewrap import _Forked  # noqa: PLC0415 # pyright: ignore[reportPrivateUsage] - backends are imported where they are there; only here its end is cancelled

    process = await asyncio.create_subprocess_exec("/bin/sleep", "60")
    ending = asyncio.create_task(_Forked(os.pidfd_open(process.pid)).end(60))
    await asyncio.sleep(0)  # lets it begin
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending

    assert await process.wait() == -signal.SIGKILL


def _refuse_pair(*_args: object) -> Any:
    raise OSError(24, "Too many open files")


def _lose_handle(*arguments: Any) -> Any:
    answer, handles, flags, address = _recv_fds(*arguments)
    for handle in handles:
        os.close(handle)
    return answer, [], flags, address


def _refuse_fork(*arguments: Any) -> Any:
    return b"e", *_lose_handle(*arguments)[1:]


_recv_fds = socket.recv_fds


@every_row(
    ("where", "fault"),
    [
        ("socket.socketpair", _refuse_pair),
        ("socket.recv_fds", _lose_handle),
        ("socket.recv_fds", _refuse_fork),
        ("callyard.runtimes.bubblewrap._START_S", 0),
    ],
    ids=["no socket", "no descriptor", "no process", "no answer"],
)
async def test_a_guest_that_cannot_be_forked_ends_no_other_program(where: str, fault: Any) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def wait(_call: GuestCall) -> object:
        started.set()
        await release.wait()
        return "waited"

    async with opened("bubblewrap") as runtime:
        other = asyncio.create_task(runtime.run("await call_tool('x')", None, RunLimits(), wait))
        await started.wait()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(where, fault)
            with pytest.raises(RuntimeBusyError):
                await runtime.run("1", None, RunLimits(), answer)
        release.set()
        assert (await other).value == "waited"
        loop = await runtime.run("while True: pass", None, RunLimits(seconds=0.3), answer)
        assert loop.failure is not None
        assert loop.failure.kind == "timeout"
        assert (await runtime.run("1", None, RunLimits(), answer)).value == 1


async def test_a_program_whose_run_is_cancelled_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    running = asyncio.ensure_future(run_program("/bin/sh", "-c", f"echo $$ > {pipe}; exec sleep 60"))
    pid = int(await asyncio.to_thread(pipe.read_text))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
