"""The command line: each command parses, calls one public function and prints.

`main` is loaded on first use, because a program that only serves a yard needs no parser.
"""

from typing import TYPE_CHECKING

from callyard._internal.lazy import load_names

if TYPE_CHECKING:
    from callyard.cli.program import main

__all__ = ["main"]

if not TYPE_CHECKING:  # a checker that saw it would accept every name
    __getattr__ = load_names("callyard.cli", {"program": ("main",)})
