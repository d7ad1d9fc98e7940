"""Tasks of an upstream: a call that it answers with a task goes on as a job of ours.

The job asks the upstream for the state of its task now and then, and passes on its questions, the answers and a cancel.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from callyard._internal.converted import as_object
from callyard.dispatch.call import Call
from callyard.dispatch.run import run_of
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import ToolError
from callyard.wire.params import TASKS_EXTENSION

__all__ = ["TASKS_DECLARED", "follow_upstream_task", "offers_tasks"]

TASKS_DECLARED: Final[dict[str, Any]] = {TASKS_EXTENSION: {}}
_SHORTEST_S: Final = 0.05
_LONGEST_S: Final = 10.0
_CANCEL_S: Final = 5.0
_MESSAGE_CHARACTERS: Final = 2000
_SHOWN_CHARACTERS: Final = 200
Request = Callable[[str, Mapping[str, Any], str], Awaitable[msgspec.Raw]]
"""Sends a request of a method with its params, about a task."""
Requests = Callable[[dict[str, dict[str, Any]]], dict[str, ClientRequest]]


class _Task(msgspec.Struct, rename="camel"):
    status: str = "working"
    status_message: str | None = None
    poll_interval_ms: float | None = None
    input_requests: dict[str, dict[str, Any]] = {}
    result: msgspec.Raw = msgspec.Raw(b"{}")
    error: dict[str, Any] | None = None


def offers_tasks(capabilities: Mapping[str, Any]) -> bool:
    """Return whether an upstream offers the extension for tasks."""
    return TASKS_EXTENSION in as_object(capabilities.get("extensions"))


async def follow_upstream_task(
    call: Call, name: str, task_id: str, *, request: Request, requests_of: Requests
) -> msgspec.Raw:
    """Go on as a job until an upstream's task has ended, and return its result; a cancelled call cancels the task.

    Raises:
        ToolError: The task failed or was cancelled over there, or its state cannot be read.
    """
    run = run_of(call)
    await run.go_on_as_job()
    if run.job is not None:
        await run.job.claim()  # it runs over there already, so no other process may start it again
    try:
        return await _ended(call, name, task_id, request=request, requests_of=requests_of)
    except asyncio.CancelledError:
        with suppress(Exception):  # whatever comes of it, the call is cancelled
            async with asyncio.timeout(_CANCEL_S):
                await request("tasks/cancel", {"taskId": task_id}, task_id)
        raise


async def _ended(call: Call, name: str, task_id: str, *, request: Request, requests_of: Requests) -> msgspec.Raw:
    """Ask for the state of a task until it has ended; while nothing is asked, the deadline of the call stands still."""
    run = run_of(call)
    answered: set[str] = set()
    shown: str | None = None
    while True:
        try:
            task = msgspec.json.decode(await request("tasks/get", {"taskId": task_id}, task_id), type=_Task)
        except msgspec.DecodeError as error:
            raise ToolError("upstream_error", f"'{name}' shows no state of its task.", upstream=name) from error
        if task.status == "completed":
            return task.result
        if task.status not in {"working", "input_required"}:
            raise _failure(name, task)
        if task.status_message and task.status_message != shown:
            shown = task.status_message
            call.progress(0, None, shown[:_SHOWN_CHARACTERS])
        asked = {key: ask for key, ask in task.input_requests.items() if key not in answered}
        if task.status == "input_required" and asked:
            answers = await call.ask_all(requests_of(asked))
            answered |= asked.keys()
            await request("tasks/update", {"taskId": task_id, "inputResponses": dict(answers)}, task_id)
            continue
        pause = min(max((task.poll_interval_ms or 0) / 1000, _SHORTEST_S), _LONGEST_S)
        await run.funnel.admission.wait_outside(run, asyncio.sleep(pause))


def _failure(name: str, task: _Task) -> ToolError:
    if task.status == "cancelled":
        message = f"'{name}' cancelled its task."
        return ToolError("cancelled", message, blame="upstream", may_have_run=True, upstream=name)
    text = str(as_object(task.error).get("message") or "no text")[:_MESSAGE_CHARACTERS].removesuffix(".")
    message = f"The task of '{name}' failed: {text}."
    return ToolError("upstream_error", message, may_have_run=True, upstream=name, text=text)
