"""The link to a program: messages go to its stdin and come from its stdout, one on each line.

Output on stdout that is no message, such as a banner, is skipped and logged.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from callyard._internal.pipes import LineSplitter, Reader, Writer
from callyard.providers.upstream.link import LinkError, Listener
from callyard.providers.upstream.process import Process, start
from callyard.providers.upstream.process_log import ProcessLog, log_failure
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import Id

__all__ = ["Stderr", "StdioLink"]

_FLOOD_PAUSE_SECONDS: Final = 0.002
_PIPE_BYTES: Final = 1024 * 1024
_UNREAD_BYTES: Final = 4 * 1024 * 1024
_STRAY_BYTES: Final = 1000
_GRACE_SECONDS: Final = 0.5
"""How long the other pipes may stay open after one of them, or the program, has ended."""
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
End = Literal["exit", "stdin", "stdout", "stderr"]


class Stderr:
    """Reads stderr into a log; while too much arrives it pauses after each piece, so that the loop has time for others."""

    def __init__(self, descriptor: int, log: ProcessLog, *, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._reader = Reader(descriptor, self._take, is_full=lambda: self._pause is not None, on_end=on_end)

    def close(self) -> None:
        """Read what is there already, and stop."""
        with contextlib.suppress(OSError):
            self._log.feed(os.read(self._descriptor, _PIPE_BYTES))
        self._reader.close()
        if self._pause is not None:
            self._pause.cancel()

    def _take(self, piece: bytes) -> None:
        self._log.feed(piece)
        if self._log.is_flooded:
            self._pause = self._loop.call_later(_FLOOD_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._reader.resume()


class StdioLink:
    """A link to a program; when the program ends by itself the listener is called once, and the link must still be closed."""

    def __init__(self, name: str, settings: UpstreamSettings, *, log: Path) -> None:
        self._name = name
        self._settings = settings
        self._log_path = log
        self._program: _Program | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self, listener: Listener) -> None:
        """Start the program; its first answer shows whether it speaks MCP.

        Raises:
            LinkError: `unavailable`: it cannot be started.
        """
        try:
            process = start(self._name, self._settings)
        except LinkError as error:
            log_failure(self._log_path, error, self._settings.secrets())
            raise
        self._program = _Program(
            self._name, self._settings, listener=listener, process=process, log=ProcessLog(self._log_path, self._settings.secrets())
        )

    @property
    def pid(self) -> int | None:
        """Return the process id of the program, if it was started."""
        return None if self._program is None else self._program.pid

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - the protocol's name
        """Queue a message; all messages of one turn of the loop are written together."""
        if self._program is not None:
            self._program.send(message, request_id)

    def drop(self, request_id: Id) -> None:
        """Do nothing: all answers come on the same pipe."""

    def listen(self) -> None:
        """Do nothing: server-initiated messages come on the same pipe."""

    async def close(self) -> None:
        """End the program and all its descendants."""
        if self._program is None:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._program.close())
        await asyncio.wait((self._closing,))  # not awaited directly: a cancelled caller must not keep the program alive


class _Program:
    """A started program and its pipes."""

    def __init__(self, name: str, settings: UpstreamSettings, *, listener: Listener, process: Process, log: ProcessLog) -> None:
        self.pid = process.pid
        self._name = name
        self._settings = settings
        self._listener = listener
        self._process = process
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._has_ended = self._has_answered = False
        self._open: set[End] = {"exit", "stdout", "stderr"}
        self._grace: asyncio.TimerHandle | None = None
        self._lines = LineSplitter(self._take, limit=settings.message_bytes, on_too_long=self._line_too_long)
        self._writer = Writer(process.stdin, limit=_UNREAD_BYTES)
        self._writer.on_room = self._stdin_ready
        self._reader = Reader(process.stdout, self._lines.feed, is_full=bool, on_end=self._stdout_ended)
        self._stderr = Stderr(process.stderr, log, on_end=lambda: self._ended("stderr"))
        process.on_exit(lambda: self._ended("exit"))
        log.add_line("callyard", f"Started '{settings.command}' as process {process.pid}.".encode())

    def send(self, message: bytes, request_id: Id | None) -> None:
        """Send a message; a request that cannot be sent is lost."""
        if not self._has_ended and not self._writer.is_full:
            self._writer.write(message + b"\n")
        elif request_id is not None:
            text = f"'{self._name}' has ended." if self._has_ended else f"'{self._name}' does not read what it is sent."
            self._loop.call_soon(self._listener.lose, request_id, LinkError("lost", text, private=self._log.tail))

    async def close(self) -> None:
        """End the program; its output is read until it has ended, because a full pipe would block it."""
        self._has_ended = True
        if self._grace is not None:
            self._grace.cancel()
        try:
            await self._writer.close(timeout_s=0)
            await self._process.end()
        finally:
            self._reader.close()
            self._stderr.close()
            self._process.close()
            self._log.add_line("callyard", self._describe_end().encode())
            self._log.close()

    def _take(self, line: bytes) -> None:
        """Deliver a message, or log a line that is none."""
        if self._has_ended:
            return
        try:
            _check_json(line)
        except RecursionError:
            is_message = True  # nested too deep: its request must fail, and not wait for its timeout
        except msgspec.DecodeError:
            is_message = False
        else:
            is_message = line.lstrip().startswith(b"{")
        if is_message:
            self._has_answered = True
            self._listener.receive(line, None)
        else:
            self._log.add_line("stdout", line[:_STRAY_BYTES])

    def _line_too_long(self) -> None:
        self._end(f"'{self._name}' sent a message of more than {self._settings.message_bytes} bytes.")

    def _stdin_ready(self) -> None:
        if self._writer.is_broken:
            self._ended("stdin")

    def _stdout_ended(self) -> None:
        self._lines.flush()
        self._ended("stdout")

    def _ended(self, flush: End) -> None:
        """Record that a pipe or the program ended; a descendant may keep the other pipes open, so they get a grace period."""
        self._open.discard(flush)
        if not self._open:
            self._end(self._describe_end())
        elif flush != "stderr" and self._grace is None and not self._has_ended:
            self._grace = self._loop.call_later(_GRACE_SECONDS, lambda: self._end(self._describe_end()))

    def _end(self, text: str) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._grace is not None:
            self._grace.cancel()
        kind = "lost" if self._has_answered else "unavailable"
        self._listener.end(LinkError(kind, text, sent=self._has_answered, private=self._log.tail))

    def _describe_end(self) -> str:
        code = self._process.exit_code
        if code is None:
            return f"'{self._name}' closed its pipes."
        if code >= 0:
            return f"'{self._name}' ended with exit code {code}."
        try:
            return f"'{self._name}' was ended by {signal.Signals(-code).name}."
        except ValueError:
            return f"'{self._name}' was ended by signal {-code}."
