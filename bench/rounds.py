"""Rounds: every subject in a process of its own, in turn, each round beginning with the next one."""

import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from environments import python_of

__all__ = ["Measure", "Row", "WorkerError", "cpu_ms_of", "in_rounds", "rotated", "worker"]

T = TypeVar("T")

Measure = Callable[[], Mapping[str, float]]
"""Measures a subject once and returns a number for each of its paths."""

_HERE: Final = Path(__file__).resolve().parent


class WorkerError(RuntimeError):
    """A worker process failed; the text is the end of what it said."""


class Row(NamedTuple):
    """One path of one subject: the median over the rounds, and every round."""

    subject: str
    path: str
    median: float
    rounds: list[float]


def in_rounds(subjects: Mapping[str, Measure], rounds: int) -> list[Row]:
    """Measure every subject in every round."""
    found: dict[tuple[str, str], list[float]] = {}
    names = list(subjects)
    for number in range(rounds):
        for name in rotated(names, number):
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
            for path, value in subjects[name]().items():
                found.setdefault((name, path), []).append(value)
    ordered = sorted(found.items(), key=lambda item: names.index(item[0][0]))
    return [Row(subject, path, statistics.median(values), values) for (subject, path), values in ordered]


def rotated(items: Sequence[T], by: int) -> list[T]:
    """Return the items from another one on, the first ones last."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


def worker(environment: str, script: str, job: str, *, calls: int, tools: int = 0) -> Measure:
    """Return what runs a job of a worker script in an environment."""
    command = [python_of(environment), str(_HERE / script), job, str(calls), str(tools)]

    def measure() -> Mapping[str, float]:
        return json.loads(_run(command))

    return measure


def cpu_ms_of(environment: str, code: str) -> tuple[float, str]:
    """Return the CPU time of a process that runs this code, in milliseconds, and what it printed."""
    before = _children()
    printed = _run([python_of(environment), "-c", code])
    return (_children() - before) * 1000, printed


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _run(command: Sequence[str]) -> str:
    environment: dict[str, Any] = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)  # noqa: S603 - our own workers
    if done.returncode:
        raise WorkerError(done.stderr[-2000:])
    return done.stdout
