"""The catalogue: hundreds of tools that can be published, called and found."""

import re
from collections import Counter
from pathlib import Path

import pytest

from toolyard import Operation
from toolyard.demo.tools import FILE, Entry, read_catalogue
from toolyard.dispatch.tool import Tool, check_by_schema, check_tool
from toolyard.model.limits import Limits
from toolyard.search.evaluate import evaluate, read_queries, read_tools

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


def test_the_pages_count_them_right(entries: list[Entry]) -> None:
    page, changes = (ROOT / "docs" / "guides" / "demo.md").read_text(), (ROOT / "CHANGELOG.md").read_text()

    assert re.findall(r"(\d+)\s+tools", page) == [str(len(entries))]
    assert re.findall(r"(\d+) invented services", page) == [str(len({entry.namespace for entry in entries}))]
    assert f"a yard with {len(entries)} invented" in changes


def test_each_tool_can_be_published_as_one_of_our_own(entries: list[Entry]) -> None:
    for entry in entries:
        check_tool(Tool(spec=entry.spec(), handler=nothing, check=check_by_schema(entry.input_schema)), Limits())


def test_what_is_written_down_names_arguments_and_reasons_that_there_are(entries: list[Entry]) -> None:
    for entry in entries:
        for canned in entry.canned:
            assert set(canned.when) <= set(entry.input_schema["properties"]), entry.id
            if canned.fails is not None:
                assert set(canned.fails.details) == set(entry.reasons[canned.fails.reason].details), entry.id


def test_most_questions_of_people_are_answered_among_the_first_five() -> None:
    with FILE.open("rb") as tools, QUERIES.open("rb") as queries:
        measured = evaluate(read_tools(tools), read_queries(queries))

    assert measured.recall_5 >= 0.75
