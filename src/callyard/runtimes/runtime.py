"""The protocol of runtimes, with the structs for limits, calls and results.

It knows no backend.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, Protocol

import msgspec

__all__ = [
    "NAME_CHARACTERS",
    "NO_HOOKS",
    "CallFailedError",
    "FailureKind",
    "GuestCall",
    "Hooks",
    "Invoke",
    "Probe",
    "RunFailure",
    "RunLimits",
    "RunResult",
    "Runtime",
    "RuntimeBusyError",
    "RuntimeMissingError",
]

FailureKind = Literal[
    "exception",
    "syntax",
    "value",
    "value_size",
    "unawaited",
    "memory",
    "cpu",
    "timeout",
    "output",
    "calls",
    "cancelled",
    "overloaded",
    "crashed",
    "protocol",
    "unsupported",
]
"""Why a program has no value. `crashed` is a guest that died, `protocol` one that sent what it must not.

`unawaited` is a call that the program forgot to await; the program ran to its end, and there is a value.
"""
NAME_CHARACTERS: Final = 200
"""Characters of the longest name of a tool that a program may call."""
_MIB: Final = 1024 * 1024


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may use."""

    seconds: float = 30.0
    """Running time; the time that a person is waited for does not count."""
    cpu_seconds: int = 60
    memory_bytes: int = 256 * _MIB
    output_bytes: int = 8 * _MIB
    """Bytes of stdout, stderr and progress together; a program that writes more is stopped."""
    kept_characters: int = 16_000
    """Characters of each stream that are kept: half of them from its head, half from its tail."""
    value_bytes: int = 1 * _MIB
    """Bytes of the value as JSON. Decoded, small objects take thirty times as much memory of the host."""
    calls: int = 1000
    in_flight: int = 10
    """Calls of a program that run at one time."""
    argument_bytes: int = 1 * _MIB
    """Bytes of the arguments of one call, and of all calls in flight together."""
    reply_bytes: int = 3 * _MIB
    """Bytes of the answer of one call. A guest that reads none of them costs the host this much for each call in flight."""


class GuestCall(msgspec.Struct, frozen=True):
    """A tool call that a program makes."""

    name: str
    """The id of a tool, or namespace and name with a dot between them."""
    is_path: bool
    arguments: msgspec.Raw


class CallFailedError(Exception):
    """A call of a program that failed; `error` is the error of its envelope."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", ""))
        self.error = error


Invoke = Callable[[GuestCall], Awaitable[Any]]
"""Answers a call of a program with a value, or raises `CallFailedError`."""


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks to the host while a program runs."""

    output: Callable[[str, str], None] = lambda _stream, _text: None
    """Called with `out` or `err` and a text."""
    progress: Callable[[float, float | None, str], None] = lambda _done, _total, _text: None
    paused: Callable[[], float] = lambda: 0.0
    """Seconds that the clock of this run stood still so far."""
    watch: Callable[[Callable[[], Callable[[], None]]], AbstractContextManager[None]] = lambda _pause: nullcontext()
    """Registers a function that is called when that clock stops; it returns a function that is called when the clock goes on."""


NO_HOOKS: Final = Hooks()


class RunFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a program failed, and where."""

    kind: FailureKind
    type: str = ""
    message: str = ""
    line: int = 0
    column: int = 0
    source: str = ""
    traceback: str = ""
    tool_error: dict[str, Any] | None = None
    """The error of a tool that the program did not catch."""


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a program: its value or its failure, and its output."""

    value: Any = None
    failure: RunFailure | None = None
    stdout: str = ""
    stderr: str = ""
    calls: int = 0
    seconds: float = 0.0
    """Running time, without the pauses."""
    is_lost: bool = False
    """Whether the guest is gone, and the variables of its session with it."""


class RuntimeMissingError(Exception):
    """A backend that cannot run here; the message says why, `install` what to do."""

    def __init__(self, message: str, *, install: str = "") -> None:
        super().__init__(message)
        self.install = install


class RuntimeBusyError(RuntimeMissingError):
    """A guest that cannot be started now; later it may."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can do on this machine."""

    backend: str
    available: bool
    sandboxed: bool = True
    version: str = ""
    python: str = ""
    reason: str = ""
    """Why it is not available."""
    install: str = ""
    """What makes it available."""
    enforced: tuple[str, ...] = ()
    """The limits that the host enforces."""
    unenforced: dict[str, str] = {}
    """The limits that it cannot enforce, and why."""
    canaries: dict[str, bool] = {}
    """The canary attacks that were tried, and whether each was stopped."""


class Runtime(Protocol):
    """A backend that runs programs."""

    @property
    def name(self) -> str:
        """Return its name, such as 'bubblewrap'."""
        ...

    async def probe(self) -> Probe:
        """Return whether it can run here, and which limits it can enforce. It starts nothing that stays."""
        ...

    async def open(self) -> None:
        """Prepare it for programs.

        Raises:
            RuntimeMissingError: It cannot run here.
        """
        ...

    async def run(
        self, code: str, inputs: Any, limits: RunLimits, invoke: Invoke, *, hooks: Hooks = NO_HOOKS, run_id: str = "", session: str = ""
    ) -> RunResult:
        """Run one program; runs of one session share their variables. If the task is cancelled, the guest is killed.

        Raises:
            RuntimeMissingError: No guest could be started.
        """
        ...

    def cancel(self, run_id: str) -> bool:
        """Kill the guest of a run, and return whether there was one; its result is `cancelled`."""
        ...

    async def freeze(self, run_id: str) -> bool:
        """Stop the guest of a run until `thaw`, so that it computes nothing; return whether it is stopped."""
        ...

    async def thaw(self, run_id: str) -> None:
        """Let a frozen guest go on."""
        ...

    async def end_session(self, session: str) -> None:
        """Kill the guest of a session."""
        ...

    async def close(self) -> None:
        """Kill all guests and wait until they are gone."""
        ...
