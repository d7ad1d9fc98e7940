"""Serving a yard: from settings to a transport that runs until it is told to end."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from toolyard.serving import Serving
from toolyard.signals import run
from toolyard.transports.address import Transport
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.transports.auth import Guard  # a server on stdio has none, and starts sooner without

__all__ = ["make_transport", "serve", "serve_forever"]

_OWN: Final[Mapping[str, tuple[str, str]]] = {
    "stdio": ("toolyard.transports.stdio", "Stdio"),
    "http": ("toolyard.transports.http", "Http"),
    "sse": ("toolyard.transports.sse", "Sse"),
}
_GROUP: Final = "toolyard.transports"


def make_transport(serving: Serving, guard: "Guard | None" = None) -> Transport:
    """Return the transport that the settings name: one of ours, or one that a package brings along, loaded now.

    Raises:
        ValueError: There is none of that name, or the settings make no sense for it.
    """
    if serving.transport in _OWN:
        module, name = _OWN[serving.transport]
        make: Any = getattr(import_module(module), name)
        return make(serving) if serving.transport == "stdio" else make(serving, guard)
    found = {point.name: point for point in entry_points(group=_GROUP)}
    if serving.transport not in found:
        raise ValueError(f"There is no transport '{serving.transport}'. Known: {', '.join(sorted({*_OWN, *found}))}.")
    return found[serving.transport].load()(serving, guard)


async def serve_forever(
    yard: Yard, serving: Serving, guard: "Guard | None" = None, *, ready: Callable[[Transport], None] | None = None
) -> None:
    """Open the yard and serve it until it is cancelled or its client goes; `ready` is told once it listens.

    Raises:
        ValueError: The settings make no sense.
        OSError: The address cannot be listened on.
    """
    transport = make_transport(serving, guard)
    async with yard:
        if ready is not None:
            ready(transport)
        try:
            await transport.serve(yard)
        finally:
            await transport.close()


def serve(yard: Yard, *, guard: "Guard | None" = None, **settings: Any) -> None:
    """Serve a yard from Python, as `toolyard serve` does from a shell: by default on stdio.

    Raises:
        ValueError: The settings make no sense.
    """
    run(serve_forever(yard, Serving(**settings), guard))
