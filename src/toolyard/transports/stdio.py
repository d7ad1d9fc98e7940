"""The stdio transport: a client that started us speaks on our stdin and listens on our stdout.

The protocol alone goes to stdout: before anything runs, the two descriptors are put aside, and whatever prints, here or in a child
process, prints to stderr.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from toolyard._internal.pipes import LineSplitter, Reader, Writer
from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE
from toolyard.server import ServerContext
from toolyard.server.stream import MessageStream
from toolyard.transports import Address
from toolyard.yard import Yard

__all__ = ["Stdio"]

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


class Stdio:
    """One client, on the pipes that this process was started with."""

    name = "stdio"

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._ended = asyncio.Event()  # not bound to a loop until it is waited for

    def info(self) -> Address:
        """Return where it listens."""
        return Address(self.name, "stdio")

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until the client goes or the server is closed."""
        with _put_aside() as (source, sink):
            front = ServerContext(yard, self._serving, channel=self.name)
            writer = Writer(sink, limit=self._serving.message_bytes, terminator=b"\n")
            duplex = MessageStream(front, writer.write, caller=ANYONE)
            lines = LineSplitter(duplex.receive, limit=self._serving.message_bytes, on_too_long=duplex.refuse_length)
            reader = Reader(source, lines.feed, is_full=lambda: duplex.is_full or writer.is_full, on_end=self._ended.set)
            duplex.on_room = writer.on_room = reader.resume
            try:
                await self._ended.wait()
            finally:
                reader.close()
                lines.flush()
                front.end_listeners()
                await duplex.end(self._serving.shutdown_seconds)
                front.close()
                await writer.close()

    async def close(self) -> None:
        """End as if the client had gone."""
        self._ended.set()


@contextmanager
def _put_aside() -> Generator[tuple[int, int]]:
    """Keep stdin and stdout for the protocol; meanwhile what reads finds nothing and what prints goes to stderr."""
    source, sink = os.dup(_STDIN), os.dup(_STDOUT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, _STDIN)
        os.dup2(_STDERR, _STDOUT)
        _flush()  # what was printed before must not come out between messages
        yield source, sink
    finally:
        _flush()
        os.dup2(source, _STDIN)
        os.dup2(sink, _STDOUT)
        for descriptor in (source, sink, nothing):
            os.close(descriptor)


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
