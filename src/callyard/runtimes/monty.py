"""The backend `monty`: a small Python interpreter that starts in a millisecond, for programs that stay within a part of the language.

A program is checked before it runs. Another backend runs a program that uses more of the language. So the choice of the backend
never changes what a program does.
"""

import asyncio
import builtins
import importlib.util
import math
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from typing import Any, Final, cast

import msgspec

from callyard.model.envelope import encode
from callyard.runtimes.interpreter import base_executable
from callyard.runtimes.monty_programs import CALLABLES, Translation, translate
from callyard.runtimes.run_state import HeadAndTail, RunClock
from callyard.runtimes.runtime import (
    NAME_CHARACTERS,
    NO_HOOKS,
    CallFailedError,
    FailureKind,
    GuestCall,
    Hooks,
    Invoke,
    Probe,
    RunFailure,
    RunLimits,
    RunResult,
    RuntimeMissingError,
)

__all__ = ["Monty"]

_DROP_S: Final = 0.2
_INSTALL: Final = "Install 'callyard[monty]'."
_UNGUARDED_BYTES: Final = 32 * 1024 * 1024
"""Memory of a program that was not translated, such as a canary attack: it may send us all that it has."""
_SENT_BYTES: Final = 16 * 1024 * 1024
"""Bytes that a program passes to tools, all calls together. The worker sends the calls of one 'gather' all at once."""
_LAUNCHER: Final = "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9,0,0,0);os.execv(sys.argv[1],sys.argv[1:])"
"""Sets PR_SET_PDEATHSIG, and becomes the program in its arguments."""
_FLUSH_S: Final = 0.02
_LINE_CHARACTERS: Final = 200
_PIECE_CHARACTERS: Final = 64
"""What a piece of output counts at least, so that the number of pieces has a limit, too."""
_GUARD: Final = """
import json as _json
_sent = [0]
def _argument(value):
    text = _json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
    _sent[0] += len(text)
    if _sent[0] > {sent}:
        raise ValueError('callyard:arguments')
    return text
def _value(value):
    text = _json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(',', ':'))
    if len(text) > {value} or len(text.encode()) > {value}:
        raise ValueError('callyard:value_size')
    return text
"""
"""Checks sizes inside the worker, and hands over text: a value is in our own memory before we see its size, 30 times as large."""


class Monty:
    """Runs programs in the workers of a Monty pool."""

    name = "monty"

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._pool: Any = None
        self._running: dict[str, Callable[[FailureKind], None]] = {}

    async def probe(self) -> Probe:
        """Return whether the package is installed."""
        if importlib.util.find_spec("pydantic_monty") is None:
            return Probe(backend=self.name, available=False, reason="The package 'pydantic-monty' is not installed.", install=_INSTALL)
        enforced = ("timeout", "tool_calls", "output", "memory", "cpu", "pids", "disk", "files", "network")
        return Probe(backend=self.name, available=True, version=version("pydantic-monty"), enforced=enforced)

    async def open(self) -> None:
        """Start the pool of workers.

        Raises:
            RuntimeMissingError: The package is not installed, or its program cannot be started.
        """
        try:
            import pydantic_monty  # noqa: PLC0415 - optional
            from pydantic_monty._binary import find_monty_binary  # noqa: PLC0415 - optional
        except ImportError:
            raise RuntimeMissingError("The package 'pydantic-monty' is not installed.", install=_INSTALL) from None
        try:
            binary = self._stack.enter_context(_bound_to_us(find_monty_binary()))
            self._pool = await self._stack.enter_async_context(pydantic_monty.AsyncMonty(binary_path=binary, max_checkouts_per_worker=100))
        except OSError:  # its program is not where the package looks for it
            raise RuntimeMissingError("The program of the package 'pydantic-monty' cannot be started.", install=_INSTALL) from None

    async def run(
        self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks = NO_HOOKS, run_id: str = "", session: str = ""
    ) -> RunResult:
        """Run one program; one that was not translated has `call_tool` alone."""
        del session  # a program of a session goes to another backend
        translation = translate(code) or Translation(code, {}, is_guarded=False)
        return await _Run(self._pool, limits, invoke, hooks).run(translation, inputs, self._running, run_id or secrets.token_hex(8))

    def cancel(self, run_id: str) -> bool:
        """Stop a run, and return whether there was one."""
        stop = self._running.get(run_id)
        if stop is not None:
            stop("cancelled")
        return stop is not None

    async def freeze(self, run_id: str) -> bool:
        """Do nothing: a program awaits each call at once, so it computes nothing while one of them waits."""
        return run_id in self._running

    async def thaw(self, run_id: str) -> None:
        """Do nothing, as `freeze` does."""

    async def end_session(self, session: str) -> None:
        """Do nothing: there are no sessions here."""

    async def close(self) -> None:
        """Stop every run and end the workers."""
        for stop in list(self._running.values()):
            stop("cancelled")
        await self._stack.aclose()
        # The threads of the package drop their last Python objects after the pool has closed. Python aborts if it ends meanwhile:
        # one process of four did, and none of thirty with this pause.
        await asyncio.sleep(_DROP_S)


@contextmanager
def _bound_to_us(binary: str) -> Generator[str]:
    """Yield a program that starts workers which die with us, even while they compute.

    It is in memory, because a temporary directory may forbid programs.
    """
    if sys.platform != "linux":
        yield binary
        return
    command = shlex.join((base_executable(), "-I", "-S", "-B", "-c", _LAUNCHER, binary))
    with os.fdopen(os.memfd_create("monty"), "wb") as writer:
        writer.write(f'#!/bin/sh\nexec {command} "$@"\n'.encode())
        writer.flush()
        reader = os.open(f"/proc/self/fd/{writer.fileno()}", os.O_RDONLY)
    try:  # the writer is closed: nothing runs a file that may still change
        yield f"/proc/{os.getpid()}/fd/{reader}"
    finally:
        os.close(reader)


class _Run:
    """One program in one checkout of a worker."""

    def __init__(self, pool: Any, limits: RunLimits, invoke: Invoke, hooks: Hooks) -> None:
        self._pool, self._limits, self._invoke, self._hooks = pool, limits, invoke, hooks
        self._stdout, self._stderr = HeadAndTail(limits.kept_characters), HeadAndTail(limits.kept_characters)
        self._written = self._calls = self._guard_lines = 0
        self._stopped: FailureKind | None = None
        self._failed: dict[str, Any] | None = None
        self._slots = asyncio.Semaphore(limits.in_flight)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._feed: asyncio.Future[Any] | None = None
        self._clock: RunClock | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self, translation: Translation, inputs: Any, running: dict[str, Callable[[FailureKind], None]], run_id: str) -> RunResult:
        running[run_id] = self._stop
        value, failure = None, None
        try:
            value = await self._execute(translation, inputs)
        except asyncio.CancelledError:
            if self._stopped is None:
                raise
        except Exception as error:  # noqa: BLE001 - whatever a program provokes is its answer
            failure = self._failure(error, translation)
        finally:
            del running[run_id]
            if self._clock is not None:
                self._clock.stop()
            for task in self._tasks:
                task.cancel()
        if self._stopped is not None:
            failure = RunFailure(kind=self._stopped, message=_message(self._stopped, self._limits))
        return RunResult(
            value=None if failure else value,
            failure=failure,
            stdout=str(self._stdout),
            stderr=str(self._stderr),
            calls=self._calls,
            seconds=0.0 if self._clock is None else self._clock.seconds,
        )

    async def _execute(self, translation: Translation, inputs: Any) -> Any:
        import pydantic_monty  # noqa: PLC0415 - optional

        limits = pydantic_monty.ResourceLimits(
            max_feed_duration_secs=self._limits.seconds + 1,
            max_memory=self._limits.memory_bytes if translation.is_guarded else min(self._limits.memory_bytes, _UNGUARDED_BYTES),
            max_recursion_depth=500,
            max_suspensions=self._limits.calls * 2 + 100,
        )
        lookup = {name: self._tool(path) for name, path in translation.tools.items()}
        lookup |= {name: self._function(name, first) for name, first in CALLABLES.items()}
        async with self._pool.checkout(limits=limits, print_flush_interval=_FLUSH_S) as session:
            if self._stopped is not None:  # while it waited for a worker
                return None
            self._clock = RunClock(self._limits.seconds, self._hooks.paused, lambda: self._stop("timeout"))
            run = session.feed_run(
                self._guarded(translation), inputs={"inputs": _as_json(inputs)}, external_lookup=lookup, print_callback=self._print
            )
            feed: asyncio.Future[Any] = asyncio.ensure_future(run)
            self._feed = feed
            value: Any = await feed
        if translation.is_guarded:
            return _decoded(value)
        if not _is_json(value):
            raise _ValueError
        body = encode(value)
        if len(body) > self._limits.value_bytes:
            self._stopped = "value_size"
        return msgspec.json.decode(body)

    def _guarded(self, translation: Translation) -> str:
        if not translation.is_guarded:
            return translation.code
        guard = _GUARD.format(sent=_SENT_BYTES, value=self._limits.value_bytes)
        self._guard_lines = guard.count("\n")
        return guard + translation.code

    def _stop(self, kind: FailureKind) -> None:
        self._stopped = self._stopped or kind
        if self._feed is not None:
            self._feed.cancel()  # ends the worker

    def _print(self, stream: str, text: str) -> None:
        self._written += max(len(text), _PIECE_CHARACTERS)
        if self._written > self._limits.output_bytes:
            self._loop.call_soon_threadsafe(self._stop, "output")  # it may come from a thread of the pool
            return
        (self._stderr if stream == "stderr" else self._stdout).add(text)
        self._hooks.output("err" if stream == "stderr" else "out", text)

    def _tool(self, path: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            return await self._answer(path, self._all_unpacked(arguments), is_path=True)

        return call

    def _function(self, name: str, first: str | None) -> Callable[..., Any]:
        async def call(*given: Any, **arguments: Any) -> Any:
            values, named = [self._unpacked(value) for value in given], self._all_unpacked(arguments)
            if first is None:
                tool, *rest = values
                given_as_one: dict[str, Any] = rest[0] or {} if rest else {}
                return await self._answer(str(tool), {**given_as_one, **named}, is_path=False)
            positional = {first: values[0]} if values and values[0] is not None else {}
            return await self._answer(name, {**positional, **named}, is_path=False)

        return call

    def _all_unpacked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: self._unpacked(value) for name, value in arguments.items()}

    def _unpacked(self, value: Any) -> Any:
        """Return what a program passed to a tool, from the text that the guard made of it."""
        if not self._guard_lines:
            if not _is_json(value):
                raise _ValueError
            return value
        if len(value) > self._limits.argument_bytes:
            message = f"An argument has {len(value)} characters; a program may send {self._limits.argument_bytes} bytes."
            raise self._raised({"code": "too_large", "message": message})
        return _decoded(value)

    async def _answer(self, name: str, arguments: dict[str, Any], *, is_path: bool) -> Any:
        self._calls += 1
        if self._calls > self._limits.calls:
            self._stop("calls")
        if self._stopped is not None:
            raise RuntimeError("The program was stopped.")
        if len(name) > NAME_CHARACTERS:
            raise self._raised({"code": "tool_not_found", "message": "No tool has a name of that length."})
        task = asyncio.current_task()
        if task is not None:  # a cancelled feed leaves its callbacks running
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        body = encode(arguments)
        if len(body) > self._limits.argument_bytes:
            message = f"The arguments have {len(body)} bytes; a program may send {self._limits.argument_bytes}."
            raise self._raised({"code": "too_large", "message": message})
        async with self._slots:
            try:
                value = await self._invoke(GuestCall(name, is_path, msgspec.Raw(body)))
            except CallFailedError as failed:
                raise self._raised(failed.error) from None
            reply = encode(value)
            if len(reply) > self._limits.reply_bytes:
                message = f"The result is too large; a program may take {self._limits.reply_bytes} bytes."
                raise self._raised({"code": "too_large", "message": message, "may_have_run": True})
            return msgspec.json.decode(reply)

    def _raised(self, error: dict[str, Any]) -> RuntimeError:
        """Return a failed call as the program sees it; the first one is kept for the answer."""
        self._failed = self._failed or error
        return RuntimeError(f"{error.get('code')}: {error.get('message')}")

    def _failure(self, error: Exception, translation: Translation) -> RunFailure:
        """Return the failure in the format of the other backends."""
        import pydantic_monty  # noqa: PLC0415 - optional

        if isinstance(error, _ValueError):
            return RunFailure(kind="value", message="The value cannot be written as JSON.")
        if isinstance(error, pydantic_monty.MontyCrashedError):
            return RunFailure(kind="crashed", message="The interpreter died.")
        if not isinstance(error, pydantic_monty.MontyError):
            return RunFailure(kind="exception", type=type(error).__name__, message=str(error)[:1000])
        cause = error.exception()
        if "callyard:value_size" in str(error):
            return RunFailure(kind="value_size", message=_message("value_size", self._limits))
        frames: list[Any] = error.traceback() if isinstance(error, pydantic_monty.MontyRuntimeError) else []
        if frames and frames[-1].function_name == "_value" and not isinstance(cause, MemoryError):
            return RunFailure(kind="value", message="The value cannot be written as JSON.")
        place = next((frame for frame in reversed(frames) if frame.line > self._guard_lines), None)
        line = place.line - self._guard_lines if place else 0
        column, source = translation.place(line, place.column) if place else (0, "")
        kinds: dict[type[BaseException], FailureKind] = {MemoryError: "memory", TimeoutError: "timeout", SyntaxError: "syntax"}
        found: list[FailureKind] = [kind for base, kind in kinds.items() if isinstance(cause, base)]
        name = "ToolError" if self._failed else type(cause).__name__
        message = _sent_too_much(str(error)) or str(cause)[:1000]
        source = (source or (place.source_line if place else None) or "")[:_LINE_CHARACTERS]
        return RunFailure(
            kind=found[0] if found else "exception",
            type=name,
            message=message,
            line=line,
            column=column,
            source=source,
            traceback=_traceback(line, source, f"{name}: {message}" if message else name) if line else "",
            tool_error=self._failed,
        )


def _traceback(line: int, source: str, error: str) -> str:
    """Return a traceback as the other backends write it; a program in Monty has no functions."""
    return f'Traceback (most recent call last):\n  File "<program>", line {line}, in <module>\n    {source.strip()}\n{error}\n'


def _sent_too_much(text: str) -> str:
    return f"The program passed more than {_SENT_BYTES} bytes to tools." if "callyard:arguments" in text else ""


class _ValueError(Exception):
    """A value that is no JSON."""

    def __init__(self) -> None:
        super().__init__("The value cannot be written as JSON.")


def _decoded(text: Any) -> Any:
    """Return the value of a text that the guard made.

    Raises:
        _ValueError: It is no JSON, such as a number without end.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, TypeError, RecursionError):
        raise _ValueError from None


def _as_json(value: Any) -> Any:
    """Return a value of ours as other backends see it, after JSON."""
    return msgspec.json.decode(encode(value))


def _is_json(value: Any, depth: int = 0) -> bool:
    """Return whether a value is JSON to the letter: Monty has sets, bytes and infinite numbers, as Python does."""
    if depth > 100:  # noqa: PLR2004 - deeper values are cut by every JSON parser
        return False
    match value:
        case None | bool() | str() | int():
            return True
        case builtins.float():
            return math.isfinite(value)
        case list() | tuple():
            return all(_is_json(item, depth + 1) for item in cast("list[Any]", value))
        case dict():
            return all(isinstance(key, str) and _is_json(item, depth + 1) for key, item in cast("dict[Any, Any]", value).items())
        case _:
            return False


def _message(kind: FailureKind, limits: RunLimits) -> str:
    messages: dict[str, str] = {
        "timeout": f"The program ran longer than {limits.seconds:g} seconds.",
        "output": f"The program wrote more than {limits.output_bytes} bytes of output.",
        "calls": f"The program made more than {limits.calls} tool calls.",
        "value_size": f"The value has more than {limits.value_bytes} bytes.",
        "cancelled": "The run was cancelled.",
    }
    return messages.get(kind, "")
