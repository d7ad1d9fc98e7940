"""MCP's extension for tasks: jobs in the words of the protocol.

A job's id is its `taskId`. The experimental tasks of 2025-11-25 are not offered.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from callyard._internal.converted import as_object
from callyard.jobs.job import JOBS, POLL_MS, Job, JobStatus
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError
from callyard.wire.messages import INTERNAL, INVALID_PARAMS, MISSING_CAPABILITY, Fault
from callyard.wire.params import TASKS_EXTENSION, TaskParams, UpdateTask

if TYPE_CHECKING:
    from callyard.server.context import RequestContext

__all__ = [
    "MAX_TASKS",
    "REQUIRED",
    "cancel_task",
    "follow_task",
    "get_task",
    "known_tasks",
    "started_job_id",
    "task_created",
    "update_task",
]

MAX_TASKS: Final = 100
"""Tasks that one `subscriptions/listen` may follow."""
_LOOK_S: Final = 1.0
"""How often a followed task is looked at, because its progress is not announced and messages may get lost."""

REQUIRED: Final[dict[str, dict[str, Any]]] = {"extensions": {TASKS_EXTENSION: {}}}
"""The capabilities that a client must declare to get tasks."""
_STATUS: Final[Mapping[JobStatus, str]] = {"interrupted": "failed"}
"""The status of a task, where it has another name than that of the job."""


def started_job_id(outcome: Envelope) -> str | None:
    """Return the id of the job that a call became, or None for any other answer."""
    data = as_object(outcome.data)
    return data.get("job_id") if data.get("status") == "working" else None


async def task_created(context: "RequestContext", job_id: str) -> bytes:
    """Return the result of a call that became a task."""
    return context.encoder.task(_task(await _find(context, job_id)) | {"status": "working"})


async def get_task(context: "RequestContext", params: TaskParams) -> bytes:
    """Return a task, with its result, its error or its questions."""
    return context.encoder.complete(encode(await _detailed(context, await _find(context, params.task_id))))


async def _detailed(context: "RequestContext", job: Job) -> dict[str, Any]:
    """Return a task with its result, its error or its questions."""
    task: dict[str, Any] = _task(job)
    if job.asks:
        task["inputRequests"] = {key: {"method": ask.method, "params": ask.params} for key, ask in job.asks.items()}
    result = await context.server.yard.jobs.result(job)
    if result is not None and task["status"] == "completed":
        task["result"] = msgspec.Raw(context.encoder.outcome(result))
    elif task["status"] == "failed":
        message = "The task was lost." if result is None or result.error is None else result.error.message
        task["error"] = {"code": INTERNAL, "message": message, "data": None if result is None else result.error}
    return task


async def known_tasks(context: "RequestContext", task_ids: Sequence[str]) -> list[str]:
    """Return which of these tasks the caller has; the others are not followed.

    Raises:
        Fault: There are too many, or the client does not declare the extension for tasks.
    """
    if len(task_ids) > MAX_TASKS:
        raise Fault(INVALID_PARAMS, f"At most {MAX_TASKS} tasks can be subscribed to.")
    known: list[str] = []
    for task_id in dict.fromkeys(task_ids):
        try:
            known.append((await _find(context, task_id)).id)
        except Fault as fault:
            if fault.code != INVALID_PARAMS:
                raise
    return known


async def follow_task(context: "RequestContext", task_id: str, notify: Callable[[str, dict[str, Any]], None]) -> None:
    """Notify of each change of a task's status, progress or questions, the current state first, until it has ended."""
    jobs, shown = context.server.yard.jobs, None
    async with jobs.store.subscribe(JOBS + task_id) as messages:
        while True:
            try:
                job = await jobs.get(task_id, context.caller.identity)
            except ToolError:  # it is not kept any longer
                return
            state = (job.status, job.progress, sorted(job.asks))
            if state != shown:
                shown = state
                notify("notifications/tasks", await _detailed(context, job))
            if job.ended:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await anext(messages)


async def update_task(context: "RequestContext", params: UpdateTask) -> bytes:
    """Deliver the client's answers to a task."""
    await _find(context, params.task_id)
    await context.server.yard.jobs.answer(params.task_id, context.caller.identity, params.input_responses or {})
    return context.encoder.empty


async def cancel_task(context: "RequestContext", params: TaskParams) -> bytes:
    """Cancel a task; one that has ended stays as it is."""
    await _find(context, params.task_id)
    await context.server.yard.jobs.cancel(params.task_id, context.caller.identity)
    return context.encoder.empty


async def _find(context: "RequestContext", task_id: str) -> Job:
    """Return the job of a task, for a client that takes tasks."""
    if not context.takes_tasks:
        message = "This client does not declare the extension for tasks."
        raise Fault(MISSING_CAPABILITY, message, {"requiredCapabilities": REQUIRED})
    try:
        return await context.server.yard.jobs.get(task_id, context.caller.identity)
    except ToolError as error:
        raise Fault(INVALID_PARAMS, f"There is no task '{task_id[:100]}'.", {"taskId": task_id[:100]}) from error


def _task(job: Job) -> dict[str, Any]:
    """Return what every form of a task has."""
    task = {
        "taskId": job.id,
        "status": _STATUS.get(job.status, job.status),
        "createdAt": _time(job.created_at),
        "lastUpdatedAt": _time(job.updated_at),
        "ttlMs": int(job.ttl * 1000),
        "pollIntervalMs": POLL_MS,
    }
    text = (job.progress or {}).get("text")
    return {**task, "statusMessage": text} if text and not job.ended else task


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
