"""A server that is killed again and again loses no approval, and runs nothing twice or without its decision.

`make test` runs a tenth: 10 approvals. `make soak` runs all: 100.
"""

import asyncio
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from callyard.policy.approvals import Approval, Approvals
from callyard.state.sqlite import SqliteStore

APPROVALS = int(os.environ.get("APPROVALS", "10"))
PROGRAM = Path(__file__).with_name("killed_yard.py")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "burn",
}


class Server:
    """The served yard: it can be killed and started anew on the same file and port."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._command = [sys.executable, str(PROGRAM), str(folder / "store"), str(folder / "notes"), str(self.port)]
        self._log = (folder / "log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self.is_over = False

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=self._log)  # noqa: S603 - our own program
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                threading.Event().wait(0.02)  # until it listens
                if self._process.poll() is not None:  # another program had the port for a moment
                    self._process = subprocess.Popen(self._command, stderr=self._log)  # noqa: S603 - our own program
            else:
                return
        raise AssertionError("The server does not start.")

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.is_over = True
        self.kill()
        self._log.close()

    def burn(self, number: int) -> dict[str, Any] | None:
        """Return the envelope of a call, or None if the server was killed before it answered."""
        params = {"name": "burn", "arguments": {"number": number}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/mcp", body, HEADERS)
            text = connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        data = text.rpartition(b"data: ")[2] if text.startswith((b"event", b"data", b":")) else text
        try:
            return json.loads(data)["result"]["structuredContent"]
        except ValueError:
            return None  # cut off


def is_denied(number: int) -> bool:
    return number % 5 == 0


def burn_all(server: Server, numbers: range, asked: set[str]) -> None:
    """Send one call after the other, each until it ran or was denied."""
    for number in numbers:
        burn_until_settled(server, number, asked)


def burn_until_settled(server: Server, number: int, asked: set[str]) -> None:
    while not server.is_over:
        answer = server.burn(number)
        if answer is None:
            threading.Event().wait(0.02)  # the server starts again
        elif answer["success"] and answer["data"] != number:
            asked.add(answer["data"]["approval_id"])
        elif answer["success"] or answer["error"]["code"] == "approval_denied":
            assert answer["success"] is not is_denied(number), answer
            return


async def decide_all(approvals: Approvals, decided: dict[str, int]) -> None:
    """Approve or deny each approval once, after a moment."""
    dice, seen = random.Random(2), set[str]()  # noqa: S311 - a moment, not a secret
    while True:
        approval = await approvals.watch(seen)
        number: int = json.loads(approval.card.arguments)["number"]
        await asyncio.sleep(dice.uniform(0, 0.2))  # the moment of a decision is what varies
        await approvals.decide(approval.id, "deny" if is_denied(number) else "approve", by="user:test")
        decided[approval.id] = number


async def kill_until_done(server: Server, work: "list[asyncio.Task[None]]", deciding: "asyncio.Task[None]") -> int:
    """Kill the server at random moments while there is work; return how often."""
    dice, kills = random.Random(3), 0  # noqa: S311 - a moment, not a secret
    while not all(task.done() for task in work):
        await asyncio.wait([*work, deciding], timeout=dice.uniform(0.05, 0.5))  # the moment of a kill is what varies
        if deciding.done():
            await deciding  # nobody decides any more, and this says why
        if kills < APPROVALS // 2:
            kills += 1
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
    return kills


async def test_kills_lose_no_approval_and_run_nothing_without_a_decision(tmp_path: Path) -> None:
    server, store = Server(tmp_path), SqliteStore(tmp_path / "store")
    server.start()
    asked, decided = set[str](), dict[str, int]()
    deciding = asyncio.create_task(decide_all(Approvals(store), decided))
    work = [
        asyncio.create_task(asyncio.to_thread(burn_all, server, range(first, APPROVALS, 3), asked))
        for first in range(3)
    ]
    try:
        kills = await kill_until_done(server, work, deciding)
    finally:
        server.close()
        deciding.cancel()
    await asyncio.gather(*work)
    stored = {key.removeprefix("approval/"): await store.get(key) for key in await store.keys("approval/")}
    known = {key: msgspec.json.decode(data, type=Approval) for key, data in stored.items() if data is not None}
    await store.close()
    ran = Counter(map(int, (tmp_path / "notes").read_text().split()))
    spent = Counter(decided[key] for key, approval in known.items() if approval.status == "spent")
    print(  # noqa: T201 - counts
        f"kills {kills}, approvals {len(known)}, {Counter(one.status for one in known.values())}, runs "
        f"{sum(ran.values())}"
    )
    assert asked <= known.keys()
    assert decided.keys() <= known.keys()
    for approval_id, number in decided.items():
        assert known[approval_id].status in ({"denied"} if is_denied(number) else {"approved", "spent"})
    for number in range(APPROVALS):
        assert ran[number] <= spent[number]
        assert bool(ran[number]) is not is_denied(number)
    assert kills
