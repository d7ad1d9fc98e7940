"""Edits and versions of images, by the tools."""

from pathlib import Path
from typing import Any

from callyard_darkroom import PACK
from darkroom_yards import CallTool, OpenDarkroom, draw, names_in, open_yard

from callyard import Yard


async def _ingested(call: CallTool, *names: str) -> str:
    answers = [await call("ingest", path=name) for name in names]
    return answers[0].data["snapshot_hash"]


async def test_the_22_tools_are_there(photographs: Path, tmp_path: Path) -> None:
    settings = {"darkroom": {"roots": [str(photographs)]}}
    async with Yard(packs=[PACK], pack_settings=settings, state_dir=str(tmp_path / "s"), metatools=False) as yard:
        operations = {spec.name: str(spec.operation) for spec in yard.list()}

    assert len(operations) == 22
    assert [name for name, operation in operations.items() if operation == "destroy"] == ["darkroom_forget_image"]


async def test_ingest_makes_a_baseline_and_leaves_the_original_alone(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    before = (photographs / "a.tif").read_bytes()
    async with open_darkroom() as call:
        answer = await call("ingest", path="a.tif")
        again = await call("ingest", path="a.tif")
        listed = await call("list_images")
        await call("apply_primitive", image="a.tif", primitive="contrast")

    state = {
        "head_hash": answer.data["snapshot_hash"],
        "entry_count": 0,
        "enabled_count": 0,
        "layers_present": {"L1": False, "L2": False, "L3": False},
    }
    assert answer.data["state_after"] == state
    assert (again.code, again.reason) == ("state_error", "image_exists")
    assert listed.data == {"images": ["a.tif"], "more": False}
    assert (photographs / "a.tif").read_bytes() == before


async def test_every_tool_that_changes_a_state_answers_what_it_is_after(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        changes: list[tuple[str, dict[str, Any], tuple[int, int, list[str]]]] = [
            ("apply_primitive", {"primitive": "warmth"}, (1, 1, ["L3"])),
            ("apply_many", {"steps": [{"primitive": "exposure"}, {"primitive": "crop"}]}, (3, 3, ["L3"])),
            ("bind_layers", {"l1": "clean", "l2": "newspaper"}, (8, 8, ["L1", "L2", "L3"])),
            ("remove_module", {"primitive": "crop", "disable": True}, (8, 7, ["L1", "L2", "L3"])),
            ("remove_module", {"primitive": "crop"}, (7, 7, ["L1", "L2", "L3"])),
            ("snapshot", {"label": "done"}, (7, 7, ["L1", "L2", "L3"])),
            ("branch", {"name": "other"}, (7, 7, ["L1", "L2", "L3"])),
            ("reset", {}, (0, 0, [])),
            ("checkout", {"ref": "main"}, (7, 7, ["L1", "L2", "L3"])),
        ]
        for tool, arguments, (entries, enabled, layers) in changes:
            answer = await call(tool, image="a.tif", **arguments)
            looked = await call("get_state", image="a.tif")
            after = answer.data["state_after"]
            present = [layer for layer, there in after["layers_present"].items() if there]
            assert (after["entry_count"], after["enabled_count"], present) == (entries, enabled, layers), tool
            assert after["head_hash"] == answer.data["snapshot_hash"]
            assert looked.data["state_after"] == after


async def test_one_wrong_step_of_many_changes_nothing_and_is_named(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        for wrong, code in (
            ({"primitive": "nosuch"}, "not_found"),
            ({"primitive": "contrast", "values": {"amount": 7}}, "invalid_input"),
        ):
            answer = await call("apply_many", image="a.tif", steps=[{"primitive": "exposure"}, wrong])
            assert (answer.code, answer.details["step_index"]) == (code, 1)
        state = await call("get_state", image="a.tif")

    assert state.data["state_after"]["entry_count"] == 0


async def test_the_same_edits_have_the_same_hash_in_another_place_and_another_order_of_keys(
    open_darkroom: OpenDarkroom, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    draw(other / "z.jpg", 64, 48)
    crop = {"x": 0.1, "width": 0.5, "y": 0, "height": 1}
    steps = [{"primitive": "exposure", "values": {"ev": 1}}, {"primitive": "crop", "values": crop}]
    async with open_darkroom() as call, open_yard(other, tmp_path / "s2") as call_other:
        baseline = await _ingested(call, "a.tif")
        assert await _ingested(call_other, "z.jpg") == baseline
        first = await call("apply_many", image="a.tif", steps=steps)
        for primitive in ("exposure", "crop"):
            values = {"ev": 1.0} if primitive == "exposure" else dict(reversed(crop.items()))
            second = await call_other("apply_primitive", image="z.jpg", primitive=primitive, values=values)

    assert first.data["snapshot_hash"] == second.data["snapshot_hash"]


async def test_edits_are_undone_by_reset_and_come_back_by_checkout(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        baseline = await _ingested(call, "a.tif")
        edited = await call("apply_primitive", image="a.tif", primitive="warmth")
        reset = await call("reset", image="a.tif")
        back = await call("checkout", image="a.tif", ref=edited.data["snapshot_hash"][:10])
        refused = await call("apply_primitive", image="a.tif", primitive="warmth")
        also = await call("reset", image="a.tif")
        branch = await call("branch", image="a.tif", name="again")
        more = await call("apply_primitive", image="a.tif", primitive="tint")
        log = await call("log", image="a.tif", limit=3)

    assert reset.data["snapshot_hash"] == baseline
    assert back.data["branch"] is None
    assert (refused.code, refused.reason) == ("state_error", "detached_head")
    assert (also.code, also.reason) == ("state_error", "detached_head")
    assert branch.data["branch"] == "again"
    assert more.data["state_after"]["entry_count"] == 2
    assert [line["op"] for line in log.data] == ["apply_primitive", "branch", "checkout"]
    assert log.data[0]["parent"] == edited.data["snapshot_hash"]


async def test_tags_never_move_and_a_branch_goes_before_a_tag(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        baseline = await _ingested(call, "a.tif")
        await call("tag", image="a.tif", name="one")
        await call("apply_primitive", image="a.tif", primitive="warmth")
        again = await call("tag", image="a.tif", name="one")
        await call("branch", image="a.tif", name="one")
        await call("checkout", image="a.tif", ref="main")
        branch = await call("checkout", image="a.tif", ref="one")
        tag = await call("checkout", image="a.tif", ref="refs/tags/one")
        twice = await call("branch", image="a.tif", name="main")
        from_tag = await call("branch", image="a.tif", name="two", **{"from": "refs/tags/one"})
        for name in ("HEAD", "deadbeef00", "a/b", "..", ""):
            refused = await call("tag", image="a.tif", name=name)
            assert refused.code == "invalid_input", name
        for ref in ("nosuch", "refs/heads/../../HEAD", "0123456789"):
            unknown = await call("checkout", image="a.tif", ref=ref)
            assert (unknown.code, unknown.reason) == ("not_found", "unknown_ref"), ref

    assert (again.code, again.reason) == ("state_error", "ref_exists")
    assert branch.data["branch"] == "one"
    assert (tag.data["branch"], tag.data["snapshot_hash"]) == (None, baseline)
    assert (twice.code, twice.reason) == ("state_error", "ref_exists")
    assert from_tag.data["snapshot_hash"] == baseline


async def test_diff_lists_entries_with_their_ids(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        for amount in (0.2, 0.4):
            await call("apply_primitive", image="a.tif", primitive="warmth", values={"amount": amount})
        whole = await call("diff", image="a.tif")
        ids = [entry["id"] for entry in whole.data["added"]]
        await call("tag", image="a.tif", name="before")
        await call("remove_module", image="a.tif", entry=ids[0])
        await call("remove_module", image="a.tif", primitive="warmth", disable=True)
        part = await call("diff", image="a.tif", a="before")
        await call("remove_module", image="a.tif", entry=ids[1])
        await call("apply_primitive", image="a.tif", primitive="warmth", values={"amount": 0.9})
        changed = await call("diff", image="a.tif", a="before")
        unknown = await call("remove_module", image="a.tif", entry=ids[0])
        both = await call("remove_module", image="a.tif", entry=ids[0], primitive="warmth")
        neither = await call("bind_layers", image="a.tif")

    assert [entry["values"]["amount"] for entry in whole.data["added"]] == [0.2, 0.4]
    assert [entry["id"] for entry in part.data["removed"]] == [ids[0]]
    assert [pair["to"]["enabled"] for pair in part.data["changed"]] == [False]
    assert [pair["to"]["values"] for pair in changed.data["changed"]] == [{"amount": 0.9}]
    assert (unknown.code, unknown.reason) == ("not_found", "unknown_entry")
    assert (both.code, neither.code) == ("invalid_input", "invalid_input")


async def test_equal_edits_have_different_ids(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        await call("apply_many", image="a.tif", steps=[{"primitive": "soften"}] * 3)
        diff = await call("diff", image="a.tif")
        await call("apply_many", image="a.tif", steps=[{"primitive": "grain"}] * 32)
        for _ in range(6):
            await call("apply_many", image="a.tif", steps=[{"primitive": "grain"}] * 32)
        full = await call("apply_many", image="a.tif", steps=[{"primitive": "grain"}] * 30)

    assert len({entry["id"] for entry in diff.data["added"]}) == 3
    assert full.code == "too_large"


async def test_a_look_takes_the_place_of_its_layer_alone(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        await call("apply_primitive", image="a.tif", primitive="exposure")
        await call("bind_layers", image="a.tif", l2="slide_film")
        await call("bind_layers", image="a.tif", l2="old_print")
        diff = await call("diff", image="a.tif")
        wrong_layer = await call("bind_layers", image="a.tif", l1="old_print")
        unknown = await call("bind_layers", image="a.tif", l2="nosuch")

    assert [(entry["layer"], entry["primitive"]) for entry in diff.data["added"]] == [
        ("L2", "contrast"),
        ("L2", "warmth"),
        ("L2", "grain"),
        ("L3", "exposure"),
    ]
    assert wrong_layer.code == "invalid_input"
    assert (unknown.code, unknown.reason) == ("not_found", "unknown_look")


async def test_values_and_regions_are_checked_when_applied(open_darkroom: OpenDarkroom) -> None:
    region = {"shape": "ellipse", "x": 0.2, "y": 0.2, "width": 0.5, "height": 0.5}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"primitive": "warmth", "values": {"amount": 2}}, "invalid_input"),
        ({"primitive": "warmth", "values": {"amount": "much"}}, "invalid_input"),
        ({"primitive": "warmth", "values": {"amount": True}}, "invalid_input"),
        ({"primitive": "warmth", "values": {"heat": 1}}, "invalid_input"),
        ({"primitive": "rotate", "values": {"degrees": 45}}, "invalid_input"),
        ({"primitive": "crop", "values": {"x": 0.6, "width": 0.6}}, "invalid_input"),
        ({"primitive": "warmth", "region": {**region, "x": 0.6}}, "invalid_input"),
        ({"primitive": "warmth", "region": {**region, "shape": "star"}}, "invalid_input"),
        ({"primitive": "crop", "region": region}, "not_supported"),
    ]
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        for arguments, code in wrong:
            answer = await call("apply_primitive", image="a.tif", **arguments)
            assert answer.code == code, arguments
        good = await call("apply_primitive", image="a.tif", primitive="rotate", values={"degrees": 90})
        also = await call("apply_primitive", image="a.tif", primitive="warmth", region=region)

    assert good.data["state_after"]["entry_count"] == 1
    assert also.data["state_after"]["entry_count"] == 2


async def test_a_state_goes_to_many_images_or_to_none(open_darkroom: OpenDarkroom, photographs: Path) -> None:
    names = [f"p{number}.jpg" for number in range(5)]
    for name in names:
        draw(photographs / name, 32, 24)
    async with open_darkroom() as call:
        await _ingested(call, "a.tif", *names)
        await call("apply_many", image="a.tif", steps=[{"primitive": "warmth"}, {"primitive": "crop"}])
        own = {"primitive": "crop", "values": {"width": 0.5}}
        await call("apply_primitive", image="p0.jpg", **own)
        await call("tag", image="p4.jpg", name="here")
        await call("checkout", image="p4.jpg", ref="here")
        refused = await call("propagate_state", source="a.tif", targets=names, exclude=["crop"])
        untouched = await call("get_state", image="p1.jpg")
        await call("checkout", image="p4.jpg", ref="main")
        done = await call("propagate_state", source="a.tif", targets=[*names, names[0]], exclude=["crop"])
        kept = await call("diff", image="p0.jpg")
        plain = await call("diff", image="p1.jpg")

    assert (refused.code, refused.reason) == ("state_error", "detached_head")
    assert untouched.data["state_after"]["entry_count"] == 0
    assert sorted(done.data["images"]) == names
    assert [(entry["primitive"], entry["values"].get("width")) for entry in kept.data["added"]] == [
        ("warmth", None),
        ("crop", 0.5),
    ]
    assert [entry["primitive"] for entry in plain.data["added"]] == ["warmth"]


async def test_the_vocabulary_is_listed_by_tag_and_engine(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        whole = await call("list_vocabulary")
        film = await call("list_vocabulary", tag="film", engine="darktable")
        dark = await call("list_vocabulary", engine="darktable")

    primitives = whole.data["primitives"]
    assert len(primitives) == 19
    assert primitives["warmth"]["parameters"] == {"amount": {"range": [-1.0, 1.0], "default": 0.3}}
    assert primitives["rotate"]["parameters"] == {"degrees": {"choices": ["90", "180", "270"], "default": "90"}}
    assert set(film.data["primitives"]) == {"black_and_white", "grain", "punch"}
    assert set(primitives) - set(dark.data["primitives"]) == {"vignette"}
    assert whole.data["looks"]["clean"]["layer"] == "L1"


async def test_a_gap_of_the_vocabulary_is_noted(open_darkroom: OpenDarkroom, tmp_path: Path) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        answer = await call(
            "log_vocabulary_gap",
            description="no way to lift shadows alone",
            intent="open the shadows",
            missing_capability="shadows",
            image="a.tif",
            satisfaction=-1,
        )

    (file,) = (tmp_path / "state").rglob("gaps.jsonl")
    assert answer.data == {"logged": True}
    assert '"missing_capability":"shadows"' in file.read_text()


async def test_a_forgotten_image_is_gone_and_its_photograph_is_not(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    async with open_darkroom() as call:
        await _ingested(call, "a.tif")
        forgotten = await call("forget_image", image="a.tif")
        again = await call("forget_image", image="a.tif")
        edit = await call("apply_primitive", image="a.tif", primitive="warmth")
        anew = await call("ingest", path="a.tif")

    assert forgotten.data == {"forgotten": "a.tif"}
    assert [(answer.code, answer.reason) for answer in (again, edit)] == [("not_found", "unknown_image")] * 2
    assert anew.data["state_after"]["entry_count"] == 0
    assert {"a.tif", "a.tif.darkroom", "b.jpg"} == set(names_in(photographs))


async def test_several_roots_are_distinguished_by_their_names(tmp_path: Path, photographs: Path) -> None:
    other = tmp_path / "holiday" / "sea"
    other.mkdir(parents=True)
    draw(other / "a.tif")
    roots = [str(photographs), str(tmp_path / "holiday")]
    async with open_yard(photographs, tmp_path / "state", roots=roots) as call:
        first = await call("ingest", path="photographs/a.tif")
        second = await call("ingest", path=str(other / "a.tif"))
        listed = await call("list_images", limit=1)
        rest = await call("list_images", after=listed.data["images"][0])
        unknown = await call("get_state", image="nowhere/a.tif")

    assert (first.data["image"], second.data["image"]) == ("photographs/a.tif", "holiday/sea/a.tif")
    assert listed.data == {"images": ["holiday/sea/a.tif"], "more": True}
    assert rest.data == {"images": ["photographs/a.tif"], "more": False}
    assert (unknown.code, unknown.reason) == ("permission_denied", "outside_roots")
