"""Medians of the browser pack: launch to the first snapshot, a click, a snapshot of 1,000 rows, and a ref that is gone.

.venv/bin/python bench/browser.py
"""

import asyncio
import http.server
import statistics
import tempfile
import threading
import time
from typing import Any

from callyard_browser import PACK

from callyard import Yard
from callyard.testing import Client, connect

ROUNDS = 7
ROWS = "".join(f"<tr><td>{number}<td>Order {number}<td><button>Open {number}</button>" for number in range(1000))
PAGES = {
    "/": "<button onclick=\"this.textContent = 'Go ' + Date.now()\">Go</button>"
    "<button onclick='this.remove()'>Gone</button>",
    "/rows": f"<table>{ROWS}</table>",
}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the two pages."""

    def do_GET(self) -> None:
        """Answer with a page."""
        content = PAGES.get(self.path, "").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the library
        """Write nothing."""


async def timed(client: Client, tool: str, **arguments: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    answer = await client.call(f"browser_{tool}", **arguments)
    return time.perf_counter() - started, answer


async def ref(client: Client, name: str) -> str:
    _, answer = await timed(client, "find", name=name)
    return str(answer.data["found"][0]).rpartition("[")[2][:-1]


async def one_round(client: Client, url: str) -> dict[str, float]:
    launch, _ = await timed(client, "launch", url=url)
    look, _ = await timed(client, "snapshot")
    click, _ = await timed(client, "click", ref=await ref(client, "Go"))
    gone = await ref(client, "Gone")
    await timed(client, "click", ref=gone)
    told, _ = await timed(client, "click", ref=gone)
    await timed(client, "navigate", to=f"{url}rows")
    rows, _ = await timed(client, "snapshot")
    await timed(client, "stop")
    return {"launch to first snapshot": launch + look, "click": click, "ref_gone": told, "1,000 rows": rows}


async def main() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        yard = Yard(packs=[PACK], pack_settings={"browser": {"hosts": ["127.0.0.1"]}}, state_dir=folder)
        async with connect(yard) as client:
            rounds = [await one_round(client, f"http://127.0.0.1:{server.server_port}/") for _ in range(ROUNDS)]
    server.shutdown()
    server.server_close()
    for name in rounds[0]:
        print(f"{name:26} {statistics.median(each[name] for each in rounds) * 1000:6.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
