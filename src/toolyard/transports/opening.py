"""Opening a way in: from settings to a transport that runs until it is told to end."""

import gc
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from toolyard.serving import Serving
from toolyard.signals import run
from toolyard.transports.address import Transport
from toolyard.transports.loops import fastest_loop
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.transports.auth import Guard  # a server on stdio has none, and starts sooner without

__all__ = ["NotOpenedError", "make_transport", "run_server", "serve_forever"]

Ready = Callable[[Transport], None]
Meanwhile = Callable[[], AbstractAsyncContextManager[None]]
"""What goes on beside the serving, in each process, while the yard is open."""

_OWN: Final[Mapping[str, tuple[str, str]]] = {
    "stdio": ("toolyard.transports.stdio", "Stdio"),
    "http": ("toolyard.transports.http", "Http"),
    "sse": ("toolyard.transports.sse", "Sse"),
}
_GROUP: Final = "toolyard.transports"


class NotOpenedError(Exception):
    """None of several processes could open the yard; the sentence says why."""


def make_transport(serving: Serving, guard: "Guard | None" = None, *, listener: socket.socket | None = None) -> Transport:
    """Return the transport that the settings name: one of ours, or one that a package brings along, loaded now.

    Raises:
        ValueError: There is none of that name, or the settings make no sense for it.
        OSError: The address cannot be listened on.
    """
    if serving.transport in _OWN:
        module, name = _OWN[serving.transport]
        make: Any = getattr(import_module(module), name)
        return make(serving) if serving.transport == "stdio" else make(serving, guard, listener=listener)
    from importlib.metadata import entry_points  # noqa: PLC0415 - dear, and for strangers' transports alone

    found = {point.name: point for point in entry_points(group=_GROUP)}
    if serving.transport not in found:
        raise ValueError(f"There is no transport '{serving.transport}'. Known: {', '.join(sorted({*_OWN, *found}))}.")
    try:
        make = found[serving.transport].load()
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).removesuffix('.')}"
        raise ValueError(f"The transport '{serving.transport}' cannot be loaded: {said}.") from error
    return make(serving, guard)


async def serve_forever(
    yard: Yard,
    serving: Serving,
    guard: "Guard | None" = None,
    *,
    ready: Ready | None = None,
    meanwhile: Meanwhile = nullcontext,
    listener: socket.socket | None = None,
) -> None:
    """Open the yard and serve it until it is cancelled or its client goes; `ready` is told once it listens.

    Raises:
        ValueError: The settings make no sense.
        OSError: The address cannot be listened on.
    """
    transport = make_transport(serving, guard, listener=listener)
    try:
        async with yard, meanwhile():
            gc.freeze()  # what is there now stays: no collection need look at it again
            if ready is not None:
                ready(transport)
            await transport.serve(yard)
    finally:
        await transport.close()


def run_server(
    yard: Yard,
    serving: Serving,
    guard: "Guard | None" = None,
    *,
    ready: Ready | None = None,
    meanwhile: Meanwhile | None = None,
    explain: Callable[[Exception], str] = str,
) -> None:
    """Serve a yard in this process, or in as many as the settings say, until the program is told to end.

    With something that goes on meanwhile, SIGHUP is for it, and passed on to all processes. Only one sentence gets from them to this
    one: what explains why the yard cannot be opened.

    Raises:
        NotOpenedError: It cannot be opened by any of several processes.
        ValueError: The settings make no sense.
        OSError: The address cannot be listened on.
    """
    _fill_standard_streams()
    if serving.workers == 1:
        run(serve_forever(yard, serving, guard, ready=ready, meanwhile=meanwhile or nullcontext), loop=fastest_loop())
        return
    if serving.transport != "http":
        raise ValueError(f"Only 'http' can be served by several workers, not '{serving.transport}'.")
    from toolyard.transports.http.server import Http  # noqa: PLC0415 - only a server that speaks HTTP needs it
    from toolyard.transports.workers import Parent, run_workers  # noqa: PLC0415 - only several need it

    transport = Http(serving, guard)

    def work(parent: Parent) -> None:
        def begin(_: Transport) -> None:
            parent.end_with()
            parent.tell_opened()

        served = serve_forever(yard, serving, guard, ready=begin, meanwhile=meanwhile or nullcontext, listener=transport.listener)
        try:
            run(served, loop=fastest_loop())
        except Exception as error:
            if parent.knows:
                raise
            parent.tell_failure(explain(error))
            raise SystemExit(1) from None

    def announce() -> None:
        if ready is not None:
            ready(transport)

    try:
        yard.seal.prepare()  # what one worker seals another must open
        run_workers(serving.workers, work, announce, hangs_up=meanwhile is None)
    finally:
        run(transport.close())


def _fill_standard_streams() -> None:
    """Open what a shell closed, lest something else gets its number and is taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
