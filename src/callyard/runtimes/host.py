"""The host's side of a guest: frames over a socket, calls under back-pressure, limits of time, output and calls.

Everything a guest sends is hostile: sizes are checked before they are read, and a frame that cannot be read ends the
guest.
"""

import asyncio
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from callyard.model.envelope import encode
from callyard.runtimes.process import Child, spawn
from callyard.runtimes.runtime import (
    NAME_CHARACTERS,
    NO_HOOKS,
    CallFailedError,
    FailureKind,
    GuestCall,
    Hooks,
    Invoke,
    RunFailure,
    RunLimits,
    RunResult,
    RuntimeMissingError,
)

__all__ = ["Guest", "GuestProcess", "GuestSettings", "driver_arguments", "start_guest", "start_message"]

_BOOT: Final = (
    "import os,sys\nn=int(sys.argv[1]);b=b''\nwhile len(b)<n:\n d=os.read(0,n-len(b))\n if not d: os._exit(0)\n b+=d\n"
    "exec(compile(b,'<driver>','exec'),{'__name__':'__callyard__'})"
)
"""Reads the driver from standard input, so that it always fits this host and no file has to be in the sandbox."""
_START_S: Final = 30.0
_FRAME_SLACK: Final = 64 * 1024
_PIECE_BYTES: Final = 256 * 1024
_CHECK_S: Final = 0.05
_GUEST_KINDS: Final = ("exception", "syntax", "value", "value_size", "unawaited", "memory", "cpu")
"""Failures that a guest may report; the others are for the host to find."""
_LINES: Final = 10**7
_FRAMES: Final = ("out", "call", "drop", "progress", "done")
_FRAME_CHARACTERS: Final = 64
"""What a frame counts at least, so that the number of frames has a limit, too."""
_EXIT_S: Final = 0.5
"""How long a guest that closed its connection may take to exit; only then does its status say why."""
_KILLED: Final = (-signal.SIGKILL, 128 + signal.SIGKILL)
_KILLED_MESSAGE: Final = "The system killed the program; most likely it used too much memory."
_OUT_OF_CPU: Final = (-24, 128 + 24)
"""SIGXCPU, which not every system has."""
_TOOL_ERROR_BYTES: Final = 64 * 1024
_TEXT_CHARACTERS: Final = 4000


def _driver_source() -> bytes:
    return Path(__file__).with_name("guest.py").read_bytes()


def driver_arguments() -> tuple[str, ...]:
    """Return the arguments of an interpreter that reads the driver."""
    return ("-I", "-S", "-B", "-c", _BOOT, str(len(_driver_source())))


class GuestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a guest applies to itself before it runs a program."""

    zygote: bool = False
    limits: dict[str, int] = {}
    """Process limits, such as `{"NOFILE": 64}`."""
    seccomp: str = ""
    """The filter of system calls, in hexadecimal digits."""
    dies_with_parent: bool = False


def start_message(settings: GuestSettings) -> bytes:
    """Return the first bytes for a guest: the driver and its settings."""
    body = msgspec.json.encode(settings)
    return _driver_source() + len(body).to_bytes(4, "big") + body


class _Frame(msgspec.Struct, kw_only=True):
    """A frame of the guest; which fields it has depends on `t`."""

    t: str
    n: str = ""
    id: int = 0
    name: str = ""
    path: bool = False
    args: msgspec.Raw = msgspec.Raw(b"{}")
    s: str = ""
    x: str = ""
    done: float = 0
    total: float | None = None
    text: str = ""
    ok: bool = False
    v: msgspec.Raw = msgspec.Raw(b"null")
    kind: FailureKind = "exception"
    type: str = ""
    message: str = ""
    line: int = 0
    column: int = 0
    source: str = ""
    traceback: str = ""
    tool_error: msgspec.Raw = msgspec.Raw(b"null")


_decode: Final = msgspec.json.Decoder(_Frame).decode


class HeadAndTail:
    """The head and tail of a stream of any length."""

    def __init__(self, characters: int) -> None:
        self._half = max(characters // 2, 1)
        self._head, self._tail, self._cut = "", "", 0

    def add(self, text: str) -> None:
        """Add a text at the end."""
        room = self._half - len(self._head)
        self._head += text[:room]
        rest = self._tail + text[room:]
        self._cut += max(len(rest) - self._half, 0)
        self._tail = rest[-self._half :] if rest else ""

    def __str__(self) -> str:
        """Return the text, with a line in place of what was cut."""
        return (
            f"{self._head}\n… {self._cut} characters left out …\n{self._tail}" if self._cut else self._head + self._tail
        )


class RunClock:
    """Calls back when a program has run for so many seconds; time that is paused does not count."""

    def __init__(self, seconds: float, paused: Callable[[], float], expire: Callable[[], None]) -> None:
        self._seconds, self._paused, self._expire = seconds, paused, expire
        self._began = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._check)

    @property
    def seconds(self) -> float:
        """Return the running time so far."""
        return max(time.monotonic() - self._began - self._paused(), 0.0)

    def stop(self) -> None:
        """Stop the clock."""
        self._timer.cancel()

    def _check(self) -> None:
        left = self._seconds - self.seconds
        if left <= 0:
            self._expire()
        else:  # a pause may last for days: look again now and then
            self._timer = self._loop.call_later(max(left, _CHECK_S), self._check)


class _StoppedError(Exception):
    """The end of a run by a limit or a broken protocol."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class _Run:
    def __init__(self, guest: "Guest", limits: RunLimits, invoke: Invoke, hooks: Hooks) -> None:
        self.id = secrets.token_hex(8)
        self.stopped: FailureKind | None = None
        self.stdout, self.stderr = HeadAndTail(limits.kept_characters), HeadAndTail(limits.kept_characters)
        self.calls = 0
        self._guest, self.limits, self._invoke, self._hooks = guest, limits, invoke, hooks
        self._written = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bytes = 0
        self._room = asyncio.Event()
        self.clock = RunClock(limits.seconds, hooks.paused, lambda: self.stop("timeout"))

    def stop(self, kind: FailureKind) -> None:
        """End the run and its calls; its guest is gone afterwards."""
        self.stopped = self.stopped or kind
        self._guest.abort()
        for task in self._tasks.values():
            task.cancel()
        self._room.set()

    async def end(self) -> None:
        self.clock.stop()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def take(self, frame: _Frame, size: int) -> _Frame | None:
        """Handle one frame, and return the one that ends the run. Every frame counts as a call or as output."""
        if frame.t not in _FRAMES:
            raise _StoppedError("protocol", "The guest sent an unknown frame.")
        is_own = frame.n == self.id  # or of an earlier run of the session, whose tasks go on
        if is_own and frame.t == "call":
            await self._start_call(frame)
        elif is_own and frame.t == "done":
            return frame
        else:
            self._written += max(len(frame.x) if frame.t == "out" else size, _FRAME_CHARACTERS)
            if self._written > self.limits.output_bytes:
                message = f"The program wrote more than {self.limits.output_bytes} bytes of output and progress."
                raise _StoppedError("output", message)
            if frame.t == "out":
                (self.stderr if frame.s == "err" else self.stdout).add(frame.x)
                self._hooks.output("err" if frame.s == "err" else "out", frame.x)
            elif not is_own:
                if frame.t == "call":
                    await self._refuse(frame, "state_error", "The run of this call has ended.")
            elif frame.t == "progress":
                self._hooks.progress(frame.done, frame.total, frame.text[:_TEXT_CHARACTERS])
            elif (task := self._tasks.get(frame.id)) is not None:
                task.cancel()
        return None

    async def _start_call(self, frame: _Frame) -> None:
        """Start a call once there is room for it; meanwhile nothing is read, so the guest waits, too."""
        limits, size = self.limits, len(frame.args)
        self.calls += 1
        if self.calls > limits.calls:
            raise _StoppedError("calls", f"The program made more than {limits.calls} tool calls.")
        if len(frame.name) > NAME_CHARACTERS:
            await self._refuse(frame, "tool_not_found", "No tool has a name of that length.")
            return
        if size > limits.argument_bytes:
            message = f"The arguments have {size} bytes; a program may send {limits.argument_bytes}."
            await self._refuse(frame, "too_large", message)
            return
        while self._tasks and (len(self._tasks) >= limits.in_flight or self._bytes + size > limits.argument_bytes):
            self._room.clear()
            await self._room.wait()
            if self.stopped is not None:
                raise _StoppedError(self.stopped, "The run was stopped while a call waited for its turn.")
        if frame.id in self._tasks:
            raise _StoppedError("protocol", "The guest used the number of a call twice.")
        self._bytes += size
        task = self._tasks[frame.id] = asyncio.create_task(self._answer(frame))
        task.add_done_callback(lambda _: self._forget(frame.id, size))

    async def _refuse(self, frame: _Frame, code: str, message: str) -> None:
        await self._guest.send(encode({"t": "err", "id": frame.id, "e": {"code": code, "message": message}}))

    def _forget(self, number: int, size: int) -> None:
        del self._tasks[number]
        self._bytes -= size
        self._room.set()

    async def _answer(self, frame: _Frame) -> None:
        try:
            value = await self._invoke(GuestCall(frame.name, frame.path, frame.args))
            reply = encode({"t": "ret", "id": frame.id, "v": value})
            if len(reply) > self.limits.reply_bytes:
                message = f"The result has {len(reply)} bytes; a program may take {self.limits.reply_bytes}."
                error = {
                    "code": "too_large",
                    "message": message,
                    "may_have_run": True,
                    "hint": "Ask the tool for less.",
                }
                reply = encode({"t": "err", "id": frame.id, "e": error})
            value = None  # the guest may never read: keep one copy only
        except CallFailedError as failed:
            reply = encode({"t": "err", "id": frame.id, "e": failed.error})
        with suppress(OSError, RuntimeError):  # the guest is gone; the run ends by itself
            await self._guest.send(reply)


class GuestProcess(Protocol):
    """The process behind a guest."""

    async def send_signal(self, number: int) -> bool:
        """Send a signal to all of the guest, and return whether it was delivered."""
        ...

    async def end(self, grace: float) -> int | None:
        """Wait so many seconds for its end, then kill it; return its exit status if that is known and its own."""
        ...


class Guest:
    """One interpreter in a sandbox, behind a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, process: GuestProcess) -> None:
        self._reader, self._writer, self._process = reader, writer, process
        self._run: _Run | None = None
        self._lock = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._signals = asyncio.Lock()
        self._is_frozen = False
        self._ending: asyncio.Task[int | None] | None = None
        self._is_aborted = False

    @property
    def alive(self) -> bool:
        """Return whether it can run another program: nobody closed the connection, on either side."""
        return not self._is_aborted and not self._reader.at_eof() and self._reader.exception() is None

    async def greet(self, first: bytes = b"") -> None:
        """Send the first bytes, and wait until the guest can run programs.

        Raises:
            RuntimeMissingError: It died, or takes too long.
        """
        try:
            async with asyncio.timeout(_START_S):
                self._writer.write(first)
                await self._writer.drain()
                await self._read(_FRAME_SLACK)
        except (TimeoutError, OSError, EOFError, ValueError, _StoppedError):
            self.abort()
            raise RuntimeMissingError("The guest did not start.") from None

    async def run(
        self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks = NO_HOOKS
    ) -> RunResult:
        """Run one program; another one waits until it has ended."""
        async with self._lock:
            run = self._run = _Run(self, limits, invoke, hooks)
            value, failure = None, None
            start = {"t": "run", "n": run.id, "code": code, "inputs": inputs, "value_bytes": limits.value_bytes}
            try:
                frame = await self._exchange(run, start)
                if len(frame.v) > limits.value_bytes:  # the driver checks it, too
                    raise _StoppedError("protocol", f"The guest sent a value of {len(frame.v)} bytes.")  # noqa: TRY301 - ends the guest
                value = msgspec.json.decode(frame.v)
                failure = None if frame.ok else _failure(frame)
                if failure is not None and failure.kind == "cpu":  # the driver ended itself
                    self.abort()
            except Exception as error:  # noqa: BLE001 - whatever a guest provokes ends the guest and nothing else
                self.abort()
                failure = await self._cause(run, error)
            except BaseException:
                self.abort()
                raise
            finally:
                self._run = None
                await run.end()
                if self.alive:  # it may have been frozen in the moment in which its program ended
                    await self.thaw()
        return RunResult(
            value=value,
            failure=failure,
            stdout=str(run.stdout),
            stderr=str(run.stderr),
            calls=run.calls,
            seconds=run.clock.seconds,
            is_lost=not self.alive,
        )

    def stop(self) -> None:
        """End the program that is running; its result is `cancelled`."""
        if self._run is not None:
            self._run.stop("cancelled")

    async def freeze(self) -> bool:
        """Stop the guest until `thaw` or the end of its program, and return whether it is stopped."""
        async with self._signals:
            self._is_frozen = self._run is not None and await self._process.send_signal(signal.SIGSTOP)
            return self._is_frozen

    async def thaw(self) -> None:
        """Let a frozen guest go on."""
        async with self._signals:
            if self._is_frozen:
                self._is_frozen = False
                await self._process.send_signal(signal.SIGCONT)

    def abort(self) -> None:
        """Close the socket; `close` ends the process behind it."""
        self._is_aborted = True
        self._reader.set_exception(ConnectionAbortedError())  # the frames that it has would start calls all the same
        self._writer.transport.abort()

    async def close(self) -> None:
        """Kill the guest and wait until it is gone; the result of its program is `cancelled`."""
        self.stop()
        self.abort()
        await self._end(0)

    async def _end(self, grace: float) -> int | None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._process.end(grace))
        return await asyncio.shield(self._ending)

    async def send(self, body: bytes) -> None:
        """Send the body of a frame, and wait while the guest does not read."""
        async with self._writing:  # one at a time: a waiting frame is kept once, not in the socket's buffer as well
            self._writer.write(len(body).to_bytes(4, "big") + body[:_PIECE_BYTES])
            await self._writer.drain()
            for start in range(_PIECE_BYTES, len(body), _PIECE_BYTES):  # the socket's buffer is a copy: keep it small
                self._writer.write(memoryview(body)[start : start + _PIECE_BYTES])
                await self._writer.drain()

    async def _exchange(self, run: _Run, start: Mapping[str, Any]) -> _Frame:
        limit = max(run.limits.value_bytes, run.limits.argument_bytes) + _FRAME_SLACK
        sending = asyncio.create_task(
            self.send(encode(start))
        )  # the guest may write before it has read all of a long program
        try:
            while (done := await run.take(*await self._read(limit))) is None:
                pass
        finally:
            sending.cancel()
        return done

    async def _read(self, limit: int) -> tuple[_Frame, int]:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        if size > limit:
            raise _StoppedError("protocol", f"The guest sent a frame of {size} bytes; at most {limit} are read.")
        try:
            return _decode(await self._reader.readexactly(size)), size
        except (ValueError, RecursionError):
            raise _StoppedError("protocol", "The guest sent a frame that cannot be read.") from None

    async def _cause(self, run: _Run, error: Exception) -> RunFailure:
        if run.stopped is not None:
            late = f"The program ran longer than {run.limits.seconds:g} seconds."
            return RunFailure(kind=run.stopped, message=late if run.stopped == "timeout" else "The run was cancelled.")
        if isinstance(error, _StoppedError):
            return RunFailure(kind=error.kind, message=str(error))
        if isinstance(error, EOFError | OSError):
            status = await self._end(_EXIT_S)
            if status in _KILLED:
                return RunFailure(kind="memory", message=_KILLED_MESSAGE)
            if status in _OUT_OF_CPU:
                return RunFailure(kind="cpu", message="The program used up its processor time.")
            why = "died, or closed its connection" if status is None else f"ended with status {status}"
            return RunFailure(kind="crashed", message=f"The interpreter {why}.")
        return RunFailure(kind="protocol", message="The guest sent a value that cannot be read.")


def _failure(frame: _Frame) -> RunFailure:
    """Return what a guest reports as its failure.

    Raises:
        _StoppedError: It reports what only the host can know.
    """
    if frame.kind not in _GUEST_KINDS:
        raise _StoppedError("protocol", "The guest reported a failure that it cannot have.")
    if len(frame.tool_error) > _TOOL_ERROR_BYTES:
        raise _StoppedError("protocol", f"The guest sent the error of a tool with {len(frame.tool_error)} bytes.")
    return RunFailure(
        kind=frame.kind,
        type=frame.type[:NAME_CHARACTERS],
        message=frame.message[:_TEXT_CHARACTERS],
        line=frame.line if 0 <= frame.line < _LINES else 0,
        column=frame.column if 0 <= frame.column < _LINES else 0,
        source=frame.source[:_TEXT_CHARACTERS],
        traceback=frame.traceback[-_TEXT_CHARACTERS:],
        tool_error=msgspec.json.decode(frame.tool_error, type=dict[str, Any] | None),
    )


async def start_guest(
    argv: Sequence[str],
    settings: GuestSettings,
    *,
    env: Mapping[str, str],
    cwd: str = "/",
    process_of: Callable[[Child], GuestProcess] = lambda child: child,
) -> Guest:
    """Start a process that reads the driver from its standard input, and return it as a guest.

    A child that only talks to the guest is wrapped by `process_of`.

    Raises:
        RuntimeMissingError: It cannot be started.
    """
    child = await spawn(argv, env=env, cwd=cwd)
    try:
        reader, writer = await asyncio.open_connection(sock=child.connection)
    except BaseException:
        child.connection.close()
        await process_of(child).end(0)
        raise
    guest = Guest(reader, writer, process_of(child))
    try:
        await guest.greet(start_message(settings))
    except BaseException as error:
        stderr = child.stderr_tail()
        await guest.close()
        if isinstance(error, RuntimeMissingError):
            raise RuntimeMissingError(f"The guest did not start: {stderr or 'it said nothing'}.") from None
        raise
    return guest
