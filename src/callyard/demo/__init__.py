"""The demo: a yard with hundreds of invented tools, and a story that calls them.

`callyard.demo:yard` is a TARGET like any other. Only the demo and tests import this package.

Its files:

- `story`: the story of the demo: a customer was charged twice, and an agent with hundreds of tools helps her
- `tools`: the tools of the demo, from a catalogue: fixed, computed or invented answers that fit their schemas
"""

from typing import TYPE_CHECKING, Any

from callyard.demo.tools import make_yard

if TYPE_CHECKING:
    from callyard.yard import Yard

    yard: Yard

__all__ = ["yard"]

if not TYPE_CHECKING:  # a checker that saw it would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'callyard.demo' has no attribute '{name}'")
        return make_yard()
