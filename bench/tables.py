"""Tables: rows as text for people, and as JSON for programs."""

import json
import os
import platform
import time
from collections.abc import Sequence
from typing import Any, Protocol

from environments import cache

__all__ = ["as_table", "keep", "ratio"]


class Kept(Protocol):
    """A row: anything with named fields."""

    def _asdict(self) -> dict[str, Any]: ...


def as_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with the first column left-aligned and the numbers right-aligned."""
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    ruler = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(_line(cells, widths) for cells in (head, ruler, *lines))


def ratio(value: float, ours: float) -> str:
    """Return a number divided by ours."""
    times = value / ours
    digits = 2 if times < 0.995 else 1 if times < 10 else 0
    return f"{times:.{digits}f}x"


def keep(command: str, rows: Sequence[Kept], **facts: Any) -> dict[str, Any]:
    """Write the rows into the cache directory, and return the text."""
    result = {
        "command": command,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        **facts,
        "rows": [row._asdict() for row in rows],  # pyright: ignore[reportPrivateUsage] - named tuples call it so
    }
    folder = cache() / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{command}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cells[0].ljust(widths[0]),
        *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
    ]
    return f"| {' | '.join(padded)} |"
