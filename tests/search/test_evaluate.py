import json
from typing import Any

import msgspec
import pytest

from callyard.search import SearchSettings
from callyard.search.evaluate import EvaluationError, evaluate, read_queries, read_tools

TOOLS: list[dict[str, Any]] = [
    {
        "id": "a",
        "name": "weather",
        "description": "Say the weather.",
        "input_schema": {"properties": {"x": {"type": "str, optional"}}},
    },
    {"id": "b", "name": "invoice", "namespace": "billing", "tags": ["money"]},
    {"id": "c", "name": "invoice", "namespace": "billing", "description": "Another."},
    {"id": "d", "name": "invoice_2"},
]
QUERIES: list[dict[str, Any]] = [
    {"id": "1", "query": "weather", "relevant": ["a"]},
    {"id": "2", "query": "invoice", "relevant": ["c", "z"]},
    {"id": "3", "query": "qqqq", "relevant": ["a"]},
    {"id": "4", "query": "weather", "relevant": ["d"]},
]


def lines(rows: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in rows] + [""]


def test_quality_and_cost_are_measured_for_tools_that_may_share_names() -> None:
    measured = evaluate(read_tools(lines(TOOLS)), read_queries(lines(QUERIES)), SearchSettings())

    written = json.loads(msgspec.json.encode(measured))
    assert list(written) == [
        "recall@1",
        "recall@5",
        "recall@10",
        "mrr@10",
        "ndcg@10",
        "build_s",
        "p50_ms",
        "p99_ms",
        "tools",
        "queries",
    ]
    assert (written["tools"], written["queries"]) == (4, 4)
    assert written["recall@5"] == written["recall@10"] == 0.375
    assert written["recall@1"] == 0.25
    assert 0.25 < written["mrr@10"] < 0.5
    assert 0.25 < written["ndcg@10"] < 0.5
    assert written["p50_ms"] <= written["p99_ms"]


def test_nothing_to_ask_is_no_failure() -> None:
    measured = evaluate([], [])

    assert (measured.recall_5, measured.p99_ms, measured.queries) == (0.0, 0.0, 0)


def test_a_line_that_cannot_be_read_is_named() -> None:
    with pytest.raises(EvaluationError, match="Line 2"):
        read_tools(['{"id": "a", "name": "a"}', '{"id": 3}'])
    with pytest.raises(EvaluationError, match="Line 1"):
        read_queries(["no json"])


def test_a_question_that_no_tool_answers_is_refused_by_its_line() -> None:
    with pytest.raises(EvaluationError, match=r"Line 2 .*'relevant'"):
        read_queries(lines([QUERIES[0], {"query": "weather", "relevant": []}]))


def test_an_id_that_two_tools_have_is_refused_by_its_line() -> None:
    with pytest.raises(EvaluationError, match=r"Line 3 .*'a'"):
        read_tools(lines([TOOLS[0], TOOLS[1], {"id": "a", "name": "another"}]))


@pytest.mark.parametrize("mark", ["\ufeff", b"\xef\xbb\xbf"])
def test_the_mark_that_some_editors_begin_a_file_with_is_no_part_of_it(mark: str | bytes) -> None:
    text = json.dumps(TOOLS[0])
    first = mark + text if isinstance(mark, str) else mark + text.encode()

    assert [tool.id for tool in read_tools([first, json.dumps(TOOLS[1])])] == ["a", "b"]
