"""`callyard doctor`: check what a server with these settings needs, and print how to mend it."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from callyard.cli.parser import Options
from callyard.cli.targets import config_from, load_yard
from callyard.cli.terminal import Painted, Terminal
from callyard.launch.doctor import Finding, diagnose
from callyard.launch.errors import DEFECT, LaunchError
from callyard.launch.signals import run
from callyard.model.envelope import encode

__all__ = ["run_doctor"]


def run_doctor(options: Options, terminal: Terminal) -> int:
    """Check, print the findings, and exit with 1 if one of them is a failure."""
    terminal.show_progress("Checking …")
    findings = _diagnose(options, terminal)
    terminal.clear()
    failed = any(finding.status == "failed" for finding in findings)
    if options.json:
        terminal.write_json(encode({"ok": not failed, "findings": findings}))
        return DEFECT if failed else 0
    for finding in findings:
        terminal.write(Painted(finding.status, "bad"), f"  {finding.id}  {finding.cause}")
        terminal.write(f"        {finding.command}")
    if not findings:
        terminal.write(Painted("Nothing is wrong.", "good"))
    return DEFECT if failed else 0


def _diagnose(options: Options, terminal: Terminal) -> Sequence[Finding]:
    try:
        config = config_from(options, terminal)
    except LaunchError as error:
        return [Finding.of("config.invalid", error.message)]
    try:
        with redirect_stdout(sys.stderr), load_yard(config) as yard:
            return run(diagnose(yard, config))
    except LaunchError as error:
        return [Finding.of("target.unusable", error.message)]
