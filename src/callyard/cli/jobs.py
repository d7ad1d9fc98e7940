"""`callyard jobs`: the jobs of a project, as its store shows them to whoever may read it."""

import time
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from callyard.cli.call import write_envelope
from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Painted, Style, Terminal
from callyard.jobs.job import Job
from callyard.jobs.stored import StoredJobs
from callyard.launch.build import make_store
from callyard.launch.errors import LaunchError
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.state.memory import MemoryStore
from callyard.state.store import Store, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["open_store", "run_jobs"]

_STYLES: Final[dict[str, Style]] = {"completed": "good", "working": "bold", "input_required": "bold", "failed": "bad", "interrupted": "bad"}
_MINUTE: Final = 60


def run_jobs(options: Options, terminal: Terminal) -> int:
    """List the jobs, or show, wait for or cancel one."""
    if options.action != "list" and not options.job_id:
        raise LaunchError(f"Name the job: 'callyard jobs {options.action} JOB'.")
    return run(_run(options, terminal))


async def _run(options: Options, terminal: Terminal) -> int:
    async with _stored_jobs(options, terminal) as jobs:
        try:
            if options.action == "list":
                return _write_list(await jobs.all(limit=options.limit or 50), options, terminal)
            if options.action == "cancel":
                await jobs.cancel(options.job_id, None)
            seconds = {"show": 0.0, "cancel": 5.0}.get(options.action, options.timeout)
            job = await jobs.wait(options.job_id, None, seconds=seconds)
            return await _write_job(jobs, job, options, terminal)
        except ToolError as error:
            raise LaunchError(error.message) from error


@asynccontextmanager
async def _stored_jobs(options: Options, terminal: Terminal) -> "AsyncGenerator[StoredJobs]":
    async with open_store(options, terminal) as store:
        yield StoredJobs(store)


@asynccontextmanager
async def open_store(options: Options, terminal: Terminal) -> "AsyncGenerator[Store]":
    """Open the store of the project.

    Raises:
        LaunchError: There is none, or it cannot be used.
    """
    store = make_store(config_from(options, terminal))
    if isinstance(store, MemoryStore):
        raise LaunchError("This project keeps its state in the memory of its server, which no command can read. Set 'store' to 'sqlite'.")
    try:
        yield store
    except StoreUnavailableError as error:
        raise LaunchError(str(error)) from error
    finally:
        await store.close()


def _write_list(found: Sequence[Job], options: Options, terminal: Terminal) -> int:
    if options.json:
        terminal.write_json(encode([{**job.view(), "identity": job.owner} for job in found]))
        return 0
    if not found:
        terminal.inform("There are no jobs. Start one with 'callyard call URL NAME --background'.")
    for job in found:
        terminal.write(Painted(job.status, _STYLES.get(job.status, "faint")), f"  {job.id}  ", Painted(job.tool, "bold"), f"  {_age(job)}")
    return 0


async def _write_job(jobs: StoredJobs, job: Job, options: Options, terminal: Terminal) -> int:
    result = await jobs.result(job)
    if options.json:
        envelope = {} if result is None else {"result": msgspec.Raw(result.to_json())}
        terminal.write_json(encode({**job.view(), "identity": job.owner, **envelope}))
        return 0
    terminal.write(Painted(job.status, _STYLES.get(job.status, "faint")), f"  {job.id}  ", Painted(job.tool, "bold"), f"  {_age(job)}")
    if job.progress is not None:
        terminal.write(Painted("Progress: ", "bold"), encode(job.progress).decode())
    for line in job.log:
        terminal.write(f"  {line.level}: {line.text}")
    for key, ask in job.asks.items():
        terminal.write(Painted(f"Question '{key}': ", "bold"), str(ask.params.get("message", ask.method)))
    if result is None:
        return 0
    options.name = job.tool
    return write_envelope(options, terminal, result)


def _age(job: Job) -> str:
    seconds = max(time.time() - job.created_at, 0)
    return f"{seconds:.0f} s ago" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min ago"
