"""The stdio transport: the client started this process, and speaks MCP on its stdin and stdout.

Nothing but MCP may reach stdout. So both descriptors are duplicated first, and whatever prints, here or in a child
process, prints to stderr.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from callyard._internal.pipes import LineSplitter, Reader, Writer
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE
from callyard.server import ServerContext
from callyard.server.stream import MessageStream
from callyard.transports import Address
from callyard.yard import Yard

__all__ = ["Stdio"]

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


class Stdio:
    """One client, on the standard streams of this process."""

    name = "stdio"

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._ended = asyncio.Event()  # not bound to a loop until it is waited for

    def info(self) -> Address:
        """Return the address."""
        return Address(self.name, "stdio")

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until the client closes stdin or `close` is called."""
        with _reserved_streams() as (stdin, stdout):
            server = ServerContext(yard, self._serving, channel=self.name)
            writer = Writer(stdout, limit=self._serving.message_bytes, terminator=b"\n")
            stream = MessageStream(server, writer.write, caller=ANYONE, is_scope=True)
            lines = LineSplitter(stream.receive, limit=self._serving.message_bytes, on_too_long=stream.refuse_length)
            reader = Reader(stdin, lines.feed, is_full=lambda: stream.is_full or writer.is_full, on_end=self._ended.set)
            stream.on_room = writer.on_room = reader.resume
            try:
                await self._ended.wait()
            finally:
                reader.close()
                lines.flush()
                server.end_listeners()
                await stream.end(self._serving.shutdown_seconds)
                server.close()
                await writer.close()

    async def close(self) -> None:
        """Stop, as if the client had closed stdin."""
        self._ended.set()


@contextmanager
def _reserved_streams() -> Generator[tuple[int, int]]:
    """Yield descriptors of the real stdin and stdout.

    Meanwhile stdin is empty and stdout is stderr for everything else.
    """
    source, sink = os.dup(_STDIN), os.dup(_STDOUT)
    empty = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(empty, _STDIN)
        os.dup2(_STDERR, _STDOUT)
        _flush()  # buffered text must not come out between messages
        yield source, sink
    finally:
        _flush()
        os.dup2(source, _STDIN)
        os.dup2(sink, _STDOUT)
        for descriptor in (source, sink, empty):
            os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
