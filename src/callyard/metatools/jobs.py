"""The metatools `get_job`, `wait_job`, `cancel_job` and `list_jobs`, with which an agent follows calls in the background."""

from typing import Any, Final

import msgspec

from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.jobs.job import Job
from callyard.metatools.metatool import TEXT, YardParts, build_metatool, object_schema
from callyard.model.envelope import Envelope
from callyard.model.spec import Operation, Reason

__all__ = ["job_metatools"]

_MAX_WAIT_S: Final = 60
_REASONS: Final = {"unknown_job": Reason("not_found", ("kind",))}
_VIEW: Final = {"type": "object", "properties": {"status": TEXT, "job_id": TEXT, "tool_id": TEXT, "result": {"type": "object"}}}


def job_metatools(yard: YardParts) -> list[Tool]:
    """Return the metatools about jobs."""

    async def get_job(call: Call) -> object:
        return await _view(yard, await yard.jobs.get(call.arguments["job_id"], call.caller.identity))

    async def wait_job(call: Call) -> object:
        job_id, seconds = call.arguments["job_id"], call.arguments["timeout_s"]
        return await _view(yard, await yard.jobs.wait(job_id, call.caller.identity, seconds=seconds))

    async def cancel_job(call: Call) -> object:
        job_id, identity = call.arguments["job_id"], call.caller.identity
        job = await yard.jobs.cancel(job_id, identity)
        return await _view(yard, job if job.ended else await yard.jobs.wait(job_id, identity, seconds=1))

    async def list_jobs(call: Call) -> object:
        found = await yard.jobs.of(call.caller.owner, limit=call.arguments["limit"])
        return {"jobs": [{key: value for key, value in job.view().items() if key not in {"log", "questions"}} for job in found]}

    one = object_schema("job_id", job_id=TEXT)
    waits = object_schema("job_id", job_id=TEXT, timeout_s={"type": "number", "minimum": 0, "maximum": _MAX_WAIT_S, "default": 30})
    limit = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    listed = {"type": "object", "properties": {"jobs": {"type": "array", "items": _VIEW}}}
    return [
        _metatool("get_job", "Show a job: its status, progress and log lines, and its result once it has ended.", get_job, one),
        _metatool("wait_job", "Wait until a job has ended or asks something, for 30 seconds by default, and show it.", wait_job, waits),
        _metatool("cancel_job", "Cancel a job and show it.", cancel_job, one, operation=Operation.COMMAND),
        _metatool("list_jobs", "List your jobs, the newest first.", list_jobs, object_schema(limit=limit), output=listed),
    ]


def _metatool(
    name: str, text: str, handler: Any, schema: dict[str, Any], *, operation: Operation = Operation.QUERY, output: Any = _VIEW
) -> Tool:
    return build_metatool(name, text, handler, input_schema=schema, output_schema=output, operation=operation, reasons=_REASONS)


async def _view(yard: YardParts, job: Job) -> object:
    """Return a job with the envelope of its call, and with its content blocks."""
    result = await yard.jobs.result(job)
    if result is None:
        return job.view()
    return Envelope.ok({**job.view(), "result": msgspec.json.decode(result.to_json())}, content=result.content)
