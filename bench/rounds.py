"""Rounds: every path has its own process.

All run at the same time and are measured in turn; each round starts with the next one.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from environments import BEFORE, python_of

__all__ = ["Measure", "Row", "Subject", "WorkerError", "cpu_ms_of", "in_rounds", "measure_paths", "rotated"]

T = TypeVar("T")

Measure = Callable[[], float]
"""Measures something once."""

_HERE: Final = Path(__file__).resolve().parent
_BATCH_US: Final = 100_000
"""A batch of something slow has fewer calls, so that it takes no longer than this."""


class WorkerError(RuntimeError):
    """A worker process failed; the text is the end of its output."""


class Row(NamedTuple):
    """One path of one subject: the median over the rounds, the middle half of them, and all."""

    subject: str
    path: str
    median: float
    low: float
    high: float
    rounds: list[float]

    def divided(self, by: float) -> "Row":
        """Return the row divided by the number of things that were measured together."""
        return Row(
            self.subject,
            self.path,
            self.median / by,
            self.low / by,
            self.high / by,
            [value / by for value in self.rounds],
        )


class Subject(NamedTuple):
    """A job of a worker script in an environment, with a number of tools where that matters."""

    environment: str
    job: str
    tools: int = 0

    def command(self, path: str) -> list[str]:
        """Return the command that measures a path, or lists them all if it is empty."""
        script = (
            BEFORE / "bench" / "worker_callyard.py"
            if BEFORE and self.environment == "before"
            else _HERE / f"worker_{self.environment}.py"
        )
        return [python_of(self.environment), str(script), self.job, str(self.tools), path]

    def paths(self) -> list[str]:
        """Return the paths of the job, for any number of tools."""
        return json.loads(_run(self._replace(tools=min(self.tools, 10)).command("")))


def measure_paths(subjects: Mapping[str, Subject], rounds: int, calls: int) -> list[Row]:
    """Measure every path of every subject in every round."""
    measures: dict[tuple[str, str], Measure] = {}
    with ExitStack() as stack:
        for name, subject in subjects.items():
            for path in subject.paths():
                print(f"starting {name}: {path}", file=sys.stderr)
                measures[name, path] = stack.enter_context(_worker(subject.command(path), calls))
        return in_rounds(measures, rounds)


def in_rounds(measures: Mapping[tuple[str, str], Measure], rounds: int) -> list[Row]:
    """Measure each path once in every round; keys are subject and path."""
    found: dict[tuple[str, str], list[float]] = {key: [] for key in measures}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for key in rotated(list(measures), number):
            found[key].append(measures[key]())
    rows: list[Row] = []
    for (subject, path), values in found.items():
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        rows.append(Row(subject, path, median, low, high, values))
    return rows


def rotated(items: Sequence[T], by: int) -> list[T]:
    """Return the items rotated by an offset."""
    start = by % len(items)
    return [*items[start:], *items[:start]]


def cpu_ms_of(environment: str, code: str) -> tuple[float, str]:
    """Return the CPU time of a process that runs this code, in milliseconds, and its output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = _run([python_of(environment), "-c", code])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000, printed


@contextmanager
def _worker(command: Sequence[str], calls: int) -> Generator[Measure]:
    """Start a worker, warm it up, and yield a function that measures one batch."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(  # noqa: S603 - our own worker
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            bufsize=1,
            env=_environment(),
        )

        def ask(question: str) -> str:
            print(question, end="", file=process.stdin, flush=True)
            answer = process.stdout.readline() if process.stdout is not None else ""
            if not answer:
                said.seek(0)
                raise WorkerError(said.read()[-2000:])
            return answer

        with process:
            ask("")
            affordable = _BATCH_US / float(ask("2\n"))
            count = max(1, min(calls, int(affordable)))
            ask(f"{count}\n")
            yield lambda: float(ask(f"{count}\n"))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), check=False)  # noqa: S603 - our own workers
    if done.returncode:
        raise WorkerError(done.stderr[-2000:])
    return done.stdout


def _environment() -> dict[str, str]:
    """Return our environment without Python's own variables."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
