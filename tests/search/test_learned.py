from itertools import chain
from pathlib import Path

from callyard import Operation, ToolSpec
from callyard.search import Hit, make_index
from callyard.search.evaluate import LabelledQuery, LabelledTool, evaluate, read_queries, read_tools
from callyard.search.learned import LearnedOrder, Uses, add_use, query_stems

ROOT = Path(__file__).parents[2]
DEMO_TOOLS = ROOT / "src/callyard/demo/catalogue.jsonl"
DEMO_QUERIES = ROOT / "tests/demo/queries.jsonl"
METRICS = ("recall_1", "recall_5", "recall_10", "mrr_10", "ndcg_10")


def made(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", input_schema={}, operation=Operation.QUERY)


def hit(name: str, score: float) -> Hit:
    return Hit(made(name), score, "")


def ordered(uses: Uses, query: str, **scores: float) -> list[str]:
    return [found.spec.name for found in LearnedOrder(uses)(query, [hit(*pair) for pair in scores.items()])]


def test_only_near_ties_trade_places() -> None:
    uses: Uses = {"order": {"b": 1, "c": 9, "d": 9}}

    assert ordered(uses, "orders", a=10.0, b=9.6, c=9.4, d=9.3) == ["b", "a", "c", "d"]
    assert ordered(uses, "orders", a=0.0, b=0.0) == ["a", "b"]
    assert ordered({"b": {"c": 1}}, "b", b=5.0, c=5.0) == ["b", "c"]
    assert ordered(uses, "archive old orders", a=5.0, b=5.0) == ["a", "b"], "one word of three is too little"
    assert ordered({}, "orders", a=5.0, b=5.0) == ["a", "b"]


def test_values_and_common_words_are_not_kept() -> None:
    asked = "please list orders of ada@example.com with 'my secret' from https://x.example/a and id 4711"

    assert query_stems(asked) == ("list", "order", "id")
    assert len(query_stems(" ".join(chr(97 + n) * 3 + "orders" for n in range(26)))) == 16


def test_counts_are_bounded_and_newer_ones_count_more() -> None:
    uses: Uses = {}
    for number in range(40):
        add_use(uses, "order", f"t{number}")
    assert len(uses["order"]) == 16
    assert "t39" in uses["order"]
    for _ in range(100):
        add_use(uses, "order", "t39")

    assert sum(uses["order"].values()) <= 64
    assert list(uses["order"]) == ["t39"]


def measured(queries: list[LabelledQuery]) -> list[tuple[float, float]]:
    """Return each value without learning and with it."""
    tools = read_tools(DEMO_TOOLS.read_text().splitlines())
    result = evaluate(tools, queries, replay=True)
    return [(getattr(result, name), getattr(result, f"learned_{name}")) for name in METRICS]


def test_a_replay_of_the_demos_queries_is_never_worse_and_better_when_they_are_asked_again() -> None:
    queries = read_queries(DEMO_QUERIES.read_text().splitlines())

    once, again, turned = measured(queries), measured(queries * 3), measured(queries[::-1] * 2)

    for before, after in chain(once, again, turned):
        assert after >= before
    assert again[0][1] > again[0][0]


def test_a_replay_of_split_queries_is_measured_too() -> None:
    tools = [LabelledTool(id=name, name=name, description="Archive old orders.") for name in ("a", "b")]
    queries = [LabelledQuery(query="archive the orders and then archive old orders", relevant=("b",))] * 2

    assert evaluate(tools, queries, split=True, replay=True).learned_recall_1 == 0.5


def test_pages_of_a_learned_order_hold_every_tool_once_beyond_what_is_reordered() -> None:
    index = make_index()
    for number in range(130):
        index.add(made(f"archive_orders_q{chr(97 + number // 26)}{chr(97 + number % 26)}"))
    order = LearnedOrder({"archiv": {"archive_orders_qab": 3}, "order": {"archive_orders_qab": 3}})

    plain = index.search("archive orders", allows=lambda _: True, limit=200)
    pages = [
        index.search("archive orders", allows=lambda _: True, offset=offset, limit=20, order=order)
        for offset in range(0, 140, 20)
    ]

    found = [one.spec.name for one in chain.from_iterable(one.hits for one in pages)]
    assert sorted(found) == sorted(one.spec.name for one in plain.hits)
    assert found[0] == "archive_orders_qab"
    assert [one.more for one in pages] == [True] * 6 + [False]
    assert [one.total for one in pages] == [None] * 6 + [plain.total]
