"""What every runtime shares: settings, limits, calls, results and failures.

It knows no backend.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, Self

import msgspec

__all__ = [
    "BACKENDS",
    "NAME_CHARACTERS",
    "NO_HOOKS",
    "PYTHON",
    "CallFailedError",
    "FailureKind",
    "GuestCall",
    "Hooks",
    "Invoke",
    "Probe",
    "RunFailure",
    "RunLimits",
    "RunResult",
    "RuntimeBusyError",
    "RuntimeMissingError",
    "RuntimeSettings",
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
]
"""Why a program has no value. `crashed` is a guest that died, `protocol` one that sent what it must not.

`unawaited` is a call that the program forgot to await; the program ran to its end, and there is a value.
"""
BACKENDS: Final = ("container", "bubblewrap", "wasm")
"""The sandboxed backends, in the order in which they are tried."""
NAME_CHARACTERS: Final = 200
"""Characters of the longest name of a tool that a program may call."""
PYTHON: Final = sys.version.split()[0]
"""The version of the interpreter, which most backends give to programs, too."""
_MIB: Final = 1024 * 1024
_SANDBOX_LIMITS: Final = ("timeout", "tool_calls", "output", "memory", "cpu", "pids", "disk", "files", "network")


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
    """Bytes of the answer of one call.

    A guest that reads none of them costs the host this much for each call in flight.
    """


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
    """Registers a callback for the stop of that clock; it returns a callback for the moment when the clock goes on."""


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
    enforced: tuple[str, ...] = ()
    unenforced: dict[str, str] = {}
    """The limits that it cannot enforce, and why."""
    canaries: dict[str, bool] = {}
    """The canary attacks that were tried, and whether each was stopped."""

    @classmethod
    def missing(cls, backend: str, error: Exception, *, install: str, version: str = "") -> Self:
        """Return that a backend cannot run here; `install` is for an error that does not say what to do."""
        install = own_install(error) or install
        return cls(backend=backend, available=False, version=version, reason=str(error), install=install)

    @classmethod
    def sandbox(cls, backend: str, *, version: str, python: str = "", unenforced: Mapping[str, str] = {}) -> Self:
        """Return that a sandbox is available, with the limits that it cannot enforce here."""
        enforced = tuple(limit for limit in _SANDBOX_LIMITS if limit not in unenforced)
        return cls(
            backend=backend,
            available=True,
            version=version,
            python=python,
            enforced=enforced,
            unenforced=dict(unenforced),
        )


def own_install(error: Exception) -> str:
    """Return what an error says to install, if it says so."""
    return error.install if isinstance(error, RuntimeMissingError) else ""


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where programs of agents run."""

    enabled: bool = False
    """Whether agents may run programs with 'execute_code'."""
    profile: Literal["standard", "dev"] = "standard"
    """'standard' runs programs in a sandbox; 'dev' runs them in a plain process, which protects from nothing."""
    backend: Literal["container", "bubblewrap", "wasm"] | None = None
    """The backend of 'standard', if only this one may be used."""
    order: tuple[str, ...] = BACKENDS
    """The backends of 'standard' in the order in which they are tried."""
    wasm_enabled: bool | None = None
    """Whether the backend 'wasm' may be used (default: if wasmtime and the file are there)."""
    wasm_path: str | None = None
    """The CPython build for WASI that the backend 'wasm' runs."""
    wasm_sha256: str | None = None
    """The SHA-256 of that file, if it is not one that Callyard knows."""
    allow_unsafe: bool = False
    """Whether 'dev' may run as root, or in a server that is not on a loopback address."""
    concurrency: int = 4
    """Programs that run at one time; further ones wait."""

    def __post_init__(self) -> None:
        if self.profile not in ("standard", "dev"):
            raise ValueError("The setting 'profile' must be 'standard' or 'dev'.")
        unknown = [name for name in (self.backend, *self.order) if name is not None and name not in BACKENDS]
        if unknown:
            raise ValueError(f"The settings 'backend' and 'order' know {', '.join(BACKENDS)}, not '{unknown[0]}'.")
        if self.concurrency < 1:
            raise ValueError("The setting 'concurrency' must be at least 1.")
