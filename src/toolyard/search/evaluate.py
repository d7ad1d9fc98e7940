"""Evaluation: how well and how fast a strategy finds what labelled questions ask for."""

import math
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from toolyard.model.spec import Operation, ToolSpec
from toolyard.search.index import Index, make_index
from toolyard.search.settings import SearchSettings

__all__ = ["EvaluationError", "LabelledQuery", "LabelledTool", "Measured", "evaluate", "read_queries", "read_tools"]

_DEPTH: Final = 10
_Line = TypeVar("_Line", bound=msgspec.Struct)


class EvaluationError(ValueError):
    """A line of the labelled tools or queries cannot be read; the sentence names it."""


class LabelledTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a labelled set; its schema is read as text and need not be a correct one."""

    id: str
    name: str
    namespace: str | None = None
    description: str | None = None
    tags: tuple[str, ...] | None = None
    input_schema: dict[str, Any] | None = None


class LabelledQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A question and the ids of the tools that answer it."""

    query: str
    relevant: tuple[str, ...]
    id: str = ""

    def __post_init__(self) -> None:
        if not self.relevant:
            raise ValueError("'relevant' must name a tool")


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: the mean quality over all questions, and what building and asking cost in time of the processor."""

    recall_1: float = msgspec.field(name="recall@1")
    recall_5: float = msgspec.field(name="recall@5")
    recall_10: float = msgspec.field(name="recall@10")
    mrr_10: float = msgspec.field(name="mrr@10")
    ndcg_10: float = msgspec.field(name="ndcg@10")
    build_s: float
    p50_ms: float
    p99_ms: float
    tools: int
    queries: int


def read_tools(lines: Iterable[str | bytes]) -> list[LabelledTool]:
    """Return the tools of a file with one JSON object a line.

    Raises:
        EvaluationError: A line is no tool, or has the id of another.
    """
    found: dict[str, LabelledTool] = {}
    for number, tool in _numbered(lines, LabelledTool):
        if tool.id in found:
            raise EvaluationError(f"Line {number} has the id '{tool.id}', which a line before it has already.")
        found[tool.id] = tool
    return list(found.values())


def read_queries(lines: Iterable[str | bytes]) -> list[LabelledQuery]:
    """Return the questions of a file with one JSON object a line.

    Raises:
        EvaluationError: A line is no question, or names no tool that answers it.
    """
    return [query for _, query in _numbered(lines, LabelledQuery)]


def evaluate(tools: Sequence[LabelledTool], queries: Sequence[LabelledQuery], settings: SearchSettings | None = None) -> Measured:
    """Return how well and how fast the strategy of the settings answers the questions."""
    specs = _specs(tools)
    began = time.process_time()
    index = make_index(settings)
    for spec in specs.values():
        index.add(spec)
    index.prepare()
    build = time.process_time() - began
    ids = {spec.name: number for number, spec in specs.items()}
    ranks, spent = _ask(index, queries, ids)
    mean = [sum(column) / max(1, len(queries)) for column in zip(*map(_marks, ranks, queries), strict=True)] or [0.0] * 5
    return Measured(
        recall_1=round(mean[0], 4),
        recall_5=round(mean[1], 4),
        recall_10=round(mean[2], 4),
        mrr_10=round(mean[3], 4),
        ndcg_10=round(mean[4], 4),
        build_s=round(build, 3),
        p50_ms=_at(spent, 0.5),
        p99_ms=_at(spent, 0.99),
        tools=len(specs),
        queries=len(queries),
    )


def _numbered(lines: Iterable[str | bytes], kind: type[_Line]) -> Iterator[tuple[int, _Line]]:
    """Yield what each line is, with its number; some editors begin a file with a mark that is no part of it."""
    for number, line in enumerate(lines, 1):
        try:
            text = (line.encode() if isinstance(line, str) else line).removeprefix(BOM_UTF8 if number == 1 else b"")
            if text.strip():
                yield number, msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise EvaluationError(f"Line {number} cannot be read: {str(error).rstrip('.')}.") from error


def _ask(index: Index, queries: Sequence[LabelledQuery], ids: dict[str, str]) -> tuple[list[list[str]], list[float]]:
    """Return the ids that were found for every question, and the milliseconds that each took."""
    ranks: list[list[str]] = []
    spent: list[float] = []
    for query in queries:
        began = time.process_time()
        found = index.search(query.query, allows=_anything, limit=_DEPTH)
        spent.append((time.process_time() - began) * 1000)
        ranks.append([ids[hit.spec.name] for hit in found.hits])
    return ranks, spent


def _anything(_: ToolSpec) -> bool:
    return True


def _specs(tools: Sequence[LabelledTool]) -> dict[str, ToolSpec]:
    """Return the tools as specs by id; one whose name is taken gets a number behind it."""
    specs: dict[str, ToolSpec] = {}
    taken: dict[str, int] = {}
    for tool in tools:
        name, again = tool.name, taken.get(tool.name, 0)
        while name in taken:
            again += 1
            name = f"{tool.name}_{again + 1}"
        taken[tool.name] = again
        taken.setdefault(name, 0)
        specs[tool.id] = ToolSpec(
            name=name,
            description=tool.description or "",
            input_schema=tool.input_schema or {},
            operation=Operation.COMMAND,
            source=tool.namespace or "",
            tags=tool.tags or (),
        )
    return specs


def _marks(found: Sequence[str], query: LabelledQuery) -> tuple[float, float, float, float, float]:
    """Return recall at 1, 5 and 10, the reciprocal rank and the discounted gain of one answer."""
    relevant = set(query.relevant)
    places = [place for place, number in enumerate(dict.fromkeys(found)) if number in relevant]
    recall = [sum(place < depth for place in places) / len(relevant) for depth in (1, 5, _DEPTH)]
    best = sum(1 / math.log2(place + 2) for place in range(min(len(relevant), _DEPTH)))
    gain = sum(1 / math.log2(place + 2) for place in places)
    return (recall[0], recall[1], recall[2], 1 / (places[0] + 1) if places else 0.0, gain / best)


def _at(spent: Sequence[float], share: float) -> float:
    return round(sorted(spent)[min(len(spent) - 1, int(len(spent) * share))], 3) if spent else 0.0
