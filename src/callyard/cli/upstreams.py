"""`callyard upstreams`, `callyard restart` and `callyard logs`: the state of upstreams, and what is stored about them."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from callyard._internal.logfmt import is_identifier
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, project_dir_of
from callyard.cli.terminal import Painted, Style, Terminal, cut, pad, width_of
from callyard.client_configs.connect import missing_variables
from callyard.config.upstreams import UpstreamEntry
from callyard.launch.build import resolve_upstreams
from callyard.launch.errors import DEFECT, DIFFERENT, LaunchError
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean
from callyard.providers.upstream.catalogue import folder_of, load
from callyard.providers.upstream.health import Status, more_command, read_last_status, read_status, request_restart
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.pins import Definitions, LockError, Pins, PinsByUpstream, definitions_of, find_lock, parse_lock
from callyard.providers.upstream.process_log import LogReader, log_path, logged_upstreams
from callyard.providers.upstream.provider import Upstream, make_upstream
from callyard.providers.upstream.settings import Carrier
from callyard.yard import Yard

__all__ = ["StoredDefinitions", "read_definitions", "run_logs", "run_restart", "run_upstreams"]


_POLL_S: Final = 0.2
_CHECK_S: Final = 5.0
"""How long a check waits: programs that are downloaded first need some seconds."""


def run_logs(options: Options, terminal: Terminal) -> int:
    """Print the last lines of an upstream's log, and with `--follow` further lines as they come."""
    state = project_dir_of(config_from(options, terminal))
    try:
        names = logged_upstreams(state)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be read: {error.strerror}.") from error
    if options.name not in names:
        raise LaunchError(f"There is no log of '{options.name}'.{_available_logs(options.name, names)}")
    with LogReader(log_path(state, options.name)) as reader:
        _write_lines(reader.read_last(options.lines), terminal)
        while options.follow:
            time.sleep(_POLL_S)  # another process writes the file, and nothing notifies this one
            _write_lines(reader.read_new(), terminal)
    return 0


def _write_lines(lines: Sequence[str], terminal: Terminal) -> None:
    for line in lines:
        terminal.write(line)
    terminal.flush()


def _available_logs(name: str, names: Sequence[str]) -> str:
    if names:
        return did_you_mean(name, names) or " There are logs of " + ", ".join(f"'{known}'" for known in names) + "."
    return " A program that is an upstream has a log once it was started."


def run_restart(options: Options, terminal: Terminal) -> int:
    """Ask the running yard that uses the upstream to restart it."""
    config = config_from(options, terminal)
    if options.name not in config.upstreams:
        raise LaunchError(f"There is no upstream '{options.name}'.{did_you_mean(options.name, sorted(config.upstreams))}")
    folder = folder_of(project_dir_of(config), options.name)
    try:
        status = read_status(folder)
        if status is None:
            raise LaunchError(f"No running yard uses '{options.name}', so there is nothing to restart.")
        request_restart(folder)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be used: {error.strerror}.") from error
    terminal.inform(f"The yard with the process id {status.yard_pid} restarts '{options.name}' within a second.")
    return 0


_UNKNOWN: Final = "The definitions of '{}' are unknown on this machine. Serve it once, so that they are read."


class StoredDefinitions(NamedTuple):
    """The definitions of upstreams when they were last read, and the accepted ones of the lock file."""

    lock: Path
    state: Path
    locked: PinsByUpstream
    names: list[str]
    """The upstreams that a command is about by default."""
    unpinned: frozenset[str]
    """The upstreams whose definitions are not compared."""

    def of_all(self, terminal: Terminal) -> dict[str, Definitions]:
        """Return the definitions of the default upstreams, and say which are unknown."""
        catalogues = {name: load(folder_of(self.state, name)) for name in self.names}
        for name, catalogue in catalogues.items():
            if catalogue is None:
                terminal.inform(_UNKNOWN.format(name))
        return {name: definitions_of(catalogue) for name, catalogue in catalogues.items() if catalogue is not None}

    def of(self, name: str) -> Definitions:
        """Return the definitions of one upstream.

        Raises:
            LaunchError: They are unknown.
        """
        catalogue = load(folder_of(self.state, name)) if _is_folder_name(name) else None
        if catalogue is not None:
            return definitions_of(catalogue)
        if name in self.names:
            raise LaunchError(_UNKNOWN.format(name))
        known = sorted({*self.names, *_with_catalogue(self.state)})
        raise LaunchError(f"There is no upstream '{name}'.{did_you_mean(name, known)}")


def read_definitions(options: Options, terminal: Terminal) -> StoredDefinitions:
    """Find the stored definitions of the configured upstreams.

    Raises:
        LaunchError: The settings are wrong, or the lock file cannot be read.
    """
    config = config_from(options, terminal)
    state = project_dir_of(config)
    try:
        lock = find_lock(config.path, state)
        locked = parse_lock(lock, lock.read_bytes() if lock.exists() else b"")
    except LockError as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(f"'{error.filename}' cannot be read: {error.strerror}.", status=DEFECT) from error
    used = {name: entry.settings for name, entry in config.upstreams.items() if entry.settings.enabled}
    unpinned = frozenset(name for name, settings in used.items() if settings.pin == "off")
    return StoredDefinitions(lock, state, locked, sorted(used) or sorted(locked) or _with_catalogue(state), unpinned)


def _is_folder_name(name: str) -> bool:
    """Return whether a name cannot lead out of the folder of the upstreams."""
    return is_identifier(name) and not name.startswith(".")


def _with_catalogue(state: Path) -> list[str]:
    """Return the upstreams whose definitions were read on this machine."""
    return sorted(path.parent.name for path in folder_of(state, "").glob("*/catalogue.json"))


_TITLES: Final = ("NAME", "STATE", "TOOLS", "LATENCY", "SEEN", "WHY")
_STYLES: Final[Mapping[str, Style]] = {"ready": "good", "degraded": "bad", "backing_off": "bad", "auth_needed": "bad", "stopped": "faint"}
_HEALTHY: Final = frozenset({"ready", "stopped"})
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def run_upstreams(options: Options, terminal: Terminal) -> int:
    """Print a line for each upstream; with `--check`, exit with 1 if one cannot be used."""
    config = config_from(options, terminal)
    state = project_dir_of(config)
    checked: Mapping[str, Status] = {}
    if options.check:
        pins = Pins(find_lock(config.path, state), state=state)
        upstreams = [
            make_upstream(name, resolved.settings, state=state, pins=pins, problem=resolved.problem)
            for name, resolved in resolve_upstreams(config, terminal).items()
        ]
        checked = run(_check(upstreams, terminal, seconds=None if options.wait else _CHECK_S))
    statuses = [checked.get(name) or _status(name, entry, state) for name, entry in sorted(config.upstreams.items())]
    if options.json:
        terminal.write_json(encode(statuses))
    elif statuses:
        _write_table(statuses, terminal, {name: entry.settings.carrier for name, entry in config.upstreams.items()})
    else:
        terminal.say("There are no upstreams. 'callyard import' finds those of MCP clients; 'callyard add' adds one.")
    return DIFFERENT if any(status.state not in _HEALTHY for status in checked.values()) else 0


async def _check(upstreams: Sequence[Upstream], terminal: Terminal, *, seconds: float | None) -> Mapping[str, Status]:
    """Connect to each upstream now and return the states; one that does not answer in time has failed."""
    terminal.show_progress(f"Checking {len(upstreams)} upstreams …")
    async with Yard("check", providers=upstreams, metatools=False):
        refreshes = {asyncio.create_task(upstream.supervisor.refresh()): upstream for upstream in upstreams}
        late = (await asyncio.wait(refreshes, timeout=seconds))[1] if refreshes else ()
        for refresh in late:
            refresh.cancel()
            name = refreshes[refresh].name
            error = LinkError("unavailable", f"'{name}' did not answer within {seconds:g} seconds. '--wait' waits longer.")
            refreshes[refresh].supervisor.health.fail(time.monotonic(), error, own_request=True)
        return {upstream.name: upstream.status() for upstream in upstreams}


def _status(name: str, entry: UpstreamEntry, state: Path) -> Status:
    """Return the state from the running yard that uses the upstream, or what is stored about it."""
    folder = folder_of(state, name)
    status = read_status(folder)
    if status is not None:
        return status
    if not entry.settings.enabled:
        return Status(name=name, state="stopped", reason="It is switched off.")
    catalogue, last = load(folder), read_last_status(folder)
    reason = "No running yard uses it." if last is not None or catalogue is not None else "It was never started."
    failed, last_error = (None, "") if last is None or last.failed is None else (last.failed, last.last_error)
    if missing := missing_variables(entry.fields, os.environ):
        reason = f"Not set here: {', '.join(missing)}."
    elif failed is not None:
        reason = f"It failed {_ago(time.time() - failed)} ago: {last_error}"
    if catalogue is None:
        return Status(name=name, state="cold", reason=reason, failed=failed, last_error=last_error)
    return Status(
        name=name,
        state="cold",
        reason=reason,
        failed=failed,
        last_error=last_error,
        server=str(catalogue.server.get("name", "")),
        version=catalogue.version,
        tools=len(catalogue.tools),
        resources=len(catalogue.resources) + len(catalogue.templates),
        prompts=len(catalogue.prompts),
        seen=catalogue.seen,
    )


def _write_table(statuses: list[Status], terminal: Terminal, carriers: Mapping[str, Carrier]) -> None:
    rows = [_row(status, carriers[status.name]) for status in statuses]
    widths = [max(width_of(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    if terminal.interactive:
        terminal.write(Painted(_line(_TITLES, widths), "bold"))
    for status, row in zip(statuses, rows, strict=True):
        if terminal.interactive:
            before, after = _line(row[:1], widths), _line(row[2:], widths[2:])
            room = max(terminal.width - width_of(before) - widths[1] - 4, 0)
            state = Painted(row[1].ljust(widths[1]), _STYLES.get(status.state, "bold"))
            command = _command(status, carriers[status.name])
            kept = f" {command}" if command and width_of(command) < room // 2 else ""
            line = after if width_of(after) <= room else cut(after.removesuffix(command).rstrip(), room - width_of(kept)) + kept
            terminal.write(before.ljust(widths[0]), "  ", state, "  ", line)
        else:
            terminal.write("\t".join(row))


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(pad(cell, width) for cell, width in zip(cells, widths, strict=False)).rstrip()


def _command(status: Status, carrier: Carrier) -> str:
    """Return the command that shows more about a failure, unless the reason names one."""
    is_failing = status.failed is not None or bool(status.last_error)
    return "" if not is_failing or "'callyard " in status.reason else f"See '{more_command(status.name, carrier)}'."


def _row(status: Status, carrier: Carrier) -> tuple[str, ...]:
    latency = "-" if status.latency_ms is None else f"{status.latency_ms:.1f} ms"
    seen = "-" if status.seen is None else f"{_ago(time.time() - status.seen)} ago"
    notes = [f"{count} {what}" for count, what in ((status.withheld, "withheld"), (status.warned, "changed")) if count]
    note = f" ({', '.join(notes)})" if notes else ""
    why = status.reason or (f"Once: {status.last_error}" if status.last_error else "")
    command = _command(status, carrier)
    ending = "." if command and why and not why.rstrip().endswith((".", "?", "!")) else ""
    why = " ".join(f"{why}{ending} {command}".split())
    return (status.name, status.state, f"{status.tools}{note}", latency, seen, why)


def _ago(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
