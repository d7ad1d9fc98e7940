"""`callyard jobs`, `approvals`, `disable` and `enable`: what the store of a project has for whoever may read it."""

import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from callyard.cli.call import write_envelope
from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Line, Painted, Style, Terminal
from callyard.config import Config
from callyard.jobs.job import Job
from callyard.jobs.stored import StoredJobs
from callyard.launch.build import make_store
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.names import did_you_mean
from callyard.model.switch import Switch
from callyard.monitor.log_files import AuditLog
from callyard.policy.approvals import Approval, Approvals, Audit, Grant, local_user
from callyard.policy.switches import StoredSwitches, withdraw_covered
from callyard.state.memory import MemoryStore
from callyard.state.store import Store, StoreUnavailableError

__all__ = ["run_approvals", "run_disable", "run_enable", "run_jobs"]

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
    with _audit_of(config_from(options, terminal)) as audit:
        return run(_approvals(options, terminal, audit))


@contextmanager
def _audit_of(config: Config) -> Generator[Audit | None]:
    """Open the audit log of the project's server, if it has one, so that decisions of a command are in it, too."""
    settings = config.settings.monitor
    if settings.audit_log is None:
        yield None
        return
    path = Path(settings.audit_log).expanduser()
    with AuditLog(path, max_bytes=settings.log_bytes, backups=settings.log_backups) as audit:
        yield audit


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


def run_disable(options: Options, terminal: Terminal) -> int:
    """Disable a name or pattern, or list what is disabled."""
    if not options.name and (options.seconds or options.reason):
        raise LaunchError("Name what to disable: 'callyard disable NAME'.")
    config = config_from(options, terminal)
    with _audit_of(config) as audit:
        return run(_disable(options, terminal, config, audit))


async def _disable(options: Options, terminal: Terminal, config: Config, audit: Audit | None) -> int:
    async with _open_store(options, terminal) as store:
        switches = StoredSwitches(store, audit=audit)
        if not options.name:
            found = await switches.all()
            if options.json:
                terminal.write_json(encode([switch.view() for switch in found]))
            elif not found:
                terminal.inform("Nothing is disabled.")
            else:
                for switch in found:
                    _write_switch(switch, terminal)
            return 0
        switch = await switches.disable(options.name, by=local_user(), reason=options.reason, seconds=options.seconds)
        await withdraw_covered(Approvals(store, audit=audit), switch)
    if options.json:
        terminal.write_json(encode(switch.view()))
    else:
        _write_switch(switch, terminal)
    known = [*config.upstreams, *config.settings.packs]
    meant = "" if options.name in known else did_you_mean(options.name, known)
    terminal.inform(f"Running servers of this store follow within two seconds.{meant}")
    return 0


def _write_switch(switch: Switch, terminal: Terminal) -> None:
    until = f"until {switch.end}" if switch.end else "until it is enabled"
    reason = f": {switch.reason}" if switch.reason else ""
    terminal.write(Painted(switch.target, "bold"), f"  disabled {until}, by {switch.by}{reason}")


def run_enable(options: Options, terminal: Terminal) -> int:
    """Enable what was disabled."""
    with _audit_of(config_from(options, terminal)) as audit:
        return run(_enable(options, terminal, audit))


async def _enable(options: Options, terminal: Terminal, audit: Audit | None) -> int:
    async with _open_store(options, terminal) as store:
        switch = await StoredSwitches(store, audit=audit).enable(options.name, by=local_user())
    if options.json:
        terminal.write_json(encode(switch.view()))
    else:
        terminal.write(Painted(switch.target, "bold"), "  enabled")
    terminal.inform("Running servers of this store follow within two seconds.")
    return 0


def _left(one: Approval | Grant) -> str:
    return f"{_duration(max(one.expires_at - time.time(), 0))} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min"
