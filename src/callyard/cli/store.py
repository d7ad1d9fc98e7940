"""`callyard jobs` and `callyard approvals`: what the store of a project shows to whoever may read it."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

import msgspec

from callyard.cli.call import write_envelope
from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Line, Painted, Style, Terminal
from callyard.jobs.job import Job
from callyard.jobs.service import StoredJobs
from callyard.launch.build import make_store
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.monitor.log_files import AuditLog
from callyard.policy.approvals import Approval, Approvals, Audit, Grant, local_user
from callyard.state.memory import MemoryStore
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["run_approvals", "run_jobs"]

_STYLES: Final[dict[str, Style]] = {
    "completed": "good",
    "working": "bold",
    "input_required": "bold",
    "failed": "bad",
    "interrupted": "bad",
    "pending": "bold",
    "approved": "good",
    "denied": "bad",
}
_MINUTE: Final = 60
_LISTED: Final = 500


@asynccontextmanager
async def _open_store(options: Options, terminal: Terminal) -> AsyncGenerator[Store]:
    """Open the store of the project.

    Raises:
        LaunchError: There is none, it cannot be used, or it refuses the command.
    """
    store = make_store(config_from(options, terminal))
    if isinstance(store, MemoryStore):
        raise LaunchError(
            "This project keeps its state in the memory of its server, which no command can read. Set 'store' "
            "to 'sqlite'."
        )
    try:
        with as_launch_error(StoreUnavailableError, ToolError):
            yield store
    finally:
        await store.close()


def run_jobs(options: Options, terminal: Terminal) -> int:
    """List the jobs, or show, wait for or cancel one."""
    if options.action != "list" and not options.name:
        raise LaunchError(f"Name the job: 'callyard jobs {options.action} JOB'.")
    return run(_jobs(options, terminal))


async def _jobs(options: Options, terminal: Terminal) -> int:
    async with _open_store(options, terminal) as store:
        jobs = StoredJobs(store)
        if options.action == "list":
            found = await jobs.all(limit=options.jobs)
            if options.json:
                terminal.write_json(encode([{**job.view(), "identity": job.owner} for job in found]))
            elif not found:
                terminal.inform("There are no jobs. Start one with 'callyard call URL NAME --background'.")
            else:
                for job in found:
                    terminal.write(*_job_line(job))
            return 0
        if options.action == "cancel":
            await jobs.cancel(options.name, None)
        seconds = {"show": 0.0, "cancel": 5.0}.get(options.action, options.timeout)
        job = await jobs.wait(options.name, None, seconds=seconds)
        return await _write_job(jobs, job, options, terminal)


def _job_line(job: Job) -> Line:
    age = f"  {_duration(max(time.time() - job.created_at, 0))} ago"
    return Painted(job.status, _STYLES.get(job.status, "faint")), f"  {job.id}  ", Painted(job.tool, "bold"), age


async def _write_job(jobs: StoredJobs, job: Job, options: Options, terminal: Terminal) -> int:
    result = await jobs.result(job)
    if options.json:
        envelope = {} if result is None else {"result": msgspec.Raw(result.to_json())}
        terminal.write_json(encode({**job.view(), "identity": job.owner, **envelope}))
        return 0
    terminal.write(*_job_line(job))
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


def run_approvals(options: Options, terminal: Terminal) -> int:
    """List the pending approvals and the grants, or show, approve, deny or revoke one."""
    if options.action not in {"list", "grants"} and not options.name:
        raise LaunchError(f"Name the approval: 'callyard approvals {options.action} ID'.")
    if options.watch and options.action != "list":
        raise LaunchError("'--watch' is for the list.")
    if (options.grant and options.action != "approve") or (options.any_arguments and not options.grant):
        raise LaunchError("'--grant' is for 'approve', and '--any-arguments' for '--grant'.")
    settings = config_from(options, terminal).settings.monitor
    audit = None
    if settings.audit_log is not None:  # of the project's server, so that decisions of this command are in it, too
        path = Path(settings.audit_log).expanduser()
        audit = AuditLog(path, max_bytes=settings.log_bytes, backups=settings.log_backups)
    with audit or nullcontext():
        return run(_approvals(options, terminal, audit))


async def _approvals(options: Options, terminal: Terminal, audit: Audit | None) -> int:
    async with _open_store(options, terminal) as store:
        approvals = Approvals(store, audit=audit)
        if options.watch:
            await _watch(approvals, options, terminal)
        if options.action == "list":
            _write_all(await approvals.pending(), options, terminal)
        elif options.action == "grants":
            _write_all(await approvals.grants(), options, terminal)
        elif options.action == "revoke":
            _write_all([await approvals.revoke(options.name, by=local_user())], options, terminal)
        else:
            _write(await _decided(approvals, options), options, terminal)
    return 0


async def _decided(approvals: Approvals, options: Options) -> Approval:
    if options.action == "show":
        return await approvals.get(options.name)
    by, reason, decision = local_user(), options.reason, "approve" if options.action == "approve" else "deny"
    approval = await approvals.decide(options.name, decision, by=by, reason=reason)
    if options.grant:  # only with an approval
        seconds, any_arguments = options.grant, options.any_arguments
        await approvals.grant(approval, seconds=seconds, any_arguments=any_arguments, by=by, reason=reason)
    return approval


async def _watch(approvals: Approvals, options: Options, terminal: Terminal) -> None:
    """Write each pending approval as soon as there is one, until interrupted."""
    seen = set[str]()
    while True:
        _write(await approvals.watch(seen), options, terminal)
        terminal.flush()


def _write_all(found: "list[Approval] | list[Grant]", options: Options, terminal: Terminal) -> None:
    if options.json:
        terminal.write_json(encode([one.view() for one in found]))
        return
    if not found:
        terminal.inform("There are none.")
    for one in found:
        view = one.view()
        identity = one.card.identity if isinstance(one, Approval) else one.identity
        arguments: str = view["arguments"]
        short = arguments if len(arguments) <= _LISTED else f"{arguments[:_LISTED]}…"
        uri = f" {view['uri']}" if view.get("uri") else ""
        terminal.write(Painted(one.id, "bold"), f"  {view['tool']}{uri} {short}  by {identity}, {_left(one)}")


def _write(approval: Approval, options: Options, terminal: Terminal) -> None:
    if options.json:
        terminal.write_json(encode(approval.view()))
        return
    status = Painted(approval.status, _STYLES.get(approval.status, "faint"))
    terminal.write(Painted(approval.id, "bold"), "  ", status, f"  {_left(approval)}")
    for line in approval.card.text().splitlines():
        terminal.write(f"  {line}")
    if approval.decided_by:
        reason = f": {approval.reason}" if approval.reason else ""
        terminal.write(f"  Decided by {approval.decided_by}{reason}")


def _left(one: Approval | Grant) -> str:
    return f"{_duration(max(one.expires_at - time.time(), 0))} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min"
