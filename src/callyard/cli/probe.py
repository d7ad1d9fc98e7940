"""`callyard probe`: probe MCP servers once, and print what was found."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from callyard.cli.parser import Options
from callyard.cli.targets import config_from, os_errors
from callyard.cli.terminal import Painted, Part, Terminal
from callyard.config import CLIENT_FILES
from callyard.launch.errors import LaunchError
from callyard.launch.probe import probe_targets, program_target, served_target
from callyard.launch.signals import run
from callyard.probe import PROBE_CODES, Report, Target, probe, to_junit

__all__ = ["run_probe"]

_AT_ONCE: Final = 8


def run_probe(options: Options, terminal: Terminal) -> int:
    """Probe the targets, print the reports, and exit with the status of the first failure."""
    targets = _targets(options, terminal)
    terminal.show_progress(f"Probing {', '.join(repr(target.name) for target in targets)} …")
    reports = run(_probe_all(targets))
    terminal.clear()
    if options.junit is not None:
        with os_errors(f"'{options.junit}' cannot be written"):
            Path(options.junit).write_text(to_junit(reports) + "\n", encoding="utf-8")
    if options.json:
        terminal.write_json(msgspec.json.encode([report.as_json() for report in reports]))
    else:
        for report in reports:
            for line in _lines(report):
                terminal.write(*line)
    return next((report.exit_status for report in reports if report.exit_status), 0)


def _targets(options: Options, terminal: Terminal) -> Sequence[Target]:
    pin = None if options.pin is None else Path(options.pin)
    text = options.target
    if options.program:
        if text:
            raise LaunchError(f"'{text}' and the program after '--' are two targets. Name one of them.")
        targets = [program_target(config_from(options, terminal), options.program, pin=pin)]
    elif text.endswith(".py") or (":" in text and "://" not in text):
        options.target = ""
        targets = [served_target(config_from(options, terminal), text, pin=pin)]
    else:
        is_name = bool(text) and "://" not in text and not text.endswith((".toml", *CLIENT_FILES))
        options.target = "" if is_name else text
        targets = probe_targets(config_from(options, terminal), terminal, name=text if is_name else "", pin=pin)
    seconds = options.seconds
    if seconds is None:
        return targets
    return [replace(target, checks=replace(target.checks, seconds=seconds)) for target in targets]


async def _probe_all(targets: Sequence[Target]) -> list[Report]:
    places = asyncio.Semaphore(_AT_ONCE)

    async def probe_one(target: Target) -> Report:
        async with places:
            return await probe(target)

    return await asyncio.gather(*map(probe_one, targets))


def _lines(report: Report) -> Iterator[Sequence[Part]]:
    code = report.code
    state = Painted("ok", "good") if code is None else Painted(code, "bad")
    facts = [report.server, report.version, "" if report.tools is None else f"{report.tools} tools"]
    yield f"{report.target}: ", state, f" in {report.ms:.0f} ms  {', '.join(filter(None, facts))}".rstrip()
    for step in report.steps:
        note = f"  {step.note}" if step.note else ""
        yield (f"  {step.name:<12}{step.ms:>9.1f} ms{note}",)
        for failure in report.failures:
            if failure.step == step.name:
                tool = f"'{failure.tool}': " if failure.tool else ""
                yield (
                    "    ",
                    Painted(failure.code, "bad"),
                    f"  {tool}{failure.message} {PROBE_CODES[failure.code].advice}",
                )
                yield from ((f"      {line}",) for line in failure.detail.splitlines()[-5:])
    yield from ((f"  warning: {warning}",) for warning in report.warnings)
