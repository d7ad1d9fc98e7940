"""The guest driver: runs one program after another inside a sandbox and talks to the host in frames.

It is sent to the sandbox as source, so it uses the standard library alone and imports nothing of Callyard.
A frame is a length of four bytes and JSON. The host sends `run`, `ret` and `err`; the guest sends `ready`, `out`,
`call`, `drop`, `progress` and `done`.
"""

import ast
import asyncio
import builtins
import contextlib
import io
import json
import linecache
import os
import select
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING or sys.platform != "wasi":
    import ctypes
    import resource

__all__ = ["Driver", "Pipe", "start"]

_WASI = sys.platform == "wasi"
_HEADER = 4
_READ_BYTES = 1 << 16
_TEXT_CHARACTERS = 4000
_OUTPUT_CHARACTERS = 8192
_FLUSH_S = 0.02
_IN_FLIGHT = 10
_UNAWAITED = 100
_IN_FLIGHT_BYTES = 1 << 20
_CAUSES = 10
_STANDARD_ERROR = 2
_OUT_OF_CPU = 128 + 24
"""The exit status of a guest whose processor time is used up: that of a shell after SIGXCPU."""
_CPU_MESSAGE = "The program used up its processor time."
_ERROR_BYTES = 1 << 16
_PROGRAM = "<program"
_METATOOLS = {"search_tools": "query", "describe_tool": "tool_id", "run_chain": "steps", "read_result": "handle"}
"""The metatools that programs call as functions, with the argument that may be given by position."""


class Pipe:
    """Frames over two file descriptors. While it waits to write it reads, so that neither side waits for the other."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming = incoming
        self._outgoing = outgoing
        self._buffer = bytearray()
        self.is_sending = False
        self.ended = False

    def send(self, message: Any) -> None:
        """Send one frame."""
        body = _encode(message)
        rest = memoryview(len(body).to_bytes(4, "big") + body)
        self.is_sending = True
        while rest:
            if not _WASI:
                readable, writable, _ = select.select([] if self.ended else [self.incoming], [self._outgoing], [])
                if readable:
                    self.read()
                if not writable:
                    continue
            rest = rest[os.write(self._outgoing, rest[:_READ_BYTES]) :]
        self.is_sending = False

    def read(self) -> None:
        """Read what is there; wait if there is nothing."""
        try:
            piece = os.read(self.incoming, _READ_BYTES)
        except ConnectionError:  # the host closed its end before it had read everything
            piece = b""
        self.ended = not piece
        self._buffer += piece

    def frames(self) -> list[Any]:
        """Return the frames that are complete."""
        found: list[Any] = []
        while len(self._buffer) >= _HEADER:
            end = _HEADER + int.from_bytes(self._buffer[:_HEADER], "big")
            if len(self._buffer) < end:
                break
            found.append(json.loads(bytes(self._buffer[_HEADER:end])))
            del self._buffer[:end]
        return found


def _encode(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refuse)
    return text.encode("utf-8", "replace")


def _refuse(value: object) -> NoReturn:
    if isinstance(value, types.CoroutineType):
        value.close()
    elif isinstance(value, asyncio.Future):
        value.cancel()
    else:
        raise TypeError(f"a value of type '{type(value).__name__}' cannot be written as JSON")
    raise TypeError("a call that was not awaited is no value: write 'await' in front of it")


class _Selector:
    """The event source of the loop: the host's frames, and threads of the program."""

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._wake, self._waker = (-1, -1) if _WASI else os.pipe()

    def select(self, timeout: float | None = None) -> list[Any]:
        """Return the frames that came in; `None` stands for the end of the pipe."""
        driver = self._driver
        driver.flush()
        frames = driver.pipe.frames()
        if frames:
            return frames
        if timeout is not None or not _WASI:  # a wait without end on WASI is a plain read
            sources = [driver.pipe.incoming] if _WASI else [driver.pipe.incoming, self._wake]
            ready = select.select(sources, [], [], None if timeout is None else max(0, timeout))[0]
            if self._wake in ready:
                os.read(self._wake, _READ_BYTES)
            if driver.pipe.incoming not in ready:
                return []
        driver.pipe.read()
        return driver.pipe.frames() or ([None] if driver.pipe.ended else [])

    def wake(self) -> None:
        """End the wait of the loop, from any thread."""
        if self._waker >= 0:
            os.write(self._waker, b"w")

    def close(self) -> None:
        for descriptor in (self._wake, self._waker):
            if descriptor >= 0:
                os.close(descriptor)


class _Loop(asyncio.BaseEventLoop):
    """An event loop without sockets, which WASI and the filter of system calls do not have."""

    def __init__(self, driver: "Driver") -> None:
        super().__init__()
        self._driver = driver
        self._selector = _Selector(driver)

    def _process_events(self, event_list: list[Any]) -> None:
        for frame in event_list:
            self._driver.take(frame)

    def _write_to_self(self) -> None:
        self._selector.wake()

    def close(self) -> None:
        super().close()
        self._selector.close()


class ToolError(Exception):
    """A tool that failed: `code`, `message`, `hint`, `details`, `retryable` and the rest of its error."""

    __module__ = "builtins"  # so that a traceback shows its bare name

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('code')}: {error.get('message')}")
        self.error = error
        self.code = error.get("code")
        self.message = error.get("message")
        self.hint = error.get("hint")
        self.details: dict[str, Any] = error.get("details") or {}
        self.retryable = bool(error.get("retryable"))
        self.next_actions: list[str] = error.get("next_actions") or []
        self.data = error.get("data")


class _Tools:
    """The tools by namespace and name: `tools.orders.list(limit=5)`."""

    def __init__(self, driver: "Driver", path: tuple[str, ...] = ()) -> None:
        self._driver, self._path = driver, path

    def __getattr__(self, name: str) -> "_Tools":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Tools(self._driver, (*self._path, name))

    def __call__(self, *args: object, **kwargs: object) -> Coroutine[Any, Any, Any]:
        if args or not self._path:
            raise TypeError("a tool takes its arguments by name, as in tools.orders.list(limit=5)")
        return self._driver.request(".".join(self._path), kwargs, is_path=True)

    def __repr__(self) -> str:
        """Return how a program spells it."""
        return ".".join(("tools", *self._path))


class _Done:
    """The answer of a function that sends without waiting: it may be awaited or not."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class _Output(io.TextIOBase):
    """Standard output or error of the program, sent to the host in pieces."""

    encoding = "utf-8"

    def __init__(self, driver: "Driver", name: str) -> None:
        self._driver, self._name = driver, name
        self._parts: list[str] = []
        self._size, self._last = 0, 0.0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Send a text, at the latest with the next wait of the program."""
        if not isinstance(cast("object", text), str):
            raise TypeError("print takes text")
        for start in range(0, len(text), 1 << 18):  # a frame has a limit, a text has none
            self._parts.append(text[start : start + (1 << 18)])
            self._size += len(self._parts[-1])
            if self._size > _OUTPUT_CHARACTERS or ("\n" in text and time.monotonic() - self._last > _FLUSH_S):
                self.flush()
        return len(text)

    def flush(self) -> None:
        if self._parts:
            text, self._parts, self._size, self._last = "".join(self._parts), [], 0, time.monotonic()
            self._driver.pipe.send({"t": "out", "s": self._name, "x": text})


class Driver:
    """One interpreter that runs programs for the host until the pipe ends."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.loop = _Loop(self)
        self.run_id = ""
        self._runs: list[dict[str, Any]] = []
        self._run_waiter: asyncio.Future[None] | None = None
        self._number, self._count, self._made = 0, 0, 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._sizes: dict[int, int] = {}
        self._unawaited: dict[int, tuple[str, int, Coroutine[Any, Any, Any]]] = {}
        self._room = asyncio.Event()
        self._outputs: tuple[Any, Any] = (_Output(self, "out"), _Output(self, "err"))
        self._names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "ToolError": ToolError}
        self._names |= {"tools": _Tools(self), "call_tool": self.call_tool, "progress": self.progress}
        self._names |= {name: self._metatool(name, first) for name, first in _METATOOLS.items()}

    def serve(self) -> None:
        """Run programs until the host closes the pipe."""
        out, err = self._outputs
        with contextlib.closing(self.loop), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.pipe.send({"t": "ready"})
            with contextlib.suppress(asyncio.CancelledError, BrokenPipeError):  # the host is gone
                self.loop.run_until_complete(self._main())

    async def _main(self) -> None:
        while not self.pipe.ended:
            if self._runs:
                await self._run(self._runs.pop(0))
            else:
                self._run_waiter = self.loop.create_future()
                await self._run_waiter

    def take(self, frame: dict[str, Any] | None) -> None:
        """Handle one frame of the host; `None` is the end of the pipe."""
        if frame is None:  # the host is gone: nobody would read what the program does
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
        elif frame["t"] == "run":
            self._runs.append(frame)
        else:
            future = self._waiting.pop(frame["id"], None)
            self._sizes.pop(frame["id"], None)
            self._room.set()
            if future is not None and not future.done():
                future.set_exception(ToolError(frame["e"])) if "e" in frame else future.set_result(frame["v"])
            return
        if self._run_waiter is not None and not self._run_waiter.done():
            self._run_waiter.set_result(None)

    def flush(self) -> None:
        """Send what the program printed."""
        for output in self._outputs:
            output.flush()

    def expire(self) -> NoReturn:
        """Report that the processor time is used up, and end.

        It is called by a signal, maybe in the middle of a frame.
        """
        try:
            if not self.pipe.is_sending:
                self.flush()
                self.pipe.send({"t": "done", "n": self.run_id, "ok": False, "kind": "cpu", "message": _CPU_MESSAGE})
        finally:
            os._exit(_OUT_OF_CPU)

    def request(self, name: str, args: dict[str, Any], *, is_path: bool = False) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that sends a call to the host and waits for its answer; not awaited, it is forgotten."""
        self._made += 1
        coroutine = self._request(name, args, is_path=is_path, number=self._made)
        frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the line is only there
        while frame is not None and not frame.f_code.co_filename.startswith(_PROGRAM):
            frame = frame.f_back
        if len(self._unawaited) < _UNAWAITED:
            self._unawaited[self._made] = name, 0 if frame is None else frame.f_lineno, coroutine
        return coroutine

    async def _request(self, name: str, args: dict[str, Any], *, is_path: bool, number: int) -> Any:
        self._unawaited.pop(number, None)
        size = len(_encode(args))
        while self._waiting and (
            len(self._waiting) >= _IN_FLIGHT or sum(self._sizes.values()) + size > _IN_FLIGHT_BYTES
        ):
            self._room.clear()
            await self._room.wait()
        self._number += 1
        number = self._number
        future = self._waiting[number] = self.loop.create_future()
        self._sizes[number] = size
        self.pipe.send({"t": "call", "n": self.run_id, "id": number, "name": name, "path": is_path, "args": args})
        try:
            return await future
        except asyncio.CancelledError:
            if self._waiting.pop(number, None) is not None:
                self._sizes.pop(number, None)
                self.pipe.send({"t": "drop", "n": self.run_id, "id": number})
            raise

    def call_tool(self, tool_id: str, args: dict[str, Any] | None = None, /, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call a tool by its id."""
        return self.request(str(tool_id), {**(args or {}), **kwargs})

    def progress(self, done: float, total: float | None = None, text: str = "") -> _Done:
        """Report progress to the client."""
        text = str(text)[:_TEXT_CHARACTERS]
        self.pipe.send({"t": "progress", "n": self.run_id, "done": done, "total": total, "text": text})
        return _Done()

    def _metatool(self, name: str, first: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        def call(value: Any = None, /, **kwargs: Any) -> Coroutine[Any, Any, Any]:
            return self.request(name, kwargs if value is None else {first: value, **kwargs})

        call.__name__ = call.__qualname__ = name
        return call

    async def _run(self, frame: dict[str, Any]) -> None:
        self.run_id = frame["n"]
        self._count += 1
        name = f"{_PROGRAM}>" if self._count == 1 else f"{_PROGRAM} {self._count}>"
        source = frame["code"]
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        self._names["inputs"] = frame.get("inputs")
        self._names.pop("result", None)
        try:
            answer = _answer(await self._value(source, name), frame["value_bytes"])
            if answer["ok"]:
                answer |= self._forgotten(source)
        except BaseException as error:  # noqa: BLE001 - whatever a program raises is its answer
            answer = {"ok": False, **_failure(error, source)}
        for _, _, coroutine in self._unawaited.values():
            coroutine.close()
        self._unawaited.clear()
        for task in asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop)}:
            task.cancel()
        self.flush()
        if not self.pipe.ended:
            self.pipe.send({"t": "done", "n": self.run_id, **answer})

    def _forgotten(self, source: str) -> dict[str, Any]:
        """Return the failure of a program that made calls and did not await them, or nothing if there is none."""
        forgotten = [
            (name, line) for name, line, call in self._unawaited.values() if cast("Any", call).cr_frame is not None
        ]
        if not forgotten:  # a call that was cancelled before it began has no frame
            return {}
        name, line = forgotten[0]
        more = f" So were {len(forgotten) - 1} others." if len(forgotten) > 1 else ""
        lines = source.splitlines()
        message = f"'{name[:200]}' was called without 'await', so it did not run.{more}"
        code = lines[line - 1][:200] if 0 < line <= len(lines) else ""
        return {"ok": False, "kind": "unawaited", "message": message, "line": line, "column": 1, "source": code}

    async def _value(self, source: str, name: str) -> Any:
        """Return the value of the last expression, or of the variable 'result'."""
        tree = ast.parse(source, name)
        end = tree.body[-1] if tree.body else None
        last = end.value if isinstance(end, ast.Expr) else None
        del tree.body[len(tree.body) - (last is not None) :]
        try:
            value = await self._evaluate(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if last is not None:
                code = compile(ast.Expression(last), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                value = await self._evaluate(code)
        except SystemExit as ending:
            if ending.code:
                raise
            value = None
        return self._names.get("result") if value is None or isinstance(value, _Done) else value

    async def _evaluate(self, code: types.CodeType) -> Any:
        value: Any = eval(code, self._names)  # noqa: S307 - running the program is what this process is for
        has_await = code.co_flags & 0x80  # CO_COROUTINE
        return await cast("Any", value) if has_await and isinstance(value, types.CoroutineType) else value


def _answer(value: object, limit: int) -> dict[str, Any]:
    """Return the value of a program as its answer, or why it cannot be returned."""
    try:
        size = len(_encode(value))
    except (TypeError, ValueError, RecursionError) as error:
        reason = (str(error) or "the value is nested too deeply")[:_TEXT_CHARACTERS]
        return {"ok": False, "kind": "value", "message": f"{reason[:1].upper()}{reason[1:]}."}
    if size > limit:
        message = f"The value has {size} bytes; at most {limit} are returned."
        return {"ok": False, "kind": "value_size", "message": message}
    return {"ok": True, "v": value}


def _failure(error: BaseException, source: str) -> dict[str, Any]:
    """Return what went wrong, trimmed to the program's own lines."""
    kinds = {SyntaxError: "syntax", MemoryError: "memory"}
    trace = traceback.TracebackException(type(error), error, error.__traceback__, limit=-200)
    line, column = _place(error)
    lines = source.splitlines()
    failure: dict[str, Any] = {
        "kind": next((kind for base, kind in kinds.items() if isinstance(error, base)), "exception"),
        "type": type(error).__name__,
        "message": _text(error)[:_TEXT_CHARACTERS],
        "line": line,
        "column": column,
        "source": lines[line - 1][:200] if line and line <= len(lines) else "",
        "traceback": "".join(_trim(trace).format())[-_TEXT_CHARACTERS:],
    }
    if isinstance(error, ToolError):
        failure["tool_error"] = error.error
        if len(_encode(error.error)) > _ERROR_BYTES:
            kept = {key: error.error[key] for key in ("code", "message", "hint") if error.error.get(key)}
            failure["tool_error"] = {key: str(value)[:_TEXT_CHARACTERS] for key, value in kept.items()}
    return failure


def _text(error: BaseException) -> str:
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # noqa: BLE001 - the program wrote '__str__'
        return ""


def _place(error: BaseException) -> tuple[int, int]:
    if isinstance(error, SyntaxError):
        return error.lineno or 0, error.offset or 0
    trace, found = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_PROGRAM):
            found = trace
        trace = trace.tb_next
    if found is None:
        return 0, 0
    positions = list(found.tb_frame.f_code.co_positions())
    column = positions[found.tb_lasti // 2][2] if found.tb_lasti // 2 < len(positions) else None
    return found.tb_lineno, 0 if column is None else column + 1


def _trim(trace: traceback.TracebackException, depth: int = 0) -> traceback.TracebackException:
    """Drop the frames of the driver and of libraries, in the causes as well."""
    trace.stack[:] = [frame for frame in trace.stack if frame.filename.startswith(_PROGRAM)]
    for cause in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        if cause is not None and depth < _CAUSES:
            _trim(cause, depth + 1)
    return trace


def _harden(limits: dict[str, int], seccomp: str) -> None:
    """Apply the limits of a process and the filter of system calls; neither can be undone."""
    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(number)[1]
        both = (value, value + (name == "CPU"))  # one second in which the driver reports SIGXCPU, before SIGKILL
        if hard != resource.RLIM_INFINITY:  # a limit can only be lowered
            both = (min(both[0], hard), min(both[1], hard))
        resource.setrlimit(number, both)
    if seccomp:
        program = bytes.fromhex(seccomp)
        code = ctypes.create_string_buffer(program, len(program))

        class Filter(ctypes.Structure):
            _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

        library = ctypes.CDLL(None, use_errno=True)
        bpf = Filter(len(program) // 8, ctypes.addressof(code))
        # NO_NEW_PRIVS, then SECCOMP with a filter
        if library.prctl(38, 1, 0, 0, 0) or library.prctl(22, 2, ctypes.byref(bpf), 0, 0):
            os._exit(97)


def _silence() -> None:
    """Point standard input and output at nothing, so that a stray write never is a frame."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    if nothing > _STANDARD_ERROR:
        os.close(nothing)


def _fork_guests(settings: dict[str, Any]) -> NoReturn:
    """Fork a guest for each socket that comes over the control socket, and answer with its pidfd."""
    control = socket.socket(fileno=os.dup(0))
    _silence()
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: guests cannot look into this process
    control.send(b"r")
    while True:
        data, sockets, _, _ = socket.recv_fds(control, 1, 1)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not data or not sockets:
            os._exit(0)
        try:
            child = os.fork()
        except OSError:
            os.close(sockets[0])
            control.send(b"e")
            continue
        if not child:
            control.close()
            _serve(Pipe(sockets[0], sockets[0]), settings)
        handle = os.pidfd_open(child)
        socket.send_fds(control, [b"p"], [handle])
        os.close(handle)
        os.close(sockets[0])


def start() -> None:
    """Read the settings from standard input and serve, as one guest or as the zygote of many."""
    pipe = Pipe(0, 1)
    while not (first := pipe.frames()):
        pipe.read()
        if pipe.ended:
            return
    settings = first[0]
    if settings["zygote"]:
        _fork_guests(settings)
    if settings["dies_with_parent"]:
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG
    if not _WASI:
        pipe = Pipe(os.dup(0), os.dup(1))
        _silence()
    _serve(pipe, settings)


def _serve(pipe: Pipe, settings: dict[str, Any]) -> NoReturn:
    """Run programs under the limits of the settings."""
    _harden(settings["limits"], settings["seccomp"])
    driver = Driver(pipe)
    if "CPU" in settings["limits"]:
        signal.signal(signal.SIGXCPU, lambda _number, _frame: driver.expire())
    driver.serve()
    os._exit(0)  # threads of the program must not keep it alive


if __name__ == "__callyard__":
    start()
