"""The program `callyard`: from arguments to an exit status.

A command is imported only when it runs, because most import the whole yard.
"""

import json
import platform
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from callyard._internal.lazy import load
from callyard._version import VERSION
from callyard.cli.commands import COMMANDS
from callyard.cli.parser import Options, make_parsers, read_options
from callyard.cli.terminal import OutputError, Terminal
from callyard.launch.errors import CLOSED_PIPE, DEFECT, INTERRUPTED, USAGE, LaunchError
from callyard.launch.hangup import Hangup
from callyard.launch.notices import logging_to

__all__ = ["main", "run_version"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process, and return the exit status."""
    terminal = Terminal()
    try:
        status = _run_guarded(sys.argv[1:] if argv is None else argv, terminal)
        terminal.flush()
    except BrokenPipeError:
        terminal.abandon()
        return CLOSED_PIPE
    except OutputError as error:
        terminal.abandon()
        terminal.say(f"callyard: {error}")
        return DEFECT
    return status


def _run_guarded(arguments: Sequence[str], terminal: Terminal) -> int:
    try:
        return _run(arguments, terminal)
    except LaunchError as error:
        terminal.say(f"callyard: {error.message}")
        return error.status
    except KeyboardInterrupt:
        terminal.clear()
        return INTERRUPTED
    except SystemExit as stop:  # argparse printed help, or SIGTERM came
        terminal.clear()
        return stop.code if isinstance(stop.code, int) else DEFECT


def _run(arguments: Sequence[str], terminal: Terminal) -> int:
    options = read_options(arguments)
    if not options.command:
        terminal.say(make_parsers()[0].format_help().rstrip())
        return USAGE
    terminal.quiet = options.quiet
    options.hangup = Hangup()
    with (
        options.hangup if options.command == "serve" else nullcontext(),
        logging_to(terminal, verbose=options.verbose, quiet=options.quiet),
    ):
        module = load(f"callyard.cli.{COMMANDS[options.command].module}")
        return getattr(module, f"run_{options.command}")(options, terminal)


def run_version(options: Options, terminal: Terminal) -> int:
    """Print the version."""
    if options.json:
        versions = {"callyard": VERSION, "python": platform.python_version()}
        terminal.write_json(json.dumps(versions, separators=(",", ":")).encode())
    else:
        terminal.write(f"callyard {VERSION}")
    return 0
