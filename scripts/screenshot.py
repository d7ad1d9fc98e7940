"""Takes the screenshot of the README.

It serves what 'make run' serves, lets an agent call it for a while, and photographs the console.
It needs the packages of the tests and Debian's 'chromium'. Run it as 'python scripts/screenshot.py docs/console.png'.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SECONDS = 40
CALLS: tuple[tuple[str, dict[str, object], int], ...] = (
    ("list_accounts", {}, 9),
    ("get_balance", {"account": "current"}, 6),
    ("transfer", {"source": "current", "target": "savings", "cents": 25}, 4),
    ("check_books", {"years": 3}, 2),
    ("get_balance", {"account": "nowhere"}, 1),
    ("desk__list_tickets", {}, 4),
    ("desk__open_ticket", {"subject": "A question about fees"}, 1),
    ("transfer", {"source": "holiday", "target": "savings", "cents": 9_999_999}, 1),
)


def main() -> None:
    """Serve, call and photograph."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as state:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "XDG_STATE_HOME": state, "PATH": path}
        command = [sys.executable, "-m", "callyard", "serve", "examples/bank.toml", "--port", "0"]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own program
            try:
                login = read_address(server)
                busy(login.partition("/console")[0])
                photograph(login, target)
            finally:
                server.terminate()


def read_address(server: "subprocess.Popen[str]") -> str:
    """Return the address of the console, which is in the file that the server logs."""
    for line in server.stderr or ():
        found = re.search(r"console address=\S+ file='?([^'\n]+)", line)
        if found:
            return Path(found[1]).read_text().strip()
    raise SystemExit("The server did not start.")


def busy(base: str) -> None:
    """Call tools for a while, as agents would, and leave a call that waits for approval."""
    chosen = random.Random(1)  # noqa: S311 - nothing secret
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        name, arguments, _ = chosen.choices(CALLS, [weight for _, _, weight in CALLS])[0]
        call(base, name, arguments)
        time.sleep(chosen.uniform(0.005, 0.06))  # an agent thinks between its calls, and the charts need some seconds
    with suppress(TimeoutError):  # it is held, which is what the picture shows
        call(base, "close_account", {"account": "holiday"}, seconds=1)


def call(base: str, name: str, arguments: object, seconds: float = 30) -> None:
    """Call a tool over HTTP."""
    said = {
        f"{META}protocolVersion": VERSION,
        f"{META}clientCapabilities": {},
        f"{META}clientInfo": {"name": "Claude Code", "version": "1"},
    }
    params = {"name": name, "arguments": arguments, "_meta": said}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": name,
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    with urlopen(Request(f"{base}/mcp", body, headers), timeout=seconds) as response:  # noqa: S310 - a server on loopback
        response.read()


def photograph(login: str, target: Path) -> None:
    """Take the picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("This needs Debian's package 'chromium'.")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(login)
        page.wait_for_selector("[data-trusted] .number")
        page.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    main()
