"""What the tests of jobs share: how to start and follow one, and a yard that ends like a killed process."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from callyard import Call, Yard, tool
from callyard.dispatch.call import Channel
from callyard.jobs.job import TASKS

TASK_CLIENT = Channel(name="test", capabilities=frozenset({TASKS, "elicitation"}))
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@tool(operation="command")
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def started(yard: Yard, name: str, arguments: dict[str, Any] | None = None, **how: Any) -> str:
    """Start a tool in the background and return the id of its job."""
    answer = await yard.call("run_tool", {"tool_id": name, "args": arguments or {}, "background": True}, **how)
    assert answer.data["status"] == "working", answer
    return answer.data["job_id"]


async def ended(yard: Yard, job_id: str, **how: Any) -> dict[str, Any]:
    """Wait for a job and return it."""
    return (await yard.call("wait_job", {"job_id": job_id}, **how)).data


@asynccontextmanager
async def crashing(yard: Yard) -> AsyncGenerator[Yard]:
    """Open a yard, and on leaving let it stop like a process that is killed: nothing more is written."""
    async with yard:
        yield yard
        for running in yard.jobs._running.values():  # pyright: ignore[reportPrivateUsage] - a kill is not in the interface
            running._is_lost = True  # pyright: ignore[reportPrivateUsage] - the same
            await yard.store.release(running._lease)  # pyright: ignore[reportPrivateUsage] - as if its time had passed


def waiting(ran: list[str], **options: Any) -> Callable[..., Any]:
    """Return a tool that hangs in its first run."""

    @tool(**options)
    async def work(call: Call) -> str:
        """Work."""
        ran.append(call.id)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "done"

    return work


async def hung(yard: Yard, ran: list[str], **how: Any) -> str:
    job_id = await started(yard, "work", **how)
    while not ran:  # noqa: ASYNC110 - a turn of the loop each
        await asyncio.sleep(0)
    return job_id
