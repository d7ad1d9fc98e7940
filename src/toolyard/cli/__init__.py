"""The command line: one file per command, each calling one public function.

Its names are loaded when first used, because a program that only serves a yard needs no parser.
"""

from typing import TYPE_CHECKING, Any

from toolyard._internal.lazy import load

if TYPE_CHECKING:
    from toolyard.cli.main import main
    from toolyard.cli.reference import reference

__all__ = ["main", "reference"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'toolyard.cli' has no attribute '{name}'")
    return getattr(load("toolyard.cli.main" if name == "main" else "toolyard.cli.reference"), name)
