"""Jobs: calls that go on after their request has been answered."""

import asyncio
from pathlib import Path

from callyard import Call, SqliteStore, Yard, tool


@tool(operation="query")
async def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


IN_BACKGROUND = {"tool_id": "count_words", "args": {"text": "one two three"}, "background": True}


async def test_a_call_in_the_background_is_a_job() -> None:
    async with Yard(tools=[count_words]) as yard:
        started = await yard.call("run_tool", IN_BACKGROUND)
        job = await yard.call("wait_job", {"job_id": started.data["job_id"]})

    assert started.data["status"] == "working"
    assert job.data["status"] == "completed"
    assert job.data["result"]["data"] == 3


async def test_a_tool_can_always_be_a_job() -> None:
    @tool(operation="command", job="always")
    async def rebuild_index() -> str:
        """Build the index anew."""
        return "rebuilt"

    async with Yard(tools=[rebuild_index]) as yard:
        started = await yard.call("rebuild_index")
        job = await yard.call("wait_job", {"job_id": started.data["job_id"]})

    assert started.data["status"] == "working"
    assert job.data["result"]["data"] == "rebuilt"


async def test_a_job_shows_its_progress_and_can_be_cancelled() -> None:
    is_halfway = asyncio.Event()

    @tool(operation="command", job="always")
    async def walk(call: Call) -> None:
        """Walk half of the way."""
        await call.progress(1, 2, "half")
        is_halfway.set()
        await asyncio.Event().wait()

    async with Yard(tools=[walk]) as yard:
        job_id = (await yard.call("walk")).data["job_id"]
        await is_halfway.wait()
        running = (await yard.call("get_job", {"job_id": job_id})).data
        ended = (await yard.call("cancel_job", {"job_id": job_id})).data

    assert running["progress"] == {"done": 1, "total": 2, "text": "half"}
    assert (ended["status"], ended["result"]["error"]["code"]) == ("cancelled", "cancelled")


async def test_invalid_arguments_are_refused_before_a_job_starts() -> None:
    async with Yard(tools=[count_words]) as yard:
        answer = await yard.call("run_tool", {**IN_BACKGROUND, "args": {"txt": "one"}})

    assert answer.error is not None
    assert answer.error.code == "invalid_input"


async def test_a_job_outlives_its_yard_in_a_store(tmp_path: Path) -> None:
    file = str(tmp_path / "state.db")
    async with Yard(tools=[count_words], store=SqliteStore(file)) as yard:
        job_id = (await yard.call("run_tool", IN_BACKGROUND)).data["job_id"]
        await yard.call("wait_job", {"job_id": job_id})

    async with Yard(tools=[count_words], store=SqliteStore(file)) as after_a_restart:
        job = await after_a_restart.call("get_job", {"job_id": job_id})

    assert job.data["result"]["data"] == 3
