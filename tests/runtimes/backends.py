"""The backends as tests use them: opened if they can run here, else skipped with the reason."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from callyard.runtimes.bubblewrap import Bubblewrap
from callyard.runtimes.container import Container, build_image, find_engine
from callyard.runtimes.guest_runtime import GuestRuntime, Subprocess
from callyard.runtimes.runtime import CallFailedError, GuestCall, RuntimeMissingError
from callyard.runtimes.wasm import Wasm

__all__ = [
    "BACKENDS",
    "CACHE",
    "FULL",
    "SANDBOXED",
    "NoProcess",
    "answer",
    "descendants",
    "find_wasm",
    "opened",
    "require",
    "resident_bytes",
]

SANDBOXED = ("bubblewrap", "container", "wasm")
BACKENDS = ("subprocess", *SANDBOXED)

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callyard-tests"
HYBRID = Path("/sys/fs/cgroup/unified").is_dir()
FULL = os.environ.get("CI_ATTACKS") == "full"
_skipped: dict[str, str] = {}


def make(name: str) -> GuestRuntime:
    match name:
        case "bubblewrap":
            return GuestRuntime(Bubblewrap())
        case "container":
            return GuestRuntime(Container(state_dir=str(CACHE)))
        case "wasm":
            return GuestRuntime(Wasm(find_wasm(), state_dir=str(CACHE)))
        case _:
            return GuestRuntime(Subprocess())


@asynccontextmanager
async def opened(name: str) -> AsyncGenerator[GuestRuntime]:
    if name in _skipped:
        pytest.skip(_skipped[name])
    if name == "container":
        await prepare_container()
    runtime = make(name)
    try:
        await runtime.open()
    except RuntimeMissingError as error:
        _skipped[name] = f"{name}: {error}"
        pytest.skip(_skipped[name])
    try:
        yield runtime
    finally:
        await runtime.close()


async def require(name: str) -> None:
    """Skip a test, with the reason, where a backend cannot run."""
    async with opened(name):
        pass


async def prepare_container() -> None:
    """Build the image once; a hybrid of cgroup v1 and v2, as some build machines have, needs runc."""
    if HYBRID and shutil.which("runc") and "CONTAINERS_CONF" not in os.environ:
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / "containers.conf").write_text('[engine]\nruntime = "runc"\n')
        os.environ["CONTAINERS_CONF"] = str(CACHE / "containers.conf")
    probe = await Container(state_dir=str(CACHE)).probe()
    if not probe.available:
        try:
            await build_image(await find_engine(), state_dir=str(CACHE))
        except RuntimeMissingError as error:
            _skipped["container"] = f"container: {error}"
            pytest.skip(_skipped["container"])


def find_wasm() -> str:
    """Return the CPython build for WASI that 'scripts/install-test-packages' fetched."""
    return os.environ.get("CALLYARD_TEST_WASM") or str(CACHE / "python.wasm")


class NoProcess:
    """The process of a guest that has none of its own."""

    async def send_signal(self, number: int) -> bool:
        return False

    async def end(self, grace: float) -> int | None:
        return None


async def answer(call: GuestCall) -> object:
    """Answer like a yard with a few tools."""

    match call.name:
        case "echo" | "yard.echo":
            return msgspec.json.decode(call.arguments)
        case "big":
            return "x" * (1 << 20)
        case "largest":
            return "x" * (3 * 1024 * 1024 - 100)
        case "slow":
            await asyncio.sleep(60)
            return None
        case _:
            raise CallFailedError(
                {
                    "code": "tool_not_found",
                    "message": "There is no such tool.",
                    "details": {"similar": ["echo"]},
                    "retryable": False,
                }
            )


def descendants(pid: int) -> set[int]:
    """Return the living processes below a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":  # a zombie has ended; a zygote waits for it when it forks again
                children.setdefault(int(parent), []).append(int(entry.name))
    found, todo = set[int](), [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
