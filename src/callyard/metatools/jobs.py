"""The metatools `get_job`, `wait_job`, `cancel_job` and `list_jobs`, for calls in the background."""

from functools import partial
from typing import Final

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
_VIEW: Final = {
    "type": "object",
    "properties": {"status": TEXT, "job_id": TEXT, "tool_id": TEXT, "result": {"type": "object"}},
}


def job_metatools(yard: YardParts) -> list[Tool]:
    """Return the metatools about jobs."""

    async def at_upstream(call: Call) -> Envelope | None:
        """Return the answer of the inner yard that has the job, if its id names one."""
        named = call.arguments["job_id"]
        source, colon, job_id = named.partition(":")
        if not colon or not await yard.dispatcher.results.knows_elsewhere(named, call.caller.owner):
            return None
        return await yard.providers.ask_yard(source, call, call.spec.name, {**call.arguments, "job_id": job_id})

    async def get_job(call: Call) -> object:
        if (inner := await at_upstream(call)) is not None:
            return inner
        return await _view(yard, await yard.jobs.get(call.arguments["job_id"], call.caller.identity))

    async def wait_job(call: Call) -> object:
        if (inner := await at_upstream(call)) is not None:
            return inner
        job_id, seconds = call.arguments["job_id"], call.arguments["timeout_s"]
        return await _view(yard, await yard.jobs.wait(job_id, call.caller.identity, seconds=seconds))

    async def cancel_job(call: Call) -> object:
        if (inner := await at_upstream(call)) is not None:
            return inner
        job_id, identity = call.arguments["job_id"], call.caller.identity
        job = await yard.jobs.cancel(job_id, identity)
        return await _view(yard, job if job.ended else await yard.jobs.wait(job_id, identity, seconds=1))

    async def list_jobs(call: Call) -> object:
        views = [job.view() for job in await yard.jobs.of(call.caller.owner, limit=call.arguments["limit"])]
        return {"jobs": [{key: view[key] for key in view if key not in {"log", "questions"}} for view in views]}

    one = object_schema("job_id", job_id=TEXT)
    seconds = {"type": "number", "minimum": 0, "maximum": _MAX_WAIT_S, "default": 30}
    waits = object_schema("job_id", job_id=TEXT, timeout_s=seconds)
    limit = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    listed = {"type": "object", "properties": {"jobs": {"type": "array", "items": _VIEW}}}
    get_text = "Show a job: its status, progress and log lines, and its result once it has ended."
    wait_text = "Wait until a job has ended or asks something, for 30 seconds by default, and show it."
    list_text = "List your jobs, the newest first."
    metatool = partial(build_metatool, reasons=_REASONS)
    about_one = partial(metatool, output_schema=_VIEW)
    return [
        about_one("get_job", get_text, get_job, input_schema=one, use="follow"),
        about_one("wait_job", wait_text, wait_job, input_schema=waits, use="follow"),
        about_one("cancel_job", "Cancel a job and show it.", cancel_job, input_schema=one, operation=Operation.COMMAND),
        metatool("list_jobs", list_text, list_jobs, input_schema=object_schema(limit=limit), output_schema=listed),
    ]


async def _view(yard: YardParts, job: Job) -> object:
    """Return a job with the envelope of its call, and with its content blocks."""
    result = await yard.jobs.result(job)
    if result is None:
        return job.view()
    return Envelope.ok({**job.view(), "result": msgspec.json.decode(result.to_json())}, content=result.content)
