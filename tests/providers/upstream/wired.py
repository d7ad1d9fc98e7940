"""Links to real programs for tests, with a listener that records what arrives."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from callyard.providers.upstream.link import LinkError, Received
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.stdio import StdioLink
from callyard.wire.messages import Id, id_of

TIMEOUT_S = 60.0
SERVER = Path(__file__).parent / "servers" / "bad_server.py"


class RecordingListener:
    """A listener that records every call."""

    def __init__(self) -> None:
        self.invalid = False
        """Whether it takes nothing for a message."""
        self.messages: list[bytes] = []
        self.losses: list[tuple[Id, LinkError]] = []
        self.ends: list[LinkError] = []

    def receive(self, data: bytes, about: Id | None) -> Received:
        assert about is None
        if self.invalid:
            return "invalid"
        self.messages.append(data)
        return "awaited" if id_of(data) is not None else "message"

    def lose(self, request_id: Id, error: LinkError) -> None:
        self.losses.append((request_id, error))

    def end(self, error: LinkError) -> None:
        self.ends.append(error)


class Wired:
    """A link to a program, by default the bad server, with a recording listener."""

    def __init__(self, folder: Path, *args: str, **settings: Any) -> None:
        options: dict[str, Any] = {"command": sys.executable, "args": ("-I", "-S", str(SERVER), *args), **settings}
        self.listener = RecordingListener()
        self.log = folder / "state" / "bad" / "stderr.log"
        self.pipe = StdioLink("bad", UpstreamSettings(**options), log=self.log)
        self._last_id = 0

    async def __aenter__(self) -> Self:
        await self.pipe.open(self.listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pipe.close()

    def send(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params or {}}
        self.pipe.send(msgspec.json.encode(message), self._last_id, {})
        return self._last_id

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        request_id = self.send(method, params)
        await until(lambda: request_id in self.answers or bool(self.listener.ends))
        return self.answers[request_id]

    async def call(self, name: str, **arguments: Any) -> str:
        answer = await self.ask("tools/call", {"name": name, "arguments": arguments})
        return answer["result"]["content"][0]["text"]

    async def end(self) -> LinkError:
        await until(lambda: bool(self.listener.ends))
        return self.listener.ends[0]

    @property
    def answers(self) -> dict[Id, Any]:
        messages = [msgspec.json.decode(message) for message in self.listener.messages]
        return {message["id"]: message for message in messages if "id" in message}

    @property
    def logged(self) -> str:
        return self.log.read_text(errors="replace")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0)  # a turn of the loop, not a wait


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def children(pid: int | None = None) -> list[int]:
    """Return the child processes of a process, by default of this one, in order of their start."""
    folder = Path(f"/proc/{pid or 'self'}/task")
    return sorted(int(child) for thread in folder.iterdir() for child in (thread / "children").read_text().split())
