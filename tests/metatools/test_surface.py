import json
import re
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row
from ticket_tools import Bench, ask, failure, made
from tokenizers import Tokenizer

from callyard import Limits, Operation, Profile, Surface, Toolset, Yard
from callyard.dispatch.call import Caller
from callyard.metatools import METATOOL_NAMES, metatool_instructions
from callyard.model.profile import METATOOLS, cost
from callyard.testing import FakeProvider
from callyard.transports.memory import Memory

LISTED = ["describe_tool", "read_result", "run_chain", "run_tool", "search_tools"]
LISTED_TOKENS, ESTIMATED_TOKENS = 1030, 813
"""The cost of the list. Lower it when the list becomes cheaper; raise it only for a gain that every agent has."""
GROWTH = 1.03
SHORT = Profile(name="short", surface=Surface.META, pins=("add",))
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def names(yard: Yard, profile: Profile | None = None) -> list[str]:
    return [spec.name for spec in yard.list(profile)]


async def answer_to(
    yard: Yard, method: str, params: dict[str, Any] | None = None, *, profile: Profile | None = None, meta: Any = META
) -> Any:
    async with Memory(caller=Caller(profile=profile)).open(yard) as memory:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**(params or {}), "_meta": meta}}
        memory.send(json.dumps(request).encode())
        return json.loads(await memory.received.get())


async def test_few_tools_are_listed_as_they_are_and_metatools_can_be_called_all_the_same() -> None:
    async with Yard(tools=[Bench()]) as yard:
        assert names(yard) == ["add", "echo", "fail", "open_ticket", "wipe"]
        assert await ask(yard, "run_tool", tool_id="wipe") == "gone"


async def test_many_tools_are_replaced_by_five_metatools_and_the_pins() -> None:
    async with Yard(tools=[Bench()], limits=Limits(listed_tokens=10)) as yard:
        assert names(yard) == LISTED
        assert names(yard, SHORT) == ["add", *LISTED]
        assert names(yard, Profile(name="d", surface=Surface.DIRECT)) == ["add", "echo", "fail", "open_ticket", "wipe"]


async def test_a_profile_that_lets_little_through_has_its_metatools_all_the_same() -> None:
    profile = Profile(
        name="p", surface=Surface.META, toolsets=(Toolset(name="t", names=("add",), operations=(Operation.QUERY,)),)
    )
    async with Yard(tools=[Bench()], profile=profile) as yard:
        assert names(yard) == LISTED
        listed = await ask(yard, "list_tools")

    assert [line["signature"].partition("(")[0] for line in listed["tools"]] == ["add"]


def tokens(text: str) -> int:
    """Count as a language model does: the tokenizer of Llama 2, which an installed package holds."""
    package = find_spec("wordllama")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "tokenizers" / "l2_supercat_tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


async def test_the_short_list_and_the_instructions_cost_no_more_than_they_did() -> None:
    async with Yard(profile=Profile(name="m", surface=Surface.META)) as yard:
        estimated = cost(yard.list())
        whole = await answer_to(yard, "tools/list")
    shown = [{key: value for key, value in item.items() if key != "_meta"} for item in whole["result"]["tools"]]
    listed = tokens(json.dumps(shown, separators=(",", ":")))  # clients keep '_meta' from models

    assert estimated <= ESTIMATED_TOKENS * GROWTH <= 1200
    assert listed <= LISTED_TOKENS * GROWTH <= 1200
    assert tokens(metatool_instructions(LISTED)) < 150


async def test_the_short_list_is_cheap() -> None:
    async with Yard(tools=[Bench()], profile=Profile(name="m", surface=Surface.META)) as yard:
        listed = yard.list()
        whole = await answer_to(yard, "tools/list")

    assert cost(listed) <= 1200
    assert len(json.dumps(whole["result"]["tools"], separators=(",", ":"))) / 4 <= 1200


async def test_the_instructions_teach_the_way_where_tools_are_not_listed() -> None:
    assert len(metatool_instructions(LISTED)) / 4 < 150
    async with Yard(tools=[Bench()], instructions="Be kind.") as yard:
        long = await answer_to(yard, "server/discover")
        short = await answer_to(yard, "server/discover", profile=SHORT)
        older = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        handshake = await answer_to(yard, "initialize", older, profile=SHORT, meta={})

    assert long["result"]["instructions"] == f"Be kind.\n\n{metatool_instructions(())}"
    assert (
        short["result"]["instructions"]
        == handshake["result"]["instructions"]
        == f"Be kind.\n\n{metatool_instructions(LISTED)}"
    )


async def test_listed_metatools_are_marked_so_that_clients_show_them_at_once() -> None:
    async with Yard(tools=[Bench()]) as yard:
        short = (await answer_to(yard, "tools/list", profile=SHORT))["result"]["tools"]
        long = (await answer_to(yard, "tools/list"))["result"]["tools"]

    assert {item["name"] for item in short if item.get("_meta") == {"anthropic/alwaysLoad": True}} == set(LISTED)
    assert not [item["name"] for item in long if "_meta" in item]


@every_row("count", range(len(LISTED) + 1))
async def test_the_instructions_name_only_what_the_caller_sees(count: int) -> None:
    for some in combinations(LISTED, count):
        denied = tuple(name for name in LISTED if name not in some)
        few = Profile(name="few", surface=Surface.META, toolsets=(Toolset(name="few", deny=denied),))
        async with Yard(tools=[Bench()], profile=few) as yard:
            if_denied = yard.instructions_for(few)
            seen = {spec.name: spec.description for spec in yard.list()}
        async with Yard(tools=[Bench()], metatools=some, profile=Profile(name="short", surface=Surface.META)) as yard:
            if_absent = yard.instructions_for(yard.profile)
            listed = {spec.name: spec.description for spec in yard.list()}

        assert if_denied == if_absent == (metatool_instructions(some) if some else "")
        assert {name for name in METATOOL_NAMES if name in if_absent} == set(some)
        assert not {
            name for name in denied if name in seen.get("search_tools", "") or name in listed.get("search_tools", "")
        }
        assert bool(if_absent) is bool(some)
        assert len(re.findall(r"\.(?: |$)", if_absent)) == (3 if some else 0)
        assert len(if_absent) <= len(metatool_instructions(LISTED))


@every_row(
    ("metatools", "is_short"),
    [
        (["search_tools", "run_tool"], True),
        (["search_tools", "run_chain"], True),
        (["search_tools"], False),
        (["run_tool", "run_chain"], False),
        (["describe_tool", "read_result"], False),
    ],
)
async def test_tools_are_hidden_only_where_they_can_be_found_and_called(
    metatools: list[str], *, is_short: bool
) -> None:
    denied = Toolset(name="few", deny=tuple(name for name in METATOOL_NAMES if name not in metatools))
    for given, profile in ((metatools, Profile(name="all")), (True, Profile(name="few", toolsets=(denied,)))):
        async with Yard(tools=[Bench()], metatools=given, profile=profile, limits=Limits(listed_tokens=10)) as yard:
            assert names(yard) == (sorted(metatools) if is_short else ["add", "echo", "fail", "open_ticket", "wipe"])
            assert bool(yard.instructions_for(profile)) is is_short


async def test_metatools_answer_over_the_wire_too() -> None:
    async with Yard(tools=[Bench()]) as yard:
        answer = await answer_to(
            yard, "tools/call", {"name": "run_tool", "arguments": {"tool_id": "add", "args": {"a": 1}}}
        )

    assert answer["result"]["structuredContent"]["data"] == 2


@every_row("name", METATOOL_NAMES)
async def test_every_metatool_can_be_switched_by_itself(name: str) -> None:
    async with Yard(tools=[Bench()], metatools=[other for other in METATOOL_NAMES if other != name]) as yard:
        assert failure(await yard.call(name, {})).code == "tool_not_found"
    async with Yard(tools=[Bench()], metatools=name) as yard:
        published = {spec.name for spec in yard.registry.visible(yard.profile) if spec.source == METATOOLS}
        assert published - {"call_tool", "get_tool_schema"} == {name}


async def test_without_metatools_there_are_none() -> None:
    async with Yard(tools=[Bench()], metatools=False, limits=Limits(listed_tokens=1)) as yard:
        assert names(yard) == ["add", "echo", "fail", "open_ticket", "wipe"]
        assert failure(await yard.call("search_tools", {"query": "x"})).code == "tool_not_found"


def test_a_metatool_that_there_is_not_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="search_tool"):
        Yard(metatools=["search_tool"])


def test_no_provider_may_pass_for_ours() -> None:
    with pytest.raises(ValueError, match="metatools"):
        Yard(providers=[FakeProvider("metatools")])


async def test_a_metatool_gives_way_to_a_tool_of_its_name() -> None:
    async with Yard("depot", tools=[made("list_tools", "Mine."), made("call_tool", "Mine.")]) as yard:
        assert await ask_plain(yard, "list_tools") == {}
        assert await ask(yard, "run_tool", tool_id="call_tool") == {}


async def ask_plain(yard: Yard, name: str) -> Any:
    return (await yard.call(name)).data


async def test_every_metatool_is_strict_and_says_what_it_answers() -> None:
    async with Yard() as yard:
        specs = [spec for spec in yard.registry.visible(yard.profile) if spec.source == METATOOLS]

    assert {spec.name for spec in specs} == {*METATOOL_NAMES, "call_tool", "get_tool_schema"}
    assert all(spec.input_schema["additionalProperties"] is False and spec.output_schema is not None for spec in specs)


async def test_a_yard_inside_another_does_not_bring_its_metatools() -> None:
    inner = Yard("inner", tools=[Bench()])
    async with Yard("outer", providers=[inner]) as yard:
        assert await ask(yard, "run_tool", tool_id="add", args={"a": 1}) == 2
        spaces = await ask(yard, "list_namespaces")

    assert spaces["namespaces"] == [{"namespace": "inner", "tools": 5}]


@every_row(
    ("name", "arguments"),
    [
        ("search_tools", {"query": "add", "limit": 5.0}),
        ("describe_tool", {"tool_id": "add", "examples_max": 1e0}),
        ("list_tool_examples", {"tool_id": "add", "max": 5.0}),
        ("list_tools", {"limit": 5.0}),
        ("list_namespaces", {"limit": 5.0}),
        ("list_toolsets", {"limit": 5.0}),
        ("describe_toolset", {"name": "all", "limit": 5.0}),
    ],
)
async def test_a_number_with_a_point_is_as_good_as_one_without(name: str, arguments: dict[str, Any]) -> None:
    async with Yard(tools=[Bench()], profile=Profile(name="p", toolsets=(Toolset(name="all"),))) as yard:
        answer = await yard.call(name, arguments)

    assert answer.success, answer.error
