"""The link to a program: messages go to its stdin and come from its stdout, one on each line.

Output on stdout that is no message, such as a banner, is skipped and logged; a program that floods stdout with it is
ended. The program ends with this process.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from callyard._internal.pipes import LineSplitter, Reader, Writer
from callyard._internal.programs import ProgramProcess, find_program, is_inherited
from callyard.providers.upstream.intake import Intake, Share
from callyard.providers.upstream.link import Link, LinkError, LinkErrorReason, Listener, Received
from callyard.providers.upstream.process_log import ProcessLog, log_failure
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import Id

__all__ = ["Stderr", "StdioLink", "StrayLines", "environment_of"]

_PIPE_BYTES: Final = 1024 * 1024
_UNREAD_BYTES: Final = 4 * 1024 * 1024
_STRAY_BYTES: Final = 1000
_STRAY_LINES: Final = 1000
_STRAY_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 0.5
"""How long the other pipes may stay open after one of them, or the program, has ended."""
_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode


def environment_of(settings: UpstreamSettings, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program: the few of our variables that every program needs, and its own."""
    return {**{key: value for key, value in ours.items() if is_inherited(key)}, **settings.env}


def _start(name: str, settings: UpstreamSettings, on_exit: Callable[[], None]) -> ProgramProcess:
    command = os.path.expanduser(settings.command or "")  # noqa: PTH111 - a path would lose a leading './'
    folder = Path(settings.cwd or ".").expanduser()
    if not folder.is_dir():
        raise _cannot_start(name, f"There is no folder '{settings.cwd}' to run it in.")
    environment = environment_of(settings, os.environ)
    program = find_program(command, folder, environment.get("PATH", os.defpath))
    if program is None:
        raise _cannot_start(name, f"There is no program '{command}'. Install it, or give its full path.")
    try:
        popen = subprocess.Popen(  # noqa: S603 - the configuration says what is run
            [command, *settings.args],
            executable=program,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise _cannot_start(name, f"The program '{command}' cannot be run: {why}.") from None
    return ProgramProcess(popen, on_exit)


def _cannot_start(name: str, why: str) -> LinkError:
    """Return the error of a program that cannot be started; the reason names paths, so only the operator gets it."""
    return LinkError("unavailable", f"'{name}' cannot be started.", private=why, reason="not_started")


class Stderr:
    """Reads stderr into a log."""

    def __init__(self, descriptor: int, log: ProcessLog, share: Share, *, on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._log = log
        self._on_end = on_end
        self._intake = Intake(log.feed, share, on_room=self._resume)
        self._reader = Reader(descriptor, self._intake.feed, is_full=lambda: self._intake.is_full, on_end=self._ended)

    def close(self) -> None:
        """Read what is there already, and stop."""
        self._intake.flush()
        with contextlib.suppress(OSError):
            self._log.feed(os.read(self._descriptor, _PIPE_BYTES))
        self._reader.close()
        self._intake.close()

    def _resume(self) -> None:
        self._reader.resume()

    def _ended(self) -> None:
        self._intake.flush()
        self._on_end()


class StrayLines:
    """Lines on stdout that are no messages: a banner has a few, and a program that writes nothing else is ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_STRAY_LINES)

    def add(self) -> bool:
        """Count a line, and return whether there are too many in a row within a short time."""
        self._times.append(self._clock())
        return len(self._times) == _STRAY_LINES and self._times[-1] - self._times[0] <= _STRAY_SECONDS

    def end_row(self) -> None:
        """Begin anew after a message."""
        self._times.clear()


class StdioLink(Link):
    """A link to a program, with all messages on the same pipes.

    If the program ends by itself, the listener is called, and the link must be closed.
    """

    def __init__(self, name: str, settings: UpstreamSettings, *, log: Path) -> None:
        self._name = name
        self._settings = settings
        self._log_path = log
        self._process: ProgramProcess | None = None
        self._has_ended = self._has_answered = False
        self._open: set[Literal["exit", "stdin", "stdout", "stderr"]] = {"exit", "stdout", "stderr"}
        self._grace: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self, listener: Listener) -> None:
        """Start the program; its first answer shows whether it speaks MCP.

        Raises:
            LinkError: `unavailable`: it cannot be started.
        """
        secrets = self._settings.secrets()
        try:
            process = _start(self._name, self._settings, lambda: self._ended("exit"))
        except LinkError as error:
            log_failure(self._log_path, error, secrets)
            raise
        self._process = process
        self.pid = process.pid
        self._listener = listener
        self._output = ProcessLog(self._log_path, secrets)
        self._strays = StrayLines()
        self._lines = LineSplitter(
            self._take,
            limit=self._settings.message_bytes,
            on_too_long=self._line_too_long,
            on_blank=self._count_stray,
        )
        self._writer = Writer(process.stdin, limit=_UNREAD_BYTES)
        self._writer.on_room = self._stdin_ready
        share = Share()
        self._intake = Intake(self._lines.feed, share, on_room=self._resume)
        self._reader = Reader(
            process.stdout, self._intake.feed, is_full=lambda: self._intake.is_full, on_end=self._stdout_ended
        )
        self._stderr = Stderr(process.stderr, self._output, share, on_end=lambda: self._ended("stderr"))
        self._output.add_line("callyard", f"Started '{self._settings.command}' as process {process.pid}.".encode())

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - the protocol's name
        """Queue a message; all messages of one turn of the loop are written together."""
        if self._process is None:
            return
        if not self._has_ended and not self._writer.is_full:
            self._writer.write(message + b"\n")
        elif request_id is not None:
            text = f"'{self._name}' has ended." if self._has_ended else f"'{self._name}' does not read what it is sent."
            reason: LinkErrorReason = "exited" if self._has_ended else "protocol"
            error = LinkError("lost", text, private=self._output.tail, reason=reason)
            asyncio.get_running_loop().call_soon(self._listener.lose, request_id, error)

    async def close(self) -> None:
        """End the program and all its descendants."""
        if self._process is None:
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(self._process))
        await asyncio.wait((self._closing,))  # not awaited directly: a cancelled caller must not keep the program alive

    async def _close(self, process: ProgramProcess) -> None:
        """End the program; its output is read until it has ended, because a full pipe would block it."""
        self._set_ended()
        try:
            await self._writer.close(timeout_s=0)
            await process.end()
        finally:
            self._reader.close()
            self._intake.close()
            self._stderr.close()
            process.close()
            self._output.add_line("callyard", self._describe_end(process.exit_code).encode())
            self._output.close()

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
        received: Received = "invalid"
        if is_message:
            self._has_answered = True
            received = self._listener.receive(line, None)
        else:
            self._output.add_line("stdout", line[:_STRAY_BYTES])
        if received == "invalid":
            self._count_stray()
            return
        self._strays.end_row()
        if received == "awaited":
            self._intake.forgive()

    def _count_stray(self) -> None:
        if not self._has_ended and self._strays.add():
            self._fail(
                f"'{self._name}' wrote {_STRAY_LINES} lines in a row that are no messages, so it was ended.", "not_mcp"
            )

    def _line_too_long(self) -> None:
        self._fail(f"'{self._name}' sent a message of more than {self._settings.message_bytes} bytes.", "protocol")

    def _resume(self) -> None:
        self._reader.resume()

    def _stdin_ready(self) -> None:
        if self._writer.is_broken:
            self._ended("stdin")

    def _stdout_ended(self) -> None:
        self._intake.flush()
        self._lines.flush()
        self._ended("stdout")

    def _ended(self, part: Literal["exit", "stdin", "stdout", "stderr"]) -> None:
        """Record that a pipe or the program ended; other pipes get a grace period, as a descendant may hold them."""
        self._open.discard(part)
        if not self._open:
            self._fail()
        elif part != "stderr" and self._grace is None and not self._has_ended:
            self._grace = asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._fail)

    def _fail(self, text: str = "", reason: LinkErrorReason = "exited") -> None:
        """Report the end to the listener, once."""
        if self._has_ended or self._process is None:
            return
        self._set_ended()
        kind = "lost" if self._has_answered else "unavailable"
        text = text or self._describe_end(self._process.exit_code)
        self._listener.end(LinkError(kind, text, sent=self._has_answered, private=self._output.tail, reason=reason))

    def _set_ended(self) -> None:
        self._has_ended = True
        self._intake.discard()
        if self._grace is not None:
            self._grace.cancel()

    def _describe_end(self, code: int | None) -> str:
        if code is None:
            return f"'{self._name}' closed its pipes."
        if code >= 0:
            return f"'{self._name}' ended with exit code {code}."
        try:
            return f"'{self._name}' was ended by {signal.Signals(-code).name}."
        except ValueError:
            return f"'{self._name}' was ended by signal {-code}."
