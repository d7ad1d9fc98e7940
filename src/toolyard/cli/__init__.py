"""The command line: one file per command, each calling one public function."""

from toolyard.cli.page import reference
from toolyard.cli.program import main

__all__ = ["main", "reference"]
