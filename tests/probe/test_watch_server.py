"""`callyard watch` as a process: its pages, in a real Chromium too, and what it keeps when it is killed."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from failing_server import serving
from playwright.async_api import async_playwright, expect

from callyard.config import read_config
from callyard.launch.build import make_store
from callyard.launch.errors import LaunchError
from callyard.launch.notices import Notices
from callyard.launch.serve import serve_forever
from callyard.launch.watch import WatchPages, run_watch_server, watch_targets
from callyard.monitor.incidents import Incidents
from callyard.state.memory import MemoryStore
from callyard.transports import Transport
from callyard.yard import Yard

CHROMIUM: Final = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
TIMEOUT_S: Final = 240.0
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def write(folder: Path, urls: dict[str, str], more: str = "") -> None:
    tables = "".join(f'[upstreams.{name}]\nurl = "{url}"\n' for name, url in urls.items())
    (folder / "callyard.toml").write_text(f"{tables}[watch]\nevery = 1\n{more}")


@asynccontextmanager
async def served(folder: Path, urls: dict[str, str], more: str = "") -> AsyncGenerator[tuple[str, WatchPages]]:
    """Serve a watch in this process; return the address and the pages."""
    write(folder, urls, more)
    config = read_config()
    pages = WatchPages(config, watch_targets(config, Notices()), MemoryStore())
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ready(transport: Transport) -> None:
        listening.set_result(transport.info().address.removesuffix("/mcp"))

    overrides: Any = {"serve.transport": "http", "serve.port": "0", "serve.console": False}
    serving_settings = read_config(overrides).settings.serve
    server = asyncio.create_task(
        serve_forever(Yard("watch", metatools=False), serving_settings, mounted=(pages,), ready=ready)
    )
    try:
        yield await listening, pages
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


async def test_the_pages_show_what_the_watch_found(folder: Path, until: Callable[..., Any]) -> None:
    async with AsyncExitStack() as stack:
        good, _ = await stack.enter_async_context(serving("well", "2026"))
        urls = {"good": good, "gone": "http://127.0.0.1:1/mcp"}
        base, pages = await stack.enter_async_context(served(folder, urls))
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=base, trust_env=False))
        targets = pages.watch.targets
        await until(lambda: targets["gone"][1].failures > 1 and targets["good"][1].report is not None)

        async def has_incident() -> bool:
            return bool((await client.get("/status.json")).json()["incidents"])

        while not await has_incident():  # noqa: ASYNC110 - the server says so to nobody
            await asyncio.sleep(0.05)  # a polling interval
        shown = (await client.get("/status.json")).json()
        assert {one["name"]: one["state"] for one in shown["targets"]} == {"good": "up", "gone": "down"}
        assert [one["key"] for one in shown["incidents"]] == ["down/gone"]
        assert "probe_success 1.0" in (await client.get("/probe?target=good")).text
        assert 'callyard_probe_success{target="gone"} 0.0' in (await client.get("/metrics")).text
        assert ">up<" in (await client.get("/badge/good.svg")).text
        answers = [
            (await client.get("/probe?target=http://127.0.0.1/")).status_code,
            (await client.get("/probe")).status_code,
            (await client.get("/badge/nothing.svg")).status_code,
            (await client.post("/status")).status_code,
        ]
        assert answers == [404, 404, 404, 405]
        await see_in_chromium(f"{base}/status")


async def see_in_chromium(url: str) -> None:
    if CHROMIUM is None:
        pytest.skip("There is no Chromium. Install Debian's package 'chromium'.")
    faults: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page()
        page.on("console", lambda message: faults.append(message.text) if "Policy" in message.text else None)
        await page.goto(url)
        await expect(page.get_by_role("heading", name="Something fails")).to_be_visible()
        await expect(page.locator(".state.down")).to_have_text("down")
        await expect(page.locator("li")).to_contain_text("'gone' is down (refused)")
        colour = await page.locator(".state.up").evaluate("one => getComputedStyle(one).backgroundColor")
        await browser.close()
    assert (colour, faults) == ("rgb(46, 125, 50)", [])


async def test_programs_are_started_only_if_the_file_says_so(folder: Path) -> None:
    programs = '[upstreams.a]\ncommand = "true"\n[upstreams.b]\ncommand = "true"\n[probe.b]\nstart = true\n'
    (folder / "callyard.toml").write_text(programs)
    assert [one.name for one in watch_targets(read_config(), Notices())] == ["b"]
    (folder / "callyard.toml").write_text('[upstreams.a]\ncommand = "true"\n')
    with pytest.raises(LaunchError):
        watch_targets(read_config(), Notices())


def test_a_wrong_file_or_setting_is_refused(callyard: Run, folder: Path) -> None:
    assert callyard("watch", "yard.py")[0] == 2
    write(folder, {"a": "http://127.0.0.1:1/mcp"}, 'control = "nowhere"\n')
    assert callyard("watch")[0] == 2
    (folder / "callyard.toml").write_text('[upstreams.a]\nurl = "http://127.0.0.1:1/mcp"\n[watch]\nevery = 0\n')
    assert callyard("watch")[0] == 2


def test_a_silence_is_in_the_store_of_the_watchers_and_has_an_end(callyard: Run, folder: Path) -> None:
    write(folder, {"a": "http://127.0.0.1:1/mcp"})
    assert callyard("watch", "--silence", "down/a", "--for", "1h", "--reason", "It moves.")[0] == 0
    assert callyard("watch", "--silence", "down/a")[0] == 2
    assert callyard("watch", "--for", "1h")[0] == 2
    assert callyard("watch", "--silence", "down/a", "--for", "99d")[0] == 2

    async def silences() -> list[str]:
        store = make_store(read_config())
        try:
            return [one.pattern for one in await Incidents(store, scope="watch/watch").silences()]
        finally:
            await store.close()

    assert asyncio.run(silences()) == ["down/a"]


def test_an_address_that_cannot_be_used_is_refused(folder: Path) -> None:
    write(folder, {"a": "http://127.0.0.1:1/mcp"}, 'control = "127.0.0.1:1"\n[serve]\nhost = "0.0.0.0"\n')
    with pytest.raises(LaunchError):
        run_watch_server(read_config(), Notices())


class Watcher:
    """`callyard watch` in a process of its own; the lines of its log."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def said(self, text: str) -> str:
        """Return the next line of its log that has a text."""
        assert self.process.stderr is not None
        async with asyncio.timeout(TIMEOUT_S):
            while line := (await self.process.stderr.readline()).decode():
                self.lines.append(line)
                if text in line:
                    return line
        raise AssertionError("".join(self.lines))

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stderr is not None
        self.lines += (await self.process.stderr.read()).decode().splitlines()
        return await self.process.wait()


@asynccontextmanager
async def watcher(folder: Path) -> AsyncGenerator[Watcher]:
    program = "import sys; from callyard.cli import main; sys.exit(main())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "watch", "--port", "0", "-v"),
        cwd=folder,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CALLYARD_STATE_DIR": str(folder / "state")},
    )
    one = Watcher(process)
    try:
        yield one
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Hook:
    """A receiver of webhooks."""

    def __init__(self) -> None:
        self.notices: dict[str, dict[str, Any]] = {}
        self.came = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take one notice."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r")[0])
        notice = json.loads(await reader.readexactly(length))
        assert "callyard-signature: sha256=" in head
        self.notices[head.partition("idempotency-key: ")[2].partition("\r")[0]] = notice
        self.came.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def wait(self, most: int) -> list[str]:
        """Return what came, once there are so many."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.notices) < most:
                self.came.clear()
                await self.came.wait()
        return [f"{one['type']} {one['incident']['key']}" for one in self.notices.values()]


async def test_a_watcher_that_was_killed_alerts_of_an_incident_once_and_of_its_recovery(folder: Path) -> None:
    hook = Hook()
    async with AsyncExitStack() as stack:
        receiver = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
        stack.callback(receiver.close)
        async with serving("well", "2026") as (url, _):
            port = int(url.rpartition(":")[2].removesuffix("/mcp"))
        place = f"http://127.0.0.1:{receiver.sockets[0].getsockname()[1]}/"
        write(folder, {"a": url}, f'[alerts]\nwebhook = "{place}"\nwebhook_secret = "secret"\n')
        async with watcher(folder) as first:
            await first.said("incident_opened")
            assert await hook.wait(1) == ["alert down/a"]
            await first.end(signal.SIGKILL)
        async with watcher(folder) as second:
            await second.said("watching targets=1")
            await stack.enter_async_context(serving("well", "2026", port=port))
            await second.said("incident_recovered")
            assert await hook.wait(2) == ["alert down/a", "recovery down/a"]
            assert await second.end(signal.SIGTERM) == 0
    assert not [line for line in second.lines if "incident_opened" in line]
