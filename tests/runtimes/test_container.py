"""The backend `container` with a program in place of the engine, so that its faults can be chosen."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from backends import answer, descendants

from callyard.runtimes.container import Container, Engine, build_image, find_engine
from callyard.runtimes.guest_runtime import GuestRuntime
from callyard.runtimes.process import server_id
from callyard.runtimes.runtime import RunLimits, RuntimeMissingError, RuntimeSettings
from callyard.runtimes.selection import Runtimes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guests in containers need Linux")
PODMAN = {
    "host": {"cgroupVersion": "v2", "cgroupControllers": ["memory", "pids", "cpu"], "security": {"rootless": False}},
    "version": {"Version": "5.0"},
}
ENGINE = """#!{python} -IB
import json, os, sys
from pathlib import Path
answers, arguments = json.loads(Path({state!r}).read_text()), sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
answer = answers.get(arguments[0], "")
if answer is None:
    sys.exit("the engine refused")
if arguments[0] == "import":
    sys.stdin.buffer.read()
if arguments[0] == "run":
    os.execv(sys.executable, [sys.executable, *arguments[arguments.index("-I"):]])
print(answer)
"""


class FakeEngine:
    """A program that answers like an engine and runs guests as plain processes."""

    def __init__(self, folder: Path, name: str = "podman") -> None:
        self.state_dir = str(folder / "state")
        self._state, self._log = folder / "answers.json", folder / "log.jsonl"
        self._answers: dict[str, str | None] = {"info": json.dumps(PODMAN), "image": "sha256:abc"}
        self.program = folder / name
        self.program.write_text(ENGINE.format(python=sys.executable, state=str(self._state), log=str(self._log)))
        self.program.chmod(0o755)
        self.tell()

    def tell(self, **answers: str | None) -> None:
        """Set what it answers to commands; `None` is a failure."""
        self._answers |= answers
        self._state.write_text(json.dumps(self._answers))

    def asked(self, command: str) -> list[list[str]]:
        """Return the arguments of the commands with this name."""
        lines: list[list[str]] = [json.loads(line) for line in self._log.read_text().splitlines()]
        return [line for line in lines if line[0] == command]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    monkeypatch.setenv("PATH", str(tmp_path))
    return FakeEngine(tmp_path)


async def build(engine: FakeEngine) -> str:
    return await build_image(await find_engine(), state_dir=engine.state_dir)


async def test_a_machine_without_an_engine_gets_an_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    probe = await Container(state_dir=str(tmp_path)).probe()
    assert not probe.available
    assert probe.install
    with pytest.raises(RuntimeMissingError):
        await Container(state_dir=str(tmp_path)).open()


@pytest.mark.parametrize("info", [None, "no JSON", "[]", "{}"])
async def test_an_engine_that_does_not_answer_is_not_used(engine: FakeEngine, info: str | None) -> None:
    engine.tell(info=info)
    with pytest.raises(RuntimeMissingError):
        await find_engine()


async def test_an_image_must_be_built_here_and_stay_the_same(engine: FakeEngine) -> None:
    engine.tell(image=None)
    container = Container(state_dir=engine.state_dir)
    missing = await container.probe()
    engine.tell(image="sha256:abc")
    foreign = await container.probe()
    assert await build(engine) == "abc"
    built = await container.probe()
    engine.tell(image="sha256:other")
    changed = await container.probe()
    assert [probe.available for probe in (missing, foreign, built, changed)] == [False, False, True, False]
    assert missing.install == foreign.install == changed.install != ""
    assert (built.version, built.unenforced) == ("podman 5.0", {})


async def test_an_image_that_cannot_be_imported_says_why(engine: FakeEngine) -> None:
    engine.tell(**{"import": None})
    with pytest.raises(RuntimeMissingError, match="the engine refused"):
        await build(engine)


@pytest.fixture
async def built(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    def write_nothing(_interpreter: object, _file: object) -> None:
        """Leave the image empty: this engine does not read it, and it takes seconds."""

    monkeypatch.setattr("callyard.runtimes.container._write_root", write_nothing)
    await build(engine)
    return engine


async def test_programs_run_in_containers_that_are_removed_afterwards(built: FakeEngine) -> None:
    runtime = GuestRuntime(Container(state_dir=built.state_dir))
    await runtime.open()
    results = [await runtime.run(f"{n} + 1", None, RunLimits(), answer) for n in range(3)]
    await runtime.close()
    assert [result.value for result in results] == [1, 2, 3]
    names = {run[run.index("--name") + 1] for run in built.asked("run")}
    assert len(names) >= 3
    assert {removed[-1] for removed in built.asked("rm")} == names
    assert all(
        flag in built.asked("run")[0] for flag in ("--read-only", "--cap-drop", "--memory", "--pids-limit", "--cpus")
    )
    with pytest.raises(RuntimeMissingError):
        await runtime.run("1", None, RunLimits(), answer)


async def test_only_containers_of_dead_servers_are_removed_at_the_start(built: FakeEngine) -> None:
    host, pid, started = server_id().split("/")
    servers = {
        "living": server_id(),
        "dead": f"{host}/{pid}/{int(started) + 1}",
        "elsewhere": f"other-{host}/{pid}/1",
        "odd": "",
    }
    built.tell(ps=json.dumps([{"Id": name, "Labels": {"callyard.server": server}} for name, server in servers.items()]))
    container = Container(state_dir=built.state_dir)
    await container.open()
    assert built.asked("rm") == [["rm", "--force", "--time", "0", "dead"]]
    await container.close()


async def test_docker_lists_its_containers_in_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, pid, started = server_id().split("/")
    monkeypatch.setenv("PATH", str(tmp_path))
    docker = FakeEngine(tmp_path, "docker")
    docker.tell(info=json.dumps({"ServerVersion": "25"}), image=None)
    docker.tell(ps=f"living {server_id()}\ndead {host}/{pid}/{int(started) + 1}\nodd")
    with pytest.raises(RuntimeMissingError, match="not built"):  # containers are removed nevertheless
        await Container(state_dir=docker.state_dir).open()
    assert docker.asked("rm") == [["rm", "--force", "dead"]]


@pytest.mark.parametrize("listing", [None, "no JSON"])
async def test_a_list_of_containers_that_cannot_be_read_removes_nothing(built: FakeEngine, listing: str | None) -> None:
    built.tell(ps=listing)
    container = Container(state_dir=built.state_dir)
    await container.open()
    assert built.asked("rm") == []
    await container.close()


async def test_limits_that_the_engine_cannot_keep_are_not_asked_of_it(built: FakeEngine) -> None:
    host: dict[str, Any] = {**PODMAN["host"], "cgroupVersion": "v1", "security": {"rootless": True}}
    built.tell(info=json.dumps({**PODMAN, "host": host}))
    container = Container(state_dir=built.state_dir)
    probe = await container.probe()
    await container.open()
    await container.close()
    assert set(probe.unenforced) == {"memory", "pids", "cpu"}
    assert not {"memory", "pids", "cpu"} & set(probe.enforced)
    assert not {"--memory", "--pids-limit", "--cpus"} & set(built.asked("run")[0])


async def test_a_container_that_does_not_start_says_why(built: FakeEngine) -> None:
    built.tell(run=None)
    with pytest.raises(RuntimeMissingError, match="the engine refused"):
        await Container(state_dir=built.state_dir).open()


async def test_a_container_that_died_in_the_pool_is_replaced(built: FakeEngine) -> None:
    container = Container(state_dir=built.state_dir)
    await container.open()
    pooled = [await task for task in container._pool]  # pyright: ignore[reportPrivateUsage] - they die from outside
    for guest in pooled:
        await guest.close()
    guest = await container.launch(RunLimits())
    assert (await guest.run("1", None, RunLimits(), answer)).value == 1
    await guest.close()
    await container.close()


async def test_a_container_that_died_by_itself_is_not_given_to_a_program(built: FakeEngine) -> None:
    others = descendants(os.getpid())  # servers of other tests
    container = Container(state_dir=built.state_dir)
    await container.open()
    pooled = [await task for task in container._pool]  # pyright: ignore[reportPrivateUsage] - they die from outside
    for pid in descendants(os.getpid()) - others:
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        while any(guest.alive for guest in pooled):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    guest = await container.launch(RunLimits())
    assert (await guest.run("1", None, RunLimits(), answer)).value == 1
    await guest.close()
    await container.close()
    names = {run[run.index("--name") + 1] for run in built.asked("run")}
    assert {removed[-1] for removed in built.asked("rm")} == names


async def test_a_container_that_did_not_start_in_the_pool_is_forgotten(built: FakeEngine) -> None:
    container = Container(state_dir=built.state_dir)
    await container.open()
    pool = container._pool  # pyright: ignore[reportPrivateUsage] - what fails there is told to nobody
    guests = [await container.launch(RunLimits())]
    built.tell(run=None)
    await asyncio.wait(pool)
    built.tell(run="")
    for _ in range(3):
        guests.append(await container.launch(RunLimits()))  # noqa: PERF401 - one after the other
    assert [(await guest.run("1", None, RunLimits(), answer)).value for guest in guests] == [1] * 4
    for guest in guests:
        await guest.close()
    await container.close()


async def test_containers_of_dead_servers_are_removed_whichever_backend_is_chosen(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, pid, started = server_id().split("/")
    engine.tell(ps=json.dumps([{"Id": "dead", "Labels": {"callyard.server": f"{host}/{pid}/{int(started) + 1}"}}]))
    monkeypatch.setattr("callyard.runtimes.selection._cleaned", set[int]())
    async with Runtimes(RuntimeSettings(enabled=True, profile="dev", allow_unsafe=True)).open() as runtimes:
        await runtimes.selected()
    assert engine.asked("rm") == [["rm", "--force", "--time", "0", "dead"]]


async def test_a_guest_in_a_container_is_frozen_by_its_engine(built: FakeEngine) -> None:
    container = Container(state_dir=built.state_dir)
    await container.open()
    guest = await container.launch(RunLimits())
    assert not await guest.freeze(), "no program runs"
    cast("Any", guest)._run = SimpleNamespace(stop=str)
    assert await guest.freeze()
    await guest.thaw()
    built.tell(kill=None)
    assert not await guest.freeze()
    await guest.close()
    await container.close()
    assert [asked[2] for asked in built.asked("kill")] == ["SIGSTOP", "SIGCONT", "SIGSTOP"]


def test_docker_gets_no_flags_of_podman() -> None:
    engine = Engine("/usr/bin/docker", "25", {})
    arguments = Container()._argv(engine, "name")  # pyright: ignore[reportPrivateUsage] - no docker is needed to read them
    assert not {"--read-only-tmpfs=false", "--no-hosts"}.intersection(arguments)


@pytest.mark.parametrize("program", ["/usr/bin/docker", "/usr/bin/podman"])
def test_a_container_sees_neither_the_hosts_devices_nor_its_hosts_file(program: str) -> None:
    arguments = Container()._argv(Engine(program, "5", {}), "name")  # pyright: ignore[reportPrivateUsage] - as above
    mounts = [arguments[place + 1].partition(":")[0] for place, part in enumerate(arguments) if part == "--tmpfs"]
    assert mounts == ["/sys", "/tmp"]  # noqa: S108 - inside the container
    assert ("--no-hosts" in arguments) is program.endswith("podman")  # docker writes a file of its own
