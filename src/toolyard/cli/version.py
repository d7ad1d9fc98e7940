"""`toolyard version`: the version, and nothing that would have to be loaded for it."""

import json
import platform

from toolyard._version import VERSION
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Terminal

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Print the version."""
    if options.json:
        terminal.write_json(json.dumps({"toolyard": VERSION, "python": platform.python_version()}, separators=(",", ":")).encode())
    else:
        terminal.write(f"toolyard {VERSION}")
    return 0
