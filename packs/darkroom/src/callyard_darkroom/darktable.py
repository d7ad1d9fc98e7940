"""The engine 'darktable': one run of `darktable-cli` for each render, checked against all that it loses in silence.

darktable answers 0 for edits that it ignored. So each edit is written in the oldest version of its parameters, each run
has folders of its own, complaints are failures, and the history in the picture must have every edit.
"""

import fcntl
import os
import re
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

import pyvips

from callyard import PackContext, ToolError
from callyard_darkroom.engines import Finish, engine_failed, in_thread
from callyard_darkroom.images import Source
from callyard_darkroom.state import Entry, Frame, frame_of
from callyard_darkroom.vocabulary import MODULES, Primitive, Vocabulary, evaluate

__all__ = ["Darktable", "Edit"]

T = TypeVar("T")
_OLDEST: Final = (4, 2)
_TAIL: Final = 2000
_COMPLAINTS: Final = re.compile(
    r"version mismatch|not installed|parsed with errors|will get renamed|can't open XMP|not used but enabled"
)
_LOST_PLACE: Final = re.compile(r"cannot get iop-order for (\w+) instance (\d+)")
_KEPT: Final = re.compile(r"<rdf:li\b[^>]*>", re.DOTALL)
_ATTRIBUTE: Final = re.compile(r'darktable:(operation|multi_priority|enabled)\s*=\s*"([^"]*)"')
_ORIENTATIONS: Final[Mapping[tuple[bool, int], int]] = {
    (False, 0): 0,
    (False, 1): 5,
    (False, 2): 3,
    (False, 3): 6,
    (True, 0): 2,
    (True, 1): 7,
    (True, 2): 1,
    (True, 3): 4,
}
"""darktable's numbers: bit 1 is above and below, bit 2 is left and right, bit 4 exchanges the axes."""
_ORDER: Final = (
    *("rawprepare", "invert", "temperature", "highlights", "cacorrect", "hotpixels", "rawdenoise", "demosaic"),
    *("denoiseprofile", "lens", "flip", "crop", "exposure", "colorin", "highpass", "sharpen", "colisa", "bilat"),
    *("colorcorrection", "velvia", "vibrance", "bloom", "monochrome", "grain", "soften", "splittoning"),
    *("colorout", "finalscale", "gamma"),
)
"""Where modules run that have several instances; only then darktable needs to be told."""
_DOCUMENT: Final = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:darktable="http://darktable.sf.net/" darktable:xmp_version="4"
 darktable:raw_params="0" darktable:auto_presets_applied="1" darktable:history_end="{count}" {order}>
<darktable:history><rdf:Seq>
{items}
</rdf:Seq></darktable:history></rdf:Description></rdf:RDF></x:xmpmeta>
"""
_ITEM: Final = (
    '<rdf:li darktable:num="{number}" darktable:operation="{edit.module}" darktable:enabled="1" '
    'darktable:modversion="{edit.version}" darktable:params="{edit.parameters}" darktable:multi_name="{name}" '
    'darktable:multi_priority="{instance}"/>'
)


class Edit(NamedTuple):
    """One item of darktable's history: a module, and the version and the hexadecimal text of its parameters."""

    module: str
    version: int
    parameters: str


class Darktable:
    """Renders with `darktable-cli`."""

    name = "darktable"

    def __init__(
        self, program: str, vocabulary: Vocabulary, context: PackContext, *, document: str = _DOCUMENT
    ) -> None:
        self._program = program
        self._vocabulary = vocabulary
        self._context = context
        self._document = document
        self._is_probed = False

    async def probe(self) -> None:
        """Check that the program is there and new enough."""
        if self._is_probed:
            return
        code, text = await self._run("--version")
        found = re.search(r"darktable(?:-cli)? (\d+)\.(\d+)", text)
        if code or found is None:
            message = "darktable is not installed here. Run 'apt install darktable', then call again."
        elif (int(found[1]), int(found[2])) < _OLDEST:
            message = f"darktable {found[1]}.{found[2]} is too old: 4.2 is needed."
        else:
            self._is_probed = True
            return
        raise ToolError("upstream_unavailable", message, reason="engine_missing", engine=self.name)

    def lacks(self, primitive: Primitive, *, has_region: bool) -> str:
        """Return what it lacks for an edit."""
        if self.name not in primitive.engines:
            return f"has no '{primitive.name}'"
        return "has no regions" if has_region else ""

    async def render(self, source: Source, entries: Sequence[Entry], size: int | None, finish: Finish[T]) -> T:
        """Render by the program, into a folder of its own."""
        return await self.render_edits(source, self._edits(source, entries), size, finish)

    async def render_edits(self, source: Source, edits: Sequence[Edit], size: int | None, finish: Finish[T]) -> T:
        """Render a history; a wrong one is `upstream_error`, reason `edit_dropped`."""
        await self.probe()
        for edit in edits:
            if not _has_its_length(edit):
                raise _dropped(f"the parameters of '{edit.module}' are not what the module takes")
        with self._folder() as folder:
            sidecar, output = folder / "edits.xmp", folder / "picture.tif"
            sidecar.write_text(self._write(edits), "utf-8")
            code, text = await self._run(*_arguments(source.path, folder, size))
            self._check(text, edits)
            if code or not output.is_file():
                raise engine_failed(self.name, text)
            return await in_thread(partial(self._finish, output, edits, size, finish))

    def _finish(self, output: Path, edits: Sequence[Edit], size: int | None, finish: Finish[T]) -> T:
        try:
            image = pyvips.Image.new_from_file(str(output))
            self._check_history(_metadata(image), edits)
            picture = image.colourspace("srgb")
            if size is not None and max(picture.width, picture.height) > size:
                picture = picture.thumbnail_image(size, height=size, size="down")
            return finish(picture)
        except pyvips.Error as error:
            raise engine_failed(self.name, str(error)) from None

    def _edits(self, source: Source, entries: Sequence[Entry]) -> list[Edit]:
        edits: list[Edit] = []
        for entry in entries:
            primitive = self._vocabulary.primitive(entry.primitive)
            recipe = primitive.darktable
            if recipe is not None:
                numbers = [evaluate(value, entry.values) for value in recipe.values]
                edits.append(_edit(recipe.module, recipe.version, numbers))
        frame = frame_of(entries, source.frame)
        # always, because darktable adds edits of its own to a history without any
        edits.append(_edit("flip", 2, [_ORIENTATIONS[frame.mirrored, frame.quarters]]))
        left, top = frame.x, frame.y
        if (left, top, frame.width, frame.height) != Frame()[2:]:
            edits.append(_edit("crop", 1, [left, top, left + frame.width, top + frame.height, 0, 0]))
        return edits

    def _write(self, edits: Sequence[Edit]) -> str:
        seen: Counter[str] = Counter()
        items: list[str] = []
        for number, edit in enumerate(edits):
            instance = seen[edit.module]
            seen[edit.module] += 1
            items.append(_ITEM.format(number=number, edit=edit, instance=instance, name=instance or ""))
        order = 'darktable:iop_order_version="2"'
        if any(count > 1 for count in seen.values()):
            places = [f"{name},{instance}" for name in _ORDER for instance in range(max(seen[name], 1))]
            order = f'darktable:iop_order_version="0" darktable:iop_order_list="{",".join(places)}"'
        return self._document.format(count=len(edits), items="\n".join(items), order=order)

    def _check(self, text: str, edits: Sequence[Edit]) -> None:
        complaint = next((line for line in text.splitlines() if _COMPLAINTS.search(line)), None)
        used = {edit.module for edit in edits}
        lost = next((found for found in _LOST_PLACE.finditer(text) if found[1] in used), None)
        if complaint is not None or lost is not None:
            raise _dropped((complaint or (lost[0] if lost else ""))[-_TAIL:])

    def _check_history(self, metadata: str, edits: Sequence[Edit]) -> None:
        """Check that the picture has every edit, by the history that darktable writes into it."""
        found: Counter[str] = Counter()
        instances: set[tuple[str, str]] = set()
        for item in _KEPT.findall(metadata):
            attributes = dict(_ATTRIBUTE.findall(item))
            if attributes.get("enabled") == "1":
                instances.add((attributes.get("operation", ""), attributes.get("multi_priority", "0")))
        found.update(module for module, _ in instances)
        missing = Counter(edit.module for edit in edits) - found
        if missing:
            raise _dropped(f"the picture was made without '{next(iter(missing))}'")

    async def _run(self, *arguments: str | os.PathLike[str]) -> tuple[int, str]:
        """Run the program to its end, and return its exit code and all that it wrote."""
        command = ("/bin/sh", "-c", 'exec "$@" 2>&1', "sh", self._program, *arguments)
        async with self._context.keep_program(command, env={"LC_ALL": "C"}) as program:
            output = (await program.stdout.read()).decode("utf-8", "replace")
            return await program.wait(), output

    def sweep(self) -> None:
        """Remove the folders of processes that were killed."""
        with self._alone() as renders:
            for folder in renders.glob("render-*"):
                with (folder / "lock").open("a") as lock:
                    if _is_free(lock.fileno()):
                        shutil.rmtree(folder)

    @contextmanager
    def _folder(self) -> Generator[Path]:
        """Give a fresh folder for one run; a file in it is locked as long as this process lives."""
        with ExitStack() as stack:
            with self._alone() as renders:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=renders, prefix="render-")))
                lock = stack.enter_context((folder / "lock").open("a"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder

    @contextmanager
    def _alone(self) -> Generator[Path]:
        """Give the folder of all runs, while no other process makes or sweeps one."""
        folder = self._context.folder() / "renders"
        folder.mkdir(mode=0o700, exist_ok=True)
        with (folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder


def _arguments(original: Path, folder: Path, size: int | None) -> list[str | os.PathLike[str]]:
    bound = str(size or 0)
    return [
        original,
        folder / "edits.xmp",
        folder / "picture.tif",
        *("--width", bound, "--height", bound, "--hq", "false" if size else "true"),
        *("--apply-custom-presets", "false", "--core", "--disable-opencl", "--library", ":memory:"),
        *("--configdir", folder / "config", "--cachedir", folder / "cache", "--tmpdir", folder),
        *("--conf", "write_sidecar_files=never", "--conf", "plugins/imageio/format/tiff/bpp=16"),
    ]


def _edit(module: str, version: int, numbers: Sequence[float]) -> Edit:
    layout = MODULES[module, version]
    kinds = "".join(letter * int(count or 1) for count, letter in re.findall(r"(\d*)([a-zA-Z])", layout))
    values = [number if kind == "f" else round(number) for kind, number in zip(kinds, numbers, strict=True)]
    return Edit(module, version, struct.pack(layout, *values).hex())


def _has_its_length(edit: Edit) -> bool:
    """Return whether parameters are bytes of the right number; darktable does not check it."""
    try:
        content = bytes.fromhex(edit.parameters)
    except ValueError:
        return False
    layout = MODULES.get((edit.module, edit.version))
    return layout is None or len(content) == struct.calcsize(layout)


def _metadata(image: pyvips.Image) -> str:
    if "xmp-data" not in image.get_fields():
        return ""
    return bytes(cast("Any", image.get("xmp-data"))).decode("utf-8", "replace")


def _dropped(why: str) -> ToolError:
    message = "darktable would have made the picture without one of its edits, so there is none."
    return ToolError("upstream_error", message, reason="edit_dropped", stderr=why)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
