"""The reference servers as upstreams: installed from npm, run as processes.

Their versions are pinned in `package.json` and, with their hashes, in `package-lock.json`, which
`npm install --package-lock-only --omit-lockfile-registry-resolved` writes anew.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pinned_packages import NODE, installed, python_with

from callyard.providers.upstream.settings import UpstreamSettings

HERE = Path(__file__).parent
SDK_SERVER = HERE / "sdk_server.py"
FASTMCP_SERVER = HERE / "fastmcp_server.py"

Settings = Callable[..., UpstreamSettings]


@pytest.fixture(scope="session")
def packages() -> Path:
    """Return the folder of the reference servers, installed if they are not there yet."""
    return installed(HERE, "reference-servers", what="set of reference servers")


@pytest.fixture(scope="session")
def reference(packages: Path) -> Settings:
    """Return the settings of a reference server as a process of its own."""

    def settings(name: str, *arguments: str, **more: Any) -> UpstreamSettings:
        program = str(packages / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js")
        return UpstreamSettings(command=str(packages / NODE), args=(program, *arguments), **more)

    return settings


@pytest.fixture(scope="session")
def everything(packages: Path, reference: Settings) -> Generator[Callable[[str], UpstreamSettings]]:
    """Return the settings of the server that has everything, over each carrier; over HTTP it runs for the session."""
    program = [
        str(packages / NODE),
        str(packages / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"),
    ]
    urls: dict[str, str] = {}
    with ExitStack() as running:

        def settings(carrier: str) -> UpstreamSettings:
            if carrier == "stdio":
                return reference("everything", "stdio")
            if carrier not in urls:
                kind, path = ("streamableHttp", "mcp") if carrier == "http" else ("sse", "sse")
                urls[carrier] = f"http://127.0.0.1:{running.enter_context(_listening([*program, kind]))}/{path}"
            return UpstreamSettings(url=urls[carrier], transport=carrier)  # pyright: ignore[reportArgumentType] - a test says which

        yield settings


@contextmanager
def _listening(command: list[str]) -> Generator[int]:
    """Run a server that takes its port from the environment and says on stderr when it listens; return the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:  # noqa: S603 - it is pinned
        try:
            assert process.stderr is not None
            assert any(str(port).encode() in line for line in process.stderr)
            yield port
        finally:
            process.kill()


class SdkServers:
    """Servers of the official Python SDK over HTTP, each in a process."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, port: int = 0) -> tuple["subprocess.Popen[bytes]", str]:
        """Start one, and return its process and its address."""
        command = [sys.executable, str(SDK_SERVER), "http", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own
        self.processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().decode().strip()

    def close(self) -> None:
        """End them all."""
        for process in self.processes:
            with process:
                process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session")
def sdk_servers() -> Generator[SdkServers]:
    """Return what starts servers of the official Python SDK over HTTP."""
    servers = SdkServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def sdk_url(sdk_servers: SdkServers) -> str:
    """Return the address of a server of the official Python SDK that all tests share."""
    return sdk_servers.start()[1]


@pytest.fixture
def sdk(request: pytest.FixtureRequest) -> Settings:
    """Return the settings of a server of the official Python SDK, over one carrier."""

    def settings(carrier: str, **more: Any) -> UpstreamSettings:
        if carrier == "stdio":
            return UpstreamSettings(command=sys.executable, args=(str(SDK_SERVER), "stdio"), **more)
        return UpstreamSettings(url=request.getfixturevalue("sdk_url"), **more)

    return settings


@pytest.fixture(scope="session")
def fastmcp() -> Generator[Callable[[str], dict[str, Any]]]:
    """Return the client configuration of a FastMCP server for each carrier; over HTTP it runs for the session."""
    python = python_with(HERE / "fastmcp.txt", what="server of FastMCP")
    urls: list[str] = []
    with ExitStack() as running:

        def reached(carrier: str) -> dict[str, Any]:
            if carrier == "stdio":
                return {"command": python, "args": [str(FASTMCP_SERVER), "stdio"]}
            if not urls:
                process = running.enter_context(
                    subprocess.Popen([python, str(FASTMCP_SERVER), "http"], stdout=subprocess.PIPE)  # noqa: S603 - it is pinned
                )
                running.callback(process.kill)
                assert process.stdout is not None
                urls.append(process.stdout.readline().decode().strip())
            return {"url": urls[0]}

        yield reached
