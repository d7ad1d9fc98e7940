"""Commands about upstreams: their state and logs, and their definitions against the accepted ones."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from callyard._internal.logfmt import is_identifier
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, os_errors, project_dir_of
from callyard.cli.terminal import Painted, Style, Terminal, cut, pad, painted_change, width_of
from callyard.client_configs.connect import missing_variables
from callyard.config import Config
from callyard.config.apis import ApiEntry
from callyard.config.upstreams import UpstreamEntry
from callyard.launch.build import make_vaults, resolve_sources
from callyard.launch.errors import DEFECT, DIFFERENT, LaunchError, as_launch_error
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean
from callyard.providers.openapi.provider import Api, make_api
from callyard.providers.openapi.settings import ResolvedApi
from callyard.providers.upstream.catalogue import folder_of, load
from callyard.providers.upstream.diff import Comparison, Difference, compare
from callyard.providers.upstream.health import Status, more_command, read_last_status, read_status, request_restart
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.oauth.vault import Vaults
from callyard.providers.upstream.pins import (
    Definitions,
    Key,
    LockError,
    Pins,
    PinsByUpstream,
    accept,
    definitions_of,
    find_lock,
    parse_lock,
)
from callyard.providers.upstream.process_log import LogReader, log_path, logged_upstreams
from callyard.providers.upstream.provider import Upstream, make_upstream
from callyard.providers.upstream.scan import Finding, scan, visible
from callyard.providers.upstream.settings import Carrier, ResolvedUpstream
from callyard.yard import Yard

__all__ = [
    "check_upstreams",
    "run_accept",
    "run_diff",
    "run_logs",
    "run_restart",
    "run_scan",
    "run_upstreams",
    "with_catalogue",
]


_POLL_S: Final = 0.2
_CHECK_S: Final = 5.0
"""How long a check waits: programs that are downloaded first need some seconds."""


def run_logs(options: Options, terminal: Terminal) -> int:
    """Print the last lines of an upstream's log, and with `--follow` further lines as they come."""
    state = project_dir_of(config_from(options, terminal))
    with os_errors("The state directory cannot be read"):
        names = logged_upstreams(state)
    if options.name not in names:
        known = " A program that is an upstream has a log once it was started."
        if names:
            listed = ", ".join(f"'{name}'" for name in names)
            known = did_you_mean(options.name, names) or f" There are logs of {listed}."
        raise LaunchError(f"There is no log of '{options.name}'.{known}")
    with LogReader(log_path(state, options.name)) as reader:
        lines = reader.read_last(options.lines)
        while True:
            for line in lines:
                terminal.write(line)
            terminal.flush()
            if not options.follow:
                return 0
            time.sleep(_POLL_S)  # another process writes the file, and nothing notifies this one
            lines = reader.read_new()


def run_restart(options: Options, terminal: Terminal) -> int:
    """Ask the running yard that uses the upstream to restart it."""
    config = config_from(options, terminal)
    entries = entries_of(config)
    if options.name not in entries:
        meant = did_you_mean(options.name, sorted(entries))
        raise LaunchError(f"There is no upstream '{options.name}'.{meant}")
    folder = folder_of(project_dir_of(config), options.name)
    with os_errors("The state directory cannot be used"):
        status = read_status(folder)
        if status is None:
            raise LaunchError(f"No running yard uses '{options.name}', so there is nothing to restart.")
        request_restart(folder)
    terminal.inform(f"The yard with the process id {status.yard_pid} restarts '{options.name}' within a second.")
    return 0


_UNKNOWN: Final = "The definitions of '{}' are unknown on this machine. Serve it once, so that they are read."


class _StoredDefinitions(NamedTuple):
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
        is_folder_name = is_identifier(name) and not name.startswith(".")  # it cannot lead out of the folder
        catalogue = load(folder_of(self.state, name)) if is_folder_name else None
        if catalogue is not None:
            return definitions_of(catalogue)
        if name in self.names:
            raise LaunchError(_UNKNOWN.format(name))
        known = sorted({*self.names, *with_catalogue(self.state)})
        raise LaunchError(f"There is no upstream '{name}'.{did_you_mean(name, known)}")

    def compare(self, name: str, definitions: Definitions) -> Comparison:
        """Return how definitions of an upstream differ from the accepted ones."""
        return compare(name, definitions, self.locked.get(name, {}), folder=folder_of(self.state, name))


def _read_definitions(options: Options, terminal: Terminal) -> _StoredDefinitions:
    """Find the stored definitions of the configured upstreams.

    Raises:
        LaunchError: The settings are wrong, or the lock file cannot be read.
    """
    config = config_from(options, terminal)
    state = project_dir_of(config)
    try:
        with as_launch_error(LockError):
            lock = find_lock(config.path, state)
            locked = parse_lock(lock, lock.read_bytes() if lock.exists() else b"")
    except OSError as error:
        raise LaunchError(f"'{error.filename}' cannot be read: {error.strerror}.", status=DEFECT) from error
    used = {name: entry.settings for name, entry in entries_of(config).items() if entry.settings.enabled}
    unpinned = frozenset(name for name, settings in used.items() if settings.pin == "off")
    return _StoredDefinitions(lock, state, locked, sorted(used) or sorted(locked) or with_catalogue(state), unpinned)


def with_catalogue(state: Path) -> list[str]:
    """Return the upstreams whose definitions were read on this machine."""
    return sorted(path.parent.name for path in folder_of(state, "").glob("*/catalogue.json"))


_TITLES: Final = ("NAME", "STATE", "TOOLS", "LATENCY", "SEEN", "WHY")
_STYLES: Final[Mapping[str, Style]] = {
    "ready": "good",
    "degraded": "bad",
    "backing_off": "bad",
    "auth_needed": "bad",
    "stopped": "faint",
    "high": "bad",
    "medium": "bold",
    "low": "faint",
}


def run_upstreams(options: Options, terminal: Terminal) -> int:
    """Print a line for each upstream; with `--check`, exit with 1 if one cannot be used."""
    config = config_from(options, terminal)
    state = project_dir_of(config)
    checked: Mapping[str, Status] = {}
    if options.check:
        pins = Pins(find_lock(config.path, state), state=state)
        sources = resolve_sources(config, terminal)
        vaults = make_vaults(config)
        providers = [
            _provider(name, resolved, state=state, pins=pins, vaults=vaults) for name, resolved in sources.items()
        ]
        checked = run(check_upstreams(providers, terminal, seconds=None if options.wait else _CHECK_S))
    entries = entries_of(config)
    statuses = [checked.get(name) or _status(name, entry, state) for name, entry in sorted(entries.items())]
    if options.json:
        terminal.write_json(encode(statuses))
    elif statuses:
        _write_table(statuses, terminal, {name: entry.settings.carrier for name, entry in entries.items()})
    else:
        terminal.say("There are no upstreams. 'callyard import' finds those of MCP clients; 'callyard add' adds one.")
    return DIFFERENT if any(status.state not in {"ready", "stopped"} for status in checked.values()) else 0


def entries_of(config: Config) -> "dict[str, UpstreamEntry | ApiEntry]":
    """Return the configured upstreams and APIs by name."""
    return {**config.upstreams, **config.apis}


def _provider(
    name: str, resolved: ResolvedUpstream | ResolvedApi, *, state: Path, pins: Pins, vaults: Vaults | None
) -> Upstream | Api:
    if isinstance(resolved, ResolvedUpstream):
        return make_upstream(name, resolved.settings, state=state, pins=pins, problem=resolved.problem, vaults=vaults)
    return make_api(name, resolved.settings, state=state, pins=pins, problem=resolved.problem, vaults=vaults)


async def check_upstreams(
    upstreams: Sequence[Upstream | Api], terminal: Terminal, *, seconds: float | None
) -> Mapping[str, Status]:
    """Connect to each upstream now and return the states; one that does not answer in time has failed."""
    terminal.show_progress(f"Checking {len(upstreams)} upstreams …")
    async with Yard("check", providers=upstreams, metatools=False):
        refreshes = {asyncio.create_task(upstream.refresh()): upstream for upstream in upstreams}
        late = (await asyncio.wait(refreshes, timeout=seconds))[1] if refreshes else ()
        for refresh in late:
            refresh.cancel()
            upstream = refreshes[refresh]
            message = f"'{upstream.name}' did not answer within {seconds:g} seconds. '--wait' waits longer."
            upstream.health.fail(time.monotonic(), LinkError("unavailable", message), own_request=True)
        return {upstream.name: upstream.status() for upstream in upstreams}


def _status(name: str, entry: UpstreamEntry | ApiEntry, state: Path) -> Status:
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
    status = Status(name=name, state="cold", reason=reason, failed=failed, last_error=last_error)
    if catalogue is None:
        return status
    return msgspec.structs.replace(
        status,
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
            if width_of(after) > room:
                after = cut(after.removesuffix(command).rstrip(), room - width_of(kept)) + kept
            terminal.write(before.ljust(widths[0]), "  ", state, "  ", after)
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
    counts = ((status.withheld, "withheld"), (status.warned, "changed"), (status.unsettled, "unsettled"))
    notes = [f"{count} {what}" for count, what in counts if count]
    note = f" ({', '.join(notes)})" if notes else ""
    why = status.reason or (f"Once: {status.last_error}" if status.last_error else "")
    command = _command(status, carrier)
    ending = "." if command and why and not why.rstrip().endswith((".", "?", "!")) else ""
    why = " ".join(f"{why}{ending} {command}".split())
    return (status.name, status.state, f"{status.tools}{note}", latency, seen, why)


def _ago(seconds: float) -> str:
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def run_accept(options: Options, terminal: Terminal) -> int:
    """Accept definitions by name, or all, and print them."""
    stored = _read_definitions(options, terminal)
    name = options.name
    definitions = stored.of(name)
    compared = stored.compare(name, definitions)
    found = compared.differences
    if options.seen is not None and options.seen != compared.seen:
        raise LaunchError(f"'{name}' has changed since that digest. Look again with 'callyard diff {name}'.")
    accepted = found if options.all else _select(options.arguments, found, definitions, upstream=name)
    keys = [difference.key for difference in accepted]
    try:
        accept(stored.lock, name, definitions=definitions, keys=keys, folder=folder_of(stored.state, name))
    except (LockError, OSError) as error:
        raise LaunchError(f"'{stored.lock}' cannot be written: {error}", status=DEFECT) from error
    if options.json:
        rows = [{"kind": one.kind, "name": one.name, "what": one.what, "findings": one.findings} for one in accepted]
        terminal.write_json(encode(rows))
        return 0
    for difference in accepted:
        terminal.write(f"{difference.what}\t{difference.kind}\t{visible(difference.name)}")
        for finding in difference.findings:
            terminal.inform(_described(finding))
    same = f"Nothing of '{name}' differs from what was accepted."
    terminal.inform(f"{len(accepted)} accepted in '{stored.lock}'." if accepted else same)
    return 0


def _select(
    names: Sequence[str], found: Sequence[Difference], definitions: Definitions, *, upstream: str
) -> list[Difference]:
    """Return the differences with these names; refuse unknown names, and no names at all."""
    if not names:
        listed = ", ".join(f"'{visible(_name(difference.key))}'" for difference in found)
        differ = f"These differ: {listed}." if found else "Nothing differs."
        raise LaunchError(f"Name what to accept of '{upstream}', or '--all'. {differ}")
    known = {_name(difference.key) for difference in found}.union(map(_name, definitions))
    for name in names:
        if name not in known:
            raise LaunchError(f"There is no '{name}' in '{upstream}'.{did_you_mean(name, sorted(known))}")
    return [difference for difference in found if _name(difference.key) in names]


def _name(key: Key) -> str:
    return key.name or key.kind


def run_diff(options: Options, terminal: Terminal) -> int:
    """Print the differences, and exit with 1 if there are any."""
    stored = _read_definitions(options, terminal)
    offered = {options.name: stored.of(options.name)} if options.name else stored.of_all(terminal)
    comparisons = [
        stored.compare(name, definitions)
        for name, definitions in offered.items()
        if name not in stored.unpinned or options.name
    ]
    if options.json:
        terminal.write_json(encode(comparisons))
    else:
        for comparison in comparisons:
            if comparison.differences and not options.name and comparison.upstream not in stored.locked:
                _write_names(terminal, comparison)
            else:
                _write_differences(terminal, comparison)
    return DIFFERENT if any(comparison.differences for comparison in comparisons) else 0


def _write_names(terminal: Terminal, comparison: Comparison) -> None:
    """Print only the names of an upstream without accepted definitions, because everything differs."""
    name = comparison.upstream
    for difference in comparison.differences:
        terminal.write(_title(name, difference), " (new)")
    terminal.inform(f"Nothing of '{name}' was accepted yet. 'callyard diff {name}' shows all of it.")


def _write_differences(terminal: Terminal, comparison: Comparison) -> None:
    name = comparison.upstream
    if not comparison.differences:
        terminal.inform(f"Nothing of '{name}' differs from what was accepted.")
        return
    for number, difference in enumerate(comparison.differences):
        if number:
            terminal.write("")
        _write_difference(terminal, name, difference)
    terminal.inform(f"To accept all of '{name}' as shown: callyard accept {name} --all --seen {comparison.seen}")


def _write_difference(terminal: Terminal, upstream: str, difference: Difference) -> None:
    what = "no longer offered" if difference.what == "vanished" else difference.what
    terminal.write(_title(upstream, difference), f" ({what})")
    for finding in difference.findings:
        terminal.write(Painted(_described(finding), _STYLES[finding.severity]))
    for change in difference.changes:
        unknown = "" if change.lines else " changed; the accepted text is not on this machine"
        terminal.write(f"  {change.field}", Painted(unknown, "faint"))
        for line in change.lines:
            terminal.write("    ", painted_change(line))


def _described(finding: Finding) -> str:
    return f"  The scan finds {finding.rule} ({finding.severity}) in {finding.field}: {finding.excerpt}"


def _title(upstream: str, difference: Difference) -> Painted:
    return Painted(f"{upstream}: {visible(str(difference.key))}", "bold")


def run_scan(options: Options, terminal: Terminal) -> int:
    """Print suspicious definitions, and exit with 1 if a finding is severe."""
    stored = _read_definitions(options, terminal)
    named = {options.name: stored.of(options.name)} if options.name else {}
    everything = {**stored.of_all(terminal), **named}
    scanned = named or everything
    findings: list[Finding] = []
    for name, definitions in scanned.items():
        rest = [keys for other, keys in everything.items() if other != name]
        others = [key.name for keys in rest for key in keys if key.kind == "tool"]
        findings += scan(name, definitions.values(), others=others)
    if options.json:
        terminal.write_json(encode(findings))
    else:
        _write_findings(terminal, findings, number=sum(map(len, scanned.values())))
    return DIFFERENT if any(finding.severity == "high" for finding in findings) else 0


def _write_findings(terminal: Terminal, findings: Sequence[Finding], *, number: int) -> None:
    for finding in findings:
        place = f"{finding.upstream}: {visible(str(Key(finding.kind, finding.name)))}, {finding.field}"
        if terminal.interactive:
            terminal.write(Painted(f"{finding.severity:<8}", _STYLES[finding.severity]), f"{finding.rule}  {place}")
            terminal.write(f"        {finding.excerpt}")
        else:
            terminal.write(f"{finding.severity}\t{finding.rule}\t{place}\t{finding.excerpt}")
    terminal.inform(f"{'1 finding' if len(findings) == 1 else f'{len(findings)} findings'} in {number} definitions.")
