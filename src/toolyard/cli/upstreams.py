"""`toolyard upstreams`: how each upstream is, what it offers and what went wrong last."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from toolyard._internal.files import find_state_dir
from toolyard._internal.logfmt import is_word
from toolyard.cli.parser import Options
from toolyard.cli.targets import settings_of_options
from toolyard.cli.terminal import Painted, Style, Terminal, cut, width_of
from toolyard.launch.build import settled_upstreams
from toolyard.launch.errors import DEFECT, DIFFERENT, LaunchError
from toolyard.launch.signals import run as run_until_done
from toolyard.model.envelope import encode
from toolyard.model.names import did_you_mean
from toolyard.providers.upstream.catalogue import folder_of, load
from toolyard.providers.upstream.health import Status, ask_for_restart, read_status
from toolyard.providers.upstream.pins import Definitions, Locked, LockError, Pins, definitions_of, find_lock, parse_lock
from toolyard.providers.upstream.process_log import LogReader, names_of_logs, path_of_log
from toolyard.providers.upstream.provider import Upstream, make_upstream
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.yard import Yard

__all__ = ["Stored", "read_stored", "run_logs", "run_restart", "run_upstreams"]


_PAUSE: Final = 0.2


def run_logs(options: Options, terminal: Terminal) -> int:
    """Print the last lines of an upstream's log, and go on with what comes if that is wanted."""
    try:
        state = find_state_dir(settings_of_options(options, terminal).settings.state_dir)
        names = names_of_logs(state)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be read: {error.strerror}.") from error
    if options.name not in names:
        raise LaunchError(f"There is no log of '{options.name}'.{_which(options.name, names)}")
    with LogReader(path_of_log(state, options.name)) as reader:
        _write_lines(reader.read_last(options.lines), terminal)
        while options.follow:
            time.sleep(_PAUSE)  # the file is another process's, and nothing tells that it grew
            _write_lines(reader.read_on(), terminal)
    return 0


def _write_lines(lines: Sequence[str], terminal: Terminal) -> None:
    for line in lines:
        terminal.write(line)
    terminal.flush()


def _which(name: str, names: Sequence[str]) -> str:
    if names:
        return did_you_mean(name, names) or " There are logs of " + ", ".join(f"'{known}'" for known in names) + "."
    return " An upstream that is a program has one once it was started."


def run_restart(options: Options, terminal: Terminal) -> int:
    """Leave word that the upstream is to be restarted, if there is a yard that will find it."""
    config = settings_of_options(options, terminal)
    if options.name not in config.upstreams:
        raise LaunchError(f"There is no upstream '{options.name}'.{did_you_mean(options.name, config.upstreams)}")
    try:
        folder = folder_of(find_state_dir(config.settings.state_dir), options.name)
        status = read_status(folder)
        if status is None:
            raise LaunchError(f"No yard uses '{options.name}' now, so there is nothing to restart.")
        ask_for_restart(folder)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be used: {error.strerror}.") from error
    if not terminal.quiet:
        terminal.say(f"The yard with the process id {status.pid} restarts '{options.name}' within a second.")
    return 0


_UNKNOWN: Final = "What '{}' offers is not known on this machine. Serve it once, so that it is looked at."


class Stored(NamedTuple):
    """Where things are stored, what the lock says, the upstreams that are meant when none is named, and those that are not pinned."""

    lock: Path
    state: Path
    locked: Locked
    names: list[str]
    unpinned: frozenset[str]

    def offered(self, terminal: Terminal) -> dict[str, Definitions]:
        """Return what the upstreams that are meant offered when they were last looked at, and say of which that is not known."""
        found = {name: load(folder_of(self.state, name)) for name in self.names}
        for name, catalogue in found.items():
            if catalogue is None and not terminal.quiet:
                terminal.say(_UNKNOWN.format(name))
        return {name: definitions_of(catalogue) for name, catalogue in found.items() if catalogue is not None}

    def offered_by(self, name: str) -> Definitions:
        """Return what one upstream offered when it was last looked at.

        Raises:
            LaunchError: That is not known.
        """
        catalogue = load(folder_of(self.state, name)) if _is_name(name) else None
        if catalogue is not None:
            return definitions_of(catalogue)
        if name in self.names:
            raise LaunchError(_UNKNOWN.format(name))
        suggestion = did_you_mean(name, {*self.names, *_with_catalogue(self.state)})
        raise LaunchError(f"Nothing is known of an upstream '{name}'.{suggestion}")


def read_stored(options: Options, terminal: Terminal) -> Stored:
    """Find what is stored, by the settings.

    Raises:
        LaunchError: The settings are wrong, or the lock cannot be read.
    """
    config = settings_of_options(options, terminal)
    try:
        state = find_state_dir(config.settings.state_dir)
        lock = find_lock(config.path, state)
        locked = parse_lock(lock, lock.read_bytes() if lock.exists() else b"")
    except LockError as error:
        raise LaunchError(str(error)) from error
    except OSError as error:
        raise LaunchError(f"'{error.filename or 'The state directory'}' cannot be read: {error.strerror}.", status=DEFECT) from error
    used = {name: written.settings for name, written in config.upstreams.items() if written.settings.enabled}
    unpinned = frozenset(name for name, settings in used.items() if settings.pin == "off")
    return Stored(lock, state, locked, sorted(used) or sorted(locked) or _with_catalogue(state), unpinned)


def _is_name(name: str) -> bool:
    """Return whether a name stays inside the folder of the upstreams."""
    return is_word(name) and not name.startswith(".")


def _with_catalogue(state: Path) -> list[str]:
    """Return the upstreams that were looked at on this machine."""
    return sorted(path.parent.name for path in folder_of(state, "").glob("*/catalogue.json"))


_TITLES: Final = ("NAME", "STATE", "TOOLS", "LATENCY", "SEEN", "WHY")
_STYLES: Final[Mapping[str, Style]] = {"ready": "good", "degraded": "bad", "backing_off": "bad", "auth_needed": "bad", "stopped": "faint"}
_WELL: Final = frozenset({"ready", "stopped"})
_UNUSED: Final = "No yard uses it now."
_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def run_upstreams(options: Options, terminal: Terminal) -> int:
    """Print a line for each upstream; a check that finds one that cannot be used has a status of its own."""
    config = settings_of_options(options, terminal)
    known = {name: written.settings for name, written in config.upstreams.items()}
    try:
        state = find_state_dir(config.settings.state_dir)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be found: {error.strerror}.") from error
    checked: Mapping[str, Status] = {}
    if options.check:
        pins = Pins(find_lock(config.path, state), state=state)
        made = [make_upstream(name, settings, state=state, pins=pins) for name, settings in settled_upstreams(config, terminal).items()]
        checked = run_until_done(_check(made, terminal))
    statuses = [checked.get(name) or _status(name, settings, state) for name, settings in sorted(known.items())]
    if options.json:
        terminal.write_json(encode(statuses))
    elif statuses:
        _write_table(statuses, terminal)
    else:
        terminal.say("There are no upstreams. 'toolyard import' finds those that other programs have; 'toolyard add' adds one.")
    return DIFFERENT if any(status.state not in _WELL for status in checked.values()) else 0


async def _check(made: Sequence[Upstream], terminal: Terminal) -> Mapping[str, Status]:
    """Return how each is once it was tried now."""
    terminal.show_progress(f"Looking at {len(made)} upstreams …")
    async with Yard("check", providers=made, metatools=False):
        await asyncio.gather(*(one.supervisor.refresh() for one in made))
        return {one.name: one.status() for one in made}


def _status(name: str, settings: UpstreamSettings, state: Path) -> Status:
    """Return how one is, as the yard that uses it says, or what is known of it."""
    folder = folder_of(state, name)
    said = read_status(folder)
    if said is not None:
        return said
    if not settings.enabled:
        return Status(name=name, state="stopped", reason="It is switched off.")
    catalogue = load(folder)
    if catalogue is None:
        return Status(name=name, state="cold", reason="It was never looked at.")
    return Status(
        name=name,
        state="cold",
        reason=_UNUSED,
        server=str(catalogue.server.get("name", "")),
        version=catalogue.version,
        tools=len(catalogue.tools),
        resources=len(catalogue.resources) + len(catalogue.templates),
        prompts=len(catalogue.prompts),
        seen=catalogue.seen,
    )


def _write_table(statuses: list[Status], terminal: Terminal) -> None:
    rows = [_row(status) for status in statuses]
    widths = [max(width_of(row[column]) for row in (_TITLES, *rows)) for column in range(len(_TITLES))]
    if terminal.interactive:
        terminal.write(Painted(_line(_TITLES, widths), "bold"))
    for status, row in zip(statuses, rows, strict=True):
        if terminal.interactive:
            before, after = _line(row[:1], widths), _line(row[2:], widths[2:])
            room = max(terminal.width - width_of(before) - widths[1] - 4, 0)
            state = Painted(row[1].ljust(widths[1]), _STYLES.get(status.state, "bold"))
            terminal.write(before.ljust(widths[0]), "  ", state, "  ", cut(after, room))
        else:
            terminal.write("\t".join(row))


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell + " " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=False)).rstrip()


def _row(status: Status) -> tuple[str, ...]:
    latency = "-" if status.latency_ms is None else f"{status.latency_ms:.1f} ms"
    seen = "-" if status.seen is None else f"{_ago(time.time() - status.seen)} ago"
    notes = [f"{count} {what}" for count, what in ((status.withheld, "withheld"), (status.warned, "changed")) if count]
    held = f" ({', '.join(notes)})" if notes else ""
    why = status.reason or (f"Once: {status.last_error}" if status.last_error else "")
    return (status.name, status.state, f"{status.tools}{held}", latency, seen, why)


def _ago(seconds: float) -> str:
    for length, unit in _STEPS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
