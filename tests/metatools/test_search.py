import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure, made

from callyard import Operation, Profile, Toolset, Yard
from callyard.dispatch.tool import Tool
from callyard.search import SearchSettings
from callyard.testing import FakeProvider

TEXT = {"type": "string"}
NOUNS = (
    "issue",
    "branch",
    "invoice",
    "message",
    "channel",
    "page",
    "calendar event",
    "contact",
    "file",
    "folder",
    "order",
    "customer",
)
VERBS = ("create", "list", "delete", "update", "search", "archive", "export", "share", "merge", "assign")


def many() -> list[Tool]:
    """Return tools as they are found in the wild: several parameters, a text of a few sentences."""
    found: list[Tool] = []
    for noun in NOUNS:
        for verb in VERBS:
            word = noun.replace(" ", "_")
            properties = {
                "owner": {**TEXT, "description": "Who it belongs to."},
                f"{word}_id": {**TEXT, "description": f"Which {noun} it is about."},
                "state": {"enum": ["open", "closed", "all"]},
                "page": {"type": "integer", "minimum": 1},
                "labels": {"type": "array", "items": TEXT},
            }
            text = (
                f"{verb.capitalize()} a {noun} of the workspace that belongs to the given owner. "
                f"Needs the right to {verb}. May be slow."
            )
            found.append(made(f"{word}s__{verb}_{word}", text, properties=properties))
    return found


async def test_a_hit_is_a_signature_a_line_and_a_reason() -> None:
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(yard, "search_tools", query="open a ticket")

    assert data["hits"][0]["signature"] == "open_ticket(title: str, labels?: list[str]|None) -> object"
    assert data["hits"][0]["description"] == "Open a ticket for a customer."
    assert data["hits"][0]["why"]
    assert "input_schema" not in data["hits"][0]


async def test_schemas_come_only_when_asked_for() -> None:
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(yard, "search_tools", query="add numbers", detail="schema", limit=1)

    assert data["hits"][0]["tool_id"] == "add"
    assert data["hits"][0]["input_schema"]["required"] == ["a"]
    assert data["hits"][0]["output_schema"] == {"type": "integer"}


async def test_five_hits_are_cheap_to_read() -> None:
    async with Yard(tools=many()) as yard:
        costs = [
            (await yard.call("search_tools", {"query": f"{verb} {noun}"})).meta.estimated_tokens
            for noun in NOUNS
            for verb in VERBS
        ]

    assert statistics.median(costs) <= 350


async def test_pages_follow_each_other_without_gap_or_repetition() -> None:
    async with Yard(tools=many()) as yard:
        seen: list[str] = []
        given: dict[str, Any] = {"query": "create something", "limit": 7}
        while True:
            data = await ask(yard, "search_tools", **given)
            seen += [hit["signature"] for hit in data["hits"]]
            if "next_cursor" not in data:
                break
            given["cursor"] = data["next_cursor"]

    assert len(seen) == len(set(seen)) == data["total"]
    assert len(seen) >= len(NOUNS)


async def test_a_search_can_be_narrowed() -> None:
    tools = [made("a_mail", "Send mail."), made("b_mail", "Delete mail.", operation=Operation.DESTROY)]
    async with Yard(tools=[made("mail", "Write mail.")], providers=[FakeProvider("post", tools)]) as yard:
        by_name = await ask(yard, "search_tools", query="mail", namespace="post")
        by_operation = await ask(yard, "search_tools", query="mail", operation="destroy")

    assert {hit["signature"] for hit in by_name["hits"]} == {"a_mail()", "b_mail()"}
    assert [hit["signature"] for hit in by_operation["hits"]] == ["b_mail()"]


async def test_nothing_is_found_where_nothing_fits_and_it_says_where_to_look() -> None:
    async with Yard("depot", tools=[Bench()]) as yard:
        data = await ask(yard, "search_tools", query="sourdough recipes")
    async with Yard("depot", tools=[Bench()], metatools=["search_tools"]) as yard:
        alone = await ask(yard, "search_tools", query="sourdough recipes")

    assert (data["hits"], data["closest"]) == ([], ["depot"])
    assert "list_tools" in data["hint"]
    assert "list_tools" not in alone["hint"]


@every_row("query", [".*", "(((", "[a-z]+$", "\\", "%s {0}", "emoji 🎉 ticket"])
async def test_a_pattern_in_a_query_is_only_text(query: str) -> None:
    async with Yard(tools=[Bench()]) as yard:
        await ask(yard, "search_tools", query=query)


@every_row(
    "arguments",
    [
        {},
        {"query": ""},
        {"query": " \n\t"},
        {"query": "x" * 2001},
        {"query": "ticket\x00"},
        {"query": "ticket\x1b[31m"},
        {"query": "ticket\x85"},
        {"query": "ticket", "limit": 0},
        {"query": "ticket", "limit": 10**9},
        {"query": "ticket", "detail": "everything"},
        {"query": "ticket", "operation": "dance"},
        {"query": "ticket", "namespace": "nowhere"},
        {"query": "ticket", "cursor": "made up"},
        {"query": "ticket", "cursor": "ÿ"},
        {"query": "ticket", "regex": True},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
async def test_a_search_that_cannot_be_made_is_refused_with_what_to_do(arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call("search_tools", arguments))

    assert (error.code, error.may_have_run) == ("invalid_input", False)
    assert error.next_actions
    assert error.details["issues"]


async def test_a_cursor_is_good_only_for_its_own_question_and_tools() -> None:
    provider = FakeProvider("other")
    narrow = Profile(name="narrow", toolsets=(Toolset(name="t", names=("issues__*", "pages__*")),))
    async with Yard(tools=many(), providers=[provider], profiles=[narrow]) as yard:
        cursor = (await ask(yard, "search_tools", query="create"))["next_cursor"]
        again = await yard.call("search_tools", {"query": "create", "cursor": cursor})
        others = [
            await yard.call("search_tools", {"query": "delete", "cursor": cursor}),
            await yard.call("search_tools", {"query": "create", "limit": 6, "cursor": cursor}),
            await yard.call("search_tools", {"query": "create", "operation": "query", "cursor": cursor}),
            await yard.call("list_tools", {"cursor": cursor}),
            await yard.call("search_tools", {"query": "create", "cursor": cursor}, caller=_caller(narrow)),
        ]
        provider.change([made("new", "Create more.")])
        stale = await yard.call("search_tools", {"query": "create", "cursor": cursor})

    assert again.success
    assert [failure(answer).code for answer in (*others, stale)] == ["invalid_input"] * 6
    assert {failure(answer).details["issues"][0]["code"] for answer in (*others, stale)} == {"stale_cursor"}


def _caller(profile: Profile) -> Any:
    from callyard import Caller  # noqa: PLC0415 - only here

    return Caller(profile=profile)


async def test_a_cursor_outlives_a_restart_where_the_secret_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SECRET", "kept")
    async with Yard(tools=many()) as yard:
        cursor = (await ask(yard, "search_tools", query="create"))["next_cursor"]
    async with Yard(tools=many()) as yard:
        assert (await yard.call("search_tools", {"query": "create", "cursor": cursor})).success
    monkeypatch.setenv("CALLYARD_SECRET", "another")
    async with Yard(tools=many()) as yard:
        assert failure(await yard.call("search_tools", {"query": "create", "cursor": cursor})).code == "invalid_input"


async def test_a_cursor_is_good_only_for_the_settings_that_it_was_given_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(settings: SearchSettings | None = None, **given: str) -> Any:
        async with Yard(tools=many(), state_dir=str(tmp_path), search=settings or SearchSettings()) as yard:
            return await yard.call("search_tools", {"query": "create", **given})

    cursor = (await asked()).data["next_cursor"]
    same = await asked(SearchSettings(strategy=" Lexical"), cursor=cursor)
    others = [
        await asked(SearchSettings(strategy="bm25"), cursor=cursor),
        await asked(SearchSettings(bm25_name_weight=5), cursor=cursor),
    ]
    monkeypatch.setenv("CALLYARD_SEARCH_BM25_TAG_WEIGHT", "5")
    others.append(await asked(cursor=cursor))

    assert same.success
    assert [failure(answer).details["issues"][0]["code"] for answer in others] == ["stale_cursor"] * 3


async def test_without_a_given_secret_the_state_directory_decides_who_takes_a_cursor(tmp_path: Path) -> None:
    here, elsewhere = str(tmp_path / "here"), str(tmp_path / "elsewhere")
    async with Yard(tools=many(), state_dir=here) as yard:
        cursor = (await ask(yard, "search_tools", query="create"))["next_cursor"]
    outcomes: list[bool] = []
    for place in (here, elsewhere):
        async with Yard(tools=many(), state_dir=place) as yard:
            outcomes.append((await yard.call("search_tools", {"query": "create", "cursor": cursor})).success)

    assert outcomes == [True, False]


def is_there(path: Path) -> bool:
    return path.exists()


async def test_a_yard_that_seals_nothing_keeps_no_secret(tmp_path: Path) -> None:
    async with Yard(tools=many(), state_dir=str(tmp_path)) as yard:
        await ask(yard, "search_tools", query="create", limit=100)

    assert not is_there(tmp_path / "secret")


async def test_a_tool_published_later_is_found_and_a_withdrawn_one_is_not() -> None:
    provider = FakeProvider("other", [made("old", "Bake bread.")])
    async with Yard(providers=[provider]) as yard:
        before = await ask(yard, "search_tools", query="bake bread")
        provider.change([made("new", "Brew coffee.")])
        gone = await ask(yard, "search_tools", query="bake bread")
        there = await ask(yard, "search_tools", query="brew coffee")

    assert [hit["signature"] for hit in before["hits"]] == ["old()"]
    assert gone["hits"] == []
    assert [hit["signature"] for hit in there["hits"]] == ["new()"]


async def test_metatools_that_are_not_listed_are_found() -> None:
    async with Yard(tools=[Bench()]) as yard:
        data = await ask(yard, "search_tools", query="list the namespaces that tools come from")

    assert data["hits"][0]["signature"].startswith("list_namespaces(")
    assert "call_tool(" not in str(data)


async def test_a_strategy_that_cannot_be_had_fails_when_the_yard_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SEARCH_STRATEGY", "made_up")
    with pytest.raises(ValueError, match="made_up"):
        async with Yard(tools=[Bench()]):
            pass
    async with Yard(tools=[Bench()], metatools=["run_tool"]) as yard:
        assert (await yard.call("run_tool", {"tool_id": "wipe"})).success


async def test_the_order_of_hits_does_not_depend_on_the_order_of_tools() -> None:
    tools = many()
    async with Yard(tools=tools) as yard:
        first = await ask(yard, "search_tools", query="share a folder")
    random.Random(7).shuffle(tools)  # noqa: S311 - no secret
    async with Yard(tools=tools) as yard:
        second = await ask(yard, "search_tools", query="share a folder")

    assert first["hits"] == second["hits"]


async def test_several_queries_are_answered_in_one_list_that_says_which_it_serves() -> None:
    async with Yard(tools=many()) as yard:
        alone = [
            (await ask(yard, "search_tools", query=query, limit=1))["hits"][0]["signature"]
            for query in ("archive an invoice", "share a folder", "merge a branch")
        ]
        data = await ask(
            yard, "search_tools", queries=["archive an invoice", "share a folder", "merge a branch"], limit=5
        )

    assert len(data["hits"]) == 5
    served = {hit["signature"]: hit["serves"] for hit in data["hits"]}
    assert [served[signature] for signature in alone] == [[1], [2], [3]]


async def test_one_of_several_queries_finds_what_it_finds_alone() -> None:
    async with Yard(tools=many()) as yard:
        alone = await ask(yard, "search_tools", query="archive an invoice")
        listed = await ask(yard, "search_tools", queries=["archive an invoice"])

    assert [hit["signature"] for hit in listed["hits"]] == [hit["signature"] for hit in alone["hits"]]
    assert "siblings" not in alone


async def test_the_names_of_siblings_stand_beside_the_hits_and_the_whole_stays_short() -> None:
    hidden = Profile(name="few", toolsets=(Toolset(name="few", deny=("*__delete_*",)),))
    by_noun: dict[str, list[Tool]] = {}
    for one in many():
        by_noun.setdefault(one.spec.name.partition("__")[0], []).append(one)
    providers = [FakeProvider(noun, tools) for noun, tools in by_noun.items()]
    async with Yard(providers=providers, profile=hidden) as yard:
        answer = await yard.call("search_tools", {"queries": ["archive an invoice", "share a folder"]})

    hits = {hit["signature"].partition("(")[0] for hit in answer.data["hits"]}
    siblings = answer.data["siblings"]
    assert len(siblings) == 12
    assert not hits & set(siblings)
    assert {name.partition("__")[0] for name in siblings} <= {name.partition("__")[0] for name in hits}
    assert not [name for name in siblings if "delete" in name]
    assert answer.meta.estimated_tokens <= 600


async def test_pages_of_several_queries_follow_each_other() -> None:
    arguments: dict[str, Any] = {"queries": ["archive an invoice", "share a folder"], "limit": 4}
    seen: list[str] = []
    async with Yard(tools=many()) as yard:
        whole = await ask(yard, "search_tools", **{**arguments, "limit": 100})
        for _ in range(3):
            page = await ask(yard, "search_tools", **arguments)
            assert ("siblings" in page) is ("cursor" not in arguments)
            seen += [hit["signature"] for hit in page["hits"]]
            arguments["cursor"] = page["next_cursor"]

    assert seen == [hit["signature"] for hit in whole["hits"]][:12]


async def test_queries_that_fit_nothing_name_the_closest_namespaces() -> None:
    async with Yard(providers=[FakeProvider("workspace", many())]) as yard:
        data = await ask(yard, "search_tools", queries=["xylophone", "zzyzx"])

    assert (data["hits"], data["total"], data["closest"]) == ([], 0, ["workspace"])


async def test_a_search_takes_one_query_or_several_of_at_most_eight() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({}, "query"),
        ({"query": "a", "queries": ["b"]}, "query"),
        ({"queries": []}, "query"),
        ({"queries": ["fine", "  "]}, "queries.1"),
        ({"queries": ["a"] * 9}, "queries"),
    ]
    async with Yard(tools=many()) as yard:
        answers = [failure(await yard.call("search_tools", arguments)) for arguments, _ in rows]

    assert [answer.code for answer in answers] == ["invalid_input"] * len(rows)
    assert [answer.details["issues"][0]["field"] for answer in answers] == [field for _, field in rows]
