"""Callyard, called in the same process: every path for `bench`, the whole funnel first."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from callyard import Call, Envelope, Handler, Yard
from callyard.monitor import AuditLog, Metrics, Ring, log_sink

__all__ = ["callyard"]

_ARGUMENTS: Final = {"a": 1, "b": 2}
_MENDABLE: Final = {"a": "1", "b": 2}
_STEP: Final[dict[str, Any]] = {"tool_id": "add", "args": _ARGUMENTS}
_CHAIN: Final = {"steps": [_STEP] * 8}
_PASSING: Final = {"steps": [_STEP, *({"tool_id": "add", "args": {"a": {"$from": step}, "b": 0}} for step in range(7))]}


class Bench(Protocol):
    """Measures one path."""

    async def __call__(self, label: str, call: Callable[[], Awaitable[Any]], check: Callable[[Any], bool], /) -> None:
        """Measure `call`, after `check` has accepted its first answer."""
        ...


async def callyard(bench: Bench) -> None:
    """Measure calls of a yard with two sinks, one a log that is off, then of yards with fewer and more parts."""
    logging.getLogger("callyard.calls").setLevel(logging.WARNING)
    async with Yard(tools=[*_base(), add_by_invoking], sinks=[log_sink, Ring()]) as yard:
        await bench("Yard.call", lambda: yard.call("add", _ARGUMENTS), _is_right)
        await bench("Yard.call (sync tool)", lambda: yard.call("add_sync", _ARGUMENTS), _is_right)
        await bench("Yard.call, answer as JSON", lambda: _as_json(yard), lambda text: b'"data":3' in text)
        await bench("Yard.call, argument repaired", lambda: yard.call("add", _MENDABLE), _is_right)
        await bench("Yard.call, one call inside", lambda: yard.call("add_by_invoking", _ARGUMENTS), _is_right)
        await bench("Yard.call of run_tool", lambda: yard.call("run_tool", _STEP), _is_right)
        await bench("Yard.call of run_chain, 8 steps", lambda: yard.call("run_chain", _CHAIN), _ends_right)
        await bench(
            "Yard.call of run_chain, 8 steps that pass it on", lambda: yard.call("run_chain", _PASSING), _ends_right
        )
    async with Yard(tools=_base()) as yard:
        await bench("Yard.call, no sinks", lambda: yard.call("add", _ARGUMENTS), _is_right)
    with TemporaryDirectory() as folder, AuditLog(f"{folder}/audit.jsonl") as audit:
        async with Yard(tools=_base(), sinks=[Metrics(), audit]) as yard:
            await bench("Yard.call, metrics and audit log", lambda: yard.call("add", _ARGUMENTS), _is_right)
    async with Yard(tools=_base(), sinks=[Ring()], middleware=[_pass_on], policies=[_allow], limiters=[_go]) as yard:
        await bench("Yard.call, policy, limiter, middleware", lambda: yard.call("add", _ARGUMENTS), _is_right)


async def add_by_invoking(a: int, b: int, call: Call) -> int:
    """Add two numbers with another tool."""
    answer = await call.invoke("add", {"a": a, "b": b})
    return answer.data


def _base() -> Sequence[Callable[..., Any]]:
    """Return the tools of the harness that runs this file, or else our own."""
    theirs = find_spec("bench_tools") is not None
    return import_module("bench_tools" if theirs else "tools").BASE


def _is_right(answer: Envelope) -> bool:
    return answer.success and answer.data == 3


def _ends_right(answer: Envelope) -> bool:
    return answer.success and answer.data["final"] == 3


async def _as_json(yard: Yard) -> bytes:
    answer = await yard.call("add", _ARGUMENTS)
    return answer.to_json()


def _pass_on(handler: Handler) -> Handler:
    async def passed_on(call: Call) -> object:
        return await handler(call)

    return passed_on


async def _allow(_: Call) -> Envelope | None:
    return None


async def _go(_: Call) -> Callable[[], None]:
    return _nothing


def _nothing() -> None:
    """Release nothing."""
