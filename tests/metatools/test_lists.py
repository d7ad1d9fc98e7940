from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure, made

from callyard import Caller, Operation, Profile, Toolset, Yard
from callyard.testing import FakeProvider

QUERIES = Toolset(name="queries", operations=(Operation.QUERY,), description="Only looking.")
MAIL = Toolset(name="mail", sources=("post",), deny=("post_0*",))
PROFILE = Profile(name="p", toolsets=(QUERIES, MAIL))


def post() -> FakeProvider:
    tools = [
        made(f"post_{n:02}", "Post it.", operation=Operation.DESTROY if n % 4 == 0 else Operation.COMMAND)
        for n in range(25)
    ]
    return FakeProvider("post", tools)


async def every(yard: Yard, name: str, key: str, /, **given: Any) -> list[Any]:
    found: list[Any] = []
    while True:
        page = await ask(yard, name, **given)
        found += page[key]
        if "next_cursor" not in page:
            assert page["total"] == len(found)
            return found
        given["cursor"] = page["next_cursor"]


async def test_every_tool_is_on_one_page_whatever_the_filter() -> None:
    async with Yard(tools=[Bench()], providers=[post()]) as yard:
        every_tool = await every(yard, "list_tools", "tools", limit=4)
        destroying = await every(yard, "list_tools", "tools", limit=2, operation="destroy")
        posting = await every(yard, "list_tools", "tools", limit=3, namespace="post", operation="destroy")
        about = await every(yard, "list_tools", "tools", namespace="metatools")

    assert len(every_tool) == 30
    assert len(destroying) == 8
    assert [line["signature"] for line in posting] == [f"post_{n:02}()" for n in range(0, 25, 4)]
    assert len(about) == 14


async def test_namespaces_are_counted() -> None:
    async with Yard("depot", tools=[Bench()], providers=[post()]) as yard:
        spaces = await every(yard, "list_namespaces", "namespaces", limit=1)

    assert spaces == [{"namespace": "depot", "tools": 5}, {"namespace": "post", "tools": 25}]


async def test_toolsets_are_those_of_the_caller() -> None:
    async with Yard("depot", tools=[Bench()], providers=[post()], profile=PROFILE) as yard:
        sets = await every(yard, "list_toolsets", "toolsets", limit=1)
        mail = await ask(yard, "describe_toolset", name="mail")
        tools = await every(yard, "describe_toolset", "tools", name="queries", limit=2)
        missing = failure(await yard.call("describe_toolset", {"name": "mails"}))
    async with Yard("depot", tools=[Bench()], profiles=[PROFILE]) as yard:
        none = await every(yard, "list_toolsets", "toolsets")

    assert sets == [{"name": "mail", "description": ""}, {"name": "queries", "description": "Only looking."}]
    assert (mail["rules"], mail["total"]) == ({"sources": ["post"]}, 15)
    assert [line["signature"].partition("(")[0] for line in tools] == ["add", "echo", "fail"]
    assert (missing.code, missing.next_actions) == ("not_found", ("list_toolsets()",))
    assert none == []


@every_row("name", ["list_tools", "list_namespaces", "list_toolsets"])
@every_row("arguments", [{"limit": 0}, {"limit": 10**9}, {"cursor": "x"}, {"cursor": ""}, {"page": 2}], ids=str)
async def test_a_list_that_cannot_be_made_is_refused(name: str, arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        error = failure(await yard.call(name, arguments))

    assert (error.code, error.may_have_run) == ("invalid_input", False)
    assert error.next_actions


async def test_a_namespace_that_there_is_not_is_named_with_what_was_meant() -> None:
    async with Yard(providers=[post()]) as yard:
        error = failure(await yard.call("list_tools", {"namespace": "posts"}))

    assert (error.code, error.details["issues"][0]["did_you_mean"]) == ("invalid_input", "post")


async def test_a_page_of_tools_that_changed_is_refused() -> None:
    provider = post()
    async with Yard(providers=[provider]) as yard:
        cursor = (await ask(yard, "list_tools", limit=5))["next_cursor"]
        provider.change([made("other")])
        error = failure(await yard.call("list_tools", {"limit": 5, "cursor": cursor}))

    assert error.details["issues"][0]["code"] == "stale_cursor"


async def test_a_toolset_does_not_tell_what_it_denies() -> None:
    hidden = Toolset(
        name="safe", deny=("wipe",), deny_tags=("secret",), deny_sources=("post",), deny_operations=(Operation.EVAL,)
    )
    async with Yard(
        "depot", tools=[Bench()], providers=[post()], profile=Profile(name="safe", toolsets=(hidden,))
    ) as yard:
        data = await ask(yard, "describe_toolset", name="safe")

    assert data["rules"] == {"deny_operations": ["eval"]}
    assert not {word for word in ("wipe", "secret", "post") if word in str(data)}


@every_row(
    ("name", "arguments"),
    [
        ("read_result", {"handle": "r" * 100_000}),
        ("list_tools", {"namespace": "n" * 100_000}),
        ("search_tools", {"query": "add", "namespace": "n" * 100_000}),
        ("describe_toolset", {"name": "t" * 100_000}),
        ("describe_tool", {"tool_id": "t" * 100_000}),
        ("list_tools", {"l" * 100_000: 1}),
    ],
)
async def test_a_refusal_does_not_repeat_what_is_long(name: str, arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()]) as yard:
        answer = await yard.call(name, arguments)

    assert failure(answer).blame == "caller"
    assert len(answer.to_json()) < 3000


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_tools", {"query": " "}),
        ("search_tools", {"query": "add", "namespace": "nowhere"}),
        ("describe_toolset", {"name": "nothing"}),
    ],
)
async def test_a_refusal_names_only_metatools_that_are_there(name: str, arguments: dict[str, Any]) -> None:
    without = Profile(name="few", toolsets=(Toolset(name="few", deny=("list_*",)),))
    everything = Profile(name="all", toolsets=(Toolset(name="all"),))
    async with Yard(tools=[Bench()], profiles=[without, everything]) as yard:
        refusal = failure(await yard.call(name, arguments, caller=Caller(profile=everything)))
        denied = failure(await yard.call(name, arguments, caller=Caller(profile=without)))
    async with Yard(
        tools=[Bench(), made("list_tools"), made("list_namespaces"), made("list_toolsets")], metatools=[name]
    ) as yard:
        absent = failure(await yard.call(name, arguments))

    assert any("list_" in action for action in refusal.next_actions)
    for error in (denied, absent):
        assert not any("list_" in action for action in error.next_actions)
        assert "list_" not in error.hint


async def test_an_unknown_namespace_is_answered_with_some_that_there_are() -> None:
    async with Yard(
        providers=[FakeProvider(f"source_{letter}", [made(f"tool_{letter}")]) for letter in "abcdefghijkl"]
    ) as yard:
        many = failure(await yard.call("search_tools", {"query": "x", "namespace": "zz"}))
        near = failure(await yard.call("search_tools", {"query": "x", "namespace": "source_q"}))
    async with Yard() as yard:
        none = failure(await yard.call("search_tools", {"query": "x", "namespace": "zz"}))

    assert many.message.startswith("There is no namespace 'zz'. Known: 'source_a', 'source_b'")
    assert many.message.endswith("'source_h' and 4 more.")
    assert "Did you mean" in near.message
    assert none.message == "There is no namespace 'zz'."
