"""A web server of pages that tests write, and a browser session in a yard of its own."""

import json
import shutil
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from callyard_browser import PACK

from callyard import Envelope, Yard
from callyard.testing import Client, connect

__all__ = ["Browser", "Site", "failure", "needs_chromium", "open_browser", "ref_in", "runs_in", "serve_site"]

needs_chromium: Final = pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")


class Site:
    """Pages by path, and what was asked of them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str]] = []
        """Host and path of each request."""
        self.release = threading.Event()
        """Answers of '/slow' wait for it."""

    def page(self, html: str, path: str = "/", **headers: str) -> str:
        """Serve a page, and return its address."""
        self.pages[path] = (200, {"Content-Type": "text/html; charset=utf-8", **headers}, html.encode())
        return self.url + path

    def put(self, path: str, content: bytes, *, status: int = 200, **headers: str) -> str:
        """Serve anything, and return its address."""
        self.pages[path] = (status, {name.replace("_", "-"): value for name, value in headers.items()}, content)
        return self.url + path


@contextmanager
def serve_site(address: str = "127.0.0.1") -> Generator[Site]:
    """Serve pages on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            site.asked.append((self.headers.get("Host", ""), self.path))
            path = self.path.partition("?")[0]
            if path == "/slow":
                site.release.wait(60)
            status, headers, content = site.pages.get(path, (404, {}, b"nothing"))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the library
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            return  # a browser that was killed has closed its connections

    server = Server((address, 0), Handler)
    site = Site(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Browser:
    """A session of the pack, as an agent has it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.session_id = ""

    async def try_to(self, tool: str, **arguments: Any) -> Envelope:
        """Call a tool of the pack, and return the whole answer."""
        if self.session_id and tool not in {"launch", "attach"}:
            arguments.setdefault("session_id", self.session_id)
        return await self.client.call(f"browser_{tool}", **arguments)

    async def do(self, tool: str, **arguments: Any) -> Any:
        """Call a tool of the pack that succeeds, and return its data."""
        answer = await self.try_to(tool, **arguments)
        assert answer.success, (tool, answer.error)
        return answer.data

    async def launch(self, url: str = "", **arguments: Any) -> Any:
        """Start a browser, and use it from now on."""
        data = await self.do("launch", url=url, **arguments)
        self.session_id = data["session_id"]
        return data

    async def ref(self, name: str, role: str = "") -> str:
        """Return the ref of the first element of that name."""
        found = (await self.do("find", name=name, role=role))["found"]
        assert found, name
        return ref_in(found[0])


def ref_in(line: str) -> str:
    """Return the ref in a line of a snapshot."""
    return line.rpartition("[")[2].partition("]")[0]


def failure(answer: Envelope) -> tuple[str, Any]:
    """Return the code and the reason of an answer that failed."""
    assert answer.error is not None, json.dumps(answer.data)[:500]
    return answer.error.code, answer.error.details.get("reason")


def runs_in(folder: Path) -> list[Path]:
    """Return the folders that servers made for their browsers."""
    return list(folder.rglob("run-*"))


@asynccontextmanager
async def open_browser(folder: Path, *, allow_eval: bool = False, **settings: Any) -> AsyncGenerator[Browser]:
    """Open a yard with the pack; it may reach this machine unless the settings say otherwise."""
    settings.setdefault("hosts", ["127.0.0.1"])
    yard = Yard(packs=[PACK], pack_settings={"browser": settings}, state_dir=str(folder), allow_eval=allow_eval)
    async with connect(yard) as client:
        yield Browser(client)
