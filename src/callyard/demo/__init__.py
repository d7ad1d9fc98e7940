"""The demo: a yard with hundreds of invented tools, and a story that calls them.

`callyard.demo:yard` is a TARGET like any other. Only the demo and tests import this package.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callyard.yard import Yard

    yard: Yard

__all__ = ["yard"]

if not TYPE_CHECKING:  # a checker that saw it would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'callyard.demo' has no attribute '{name}'")
        from callyard.demo.tools import make_yard  # noqa: PLC0415 - the yard is made only when it is used

        return make_yard()
