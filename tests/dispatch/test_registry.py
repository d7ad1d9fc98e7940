import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pydantic import BaseModel
from table_tests import every_row

from callyard import (
    EvalRule,
    Example,
    Limits,
    Profile,
    Prompt,
    PromptSpec,
    PublishError,
    Resource,
    ResourceSpec,
    Surface,
    Tool,
    ToolError,
    Toolset,
    ToolSpec,
    Yard,
    dispatch,
    tool,
)
from callyard.dispatch.call import Call
from callyard.dispatch.registry import Change, Registry, Suggestions
from callyard.dispatch.tool import check_by_schema
from callyard.metatools import METATOOL_NAMES
from callyard.model.envelope import Failure
from callyard.model.profile import EVERYTHING, METATOOLS
from callyard.model.spec import Metatool, Operation
from callyard.testing import FakeProvider

EMPTY: dict[str, Any] = {"type": "object", "additionalProperties": False}
CODE: dict[str, Any] = {**EMPTY, "properties": {"code": {"type": "string"}}}
READ_ONLY = Profile(name="read_only", toolsets=(Toolset(name="queries", operations=("query",)),))  # pyright: ignore[reportArgumentType] - text does, too


def make_tool(name: str, **fields: Any) -> Tool:
    async def handler(call: Call) -> object:
        return call.arguments

    required: dict[str, Any] = {"name": name, "description": "It does.", "input_schema": EMPTY, "operation": "query"}
    spec = ToolSpec(**{**required, **fields})
    return Tool(spec=spec, handler=handler, check=check_by_schema(EMPTY))


def make_eval_tool(name: str = "run") -> Tool:
    return make_tool(name, operation="eval", requires_eval=True, eval=EvalRule("code"), input_schema=CODE)


@pytest.fixture
def registry() -> Registry:
    return Registry(Limits())


@pytest.fixture
def changes(registry: Registry) -> list[Change]:
    seen: list[Change] = []
    registry.watch(seen.append)
    return seen


def names(registry: Registry, profile: Profile = EVERYTHING) -> list[str]:
    return [spec.name for spec in registry.visible(profile)]


def kinds(changes: list[Change]) -> list[tuple[str, str]]:
    return [(change.kind, change.name) for change in changes]


def refusal(registry: Registry, name: str, profile: Profile = EVERYTHING) -> ToolError:
    with pytest.raises(ToolError) as caught:
        registry.find(name, profile)
    assert caught.value.code == "tool_not_found"
    return caught.value


def test_a_published_tool_is_found_and_listed_by_name(registry: Registry) -> None:
    registry.publish("s", [make_tool("b"), make_tool("a")])

    assert registry.find("a", EVERYTHING).spec.name == "a"
    assert names(registry) == [spec.name for spec in registry.list(EVERYTHING)] == ["a", "b"]
    assert len(registry) == 2


def test_a_tool_belongs_to_the_source_that_publishes_it(registry: Registry) -> None:
    registry.publish("s", [make_tool("a"), make_tool("b", source="other")])
    registry.publish("s", [make_tool("a"), make_tool("b")])

    assert {spec.source for spec in registry.list(EVERYTHING)} == {"s"}


def test_watchers_get_every_change_with_an_increasing_version(registry: Registry, changes: list[Change]) -> None:
    registry.publish("s", [make_tool("a"), make_tool("b"), make_tool("c")])
    registry.publish("s", [make_tool("a", description="Otherwise."), make_tool("b"), make_tool("d")])
    registry.withdraw("s")

    assert kinds(changes) == [
        ("registered", "a"),
        ("registered", "b"),
        ("registered", "c"),
        ("withdrawn", "c"),
        ("updated", "a"),
        ("registered", "d"),
        ("withdrawn", "a"),
        ("withdrawn", "b"),
        ("withdrawn", "d"),
    ]
    assert [change.version for change in changes] == list(range(1, 10))
    assert registry.version == 9


def test_publishing_the_same_again_is_no_change(registry: Registry, changes: list[Change]) -> None:
    for _ in range(2):
        registry.publish("s", [make_tool("a", aliases=("b",))])

    assert kinds(changes) == [("registered", "a")]


def test_the_last_published_handler_is_the_one_that_runs(registry: Registry) -> None:
    registry.publish("s", [make_tool("a")])
    newer = make_tool("a", source="s")
    registry.publish("s", [newer])

    assert registry.find("a", EVERYTHING) is newer


def test_withdrawing_what_was_never_published_is_no_change(registry: Registry, changes: list[Change]) -> None:
    registry.withdraw("s")
    registry.publish("s", [])

    assert changes == []


def test_a_watcher_that_stopped_gets_no_changes(registry: Registry) -> None:
    seen: list[Change] = []
    stop = registry.watch(seen.append)
    stop()
    stop()
    registry.publish("s", [make_tool("a")])

    assert seen == []


def test_a_watcher_that_fails_is_logged_and_the_others_still_run(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Change) -> NoReturn:
        raise RuntimeError

    seen: list[Change] = []
    registry.watch(broken)
    registry.watch(seen.append)
    registry.publish("s", [make_tool("a")])

    assert kinds(seen) == [("registered", "a")]
    assert "watcher_failed" in caplog.text


def test_a_watcher_sees_the_registry_as_it_is_after_the_change(registry: Registry) -> None:
    seen: list[list[str]] = []
    registry.watch(lambda _: seen.append([spec.name for spec in registry.list(EVERYTHING)]))
    registry.publish("s", [make_tool("a"), make_tool("b")])
    registry.publish("s", [make_tool("b"), make_tool("c")])

    assert seen[-1] == names(registry) == ["b", "c"]


@pytest.mark.parametrize(
    "wrong",
    [
        make_tool("Bad"),
        make_tool("bad", operation="oops"),
        make_tool("bad", input_schema={"type": "array"}),
        make_tool("bad", input_schema=None),
        make_tool("a"),
        make_tool("bad", aliases=("a",)),
        make_tool("theirs"),
        make_tool("bad", aliases=("theirs",)),
        make_tool("their_alias"),
        make_tool("bad", aliases=("their_alias",)),
    ],
    ids=lambda tool: f"{tool.spec.name}-{tool.spec.aliases}",
)
def test_one_wrong_tool_of_our_own_stops_the_whole_batch_and_the_old_ones_stay(wrong: Tool, registry: Registry) -> None:
    registry.publish("other", [make_tool("theirs", aliases=("their_alias",))])
    registry.publish("s", [make_tool("old")])
    version = registry.version

    for batch in ([make_tool("a"), wrong], [make_tool("a"), make_tool("z"), wrong]):
        with pytest.raises(PublishError) as caught:
            registry.publish("s", batch)
        assert "'" in str(caught.value)

    assert names(registry) == ["old", "theirs"]
    assert registry.version == version
    registry.publish("s", [make_tool("a"), make_tool("z")])
    registry.withdraw("s")
    assert names(registry) == ["theirs"]


@every_row(
    "batch",
    [
        [make_tool("a"), make_tool("a")],
        [make_tool("a", aliases=("b",)), make_tool("b")],
        [make_tool("b"), make_tool("a", aliases=("b",))],
        [make_tool("a", aliases=("x",)), make_tool("b", aliases=("x",))],
        [make_eval_tool("a"), make_tool("a")],
        [make_tool("a"), make_eval_tool("a")],
    ],
    ids=["names", "alias first", "name first", "aliases", "gated first", "gated last"],
)
@every_row("allow_eval", [False, True])
def test_two_tools_of_one_name_stop_the_batch(batch: list[Tool], *, allow_eval: bool) -> None:
    registry = Registry(Limits(), allow_eval=allow_eval)

    with pytest.raises(PublishError):
        registry.publish("s", batch)

    assert names(registry) == []
    registry.publish("s", [make_tool("b")])
    registry.withdraw("s")
    assert len(registry) == 0


def test_an_error_while_the_tools_are_made_publishes_nothing(registry: Registry) -> None:
    def tools() -> Iterator[Tool]:
        yield make_tool("a")
        raise RuntimeError

    registry.publish("s", [make_tool("old")])
    with pytest.raises(RuntimeError):
        registry.publish("s", tools())

    assert names(registry) == ["old"]


def test_an_alias_finds_the_tool_and_is_not_listed(registry: Registry) -> None:
    registry.publish("s", [make_tool("new", aliases=("old", "older"))])

    assert registry.find("old", EVERYTHING).spec.name == registry.find("older", EVERYTHING).spec.name == "new"
    assert names(registry) == ["new"]
    registry.publish("s", [make_tool("new", aliases=("older",))])
    refusal(registry, "old")


def test_a_tool_may_be_renamed_and_keep_its_old_name_as_an_alias(registry: Registry, changes: list[Change]) -> None:
    registry.publish("s", [make_tool("old")])
    registry.publish("s", [make_tool("new", aliases=("old",))])

    assert registry.find("old", EVERYTHING).spec.name == "new"
    assert kinds(changes)[1:] == [("withdrawn", "old"), ("registered", "new")]


def test_an_alias_may_move_to_another_tool_of_its_source(
    registry: Registry, changes: list[Change], caplog: pytest.LogCaptureFixture
) -> None:
    registry.publish("s", [make_tool("a"), make_tool("b", aliases=("x",))])
    registry.publish("s", [make_tool("a", aliases=("x",)), make_tool("b")])

    assert registry.find("x", EVERYTHING).spec.name == "a"
    assert kinds(changes)[2:] == [("updated", "a"), ("updated", "b")]
    assert caplog.text == ""


async def test_an_alias_and_a_deprecated_tool_answer_with_a_warning() -> None:
    @tool(aliases=["old"], deprecated="Use 'newer'.")
    async def new() -> int:
        """Do it."""
        return 1

    async with Yard(tools=[new]) as yard:
        by_name, by_alias = await yard.call("new"), await yard.call("old")

    assert len(by_name.meta.warnings) == 1
    assert len(by_alias.meta.warnings) == 2


def test_a_gated_tool_is_not_found_and_the_answer_has_its_status(registry: Registry) -> None:
    registry.publish("s", [make_eval_tool(), make_tool("a")])

    assert refusal(registry, "run").details["status"] == "gated"
    assert names(registry) == ["a"]
    assert [(entry.spec.name, entry.status) for entry in registry.unavailable(EVERYTHING)] == [("run", "gated")]


def test_a_gated_tool_is_published_when_eval_is_allowed() -> None:
    registry = Registry(Limits(), allow_eval=True)
    registry.publish("s", [make_eval_tool()])

    assert names(registry) == ["run"]
    assert registry.unavailable(EVERYTHING) == []


def test_a_tool_that_its_source_no_longer_has_is_no_longer_gated(registry: Registry) -> None:
    registry.publish("s", [make_eval_tool()])
    registry.publish("s", [make_tool("a")])

    assert "status" not in refusal(registry, "run").details
    registry.publish("s", [make_eval_tool()])
    registry.withdraw("s")
    assert registry.unavailable(EVERYTHING) == []


def test_a_gated_tool_takes_the_place_of_one_that_was_not(registry: Registry) -> None:
    registry.publish("s", [make_tool("run")])
    registry.publish("s", [make_eval_tool()])

    assert refusal(registry, "run").details["status"] == "gated"


def test_a_withdrawn_tool_answers_with_its_status_until_it_is_published_again(registry: Registry) -> None:
    registry.publish("s", [make_tool("a"), make_tool("b")])
    registry.publish("s", [make_tool("b")])

    assert refusal(registry, "a").details["status"] == "withdrawn"
    assert registry.unavailable(EVERYTHING) == []
    registry.publish("s", [make_tool("a")])
    assert registry.find("a", EVERYTHING)


def test_only_the_latest_withdrawn_tools_are_remembered_and_gated_ones_always(registry: Registry) -> None:
    registry.publish("s", [make_eval_tool()])
    registry.publish("many", [make_tool(f"t{number}") for number in range(1001)])
    registry.withdraw("many")

    assert "status" not in refusal(registry, "t0").details
    assert refusal(registry, "t1000").details["status"] == "withdrawn"
    assert refusal(registry, "run").details["status"] == "gated"


@pytest.mark.parametrize(
    "wrong",
    [
        make_tool("wrong", input_schema={"type": "array"}),
        make_tool("wrong", input_schema=None),
        make_tool("wrong", input_schema=True),
        make_tool("wrong", input_schema={"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/x"}}}),
        make_tool("wrong", description=""),
    ],
)
def test_a_wrong_tool_of_a_foreign_source_is_quarantined_and_the_rest_are_published(
    wrong: Tool, registry: Registry
) -> None:
    registry.publish("up", [make_tool("Up__First"), wrong, make_tool("up__last")], foreign=True)

    assert names(registry) == ["Up__First", "up__last"]
    assert refusal(registry, "wrong").details["status"] == "quarantined"
    [entry] = registry.unavailable(EVERYTHING)
    assert entry.reason


def test_a_foreign_tool_whose_check_crashes_is_quarantined(registry: Registry) -> None:
    def broken(_: bytes) -> NoReturn:
        raise ZeroDivisionError

    right = make_tool("wrong", examples=(Example({}),))
    wrong = Tool(spec=right.spec, handler=right.handler, check=broken)
    registry.publish("up", [wrong, make_tool("right")], foreign=True)

    assert names(registry) == ["right"]
    assert refusal(registry, "wrong").details["status"] == "quarantined"


def test_a_foreign_tool_never_takes_a_name_that_is_taken(registry: Registry) -> None:
    registry.publish("s", [make_tool("a")])
    registry.publish("up", [make_tool("a"), make_tool("b"), make_tool("b")], foreign=True)

    assert registry.find("a", EVERYTHING).spec.source == "s"
    assert names(registry) == ["a", "b"]
    assert {(entry.spec.name, entry.spec.source) for entry in registry.unavailable(EVERYTHING)} == {
        ("a", "up"),
        ("b", "up"),
    }


def test_a_foreign_tool_that_is_fixed_leaves_quarantine(registry: Registry) -> None:
    registry.publish("up", [make_tool("a", description="")], foreign=True)
    registry.publish("up", [make_tool("a")], foreign=True)

    assert names(registry) == ["a"]
    assert registry.unavailable(EVERYTHING) == []


def test_a_withheld_tool_cannot_be_used_and_the_answer_has_the_reason(registry: Registry) -> None:
    registry.publish(
        "up",
        [make_tool("a"), make_tool("b")],
        withheld={("tool", "a"): "It changed.", ("prompt", "b"): "It is another."},
    )

    assert names(registry) == ["b"]
    refused = refusal(registry, "a")
    assert refused.details == {"status": "withheld", "similar": []}
    assert refused.message == "'a' is withheld. It changed."
    assert [(entry.spec.name, entry.status) for entry in registry.unavailable(EVERYTHING)] == [("a", "withheld")]


def test_a_published_tool_can_be_withheld_and_published_again(registry: Registry, changes: list[Change]) -> None:
    registry.publish("up", [make_tool("a")])
    registry.publish("up", [make_tool("a")], withheld={("tool", "a"): "It changed."})
    assert refusal(registry, "a").details["status"] == "withheld"
    registry.publish("up", [make_tool("a")])

    assert kinds(changes) == [("registered", "a"), ("withdrawn", "a"), ("registered", "a")]
    assert registry.unavailable(EVERYTHING) == []


def refusal_answer(registry: Registry, name: str, profile: Profile) -> dict[str, Any]:
    error = refusal(registry, name, profile)
    return {**vars(error), "args": error.args}


def test_a_tool_that_the_profile_denies_looks_exactly_like_none() -> None:
    def filled(*tools: Tool) -> Registry:
        registry = Registry(Limits())
        registry.publish("s", [make_tool("wiper"), *tools])
        return registry

    wipe = make_tool("wipe", operation="destroy", aliases=("erase",))
    without, with_it = filled(), filled(wipe)
    gated = filled()
    gated.publish("t", [make_eval_tool("wipe")])
    withdrawn = filled(wipe)
    withdrawn.publish("s", [make_tool("wiper")])
    quarantined = filled()
    quarantined.publish("up", [make_tool("wipe", operation="destroy", description="")], foreign=True)

    withheld = filled()
    withheld.publish(
        "up", [make_tool("wipe", operation="destroy")], withheld={("tool", "wipe"): "It changed."}, foreign=True
    )

    for registry in (with_it, gated, withdrawn, quarantined, withheld):
        assert refusal_answer(registry, "wipe", READ_ONLY) == refusal_answer(without, "wipe", READ_ONLY)
        assert refusal_answer(registry, "erase", READ_ONLY) == refusal_answer(without, "erase", READ_ONLY)
        assert [entry for entry in registry.unavailable(READ_ONLY) if entry.spec.name == "wipe"] == []
    assert with_it.find("wipe", EVERYTHING)
    assert refusal_answer(with_it, "wipe", READ_ONLY)["details"] == {"similar": ["wiper"]}


def test_denied_tools_are_never_suggested() -> None:
    registry = Registry(Limits())
    registry.publish(
        "s",
        [
            make_tool("list_orders"),
            make_tool("list_order", operation="destroy"),
            make_tool("lst_orders", operation="command"),
        ],
    )

    error = refusal(registry, "list_ordrs", READ_ONLY)

    assert error.details["similar"] == ["list_orders"]
    assert error.next_actions == ("list_orders(…)",)
    assert refusal(registry, "list_ordrs").details["similar"] == ["list_orders", "list_order", "lst_orders"]


def test_denied_tools_do_not_crowd_out_other_suggestions() -> None:
    registry = Registry(Limits())
    hidden = [make_tool(f"list_orders_{number:03}", operation="destroy") for number in range(600)]
    registry.publish("s", [*hidden, make_tool("list_orders_of_all")])

    assert refusal(registry, "list_orders_0", READ_ONLY).details["similar"] == ["list_orders_of_all"]


def test_suggestions_are_handed_in_and_made_only_while_their_metatool_exists_for_the_profile() -> None:
    registry = Registry(
        Limits(), suggestions=Suggestions(search="seek()", describe="explain({!r})", read="fetch({!r})")
    )
    denied = Profile(name="denied", toolsets=(Toolset(name="most", deny=("seek", "explain", "fetch")),))
    metatools = [make_tool("seek"), make_tool("explain"), make_tool("fetch")]

    def suggested(profile: Profile = EVERYTHING) -> list[str]:
        found = [*refusal(registry, "zzzz", profile).next_actions, *registry.suggest_describe("a", profile)]
        return [*found, *registry.suggest_read("r_1", profile)]

    assert suggested() == []
    registry.publish("s", metatools)
    assert suggested() == []
    registry.withdraw("s")
    registry.publish(METATOOLS, metatools)
    assert suggested() == ["seek()", "explain('a')", "fetch('r_1')"]
    assert suggested(denied) == []


def test_the_core_names_no_metatool() -> None:
    names = re.compile(rf"\b({'|'.join(METATOOL_NAMES)})\b")
    sources = Path(dispatch.__path__[0]).glob("*.py")

    assert [source.name for source in sources if names.search(source.read_text())] == []


def test_at_most_five_similar_names_are_suggested(registry: Registry) -> None:
    registry.publish("s", [make_tool(f"list_orders_{number}") for number in range(9)])

    error = refusal(registry, "list_orders")

    assert error.details["similar"] == [f"list_orders_{number}" for number in range(5)]


async def test_a_denied_call_answers_like_one_of_a_tool_that_does_not_exist() -> None:
    @tool(operation="destroy")
    async def wipe() -> None:
        """Delete everything."""
        raise AssertionError

    failures: list[Failure | None] = []
    for tools in ([wipe], []):
        async with Yard(tools=tools, profile=READ_ONLY) as yard:
            failures.append((await yard.call("wipe")).error)

    assert failures[0] == failures[1]


def test_a_tool_that_gives_way_is_left_out_where_its_name_is_taken(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.publish("mine", [make_tool("ping", aliases=("pong",))])
    registry.publish(
        "pack",
        [make_tool("ping"), make_tool("pong"), make_tool("pang"), make_tool("peng", aliases=("ping",))],
        gives_way=True,
    )

    assert registry.find("ping", EVERYTHING).spec.source == "mine"
    assert names(registry) == ["pang", "ping"]
    assert [record.args for record in caplog.records if "gave_way" in record.msg] == [
        ("ping", "pack"),
        ("pong", "pack"),
        ("peng", "pack"),
    ]


def test_a_tool_that_gives_way_is_withdrawn_when_another_source_publishes_its_name(
    registry: Registry, changes: list[Change], caplog: pytest.LogCaptureFixture
) -> None:
    registry.publish(
        "pack", [make_tool("ping", aliases=("peng",)), make_tool("pang"), make_tool("pung")], gives_way=True
    )
    registry.publish("mine", [make_tool("ping"), make_tool("song", aliases=("pang",))])

    assert registry.find("ping", EVERYTHING).spec.source == "mine"
    assert registry.find("pang", EVERYTHING).spec.name == "song"
    assert names(registry) == ["ping", "pung", "song"]
    assert [record.args for record in caplog.records if "gave_way" in record.msg] == [
        ("ping", "pack"),
        ("pang", "pack"),
    ]
    assert set(kinds(changes)[3:]) == {
        ("withdrawn", "ping"),
        ("withdrawn", "pang"),
        ("registered", "ping"),
        ("registered", "song"),
    }
    registry.withdraw("pack")
    assert names(registry) == ["ping", "song"]


def test_a_tool_that_gave_way_is_published_again_once_its_name_is_free(
    registry: Registry, changes: list[Change]
) -> None:
    registry.publish("mine", [make_tool("ping"), make_tool("song", aliases=("pang",))])
    registry.publish("pack", [make_tool("ping"), make_tool("pang")], gives_way=True)
    registry.publish("mine", [make_tool("song", aliases=("pang",))])
    assert registry.find("ping", EVERYTHING).spec.source == "pack"
    assert registry.find("pang", EVERYTHING).spec.source == "mine"

    registry.withdraw("mine")
    assert {spec.source for spec in registry.visible(EVERYTHING)} == {"pack"}
    assert names(registry) == ["pang", "ping"]
    assert kinds(changes)[-1] == ("registered", "pang")
    registry.withdraw("pack")
    assert names(registry) == []


def test_a_tool_that_gave_way_is_not_published_again_if_its_source_dropped_it(registry: Registry) -> None:
    registry.publish("mine", [make_tool("ping")])
    registry.publish("pack", [make_tool("ping")], gives_way=True)
    registry.publish("pack", [make_tool("pang")], gives_way=True)
    registry.withdraw("mine")
    assert names(registry) == ["pang"]

    registry.publish("mine", [make_tool("pang")])
    registry.withdraw("pack")
    registry.withdraw("mine")
    assert names(registry) == []


def test_a_tool_of_a_failed_batch_is_never_published(registry: Registry) -> None:
    registry.publish("mine", [make_tool("ping")])
    with pytest.raises(PublishError):
        registry.publish("pack", [make_tool("ping"), make_tool("Bad")], gives_way=True)
    registry.withdraw("mine")

    assert names(registry) == []


def test_of_two_that_give_way_the_first_stays(registry: Registry) -> None:
    registry.publish("one", [make_tool("ping")], gives_way=True)
    registry.publish("two", [make_tool("ping")], gives_way=True)

    assert registry.find("ping", EVERYTHING).spec.source == "one"


def test_a_foreign_tool_displaces_one_that_gives_way(registry: Registry) -> None:
    registry.publish("pack", [make_tool("ping")], gives_way=True)
    registry.publish("up", [make_tool("ping")], foreign=True)

    assert registry.find("ping", EVERYTHING).spec.source == "up"


def test_the_hash_is_that_of_what_the_profile_lists(registry: Registry) -> None:
    registry.publish("s", [make_tool("look"), make_tool("wipe", operation="destroy")])
    everything, read_only = registry.hash(EVERYTHING), registry.hash(READ_ONLY)
    assert everything != read_only

    registry.publish("s", [make_tool("look"), make_tool("wipe", operation="destroy", description="Otherwise.")])
    assert registry.hash(READ_ONLY) == read_only
    assert registry.hash(EVERYTHING) != everything

    registry.publish("s", [make_tool("look", description="Otherwise.")])
    assert registry.hash(READ_ONLY) != read_only


def test_the_hash_does_not_depend_on_how_the_tools_came() -> None:
    one, other = Registry(Limits()), Registry(Limits())
    one.publish("s", [make_tool("a", input_schema={"type": "object", "additionalProperties": False}), make_tool("b")])
    other.publish("t", [make_tool("z")])
    other.publish("s", [make_tool("b")])
    other.publish("s", [make_tool("b"), make_tool("a", input_schema={"additionalProperties": False, "type": "object"})])
    other.withdraw("t")

    assert one.hash(EVERYTHING) == other.hash(EVERYTHING)
    assert len(one.hash(EVERYTHING)) == 64


def test_everything_that_can_be_published_has_a_hash(registry: Registry) -> None:
    class Result(BaseModel):
        n: int

    registry.publish("s", [make_tool("a", examples=(Example({}, "t", Result(n=1)),))])

    assert registry.hash(EVERYTHING) == registry.hash(EVERYTHING)


class _NoWalk(dict[str, Any]):
    """A dictionary that may be looked into and not gone through."""

    def __iter__(self) -> NoReturn:
        raise AssertionError

    def items(self) -> NoReturn:
        raise AssertionError

    def values(self) -> NoReturn:
        raise AssertionError

    def keys(self) -> NoReturn:
        raise AssertionError


def test_finding_a_tool_does_not_iterate_over_the_others(registry: Registry) -> None:
    registry.publish("s", [make_tool(f"t{number}", aliases=(f"u{number}",)) for number in range(50)])
    table = vars(registry)["_tools"]
    for holder, name in ((registry, "_by_name"), (table, "entries"), (table, "_aliases"), (table, "_by_source")):
        vars(holder)[name] = _NoWalk(vars(holder)[name])
    profile = Profile(name="p", toolsets=(Toolset(name="t", names=("t*",)),))

    assert registry.find("t7", profile).spec.name == "t7"
    assert registry.find("u7", profile).spec.name == "t7"


def test_a_list_is_made_once_for_each_version(registry: Registry) -> None:
    registry.publish("s", [make_tool("a")])
    first = registry.list(EVERYTHING)

    assert registry.list(EVERYTHING) is first
    registry.publish("s", [make_tool("a"), make_tool("b")])
    assert registry.list(EVERYTHING) is not first


def test_the_number_of_cached_lists_is_limited(registry: Registry) -> None:
    registry.publish("s", [make_tool("a")])
    for number in range(600):
        assert [spec.name for spec in registry.list(Profile(name=str(number)))] == ["a"]

    assert len(vars(registry)["_lists"]) <= 256


def test_a_surface_decides_what_is_listed_and_never_what_may_be_called(registry: Registry) -> None:
    registry.publish(METATOOLS, [make_tool("search_tools")])
    registry.publish("s", [make_tool("a"), make_tool("b")])
    profile = Profile(name="p", surface=Surface.META, pins=("b",))

    assert [spec.name for spec in registry.list(profile)] == ["b", "search_tools"]
    assert registry.find("a", profile)
    assert [spec.name for spec in registry.visible(profile)] == ["a", "b", "search_tools"]


def test_an_automatic_list_flips_only_well_past_the_line_in_either_direction() -> None:
    registry = Registry(Limits(listed_tokens=1000))
    registry.publish(
        METATOOLS,
        [make_tool("search_tools", metatool=Metatool("find")), make_tool("run_tool", metatool=Metatool("call"))],
    )

    def how_many_are_listed_of(count: int) -> int:
        registry.publish(
            "s", [make_tool(f"t{number}", description="d" * 340) for number in range(count)]
        )  # about 105 tokens each
        return sum(spec.source == "s" for spec in registry.list(EVERYTHING))

    counts = [how_many_are_listed_of(count) for count in (5, 9, 11, 13, 11, 9, 8, 6, 9, 11)]

    assert counts == [5, 9, 11, 0, 0, 0, 0, 6, 9, 11]
    registry.list(Profile(name="fresh"))
    assert len(registry.list(Profile(name="fresh"))) == 2


async def test_a_provider_may_change_what_it_publishes_while_the_yard_is_open(caplog: pytest.LogCaptureFixture) -> None:
    provider = FakeProvider("p", [make_tool("a")])
    with caplog.at_level(logging.WARNING):
        async with Yard(providers=[provider]) as yard:
            seen: list[Change] = []
            yard.registry.watch(seen.append)
            provider.change([make_tool("b")])
            gone, there = await yard.call("a"), await yard.call("b")

    assert gone.error is not None
    assert (gone.error.code, gone.error.details["status"]) == ("tool_not_found", "withdrawn")
    assert there.success
    assert kinds(seen)[:2] == [("withdrawn", "a"), ("registered", "b")]
    assert caplog.records == []


def make_resource(uri: str, **fields: Any) -> Resource:
    async def handler(call: Call) -> object:
        return call.name

    required: dict[str, Any] = {"uri": uri, "name": "it"}
    return Resource.of(ResourceSpec(**{**required, **fields}), handler)


def make_prompt(name: str) -> Prompt:
    async def handler(call: Call) -> object:
        return call.name

    return Prompt.of(PromptSpec(name=name), handler)


def test_every_kind_has_a_version_of_its_own_and_changes_say_what_changed(
    registry: Registry, changes: list[Change]
) -> None:
    registry.publish("s", [make_tool("a")], resources=[make_resource("x://a")], prompts=[make_prompt("a")])
    listed, stamp = registry.list(EVERYTHING), registry.hash(EVERYTHING)
    registry.publish(
        "s", [make_tool("a")], resources=[make_resource("x://a", title="A"), make_resource("x://{b}")], prompts=[]
    )

    assert [(change.what, change.kind, change.name) for change in changes] == [
        ("tool", "registered", "a"),
        ("resource", "registered", "x://a"),
        ("prompt", "registered", "a"),
        ("resource", "updated", "x://a"),
        ("resource", "registered", "x://{b}"),
        ("prompt", "withdrawn", "a"),
    ]
    assert (registry.version, registry.versions) == (6, {"tool": 1, "resource": 3, "prompt": 2})
    assert registry.list(EVERYTHING) is listed
    assert registry.hash(EVERYTHING) == stamp


def test_one_invalid_entry_stops_the_batch_of_every_kind(registry: Registry, changes: list[Change]) -> None:
    with pytest.raises(PublishError, match="scheme"):
        registry.publish("s", [make_tool("a")], resources=[make_resource("wrong")], prompts=[make_prompt("a")])

    assert changes == []
    assert len(registry) == 0


def test_a_wrong_resource_of_a_foreign_source_is_quarantined_and_the_rest_are_published(registry: Registry) -> None:
    resources = [
        make_resource("x://a"),
        make_resource("x://{?q}"),
        make_resource("x://a"),
        make_resource("x://b", name=" "),
        make_resource("x://c", size="large"),
    ]
    registry.publish("up", resources=resources, foreign=True)

    assert [spec.uri for spec in registry.list_resources(EVERYTHING)] == ["x://a"]
    assert [entry.spec.uri for entry in registry.unavailable(EVERYTHING, "resource")] == [
        "x://a",
        "x://b",
        "x://c",
        "x://{?q}",
    ]
    assert {entry.status for entry in registry.unavailable(EVERYTHING, "resource")} == {"quarantined"}
    assert registry.unavailable(EVERYTHING) == []


def test_a_template_does_not_serve_a_withheld_resource(registry: Registry) -> None:
    resources = [make_resource("x://a"), make_resource("x://b"), make_resource("x://{any}")]
    registry.publish(
        "up", resources=resources, prompts=[make_prompt("a")], withheld={("resource", "x://a"): "It changed."}
    )

    with pytest.raises(ToolError, match=r"is withheld\. It changed\.") as refused:
        registry.find_resource("x://a", EVERYTHING)
    assert (refused.value.code, refused.value.details["status"]) == ("not_found", "withheld")
    assert registry.find_resource("x://c", EVERYTHING).variables == {"any": "c"}
    assert registry.find_prompt("a", EVERYTHING)


def test_resources_and_prompts_give_way_and_are_published_again(registry: Registry) -> None:
    registry.publish("pack", resources=[make_resource("x://a")], prompts=[make_prompt("a")], gives_way=True)
    registry.publish("mine", resources=[make_resource("x://a")], prompts=[make_prompt("a")])
    mine = (
        registry.find_resource("x://a", EVERYTHING).resource.spec.source,
        registry.find_prompt("a", EVERYTHING).spec.source,
    )
    registry.withdraw("mine")

    assert mine == ("mine", "mine")
    assert registry.find_resource("x://a", EVERYTHING).resource.spec.source == "pack"
    assert registry.find_prompt("a", EVERYTHING).spec.source == "pack"


def test_two_sources_cannot_have_one_uri(registry: Registry) -> None:
    registry.publish("one", resources=[make_resource("x://a")])

    with pytest.raises(PublishError, match="'x://a' of 'two'"):
        registry.publish("two", resources=[make_resource("x://a")])


def test_a_watcher_of_updates_that_fails_stops_no_other(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    def broken(uri: str) -> NoReturn:
        raise RuntimeError(uri)

    updates: list[str] = []
    registry.watch_updates(broken)
    registry.watch_updates(updates.append)
    registry.updated("x://a")

    assert updates == ["x://a"]
    assert [record.msg for record in caplog.records] == ["watcher_failed kind=%s"]


def test_a_tool_whose_spec_has_another_kind_is_refused(registry: Registry) -> None:
    with pytest.raises(PublishError, match="prompt"):
        registry.publish("s", [make_tool("a", kind="prompt")])


def test_a_foreign_tool_whose_schema_no_validator_finishes_is_quarantined_and_the_rest_are_published() -> None:
    definitions: dict[str, Any] = {
        f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}, {"$ref": f"#/$defs/d{index + 1}"}]}
        for index in range(40)
    }
    schema: dict[str, Any] = {
        "type": "object",
        "$defs": {**definitions, "d40": {}},
        "allOf": [{"$ref": "#/$defs/d0"}],
        "unevaluatedProperties": False,
    }
    bomb, fine = made_tool("bomb", schema), made_tool("fine", {"type": "object"})
    registry = Registry(Limits())
    registry.publish("up", [bomb, fine], foreign=True)

    assert [spec.name for spec in registry.visible(EVERYTHING)] == ["fine"]
    assert [(entry.spec.name, entry.status) for entry in registry.unavailable(EVERYTHING)] == [("bomb", "quarantined")]
    with pytest.raises(PublishError):
        Registry(Limits()).publish("own", [bomb])


def made_tool(name: str, schema: dict[str, Any]) -> Tool:
    async def handler(call: object) -> object:
        raise AssertionError(call)

    spec = ToolSpec(name=name, description="It does.", input_schema=schema, operation=Operation.QUERY)
    return Tool(spec=spec, handler=handler, check=check_by_schema(schema))
