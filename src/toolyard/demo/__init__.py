"""The demo: a yard with hundreds of invented tools, and a story told with them.

`toolyard.demo:yard` is a TARGET like any other. Nothing but the demo and tests loads it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolyard.yard import Yard

    yard: Yard

__all__ = ["yard"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'toolyard.demo' has no attribute '{name}'")
    from toolyard.demo.tools import make_yard  # noqa: PLC0415 - the yard is only made for who asks for it

    return make_yard()
