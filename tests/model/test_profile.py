from fnmatch import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard import Operation, Profile, Surface, Toolset, ToolSpec
from callyard.model.profile import EVERYTHING, METATOOLS, Profiles, cost, listed
from callyard.model.spec import Metatool


def spec(name: str = "walk", *, characters: int = 0, **given: Any) -> ToolSpec:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    least: dict[str, Any] = {
        "name": name,
        "description": "d" * (characters or 1),
        "input_schema": schema,
        "operation": "query",
    }
    return ToolSpec(**{**least, **given})


WALK = spec("legs__walk", source="legs", tags=("body", "slow"), operation="query")
RUN = spec("legs__run", source="legs", tags=("body",), operation="command")
WIPE = spec("disk__wipe", source="disk", tags=("files",), operation="destroy")
ALL = [WALK, RUN, WIPE]


def held(**given: Any) -> list[str]:
    toolset = Toolset(name="t", **given)
    return [tool.name for tool in ALL if toolset.holds(tool)]


@every_row(
    ("given", "names"),
    [
        ({}, ["legs__walk", "legs__run", "disk__wipe"]),
        ({"names": ("legs__walk",)}, ["legs__walk"]),
        ({"names": ("legs__*",)}, ["legs__walk", "legs__run"]),
        ({"names": ("*__w???",)}, ["legs__walk", "disk__wipe"]),
        ({"names": ("legs__walk", "disk__*")}, ["legs__walk", "disk__wipe"]),
        ({"names": ("LEGS__*",)}, []),
        ({"names": ("walk",)}, []),
        ({"names": ("legs__walk.",)}, []),
        ({"tags": ("slow",)}, ["legs__walk"]),
        ({"tags": ("slow", "files")}, ["legs__walk", "disk__wipe"]),
        ({"sources": ("legs",)}, ["legs__walk", "legs__run"]),
        ({"sources": ("d*",)}, ["disk__wipe"]),
        ({"operations": (Operation.QUERY, Operation.DESTROY)}, ["legs__walk", "disk__wipe"]),
        ({"operations": ("command",)}, ["legs__run"]),
        ({"sources": ("legs",), "operations": ("query",)}, ["legs__walk"]),
        ({"sources": ("legs",), "tags": ("files",)}, []),
        ({"deny": ("*__wipe",)}, ["legs__walk", "legs__run"]),
        ({"deny_tags": ("slow", "files")}, ["legs__run"]),
        ({"deny_sources": ("le*",)}, ["disk__wipe"]),
        ({"deny_operations": (Operation.DESTROY,)}, ["legs__walk", "legs__run"]),
        ({"names": ("legs__walk",), "deny": ("legs__walk",)}, []),
        ({"names": ("legs__walk",), "deny_tags": ("body",)}, []),
        ({"tags": ("body",), "deny_operations": ("query",)}, ["legs__run"]),
        ({"sources": ("disk",), "deny_sources": ("disk",)}, []),
    ],
)
def test_a_toolset_holds_what_fits_everything_it_says_and_nothing_it_denies(
    given: dict[str, Any], names: list[str]
) -> None:
    assert held(**given) == names


@every_row(
    ("given", "names"),
    [
        ({"names": "legs__walk"}, ["legs__walk"]),
        ({"names": ["legs__walk"]}, ["legs__walk"]),
        ({"operations": "destroy"}, ["disk__wipe"]),
        ({"deny": "*"}, []),
        ({"deny_tags": {"body"}}, ["disk__wipe"]),
    ],
)
def test_one_thing_may_stand_where_several_may(given: dict[str, Any], names: list[str]) -> None:
    assert held(**given) == names


def test_a_tool_is_known_to_a_rule_by_its_former_names_too() -> None:
    renamed = spec("stroll", aliases=("walk", "amble"))

    assert Toolset(name="t", names=("walk",)).holds(renamed)
    assert not Toolset(name="t", deny=("amble",)).holds(renamed)
    assert not Toolset(name="t", names=("run",)).holds(renamed)
    assert names_listed(Surface.META, [renamed, spec("run")], pins=("walk",)) == (["stroll"], True)


@pytest.mark.parametrize("place", ["operations", "deny_operations"])
def test_an_operation_that_nobody_knows_is_refused(place: str) -> None:
    given: dict[str, Any] = {place: ("destory",)}

    with pytest.raises(ValueError, match="destory"):
        Toolset(name="t", **given)


def test_a_surface_may_be_written_as_text_and_must_be_one() -> None:
    written: Any = "meta"
    wrong: Any = "mta"

    assert Profile(name="p", surface=written).surface is Surface.META
    with pytest.raises(ValueError, match="mta"):
        Profile(name="p", surface=wrong)


def test_a_profile_without_toolsets_allows_everything() -> None:
    assert all(EVERYTHING.allows(tool) for tool in ALL)


def test_a_profile_allows_what_any_of_its_toolsets_holds() -> None:
    profile = Profile(
        name="p", toolsets=(Toolset(name="a", names=("legs__walk",)), Toolset(name="b", sources=("disk",)))
    )

    assert [profile.allows(tool) for tool in ALL] == [True, False, True]


def test_a_denial_holds_within_its_toolset_alone() -> None:
    profile = Profile(name="p", toolsets=(Toolset(name="a", deny=("*",)), Toolset(name="b", names=("legs__walk",))))

    assert [profile.allows(tool) for tool in ALL] == [True, False, False]


def test_profiles_that_say_the_same_are_the_same() -> None:
    given: Any = [Toolset(name="a", names=["x"])]  # pyright: ignore[reportArgumentType] - a list does, too

    assert Profile(name="p", toolsets=given) == Profile(name="p", toolsets=(Toolset(name="a", names=("x",)),))
    assert len({Profile(name="p", toolsets=given), Profile(name="p", toolsets=given)}) == 1


def test_the_cost_of_a_list_is_a_quarter_of_its_characters() -> None:
    text = '{"name":"walk","description":"d","inputSchema":{"type":"object","additionalProperties":false}}'

    assert cost([spec()]) == -(-len(text) // 4)
    assert cost([spec(), spec()]) == -(-2 * len(text) // 4)
    assert cost([spec(description="é" * 400)]) == cost([spec(description="e" * 400)])
    assert cost([]) == 0


META = spec("search_tools", source=METATOOLS, metatool=Metatool("find"))
CALLS = spec("run_tool", source=METATOOLS, metatool=Metatool("call"))
BIG = [META, CALLS, spec("a", characters=4000), spec("b", characters=4000)]
SPENT = cost(BIG[2:])


def names_listed(
    surface: Surface, specs: list[ToolSpec], *, budget: int = 10, pins: tuple[str, ...] = (), was: bool | None = None
) -> Any:
    found, meta = listed(Profile(name="p", surface=surface, pins=pins), specs, budget=budget, was_meta=was)
    return [tool.name for tool in found], meta


def test_a_direct_surface_lists_everything_but_the_metatools_that_are_not_pinned() -> None:
    assert names_listed(Surface.DIRECT, BIG) == (["a", "b"], False)
    assert names_listed(Surface.DIRECT, BIG, pins=("search_*",)) == (["search_tools", "a", "b"], False)


def test_a_meta_surface_lists_the_metatools_and_the_pins() -> None:
    assert names_listed(Surface.META, BIG, budget=10**6) == (["search_tools", "run_tool"], True)
    assert names_listed(Surface.META, BIG, pins=("b", "c*")) == (["search_tools", "run_tool", "b"], True)


def test_an_automatic_surface_lists_everything_while_that_is_cheap() -> None:
    assert names_listed(Surface.AUTO, BIG, budget=SPENT) == (["a", "b"], False)


def test_an_automatic_surface_lists_the_metatools_and_the_pins_once_everything_is_dear() -> None:
    assert names_listed(Surface.AUTO, BIG, budget=SPENT - 1) == (["search_tools", "run_tool"], True)
    assert names_listed(Surface.AUTO, BIG, budget=SPENT - 1, pins=("a",)) == (["search_tools", "run_tool", "a"], True)


def test_an_automatic_surface_lists_everything_where_nothing_could_find_or_call_the_rest() -> None:
    for metatools in ([], [META], [CALLS]):
        assert names_listed(Surface.AUTO, [*metatools, *BIG[2:]], budget=0) == (["a", "b"], False)


@every_row(
    ("deny", "denied"),
    [
        ("run_tool", {"run_tool", "call_tool"}),
        ("call_tool", {"run_tool", "call_tool"}),
        ("describe_*", {"describe_tool", "get_tool_schema"}),
        ("get_*", {"get_tool_schema"}),
        ("search_tools", set[str]()),
    ],
)
def test_a_metatool_is_denied_under_its_other_name_too(deny: str, denied: set[str]) -> None:
    toolset = Toolset(name="t", deny=(deny,))
    metatools = {
        "run_tool": Metatool(alias="call_tool"),
        "call_tool": Metatool(alias_of="run_tool"),
        "describe_tool": Metatool(alias="get_tool_schema"),
        "get_tool_schema": Metatool(alias_of="describe_tool"),
    }

    assert {
        name for name, role in metatools.items() if not toolset.holds(spec(name, source=METATOOLS, metatool=role))
    } == denied
    assert all(toolset.holds(spec(name, metatool=role)) for name, role in metatools.items() if not fnmatch(name, deny))


@every_row(
    ("share", "was", "meta"),
    [
        (1.01, None, True),
        (0.99, None, False),
        (1.24, False, False),
        (1.26, False, True),
        (0.76, True, True),
        (0.74, True, False),
    ],
)
def test_an_automatic_surface_flips_only_a_quarter_past_the_line(share: float, *, was: bool | None, meta: bool) -> None:
    assert names_listed(Surface.AUTO, BIG, budget=round(SPENT / share), was=was)[1] is meta


@given(st.lists(st.sampled_from(ALL)), st.sampled_from(list(Surface)), st.integers(0, 200))
def test_the_list_is_a_function_of_its_inputs(specs: list[ToolSpec], surface: Surface, budget: int) -> None:
    profile = Profile(name="p", surface=surface)

    assert listed(profile, specs, budget=budget) == listed(profile, specs, budget=budget)


def test_profiles_of_a_file_come_before_those_of_the_code_and_go_again() -> None:
    own, other = Profile(name="own"), Profile(name="other")
    profiles = Profiles(own, [other])
    changed = Profile(name="other", pins=("a",))

    assert profiles.adopt([changed, Profile(name="new")], own="new").name == "new"
    assert (profiles.find(None).name, profiles.find("other")) == ("new", changed)
    assert [profile.name for profile in profiles.known] == ["own", "other", "new"]
    assert profiles.adopt([], own=None) is own
    assert profiles.known == (own, other)
    with pytest.raises(KeyError, match="There is no profile 'new'"):
        profiles.adopt([], own="new")


@pytest.mark.parametrize("other", [Toolset(name="t"), Toolset(name="t", names=("legs__*",))])
def test_a_profile_has_no_two_toolsets_of_one_name(other: Toolset) -> None:
    with pytest.raises(ValueError, match="'t'"):
        Profile(name="p", toolsets=(Toolset(name="t"), Toolset(name="u"), other))
