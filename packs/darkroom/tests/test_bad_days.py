"""What goes wrong with photographs, workspaces, disks and vocabularies: each has a code."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pyvips
from callyard_darkroom import PACK
from callyard_darkroom.images import Images
from callyard_darkroom.vocabulary import load_vocabulary
from darkroom_yards import Answer, OpenDarkroom, draw, names_in, open_yard

from callyard import PackError, Yard


def _failure(answer: Answer) -> tuple[str, str]:
    return answer.code, answer.reason


async def test_a_file_that_is_no_picture_is_refused(open_darkroom: OpenDarkroom, photographs: Path) -> None:
    (photographs / "text.jpg").write_text("hello")
    (photographs / "empty.png").write_bytes(b"")
    (photographs / "head.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")
    (photographs / "drawing.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    (photographs / "sound.wav").write_bytes(b"RIFF\x04\0\0\0WAVE")
    (photographs / "empty.dng").write_bytes(b"")
    async with open_darkroom() as call:
        for name in ("text.jpg", "empty.png", "head.png", "drawing.svg", "sound.wav"):
            assert _failure(await call("ingest", path=name)) == ("invalid_input", "not_a_picture"), name
        assert _failure(await call("ingest", path="nosuch.jpg")) == ("not_found", "image_gone")
        assert (await call("list_images")).data["images"] == []


async def test_a_picture_of_200_megapixels_is_refused_by_its_header(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    black = pyvips.Image.black(20_000, 10_000)
    black.write_to_file(str(photographs / "huge.png"), compression=1)
    async with open_darkroom() as call:
        answer = await call("ingest", path="huge.png")
    async with open_darkroom(max_megapixels=200) as call:
        taken = await call("ingest", path="huge.png")

    assert _failure(answer) == ("too_large", "too_many_pixels")
    assert (answer.details["megapixels"], answer.details["limit"]) == (200, 150)
    assert taken.code == ""


async def test_a_truncated_picture_fails_when_it_is_rendered(open_darkroom: OpenDarkroom, photographs: Path) -> None:
    whole = (photographs / "b.jpg").read_bytes()
    (photographs / "half.jpg").write_bytes(whole[: len(whole) // 2])
    async with open_darkroom() as call:
        await call("ingest", path="half.jpg")
        answer = await call("render_preview", image="half.jpg")

    assert _failure(answer) == ("upstream_error", "engine_failed")


async def test_nothing_outside_the_roots_is_read(
    open_darkroom: OpenDarkroom, photographs: Path, tmp_path: Path
) -> None:
    draw(tmp_path / "secret.tif")
    (photographs / "link.tif").symlink_to(tmp_path / "secret.tif")
    (photographs / "folder").symlink_to(tmp_path)
    (tmp_path / "space").mkdir()
    (photographs / "c.tif.darkroom").symlink_to(tmp_path / "space")
    draw(photographs / "c.tif")
    ways = ["../secret.tif", str(tmp_path / "secret.tif"), "link.tif", "folder/secret.tif", "c.tif", "", ".", "a\0b"]
    async with open_darkroom() as call:
        for way in ways:
            for tool, argument in (("ingest", "path"), ("get_state", "image"), ("forget_image", "image")):
                answer = await call(tool, **{argument: way})
                assert _failure(answer) == ("permission_denied", "outside_roots"), (tool, way)

    assert names_in(tmp_path / "space") == []


async def test_a_link_inside_the_roots_is_the_image_that_it_leads_to(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    (photographs / "link.tif").symlink_to(photographs / "a.tif")
    async with open_darkroom() as call:
        first = await call("ingest", path="link.tif")
        second = await call("ingest", path="a.tif")

    assert first.data["image"] == "a.tif"
    assert _failure(second) == ("state_error", "image_exists")


async def test_a_photograph_that_changed_or_is_gone_is_reported(open_darkroom: OpenDarkroom, photographs: Path) -> None:
    file = photographs / "a.tif"
    content = file.read_bytes()
    async with open_darkroom() as call:
        await call("ingest", path="a.tif")
        os.utime(file, (1, 1))
        touched = await call("render_preview", image="a.tif")
        file.write_bytes(content[:-1] + b"!")
        changed = await call("render_preview", image="a.tif")
        file.unlink()
        gone = await call("export_final", image="a.tif")
        edited = await call("apply_primitive", image="a.tif", primitive="warmth")
        file.write_bytes(content)
        back = await call("render_preview", image="a.tif")

    assert (touched.code, edited.code, back.code) == ("", "", "")
    assert _failure(changed) == ("state_error", "image_changed")
    assert _failure(gone) == ("not_found", "image_gone")


async def test_a_damaged_or_newer_workspace_is_reported(open_darkroom: OpenDarkroom, photographs: Path) -> None:
    folder = photographs / "a.tif.darkroom"
    async with open_darkroom() as call:
        base = (await call("ingest", path="a.tif")).data["snapshot_hash"]
        edited = (await call("apply_primitive", image="a.tif", primitive="warmth")).data["snapshot_hash"]
        (folder / "objects" / edited[:2] / edited[2:]).write_bytes(b"x")
        for tool, arguments in (("get_state", {}), ("render_preview", {}), ("diff", {}), ("reset", {})):
            answer = await call(tool, image="a.tif", **arguments)
            expected = "" if tool == "reset" else "damaged_object"
            assert answer.reason == expected, tool
        head = (folder / "HEAD").read_text()
        (folder / "HEAD").write_text("ref: refs/heads/nosuch\n")
        unborn = await call("get_state", image="a.tif")
        for tool, arguments in (
            ("apply_primitive", {"primitive": "warmth"}),
            ("render_preview", {}),
            ("tag", {"name": "x"}),
        ):
            answer = await call(tool, image="a.tif", **arguments)
            assert _failure(answer) == ("state_error", "no_baseline"), tool
        (folder / "HEAD").write_text(head)
        record = (folder / "image.json").read_text()
        (folder / "image.json").write_text('{"version":2,"layers":[]}')
        newer = await call("get_state", image="a.tif")
        (folder / "image.json").write_text('{"version":1')
        torn = await call("get_state", image="a.tif")
        (folder / "image.json").write_text(record.replace('"vips"', '"gimp"'))
        other = await call("render_preview", image="a.tif")
        (folder / "image.json").write_text(record)
        again = await call("ingest", path="a.tif")

    assert unborn.data["state_after"]["head_hash"] is None
    assert base
    assert _failure(newer) == ("state_error", "newer_workspace")
    assert _failure(torn) == ("state_error", "damaged_object")
    assert _failure(other) == ("upstream_unavailable", "engine_missing")
    assert _failure(again) == ("state_error", "image_exists")


async def test_an_object_that_only_a_newer_pack_can_read_is_reported(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    async with open_darkroom() as call:
        await call("ingest", path="a.tif")
        versions = Images([photographs]).open("a.tif").versions
        with versions.lock():
            versions.move("main", versions.write(b'{"entries":"another form"}'))
        answer = await call("get_state", image="a.tif")

    assert _failure(answer) == ("state_error", "newer_workspace")


async def test_a_primitive_that_left_the_vocabulary_is_reported(open_darkroom: OpenDarkroom, tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    text = '[primitive.dusk]\nsummary = "Dark."\nvips = { operation = "exposure", ev = -2 }\n'
    (folder / "mine.toml").write_text(text)
    async with open_darkroom(vocabulary=str(folder)) as call:
        await call("ingest", path="a.tif")
        await call("apply_primitive", image="a.tif", primitive="dusk")
        fine = await call("render_preview", image="a.tif")
    async with open_darkroom() as call:
        answer = await call("render_preview", image="a.tif")

    assert fine.code == ""
    assert _failure(answer) == ("not_found", "unknown_primitive")


@contextmanager
def _small_disk(folder: Path) -> Generator[None]:
    """Mount a disk of 64 kB, or skip the test."""
    folder.mkdir()
    command = ["/bin/mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - the system's own
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["/bin/umount", str(folder)], check=True)  # noqa: S603 - the same


def _fill(path: Path) -> None:
    with path.open("wb", 0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(512)):
            pass


async def test_a_full_disk_is_reported_and_keeps_the_files(tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk"):
        draw(tmp_path / "disk" / "a.tif", 40, 30)
        async with open_yard(tmp_path / "disk", tmp_path / "state") as call:
            await call("ingest", path="a.tif")
            before = await call("get_state", image="a.tif")
            _fill(tmp_path / "disk" / "filler")
            full = await call("apply_primitive", image="a.tif", primitive="warmth")
            export = await call("export_final", image="a.tif")
            after = await call("get_state", image="a.tif")
            (tmp_path / "disk" / "filler").unlink()
            freed = await call("apply_primitive", image="a.tif", primitive="warmth")

    assert (_failure(full), _failure(export)) == (("state_error", "disk_full"), ("state_error", "disk_full"))
    assert after.data == before.data
    assert freed.code == ""


async def test_a_file_that_cannot_be_written_takes_back_what_others_got(
    open_darkroom: OpenDarkroom, photographs: Path
) -> None:
    draw(photographs / "c.tif", 32, 24)
    async with open_darkroom() as call:
        for name in ("a.tif", "b.jpg", "c.tif"):
            await call("ingest", path=name)
        steps = [{"primitive": "warmth", "values": {"amount": number / 100}} for number in range(20)]
        await call("apply_many", image="a.tif", steps=steps)
        own = {"primitive": "crop", "values": {"width": 0.5}}
        await call("apply_primitive", image="c.tif", **own)
        log = photographs / "c.tif.darkroom" / "log.jsonl"
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        filler = b"\n" * 200_000
        log.write_bytes(log.read_bytes() + filler)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            answer = await call("propagate_state", source="a.tif", targets=["b.jpg", "c.tif"])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        first = await call("get_state", image="b.jpg")
        second = await call("get_state", image="c.tif")

    assert _failure(answer) == ("state_error", "disk_full")
    assert first.data["state_after"]["entry_count"] == 0
    assert second.data["state_after"]["entry_count"] == 1


async def test_a_folder_that_may_not_be_written_is_reported(
    open_darkroom: OpenDarkroom, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path), None, str(target))

    async with open_darkroom() as call:
        monkeypatch.setattr(Path, "rename", refuse)  # as for any user but root
        ingest = await call("ingest", path="a.tif")
        monkeypatch.undo()
        await call("ingest", path="a.tif")

    assert _failure(ingest) == ("permission_denied", "not_writable")
    assert names_in(photographs) == ["a.tif", "a.tif.darkroom", "b.jpg"]


WRONG_WORDS = {
    "no TOML": "[primitive",
    "unknown key": '[primitive.x]\nsummary = "x"\ncolour = 1\nvips = { operation = "exposure", ev = 1 }',
    "no engine": '[primitive.x]\nsummary = "x"',
    "known name": '[primitive.exposure]\nsummary = "x"\nvips = { operation = "exposure", ev = 1 }',
    "wrong name": '[primitive.X]\nsummary = "x"\nvips = { operation = "exposure", ev = 1 }',
    "geometry": '[primitive.x]\nsummary = "x"\ngeometry = true',
    "operation": '[primitive.x]\nsummary = "x"\nvips = { operation = "nosuch" }',
    "argument": '[primitive.x]\nsummary = "x"\nvips = { operation = "exposure", amount = 1 }',
    "parameter": '[primitive.x]\nsummary = "x"\nvips = { operation = "exposure", ev = "amount" }',
    "newer module": '[primitive.x]\nsummary = "x"\ndarktable = { module = "exposure", version = 6, values = [] }',
    "unknown module": '[primitive.x]\nsummary = "x"\ndarktable = { module = "nosuch", version = 1, values = [] }',
    "length": '[primitive.x]\nsummary = "x"\ndarktable = { module = "vibrance", version = 2, values = [1, 2] }',
    "no range": '[primitive.x]\nsummary = "x"\nparameters.a = { default = 1 }\n'
    'vips = { operation = "exposure", ev = "a" }',
    "default": '[primitive.x]\nsummary = "x"\nparameters.a = { default = 9, min = 0, max = 1 }\n'
    'vips = { operation = "exposure", ev = "a" }',
    "words and range": '[primitive.x]\nsummary = "x"\nparameters.a = { default = 1, choices = ["a"] }\n'
    'vips = { operation = "exposure", ev = 1 }',
    "look": '[look.x]\nsummary = "x"\nlayer = "L2"\nsteps = [{ primitive = "nosuch" }]',
    "layer": '[look.x]\nsummary = "x"\nlayer = "L3"\nsteps = []',
    "value of a look": '[look.x]\nsummary = "x"\nlayer = "L2"\nsteps = [{ primitive = "warmth", values = { b = 1 } }]',
}


def test_a_wrong_vocabulary_is_refused_with_its_file(tmp_path: Path) -> None:
    for fault, text in WRONG_WORDS.items():
        (tmp_path / "mine.toml").write_text(text)
        with pytest.raises(ValueError, match=r"'mine\.toml'"):
            load_vocabulary(tmp_path)
        assert fault


async def test_a_wrong_configuration_keeps_the_pack_closed(tmp_path: Path, photographs: Path) -> None:
    twin = tmp_path / "other" / "photographs"
    twin.mkdir(parents=True)
    wrong: list[dict[str, Any]] = [
        {},
        {"roots": []},
        {"roots": [str(tmp_path / "nosuch")]},
        {"roots": [str(photographs), str(twin)]},
        {"roots": [str(photographs)], "vocabulary": str(tmp_path / "nosuch")},
        {"roots": [str(photographs)], "engine": "gimp"},
    ]
    for table in wrong:
        yard = Yard(packs=[PACK], pack_settings={"darkroom": table}, state_dir=str(tmp_path / "state"))
        with pytest.raises(PackError):
            async with yard:
                pass
