"""Tasks of an upstream as jobs of ours: their state, questions, failures and cancel, from a real yard behind a yard."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from callyard import Yard
from callyard.providers.upstream.provider import make_upstream
from callyard.providers.upstream.settings import UpstreamSettings

if TYPE_CHECKING:
    from tests.server.conftest import Meet, Peer

SERVER = Path(__file__).parents[1] / "providers" / "upstream" / "real" / "tasks_server.py"
EXTENSION = "io.modelcontextprotocol/tasks"
TASKS: dict[str, Any] = {"elicitation": {}, "extensions": {EXTENSION: {}}}
TIMEOUT_S = 60.0


@asynccontextmanager
async def behind(meet: "Meet", state: Path, capabilities: dict[str, Any]) -> AsyncGenerator["Peer"]:
    """Open a yard in front of the server, and a client of it."""
    settings = UpstreamSettings(command=sys.executable, args=(str(SERVER), str(state / "waits")), era="2026")
    upstream = make_upstream("up", replace(settings, unannotated="allow"), state=state)
    settings_of_yard = {"ask_before_destroy": True}
    yard = Yard("gate", providers=[upstream], metatools=False)
    async with meet(yard, capabilities=capabilities, settings=settings_of_yard) as peer:
        async with asyncio.timeout(TIMEOUT_S):
            await upstream.wait_ready()
        yield peer


async def task_of(peer: "Peer", name: str, **arguments: Any) -> str:
    result = (await peer.ask("tools/call", {"name": name, "arguments": arguments}))["result"]
    assert result["resultType"] == "task", result
    return result["taskId"]


async def settled(peer: "Peer", task_id: str) -> dict[str, Any]:
    await peer.yard.jobs.wait(task_id, None, seconds=TIMEOUT_S)
    return (await peer.ask("tasks/get", {"taskId": task_id}))["result"]


async def test_a_task_of_an_upstream_is_a_job_of_ours(meet: "Meet", tmp_path: Path) -> None:
    async with behind(meet, tmp_path, TASKS) as peer:
        quick = (await peer.ask("tools/call", {"name": "up__quick"}))["result"]
        done = await settled(peer, await task_of(peer, "up__double", number=4))
        refused = await settled(peer, await task_of(peer, "up__refuse"))
        crashed = await settled(peer, await task_of(peer, "up__crash"))
        asking = await task_of(peer, "up__ask")
        asked = await settled(peer, asking)
        [(key, question)] = asked["inputRequests"].items()
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        await peer.ask("tasks/update", {"taskId": asking, "inputResponses": answers})
        greeted = await settled(peer, asking)

    assert quick["structuredContent"]["data"] == "quick"
    assert (done["status"], done["result"]["structuredContent"]["data"]) == ("completed", 8)
    assert refused["result"]["structuredContent"]["error"]["code"] == "state_error"
    assert crashed["result"]["structuredContent"]["error"]["code"] == "upstream_error"
    assert question["params"]["message"] == "'up' asks: Who?"
    assert greeted["result"]["structuredContent"]["data"] == "Hello Ada"


async def test_a_cancelled_job_cancels_the_task_of_the_upstream(meet: "Meet", tmp_path: Path) -> None:
    file = tmp_path / "waits"
    async with behind(meet, tmp_path, TASKS) as peer:
        task_id = await task_of(peer, "up__wait")
        await until_it_says(file, "begun")
        await peer.ask("tasks/cancel", {"taskId": task_id})
        ended = await settled(peer, task_id)
        await until_it_says(file, "cancelled")

    assert ended["status"] == "cancelled"


async def test_a_client_without_tasks_waits_for_the_answer(meet: "Meet", tmp_path: Path) -> None:
    async with behind(meet, tmp_path, {}) as peer:
        doubled = (await peer.ask("tools/call", {"name": "up__double", "arguments": {"number": 4}}))["result"]

    assert doubled["structuredContent"]["data"] == 8


async def until_it_says(file: Path, word: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await asyncio.to_thread(read, file) != word:  # noqa: ASYNC110 - another process writes the file
            await asyncio.sleep(0.01)  # it has no event


def read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""
