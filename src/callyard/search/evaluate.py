"""Evaluation: recall, rank and speed of a search strategy on labelled queries."""

import math
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, Final, TypeVar

import msgspec

from callyard.model.spec import Operation, ToolSpec
from callyard.search.hits import QUERIES
from callyard.search.index import Index, make_index
from callyard.search.learned import LearnedOrder, Uses, add_use, query_stems
from callyard.search.lexical import split_clauses
from callyard.search.settings import SearchSettings

__all__ = ["Evaluation", "EvaluationError", "LabelledQuery", "LabelledTool", "evaluate", "read_queries", "read_tools"]

_DEPTH: Final = 10
_METRICS: Final = ("recall_1", "recall_5", "recall_10", "mrr_10", "ndcg_10")
_Line = TypeVar("_Line", bound=msgspec.Struct)


class EvaluationError(ValueError):
    """A line of the labelled tools or queries cannot be read; the message names it."""


class LabelledTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a labelled set; its schema need not be valid."""

    id: str
    name: str
    namespace: str | None = None
    description: str | None = None
    tags: tuple[str, ...] | None = None
    input_schema: dict[str, Any] | None = None


class LabelledQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query and the ids of the tools that answer it."""

    query: str
    relevant: tuple[str, ...]
    id: str = ""

    def __post_init__(self) -> None:
        if not self.relevant:
            raise ValueError("'relevant' must name a tool")


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The mean quality over all queries, and the processor time of building and searching.

    The learned values are those of a replay: what each query finds after the tools of those before it were called.
    """

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
    learned_recall_1: float | None = msgspec.field(default=None, name="learned_recall@1")
    learned_recall_5: float | None = msgspec.field(default=None, name="learned_recall@5")
    learned_recall_10: float | None = msgspec.field(default=None, name="learned_recall@10")
    learned_mrr_10: float | None = msgspec.field(default=None, name="learned_mrr@10")
    learned_ndcg_10: float | None = msgspec.field(default=None, name="learned_ndcg@10")


def read_tools(lines: Iterable[str | bytes]) -> list[LabelledTool]:
    """Return the tools of a file with one JSON object a line.

    Raises:
        EvaluationError: A line is no tool, or repeats an id.
    """
    tools: dict[str, LabelledTool] = {}
    for number, tool in _numbered(lines, LabelledTool):
        if tool.id in tools:
            raise EvaluationError(f"Line {number} has the id '{tool.id}', which a line before it has already.")
        tools[tool.id] = tool
    return list(tools.values())


def read_queries(lines: Iterable[str | bytes]) -> list[LabelledQuery]:
    """Return the queries of a file with one JSON object a line.

    Raises:
        EvaluationError: A line is no query, or names no relevant tool.
    """
    return [query for _, query in _numbered(lines, LabelledQuery)]


def evaluate(
    tools: Sequence[LabelledTool],
    queries: Sequence[LabelledQuery],
    settings: SearchSettings | None = None,
    *,
    split: bool = False,
    replay: bool = False,
) -> Evaluation:
    """Return the quality and speed of the settings' strategy on the queries.

    With `split` the clauses of a query are searched as several queries. With `replay` they are asked in order once
    more, and the relevant tools that each one finds count as called after it.
    """
    specs = _specs(tools)
    started = time.process_time()
    index = make_index(settings)
    for spec in specs.values():
        index.add(spec)
    index.prepare()
    build = time.process_time() - started
    ids = {spec.name: tool_id for tool_id, spec in specs.items()}
    ranks, durations = _search_all(index, queries, ids, split=split)
    means = dict(zip(_METRICS, _means(ranks, queries), strict=True))
    if replay:
        learned, _ = _search_all(index, queries, ids, split=split, uses={})
        names = (f"learned_{metric}" for metric in _METRICS)
        means |= dict(zip(names, _means(learned, queries), strict=True))
    return Evaluation(
        **means,
        build_s=round(build, 3),
        p50_ms=_percentile(durations, 0.5),
        p99_ms=_percentile(durations, 0.99),
        tools=len(specs),
        queries=len(queries),
    )


def _means(ranks: Sequence[Sequence[str]], queries: Sequence[LabelledQuery]) -> list[float]:
    columns = zip(*map(_metrics, ranks, queries), strict=True)
    return [round(sum(column) / len(queries), 4) for column in columns] or [0.0] * len(_METRICS)


def _numbered(lines: Iterable[str | bytes], kind: type[_Line]) -> Iterator[tuple[int, _Line]]:
    """Yield each line decoded, with its number; some editors begin a file with a byte-order mark."""
    for number, line in enumerate(lines, 1):
        try:
            text = (line.encode() if isinstance(line, str) else line).removeprefix(BOM_UTF8 if number == 1 else b"")
            if text.strip():
                yield number, msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise EvaluationError(f"Line {number} cannot be read: {str(error).rstrip('.')}.") from error


def _search_all(
    index: Index, queries: Sequence[LabelledQuery], ids: dict[str, str], *, split: bool, uses: Uses | None = None
) -> tuple[list[list[str]], list[float]]:
    """Return the ids that each query found, and the milliseconds that it took; each adds to `uses`."""
    ranks: list[list[str]] = []
    durations: list[float] = []
    for query in queries:
        started = time.process_time()
        order = None if uses is None else LearnedOrder(uses)
        clauses = split_clauses(query.query)[:QUERIES] if split else []
        if clauses:
            fused, _ = index.search_several(clauses, allows=lambda _: True, order=order)
            hits = [one.hit for one in fused[:_DEPTH]]
        else:
            hits = index.search(query.query, allows=lambda _: True, limit=_DEPTH, order=order).hits
        durations.append((time.process_time() - started) * 1000)
        ranks.append([ids[hit.spec.name] for hit in hits])
        if uses is not None:
            called = [hit.spec.name for hit in hits if ids[hit.spec.name] in query.relevant]
            for name, word in product(called, query_stems(query.query)):
                add_use(uses, word, name)
    return ranks, durations


def _specs(tools: Sequence[LabelledTool]) -> dict[str, ToolSpec]:
    """Return the tools as specs by id; a name that repeats gets a number appended."""
    specs: dict[str, ToolSpec] = {}
    used: dict[str, int] = {}
    for tool in tools:
        name, repeats = tool.name, used.get(tool.name, 0)
        while name in used:
            repeats += 1
            name = f"{tool.name}_{repeats + 1}"
        used[tool.name] = repeats
        used.setdefault(name, 0)
        specs[tool.id] = ToolSpec(
            name=name,
            description=tool.description or "",
            input_schema=tool.input_schema or {},
            operation=Operation.COMMAND,
            source=tool.namespace or "",
            tags=tool.tags or (),
        )
    return specs


def _metrics(found: Sequence[str], query: LabelledQuery) -> tuple[float, float, float, float, float]:
    """Return recall at 1, 5 and 10, the reciprocal rank and the discounted gain of one query."""
    relevant = set(query.relevant)
    ranks = [rank for rank, tool_id in enumerate(dict.fromkeys(found)) if tool_id in relevant]
    recall = [sum(rank < depth for rank in ranks) / len(relevant) for depth in (1, 5, _DEPTH)]
    best = sum(1 / math.log2(rank + 2) for rank in range(min(len(relevant), _DEPTH)))
    gain = sum(1 / math.log2(rank + 2) for rank in ranks)
    return (recall[0], recall[1], recall[2], 1 / (ranks[0] + 1) if ranks else 0.0, gain / best)


def _percentile(durations: Sequence[float], share: float) -> float:
    return round(sorted(durations)[min(len(durations) - 1, int(len(durations) * share))], 3) if durations else 0.0
