"""`toolyard upstreams`: how each upstream is, what it offers and what went wrong last."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from toolyard.cli.exits import DIFFERENT, CommandError
from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options, settled_upstreams
from toolyard.cli.terminal import Painted, Style, Terminal, cut, width_of
from toolyard.envelope import encode
from toolyard.providers.upstream.catalogue import folder_of, load
from toolyard.providers.upstream.lock import find_lock
from toolyard.providers.upstream.making import make_upstream
from toolyard.providers.upstream.pins import Pins
from toolyard.providers.upstream.provider import Upstream
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.status import Status, read_status
from toolyard.signals import run as run_until_done
from toolyard.state_dir import find_state_dir
from toolyard.yard import Yard

__all__ = ["run"]

_TITLES: Final = ("NAME", "STATE", "TOOLS", "LATENCY", "SEEN", "WHY")
_STYLES: Final[Mapping[str, Style]] = {"ready": "good", "degraded": "bad", "backing_off": "bad", "auth_needed": "bad", "stopped": "faint"}
_WELL: Final = frozenset({"ready", "stopped"})
_UNUSED: Final = "No yard uses it now."
_STEPS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def run(options: Options, terminal: Terminal) -> int:
    """Print a line for each upstream; a check that finds one that cannot be used has a status of its own."""
    config = settings_of_options(options, terminal)
    known = {name: written.settings for name, written in config.upstreams.items()}
    try:
        state = find_state_dir(config.settings.state_dir)
    except OSError as error:
        raise CommandError(f"The state directory cannot be found: {error.strerror}.") from error
    checked: Mapping[str, Status] = {}
    if options.check:
        pins = Pins(find_lock(config.path, state), state=state)
        made = [make_upstream(name, settings, state=state, pins=pins) for name, settings in settled_upstreams(config, terminal).items()]
        checked = run_until_done(_check(made, terminal))
    statuses = [checked.get(name) or _status(name, settings, state) for name, settings in sorted(known.items())]
    if options.json:
        terminal.write_json(encode(statuses))
    elif statuses:
        _write(statuses, terminal)
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


def _write(statuses: list[Status], terminal: Terminal) -> None:
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
