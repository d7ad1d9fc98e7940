"""LearnedOutputs: what is learnt of results, for whom, and how much of it."""

from typing import Any

import msgspec
import pytest
from ticket_tools import made

from callyard import Caller
from callyard.metatools import learned_output
from callyard.metatools.learned_output import LearnedOutputs
from callyard.model.envelope import encode
from callyard.state.memory import MemoryStore

ADA, BEA, CEM, DOT = (Caller(identity=name) for name in ("ada", "bea", "cem", "dot"))


def learned(*results: Any) -> Any:
    outputs = LearnedOutputs()
    spec = made("t").spec
    for result in results:
        outputs.learn(spec, result, ADA)
    return seen(outputs, ADA)


def seen(outputs: LearnedOutputs, caller: Caller) -> Any:
    shown = outputs.of(made("t").spec, caller)
    return None if shown is None else shown["schema"]


def test_maps_are_collapsed_so_that_no_key_of_data_shows() -> None:
    by_mail = learned(*[{"users": {f"u{n}@example.org": {"age": n}}} for n in range(4)])
    by_number = learned(*[{"17": True, "99": False}] * 3)
    by_many = learned(*[{f"key_{chr(97 + n)}{chr(97 + m)}": 1 for m in range(15)} for n in range(6)])

    assert by_mail["properties"]["users"] == {
        "type": "object",
        "additionalProperties": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
    }
    assert by_number == {"type": "object", "additionalProperties": {"type": "boolean"}}
    assert by_many == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_a_name_counts_once_for_each_result() -> None:
    assert learned([{"rare": 1}] * 5, [], []) == {"type": "array"}
    assert learned([{"a": 1}], [{"a": 2}], [{"a": 3}])["items"]["properties"] == {"a": {"type": "integer"}}


def test_the_items_of_a_list_are_all_learnt_from() -> None:
    shape = learned(*[[{"id": 1, "parent": None, "bonus": 5}, {"id": "two", "parent": 7}, {"id": 3, "parent": 8}]] * 40)

    assert shape["items"]["properties"] == {
        "id": {"type": ["integer", "string"]},
        "parent": {"type": ["null", "integer"]},
        "bonus": {"type": "integer"},
    }
    assert shape["items"]["required"] == ["id", "parent"]


def test_a_type_counts_once_for_each_result() -> None:
    assert learned([1, "a", "a", "a"], [1], [1])["items"] == {"type": "integer"}
    assert learned([1, "a", 1, "a"], ["a", 1], [1, "a", "a"])["items"] == {"type": ["integer", "string"]}


def test_a_field_is_required_if_every_object_has_it_whatever_else_there_is() -> None:
    assert learned(*[{"a": 1}] * 3, "none", None)["required"] == ["a"]
    assert learned(*[{"by": {"1": {"a": 1, "b": 2}, "2": {"a": 1}}}] * 3)["properties"]["by"]["additionalProperties"][
        "required"
    ] == ["a"]
    assert "required" not in learned(*[{"a": 1}] * 3, {})


def test_a_field_that_was_not_examined_does_not_count_as_missing() -> None:
    rows = [{f"c{chr(97 + column)}": 1 for column in range(26)} for _ in range(8)]

    assert len(learned(*[{"one": rows, "two": rows}] * 3)["properties"]["two"]["items"]["required"]) == 26


def test_a_shape_has_a_bound_in_depth_and_names() -> None:
    deep: Any = 1
    for _ in range(10):
        deep = {"a": deep}

    assert str(learned(deep, deep, deep)).count("properties") <= 5
    assert learned({"a": 1}, {"a": 1}) is None
    assert learned("x", 1, 2.5) == {}
    assert learned({}, {}, {}) == {"type": "object"}
    assert learned({"not a name": []}, {"not a name": []}, {}) == {"type": "object", "additionalProperties": True}


def test_a_tool_that_changed_is_learnt_anew_and_few_results_suffice() -> None:
    outputs = LearnedOutputs()
    first = made("t").spec
    for number in range(1000):
        outputs.learn(first, {"a": number}, ADA)
    shown = outputs.of(made("t").spec, ADA)
    assert shown is not None
    assert shown["learnt_from"] < 100
    outputs.learn(made("t").spec, {"b": 1}, ADA)
    assert outputs.of(made("t").spec, ADA) is None


def test_a_name_is_shown_to_callers_whose_results_had_it_and_to_all_after_three_identities() -> None:
    outputs, spec = LearnedOutputs(), made("t").spec
    shown: list[list[Any]] = []
    for caller in (ADA, BEA, CEM):
        for _ in range(3):
            outputs.learn(spec, {"alice": 1, caller.identity: {"x": "y"}}, caller)
        shown.append([sorted(seen(outputs, one).get("properties", ())) for one in (ADA, BEA, DOT)])

    assert shown == [
        [["ada", "alice"], [], []],
        [["ada", "alice"], ["alice", "bea"], []],
        [["ada", "alice"], ["alice", "bea"], ["alice"]],
    ]


def test_conversations_of_one_identity_are_callers_of_their_own_and_make_nothing_common() -> None:
    outputs, spec = LearnedOutputs(), made("t").spec
    one, other, last = (Caller(identity="app", scope=scope) for scope in ("1", "2", "3"))
    for caller in (one, other) * 3:
        outputs.learn(spec, {"alice": 1}, caller)

    assert (
        seen(outputs, one)
        == seen(outputs, other)
        == {"type": "object", "properties": {"alice": {"type": "integer"}}, "required": ["alice"]}
    )
    assert seen(outputs, last) == {"type": "object"}


def test_of_many_callers_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_output, "_CALLERS", 2)
    outputs, spec = LearnedOutputs(), made("t").spec
    callers = [Caller(identity="app", scope=str(number)) for number in range(4)]
    for caller in callers:
        outputs.learn(spec, {"alice": 1}, caller)

    assert ["properties" in seen(outputs, caller) for caller in callers] == [False, False, True, True]


def test_names_that_differ_from_result_to_result_are_keys_of_data() -> None:
    people = ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"]
    by_name = [{people[number % 8]: {"age": number}, people[(number + 1) % 8]: {"age": number}} for number in range(24)]
    records = [{"id": number, "kind": "x", **({"note": "y"} if number % 2 else {})} for number in range(24)]

    shape = learned(*by_name)
    assert shape["type"] == "object"
    assert list(shape["additionalProperties"]["properties"]) == ["age"]
    assert sorted(learned(*records)["properties"]) == ["id", "kind", "note"]


def test_null_goes_with_every_type_where_names_come_and_go() -> None:
    assert sorted(learned(*[{"a": None}, {"b": "x"}, {"c": "x"}, {"d": None}] * 6).get("properties", ())) == []
    assert sorted(
        learned(*[{"a": None, "n": 1}, {"b": "x", "n": 2}, {"c": "x", "n": 3}, {"d": None, "n": 4}] * 6)["properties"]
    ) == list("abcdn")


def test_a_large_result_leaves_a_small_shape_with_its_first_levels() -> None:
    def deep(levels: int) -> Any:
        return {f"k{chr(97 + number)}": deep(levels - 1) for number in range(18)} if levels else 0

    shape = learned(*[deep(4)] * 4)

    assert len(encode(shape)) <= 4000
    assert len(shape["properties"]) == 18


def test_the_work_for_a_result_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    see = learned_output._Node.record  # pyright: ignore[reportPrivateUsage] - to count how often it is done

    def counted(node: Any, value: object, result: int, who: Any) -> None:
        looked.append(1)
        see(node, value, result, who)

    monkeypatch.setattr(learned_output._Node, "record", counted)  # pyright: ignore[reportPrivateUsage] - the same

    learned(
        {
            "rows": [{f"c{chr(97 + number)}": [number] * 20 for number in range(20)}] * 8,
            "more": {str(number): 1 for number in range(10**5)},
        }
    )

    assert 100 < len(looked) <= 300


def test_the_keys_of_a_map_make_room_for_other_names() -> None:
    varied = [
        {"by_name": {f"p{chr(97 + first)}{chr(97 + number)}": {"age": 1} for number in range(30)}, "late": first}
        for first in range(3)
    ]
    filling = [{f"f{chr(97 + number)}": {f"g{chr(97 + inner)}": 1 for inner in range(9)} for number in range(9)}] * 3

    shape = learned(*varied, *[{**one, "other": filling[0]} for one in varied])
    assert shape["properties"]["by_name"]["additionalProperties"]
    assert len(shape["properties"]["other"]["properties"]) == 9


def test_more_names_than_can_be_kept_are_left_out() -> None:
    shape = learned(*[{f"a{chr(97 + one)}": {f"b{chr(97 + two)}": 1 for two in range(26)} for one in range(26)}] * 3)

    assert len(shape["properties"]) == 26
    assert len(encode(shape)) <= 4000


def test_a_list_for_which_no_place_is_left_is_known_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_output, "_NODES", 1)

    assert learned(*[{"rows": [1, 2]}] * 3)["properties"] == {"rows": {"type": "array"}}


def test_of_many_tools_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_output, "_TOOLS", 2)
    outputs = LearnedOutputs()
    for spec in (made(name).spec for name in "abc"):
        for number in range(3):
            outputs.learn(spec, number, ADA)

    assert [outputs.of(made(name).spec, ADA) is None for name in "abc"] == [True, False, False]


async def test_a_shape_stored_for_another_version_of_a_tool_is_not_shown() -> None:
    store, before, after = MemoryStore(), LearnedOutputs(), LearnedOutputs()
    spec = made("t").spec
    async with before.kept_in(store):
        for number in range(3):
            before.learn(spec, number, ADA)
    await after.load(store)

    assert after.of(msgspec.structs.replace(spec, description="Another tool now."), ADA) is None


async def test_learnt_output_is_stored_and_read_with_the_callers_who_may_see_it() -> None:
    store, before, after = MemoryStore(), LearnedOutputs(), LearnedOutputs()
    spec = made("t").spec
    async with before.kept_in(store):
        for _ in range(3):
            before.learn(spec, {"name": "x", "rows": [{"id": 1}]}, ADA)
    await after.load(store)

    assert seen(after, ADA) == seen(before, ADA) is not None
    assert seen(after, BEA) == seen(before, BEA) != seen(before, ADA)
    again = made("t").spec  # of the restarted process, so it is another object
    for _ in range(3):
        after.learn(again, {"name": "x", "rows": [{"id": 1}]}, BEA)
    assert seen(after, BEA) == seen(before, ADA)


async def test_learnt_output_of_an_unreadable_kind_is_ignored() -> None:
    store, outputs = MemoryStore(), LearnedOutputs()
    await store.put("learned_output/t", b"another version")
    await outputs.load(store)

    assert outputs.of(made("t").spec, ADA) is None
