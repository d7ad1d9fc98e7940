"""Fixtures of the tests with foreign clients: servers as real processes, the official Python client, npm packages."""

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from callyard.config.settings import Serving
from callyard.transports.memory import Memory

HERE = Path(__file__).parent
YARD = HERE / "yard_for_clients.py"
TWIN = HERE / "sdk_twin.py"
PACKAGES = (
    "node@26.10.0",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/inspector@2.12.0",
)
CHANNELS: dict[str, dict[str, Any]] = {
    "http": {},
    "http-json": {"json_response": True},
    "http-stateless": {"stateless": True},
}


class Connect(Protocol):
    """Opens the official client at one of our doors."""

    def __call__(
        self, channel: str, mode: str, *, settings: dict[str, Any] | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Client]: ...


class Processes:
    """Servers over HTTP, each started when first wanted and ended with the tests."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def url(self, program: Path, settings: dict[str, Any]) -> str:
        """Return the address of a server with these settings."""
        asked = json.dumps({"transport": "http", "port": 0, **settings})
        key = f"{program} {asked}"
        if key not in self._running:
            process = subprocess.Popen([sys.executable, program, asked], stdout=subprocess.PIPE)  # noqa: S603 - our own
            assert process.stdout is not None
            self._running[key] = (process, process.stdout.readline().decode().strip())
        return self._running[key][1]

    def close(self) -> None:
        """End them all, and see that each ends well."""
        for process, _ in self._running.values():
            process.terminate()
        for process, _ in self._running.values():
            with process:
                assert process.wait(60) in {128 + signal.SIGTERM, -signal.SIGTERM}


@pytest.fixture(scope="session")
def processes() -> Generator[Processes]:
    started = Processes()
    yield started
    started.close()


@pytest.fixture(scope="session")
def url_of(processes: Processes) -> Callable[..., str]:
    """Return the address of our server with these settings."""

    def found(**settings: Any) -> str:
        return processes.url(YARD, settings)

    return found


@pytest.fixture(scope="session")
def twin_url(processes: Processes) -> Callable[[], str]:
    """Return the address of the official SDK's server with the same tools."""
    return lambda: processes.url(TWIN, {})


def stdio_command(program: Path, settings: dict[str, Any]) -> list[str]:
    return [sys.executable, str(program), json.dumps(settings)]


@pytest.fixture(scope="session")
def packages() -> Path:
    """Return the folder with the pinned packages of npm, which are installed once and kept for the next run."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed.")
    cache = Path(os.environ.get("CALLYARD_TEST_CACHE") or Path.home() / ".cache" / "callyard-tests")
    folder = cache / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    installed = folder / "installed.json"
    pins = json.dumps(PACKAGES)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_text() != pins:
            shutil.rmtree(folder / "node_modules", ignore_errors=True)
            (folder / "package.json").write_text('{"private": true}')
            command = [npm, "install", "--save-exact", "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603 - our own
            if done.returncode:
                pytest.skip(f"npm could not install the packages: {done.stderr.strip()[-200:]}")
            installed.write_text(pins)
    return folder


@pytest.fixture(scope="session")
def node(packages: Path) -> str:
    """Return the pinned node, which is newer than many systems'."""
    return str(packages / "node_modules" / "node" / "bin" / "node")


@pytest.fixture(scope="session")
def yard_command() -> list[str]:
    """Return what starts our server on stdio."""
    return stdio_command(YARD, {})


def load(path: Path) -> Any:
    """Return a module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def memory_streams(settings: dict[str, Any]) -> AsyncGenerator[Any]:
    """Bridge the client's streams to our memory transport."""
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](1000)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](1000)

    async def hand_in(memory: Memory) -> None:
        async for message in from_client:
            memory.send(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def hand_out(memory: Memory) -> None:
        while True:
            message = jsonrpc_message_adapter.validate_json(await memory.received.get(), by_name=False)
            await to_client.send(SessionMessage(message))

    async with (
        load(YARD).make_yard() as yard,
        Memory(Serving(**settings)).open(yard) as memory,
        from_client,
        to_client,
        from_server,
        to_server,
        anyio.create_task_group() as group,
    ):
        group.start_soon(hand_in, memory)
        group.start_soon(hand_out, memory)
        yield from_server, to_server
        group.cancel_scope.cancel()


@pytest.fixture
def connect(url_of: Callable[..., str]) -> Connect:
    @asynccontextmanager
    async def opened(
        channel: str, mode: str, *, settings: dict[str, Any] | None = None, **options: Any
    ) -> AsyncGenerator[Client]:
        server: Any
        given = settings or {}
        if channel == "stdio":
            command, *arguments = stdio_command(YARD, given)
            server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
        elif channel == "memory":
            server = memory_streams(given)
        else:
            server = url_of(**CHANNELS[channel], **given)
        options = {"read_timeout_seconds": 20, **options}
        with anyio.fail_after(30):
            async with Client(server, mode=mode, **options) as client:
                yield client

    return opened
