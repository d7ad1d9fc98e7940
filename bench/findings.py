"""Findings: the results of all rounds for each cell and peer, and tables that compare them with ours."""

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from command import Report
from peers import LIMIT, OURS
from rounds import rotated
from tables import as_table, keep, ratio

__all__ = ["Column", "Finding", "Probe", "measure", "report"]

Probe = Callable[[], dict[str, Any]]
"""Measures a peer once: numbers by name, or `fault` and what was wrong."""


class Column(NamedTuple):
    """A column of a table: its number, divisor and digits. The first column of a table is the one that is compared."""

    title: str
    key: str
    per: float = 1.0
    digits: int = 1


class Finding(NamedTuple):
    """The rounds and failures of one peer in one cell."""

    cell: str
    peer: str
    label: str
    fault: str
    rounds: list[dict[str, Any]]

    def of(self, key: str) -> list[float]:
        """Return one number of every round."""
        return [float(found[key]) for found in self.rounds]

    def median(self, key: str) -> float:
        """Return the median of a number."""
        return statistics.median(self.of(key))


def measure(probes: Mapping[tuple[str, str], tuple[str, Probe]], rounds: int) -> list[Finding]:
    """Measure every peer once in every cell of every round; keys are cell and peer, values the label and the probe."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in probes}
    faults: dict[tuple[str, str], str] = {}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for cell in dict.fromkeys(cell for cell, _ in probes):
            for key in rotated([key for key in probes if key[0] == cell], number):
                if key in faults:
                    continue
                result = probes[key][1]()
                if "fault" in result:
                    faults[key] = result["fault"]
                else:
                    found[key].append(result)
    return [Finding(*key, probes[key][0], faults.get(key, ""), found[key]) for key in probes]


def report(
    command: str, findings: Sequence[Finding], columns: Sequence[Column], *, skipped: Mapping[str, str], **facts: Any
) -> Report:
    """Return a table for each cell, then the missing peers and the failures."""
    parts = [
        _table(cell, [row for row in findings if row.cell == cell], columns)
        for cell in dict.fromkeys(row.cell for row in findings)
    ]
    parts += [f"'{name}' is not measured: {reason}" for name, reason in skipped.items()]
    faults = [f"'{row.peer}' failed in '{row.cell}': {row.fault}" for row in findings if row.fault]
    data = keep(command, findings, skipped=dict(skipped), **facts)
    return Report(data, "\n\n".join(parts), "\n".join(faults))


def _table(cell: str, rows: Sequence[Finding], columns: Sequence[Column]) -> str:
    main = columns[0]
    known = {row.peer: row.median(main.key) for row in rows if not row.fault}
    measures = [known.get(OURS, 0.0), known.get(LIMIT, 0.0)]
    head = (cell, main.title, "middle half", "times ours", "times limit", *(column.title for column in columns[1:]))
    return as_table(head, [_line(row, columns, measures) for row in rows])


def _line(row: Finding, columns: Sequence[Column], measures: Sequence[float]) -> list[str]:
    main = columns[0]
    if row.fault:
        return [row.label, "failed", *("-" for _ in range(len(columns) + 2))]
    low, _, high = statistics.quantiles(row.of(main.key), n=4, method="inclusive")
    times = [ratio(row.median(main.key), other) if other else "-" for other in measures]
    cells = [_number(row.median(column.key), column) for column in columns]
    return [row.label, cells[0], f"{_number(low, main)} to {_number(high, main)}", *times, *cells[1:]]


def _number(value: float, column: Column) -> str:
    return f"{value / column.per:,.{column.digits}f}"
