"""Real servers in processes of their own that share a Redis, a client that speaks both eras, and nginx in front."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from redis_programs import WAIT_S, free_port, wait_until

NGINX: Final = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
NEEDS_NGINX: Final = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
HANDSHAKE: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
_META: Final = "io.modelcontextprotocol/"
_CLIENT: Final = {"name": "t", "version": "1"}
_CAPABILITIES: Final[dict[str, Any]] = {"elicitation": {"form": {}}}
_NGINX_CONF: Final = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1000; }}
http {{
  access_log off; client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
  uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
  upstream yard {{ {servers} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://yard; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host localhost;
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s; proxy_next_upstream off;
    }}
  }}
}}
"""


class Server:
    """One server in a process of its own."""

    def __init__(self, folder: Path, source: str, *arguments: str, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder: Final = folder
        program, self._errors = folder / "yard_server.py", folder / "errors"
        program.write_text(source)
        self.port = free_port()
        command = [sys.executable, str(program), str(self.port), *arguments]
        environment = {**os.environ, "CALLYARD_STATE_DIR": str(folder / "state"), **variables}
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stderr=errors)  # noqa: S603 - ours
        wait_until(lambda: self.process.poll() is not None or "serving " in self.errors)
        assert self.process.poll() is None, self.errors

    @property
    def errors(self) -> str:
        """Return what it wrote to stderr."""
        return self._errors.read_text()

    @property
    def base(self) -> str:
        """Return its address without a path."""
        return f"http://127.0.0.1:{self.port}"

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the process, and wait for that."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        self.process.wait(WAIT_S)


@contextmanager
def servers_of(folder: Path, source: str, store: str, count: int = 2, **variables: str) -> Generator[list[Server]]:
    """Start servers that share a store."""
    servers: list[Server] = []
    try:
        servers.extend(Server(folder / f"server{number}", source, store, **variables) for number in range(count))
        yield servers
    finally:
        for server in servers:
            server.end()


@contextmanager
def balanced(folder: Path, servers: list[Server]) -> Generator[str]:
    """Put nginx in front of servers, round robin, and return its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    conf = folder / "nginx.conf"
    hosts = " ".join(f"server 127.0.0.1:{server.port} max_fails=0;" for server in servers)
    conf.write_text(_NGINX_CONF.format(folder=folder, servers=hosts, port=port))
    process = subprocess.Popen([NGINX or "nginx", "-c", str(conf), "-p", str(folder), "-e", str(folder / "error.log")])  # noqa: S603 - ours
    try:
        base = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(base))
        yield base
    finally:
        process.terminate()
        process.wait(WAIT_S)


def _answers(base: str) -> bool:
    try:
        return httpx2.get(f"{base}/readyz", trust_env=False).is_success
    except httpx2.HTTPError:
        return False


class Client:
    """A client whose requests go to its addresses in turn, or to a chosen one."""

    def __init__(self, http: httpx2.AsyncClient, bases: list[str], *, modern: bool = False, key: str = "") -> None:
        self.http = http
        self.bases = bases
        self.modern = modern
        self.session = ""
        self._key = key
        self._turn = 0
        self._id = 0

    def base(self, number: int | None) -> str:
        """Return the address of a number, or the next one."""
        self._turn += number is None
        return self.bases[(self._turn if number is None else number) % len(self.bases)]

    def headers(self, method: str = "", name: str = "") -> dict[str, str]:
        """Return the headers of a request."""
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        headers["MCP-Protocol-Version"] = MODERN if self.modern else HANDSHAKE
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        if self.modern:
            headers |= {"Mcp-Method": method, **({"Mcp-Name": name} if name else {})}
        elif self.session:
            headers["Mcp-Session-Id"] = self.session
        return headers

    async def greet(self, at: int = 0, *, capabilities: Mapping[str, Any] = _CAPABILITIES) -> None:
        """Begin a session."""
        params: dict[str, Any] = {"protocolVersion": HANDSHAKE, "capabilities": capabilities, "clientInfo": _CLIENT}
        response = await self.http.post(
            f"{self.base(at)}/mcp", json=_message("initialize", params, 0), headers=self.headers("initialize")
        )
        assert response.status_code == httpx2.codes.OK, response.text
        self.session = response.headers["mcp-session-id"]
        await self.notify("notifications/initialized", {}, at=at)

    def message(self, method: str, params: Mapping[str, Any], request_id: int | None = None) -> dict[str, Any]:
        """Return a request."""
        if request_id is None:
            self._id += 1
            request_id = self._id
        meta = dict(params.get("_meta", {}))
        if self.modern:
            meta |= {f"{_META}protocolVersion": MODERN, f"{_META}clientCapabilities": _CAPABILITIES}
            meta[f"{_META}clientInfo"] = _CLIENT
        return _message(method, {**params, **({"_meta": meta} if meta else {})}, request_id)

    async def notify(self, method: str, params: Mapping[str, Any], *, at: int | None = None) -> int:
        """Send a notification, and return the status."""
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        response = await self.http.post(f"{self.base(at)}/mcp", json=message, headers=self.headers(method))
        return response.status_code

    async def respond(self, request_id: object, result: object, *, at: int | None = None) -> int:
        """Answer a request of the server, and return the status."""
        message = {"jsonrpc": "2.0", "id": request_id, "result": result}
        response = await self.http.post(f"{self.base(at)}/mcp", json=message, headers=self.headers())
        return response.status_code

    @asynccontextmanager
    async def stream(
        self, message: Mapping[str, Any] | None, *, at: int | None = None, last_event: str = ""
    ) -> AsyncGenerator["Events"]:
        """Send a request, or open a stream, and read what comes."""
        name = "" if message is None else str(message["params"].get("name", ""))
        headers = self.headers("" if message is None else message["method"], name)
        if last_event:
            headers["Last-Event-ID"] = last_event
        method = "GET" if message is None else "POST"
        async with self.http.stream(method, f"{self.base(at)}/mcp", json=message, headers=headers) as response:
            yield Events(response)

    async def request(self, method: str, params: Mapping[str, Any], *, at: int | None = None) -> Any:
        """Send a request and return its response; questions are answered with yes, at the next address."""
        message = self.message(method, params)
        async with self.stream(message, at=at) as events:
            async for event in events:
                if "method" in event and "id" in event:
                    assert await self.respond(event["id"], {"action": "accept", "content": {"yes": True}}) < 300
                elif "id" in event:
                    return event
        raise AssertionError("The response did not come.")

    async def call(self, name: str, at: int | None = None, **arguments: Any) -> Any:
        """Call a tool, and return its envelope; questions are answered with yes."""
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        while True:
            response = await self.request("tools/call", params, at=at)
            assert "result" in response, response
            result = response["result"]
            if result.get("resultType") != "input_required":
                return result["structuredContent"]
            answers = {key: {"action": "accept", "content": {"yes": True}} for key in result["inputRequests"]}
            params |= {"inputResponses": answers, "requestState": result["requestState"]}
            at = None


class Events:
    """The messages of a response, of whichever kind, and the ids of their events."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.last_event = ""
        self._messages = self._read()

    def __aiter__(self) -> AsyncGenerator[Any]:
        return self._messages

    async def next(self) -> Any:
        """Return the next message."""
        async with asyncio.timeout(WAIT_S):
            return await anext(self._messages)

    async def _read(self) -> AsyncGenerator[Any]:
        assert self.response.status_code < 300, (self.response.status_code, await self.response.aread())
        if "event-stream" not in self.response.headers.get("content-type", ""):
            body = await self.response.aread()
            if body:
                yield json.loads(body)
            return
        async for line in self.response.aiter_lines():
            if line.startswith("id:"):
                self.last_event = line[3:].strip()
            elif line.startswith("data:") and line[5:].strip():
                yield json.loads(line[5:])


def _message(method: str, params: Mapping[str, Any], request_id: int) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


@asynccontextmanager
async def client_of(bases: list[str], *, modern: bool = False, key: str = "") -> AsyncGenerator[Client]:
    """Open a client; one of the older era begins a session."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S, limits=limits) as http:
        client = Client(http, bases, modern=modern, key=key)
        if not modern:
            await client.greet()
        yield client
