"""The backends as tests use them: opened if they can run here, else skipped with the reason."""

import functools
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from toolyard.runtimes.bubblewrap import Bubblewrap
from toolyard.runtimes.guest_runtime import GuestRuntime
from toolyard.runtimes.process import Subprocess
from toolyard.runtimes.runtime import CallFailedError, GuestCall, Runtime

__all__ = ["CPYTHON", "FULL", "SANDBOXED", "answer", "opened"]

CPYTHON_SANDBOXES = ("bubblewrap",)
SANDBOXED = CPYTHON_SANDBOXES
CPYTHON = ("subprocess", *CPYTHON_SANDBOXES)

FULL = os.environ.get("CI_ATTACKS") == "full"
_skipped: dict[str, str] = {}


def make(name: str) -> Runtime:
    match name:
        case "bubblewrap":
            return GuestRuntime(Bubblewrap())
        case _:
            return GuestRuntime(Subprocess())


@asynccontextmanager
async def opened(name: str) -> AsyncGenerator[Runtime]:
    if name in _skipped:
        pytest.skip(_skipped[name])
    runtime = make(name)
    if not _available(name):
        probe = await runtime.probe()
        if not probe.available:
            _skipped[name] = f"{name}: {probe.reason}"
            pytest.skip(_skipped[name])
    await runtime.open()
    try:
        yield runtime
    finally:
        await runtime.close()


@functools.cache
def _available(name: str) -> bool:
    return name == "subprocess"


async def answer(call: GuestCall) -> object:
    """Answer like a yard with a few tools."""
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    match call.name:
        case "echo" | "yard.echo":
            return msgspec.json.decode(call.arguments)
        case "big":
            return "x" * (1 << 20)
        case "slow":
            await asyncio.sleep(60)
            return None
        case _:
            raise CallFailedError(
                {"code": "tool_not_found", "message": "There is no such tool.", "details": {"similar": ["echo"]}, "retryable": False}
            )
