"""The pipe to an upstream that is a program: messages go to its stdin and come from its stdout, one to a line.

What it writes there that is no message, such as a greeting, is skipped and kept in its log.
"""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from toolyard._internal.pipes import LineSplitter, Reader, Writer
from toolyard.providers.upstream.link import LinkError, Listener
from toolyard.providers.upstream.process import Process, start
from toolyard.providers.upstream.process_log import ProcessLog
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import Id

__all__ = ["Stderr", "StdioLink"]


_REST: Final = 0.002
_PIPE_BYTES: Final = 1024 * 1024


class Stderr:
    """Reads until it is closed or nobody can write any more."""

    def __init__(self, descriptor: int, log: ProcessLog, *, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._resting: asyncio.TimerHandle | None = None
        self._reader = Reader(descriptor, self._take, is_full=lambda: self._resting is not None, on_end=on_end)

    def close(self) -> None:
        """Take what is there already, and read no more."""
        with contextlib.suppress(OSError):
            self._log.feed(os.read(self._descriptor, _PIPE_BYTES))
        self._reader.close()
        if self._resting is not None:
            self._resting.cancel()

    def _take(self, piece: bytes) -> None:
        self._log.feed(piece)
        if self._log.is_flooded:
            self._resting = self._loop.call_later(_REST, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self._reader.resume()


_UNREAD_BYTES: Final = 4 * 1024 * 1024
_STRAY_BYTES: Final = 1000
_GRACE: Final = 0.5
_SECRET: Final = re.compile("key|token|secret|pass|auth|credential", re.IGNORECASE)
_read: Final = msgspec.json.Decoder(msgspec.Raw).decode
End = Literal["exit", "stdin", "stdout", "stderr"]


class StdioLink:
    """A link to a program that runs for us; when that ends by itself the listener is told once, and the link is still to be closed."""

    def __init__(self, name: str, settings: UpstreamSettings, *, log: Path) -> None:
        self._name = name
        self._settings = settings
        self._path = log
        self._running: _Running | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self, listener: Listener) -> None:
        """Start the program; whether it understands us shows when it answers.

        Raises:
            LinkError: `unavailable`: it cannot be started.
        """
        process = start(self._name, self._settings)
        self._running = _Running(self._name, self._settings, listener=listener, process=process, log=ProcessLog(self._path))

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - the protocol's name
        """Send a message, together with all others of this turn of the loop."""
        if self._running is not None:
            self._running.send(message, request_id)

    def drop(self, request_id: Id) -> None:
        """Do nothing: all answers come on the same pipe."""

    def listen(self) -> None:
        """Do nothing: what the upstream says on its own comes on the same pipe."""

    async def close(self) -> None:
        """End the program and all that it started."""
        if self._running is None:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._running.close())
        await asyncio.wait((self._closing,))  # whoever waits may go, but the program must end


class _Running:
    """A program that was started, and what comes and goes on its pipes."""

    def __init__(self, name: str, settings: UpstreamSettings, *, listener: Listener, process: Process, log: ProcessLog) -> None:
        self._name = name
        self._settings = settings
        self._listener = listener
        self._process = process
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._ended = self._heard = False
        self._open: set[End] = {"exit", "stdout", "stderr"}
        self._grace: asyncio.TimerHandle | None = None
        self._lines = LineSplitter(self._take, limit=settings.message_bytes, on_too_long=self._refuse_length)
        self._writer = Writer(process.stdin, limit=_UNREAD_BYTES)
        self._writer.on_room = self._see_room
        self._reader = Reader(process.stdout, self._lines.feed, is_full=bool, on_end=self._see_end)
        self._stderr = Stderr(process.stderr, log, on_end=lambda: self._miss("stderr"))
        process.on_exit(lambda: self._miss("exit"))
        log.note("toolyard", f"Started '{settings.command}' as process {process.pid}.".encode())

    def send(self, message: bytes, request_id: Id | None) -> None:
        """Send a message, or say that a request is lost because nobody takes it."""
        if not self._ended and not self._writer.is_full:
            self._writer.write(message + b"\n")
        elif request_id is not None:
            words = f"'{self._name}' has ended." if self._ended else f"'{self._name}' does not read what it is sent."
            self._loop.call_soon(self._listener.lose, request_id, LinkError("lost", words, text=self._last_words()))

    async def close(self) -> None:
        """End the program; until it has ended what it says is read, so that it need not wait for us."""
        self._ended = True
        if self._grace is not None:
            self._grace.cancel()
        try:
            await self._writer.close(timeout_s=0)
            await self._process.end()
        finally:
            self._reader.close()
            self._stderr.close()
            self._process.close()
            self._log.note("toolyard", self._how_it_ended().encode())
            self._log.close()

    def _take(self, line: bytes) -> None:
        """Hand on a message, and note what is none."""
        if self._ended:
            return
        try:
            _read(line)
        except (msgspec.DecodeError, RecursionError):
            is_message = False
        else:
            is_message = line.lstrip().startswith(b"{")
        if is_message:
            self._heard = True
            self._listener.receive(line, None)
        else:
            self._log.note("stdout", line[:_STRAY_BYTES])

    def _refuse_length(self) -> None:
        self._end(f"'{self._name}' sent a message of more than {self._settings.message_bytes} bytes.")

    def _see_room(self) -> None:
        if self._writer.is_broken:
            self._miss("stdin")

    def _see_end(self) -> None:
        self._lines.flush()
        self._miss("stdout")

    def _miss(self, end: End) -> None:
        """Take note that one end is gone; the others follow soon, unless something else holds them."""
        self._open.discard(end)
        if not self._open:
            self._end(self._how_it_ended())
        elif end != "stderr" and self._grace is None and not self._ended:
            self._grace = self._loop.call_later(_GRACE, lambda: self._end(self._how_it_ended()))

    def _end(self, words: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._grace is not None:
            self._grace.cancel()
        trouble = "lost" if self._heard else "unavailable"
        self._listener.end(LinkError(trouble, words, sent=self._heard, text=self._last_words()))

    def _how_it_ended(self) -> str:
        code = self._process.exit_code
        if code is None:
            return f"'{self._name}' closed its pipes."
        if code >= 0:
            return f"'{self._name}' ended with exit code {code}."
        try:
            return f"'{self._name}' was ended by {signal.Signals(-code).name}."
        except ValueError:
            return f"'{self._name}' was ended by signal {-code}."

    def _last_words(self) -> str:
        """Return what it said last on stderr, without the secrets it was given."""
        words = self._log.last_words
        for key, value in self._settings.env.items():
            if value and _SECRET.search(key):
                words = words.replace(value, "***")
        return words
