"""`callyard approvals`: what waits for a person, as the store of a project shows it to whoever may read it."""

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final, cast

from callyard.cli.jobs import open_store
from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Painted, Style, Terminal
from callyard.launch.errors import LaunchError
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.monitor.log_files import AuditLog
from callyard.policy.approvals import Approval, Approvals, Audit, Grant, local_user

__all__ = ["run_approvals"]

_STYLES: Final[dict[str, Style]] = {"pending": "bold", "approved": "good", "denied": "bad"}
_MINUTE: Final = 60
_LISTED: Final = 500


def run_approvals(options: Options, terminal: Terminal) -> int:
    """List the pending approvals and the grants, or show, approve, deny or revoke one."""
    if options.action not in {"list", "grants"} and not options.approval_id:
        raise LaunchError(f"Name the approval: 'callyard approvals {options.action} ID'.")
    if options.watch and options.action != "list":
        raise LaunchError("'--watch' is for the list.")
    if (options.grant and options.action != "approve") or (options.any_arguments and not options.grant):
        raise LaunchError("'--grant' is for 'approve', and '--any-arguments' for '--grant'.")
    return run(_run(options, terminal))


async def _run(options: Options, terminal: Terminal) -> int:
    async with _stored_approvals(options, terminal) as approvals:
        try:
            if options.watch:
                await _watch(approvals, options, terminal)
            if options.action == "list":
                _write_all(await approvals.pending(), options, terminal)
            elif options.action == "grants":
                _write_all(await approvals.grants(), options, terminal)
            elif options.action == "revoke":
                _write_all([await approvals.revoke(options.approval_id, by=local_user())], options, terminal)
            else:
                _write(await _decided(approvals, options), options, terminal)
        except ToolError as error:
            raise LaunchError(error.message) from error
    return 0


async def _decided(approvals: Approvals, options: Options) -> Approval:
    """Return the approval, after the decision of the command."""
    if options.action == "approve":
        approval = await approvals.decide(options.approval_id, "approve", by=local_user(), reason=options.reason)
        if options.grant:
            await approvals.grant(
                approval, seconds=options.grant, any_arguments=options.any_arguments, by=local_user(), reason=options.reason
            )
        return approval
    if options.action == "deny":
        return await approvals.decide(options.approval_id, "deny", by=local_user(), reason=options.reason)
    return await approvals.get(options.approval_id)


@asynccontextmanager
async def _stored_approvals(options: Options, terminal: Terminal) -> AsyncGenerator[Approvals]:
    with _audit_log(options, terminal) as audit:
        async with open_store(options, terminal) as store:
            yield Approvals(store, audit=audit)


def _audit_log(options: Options, terminal: Terminal) -> "AbstractContextManager[Audit | None]":
    """Return the audit log of the project's server, so that decisions of this command are in it, too."""
    settings = config_from(options, terminal).settings.monitor
    if settings.audit_log is None:
        return nullcontext()
    log = AuditLog(Path(settings.audit_log).expanduser(), max_bytes=settings.log_bytes, backups=settings.log_backups)
    return cast("AbstractContextManager[Audit]", log)


async def _watch(approvals: Approvals, options: Options, terminal: Terminal) -> None:
    """Write each pending approval as soon as there is one, until interrupted."""
    seen = set[str]()
    while True:
        approval = await approvals.watch(seen)
        if options.json:
            terminal.write_json(encode(approval.view()))
        else:
            _write(approval, options, terminal)
        terminal.flush()


def _write_all(found: "list[Approval] | list[Grant]", options: Options, terminal: Terminal) -> None:
    if options.json:
        terminal.write_json(encode([one.view() for one in found]))
        return
    if not found:
        terminal.inform("There are none.")
    for one in found:
        if isinstance(one, Approval):
            terminal.write(Painted(one.id, "bold"), f"  {one.card.tool} {_short(one.card.arguments)}  by {one.card.identity}, {_left(one)}")
        else:
            view = one.view()
            terminal.write(Painted(one.id, "bold"), f"  {view['tool']} {_short(view['arguments'])}  by {one.identity}, {_left(one)}")


def _write(approval: Approval, options: Options, terminal: Terminal) -> None:
    if options.json:
        terminal.write_json(encode(approval.view()))
        return
    terminal.write(
        Painted(approval.id, "bold"), "  ", Painted(approval.status, _STYLES.get(approval.status, "faint")), f"  {_left(approval)}"
    )
    for line in approval.card.text().splitlines():
        terminal.write(f"  {line}")
    if approval.decided_by:
        reason = f": {approval.reason}" if approval.reason else ""
        terminal.write(f"  Decided by {approval.decided_by}{reason}")


def _short(arguments: str) -> str:
    return arguments if len(arguments) <= _LISTED else f"{arguments[:_LISTED]}…"


def _left(one: Approval | Grant) -> str:
    seconds = max(one.expires_at - time.time(), 0)
    return f"{seconds:.0f} s left" if seconds < _MINUTE else f"{seconds / _MINUTE:.0f} min left"
