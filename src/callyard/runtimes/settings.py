"""The settings of runtimes: which backend runs programs, and how many at one time."""

from typing import Final, Literal

import msgspec

__all__ = ["BACKENDS", "RuntimeSettings"]

BACKENDS: Final = ("container", "bubblewrap", "wasm")
"""The sandboxed backends, in the order in which they are tried."""


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
    monty: bool = False
    """Whether small programs run in Monty, which starts faster; others run in the sandbox."""
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
