"""The measurement of search: a query, an index and an added tool among many, compared with FastMCP's BM25."""

import statistics
from pathlib import Path
from typing import Final

from command import Options, Report
from rounds import Row, Subject, cpu_ms_of, measure_paths
from tables import as_table, keep, ratio

__all__ = ["search"]

_TOOLS: Final = 33_000
_FEWER: Final = 25
"""An index is made so many times more seldom than a question is asked, because it takes so much longer."""
_LIKE: Final = {
    "FastMCP, its index alone": "Index.search",
    "FastMCP.call_tool of search_tools": "Yard.call of search_tools",
    "FastMCP, the index made": "the index made",
}
"""The path of ours that does the same."""
_MEMORY: Final = (
    "import sys; sys.path.insert(0, {folder!r}); "
    "from worker_{name} import measure_memory; print(measure_memory({tools}))"
)


def search(options: Options) -> Report:
    """CPU time of a query among very many tools, of the index, and of an added tool; and the memory of the index."""
    asked = _measure(("search", "search_tools"), options.rounds)
    changed = _measure(("make_index",), max(2, options.rounds // _FEWER)) + _measure(
        ("add_tool",), options.rounds, ("callyard",)
    )
    memory = {name: _memory_of(name) for name in ("callyard", "fastmcp")}
    of = {row.path: row.median for row in (*asked, *changed)}
    lines = [_line(row, of) for row in (*asked, *changed)]
    lines += [[f"memory of the index: {name}", f"{value:.2f} KB a tool", "", ""] for name, value in memory.items()]
    data = keep("search", [*asked, *changed], tools=_TOOLS, memory_kb_a_tool=memory)
    return Report(data, as_table(("path", "CPU ms, p50", "p99", "times ours"), lines))


def _measure(jobs: tuple[str, ...], rounds: int, environments: tuple[str, ...] = ("callyard", "fastmcp")) -> list[Row]:
    """Measure one query, or one change, at a time, in milliseconds."""
    subjects = {f"{name}, {job}": Subject(name, job, _TOOLS) for name in environments for job in jobs}
    return [row.divided(1000) for row in measure_paths(subjects, rounds, 1)]


def _memory_of(name: str) -> float:
    _, printed = cpu_ms_of(name, _MEMORY.format(folder=str(Path(__file__).parent), name=name, tools=_TOOLS))
    return float(printed)


def _line(row: Row, of: dict[str, float]) -> list[str]:
    slowest = statistics.quantiles(row.rounds, n=100, method="inclusive")[-1]
    ours = of[_LIKE.get(row.path, row.path)]
    return [row.path, f"{row.median:.2f}", f"{slowest:.2f}", ratio(row.median, ours)]
