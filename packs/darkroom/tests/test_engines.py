"""Both engines on real pictures: each edit has its effect, and no edit is lost in silence."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import pyvips
from callyard_darkroom.darktable import Darktable, Edit
from callyard_darkroom.engines import Slots, in_thread
from callyard_darkroom.images import read_source
from callyard_darkroom.vocabulary import load_vocabulary
from darkroom_yards import Answer, CallTool, OpenDarkroom, draw, names_in
from raw_files import write_dng

from callyard import PackContext, ToolError

VOCABULARY = load_vocabulary()
EXPOSURE = "00000000" + "00000000" + "0000803f" + "00004842" + "000080c0"


class Look(NamedTuple):
    """What a picture looks like."""

    width: int
    height: int
    light: float
    contrast: float
    chroma: float
    a: float
    b: float
    detail: float
    corners: list[list[float]]


def look(answer: Answer) -> Look:
    """Look at the picture of a preview."""
    image = pyvips.Image.new_from_buffer(answer.pictures[0], "").copy_memory()
    lab = image.colourspace("lab")
    chroma = (lab[1] ** 2 + lab[2] ** 2) ** 0.5
    detail = (lab[0] - lab[0].gaussblur(1.5)).abs().avg()
    places = ((6, 6), (image.width - 7, 6), (6, image.height - 7), (image.width - 7, image.height - 7))
    corners = [[float(value) for value in image(x, y)] for x, y in places]
    means = (lab[0].avg(), lab[0].deviate(), chroma.avg(), lab[1].avg(), lab[2].avg(), detail)
    return Look(image.width, image.height, *means, corners=corners)


DIRECTIONS: dict[str, tuple[dict[str, Any], Callable[[Look, Look], bool]]] = {
    "exposure": ({}, lambda was, now: now.light > was.light + 2),
    "black_point": ({"amount": 0.05}, lambda was, now: now.light < was.light - 1),
    "brightness": ({}, lambda was, now: now.light > was.light + 2),
    "contrast": ({}, lambda was, now: now.contrast > was.contrast * 1.05),
    "saturation": ({}, lambda was, now: now.chroma > was.chroma * 1.05),
    "vibrance": ({"amount": 0.8}, lambda was, now: now.chroma > was.chroma * 1.05),
    "punch": ({"amount": 0.8}, lambda was, now: now.chroma > was.chroma * 1.05),
    "warmth": ({}, lambda was, now: now.b > was.b + 3),
    "tint": ({}, lambda was, now: now.a > was.a + 2),
    "black_and_white": ({}, lambda was, now: now.chroma < 3 < was.chroma),
    "soften": ({"amount": 0.6}, lambda was, now: now.light > was.light + 0.5),
    "glow": ({"amount": 0.8}, lambda was, now: now.light > was.light + 0.5),
    "grain": ({"amount": 1}, lambda was, now: now.detail > was.detail * 1.2),
    "clarity": ({"amount": 1.5}, lambda was, now: now.contrast > was.contrast * 1.02),
    "sharpen": ({"amount": 2}, lambda was, now: now.detail > was.detail * 1.05),
    "crop": ({"width": 0.5}, lambda was, now: (now.width, now.height) == (was.width // 2, was.height)),
    "rotate": ({}, lambda was, now: _near(now.corners, [was.corners[place] for place in (2, 0, 3, 1)])),
    "mirror": ({}, lambda was, now: _near(now.corners, [was.corners[place] for place in (1, 0, 3, 2)])),
}
"""What each primitive must change."""


def _near(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(abs(one - other) < 12 for left, right in pairs for one, other in zip(left, right, strict=True))


async def _preview(call: CallTool, image: str, ref: str = "HEAD") -> Look:
    answer = await call("render_preview", image=image, ref=ref, size=512)
    assert answer.code == "", answer
    return look(answer)


async def _wrong_directions(call: CallTool, engine: str) -> list[str]:
    await call("ingest", path="a.tif", engine=engine)
    was = await _preview(call, "a.tif")
    versions: dict[str, str] = {}
    for name, (values, _) in DIRECTIONS.items():
        applied = await call("apply_primitive", image="a.tif", primitive=name, values=values)
        versions[name] = applied.data["snapshot_hash"]
        await call("reset", image="a.tif")
    looks = await asyncio.gather(*[_preview(call, "a.tif", ref) for ref in versions.values()])
    return [
        f"{name}: {was} {now}" for name, now in zip(versions, looks, strict=True) if not DIRECTIONS[name][1](was, now)
    ]


async def test_each_primitive_has_its_effect_in_vips(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        assert await _wrong_directions(call, "vips") == []


async def test_each_primitive_has_its_effect_in_darktable(open_darkroom: OpenDarkroom, darktable: str) -> None:
    async with open_darkroom(darktable=darktable) as call:
        assert await _wrong_directions(call, "darktable") == []


def test_all_primitives_of_both_engines_are_measured() -> None:
    both = {name for name, primitive in VOCABULARY.primitives.items() if len(primitive.engines) == 2}

    assert both == set(DIRECTIONS)
    assert len(both) >= 14


async def test_other_directions_and_amounts_of_vips(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await call("ingest", path="a.tif")
        was = await _preview(call, "a.tif")
        found: dict[str, Look] = {}
        edits: list[tuple[str, str, dict[str, Any]]] = [
            ("dark", "exposure", {"ev": -1}),
            ("lifted", "black_point", {"amount": -0.05}),
            ("cool", "warmth", {"amount": -0.5}),
            ("vignette", "vignette", {"amount": 1}),
            ("vertical", "mirror", {"axis": "vertical"}),
            ("half", "rotate", {"degrees": 180}),
        ]
        for key, primitive, values in edits:
            await call("apply_primitive", image="a.tif", primitive=primitive, values=values)
            found[key] = await _preview(call, "a.tif")
            await call("reset", image="a.tif")

    assert found["dark"].light < was.light < found["lifted"].light
    assert found["cool"].b < was.b
    assert sum(found["vignette"].corners[0]) < sum(was.corners[0])
    assert _near(found["vertical"].corners, [was.corners[place] for place in (2, 3, 0, 1)])
    assert _near(found["half"].corners, was.corners[::-1])


async def test_both_engines_frame_a_picture_alike_in_any_order(open_darkroom: OpenDarkroom, darktable: str) -> None:
    steps: list[dict[str, Any]] = [
        {"primitive": "crop", "values": {"x": 0.1, "width": 0.6, "height": 0.8}},
        {"primitive": "rotate", "values": {"degrees": 90}},
        {"primitive": "mirror"},
        {"primitive": "crop", "values": {"y": 0.25, "height": 0.5}},
        {"primitive": "mirror", "values": {"axis": "vertical"}},
        {"primitive": "rotate", "values": {"degrees": 270}},
    ]
    async with open_darkroom(darktable=darktable) as call:
        for name, engine in (("a.tif", "vips"), ("b.jpg", "darktable")):
            await call("ingest", path=name, engine=engine)
        for count in (4, 5, 6):
            for name in ("a.tif", "b.jpg"):
                await call("reset", image=name)
                await call("apply_many", image=name, steps=steps[:count])
            first, second = await _preview(call, "a.tif"), await _preview(call, "b.jpg")
            assert (abs(first.width - second.width), abs(first.height - second.height)) <= (2, 2)
            assert _near(first.corners, second.corners), (count, first.corners, second.corners)


async def test_the_same_edits_have_the_same_pixels(open_darkroom: OpenDarkroom, darktable: str) -> None:
    steps = [{"primitive": name} for name in ("exposure", "grain", "exposure", "warmth", "tint", "sharpen")]
    async with open_darkroom(darktable=darktable) as call:
        for name, engine in (("a.tif", "vips"), ("b.jpg", "darktable")):
            await call("ingest", path=name, engine=engine)
            await call("apply_many", image=name, steps=steps)
            first = await call("render_preview", image=name, size=128)
            second = await call("render_preview", image=name, size=128)
            assert first.pictures == second.pictures
            assert first.pictures[0]


async def test_several_edits_of_one_module_of_darktable_all_apply(open_darkroom: OpenDarkroom, darktable: str) -> None:
    async with open_darkroom(darktable=darktable) as call:
        await call("ingest", path="a.tif", engine="darktable")
        await call("apply_primitive", image="a.tif", primitive="exposure", values={"ev": 0.5})
        once = await _preview(call, "a.tif")
        await call("apply_primitive", image="a.tif", primitive="exposure", values={"ev": 0.5})
        twice = await _preview(call, "a.tif")

    assert twice.light > once.light + 2


async def test_a_region_is_edited_and_the_rest_is_not(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await call("ingest", path="a.tif")
        was = await _preview(call, "a.tif")
        for shape in ("rectangle", "ellipse"):
            region = {"shape": shape, "x": 0, "y": 0, "width": 0.5, "height": 0.5, "feather": 0}
            await call("apply_primitive", image="a.tif", primitive="exposure", values={"ev": 2}, region=region)
            now = await _preview(call, "a.tif")
            inside = await call("measure", image="a.tif", x=0.25, y=0.25)
            outside = await call("measure", image="a.tif", x=0.75, y=0.75, radius=0)
            before = await call("measure", image="a.tif", ref="refs/heads/main", x=0.75, y=0.75, radius=0)
            assert _near(now.corners[1:], was.corners[1:]), shape
            assert (sum(now.corners[0]) > sum(was.corners[0]) + 50) is (shape == "rectangle")
            assert sum(inside.data["sample"]) > 400
            assert outside.data["sample"] == before.data["sample"]
            await call("reset", image="a.tif")


async def test_a_primitive_that_the_engine_lacks_is_refused_when_applied(
    open_darkroom: OpenDarkroom, darktable: str
) -> None:
    region = {"shape": "ellipse", "x": 0, "y": 0, "width": 0.5, "height": 0.5}
    async with open_darkroom(darktable=darktable) as call:
        await call("ingest", path="a.tif", engine="darktable")
        await call("ingest", path="b.jpg", engine="vips")
        vignette = await call("apply_primitive", image="a.tif", primitive="vignette")
        local = await call("apply_primitive", image="a.tif", primitive="exposure", region=region)
        await call("apply_primitive", image="b.jpg", primitive="vignette")
        passed_on = await call("propagate_state", source="b.jpg", targets=["a.tif"])

    for answer in (vignette, local, passed_on):
        assert (answer.code, answer.reason) == ("not_supported", "engine_lacks")


async def test_pictures_of_many_kinds_are_read(open_darkroom: OpenDarkroom, photographs: Path) -> None:
    plain = pyvips.Image.new_from_file(str(photographs / "a.tif"))
    plain.bandjoin(128).write_to_file(str(photographs / "alpha.png"))
    plain.colourspace("b-w").write_to_file(str(photographs / "grey.jpg"))
    (plain.cast("ushort") * 257).cast("ushort").copy(interpretation="rgb16").write_to_file(
        str(photographs / "deep.tif")
    )
    deep16 = pyvips.Image.new_from_file(str(photographs / "deep.tif"))
    deep16.bandjoin(65535).icc_transform("srgb", input_profile="srgb", depth=16).write_to_file(
        str(photographs / "deep.png"), profile="srgb"
    )
    plain.colourspace("cmyk").write_to_file(str(photographs / "print.jpg"))
    plain.write_to_file(str(photographs / "a [1].webp"))
    turned = plain.copy()
    turned.set_type(pyvips.GValue.gint_type, "orientation", 6)
    turned.write_to_file(str(photographs / "turned.jpg"))
    async with open_darkroom() as call:
        for name in ("alpha.png", "grey.jpg", "deep.tif", "deep.png", "print.jpg", "a [1].webp", "turned.jpg"):
            await call("ingest", path=name)
            await call("apply_primitive", image=name, primitive="warmth")
            preview = await _preview(call, name)
            assert (preview.width, preview.height) == ((200, 300) if name == "turned.jpg" else (300, 200)), name
            assert preview.b > 3, name
        deep = [await _preview(call, name) for name in ("deep.tif", "deep.png")]
        smaller = await call("render_preview", image="deep.tif", size=64)
        await call("ingest", path="a.tif")
        await call("apply_primitive", image="a.tif", primitive="warmth")
        same = await _preview(call, "a.tif")

    assert [_near(picture.corners, same.corners) for picture in deep] == [True, True]
    assert smaller.data["width"] == 64


async def test_an_export_has_every_pixel_and_no_metadata_and_is_never_overwritten(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    async with open_darkroom() as call:
        await call("ingest", path="a.tif")
        await call("apply_primitive", image="a.tif", primitive="warmth")
        exported = [await call("export_final", image="a.tif", format=form) for form in ("jpeg", "png", "tiff", "webp")]
        again = await call("export_final", image="a.tif")
        file = photographs / exported[0].data["file"]
        file.write_bytes(b"mine")
        beside = await call("export_final", image="a.tif", quality=80)
        small = await call("export_final", image="a.tif", size=64, format="png")

    for answer in exported[1:]:
        image = pyvips.Image.new_from_file(str(photographs / answer.data["file"]))
        assert (image.width, image.height) == (300, 200)
        assert "exif-data" not in image.get_fields()
    assert again.data == exported[0].data
    assert file.read_bytes() == b"mine"
    assert beside.data["file"] != exported[0].data["file"]
    assert (small.data["width"], small.data["height"]) == (64, 43)
    assert len(names_in(photographs / "darkroom-exports")) == 6


async def test_two_versions_are_compared_and_measured(open_darkroom: OpenDarkroom) -> None:
    async with open_darkroom() as call:
        await call("ingest", path="a.tif")
        await call("apply_primitive", image="a.tif", primitive="exposure", values={"ev": 3})
        await call("branch", image="a.tif", name="part")
        await call("apply_primitive", image="a.tif", primitive="crop", values={"width": 0.5})
        other = await call("compare", image="a.tif", a="main", b="part")
        base = (await call("get_state", image="a.tif")).data["baseline"]
        same = await call("compare", image="a.tif", a=base, b="main", size=64)
        measured = await call("measure", image="a.tif", ref="main")

    assert other.data["same_size"] is False
    assert same.data["same_size"] is True
    assert min(same.data["mean_change"]) > 20
    assert pyvips.Image.new_from_buffer(same.pictures[0], "").width == 64 * 2 + 8
    assert measured.data["red"]["clipped_high"] > 0.05
    assert abs(sum(measured.data["lightness"]["histogram"]) - 1) < 0.01


async def test_a_raw_file_is_rendered_by_darktable_alone(
    open_darkroom: OpenDarkroom, photographs: Path, darktable: str
) -> None:
    write_dng(photographs / "raw.dng", width=96, height=64, orientation=6)
    (photographs / "broken.dng").write_bytes(b"II*\0\x08\0\0\0" + bytes(200))
    async with open_darkroom(darktable=darktable) as call:
        refused = await call("ingest", path="raw.dng", engine="vips")
        broken = await call("ingest", path="broken.dng")
        taken = await call("ingest", path="raw.dng")
        preview = await _preview(call, "raw.dng")
        await call("apply_primitive", image="raw.dng", primitive="rotate", values={"degrees": 270})
        turned = await _preview(call, "raw.dng")

    assert (refused.code, refused.reason) == ("not_supported", "engine_lacks")
    assert (broken.code, broken.reason) == ("invalid_input", "not_a_picture")
    assert (taken.data["engine"], taken.data["width"], taken.data["height"]) == ("darktable", 96, 64)
    assert preview.height > preview.width
    assert preview.corners[0][0] > preview.corners[0][2]
    assert preview.corners[2][0] < preview.corners[2][2]
    assert turned.width > turned.height


def _engine(tmp_path: Path, program: str, **options: Any) -> Darktable:
    context = PackContext("darkroom", config=None, secrets={}, find_folder=lambda: tmp_path / "pack")
    return Darktable(program, VOCABULARY, context, **options)


async def test_the_ways_in_which_darktable_loses_an_edit_are_failures(tmp_path: Path, darktable: str) -> None:
    source = read_source(draw(tmp_path / "a.tif"))
    first_writes = _script(tmp_path / "first", f'[ "$1" = --version ] || echo x > "$3"\nexec {darktable} "$@"')
    good = Edit("exposure", 5, EXPOSURE)
    ways: dict[str, tuple[Darktable, Edit]] = {
        "newer version": (_engine(tmp_path, darktable), Edit("exposure", 99, EXPOSURE)),
        "unknown module": (_engine(tmp_path, darktable), Edit("nosuch", 1, EXPOSURE)),
        "wrong length": (_engine(tmp_path, darktable), Edit("exposure", 5, EXPOSURE[:-8])),
        "no hexadecimal": (_engine(tmp_path, darktable), Edit("exposure", 5, "zz" * 20)),
        "no XMP": (_engine(tmp_path, darktable, document="<x:xmpmeta"), good),
        "no history": (_engine(tmp_path, darktable, document="<x:xmpmeta xmlns:x='adobe:ns:meta/'/>"), good),
        "output exists": (_engine(tmp_path, first_writes), good),
    }
    for way, (engine, edit) in ways.items():
        with pytest.raises(ToolError) as caught:
            await engine.render_edits(source, [edit], 128, lambda picture: picture.width)
        assert (caught.value.code, caught.value.details["reason"]) == ("upstream_error", "edit_dropped"), way
    assert await _engine(tmp_path, darktable).render_edits(source, [good], 128, lambda picture: picture.width) == 128


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_without_darktable_the_other_engine_works_and_none_takes_its_place(
    open_darkroom: OpenDarkroom, photographs: Path, tmp_path: Path
) -> None:
    programs = {
        "missing": "no-such-darktable",
        "old": _script(tmp_path / "old", "echo this is darktable-cli 3.8.1"),
        "strange": _script(tmp_path / "strange", "exit 3"),
    }
    for program in programs.values():
        async with open_darkroom(darktable=program) as call:
            refused = await call("ingest", path="a.tif", engine="darktable")
            assert (refused.code, refused.reason) == ("upstream_unavailable", "engine_missing"), program
    async with open_darkroom(darktable=_script(tmp_path / "new", "echo this is darktable-cli 4.2.1")) as call:
        await call("ingest", path="a.tif", engine="darktable")
    async with open_darkroom(darktable="no-such-darktable") as call:
        preview = await call("render_preview", image="a.tif")
        fine = await call("ingest", path="b.jpg")

    assert (preview.code, preview.reason) == ("upstream_unavailable", "engine_missing")
    assert fine.code == ""


async def test_a_darktable_that_fails_says_why(open_darkroom: OpenDarkroom, tmp_path: Path) -> None:
    script = 'if [ "$1" = --version ]; then echo darktable 9.0; else echo out of memory >&2; exit 1; fi'
    async with open_darkroom(darktable=_script(tmp_path / "failing", script)) as call:
        await call("ingest", path="a.tif", engine="darktable")
        answer = await call("render_preview", image="a.tif")

    assert (answer.code, answer.reason) == ("upstream_error", "engine_failed")
    assert "out of memory" in answer.details["stderr"]


async def test_a_picture_of_darktable_that_cannot_be_read_is_a_failure(
    open_darkroom: OpenDarkroom, photographs: Path, tmp_path: Path
) -> None:
    script = 'if [ "$1" = --version ]; then echo darktable 9.0; else echo nothing > "$3"; fi'
    write_dng(photographs / "raw.dng", width=16, height=16)
    async with open_darkroom(darktable=_script(tmp_path / "strange", script)) as call:
        await call("ingest", path="a.tif", engine="darktable")
        answer = await call("render_preview", image="a.tif")
        raw = await call("ingest", path="raw.dng")
    async with open_darkroom(darktable="no-such-darktable") as call:
        missing = await call("ingest", path="raw.dng")

    assert (answer.code, answer.reason) == ("upstream_error", "engine_failed")
    assert (raw.code, raw.reason) == ("invalid_input", "not_a_picture")
    assert (missing.code, missing.reason) == ("upstream_unavailable", "engine_missing")


async def test_a_cancelled_render_ends_its_program(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    script = f'if [ "$1" = --version ]; then echo darktable 9.0; else echo $$ > {started}; exec sleep 600; fi'
    engine = _engine(tmp_path, _script(tmp_path / "slow", script))
    source = read_source(draw(tmp_path / "a.tif"))
    rendering = asyncio.ensure_future(engine.render(source, [], 64, lambda picture: picture.width))
    pid = int(await asyncio.to_thread(started.read_text))
    rendering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rendering

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert names_in(tmp_path / "pack" / "renders") == ["lock"]


async def test_folders_of_killed_processes_are_removed_and_those_of_others_are_not(tmp_path: Path) -> None:
    started, goal = tmp_path / "started", tmp_path / "goal"
    os.mkfifo(started)
    os.mkfifo(goal)
    script = f'if [ "$1" = --version ]; then echo darktable 9.0; else echo > {started}; read -r _ < {goal}; fi'
    engine = _engine(tmp_path, _script(tmp_path / "slow", script))
    source = read_source(draw(tmp_path / "a.tif"))
    rendering = asyncio.ensure_future(engine.render(source, [], 64, lambda picture: picture.width))
    await asyncio.to_thread(started.read_text)
    renders = tmp_path / "pack" / "renders"
    (renders / "render-of-the-dead").mkdir()
    await asyncio.to_thread(engine.sweep)
    left = names_in(renders)
    await asyncio.to_thread(goal.write_text, "go\n")
    with pytest.raises(ToolError):
        await rendering

    assert "render-of-the-dead" not in left
    assert len(left) == 2


async def test_two_renders_run_at_a_time_and_no_more() -> None:
    slots, running, seen = Slots(), 0, [0]
    go, two = asyncio.Event(), asyncio.Event()

    async def render() -> None:
        nonlocal running
        running += 1
        seen.append(running)
        if running > 1:
            two.set()
        await go.wait()
        running -= 1

    tasks = [asyncio.ensure_future(slots.run(render)) for _ in range(6)]
    await two.wait()
    go.set()
    await asyncio.gather(*tasks)

    assert max(seen) == 2


async def test_a_cancelled_render_in_a_thread_keeps_its_place_until_the_thread_ends() -> None:
    inside, loop, go = asyncio.Event(), asyncio.get_running_loop(), asyncio.Event()

    def fail() -> None:
        loop.call_soon_threadsafe(inside.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        raise ValueError

    slots = Slots(1)
    first = asyncio.ensure_future(slots.run(lambda: in_thread(fail)))
    await inside.wait()
    first.cancel()
    second = asyncio.ensure_future(slots.run(lambda: in_thread(lambda: 1)))
    await asyncio.sleep(0)
    assert not second.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await first

    assert await second == 1
