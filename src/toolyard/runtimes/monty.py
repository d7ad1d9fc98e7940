"""The backend `monty`: a small Python interpreter that starts in a millisecond, for programs that stay within a part of the language.

A program is checked before it runs. Another backend runs a program that uses more of the language. So the choice of the backend
never changes what a program does.
"""

import ast
import asyncio
import builtins
import importlib.util
import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolyard.model.envelope import encode
from toolyard.runtimes.run_state import HeadAndTail, RunClock
from toolyard.runtimes.runtime import (
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

__all__ = ["Monty", "translate"]

_DROP_S: Final = 0.2
_INSTALL: Final = "Install 'toolyard[monty]'."
_CHARACTERS: Final = 10_000
_UNGUARDED_BYTES: Final = 32 * 1024 * 1024
"""Memory of a program that was not translated, such as a canary attack: it may send us all that it has."""
_SENT_BYTES: Final = 16 * 1024 * 1024
"""Bytes that a program passes to tools, all calls together. The worker sends the calls of one 'gather' all at once."""
_GUARD: Final = """
import json as _json
_sent = [0]
def _argument(value):
    text = _json.dumps(value)
    _sent[0] += len(text)
    if _sent[0] > {sent}:
        raise ValueError('toolyard:arguments')
    return text
def _value(value):
    text = _json.dumps(value)
    if len(text) > {value}:
        raise ValueError('toolyard:value_size')
    return text
"""
"""Checks sizes inside the worker, and hands over text: a value is in our own memory before we see its size, 30 times as large."""
_MODULES: Final = frozenset({"asyncio", "json", "math"})
_BUILTINS: Final = frozenset(
    {
        *("abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "len", "list", "max", "min", "print", "range"),
        *("reversed", "round", "sorted", "str", "sum", "zip"),
    }
)
_METHODS: Final = frozenset(
    {
        *("append", "extend", "items", "keys", "values", "get", "lower", "upper", "strip", "split", "join"),
        *("startswith", "endswith", "replace", "count", "index"),
    }
)
_MODULE_NAMES: Final = {"asyncio": {"gather"}, "json": {"dumps", "loads"}, "math": {"floor", "ceil", "sqrt"}}
_NODES: Final = (
    *(
        ast.Module,
        ast.Expr,
        ast.Assign,
        ast.AugAssign,
        ast.If,
        ast.For,
        ast.While,
        ast.Break,
        ast.Continue,
        ast.Pass,
        ast.Import,
        ast.alias,
    ),
    *(ast.Name, ast.Load, ast.Store, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Subscript, ast.Slice, ast.Attribute, ast.Call),
    *(ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Await, ast.JoinedStr, ast.FormattedValue),
    *(ast.ListComp, ast.DictComp, ast.comprehension, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_CALLABLES: Final = {"call_tool": None, "search_tools": "query", "describe_tool": "tool_id", "run_chain": "steps", "read_result": "handle"}


class _BeyondError(Exception):
    """A program that uses more of the language than Monty has."""


class _Edit(NamedTuple):
    """A part of a program on one line, and the text in its place."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


class _Translation(msgspec.Struct, frozen=True):
    """A program as Monty runs it, with the tools behind the names in it."""

    code: str
    tools: dict[str, str]
    is_guarded: bool = True
    """Whether its values and arguments are checked inside the worker."""
    original: str = ""
    edits: tuple[_Edit, ...] = ()

    def place(self, line: int, column: int) -> tuple[int, str]:
        """Return the column and the source line of the original program, for a place in ours."""
        if not self.original:
            return column, ""
        for edit in (edit for edit in self.edits if edit.start[0] == line):
            if column - 1 < edit.start[1] + len(edit.text):
                break
            column -= len(edit.text) - (edit.end[1] - edit.start[1])
        return column, self.original.split("\n")[line - 1] if line <= self.original.count("\n") + 1 else ""


def translate(code: str) -> _Translation | None:
    """Return a program for Monty, or nothing if it must be run by another backend."""
    if len(code) > _CHARACTERS or not code.isascii():  # positions in the tree count bytes
        return None
    try:
        tree = ast.parse(code)
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        assigned = _assigned(tree)
        paths = list(_check(tree, parents, assigned))
    except (SyntaxError, ValueError, RecursionError, MemoryError, _BeyondError):
        return None
    if any(node.lineno != node.end_lineno for node, _ in paths):
        return None
    last = tree.body[-1] if tree.body else None
    if "result" in assigned and isinstance(last, ast.Expr):
        return None  # which of them is the value is known only at run time
    tools = {f"_tool_{number}": path for number, (_, path) in enumerate(paths)}
    edits = [_Edit(_start(node), _end(node), name) for name, (node, _) in zip(tools, paths, strict=True)]
    for argument in _arguments(tree):
        edits += [_Edit(_start(argument), _start(argument), "_argument("), _Edit(_end(argument), _end(argument), ")")]
    if isinstance(last, ast.Expr):
        edits += [_Edit(_start(last.value), _start(last.value), "_value("), _Edit(_end(last.value), _end(last.value), ")")]
    edits.sort()
    changed = _apply(edits, code)
    if "result" in assigned:
        changed += "\n_value(result)"
    return _Translation(changed, tools, original=code, edits=tuple(edits))


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _apply(edits: list[_Edit], code: str) -> str:
    lines = code.split("\n")
    for (number, column), (_, end), text in reversed(edits):  # from the end, so that positions stay right
        lines[number - 1] = f"{lines[number - 1][:column]}{text}{lines[number - 1][end:]}"
    return "\n".join(lines)


def _arguments(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what a program passes to tools."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (_is_path(node.func) or (isinstance(node.func, ast.Name) and node.func.id in _CALLABLES)):
            yield from node.args
            yield from (keyword.value for keyword in node.keywords)


def _assigned(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    if names & {*_BUILTINS, *_CALLABLES, *_MODULES, "tools", "inputs"} or any(name.startswith("_") for name in names):
        raise _BeyondError
    return names


def _check(tree: ast.Module, parents: dict[ast.AST, ast.AST], assigned: set[str]) -> Iterator[tuple[ast.expr, str]]:
    """Yield each tool that the program calls by its path, with its place.

    Raises:
        _BeyondError: The program uses something that Monty does not have, or may have in another way.
    """
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names if alias.asname is None}
    known = {*assigned, *imported, *_BUILTINS, *_CALLABLES, "inputs"}
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise _BeyondError
        match node:
            case ast.alias(name=name, asname=other) if name not in _MODULES or other is not None:
                raise _BeyondError
            case ast.Name(id=name) if name == "tools":
                yield _tool_call(node, parents)
            case ast.Name(id=name) if name in _CALLABLES:
                _require_await(node, parents)
            case ast.Name(id=name) if name not in known:
                raise _BeyondError
            case ast.Attribute(value=ast.Name(id=name), attr=method) if name in imported:
                if method not in _MODULE_NAMES[name]:
                    raise _BeyondError
            case ast.Attribute(attr=method) if method not in _METHODS and not _is_path(node):
                raise _BeyondError
            case _:
                pass


def _is_path(node: ast.expr) -> bool:
    """Return whether an expression is a part of `tools.<namespace>.<name>`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "tools"


def _tool_call(name: ast.Name, parents: dict[ast.AST, ast.AST]) -> tuple[ast.expr, str]:
    parts: list[str] = []
    node: ast.AST = name
    while isinstance(parent := parents[node], ast.Attribute):
        parts.append(parent.attr)
        node = parent
    call = parents[node]
    if not parts or not isinstance(call, ast.Call) or call.func is not node or call.args or any(key.arg is None for key in call.keywords):
        raise _BeyondError
    _require_await(node, parents)
    return cast("ast.expr", node), ".".join(parts)


def _require_await(function: ast.AST, parents: dict[ast.AST, ast.AST]) -> None:
    """Check that a call is awaited at once, or by `asyncio.gather`: a forgotten `await` has another meaning in Monty."""
    call = parents[function]
    if not isinstance(call, ast.Call) or call.func is not function:
        raise _BeyondError
    around = parents[call]
    is_gather = isinstance(around, ast.Call) and isinstance(around.func, ast.Attribute) and around.func.attr == "gather"
    if not isinstance(parents[around] if is_gather else around, ast.Await):
        raise _BeyondError
    while (node := parents.get(call)) is not None:
        if isinstance(node, ast.JoinedStr):  # its positions are wrong before Python 3.12
            raise _BeyondError
        call = node


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
        except ImportError:
            raise RuntimeMissingError("The package 'pydantic-monty' is not installed.", install=_INSTALL) from None
        try:
            self._pool = await self._stack.enter_async_context(pydantic_monty.AsyncMonty(max_checkouts_per_worker=100))
        except OSError:  # its program is not where the package looks for it
            raise RuntimeMissingError("The program of the package 'pydantic-monty' cannot be started.", install=_INSTALL) from None

    async def run(
        self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks = NO_HOOKS, run_id: str = "", session: str = ""
    ) -> RunResult:
        """Run one program; one that was not translated has `call_tool` alone."""
        del session  # a program of a session goes to another backend
        translation = translate(code) or _Translation(code, {}, is_guarded=False)
        return await _Run(self._pool, limits, invoke, hooks).run(translation, inputs, self._running, run_id or secrets.token_hex(8))

    def cancel(self, run_id: str) -> bool:
        """Stop a run, and return whether there was one."""
        stop = self._running.get(run_id)
        if stop is not None:
            stop("cancelled")
        return stop is not None

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

    async def run(
        self, translation: _Translation, inputs: Any, running: dict[str, Callable[[FailureKind], None]], run_id: str
    ) -> RunResult:
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

    async def _execute(self, translation: _Translation, inputs: Any) -> Any:
        import pydantic_monty  # noqa: PLC0415 - optional

        limits = pydantic_monty.ResourceLimits(
            max_feed_duration_secs=self._limits.seconds + 1,
            max_memory=self._limits.memory_bytes if translation.is_guarded else min(self._limits.memory_bytes, _UNGUARDED_BYTES),
            max_recursion_depth=500,
            max_suspensions=self._limits.calls * 2 + 100,
        )
        lookup = {name: self._tool(path) for name, path in translation.tools.items()}
        lookup |= {name: self._function(name, first) for name, first in _CALLABLES.items()}
        async with self._pool.checkout(limits=limits, print_flush_interval=0) as session:
            if self._stopped is not None:  # while it waited for a worker
                return None
            self._clock = RunClock(self._limits.seconds, self._hooks.paused, lambda: self._stop("timeout"))
            run = session.feed_run(
                self._guarded(translation), inputs={"inputs": inputs}, external_lookup=lookup, print_callback=self._print
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

    def _guarded(self, translation: _Translation) -> str:
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
        self._written += len(text)
        if self._written > self._limits.output_bytes:
            self._loop.call_soon_threadsafe(self._stop, "output")  # it may come from a thread of the pool
            return
        (self._stderr if stream == "stderr" else self._stdout).add(text)
        self._hooks.output("err" if stream == "stderr" else "out", text)

    def _tool(self, path: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            return await self._answer(path, arguments, is_path=True)

        return call

    def _function(self, name: str, first: str | None) -> Callable[..., Any]:
        async def call(*given: Any, **arguments: Any) -> Any:
            if first is not None:
                return await self._answer(name, {**({first: given[0]} if given else {}), **arguments}, is_path=False)
            tool, *rest = (self._unpacked(value) for value in given)
            unpacked = {key: self._unpacked(value) for key, value in arguments.items()}
            return await self._answer(str(tool), {**(rest[0] if rest else {}), **unpacked}, is_path=False, is_packed=False)

        return call

    def _unpacked(self, value: Any) -> Any:
        """Return what a program passed to a tool, from the text that the guard made of it."""
        if not self._guard_lines:
            if not _is_json(value):
                raise _ValueError
            return value
        if len(value) > self._limits.argument_bytes:
            raise RuntimeError(f"too_large: An argument has {len(value)} bytes; a program may send {self._limits.argument_bytes}.")
        return _decoded(value)

    async def _answer(self, name: str, arguments: dict[str, Any], *, is_path: bool, is_packed: bool = True) -> Any:
        self._calls += 1
        if self._calls > self._limits.calls:
            self._stop("calls")
        if self._stopped is not None:
            raise RuntimeError("The program was stopped.")
        if len(name) > NAME_CHARACTERS:
            raise RuntimeError("tool_not_found: No tool has a name of that length.")
        task = asyncio.current_task()
        if task is not None:  # a cancelled feed leaves its callbacks running
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        body = encode({key: self._unpacked(value) for key, value in arguments.items()} if is_packed else arguments)
        if len(body) > self._limits.argument_bytes:
            raise RuntimeError(f"too_large: The arguments have {len(body)} bytes; a program may send {self._limits.argument_bytes}.")
        async with self._slots:
            try:
                value = await self._invoke(GuestCall(name, is_path, msgspec.Raw(body)))
            except CallFailedError as failed:
                raise self._raised(failed.error) from None
            if len(encode(value)) > self._limits.reply_bytes:
                message = f"The result is too large; a program may take {self._limits.reply_bytes} bytes."
                raise self._raised({"code": "too_large", "message": message, "may_have_run": True})
            return value

    def _raised(self, error: dict[str, Any]) -> RuntimeError:
        """Return a failed call as the program sees it; the first one is kept for the answer."""
        self._failed = self._failed or error
        return RuntimeError(f"{error.get('code')}: {error.get('message')}")

    def _failure(self, error: Exception, translation: _Translation) -> RunFailure:
        """Return the failure in the format of the other backends."""
        import pydantic_monty  # noqa: PLC0415 - optional

        if isinstance(error, _ValueError):
            return RunFailure(kind="value", message="The value cannot be written as JSON.")
        if isinstance(error, pydantic_monty.MontyCrashedError):
            return RunFailure(kind="crashed", message="The interpreter died.")
        if not isinstance(error, pydantic_monty.MontyError):
            return RunFailure(kind="exception", type=type(error).__name__, message=str(error)[:1000])
        cause = error.exception()
        if "toolyard:value_size" in str(error):
            return RunFailure(kind="value_size", message=_message("value_size", self._limits))
        frames: list[Any] = error.traceback() if isinstance(error, pydantic_monty.MontyRuntimeError) else []
        place = next((frame for frame in reversed(frames) if frame.line > self._guard_lines), None)
        line = place.line - self._guard_lines if place else 0
        column, source = translation.place(line, place.column) if place else (0, "")
        kinds: dict[type[BaseException], FailureKind] = {MemoryError: "memory", TimeoutError: "timeout", SyntaxError: "syntax"}
        found: list[FailureKind] = [kind for base, kind in kinds.items() if isinstance(cause, base)]
        return RunFailure(
            kind=found[0] if found else "exception",
            type="ToolError" if self._failed else type(cause).__name__,
            message=_sent_too_much(str(error)) or str(error).partition(": ")[2][:1000] or str(error)[:1000],
            line=line,
            column=column,
            source=source or (place.source_line if place else None) or "",
            tool_error=self._failed,
        )


def _sent_too_much(text: str) -> str:
    return f"The program passed more than {_SENT_BYTES} bytes to tools." if "toolyard:arguments" in text else ""


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
