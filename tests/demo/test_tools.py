"""The yard of the demo: real calls, answers that fit, and failures with their reasons."""

import re
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import callyard.demo
from callyard import Operation, Yard
from callyard.demo.tools import FILE, Entry, list_charges, make_value, make_yard, read_catalogue
from callyard.dispatch.tool import Tool, check_by_schema, check_tool
from callyard.model.limits import Limits
from callyard.model.profile import METATOOLS
from callyard.search.evaluate import evaluate, read_queries, read_tools

REFUSED = [(entry.id, fixed) for entry in read_catalogue() for fixed in entry.fixed_answers if fixed.fails is not None]


@pytest.fixture
async def yard() -> AsyncGenerator[Yard]:
    async with make_yard() as made:
        yield made


def good_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that fit: everything that is required, invented."""
    given: dict[str, Any] = {}
    for name in schema.get("required", []):
        part = schema["properties"][name]
        given[name] = part["minimum"] if "minimum" in part else make_value(part, {}, rows=1, name=name)
    return {**given, **({"month": "2026-02"} if "month" in given else {})}


async def test_every_tool_answers_as_its_schema_says(yard: Yard) -> None:
    for entry in read_catalogue():
        given = good_arguments(entry.input_schema) | (
            {"rows": [{"n": 1}], "column": "n"} if entry.name == "sum_column" else {}
        )
        answer = await yard.call(entry.id, given)

        assert answer.success, (entry.id, given, answer.error)


async def test_the_same_arguments_give_the_same_answer_and_others_another(yard: Yard) -> None:
    first, again, other = [
        (await yard.call("crm__get_contact", {"contact_id": name})).data for name in ("cu_1", "cu_1", "cu_2")
    ]

    assert first == again
    assert first["contact_id"] == "cu_1"
    assert first["name"] != other["name"]


async def test_a_limit_is_respected(yard: Yard) -> None:
    assert len((await yard.call("tracker__search_issues", {"limit": 2})).data) == 2
    assert len((await yard.call("tracker__search_issues", {})).data) == 3


async def test_arguments_are_repeated_in_the_answer(yard: Yard) -> None:
    issues = (await yard.call("tracker__search_issues", {"state": "done", "assignee": "mika"})).data
    refund = (await yard.call("payments__refund_charge", {"charge_id": "ch_1042", "amount_cents": 1500})).data

    assert {(issue["state"], issue["assignee"]) for issue in issues} == {("done", "mika")}
    assert (refund["charge_id"], refund["amount_cents"], refund["refund_id"]) == ("ch_1042", 1500, "re_311")


@pytest.mark.parametrize(("name", "fixed"), REFUSED, ids=[name for name, _ in REFUSED])
async def test_some_tools_fail_with_a_reason_and_nothing_has_run(name: str, fixed: Any, yard: Yard) -> None:
    spec = yard.registry.find(name, yard.profile).spec

    error = (await yard.call(name, {**good_arguments(spec.input_schema), **fixed.when})).error

    assert error is not None
    assert (error.code, error.details["reason"]) == (spec.reasons[fixed.fails.reason].code, fixed.fails.reason)
    assert not error.may_have_run


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("payments__export_charges", {"month": "2026-02"}),
        ("monitoring__tail_logs", {"service": "checkout"}),
        ("database__export_table", {"database": "shop", "table": "orders"}),
    ],
)
async def test_large_results_become_handles(name: str, arguments: dict[str, Any], yard: Yard) -> None:
    assert (await yard.call(name, arguments)).data["status"] == "stored"


async def test_the_export_and_the_payment_agree(yard: Yard) -> None:
    ledger = {charge["charge_id"]: charge for charge in list_charges({"month": "2026-02"})}

    assert (await yard.call("payments__get_charge", {"charge_id": "ch_1042"})).data == ledger["ch_1042"]
    assert {**ledger["ch_1041"], "charge_id": "ch_1042"} == ledger["ch_1042"]


async def test_an_invalid_month_has_no_export(yard: Yard) -> None:
    error = (await yard.call("payments__export_charges", {"month": "2026-13"})).error

    assert error is not None
    assert (error.code, error.details["issues"][0]["field"]) == ("invalid_input", "month")


async def test_tools_for_rows_really_compute(yard: Yard) -> None:
    rows = [{"kind": "a", "cents": 5}, {"kind": "b", "cents": 7}, {"kind": "a", "cents": 5}]

    async def ask(name: str, **arguments: Any) -> Any:
        return (await yard.call(f"tables__{name}", {"rows": rows, **arguments})).data

    assert await ask("sum_column", column="cents") == {"rows": 3, "sum": 17}
    assert await ask("count_by", column="kind") == [{"value": "a", "count": 2}, {"value": "b", "count": 1}]
    assert await ask("filter_rows", column="kind", equals="b") == [rows[1]]
    assert await ask("find_duplicates", columns=["kind", "cents"]) == {
        "rows": 3,
        "groups": 1,
        "duplicates": [{"kind": "a", "cents": 5, "rows": 2}],
    }
    assert await ask("sum_column", column="kind") is None


async def test_the_yard_is_a_target_and_new_each_time() -> None:
    first, second = callyard.demo.yard, callyard.demo.yard

    assert first is not second
    async with first:
        assert METATOOLS in {spec.source for spec in first.list()}
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        callyard.demo.nothing_of_ours  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - the access raises


ROOT = Path(__file__).parent.parent.parent
QUERIES = Path(__file__).with_name("queries.jsonl")


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return read_catalogue()


async def nothing(_: object) -> None:
    """Do nothing."""


def test_it_has_some_hundred_tools_of_many_kinds(entries: list[Entry]) -> None:
    spaces = Counter(entry.namespace for entry in entries)
    operations = Counter(entry.operation for entry in entries)

    assert len({entry.id for entry in entries}) == len(entries) >= 300
    assert len(spaces) >= 20
    assert min(spaces.values()) >= 8
    assert min(operations[kind] for kind in (Operation.QUERY, Operation.COMMAND, Operation.DESTROY)) >= 15
    assert all(entry.id == f"{entry.namespace}__{entry.name}" for entry in entries)


def test_the_documentation_counts_the_tools_correctly(entries: list[Entry]) -> None:
    page, changes = (ROOT / "docs" / "guides" / "demo.md").read_text(), (ROOT / "CHANGELOG.md").read_text()

    assert re.findall(r"(\d+)\s+tools", page) == [str(len(entries))]
    assert re.findall(r"(\d+) invented services", page) == [str(len({entry.namespace for entry in entries}))]
    assert f"a yard with {len(entries)} invented" in changes


def test_each_tool_can_be_published_as_one_of_our_own(entries: list[Entry]) -> None:
    for entry in entries:
        check_tool(Tool(spec=entry.spec(), handler=nothing, check=check_by_schema(entry.input_schema)), Limits())


def test_examples_and_fixed_answers_use_existing_arguments_and_reasons(entries: list[Entry]) -> None:
    for entry in entries:
        for fixed in entry.fixed_answers:
            assert set(fixed.when) <= set(entry.input_schema["properties"]), entry.id
            if fixed.fails is not None:
                assert set(fixed.fails.details) == set(entry.reasons[fixed.fails.reason].details), entry.id


def test_most_questions_of_people_are_answered_among_the_first_five() -> None:
    with FILE.open("rb") as tools, QUERIES.open("rb") as queries:
        measured = evaluate(read_tools(tools), read_queries(queries))

    assert measured.recall_5 >= 0.75
